"""What the refusals of `apportion.validate` say."""

import pytest

import apportion as ap
from apportion import validate
from apportion.accounting.accountant import PrivacyLossAccountant
from apportion.accounting.calibration import calibrate
from apportion.compare.experiment import experiment


@pytest.mark.parametrize("delta", [0, 1, 1.5])
def test_what_delta_is_is_said_rightly(delta):
    """δ is not "the probability that the bound fails": it bounds what e^ε leaves over, and must be below 1/population."""
    words = r"it is the part of probability for which e\^ε does not bound the ratio\. Use less than 1/population"
    with pytest.raises(ap.InvalidArgument, match=words):
        ap.Budget(epsilon=1.0, delta=delta, unit=ap.Record())
    with pytest.raises(ap.InvalidArgument, match=words):
        calibrate(PrivacyLossAccountant(), [1.0], sample_rate=0.1, epsilon=1.0, delta=delta)
    with pytest.raises(ap.InvalidArgument, match=words):
        PrivacyLossAccountant().epsilon({}, delta)


def test_a_wrong_name_is_said_once_with_the_closest_one():
    with pytest.raises(ap.InvalidArgument) as refused:
        ap.recipes.abadi().with_settings({"clip.treshold": 0.5})
    assert refused.value.argument == "set clip.treshold"
    assert str(refused.value).startswith(
        "set clip.treshold: Fixed has no such parameter. Did you mean 'threshold'? Choose from: "
    )


def test_a_wrong_value_is_said_beside_its_argument():
    with pytest.raises(ap.InvalidArgument, match=r"^optimizer='sdg': there is no such name\. Did you mean 'sgd'\?"):
        validate.known("optimizer", "sdg", ["sgd", "adam"])


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("learning_rate", "lr"),
        ("batch", "batch_size"),
        ("dataset", "data"),
        ("noise_multiplier", "noise.multiplier"),
        ("sigma", "noise.multiplier"),
        ("max_grad_norm", "clip.threshold"),
        ("Clip-Norm", "clip.threshold"),
        ("epsilom", "epsilon"),
    ],
)
def test_names_of_other_libraries_lead_to_ours(said, meant):
    with pytest.raises(ap.InvalidArgument, match=rf"^{said}: there is no such setting\. Did you mean '{meant}'\?"):
        experiment({"data": "digits", "lr": 1.0, "recipe": ["abadi"], said: 1.0})


@pytest.mark.parametrize(
    ("recipe", "said", "meant"),
    [
        ("abadi", "clip.max_grad_norm", "threshold"),
        ("lin-decay", "clip.max_grad_norm", "start"),
        ("abadi", "noise.sigma", "multiplier"),
        ("default", "clip.threshold", "start"),
        ("abadi", "clip.start", "threshold"),
    ],
)
def test_within_a_role_they_lead_to_its_parameters(recipe, said, meant):
    with pytest.raises(ap.InvalidArgument, match=rf"^set {said}: .* Did you mean '{meant}'\?"):
        ap.recipes.named(recipe).with_settings({said: 1.0})
