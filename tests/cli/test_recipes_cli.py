"""`apportion recipes`, and recipes by name on the command line."""

import json
import shlex

import pytest

from apportion.cli.main import main
from apportion.strategies.recipes import RECIPES

TINY = ["--data", "digits", "--sample-rate", "0.2", "--steps", "2", "--epsilon", "3", "--seed", "0"]
BUDGET = ["--delta", "1e-5", "--unit", "record", "--population", "1437"]


@pytest.fixture
def apportion(apportion, monkeypatch):
    """In a narrow terminal."""
    monkeypatch.setenv("COLUMNS", "100")
    return apportion


def test_the_list_names_every_recipe_in_whole(apportion):
    code, out, _ = apportion("recipes")
    assert code == 0
    for name in RECIPES:
        assert f" {name} " in out, name
    assert "price shared" in out
    code, out, _ = apportion("recipes", "--json")
    listed = {one["recipe"]: one for one in json.loads(out)}
    assert list(listed) == list(RECIPES)
    assert listed["lin-transfer"]["needs"]
    assert listed["du-dynamic"]["adapts"] == ["budget", "clip"]
    assert listed["andrew"]["citations"][0] == "andrew2021"
    assert "share" in listed["andrew"]["price"]
    shape = listed["du-dynamic"]["schedule"]
    assert shape["at"] == [1, 500, 1000]
    assert shape["clip"] == pytest.approx([1.5, 1.5 / 2**0.5, 0.75], rel=1e-3)
    assert len(shape["noise"]) == 3
    assert len(out) < 100_000


def test_one_recipe_is_explained_and_drawn(apportion, tmp_path):
    code, out, _ = apportion("recipes", "du-dynamic", "--set", "noise.ratio=4", "--html", "drawn.html")
    assert code == 0
    for words in (
        "μ_t = μ₀·ρ^(t/T)",
        "noise.ratio = 4",
        "ρ = μ_T/μ₀",
        "(q, z_t)",
        "Du et al.",
        "█",
        "1 → 0.25",
        "du2021",
    ):
        assert words in out, words
    assert (tmp_path / "drawn.html").stat().st_size > 1_000_000
    code, out, _ = apportion("recipes", "du-dynamic", "--json")
    course = json.loads(out)["schedule"]
    assert len(course["clip"]) == len(course["noise"]) == course["steps"] == 1000
    assert course["at"] == list(range(1, 1001))
    assert course["clip"][-1] == pytest.approx(0.75)
    assert course["clip"][499] == pytest.approx(1.5 / 2**0.5)


@pytest.mark.parametrize(("name", "words"), [("andrew", "follows released values"), ("lin-transfer", "waits for")])
def test_a_clip_that_is_not_known_in_advance_is_not_drawn(apportion, name, words):
    code, out, _ = apportion("recipes", name)
    assert code == 0
    assert f"clip    {words}" in out


def suggested(out):
    """The commands that a text suggests, as arguments."""
    return [shlex.split(line.partition(": apportion ")[2]) for line in out.splitlines() if ": apportion " in line]


@pytest.mark.slow
def test_the_suggested_commands_work(apportion):
    _, out, _ = apportion("recipes", "lin-transfer")
    search, train = suggested(out)
    assert apportion(*search, "--processes", "1")[0] == 0
    code, out, _ = apportion(*train, "--json")
    assert code == 0
    assert len(json.loads(out.strip().splitlines()[-1])["clip"]["thresholds"]) == 3
    _, out, _ = apportion("recipes", "lin-transfer", "--set", "clip.file=thresholds.json")
    (plan,) = suggested(out)
    assert apportion(*plan)[0] == 0


def test_all_recipes_run_or_say_why_not(apportion, tmp_path):
    code, out, _ = apportion("compare", *TINY, "--all-recipes", "--out", "all", "--json")
    results = json.loads(out.strip().splitlines()[-1])
    assert code == 0
    ran, skipped = {cell["recipe"] for cell in results["cells"]}, {one["recipe"] for one in results["skipped"]}
    assert ran | skipped == set(RECIPES)
    assert skipped == {"lin-transfer", "yu-validation"}  # ten blocks do not fit into so few steps
    for cell in results["cells"]:
        if cell["recipe"] != "non-private":
            assert 0.98 * 3 <= cell["epsilon"] <= cell["target_epsilon"] == 3.0
    assert json.loads((tmp_path / "all" / "results.json").read_text())["skipped"] == results["skipped"]


@pytest.mark.slow
def test_a_recipe_that_does_not_fit_the_model_is_skipped_with_the_reason(apportion):
    """A linear model has no activation to temper."""
    code, out, _ = apportion(
        "compare", *TINY, "--model", "linear", "--all-recipes", "--set", "clip.groups=flat", "--json"
    )
    skipped = {one["recipe"]: one["reason"] for one in json.loads(out.strip().splitlines()[-1])["skipped"]}
    assert code == 0
    assert set(skipped) == {"lin-transfer", "papernot", "yu-validation"}
    assert "no ReLU" in skipped["papernot"]


def test_thresholds_from_a_file(apportion, tmp_path):
    (tmp_path / "found.txt").write_text("0.9\n0.4\n")
    arguments = ["train", *TINY, *BUDGET, "--recipe", "lin-transfer"]
    code, _, err = apportion(*arguments)
    assert code == 2
    assert "it needs a file of thresholds" in err
    assert not list(tmp_path.rglob("*.sqlite"))
    code, out, _ = apportion(*arguments, "--set", "clip.file=found.txt", "--set", "update.average=0.9", "--json")
    run = json.loads(out.strip().splitlines()[-1])
    assert code == 0
    assert run["clip"]["thresholds"] == [0.9, 0.4]
    assert run["update"]["average"] == 0.9


def test_recipes_in_a_file(apportion, tmp_path):
    (tmp_path / "mine.toml").write_text(
        'data = "digits"\nepsilon = 3.0\nsteps = 2\nsample_rate = 0.2\nseeds = [0]\n'
        '[[recipe]]\nname = "papernot"\nupdate.divide_by_clip = true\n[[recipe]]\nname = "hong"\nnoise.contraction = 0.5\n'
    )
    code, out, _ = apportion("compare", "mine.toml", "--json")
    first, second = json.loads(out.strip().splitlines()[-1])["runs"]
    assert code == 0
    assert first["update"]["divide_by_clip"] is True
    assert second["noise"]["contraction"] == 0.5


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["recipes", "du-dinamic"], "Did you mean 'du-dynamic'"),
        (["recipes", "--html", "x.html"], "needs one recipe"),
        (["recipes", "non-private", "--html", "x.html"], "no schedule to draw"),
        (["recipes", "abadi", "--html", "/dev/null/x.html"], "cannot be written"),
        (["recipes", "abadi", "--set", "clip.start=1"], "Fixed has no such parameter"),
        (["compare", "demo", "--all-recipes"], "named as well"),
        (["compare", *TINY, "--recipe", "abadi", "--all-recipes"], "named as well"),
        (["compare", *TINY, "--recipe", "abadi", "--set", "upate.average=0.9"], "Did you mean 'update'"),
        (["plan", "--recipe", "lin-transfer", "--data", "digits", "--epsilon", "3"], "it needs a file of thresholds"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(apportion, arguments, words):
    code, out, err = apportion(*arguments)
    assert code == 2
    assert err.startswith("error: ")
    assert len(err.strip().splitlines()) == 1
    assert words in err, err
    assert "Traceback" not in out + err


def test_a_run_has_one_recipe(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        main(["train", "--data", "digits", "--recipe", "abadi", "--recipe", "hong", "--population", "1437"])
    assert stop.value.code == 2
    assert "a run has one recipe" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_name_alone_is_a_recipe_in_a_file():
    from apportion.compare.experiment import experiment

    plan = experiment({"data": "digits", "lr": 1.0, "recipe": ["hong", {"name": "abadi"}]})
    assert [choice.name for choice in plan.recipe] == ["hong", "abadi"]
