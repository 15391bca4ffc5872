"""The same pipelined run on neighbouring data sets, with the same noisy answers; imported by the processes of the tests."""

from dataclasses import replace
from functools import partial

import numpy as np
import torch
from pipelined_runs import MODELS, ROWS, plan_by_stages

from apportion.curator import mechanisms
from apportion.curator.randomness import Randomness
from apportion.curator.records import as_records
from apportion.execution import Execution
from apportion.pipeline import pipeline_training
from apportion.pipeline.pipeline_curator import PipelineCurator, stage_of
from apportion.pipeline.pipeline_ranks import PipelineRanks
from apportion.releases import ClippedSum
from apportion.training.loop import take_steps
from apportion.training.named_losses import as_loss
from apportion.training.opening import open_session
from apportion.training.storage import Storage


class Kept:
    """Mechanisms that keep what they are given and answer; or hand out what another run was answered."""

    def __init__(self, earlier=None):
        self.calls, self._earlier = [], earlier

    def add_gaussian_noise(self, exact_sum, standard_deviation, noise, divisor):
        exact = exact_sum.detach().double().clone()
        answer = mechanisms.add_gaussian_noise(exact_sum, standard_deviation, noise, divisor)
        if self._earlier is not None:
            answer.data.copy_(self._earlier.calls[len(self.calls)][3])
        self.calls.append((exact.numpy(), standard_deviation, divisor, answer.detach().clone()))
        return answer


class _Coins:
    """The last record is always drawn; of the others about half, and in the second draw nobody."""

    def __init__(self, draw, common):
        self._draw, self._common = draw, common

    def coins(self, count, probability):
        tossed = np.random.default_rng(self._draw).random(count) < (0.0 if self._draw == 2 else 0.5)
        tossed[self._common :] = True
        return tossed


class AuditedCurator(PipelineCurator):
    def __init__(self, *arguments, common, **named):
        super().__init__(*arguments, **named)
        source, draws = self._randomness._source, iter(range(1, 1000))

        class Draws:
            def next_draw(self):
                return replace(source.next_draw(), coins=_Coins(next(draws), common))

        self._randomness = Draws()


def neighbouring_run(rank, stages, data, common, earlier=None, kind=AuditedCurator, steps=4):
    kept, books = Kept(earlier), []
    ends = rank in (0, len(stages) - 1)
    setup = pipeline_training.pipeline_setup(
        stages[rank],
        as_loss("cross-entropy"),
        as_records(data) if ends else None,
        plan_by_stages(len(stages), steps=steps, rate=0.5, population=12),
        PipelineRanks(),
        execution=Execution(micro_batch=ROWS),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9),
        randomness=Randomness.fresh(),
        storage=Storage(),
        build_curator=partial(kind, mechanisms=kept, common=common),
    )
    session = open_session(setup)
    charge = session.account.charge
    session.account.charge = lambda event: (books.append(event), charge(event))[1]
    requests = []
    apply = session.apply
    session.apply = lambda released: (requests.append(released.request), apply(released))[1]
    take_steps(session, as_loss("cross-entropy"))
    weights = {name: one.detach().numpy() for name, one in stages[rank].named_parameters()}
    return kept, books, requests, weights, history_of_session(session)


def history_of_session(session):
    return [(entry.clip, entry.noise_multiplier) for entry in session.entries]


def with_last(data, last):
    if last is None:
        return data
    return tuple(torch.cat([one, other.unsqueeze(0)]) for one, other in zip(data, last, strict=True))


def replay(rank, model, last):
    """Two runs of this rank, without and with a last record: how far its releases lie apart, in sensitivities, and what it sees of it."""
    make, records = MODELS[model]
    data = records(12)
    first, charged, _, weights, history = neighbouring_run(rank, make(), data, 12)
    second, charged_too, requests, weights_too, history_too = neighbouring_run(
        rank, make(), with_last(data, last), 12, first
    )
    same = charged == charged_too and history == history_too and len(first.calls) == len(second.calls)
    same = same and all(np.array_equal(weights[name], weights_too[name]) for name in weights)
    ratios, quotients, calls = [], [], iter(zip(first.calls, second.calls, strict=True))
    for request in requests:
        squares = dict.fromkeys(range(len(request.releases)), 0.0)
        spent = 0.0
        own = [one for one in request.noised if stage_of(one) == rank]
        for release in (
            *(one for one in own if isinstance(one, ClippedSum)),
            *(one for one in own if not isinstance(one, ClippedSum)),
        ):
            for number, _ in enumerate(release.parameters if isinstance(release, ClippedSum) else [""]):
                (exact, deviation, divisor, _), (other, same_deviation, _, _) = next(calls)
                same = same and deviation == same_deviation and divisor == request.expected_batch_size
                squares[request.releases.index(release)] += float(np.square(exact - other).sum())
                spent += (release.sensitivity / deviation) ** 2 if number == 0 else 0.0
        ratios += [np.sqrt(squares[request.releases.index(one)]) / one.sensitivity for one in own]
        quotients.append((spent, request.noise_multiplier))
    return same, ratios, quotients, len(charged)
