import json
import re

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import apportion as ap
import runs
from apportion import InvalidArgument, clip, noise, recipes
from apportion.strategies.citations import BIBTEX, citation_keys
from apportion.strategies.recipes.explanation import describe_roles, example_schedule, list_parameters

LISTED = [
    *("non-private", "default", "abadi", "papernot", "lin-decay", "lin-transfer", "yu-clip", "andrew", "adaclip"),
    *(
        "van-der-veen",
        "he-global",
        "he-equal",
        "auto-s",
        "dc-sgd-p",
        "dc-sgd-e",
        "du-growing",
        "du-sensitivity",
        "du-dynamic",
        "yu-noise-time",
    ),
    *("yu-noise-exponential", "yu-noise-step", "yu-noise-polynomial", "zhang", "hong", "fay-fixed"),
    *("adamw", "adamw-bc", "doppler"),
    *("yu-validation", "fay-adaptive", "adadp", "dp-agd", "noisy-btls"),
]
SCHEDULED = {"update.LearningRate.warm_up": 0.1, "update.LearningRate.decay": "cosine"}
PRIVATE = [name for name in LISTED if name != "non-private"]


def test_every_recipe_has_a_name_and_a_function():
    assert sorted(recipes.RECIPES) == sorted(LISTED)
    for name in LISTED:
        assert recipes.named(name).name == name
        assert getattr(recipes, name.replace("-", "_"))() == recipes.named(name)
    assert set(LISTED) - set(recipes.READY) == {"lin-transfer"}


def test_named_recipes_are_their_parts():
    assert recipes.abadi(threshold=0.5).clip == clip.Fixed(0.5)
    assert recipes.lin_decay(start=2.0).clip == clip.Decay(start=2.0, power=0.5)
    assert recipes.named("lin-decay").noise == noise.Constant()
    assert recipes.he_global().clip.groups == recipes.he_equal().clip.groups == "layer"
    assert (recipes.he_global().clip.allocation, recipes.he_equal().clip.allocation) == ("global", "equal")
    assert recipes.papernot(scale=1.0).model.scale == 1.0
    assert recipes.zhang(factor=0.9, multiplier=3.0).noise == noise.GeometricDecay(factor=0.9, multiplier=3.0)
    assert not recipes.non_private().private


@pytest.mark.parametrize("name", PRIVATE)
def test_what_a_recipe_says_it_adapts_is_what_moves(name):
    """A recipe that adapts the budget has different multipliers, one that does not has a single one; likewise the clip."""
    recipe, course = recipes.named(name), example_schedule(recipes.named(name))
    if recipe.price in ("multiset", "filter"):  # nothing of it is known in advance
        assert "budget" in recipe.adapts
        return
    assert (len(set(course["noise"])) > 1) == ("budget" in recipe.adapts)
    assert (recipe.price == "scheduled") == ("budget" in recipe.adapts)
    if course["clip"] is None:
        assert "clip" in recipe.adapts
    elif name != "auto-s":  # its threshold is fixed, and nothing is clipped at it
        assert (len(set(course["clip"])) > 1) == ("clip" in recipe.adapts)


@pytest.mark.parametrize("name", [name for name in PRIVATE if name in recipes.READY])
def test_every_recipe_takes_steps_within_its_budget(name, records, budget):
    torch.manual_seed(0)
    recipe, model = recipes.named(name), nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    run = runs.train(
        model if recipe.model is None else ap.temper(model),
        cross_entropy,
        records,
        budget=budget,
        population=400,  # ten times as many as there are: fewer would be drowned in noise
        count_usable=False,
        sample_rate=0.4,
        steps=10,
        lr=0.1,
        clip=recipe.clip,
        noise=recipe.noise,
        update=recipe.update,
        validation=ap.Public(records),
        progress=False,
    )
    assert run.steps == 10 or (recipe.price == "filter" and 0 < run.steps < 10)
    assert 0.98 * 3 <= run.statement()["epsilon"] <= 3
    assert citation_keys(run) == citation_keys(recipe)


def test_settings_replace_single_hyper_parameters():
    recipe = recipes.named("lin-decay").with_settings(
        {"clip.start": 0.3, "clip.power": 0.4, "noise.multiplier": 2.0, "update.average": 0.9}
    )
    assert recipe.clip == clip.Decay(start=0.3, power=0.4)
    assert recipe.noise == noise.Constant(2.0)
    assert recipe.update == ap.update.Plain(average=0.9)


def test_settings_change_a_part_of_the_update_or_add_it_in_its_place():
    recipe = recipes.named("default").with_settings(SCHEDULED)  # one by one, as the command line says it
    assert recipe.update == ap.update.Chain((ap.update.Plain(average=0.9), ap.update.LearningRate(0.1, "cosine")))
    again = recipe.with_settings(
        {"update.LearningRate": {"decay": "linear"}, "update.LowPass": {}}
    )  # as a file says it
    filtered = (ap.update.LowPass(), ap.update.Plain(average=0.9), ap.update.LearningRate(0.1, "linear"))
    assert again.update == ap.update.Chain(filtered)
    assert recipes.named("doppler").with_settings({"update.AdamW.decay": 0.5}).update == ap.update.Chain(
        (ap.update.LowPass(), ap.update.AdamW(decay=0.5))
    )
    assert recipes.named("doppler").with_settings({"update.LowPass.b": [0.2]}).update == ap.update.LowPass(b=(0.2,))
    chosen = recipes.named("abadi").with_settings({"update.kind": "LowPass", "update.TailAverage.fraction": 0.5})
    assert chosen.update == ap.update.Chain((ap.update.LowPass(), ap.update.TailAverage(0.5)))
    assert {one.name for one in list_parameters(chosen)} >= {"LowPass.a", "TailAverage.fraction"}


def test_two_settings_that_only_fit_together_are_taken_together():
    """Alone, each would lie beyond the other's old value."""
    recipe = recipes.named("adaclip").with_settings({"clip.floor": 0.1, "clip.cap": 0.2})
    assert (recipe.clip.floor, recipe.clip.cap) == (0.1, 0.2)


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("lin-decay", {"clip.threshold": 1.0}, "Choose from: allocation, groups, minimum, power, start"),
        ("abadi", {"clip.treshold": 1.0}, "Did you mean 'threshold'"),
        ("abadi", {"clop.threshold": 1.0}, "Did you mean 'clip'"),
        ("abadi", {"clip.threshold": -1.0}, "clip.threshold=-1.0"),
        ("abadi", {"update.averag": 0.9}, "Did you mean 'average'"),
        ("abadi", {"update.average": 2}, "update.average=2"),
        ("adaclip", {"clip.floor": 1.0}, "Swap them"),
        ("abadi", {"update.LearningRate.warmup": 0.1}, "Did you mean 'warm_up'"),
        ("abadi", {"update.LearningRat.warm_up": 0.1}, "Did you mean 'LearningRate'"),
        ("abadi", {"update.LearningRate.warm_up": 1.0}, "update.warm_up=1.0"),
        ("default", {"update.TailAverage.fraction": 0.5}, "Plain and TailAverage.*only one average can be the model"),
        ("adadp", {"update.LearningRate.warm_up": 0.1}, "AdaDP sets the weights itself"),
        ("doppler", {"update.AdamW.corrected": True}, "it knows the noise in a released gradient"),
        ("lin-transfer", {"clip.file": "nowhere.json"}, "clip.file='nowhere.json'"),
        ("non-private", {"clip.threshold": 1.0}, "has no clip"),
    ],
)
def test_settings_that_fit_nothing_are_refused(name, settings, words):
    with pytest.raises(InvalidArgument, match=words):
        recipes.named(name).with_settings(settings)


def test_an_unknown_recipe_names_the_closest():
    with pytest.raises(InvalidArgument, match="Did you mean 'lin-decay'"):
        recipes.named("lin-decai")


def test_transfer_waits_for_its_thresholds(tmp_path):
    waiting = recipes.named("lin-transfer")
    assert not waiting.complete
    with pytest.raises(InvalidArgument, match="recipe='lin-transfer': it needs a file of thresholds"):
        waiting.require_complete()
    (tmp_path / "found.json").write_text(json.dumps([0.9, 0.5]))
    filled = waiting.with_settings({"clip.file": str(tmp_path / "found.json")})
    filled.require_complete()
    assert filled.clip == recipes.lin_transfer(thresholds=(0.9, 0.5)).clip


@pytest.mark.parametrize("name", PRIVATE)
def test_the_explanation_is_complete(name):
    """Every role has a formula and a source, and every hyper-parameter a meaning, all from the strategies' own words."""
    recipe = recipes.named(name)
    for part in describe_roles(recipe):
        assert re.search(r"[=←]|/\(", part.formula), part
        assert part.source, part
    for one in list_parameters(recipe):
        assert one.meaning, f"{name}: {one.role}.{one.name} is not explained"
    assert {"clip", "noise", "update"} <= {part.role for part in describe_roles(recipe)}


def test_citations_name_what_is_used():
    assert citation_keys("abadi") == ("abadi2016", "doroshenko2022")
    assert citation_keys("du-dynamic")[0] == "du2021"
    assert {"andrew2021", "he2023"} <= set(citation_keys("he-equal"))
    assert "papernot2021" in citation_keys("papernot")
    assert "he2023" not in citation_keys("andrew")
    assert "polyak1992" in citation_keys(recipes.named("abadi").with_settings({"update.average": 0.9}))
    assert citation_keys("non-private") == ()
    assert ap.cite("lin-decay").startswith("@article{lin2022,")
    with pytest.raises(InvalidArgument, match="neither a run nor a plan nor a recipe"):
        ap.cite(3)
    cited = {key for name in LISTED for key in citation_keys(name)}
    added = recipes.abadi().with_settings({"update.average": 0.9, **SCHEDULED})
    tail = recipes.abadi().with_settings({"update.TailAverage.fraction": 0.5})
    cited |= {*citation_keys(added), *citation_keys(tail)}
    assert cited == set(BIBTEX), "an entry that nothing uses, or the other way round"


def test_every_part_of_an_update_is_cited():
    assert citation_keys("adamw") == ("chooi2025", "loshchilov2019", "abadi2016", "doroshenko2022")
    assert citation_keys("adamw-bc")[:2] == ("chooi2025", "tang2024")
    assert citation_keys("doppler")[0] == "zhang2024"
    combined = recipes.named("doppler").with_settings({"update.AdamW.decay": 0.1, **SCHEDULED})
    assert citation_keys(combined)[:5] == ("zhang2024", "chooi2025", "loshchilov2019", "goyal2017", "loshchilov2017")
    assert "goyal2017" not in citation_keys(recipes.abadi().with_settings({"update.LearningRate.decay": "linear"}))


def test_a_run_is_cited_by_what_it_used(records, budget):
    model = ap.temper(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)))
    run = runs.train(
        model,
        cross_entropy,
        records,
        budget=budget,
        population=40,
        sample_rate=0.4,
        steps=1,
        lr=0.1,
        clip=ap.clip.FixedDeviation(),
        update=ap.update.Plain(average=0.9),
        progress=False,
    )
    assert citation_keys(run) == ("yu2018", "papernot2021", "polyak1992", "abadi2016", "doroshenko2022")


@pytest.mark.parametrize("key", BIBTEX)
def test_entries_are_bibtex(key):
    entry = BIBTEX[key]
    assert re.match(rf"@(inproceedings|article|misc)\{{{key},\n", entry)
    assert entry.count("{") == entry.count("}")
    assert all(re.search(rf"^  {field} +=", entry, re.M) for field in ("author", "title", "year"))
