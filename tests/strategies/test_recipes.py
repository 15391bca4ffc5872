import pytest

from apportion import InvalidArgument, clip, noise, recipes


def test_named_recipes_are_their_parts():
    assert recipes.abadi(threshold=0.5).clip == clip.Fixed(0.5)
    assert recipes.lin_decay(start=2.0).clip == clip.Decay(start=2.0, power=0.5)
    assert recipes.named("lin-decay").noise == noise.Constant()
    assert not recipes.non_private().private
    assert all(recipes.named(name).name == name for name in recipes.RECIPES)


def test_settings_replace_single_hyper_parameters():
    recipe = recipes.named("lin-decay").with_settings({"clip.start": 0.3, "clip.power": 0.4, "noise.multiplier": 2.0})
    assert recipe.clip == clip.Decay(start=0.3, power=0.4)
    assert recipe.noise == noise.Constant(2.0)


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("lin-decay", {"clip.threshold": 1.0}, "Choose from: allocation, groups, minimum, power, start"),
        ("abadi", {"clip.treshold": 1.0}, "Did you mean 'threshold'"),
        ("abadi", {"clop.threshold": 1.0}, "Did you mean 'clip'"),
        ("abadi", {"clip.threshold": -1.0}, "clip.threshold=-1.0"),
        ("non-private", {"clip.threshold": 1.0}, "has no clip"),
    ],
)
def test_settings_that_fit_nothing_are_refused(name, settings, words):
    with pytest.raises(InvalidArgument, match=words):
        recipes.named(name).with_settings(settings)


def test_an_unknown_recipe_names_the_closest():
    with pytest.raises(InvalidArgument, match="Did you mean 'lin-decay'"):
        recipes.named("lin-decai")
