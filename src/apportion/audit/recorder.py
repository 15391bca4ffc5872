"""The instruments that stand around a run: they watch its coins, its reads, its charges, its noise and its public state.

On D noise is real and every noisy sum is kept. On D′ the kept values are handed out again whatever the exact sum is. From then on
both runs see the same released values, so whatever still differs in public has come past the mechanism.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from apportion.audit.recording import ChoiceCall, NoiseCall, Recording, Step
from apportion.audit.state import public_state
from apportion.curator import mechanisms
from apportion.curator.owners import Numbers
from apportion.curator.randomness import KEY_BYTES, DrawStreams, Randomness, Stream
from apportion.event import Event
from apportion.releases import FirstGain, LowestLoss, Selection
from apportion.request import Released
from apportion.training.session import Session

LONE_STEP = 2
"""In this step no other record's coin falls true: one of the two batches is empty."""


class Recorder(Recording):
    """Watches one run.

    Args:
        common: how many coins are tossed for what both data sets share; those after them fall true in every draw.
        kept: the noisy sums to hand out, by step and call; `None` to add real noise.
        secret: which secret stream dropout would have.
        rank: of a run of several ranks, which of them is watched (`recorded_ranks.py`).
    """

    def __init__(self, common: int, kept: Recorder | None = None, secret: int = 0, rank: int = 0):
        super().__init__()
        self.common, self._kept = common, kept
        self.records_of: Callable[[Numbers], Numbers] = lambda drawn: drawn
        self.randomness: Randomness = _Draws(self, rank)
        self._secret = Randomness(bytes([secret]) * KEY_BYTES, private=False)
        self._session: Session | None = None
        self._noise: Stream | None = None

    @property
    def recording(self) -> Recording:
        """What was written down, as plain data."""
        return Recording(self.steps, self.after, self.charged, self.failure)

    def watch(self, session: Session) -> None:
        """Follow `session` from now on."""
        self._session = session
        apply = session.apply

        def watched(released: Released) -> object:
            self.steps[-1].released = released
            self.steps[-1].forms = {name: _form(tensor) for name, tensor in released.gradient.items()}
            return apply(released)

        session.apply = watched  # type: ignore[assignment,method-assign]

    def finish(self) -> None:
        """Write down how the run ended."""
        if self._session is not None:
            self.after, self.charged = public_state(self._session), self._events()

    def draw(self, streams: DrawStreams) -> DrawStreams:
        """A draw begins with these streams. Its coins are looked at, and those of all records that are not common fall true."""
        assert self._session is not None
        self._noise = streams.noise
        self.steps.append(Step(public_state(self._session), self._events()))
        alone = len(self.steps) == LONE_STEP
        coins = _Coins(streams.coins, self.steps[-1], self, alone)
        return replace(streams, coins=coins, model=self._secret.next_draw().model)

    def read(self, indices: NDArray[np.int64]) -> None:
        """Records were read."""
        if self.steps and self.steps[-1].released is None:  # not in between, for norms that bound what comes
            self.steps[-1].read.update(indices.tolist())

    def add_gaussian_noise(self, exact_sum: Tensor, standard_deviation: float, noise: Stream, divisor: float) -> Tensor:
        """Real noise, or the answer that was kept for this call."""
        step, exact, own_stream = self.steps[-1], exact_sum.double().clone(), noise is self._noise
        kept = self._kept_answer(exact_sum)
        answer = mechanisms.add_gaussian_noise(exact_sum, standard_deviation, noise, divisor)
        if kept is not None:
            answer.data.copy_(kept)  # not counted as a write: in its form, too, the answer is a real one
        shown = answer.double().clone()
        step.calls.append(NoiseCall(exact, standard_deviation, divisor, shown, own_stream, exact_sum.dtype))
        return answer

    def noisy_argmin(self, totals: Tensor, release: LowestLoss, noise: Stream) -> int:
        """A real choice, or the one that was kept for this call."""
        answer = self._choose(totals, release, mechanisms.noisy_argmin(totals, release, noise), noise)
        assert answer is not None
        return answer

    def above_threshold(self, gains: Tensor, release: FirstGain, noise: Stream) -> int | None:
        """Likewise."""
        return self._choose(gains, release, mechanisms.above_threshold(gains, release, noise), noise)

    def _choose(self, totals: Tensor, release: Selection, answer: int | None, noise: Stream) -> int | None:
        step = self.steps[-1]
        if self._kept is not None:
            number, call = len(self.steps) - 1, len(step.choices)
            kept = self._kept.steps[number].choices if number < len(self._kept.steps) else []
            if call < len(kept) and len(kept[call].totals) == len(totals):
                answer = kept[call].answer
            else:
                self._diverge(f"selection {call + 1} of step {number + 1}, of {len(totals)} candidates, is a new one")
        step.choices.append(ChoiceCall(totals.clone(), release, answer, noise is self._noise))
        return answer

    def _kept_answer(self, exact_sum: Tensor) -> Tensor | None:
        if self._kept is None:
            return None
        number, call = len(self.steps) - 1, len(self.steps[-1].calls)
        kept = self._kept.steps[number].calls if number < len(self._kept.steps) else []
        if call < len(kept) and kept[call].answer.shape == exact_sum.shape:
            return kept[call].answer
        self._diverge(f"noise call {call + 1} of step {number + 1}, of shape {tuple(exact_sum.shape)}, is a new one")
        return None

    def _diverge(self, text: str) -> None:
        """D′ asks for what D had not asked for: there is nothing to hand out, and it goes on with answers of its own. To raise would let
        other processes of the run wait."""
        self.failure, self._kept = self.failure or text, None

    def _events(self) -> tuple[Event, ...]:
        assert self._session is not None
        account = self._session.account
        return () if account.run is None else tuple(account.ledger.events(account.run))


def _form(tensor: Tensor) -> tuple[object, ...]:
    return (
        tensor.dtype,
        tensor.shape,
        tensor.stride(),
        tensor.storage_offset(),
        tensor.untyped_storage().nbytes(),
        tensor._is_view(),
        tensor._version,
    )


class _Draws(Randomness):
    """Reproducible streams, in which the last record is always drawn."""

    def __init__(self, recorder: Recorder, rank: int):
        super().__init__(bytes([rank]) * KEY_BYTES, private=False)
        self._recorder = recorder

    def next_draw(self) -> DrawStreams:
        return self._recorder.draw(super().next_draw())


class _Coins(Stream):
    """The coins of the common records are the same on every data set, and those of all further records fall true."""

    def __init__(self, stream: Stream, step: Step, recorder: Recorder, alone: bool):
        self._stream, self._step, self._recorder, self._alone = stream, step, recorder, alone

    def words(self, count: int) -> NDArray[np.uint64]:
        return self._stream.words(count)

    def coins(self, count: int, probability: float) -> NDArray[np.bool_]:
        common = self._stream.coins(min(count, self._recorder.common), probability)
        return self._watched(count, common, (probability,))

    def group_coins(self, groups: Numbers, probabilities: Sequence[float]) -> NDArray[np.bool_]:
        common = self._stream.group_coins(groups[: self._recorder.common], probabilities)
        return self._watched(len(groups), common, tuple(probabilities))

    def _watched(self, count: int, common: NDArray[np.bool_], rates: tuple[float, ...]) -> NDArray[np.bool_]:
        tossed = np.ones(count, dtype=bool)
        tossed[: len(common)] = False if self._alone else common
        self._step.coins.append((count, rates))
        self._step.members = set(self._recorder.records_of(np.flatnonzero(tossed)).tolist())
        return tossed
