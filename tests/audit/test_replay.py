"""The replay audit finds nothing in the library, for every recipe, engine and grouping, and finds each broken piece."""

import dataclasses
import itertools
import json
import math
import sys
from contextlib import contextmanager
from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn

import apportion as ap
from apportion.audit import PrivacyViolation
from apportion.curator import clipping, mechanisms
from apportion.curator import curator as curator_module
from apportion.curator.clipping import as_gradients, clip_and_sum
from apportion.curator.curator import Curator, Draw
from apportion.curator.gradients.one_pass import OnePass
from apportion.curator.gradients.reference import ReferenceGradients
from apportion.curator.randomness import Stream
from apportion.event import Event
from apportion.releases import ClippedSum, NormHistogram
from apportion.request import Request
from apportion.strategies.recipes import READY, named
from apportion.training import private as private_module
from runs import Gaussian, replay
from suites import thinned

LOSS = nn.CrossEntropyLoss()
PRIVATE_RECIPES = [name for name in READY if named(name).private]
OWN_LOOP_RECIPES = [name for name in PRIVATE_RECIPES if not isinstance(named(name).update, ap.AskingUpdate)]
EVERY_MICRO_BATCH = [1, 3, 64]
ENGINES = ("one-pass", "vmap", "loop")


def own_loop(private):
    for inputs, targets in private.batches():
        private.optimizer.zero_grad()
        LOSS(private.model(inputs), targets).backward()
        private.optimizer.step()


@dataclass(frozen=True)
class Grouped:
    """The inner strategy's threshold, spread over groups of parameters with uneven shares."""

    inner: object
    kind: str

    def init(self, context):
        return self.inner.init(context)

    def observe(self, state, released):
        return self.inner.observe(state, released)

    def propose(self, state, context):
        (release,) = self.inner.propose(state, context)
        names = list(context.parameter_shapes)
        layers = {
            "layers": [[name for name in names if name.startswith(f"{layer}.")] for layer in ("0", "2")],
            "parameters": [[name] for name in names],
            "two": [names[:1], names[1:]],
        }[self.kind]
        weights = [number + 1 for number in range(len(layers))]
        return tuple(
            ClippedSum(release.threshold * math.sqrt(weight), tuple(group), weight / sum(weights))
            for weight, group in zip(weights, layers, strict=True)
        )


GROUPS = {"flat": "flat", "layers": "layer", "two": (("0.weight",), ("0.bias", "2.*"))}


def strategies(recipe, grouping="flat"):
    chosen = named(recipe)
    clip = replace(chosen.clip, groups=GROUPS[grouping])
    if getattr(clip, "start", 0.0) > 1:
        clip = replace(clip, start=1.0)  # above what these records reach, nothing would be seen
    noise = (
        replace(chosen.noise, counts=(1, 1, 1)) if recipe == "yu-validation" else chosen.noise
    )  # a few steps are replayed
    return {"clip": clip, "noise": noise, "update": chosen.update}


def in_core(recipe, engine, grouping):
    """Every recipe once, every engine with every grouping, and two recipes that follow what they release on all engines."""
    turn = PRIVATE_RECIPES.index(recipe) - PRIVATE_RECIPES.index("du-sensitivity")
    met = engine == ENGINES[turn % 3] and grouping == list(GROUPS)[turn // 3 % 3]
    return met or (recipe, grouping) in (("andrew", "two"), ("adaclip", "layers"))


@pytest.mark.parametrize(
    ("recipe", "engine", "grouping"), thinned(itertools.product(PRIVATE_RECIPES, ENGINES, GROUPS), in_core)
)
def test_every_recipe_engine_and_grouping_holds(model, records, recipe, engine, grouping):
    report = replay(model, LOSS, records, steps=3, engine=engine, **strategies(recipe, grouping))
    report.require()
    assert report.sharp
    assert report.notes == ()


@pytest.mark.parametrize("micro_batch", EVERY_MICRO_BATCH)
@pytest.mark.parametrize("loop", [None, own_loop], ids=["train", "own-loop"])
def test_micro_batches_change_nothing(model, records, micro_batch, loop):
    execution = ap.Execution(micro_batch=micro_batch)
    report = replay(
        model, LOSS, records, loop=loop, execution=execution, clip=Grouped(ap.clip.SensitivityDecay(), "parameters")
    )
    report.require()
    assert report.sharp


def in_core_with_own_loop(recipe, engine):
    """What differs in a loop of one's own is the update: all that do something else there, and every other recipe."""
    own_update = not isinstance(named(recipe).update, ap.update.Plain)
    return engine != "one-pass" or own_update or OWN_LOOP_RECIPES.index(recipe) % 2 == 0


@pytest.mark.parametrize(
    ("recipe", "engine"),
    thinned(
        [*((name, "one-pass") for name in OWN_LOOP_RECIPES), ("andrew", "vmap"), ("andrew", "loop")],
        in_core_with_own_loop,
    ),
)
def test_a_loop_of_ones_own_holds(model, records, recipe, engine):
    def schedule(optimizer):
        return torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)

    ordinary = isinstance(named(recipe).update, ap.Update)  # others set the weights themselves, in place of plain SGD
    optimizer = {"scheduler": schedule, "optimizer": "adam"} if ordinary else {}
    if getattr(named(recipe).update, "optimizing", False):
        optimizer["optimizer"] = "sgd"  # it is one itself
    report = replay(model, None, records, steps=3, loop=own_loop, engine=engine, **optimizer, **strategies(recipe))
    report.require()
    assert report.sharp
    assert "not replayed" in report.notes[0]


@dataclass(frozen=True)
class FollowsReleases:
    """A threshold that follows what was released, as a strategy may."""

    def init(self, context):
        return {"threshold": 0.5}

    def propose(self, state, context):
        return (ClippedSum(state["threshold"]),)

    def observe(self, state, released):
        norm = math.sqrt(sum(float(part.square().sum()) for part in released.gradient.values()))
        return {"threshold": min(max(0.9 * state["threshold"], 0.1 * norm), 1.0)}


def test_a_strategy_may_follow_released_values(model, records):
    replay(model, LOSS, records, clip=FollowsReleases()).require()


def characters():
    class Characters(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.recurrent = nn.Embedding(7, 3), nn.LSTM(3, 4, batch_first=True)
            self.output = nn.Linear(4, 2)

        def forward(self, text):
            return self.output(self.recurrent(self.embedding(text))[0][:, -1])

    inputs = torch.randint(0, 7, (9, 5), generator=torch.Generator().manual_seed(1))
    return Characters(), LOSS, (inputs, inputs[:, 0] % 2)


def tied_and_frozen():
    first, second, frozen = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
    second.weight = first.weight
    frozen.requires_grad_(False)
    inputs = torch.randn(20, 4, generator=torch.Generator().manual_seed(1))
    return nn.Sequential(first, nn.Tanh(), second, frozen), nn.MSELoss(), (inputs, 10 * inputs.flip(0))


def two_inputs():
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(6, 2)

        def forward(self, left, right):
            return self.layer(torch.cat([left, right], 1))

    generator = torch.Generator().manual_seed(1)
    inputs = {"left": torch.randn(20, 4, generator=generator), "right": torch.randn(20, 2, generator=generator)}
    return Both(), LOSS, (inputs, torch.arange(20) % 2)


def a_data_set():
    class Items(torch.utils.data.Dataset):
        inputs = torch.randn(30, 1, 6, 6, generator=torch.Generator().manual_seed(1))

        def __len__(self):
            return 30

        def __getitem__(self, index):
            return self.inputs[index], index % 3

    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.Tanh(), nn.Flatten(), nn.Linear(32, 3)), LOSS, Items()


def adapted():
    inputs = torch.randn(20, 3, 8, generator=torch.Generator().manual_seed(1))
    adapter = nn.Linear(8, 2, bias=False), nn.Linear(2, 8, bias=False)
    return (
        nn.Sequential(*adapter, nn.LayerNorm(8), nn.Flatten(), nn.Linear(24, 2)),
        LOSS,
        (inputs, torch.arange(20) % 2),
    )


@pytest.mark.parametrize("case", [characters, tied_and_frozen, two_inputs, a_data_set, adapted])
def test_many_kinds_of_models_and_records_hold(case):
    torch.manual_seed(0)
    model, loss, data = case()
    report = replay(model, loss, data, clip=ap.clip.Fixed(0.1))
    report.require()
    assert report.sharp


def test_text_has_neighbours_of_its_own():
    model, loss, data = characters()
    names = {measured.neighbour for measured in replay(model, loss, data).neighbours}
    assert {"number out of range added", "label out of range added"} <= names
    assert "NaN added" not in names


# Broken pieces: each must be found. ------------------------------------------------------------------------------------------


def patched(target, name, replacement):
    """A breakage that replaces `target.name` by replacement(original)."""

    def apply(monkeypatch):
        monkeypatch.setattr(target, name, replacement(getattr(target, name)))

    return apply


def scaled_noise(factor):
    def replacement(original):
        return lambda self, release: factor * original(self, release)

    return patched(Request, "standard_deviation", replacement)


def charged_multiplier(factor):
    def replacement(original):
        return lambda self: Event(self.sample_rate, factor * self.noise_multiplier)

    return patched(Request, "event", replacement)


def sums(replacement):
    return patched(
        curator_module,
        "clip_and_sum",
        lambda original: lambda gradients, releases, *_: replacement(gradients, releases),
    )


def unclipped(gradients):
    """The sum of all records as they are, but for those that are not finite."""
    records = as_gradients(gradients)
    squares = records.squared_norms()
    finite = torch.stack(list(squares.values())).sum(0).isfinite()
    records.zero_records(~finite)
    return records.weighted_sums(dict.fromkeys(squares, finite.double()))


def without_clipping(gradients, releases):
    return unclipped(gradients)


def with_looser_clipping(gradients, releases):
    looser = [
        dataclasses.replace(release, threshold=1.05 * release.threshold) if isinstance(release, ClippedSum) else release
        for release in releases
    ]
    return clip_and_sum(gradients, looser)


def with_nan(gradients, releases):
    """Made finite after the sum instead of before it. (A sum that is not finite is not even added.)"""
    release, *_ = releases
    records = as_gradients(gradients)
    squares = records.squared_norms()
    factors = (release.threshold / torch.stack(list(squares.values())).sum(0).sqrt()).clamp(max=1.0)
    sums = records.weighted_sums(dict.fromkeys(squares, factors))
    return {name: torch.nan_to_num(part, nan=release.threshold) for name, part in sums.items()}


def with_each_parameter_clipped_alone(gradients, releases):
    release, *_ = releases
    records = as_gradients(gradients)
    alone = [ClippedSum(release.threshold, (name,)) for name in records.squared_norms()]
    return clip_and_sum(records, alone)


def with_averaged_micro_batches(gradients, releases):
    records = as_gradients(gradients)
    size = len(next(iter(records.squared_norms().values())))
    return clip_and_sum({name: 100 / size * part[None] for name, part in unclipped(records).items()}, releases)


def with_first_layer_unclipped(gradients, releases):
    records = as_gradients(gradients)
    return {**clip_and_sum(records, releases), "0.weight": unclipped(records)["0.weight"]}


def realised_batch_size(monkeypatch):
    add, release = Draw.add, Draw.release

    def counting(self, gradients, *rest):
        records = as_gradients(gradients)
        self.count = getattr(self, "count", 0) + len(next(iter(records.squared_norms().values())))
        add(self, records, *rest)

    def divided(self):
        released = release(self)
        factor = self.request.expected_batch_size / max(1, getattr(self, "count", 0))
        return dataclasses.replace(released, gradient={name: factor * part for name, part in released.gradient.items()})

    monkeypatch.setattr(Draw, "add", counting)
    monkeypatch.setattr(Draw, "release", divided)


def skipped_empty_batch(original):
    def release(self):
        if not any(part.any() for name, part in self._sums.items() if isinstance(name, str)):
            self._mechanisms = Gaussian(lambda exact_sum, deviation, stream, divisor: exact_sum / divisor)
        return original(self)

    return release


def failing_empty_batch(original):
    def release(self):
        if not any(part.any() for name, part in self._sums.items() if isinstance(name, str)):
            raise RuntimeError("cannot reshape tensor of 0 elements")
        return original(self)

    return release


def noise_on_every_micro_batch(original):
    def add(self, *arguments):
        original(self, *arguments)
        for name in self._sums:
            self._sums[name] = self._mechanisms.add_gaussian_noise(self._sums[name], 1.0, self._streams.noise, 1.0)

    return add


def raw_gradient_beside_the_noise(original):
    def release(self):
        raw = {name: part.clone() for name, part in self._sums.items()}
        released = original(self)
        return dataclasses.replace(
            released,
            gradient={
                name: part + 1e-3 * raw.get(name, torch.zeros(())).float() for name, part in released.gradient.items()
            },
        )

    return release


def charged_after_the_draw(original):
    def open_first(self, request):
        books, self._charges = self._charges, type("Nobody", (), {"charge": lambda self, event: None})()
        draw = original(self, request)
        self._charges = books
        books.charge(request.event())
        return draw

    return open_first


def noise_from_one_seed(original):
    def release(self):
        self._streams = dataclasses.replace(self._streams, noise=Stream(bytes(32)))
        return original(self)

    return release


def model_remembers(what):
    """A breakage of all engines: the forward pass leaves something of the records in the model that is released."""

    def apply(monkeypatch):
        for engine in (OnePass, ReferenceGradients):
            original = engine.forward

            def forward(self, inputs, original=original):
                what(self.model, inputs)
                return original(self, inputs)

            monkeypatch.setattr(engine, "forward", forward)

    return apply


def running_mean(model, inputs):
    model[0].bias.data += 1e-6 * inputs.nan_to_num(0).clamp(-1, 1).mean()


def cached_input(model, inputs):
    model.last_input = inputs.clone()


def without_a_fork(original):
    @contextmanager
    def secret_dropout(self):
        torch.rand(1)
        yield

    return secret_dropout


def realised_sampling(original):
    return lambda records, rates, *rest: original(records, [min(1.0, 1.2 * rate) for rate in rates], *rest)


BROKEN = {
    "no clipping": (sums(without_clipping), "sensitivity"),
    "clipped at 1.05 C": (sums(with_looser_clipping), "sensitivity"),
    "NaN is not zeroed": (sums(with_nan), "sensitivity"),
    "each parameter clipped to C, priced as one group": (sums(with_each_parameter_clipped_alone), "sensitivity"),
    "micro-batch averaged before clipping": (sums(with_averaged_micro_batches), "sensitivity"),
    "one layer unclipped": (sums(with_first_layer_unclipped), "sensitivity"),
    "half the noise asked for": (scaled_noise(0.5), "multiplier"),
    "5 % less noise asked for": (scaled_noise(0.95), "multiplier"),
    "half the noise added": (
        patched(
            mechanisms, "add_gaussian_noise", lambda original: lambda total, s, *rest: original(total, s / 2, *rest)
        ),
        "noise",
    ),
    "noise of one seed": (patched(Draw, "release", noise_from_one_seed), "noise"),
    "charged with a larger multiplier": (charged_multiplier(1.05), "multiplier"),
    "charged after the draw": (patched(Curator, "open", charged_after_the_draw), "charge"),
    "divided by the realised batch size": (realised_batch_size, "release"),
    "a little of the raw sum in the answer": (patched(Draw, "release", raw_gradient_beside_the_noise), "state"),
    "no noise on an empty batch": (patched(Draw, "release", skipped_empty_batch), "calls"),
    "an empty batch fails": (patched(Draw, "release", failing_empty_batch), "error"),
    "noise on every micro-batch": (patched(Draw, "add", noise_on_every_micro_batch), "calls"),
    "larger sampling rate than charged": (patched(curator_module, "poisson_sample", realised_sampling), "sampling"),
    "batches of fixed size": (
        patched(curator_module, "poisson_sample", lambda original: lambda *_: torch.arange(6).numpy()),
        "sampling",
    ),
    "records of the batch left out": (
        patched(curator_module, "poisson_sample", lambda original: lambda *arguments: original(*arguments)[1:]),
        "sampling",
    ),
    "weights follow the records": (model_remembers(running_mean), "state"),
    "a module keeps its input": (model_remembers(cached_input), "state"),
    "the global generator follows the batch": (
        patched(Draw, "secret_dropout", without_a_fork),
        "state",
    ),
}


def broken_pieces():
    """Each with the default engine; those that concern what an engine computes or leaves behind with another one too, most of
    them in the long suite."""
    for name, (_, kind) in BROKEN.items():
        yield pytest.param(name, None, id=f"{name}-default")
        if kind in ("sensitivity", "state"):
            core = name in ("clipped at 1.05 C", "NaN is not zeroed", "a module keeps its input")
            yield pytest.param(name, "vmap", id=f"{name}-vmap", marks=() if core else pytest.mark.slow)


@pytest.mark.parametrize(("breakage", "engine"), list(broken_pieces()))
def test_a_broken_piece_is_found(model, records, monkeypatch, breakage, engine):
    apply, kind = BROKEN[breakage]
    apply(monkeypatch)
    # Statistics need more numbers.
    report = replay(model, LOSS, records, engine=engine, steps=4 if kind == "noise" else 2)
    assert kind in {finding.kind for finding in report.findings}, report.findings
    with pytest.raises(PrivacyViolation, match="does not hold"):
        report.require()


def test_an_answer_that_is_rounded_early_is_found(model, records, monkeypatch):
    """In a frame the noisy value is scaled back before it is rounded, whether there was a batch or not."""
    replay(model, LOSS, records, clip=ap.clip.AdaClip()).require()
    right = Draw._add_noise
    monkeypatch.setattr(Draw, "_add_noise", lambda self, release, exact: right(self, release, exact.float()))
    assert "release" in {finding.kind for finding in replay(model, LOSS, records, clip=ap.clip.AdaClip()).findings}


def last_number_exact(original):
    """The last number of an answer is the sum itself."""

    def release(self):
        noise = self._mechanisms.add_gaussian_noise

        def but_one(exact, deviation, stream, divisor):
            last = exact.view(-1)[-1:] / divisor
            answer = noise(exact, deviation, stream, divisor)
            return torch.cat([answer[:-1], last]) if exact.dim() == 1 and len(exact) == 20 else answer

        self._mechanisms = Gaussian(but_one)
        return original(self)

    return release


BROKEN_HISTOGRAMS = {
    "counted at every point below": (
        patched(clipping, "_shares_of_points", lambda right: lambda *given: right(*given).flip(0).cumsum(0)),
        "sensitivity",
    ),
    "sensitivity 0.95": (
        patched(NormHistogram, "sensitivity", lambda right: property(lambda self: 0.95)),
        "sensitivity",
    ),
    "an exact number": (patched(Draw, "release", last_number_exact), "release"),
}


@pytest.mark.parametrize("breakage", BROKEN_HISTOGRAMS)
def test_a_broken_histogram_is_found(model, records, monkeypatch, breakage):
    apply, kind = BROKEN_HISTOGRAMS[breakage]
    apply(monkeypatch)
    report = replay(model, LOSS, records, clip=ap.clip.LeastError(), steps=2)
    assert kind in {finding.kind for finding in report.findings}, report.findings


def test_a_released_tensor_that_tells_of_its_batch_is_found(model, records, monkeypatch):
    monkeypatch.setattr(curator_module, "_strip_history", lambda answer: answer)
    double = (records[0].double(), records[1])  # all sums are float64 then, and added up in place
    findings = replay(model.double(), LOSS, double, execution=ap.Execution(micro_batch=1)).findings
    assert any("strides, storage or writes" in finding.message for finding in findings)


def test_a_buffer_that_follows_the_records_is_found(records, monkeypatch):
    class Normalised(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 2)
            self.register_buffer("mean", torch.zeros(4), persistent=False)

        def forward(self, inputs):
            return self.layer(inputs - self.mean)

    def follow(model, inputs):
        model.mean = 0.9 * model.mean + 0.1 * inputs.nan_to_num(0).clamp(-1, 1).mean(0)

    replay(Normalised(), LOSS, records).require()
    model_remembers(follow)(monkeypatch)
    findings = replay(Normalised(), LOSS, records).findings
    assert any("buffers.mean" in finding.message for finding in findings)


class Peeks:
    """Finds the curator's records in the frames of its callers, and asks for more where there are more."""

    def init(self, context):
        return None

    def propose(self, state, context):
        frame = sys._getframe()
        while frame and not hasattr(frame.f_locals.get("session"), "curator"):
            frame = frame.f_back
        records = frame.f_locals["session"].curator._records if frame else ()
        return (ClippedSum(1.0 + 0.01 * len(records)),)

    def observe(self, state, released):
        return None


def test_a_strategy_that_peeks_is_found(model, records):
    assert "request" in {finding.kind for finding in replay(model, LOSS, records, clip=Peeks()).findings}


def test_a_loop_whose_learning_rate_follows_the_batch_is_found(model, records):
    def loop(private):
        while private.steps_left:
            size = 1
            for inputs, targets in private.batches(steps=1):
                private.optimizer.zero_grad()
                LOSS(private.model(inputs), targets).backward()
                private.optimizer.step()
                size = len(inputs)
            private.optimizer.param_groups[0]["lr"] = 0.1 / size

    assert "state" in {finding.kind for finding in replay(model, None, records, loop=loop).findings}


def test_a_loop_whose_mean_is_not_undone_is_found(model, records, monkeypatch):
    """Every record is then scaled by the size of its batch: one more record moves all of them."""
    monkeypatch.setattr(private_module, "per_record_scale", lambda *_: 1.0)
    report = replay(model, None, records, loop=own_loop, clip=ap.clip.Fixed(0.3))
    assert "sensitivity" in {finding.kind for finding in report.findings}


def test_a_loop_whose_empty_draws_are_skipped_is_found(model, records, monkeypatch):
    update = private_module.Private._update

    def skipping(self, draw):
        if self.model.current is not None and self.model.current.draw is draw:
            update(self, draw)

    monkeypatch.setattr(private_module.Private, "_update", skipping)
    report = replay(model, None, records, loop=own_loop)
    assert {"calls", "state"} <= {finding.kind for finding in report.findings}


# The audit itself. -----------------------------------------------------------------------------------------------------------


def test_nothing_of_the_caller_is_changed(model, records):
    before = {name: value.clone() for name, value in model.state_dict().items()}
    generator = torch.get_rng_state()
    replay(model.eval(), LOSS, records)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not model.training
    assert torch.equal(torch.get_rng_state(), generator)


def test_dropout_is_switched_off_and_told(records):
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2))
    report = replay(model, LOSS, records)
    report.require()
    assert report.notes[0].endswith("comparable: 1")
    assert model[1].p == 0.5


def test_a_model_with_randomness_of_its_own_cannot_be_compared(records):
    class Noisy(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 2)

        def forward(self, inputs):
            return self.layer(inputs + torch.randn_like(inputs))

    with pytest.raises(ap.InvalidArgument, match="model='Noisy': it draws random numbers"):
        replay(Noisy(), LOSS, records)


def test_a_blunt_measurement_is_told(model, records):
    report = replay(model, LOSS, records, clip=ap.clip.Fixed(1e9))
    assert report.ok
    assert not report.sharp
    assert "smaller threshold" in report.notes[0]


def test_the_report_is_data(model, records, monkeypatch):
    good = json.loads(json.dumps(replay(model, LOSS, records).as_json(), allow_nan=False))
    assert good["ok"]
    assert good["largest_ratio"] == pytest.approx(1, rel=2e-4)
    assert good["steps"] == 4 * len(good["neighbours"])
    counted = 3 * len(good["neighbours"])  # of usable records, in the first three steps of each run
    assert good["noise_calls"] == 4 * good["steps"] + counted
    sums(with_nan)(monkeypatch)
    bad = json.loads(json.dumps(replay(model, LOSS, records).as_json(), allow_nan=False))
    assert not bad["ok"]
    assert {"sensitivity", "multiplier"} <= {finding["kind"] for finding in bad["findings"]}


def test_bad_arguments_are_refused(model, records):
    with pytest.raises(ap.InvalidArgument, match="steps=1"):
        replay(model, LOSS, records, steps=1)
    with pytest.raises(ap.InvalidArgument, match="loss_fn=None"):
        replay(model, None, records)
    with pytest.raises(ap.InvalidArgument, match="model='mlp'"):
        replay("mlp", LOSS, records)
    with pytest.raises(ap.UnsupportedModel, match="BatchNorm1d"):
        replay(nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2)), LOSS, records)
