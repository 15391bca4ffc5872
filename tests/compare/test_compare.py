import json
import math

import pytest

from apportion import InvalidArgument
from apportion.compare.comparison import collect_results, compare
from apportion.compare.experiment import experiment, find_file, read_file
from apportion.reporting import Results, RunResult

TINY = {
    "data": "digits",
    "model": "linear",
    "recipe": [{"name": "non-private"}, {"name": "abadi"}, {"name": "lin-decay", "clip": {"start": 0.5}}],
    "epsilon": 3.0,
    "delta": 1e-5,
    "unit": "record",
    "population": 1437,
    "sample_rate": 0.1,
    "steps": 3,
    "lr": 1.0,
    "seeds": [0, 1],
}


def run(recipe="abadi", accuracy=0.5, seed=0):
    asked = {"target_epsilon": 3.0, "delta": 1e-5, "epsilon": 2.99}
    return RunResult(
        recipe=recipe, data="d", model="m", test_accuracy=accuracy, seed=seed, steps=5, seconds=1.0, **asked
    )


def test_a_comparison_has_a_run_for_every_recipe_and_seed(tmp_path):
    told = []
    results = compare(experiment(TINY), tmp_path, announce=told.append)
    assert [(r.recipe, r.seed) for r in results.runs] == [
        (name, seed) for name in ("non-private", "abadi", "lin-decay") for seed in (0, 1)
    ]
    assert tuple(told) == results.runs
    required = {
        "recipe",
        "data",
        "model",
        "epsilon",
        "target_epsilon",
        "delta",
        "test_accuracy",
        "steps",
        "seed",
        "seconds",
    }
    written = results.to_json()
    assert all(required <= set(r) for r in written["runs"])
    assert Results.from_json(json.loads(json.dumps(written, allow_nan=False))) == results
    plain, private = results.runs[0], results.runs[2]
    assert plain.epsilon is None
    assert plain.target_epsilon is None
    assert 0.998 * 3 <= private.epsilon <= 3
    assert private.epsilon_spent == private.epsilon, "there are no spare steps"
    assert private.private is False, "a seeded run must not be called private"
    assert "NOT PRIVATE" in private.statement
    assert results.runs[4].details["clip"]["start"] == 0.5
    assert (tmp_path / "runs" / "abadi-seed1" / "public" / "privacy.md").exists()
    again = compare(experiment(TINY | {"recipe": [{"name": "abadi"}], "seeds": [1]}), tmp_path)
    assert again.runs[0].test_accuracy == results.runs[3].test_accuracy
    assert (tmp_path / "runs" / "abadi-seed1-2").exists(), "an earlier run was overwritten"


def test_cells_are_means_over_seeds():
    found = [run(accuracy=0.5, seed=0), run(accuracy=0.7, seed=1), run("x", accuracy=0.4)]
    rows = collect_results("made up", found).details["cells"]
    assert [row["recipe"] for row in rows] == ["abadi", "x"]
    assert rows[0]["test_accuracy"] == pytest.approx(0.6)
    assert rows[0]["test_accuracy_std"] == pytest.approx(math.sqrt(0.02))
    assert rows[0]["seeds"] == [0, 1]
    assert rows[1]["test_accuracy_std"] is None


def test_two_settings_of_one_recipe_have_labels(tmp_path):
    choices = [{"name": "abadi", "label": f"C = {c}", "clip": {"threshold": c}} for c in (0.3, 1.0)]
    results = compare(experiment(TINY | {"recipe": choices, "seeds": [0]}), tmp_path)
    assert [row["recipe"] for row in results.details["cells"]] == ["C = 0.3", "C = 1.0"]


def test_the_packaged_demo_is_a_valid_experiment():
    demo = experiment(read_file(find_file("demo")))
    demo.check()
    assert [choice.name for choice in demo.recipe] == [
        *("non-private", "abadi", "default", "lin-decay", "andrew", "auto-s", "du-dynamic", "yu-noise-time", "hong"),
        *("abadi", "default"),  # on features
    ]
    assert (demo.epsilon, demo.delta) == (3.0, 1e-5)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"epsilom": 3.0}, "epsilom.*Did you mean 'epsilon'"),
        ({"recipe": [{"name": "abady"}]}, "Did you mean 'abadi'"),
        ({"recipe": [{"name": "abadi", "clop": {}}]}, "Did you mean 'clip'"),
        ({"recipe": []}, "recipe"),
        ({"recipe": [{"name": "abadi"}, {"name": "abadi", "clip": {"threshold": 2.0}}]}, "label of its own"),
        ({"epsilon": None}, "^epsilon=None.*your decision"),
        ({"delta": None}, "^delta=None"),
        ({"unit": None}, "^unit=None.*whom"),
        ({"unit": "recrd"}, "Did you mean 'record'"),
        ({"population": None}, "^population=None"),
        ({"epsilon": -1.0}, "^epsilon=-1.0"),
        ({"epsilon": "x"}, "^epsilon='x'"),
        ({"steps": 2.5}, "^steps=2.5"),
    ],
)
def test_wrong_settings_are_named(change, words):
    with pytest.raises(InvalidArgument, match=words):
        experiment(TINY | change).check()


def test_wrong_files_are_named(tmp_path):
    bad = tmp_path / "bad.toml"
    bad.write_text("epsilon = = 3")
    with pytest.raises(InvalidArgument, match="not valid TOML"):
        read_file(bad)
    with pytest.raises(InvalidArgument, match="cannot be read"):
        read_file(tmp_path / "missing.toml")
    with pytest.raises(InvalidArgument, match="Did you mean 'demo'"):
        find_file("demmo")
