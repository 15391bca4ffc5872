"""From a run to a page: what `Run.report` and `report` take, and what they call it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from report_samples import comparison, make_run, plotly_source
from torch.nn.functional import cross_entropy

import apportion as ap
from apportion.errors import InvalidArgument, MissingExtra
from apportion.reporting import HistoryEntry, Results, RunResult, read_results, report
from apportion.reporting.write import write_report

KEPT = Path(__file__).parents[2] / "reproduction" / "results"
RESULTS = sorted(file for file in KEPT.glob("*.json") if json.loads(file.read_text(encoding="utf-8")).get("runs"))


def train(recipe="abadi"):
    data = (torch.randn(64, 4), torch.randint(0, 2, (64,)))
    budget = ap.Budget(epsilon=3.0, delta=1e-5, unit=ap.Record())
    plan = ap.plan(recipe, budget=budget, population=64, sample_rate=0.25, steps=3)
    public = ap.Public((torch.randn(20, 4), torch.randint(0, 2, (20,))))
    return ap.train(torch.nn.Linear(4, 2), cross_entropy, data, plan, lr=1.0, evaluate=public)


@pytest.fixture(scope="module")
def run():
    return train()


def page_at(path: Path) -> str:
    return path.read_text(encoding="utf-8").replace(plotly_source(), "")


class TestRuns:
    def test_a_run_writes_its_page(self, run, tmp_path):
        page = page_at(run.report(tmp_path / "run.html", title="Mine"))
        assert "<title>Mine</title>" in page
        assert run.history[-1].test_accuracy is not None
        assert f"{100 * run.history[-1].test_accuracy:.1f}\u00a0%" in page
        assert "Whatever is computed from the released model" in page
        assert 'id="clip-steps-0"' in page
        assert "abadi" in page
        assert "Time</th>" not in page  # a run does not know how long it took

    def test_the_function_is_not_hidden_by_its_package(self):
        code = "import apportion.reporting.page, apportion as ap; from apportion.reporting import report; assert ap.report is report"
        subprocess.run([sys.executable, "-c", code], check=True)

    def test_several_runs_stand_side_by_side_under_the_names_that_they_are_given(self, run, tmp_path):
        other = train(ap.Recipe(clip=ap.clip.Fixed(threshold=0.5)))
        page = page_at(ap.report({"usual": run, "narrow": other}, tmp_path / "both.html"))
        assert page.count('class="chip"') == 2
        assert "usual" in page
        assert "narrow" in page
        assert "seed 0" not in page

    def test_runs_of_one_name_and_other_settings_are_numbered(self, run, tmp_path):
        result = RunResult.from_json(make_run("constant", 0))
        other = RunResult.from_json(make_run("constant", 1) | {"lr": 0.5})
        page = page_at(report([result, other], tmp_path / "both.html"))
        assert "constant (1)" in page
        assert "constant (2)" in page
        again = RunResult.from_json(make_run("constant", 1))
        assert "constant (1)" not in page_at(report([result, again], tmp_path / "same.html"))  # two seeds of one run

    def test_the_folder_of_a_run_is_the_same_as_the_run(self, run, tmp_path):
        folder = run.save(tmp_path / "kept")
        pages = [page_at(report(one, tmp_path / "page.html")) for one in (run, folder, str(folder))]
        assert pages[0] == pages[1] == pages[2]

    def test_a_saved_run_is_reported_without_torch(self, run, tmp_path):
        places = str(run.save(tmp_path / "kept")), str(tmp_path / "page.html")
        code = (
            f"import sys; from apportion.reporting import report; report(*{places}); sys.exit('torch' in sys.modules)"
        )
        assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
        assert (tmp_path / "page.html").exists()

    def test_files_and_folders_of_results(self, tmp_path):
        (tmp_path / "results.json").write_text(json.dumps(comparison()), encoding="utf-8")
        expected = page_at(write_report(comparison(), tmp_path / "expected.html"))
        for source in (tmp_path, tmp_path / "results.json", [tmp_path], read_results(tmp_path)):
            assert page_at(report(source, tmp_path / "page.html")) == expected


class TestRefusals:
    def test_what_is_no_run(self, tmp_path):
        with pytest.raises(InvalidArgument, match="^runs='Linear': it is neither a run nor results"):
            report([torch.nn.Linear(2, 2)], tmp_path / "page.html")
        with pytest.raises(InvalidArgument, match="there is nothing to report"):
            report([], tmp_path / "page.html")

    def test_a_damaged_folder_of_a_run(self, run, tmp_path):
        folder = run.save(tmp_path / "kept")
        (folder / "public" / "privacy.json").write_text("{}")
        with pytest.raises(InvalidArgument, match="does not hold a run as `Run.save` writes it"):
            report(folder, tmp_path / "page.html")
        (folder / "public" / "privacy.json").unlink()
        with pytest.raises(InvalidArgument, match="privacy.json.*there is no such file"):
            report(folder, tmp_path / "page.html")

    @pytest.mark.parametrize("missing", ["plotly", "jinja2"])
    def test_a_missing_extra_is_one_sentence(self, missing, tmp_path, monkeypatch):
        found = sys.modules["importlib.util"].find_spec
        monkeypatch.setattr("apportion.extras.find_spec", lambda name: None if name == missing else found(name))
        result = RunResult.from_json(make_run("constant", 0))
        with pytest.raises(MissingExtra, match=rf'^{missing} is not installed\. .*pip install "apportion\[report\]"$'):
            report(result, tmp_path / "page.html")

    def test_drawing_without_plotly_is_the_same_sentence(self):
        code = (
            "import sys; sys.modules['plotly'] = None; sys.modules['plotly.graph_objects'] = None\n"
            "import importlib.util as util; found = util.find_spec\n"
            "util.find_spec = lambda name: None if name == 'plotly' else found(name)\n"
            "import apportion.reporting.plan_page, apportion.reporting.result\n"
            "import apportion.reporting.drawing"
        )
        ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert ended.stderr.splitlines()[-1].endswith('pip install "apportion[report]"')


class TestFiles:
    def test_there_are_some(self):
        assert len(RESULTS) >= 10

    @pytest.mark.parametrize("file", RESULTS, ids=lambda file: file.stem)
    def test_kept_results_are_read_and_written_as_they_are(self, file):
        before = json.loads(file.read_text(encoding="utf-8"))
        after = json.loads(json.dumps(read_results(file).to_json(), allow_nan=False))
        assert known(after) == known(before)

    def test_a_field_that_cannot_be_what_it_says_counts_as_missing(self):
        bad = {"recipe": 7, "epsilon": "much", "test_accuracy": 1.5, "steps": 2.5, "private": "no", "history": None}
        found = RunResult.from_json(bad | {"dropout": 0.1})
        assert found == RunResult(recipe="7", details={"dropout": 0.1})

    def test_thresholds_are_a_tuple_and_written_as_they_were_read(self):
        for clip, expected in ((None, ()), (0.5, (0.5,)), ([0.5, 1.0], (0.5, 1.0))):
            (entry,) = RunResult.from_json({"recipe": "x", "history": [{"step": 1, "clip": clip}]}).history
            assert entry == HistoryEntry(1, clip=expected)
            assert entry.to_json()["clip"] == clip

    def test_an_entry_needs_its_step(self):
        with pytest.raises(
            InvalidArgument, match=r"runs\[0\]\['history'\] has an entry without the number of its 'step'"
        ):
            Results.from_json({"runs": [{"recipe": "x", "history": [{"epsilon": 1.0}]}]})

    def test_what_was_skipped_is_on_the_page(self, tmp_path):
        skipped = [{"recipe": "zhang", "reason": "it needs public records"}]
        page = page_at(write_report(comparison() | {"skipped": skipped}, tmp_path / "page.html"))
        assert "zhang: it needs public records" in page
        assert Results.from_json(comparison() | {"skipped": skipped}).to_json()["skipped"] == skipped


def known(value):
    """Without what is null, which means the same as nothing."""
    if isinstance(value, dict):
        return {key: known(one) for key, one in value.items() if one is not None}
    return [known(one) for one in value] if isinstance(value, list) else value
