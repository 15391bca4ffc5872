"""What the refusals of `apportion.validate` say."""

from dataclasses import dataclass, field

import numpy as np
import pytest
import torch

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


# --- rules that are declared with a field ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Base(validate.Checked):
    prefix = "clip"
    amount: float = field(metadata=validate.check(validate.positive, "it is divided by", "Try amount=1.0"))
    steps: int = validate.checked(3, validate.whole, "it is counted", least=2)


@dataclass(frozen=True)
class Derived(Base):
    limit: float | None = validate.checked(None, validate.at_least(1), "it is a ratio")
    sure: bool = validate.checked(False, validate.instance_of(bool), "it is a choice", "Use true or false")
    way: str = validate.checked("up", validate.one_of("up", "down"), "there are two ways")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"amount": 0}, "clip.amount=0: it must be positive and finite, because it is divided by. Try amount=1.0."),
        ({"amount": None}, "clip.amount=None: a number is needed. Pass clip.amount as a number."),
        ({"steps": 1}, "clip.steps=1: it must be a whole number of at least 2, because it is counted. Try steps=3."),
        ({"steps": None}, "clip.steps=None: a number is needed. Pass clip.steps as a number."),
        ({"limit": 0.5}, "clip.limit=0.5: it must be at least 1 and finite, because it is a ratio. Leave it out."),
        ({"sure": 1}, "clip.sure=1: it is a choice. Use true or false."),
        ({"way": "dwn"}, "clip.way='dwn': there are two ways. Did you mean 'down'? Choose from: down, up."),
        ({"amount": -1.0, "steps": 0}, "clip.amount=-1.0: it must be positive and finite, because it is divided by"),
    ],
)
def test_a_field_is_refused_by_its_rule_in_the_order_of_declaration(values, message):
    with pytest.raises(ap.InvalidArgument) as refused:
        Derived(**{"amount": 1.0} | values)
    assert str(refused.value).startswith(message)


def test_what_is_kept_is_plain_and_none_is_kept_where_it_is_the_default():
    made = Derived(np.float32(0.5), torch.tensor(4), limit=np.int64(2))
    assert made == Derived(0.5, 4, 2.0)
    assert [type(value) for value in (made.amount, made.steps, made.limit)] == [float, int, float]
    assert Derived(1.0).limit is None


def test_a_field_that_is_declared_again_keeps_its_rule_or_has_a_new_one():
    @dataclass(frozen=True)
    class Patient(Derived):
        amount: float = 2.0
        steps: int | None = None
        limit: float = validate.checked(0.5, validate.in_open_unit, "it is a part")

    assert Patient() == Patient(2.0, None, 0.5)
    for values, fix in (
        ({"amount": 0}, "Try amount=1.0"),
        ({"steps": 1}, "Leave it out"),
        ({"limit": 1.5}, "Try limit=0.5"),
    ):
        with pytest.raises(ap.InvalidArgument, match=fix):
            Patient(**values)


def test_a_field_without_a_default_must_say_what_to_do():
    @dataclass(frozen=True)
    class Silent(validate.Checked):
        amount: float = field(metadata=validate.check(validate.positive, "it is divided by"))

    with pytest.raises(TypeError, match=r"Silent\.amount has no default to try"):
        Silent(1.0)


@pytest.mark.parametrize(
    ("rule", "accepted", "refused"),
    [
        (validate.positive, (5e-324, 1e300), (0, -1, float("inf"))),
        (validate.non_negative, (0, 1e300), (-5e-324, float("inf"))),
        (validate.at_least(1), (1, 2), (0.999, float("inf"))),
        (validate.in_open_unit, (0.5, 5e-324), (0, 1)),
        (validate.in_closed_unit, (0, 1), (-0.1, 1.1)),
        (validate.below_one, (0, 0.999), (1, -0.1)),
        (validate.probability, (1, 5e-324), (0, 1.1)),
    ],
)
def test_the_ends_of_intervals(rule, accepted, refused):
    assert [rule("x", value, "why", "fix") for value in accepted] == list(accepted)
    for value in (*refused, float("nan"), True, "1"):
        with pytest.raises(ap.InvalidArgument, match="^x="):
            rule("x", value, "why", "fix")
