"""The curator end to end: what is charged, drawn, clipped, noised and divided, and in which order."""

import copy
import math
import signal

import pytest
import torch
from scipy import stats
from torch import nn
from torch.nn.functional import cross_entropy

from apportion.accounting.accountant import PrivacyLossAccountant, count_events
from apportion.curator import mechanisms
from apportion.curator.clipping import clip_and_sum
from apportion.curator.curator import Curator
from apportion.curator.gradients.engine import build_engine
from apportion.curator.gradients.one_pass import OnePass
from apportion.curator.gradients.reference import ReferenceGradients
from apportion.curator.problems import Problems
from apportion.curator.randomness import Randomness
from apportion.curator.records import Records, as_records
from apportion.errors import BudgetExhausted, InvalidArgument, WrongOrder
from apportion.event import Event
from apportion.execution import Execution
from apportion.releases import FLOAT32_HEADROOM, ClippedSum, Frame, UnclippedCount
from apportion.request import Request

MODES = ("one-pass", "one-pass, channels last", "vmap")
NAMES = ("0.weight", "0.bias", "2.weight", "2.bias")
CLIPS = {
    "flat": lambda c: (ClippedSum(c),),
    "two groups": lambda c: (ClippedSum(c, NAMES[:2], 0.25), ClippedSum(3 * c, NAMES[2:], 0.75)),
    "per layer": lambda c: tuple(ClippedSum(c, (name,), 0.25) for name in NAMES),
}


def request(*, rate=1.0, multiplier=1.0, size=40.0, releases=None):
    return Request(rate, multiplier, size, releases or (ClippedSum(0.3),))


def curator(model, data, books, *, seed=0, micro_batch=256):
    return Curator(
        as_records(data), ReferenceGradients(model, "vmap"), books, Randomness.seeded(seed), Execution(micro_batch)
    )


def answer(model, data, books, asked, **options):
    return curator(model, data, books, **options).answer(asked, cross_entropy).gradient


def flat(gradient):
    return torch.cat([gradient[name].flatten().double() for name in NAMES])


def exact_sum(model, data, releases):
    engine = ReferenceGradients(copy.deepcopy(model), "vmap")
    engine.record_losses(cross_entropy, engine.forward(data[0]), data[1]).sum().backward()
    return flat(clip_and_sum(engine.gradients(), releases))


# --- noise ----------------------------------------------------------------------------------------------------------------


class Wide(nn.Module):
    """Enough parameters to measure a standard deviation to half a percent in one step."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(400, 250, bias=False)

    def forward(self, x):
        return self.layer(x)


def empty_step_noise(books, threshold, multiplier, share=1.0):
    """The noise alone: at a rate of one in a quintillion no record is drawn."""
    data = (torch.zeros(3, 400), torch.zeros(3, dtype=torch.long))
    asked = request(rate=1e-18, multiplier=multiplier, size=8.0, releases=(ClippedSum(threshold),))
    return answer(Wide(), data, books, asked)["layer.weight"].flatten().double().numpy() * 8.0


def accepts(noise, deviation):
    return stats.kstest(noise / deviation, "norm").pvalue > 1e-4


@pytest.mark.parametrize(("threshold", "multiplier"), [(1.0, 1.0), (0.1, 3.0), (20.0, 0.7)])
def test_noise_has_the_standard_deviation_that_was_paid_for(books, threshold, multiplier):
    noise = empty_step_noise(books, threshold, multiplier)
    assert accepts(noise, threshold * multiplier)
    assert not accepts(noise, threshold * multiplier * 0.95)
    assert not accepts(noise, threshold * multiplier * 1.05)


@pytest.mark.parametrize("factor", [0.5, 0.95, 1.05])
def test_a_mechanism_with_the_wrong_noise_is_caught(books, monkeypatch, factor):
    right = mechanisms.add_gaussian_noise
    monkeypatch.setattr(
        mechanisms, "add_gaussian_noise", lambda total, deviation, *rest: right(total, factor * deviation, *rest)
    )
    assert not accepts(empty_step_noise(books, 1.0, 1.0), 1.0)


def test_halving_the_multiplier_of_the_event_changes_the_price_and_not_the_noise(books, model, records, monkeypatch):
    honest = answer(model, records, books, request(rate=0.5))
    right = Request.event
    monkeypatch.setattr(Request, "event", lambda self: Event(right(self).sample_rate, right(self).noise_multiplier / 2))
    understated = answer(model, records, books, request(rate=0.5))
    assert torch.equal(flat(honest), flat(understated))
    prices = [PrivacyLossAccountant().epsilon(count_events([event]), 1e-5) for event in books.events]
    assert prices[1] > 1.5 * prices[0]


def test_groups_get_the_noise_of_their_own_threshold_and_share(books):
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.left, self.right = nn.Linear(300, 200, bias=False), nn.Linear(300, 200, bias=False)

        def forward(self, x):
            return self.left(x) + self.right(x)

    releases = (
        ClippedSum(0.5, ("left.weight",), 0.2),
        ClippedSum(2.0, ("right.weight",), 0.8),
    )
    data = (torch.zeros(2, 300), torch.zeros(2, dtype=torch.long))
    gradient = answer(Two(), data, books, request(rate=1e-18, multiplier=1.5, size=1.0, releases=releases))
    assert accepts(gradient["left.weight"].flatten().double().numpy(), 1.5 * 0.5 / 0.2**0.5)
    assert accepts(gradient["right.weight"].flatten().double().numpy(), 1.5 * 2.0 / 0.8**0.5)


def test_noise_is_added_once_however_many_micro_batches(books, model, records, monkeypatch):
    calls = []
    right = mechanisms.add_gaussian_noise
    monkeypatch.setattr(mechanisms, "add_gaussian_noise", lambda *a: calls.append(a) or right(*a))
    answer(model, records, books, request(), micro_batch=3)
    assert len(calls) == len(NAMES)


class OneSumForAll:
    """Gradients of an engine that hands out one tensor for all parameters, as it may for the two biases of a recurrent layer."""

    def __init__(self, names):
        self.names = names

    def __len__(self):
        return 2

    def squared_norms(self):
        return dict.fromkeys(self.names, torch.ones(2, dtype=torch.float64))

    def weighted_sums(self, weights):
        return dict.fromkeys(self.names, torch.full((3,), 5.0))


def shared_sums(books):
    model = nn.ParameterDict({name: nn.Parameter(torch.zeros(3)) for name in "abcd"})
    draw = curator(model, (torch.zeros(4, 1), torch.zeros(4)), books).open(request(multiplier=1e-3, size=2.0))
    draw.add(OneSumForAll("abcd"), torch.arange(2))
    return draw


def test_sums_that_share_their_memory_are_noised_apart(books):
    values = torch.cat(list(shared_sums(books).release().gradient.values()))
    assert values.tolist() == pytest.approx([2.5] * 12, abs=0.01)
    assert len(values.unique()) == 12


def test_no_released_tensor_carries_the_sum_of_another_parameter(books, monkeypatch):
    """Saving a tensor saves all of its storage."""
    whole = torch.arange(1.0, 13.0)
    parts = dict(zip("abcd", whole.split(3), strict=True))
    monkeypatch.setattr(OneSumForAll, "weighted_sums", lambda self, weights: dict(parts))
    for value in shared_sums(books).release().gradient.values():
        assert value.untyped_storage().nbytes() == value.nbytes


FORMS = [
    (dtype, layout, mode) for dtype in (torch.float32, torch.float64) for layout in (False, True) for mode in MODES
]


@pytest.mark.parametrize(("dtype", "channels_last", "mode"), FORMS)
def test_a_released_tensor_does_not_tell_how_it_came_to_be(books, dtype, channels_last, mode):
    """Neither its strides nor the number of writes to it may depend on the batch: optimisers keep them, and files hold them."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Conv2d(4, 4, 1), nn.Flatten(), nn.Linear(16, 3)).to(dtype)
    if channels_last:
        model = model.to(memory_format=torch.channels_last)
    data = (torch.randn(40, 1, 4, 4, dtype=dtype), torch.arange(40) % 3)

    def forms(rate, micro_batch):
        held = Curator(as_records(data), build_engine(model, mode), books, Randomness.seeded(0), Execution(micro_batch))
        gradient = held.answer(request(rate=rate), cross_entropy).gradient
        return [
            (name, value.stride(), value._version, value._is_view(), value.untyped_storage().nbytes())
            for name, value in gradient.items()
        ]

    assert forms(1e-18, 40) == forms(1.0, 40) == forms(1.0, 20) == forms(1.0, 3)


def test_a_sum_that_cannot_be_kept_ends_the_draw(books, model, records, monkeypatch):
    """Half of a micro-batch was added when memory ran out: to try its records one by one would count them twice."""
    right, calls = torch.Tensor.to, []

    def failing(tensor, *arguments, **named):
        if arguments == (torch.float64,) and len(calls.append(1) or calls) == 2:
            raise RuntimeError("DefaultCPUAllocator: not enough memory")
        return right(tensor, *arguments, **named)

    held = Curator(as_records(records), OnePass(model), books, Randomness.seeded(0), Execution(10))
    monkeypatch.setattr(torch.Tensor, "to", failing)
    with pytest.raises(MemoryError, match="could not be kept"):
        held.answer(request(), cross_entropy)


def test_a_statistic_is_asked_for_once():
    count = UnclippedCount(1.0, None, 0.25)
    with pytest.raises(InvalidArgument, match="asked for twice"):
        request(releases=(ClippedSum(1.0, share=0.5), count, count))


def test_every_parameter_and_step_has_its_own_noise(books, model, records):
    held = curator(model, records, books)
    first, second = (flat(held.answer(request(rate=1e-18), cross_entropy).gradient) for _ in range(2))
    values = torch.cat([first, second])
    assert len(values.unique()) == len(values)


# --- sensitivity ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", CLIPS)
@pytest.mark.parametrize("micro_batch", [1, 7, 39, 40, 256])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e4])
def test_removing_one_record_moves_the_answer_by_at_most_the_sensitivity(
    books, model, records, kind, micro_batch, scale
):
    """Same coins (rate 1), same noise: what is left is the influence of the last record, an outlier at scale 1e4."""
    inputs, targets = records
    inputs = inputs.clone()
    inputs[-1] *= scale
    asked = request(releases=CLIPS[kind](0.3))
    with_record = answer(model, (inputs, targets), books, asked, micro_batch=micro_batch)
    without = answer(model, (inputs[:-1], targets[:-1]), books, asked, micro_batch=micro_batch)
    for release in asked.releases:
        names = release.parameters or NAMES
        moved = torch.cat([(with_record[name] - without[name]).flatten() for name in names]).double().norm() * 40
        assert moved <= release.sensitivity + 1e-5


@pytest.mark.parametrize("kind", CLIPS)
def test_the_answer_is_the_clipped_sum_plus_noise_over_the_declared_size(books, model, records, kind):
    """The declared size is 50 and the data has 40 records: the answer is divided by 50."""
    releases = CLIPS[kind](0.3)
    asked = request(size=50.0, releases=releases)
    released = flat(answer(model, records, books, asked))
    noise = flat(answer(model, records, books, request(rate=1e-18, size=50.0, releases=releases)))
    torch.testing.assert_close(released - noise, exact_sum(model, records, releases) / 50, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_non_finite_record_changes_nothing_for_the_others(books, model, records, bad):
    inputs, targets = records
    poisoned = inputs.clone()
    poisoned[-1, 2] = bad
    expected = flat(answer(model, (inputs[:-1], targets[:-1]), books, request()))
    assert torch.equal(flat(answer(model, (poisoned, targets), books, request())), expected)


@pytest.mark.parametrize("micro_batch", [1, 2, 13, 40, 1000])
@pytest.mark.parametrize("kind", CLIPS)
def test_micro_batches_are_a_pure_memory_knob(books, model, records, micro_batch, kind):
    model = model.double()
    data = (records[0].double(), records[1])
    asked = request(rate=0.6, releases=CLIPS[kind](0.3))
    torch.testing.assert_close(
        flat(answer(model, data, books, asked, micro_batch=micro_batch)),
        flat(answer(model, data, books, asked)),
        rtol=1e-12,
        atol=1e-14,
    )


# --- order, charges, draws ------------------------------------------------------------------------------------------------


class Watched(Records):
    """Notes when records are read."""

    def __init__(self, records, log):
        inner = as_records(records)
        super().__init__(len(inner), lambda indices: log.append("read") or inner.batch(indices), inner.example)


class Loud:
    def __init__(self, log, *, refuse=False):
        self.log, self.refuse = log, refuse

    def charge(self, event):
        if self.refuse:
            raise BudgetExhausted("no")
        self.log.append("charge")


def test_the_charge_comes_before_any_record_is_read_and_before_the_release(model, records, monkeypatch):
    log = []
    right = mechanisms.add_gaussian_noise
    monkeypatch.setattr(mechanisms, "add_gaussian_noise", lambda *a: log.append("noise") or right(*a))
    held = Curator(
        Watched(records, log), ReferenceGradients(model, "vmap"), Loud(log), Randomness.seeded(0), Execution(20)
    )
    held.answer(request(), cross_entropy)
    assert log == ["charge", "read", "read", *["noise"] * len(NAMES)]


def test_a_refused_charge_reads_nothing(model, records):
    log = []
    held = Curator(
        Watched(records, log),
        ReferenceGradients(model, "vmap"),
        Loud(log, refuse=True),
        Randomness.seeded(0),
        Execution(),
    )
    with pytest.raises(BudgetExhausted):
        held.answer(request(), cross_entropy)
    assert log == []


def test_an_empty_batch_is_charged_and_noised(books, model, records):
    gradient = flat(answer(model, records, books, request(rate=1e-18)))
    assert books.events == [Event(1e-18, 1.0)]
    assert (gradient != 0).all()


def test_every_request_has_its_own_draw(model, records, books):
    held = curator(model, records, books)
    sizes = [sum(len(y) for (_, y), _ in held.open(request(rate=0.5)).micro_batches()) for _ in range(30)]
    assert len(set(sizes)) > 3
    members = [
        frozenset(x[0].item() for (inputs, _), _ in held.open(request(rate=0.5)).micro_batches() for x in inputs)
        for _ in range(10)
    ]
    assert len(set(members)) == 10


def test_a_draw_is_walked_and_released_once(model, records, books):
    draw = curator(model, records, books).open(request())
    assert len(list(draw.micro_batches())) == 1
    assert list(draw.micro_batches()) == []
    draw.release()
    with pytest.raises(WrongOrder, match="released already"):
        draw.release()


def test_a_crash_after_the_coins_burns_the_charge(model, records, books):
    def interrupted(outputs, targets):
        signal.raise_signal(signal.SIGINT)

    held = curator(model, records, books)
    with pytest.raises(KeyboardInterrupt):
        held.answer(request(), interrupted)
    assert len(books.events) == 1


def test_a_record_that_cannot_be_evaluated_contributes_zero(books, records):
    """A word outside the vocabulary raises in the middle of a batch; whether it does must not be observable."""
    words = torch.randint(0, 5, (40, 3))
    spoilt = words.clone()
    spoilt[-1, 0] = 99
    asked = request(releases=(ClippedSum(0.3),))
    gradients = []
    for data in ((spoilt, records[1]), (words[:-1], records[1][:-1])):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Embedding(5, 2), nn.Flatten(), nn.Linear(6, 2))
        gradients.append(answer(model, data, books, asked))
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradient, gradients[1][name], rtol=1e-5, atol=1e-7)


class Unreadable(torch.utils.data.Dataset):
    def __init__(self, records, broken):
        self.records, self.broken = records, broken

    def __len__(self):
        return len(self.records[0])

    def __getitem__(self, index):
        if index == self.broken:
            raise OSError("this record cannot be read")
        return self.records[0][index], self.records[1][index]


def test_a_record_that_cannot_be_read_contributes_zero(books, model, records):
    broken = flat(answer(model, Unreadable(records, 39), books, request()))
    without = flat(answer(model, (records[0][:-1], records[1][:-1]), books, request()))
    torch.testing.assert_close(broken, without, rtol=1e-5, atol=1e-7)


# --- what a model remembers -----------------------------------------------------------------------------------------------


class Rememberer(nn.Module):
    """Keeps what it saw in a buffer, in an attribute, and in the rows of its embedding."""

    def __init__(self):
        super().__init__()
        self.words = nn.Parameter(3 * torch.ones(7, 4))
        self.output = nn.Linear(4, 2)
        self.register_buffer("largest", torch.tensor(0.0))

    def forward(self, ids):
        self.last = ids
        self.largest.copy_(torch.maximum(self.largest, ids.max().float()))
        return self.output(
            torch.nn.functional.embedding(ids, self.words.detach(), max_norm=1.0).mean(1) + self.words.sum(0)
        )


def test_nothing_that_a_module_remembers_reaches_the_released_model(books):
    model = Rememberer()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    data = (torch.tensor([[1, 2], [2, 6]]), torch.tensor([0, 1]))
    held = Curator(as_records(data), ReferenceGradients(model, "loop"), books, Randomness.seeded(0))
    held.answer(request(), cross_entropy)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not hasattr(model, "last")
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_loss_that_takes_up_weights_of_its_own_for_one_record_ends_nothing(books, model, records):
    """That it does so for every record is found by the probe. Here an exception would tell of the one."""
    scale = nn.Parameter(torch.ones(()))

    def loss(outputs, targets):
        own = scale if int(targets[0]) == 2 else 1.0
        return own * cross_entropy(outputs, targets % 2)

    odd = (records[0], records[1].clone().index_fill_(0, torch.tensor([5]), 2))
    problems = Problems()
    held = Curator(as_records(odd), ReferenceGradients(model, "loop"), books, Randomness.seeded(0), problems=problems)
    held.answer(request(rate=1.0), loss)
    assert scale.grad is None
    assert [line["times"] for line in problems.lines()[2:]] == [1]


def test_a_record_that_is_tried_again_is_counted_once(books):
    """The product of the second record overflows, so that all are taken one by one; the third is no number either way."""
    data = (torch.tensor([[1.0], [0.0], [math.nan]]), torch.tensor([1.0, 3e38, 1.0]))
    model, problems = nn.Linear(1, 1, bias=False), Problems()
    held = Curator(as_records(data), OnePass(model), books, Randomness.seeded(0), problems=problems)
    held.answer(Request(1.0, 1.0, 3.0, (ClippedSum(1.0, stabiliser=0.01),)), lambda o, y: (o * y[:, None]).sum())
    found = {line["problem"]: line["times"] for line in problems.lines()[2:]}
    assert found == {"not finite": 1, "cannot be evaluated": 1}


def test_dropout_is_secret_and_leaves_the_global_generator_alone(books, records):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 50), nn.Dropout(0.5), nn.Linear(50, 2)).train()

    def gradient(seed):
        torch.manual_seed(123)
        before = torch.get_rng_state()
        released = answer(model, records, books, request(), seed=seed)
        assert torch.equal(before, torch.get_rng_state())
        return released["0.weight"]

    assert torch.equal(gradient(1), gradient(1)), "a test seed must reproduce the masks"
    noise_free = [
        gradient(seed) - answer(model, records, books, request(rate=1e-18), seed=seed)["0.weight"] for seed in (1, 2)
    ]
    assert not torch.allclose(*noise_free), "masks must follow the secret stream, not torch's seed"


def test_a_forked_process_gets_no_noise(books, model, records, monkeypatch):
    held = curator(model, records, books)
    monkeypatch.setattr("os.getpid", lambda: -1)
    with pytest.raises(WrongOrder, match="forked"):
        held.answer(request(), cross_entropy)


def test_a_draw_that_was_open_when_the_process_was_forked_is_released_by_the_parent_alone(
    books, model, records, monkeypatch
):
    draw = curator(model, records, books).open(request())
    with monkeypatch.context() as child:
        child.setattr("os.getpid", lambda: -1)
        with pytest.raises(WrongOrder, match="forked"):
            draw.release()


@pytest.mark.parametrize("names", [NAMES[:3], (*NAMES, "other")])
def test_groups_that_miss_a_parameter_are_refused_before_the_charge(model, records, books, names):
    with pytest.raises(InvalidArgument, match="every trained parameter"):
        answer(model, records, books, request(releases=(ClippedSum(1.0, names),)))
    assert books.events == []


def test_frozen_parameters_are_neither_released_nor_clipped(model, records, books):
    model[0].requires_grad_(False)
    held = curator(model, records, books)
    assert set(held.answer(request(), cross_entropy).gradient) == {"2.weight", "2.bias"}


def test_the_answer_has_the_type_of_the_parameter(model, records, books):
    assert answer(model, records, books, request())["0.weight"].dtype == torch.float32


class Cheaper(Request):
    """Charged for less than what is executed."""

    def event(self):
        return Event(self.sample_rate, 10 * self.noise_multiplier)


class Unchecked(Request):
    """Takes whatever it is given."""

    def __post_init__(self):
        pass


class Louder(ClippedSum):
    @property
    def sensitivity(self):
        return 1e-3


class Lookalike(torch.Tensor):
    """A tensor with arithmetic of its own."""


def smuggled(release):
    """A request whose releases were exchanged after it was checked."""
    asked = request()
    object.__setattr__(asked, "releases", (release,))
    return asked


def framed(kind):
    shapes = {"0.weight": (3, 4), "0.bias": (3,), "2.weight": (2, 3), "2.bias": (2,)}
    scale = {name: torch.ones(shape).as_subclass(kind) for name, shape in shapes.items()}
    frame = Frame({name: torch.zeros(shape) for name, shape in shapes.items()}, scale)
    return request(releases=(ClippedSum(1.0, NAMES, frame=frame),))


UNPRICED = {
    "another price": lambda: Cheaper(1.0, 1.0, 40.0, (ClippedSum(0.3),)),
    "unchecked": lambda: Unchecked(1.0, 1.0, 40.0, (ClippedSum(0.3),)),
    "another sensitivity": lambda: smuggled(Louder(0.3)),
    "no headroom": lambda: request(releases=(ClippedSum(0.3, headroom=0.0),)),
    "too little headroom": lambda: request(releases=(ClippedSum(0.3, headroom=0.99 * FLOAT32_HEADROOM),)),
    "other arithmetic": lambda: framed(Lookalike),
}


@pytest.mark.parametrize("kind", UNPRICED)
def test_what_would_not_be_executed_as_it_is_priced_is_refused_before_the_charge(model, records, books, kind):
    with pytest.raises(InvalidArgument, match=r"request=|releases=|headroom=|frame="):
        answer(model, records, books, UNPRICED[kind]())
    assert books.events == []


@pytest.mark.parametrize("headroom", [FLOAT32_HEADROOM, 0.01, 1.0])
def test_more_headroom_may_be_declared(model, records, books, headroom):
    answer(model, records, books, request(releases=(ClippedSum(0.3, headroom=headroom),)))
    answer(model, records, books, framed(torch.Tensor))
    assert len(books.events) == 2
