"""The memory model: what it predicts, what it chooses, and that it reads no record."""

from functools import partial

import pytest
import torch
from torch import nn

import apportion as ap
import runs
from apportion.curator.curator import Curator
from apportion.curator.gradients.engine import build_engine
from apportion.execution import MAX_MICRO_BATCH, format_bytes, parse_bytes
from apportion.models import memory as memory_module
from apportion.models.memory import LiveTensors, MemoryModel, measure_memory, resolve_micro_batch

pytestmark = pytest.mark.usual_pieces


class Texts(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.recurrent = nn.Embedding(50, 16), nn.LSTM(16, 32, batch_first=True)
        self.output = nn.Linear(32, 4)

    def forward(self, words):
        return self.output(self.recurrent(self.embedding(words))[0][:, -1])


def convolutions():
    return nn.Sequential(nn.Conv2d(1, 8, 3), nn.Tanh(), nn.Conv2d(8, 8, 3), nn.Flatten(), nn.Linear(8 * 12 * 12, 4))


MODELS = {
    "linear": (lambda: nn.Sequential(nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 4)), torch.zeros(64)),
    "convolutions": (convolutions, torch.zeros(1, 16, 16)),
    "texts": (Texts, torch.zeros(12, dtype=torch.int64)),
}


def short_run(model, records, budget, memory_limit):
    runs.train(
        model,
        nn.CrossEntropyLoss(),
        records,
        budget=budget,
        population=40,
        sample_rate=1.0,
        steps=1,
        lr=0.1,
        seed=0,
        execution=ap.Execution(memory_limit=memory_limit),
    )


def line(standing=1000):
    return MemoryModel(standing, ((1, 100), (2, 200), (4, 400)))


def test_live_tensors_are_counted_until_they_are_freed():
    with LiveTensors() as live:
        first = torch.zeros(1000)  # 4,000 bytes
        view = first.reshape(10, 100)
        del first
        second = view + 1
        del view
        third = torch.zeros(500)
        assert live.peak == 10_000 - 2_000
        fourth = second + 1
    assert live.peak == 4_000 + 2_000 + 4_000
    assert third.shape != fourth.shape  # both are alive to the end


def test_the_largest_convolution_is_noted():
    small, large = nn.Conv2d(1, 2, 3), nn.Conv2d(1, 8, 3)  # 8 × 8 pixels become 6 × 6
    with LiveTensors() as live, torch.no_grad():
        small(torch.zeros(1, 1, 8, 8))
        large(torch.zeros(1, 1, 8, 8))
    assert live.largest_convolution == 4 * (64 + 8 * 9 + 8 * 36)


def test_each_part_has_its_factor():
    model = convolutions()
    step = partial(memory_module._added_bytes, build_engine(model, "one-pass"), torch.zeros(4, 1, 16, 16))
    step(1)
    whole = step(1)
    for factor in ("BASE_BYTES", "LIVE_FACTOR", "CONVOLUTION_FACTOR", "PARAMETER_FACTOR"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(memory_module, factor, 0)
            assert step(1) < whole, factor


@pytest.mark.parametrize("name", MODELS)
def test_a_batch_beyond_those_that_were_tried_is_predicted(name, monkeypatch):
    build, inputs = MODELS[name]
    monkeypatch.setattr(memory_module, "LINEAR_FROM_BYTES", 8 << 20)  # quicker
    predicted = measure_memory(build(), "one-pass", inputs)
    largest = predicted.added[-1][0]
    subject = build().train()
    engine = build_engine(subject, "one-pass")
    step = partial(memory_module._added_bytes, engine, memory_module.synthetic_batch(subject, inputs))
    step(1)
    beyond = min(4 * largest, MAX_MICRO_BATCH)
    assert predicted.added_at(beyond) == pytest.approx(step(beyond), rel=0.15)


def test_written_out_gradients_take_more(monkeypatch):
    monkeypatch.setattr(memory_module, "LINEAR_FROM_BYTES", 1 << 20)
    build, inputs = MODELS["linear"]
    parameters = sum(parameter.numel() for parameter in build().parameters())
    one_pass, vmap = (measure_memory(build(), mode, inputs).bytes_per_record for mode in ("one-pass", "vmap"))
    assert one_pass < 4 * parameters < vmap


def test_standing_memory_is_the_model_twice():
    assert measure_memory(nn.Linear(8, 2), "one-pass", torch.zeros(8)).standing == 2 * 4 * 18


def test_a_larger_limit_holds_more_records():
    chosen = [line().largest_batch(limit) for limit in range(1200, 40_000, 100)]
    assert chosen == sorted(chosen)
    assert chosen[0] < 8 < chosen[-1]
    assert all(size <= 8 or size % 8 == 0 for size in chosen)


def test_the_choice_fits_and_the_next_does_not():
    limit = 50_000
    chosen = line().largest_batch(limit)
    assert line().bytes_at(chosen) <= limit < line().bytes_at(chosen + 8)


def test_a_limit_too_small_for_one_record_is_refused(records, budget):
    model = nn.Linear(4, 2)
    with pytest.raises(ap.InvalidArgument, match="memory_limit='1 kB'.*single record.*Allow more"):
        short_run(model, records, budget, memory_limit="1kB")


@pytest.mark.parametrize("limit", ["2", "GB", "2 XB", "-2GB", "", "0B", 0, -1, 2.5, float("nan"), True, [2]])
def test_a_limit_is_an_amount_of_memory(limit):
    with pytest.raises(ap.InvalidArgument, match="memory_limit="):
        ap.Execution(memory_limit=limit)


def test_a_limit_and_a_size_contradict_each_other():
    with pytest.raises(ap.InvalidArgument, match="micro_batch=64"):
        ap.Execution(micro_batch=64, memory_limit="2GB")


def test_an_unknown_batch_is_not_used():
    with pytest.raises(ap.WrongOrder, match="pass micro_batch"):
        ap.Execution(memory_limit="2GB").physical_batch(256)


@pytest.mark.parametrize(
    ("declared", "held"), [(1, 5), (256, 320), (512, 603), (513, 321), (1024, 603), (1e5, 601), (1e7, 603)]
)
def test_the_usual_batch_is_an_equal_part_of_the_declared_one_with_room_for_chance(declared, held):
    assert ap.Execution().physical_batch(declared) == held


def test_a_batch_that_is_asked_for_is_a_limit():
    assert ap.Execution(micro_batch=7).physical_batch(1024) == 7
    assert ap.Execution(micro_batch=10**6).physical_batch(1024) == MAX_MICRO_BATCH


def test_amounts_as_people_write_them():
    assert [parse_bytes("limit", text) for text in ("2GB", "1.5 kB", "1GiB", 7)] == [2 * 10**9, 1500, 2**30, 7]
    assert [format_bytes(amount) for amount in (7, 1500, 999_900, 2.5e9)] == ["7 B", "1.5 kB", "1 MB", "2.5 GB"]


def test_without_a_limit_small_records_are_held_in_the_usual_number():
    linear = (nn.Linear(800, 225), "one-pass", torch.zeros(800))  # a record has 4,100 bytes
    assert resolve_micro_batch(ap.Execution(), *linear, 1024).micro_batch == ap.Execution().physical_batch(1024) == 603
    assert resolve_micro_batch(ap.Execution(micro_batch=7), *linear, 1024).micro_batch == 7


@pytest.mark.parametrize(("expected", "held"), [(100, 140), (512, 603), (1024, 1152), (4096, 1152)])
def test_without_a_limit_twice_as_many_are_held_of_records_that_stay_in_a_cache(expected, held):
    linear = (nn.Linear(800, 223), "one-pass", torch.zeros(800))  # 4,092 bytes, so that 1,024 have less than 4 MiB
    assert resolve_micro_batch(ap.Execution(), *linear, expected).micro_batch == held
    assert held <= MAX_MICRO_BATCH
    assert resolve_micro_batch(ap.Execution(micro_batch=7), *linear, expected).micro_batch == 7


def test_without_a_limit_large_activations_are_held_in_small_number():
    wide = nn.Sequential(nn.Linear(4, 1 << 18), nn.Tanh(), nn.Linear(1 << 18, 2))
    chosen = resolve_micro_batch(ap.Execution(), wide, "one-pass", torch.zeros(4), 1024).micro_batch
    assert chosen == memory_module.DEFAULT_ACTIVATION_BYTES // (
        2 * 4 * (1 << 18) + 4 * 4
    )  # while tanh runs, two layers of 2^18 floats


def test_without_a_limit_written_out_gradients_count():
    model = nn.Linear(1 << 16, 16)  # 4 MiB of parameters, a record of 256 KiB, hardly an activation
    chosen = resolve_micro_batch(ap.Execution(), model, "vmap", torch.zeros(1 << 16), 1024).micro_batch
    assert chosen == memory_module.DEFAULT_ACTIVATION_BYTES // (4 * (1 << 20) + 64 + 4 * (1 << 16) + 64)
    alone = resolve_micro_batch(ap.Execution(), model, "one-pass", torch.zeros(1 << 16), 1024).micro_batch
    assert alone == memory_module.DEFAULT_ACTIVATION_BYTES // (4 * (1 << 16) + 64)


@pytest.mark.parametrize(
    ("model", "shape", "expected", "threads"),
    [
        (nn.Linear(30, 2), (30,), 256, 1),
        (nn.Sequential(nn.Linear(100, 64), nn.ReLU(), nn.Linear(64, 2)), (100,), 1024, 1),
        (nn.Linear(3969, 10), (3969,), 4096, "auto"),  # many numbers
        (nn.Sequential(nn.Linear(256, 512), nn.Linear(512, 10)), (256,), 512, "auto"),  # many products
        (nn.Sequential(nn.Conv2d(1, 16, 8), nn.Flatten(), nn.Linear(16 * 21 * 21, 10)), (1, 28, 28), 64, "auto"),
    ],
)
def test_what_is_quickly_done_is_left_to_one_thread(model, shape, expected, threads):
    assert resolve_micro_batch(ap.Execution(), model, "one-pass", torch.zeros(shape), expected).threads == threads
    asked = resolve_micro_batch(ap.Execution(threads=3), model, "one-pass", torch.zeros(shape), expected)
    assert asked.threads == 3


def test_one_record_is_always_held(monkeypatch):
    monkeypatch.setattr(memory_module, "DEFAULT_ACTIVATION_BYTES", 1)
    assert resolve_micro_batch(ap.Execution(), nn.Linear(4, 2), "one-pass", torch.zeros(4), 1024).micro_batch == 1


def test_the_choice_reads_no_value_and_leaves_model_and_generator_alone():
    model = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5), nn.Linear(3, 2)).eval()
    before, state = torch.random.get_rng_state(), {name: value.clone() for name, value in model.state_dict().items()}
    for execution in (ap.Execution(memory_limit="8MB"), ap.Execution()):
        sizes = {
            resolve_micro_batch(execution, model, "one-pass", torch.full((4,), value), 1024).micro_batch
            for value in (0.0, 1e30, float("nan"))
        }
        assert len(sizes) == 1
    assert torch.equal(torch.random.get_rng_state(), before)
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert not model.training
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_run_keeps_to_the_choice(records, budget, monkeypatch):
    seen = []
    monkeypatch.setattr(MemoryModel, "largest_batch", lambda self, limit: 8)
    model = nn.Linear(4, 2)
    gradients = Curator._gradients

    def counting(self, batch, loss_fn):
        seen.append(len(batch[1]))
        return gradients(self, batch, loss_fn)

    monkeypatch.setattr(Curator, "_gradients", counting)
    short_run(model, records, budget, memory_limit="2GB")
    assert seen[-5:] == [8] * 5
