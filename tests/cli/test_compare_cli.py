"""`apportion compare`: what an interruption leaves behind, and files that are no comparison."""

import json

from apportion.compare import comparison as compare_module

QUICK = ("compare", "--data", "digits", "--epsilon", "3", "--steps", "2", "--recipe", "abadi", "--recipe", "auto-s")


def test_an_interruption_leaves_what_was_run_before_it(apportion, tmp_path, monkeypatch):
    run_recipe, calls = compare_module.run_recipe, []

    def interrupted(*arguments, **named):
        calls.append(arguments)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return run_recipe(*arguments, **named)

    monkeypatch.setattr(compare_module, "run_recipe", interrupted)
    code, _, said = apportion(*QUICK, "--out", "half")
    assert code == 130
    assert "`apportion report half` shows them" in said
    found = json.loads((tmp_path / "half" / "results.json").read_text())
    assert [run["recipe"] for run in found["runs"]] == ["abadi"]
    assert "commit" in found


def test_a_study_is_refused(apportion, tmp_path):
    (tmp_path / "table.toml").write_text(
        'data = "digits"\nlr = 2.0\n[[experiment]]\nepsilon = 3.0\nrecipe = ["abadi"]\n'
    )
    code, _, said = apportion("compare", "table.toml")
    assert code == 2
    assert "file='table.toml': it holds [[experiment]]" in said
    assert "python -m reproduction run" in said
    assert not (tmp_path / "runs").exists()
