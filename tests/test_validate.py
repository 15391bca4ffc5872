"""What the refusals of `apportion.validate` say."""

import pytest

import apportion as ap
from apportion import validate
from apportion.accounting.accountant import PrivacyLossAccountant
from apportion.accounting.calibration import calibrate


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
