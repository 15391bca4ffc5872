"""The curator: charges, draws, clips, sums, adds noise, releases. In that order, and never one without the others.

Order of one request:

1. the request is checked against the model (nothing has happened yet if it does not fit);
2. its event is charged and durable;
3. the coins are tossed: a fresh Poisson batch for this request alone;
4. micro-batches are clipped and summed; of selections the clipped losses at each candidate;
5. noise is added once, the sum is divided by the declared expected batch size, and the result is handed out once.

An exception after step 2 burns the charge: nothing is ever refunded, and a draw is never repeated. Whether the curator raises must
not depend on a record, so a record that cannot be read or evaluated contributes zero, like one whose gradient is not finite. (That
nothing works at all is found by the probe, on synthetic records, before anything is charged.)
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from apportion import validate
from apportion.curator import mechanisms
from apportion.curator.candidate_losses import sum_losses
from apportion.curator.clipping import Gradients, Rows, clip_and_sum, group_names
from apportion.curator.foreign_code import contain_errors, watch_signals
from apportion.curator.gradients.engine import Engine
from apportion.curator.gradients.layer_use import full_precision
from apportion.curator.gradients.losses import LossFunction
from apportion.curator.gradients.model_walk import Found, ModelWalk, devices_of, trained_parameters
from apportion.curator.gradients.module_state import StatelessLoss
from apportion.curator.individual_bounds import Floats, IndividualBounds, norm_ratios
from apportion.curator.mechanisms import Mechanisms
from apportion.curator.owners import Numbers, Owners, RecordOwners, Weigh, pooling_weights
from apportion.curator.pooling import NOBODY, pool
from apportion.curator.problems import FAILED, Problems
from apportion.curator.randomness import KEY_BYTES, DrawStreams, Stream, poisson_sample, require_same_process
from apportion.curator.reader import Batch, Piece, single_records
from apportion.curator.records import Records, cut_evenly
from apportion.curator.sieve import sieve
from apportion.curator.state_digest import state_digest
from apportion.curator.threads import torch_threads
from apportion.curator.tree import map_tensors
from apportion.devices import model_devices, seeded_generators, with_float64
from apportion.domain import Domain
from apportion.errors import InvalidArgument, WrongOrder
from apportion.event import Event
from apportion.execution import Execution
from apportion.ranks import ALONE, Ranks, expected
from apportion.releases import (
    FLOAT32_HEADROOM,
    KINDS,
    ClippedSum,
    LowestLoss,
    Noised,
    NormHistogram,
    Selection,
    Statistic,
    UsableCount,
)
from apportion.request import Released, Request

SUM_PIECE_NUMBERS = 1 << 18
"""Numbers of a sum that are converted to float64 at a time, to be added: they stay in the caches."""


class Charges(Protocol):
    """Whoever keeps the books: must refuse or record an event durably before it returns."""

    def charge(self, event: Event) -> None: ...


class StreamSource(Protocol):
    """Where the random bits of each draw come from."""

    def next_draw(self) -> DrawStreams: ...


class SumLost(MemoryError):
    """A sum was left half added. It is as large as the model, whatever the records are."""


class Draw:
    """One open request: a Poisson batch that is being summed. Lives inside the trust boundary.

    Args:
        request: what is answered.
        pieces: the batch in micro-batches.
        found: the parts of the model.
        streams, mechanisms, owners: as of the curator, and the random bits of this draw.
        weigh: how records of a user are weighted before they are pooled; `None` if every record is a unit.
        clips: the factor s_p of the thresholds of these units; `None` if it is 1 for all.
        members: the numbers of all records that were drawn, whether or not they can be read.
        problems: where it is counted what did not contribute.
        ranks: the processes that make this draw together.
    """

    def __init__(
        self,
        request: Request,
        pieces: Iterator[Piece],
        found: Found,
        streams: DrawStreams,
        mechanisms: Mechanisms,
        owners: Owners,
        weigh: Weigh | None,
        clips: Callable[[Numbers], Tensor | None],
        members: Numbers,
        problems: Problems,
        ranks: Ranks = ALONE,
    ):
        self._request, self._mechanisms = request, mechanisms
        self._pieces, self._streams, self._problems, self._ranks = pieces, streams, problems, ranks
        self._owners, self._weigh, self._clips = owners, weigh, clips
        self._trained, self._devices = trained_parameters(found), devices_of(found)
        self._open_user = NOBODY
        self._sums: dict[str | Statistic, Tensor] = {
            one: -0.5 * self._weight(np.unique(owners.owner(members)))
            for one in request.statistics
            if isinstance(one, UsableCount)
        }
        self._totals = [torch.zeros(len(one.line.step_sizes), dtype=torch.float64) for one in request.selections]
        self._released = False
        self.view_seeds: NDArray[np.uint64] = np.zeros(0, dtype=np.uint64)
        """For every record, drawn or not, what its views are made from; empty if there are no views."""

    @property
    def request(self) -> Request:
        """What is answered. It was priced before the coins were tossed, and no other can take its place."""
        return self._request

    @property
    def noised(self) -> tuple[Noised, ...]:
        """What of the request is computed in this process: all of it, unless the parameters are divided between several."""
        return self.request.noised

    @property
    def released(self) -> bool:
        """Whether its answer was asked for."""
        return self._released

    def micro_batches(self) -> Iterator[Piece]:
        """The batch in pieces. It can be walked through once; an empty draw has no piece."""
        return self._pieces

    def secret_dropout(self) -> AbstractContextManager[None]:
        """While a model runs, torch's generators toss from the draw's own secret stream; afterwards they are as they were before."""
        return seeded_generators(int(self._streams.model.words(1)[0] >> 1), self._devices)

    def add(self, gradients: Gradients | Rows | None, members: Tensor, losses: Sequence[Tensor] = ()) -> None:
        """Clip the gradients of a micro-batch and add them to the sum: all, or none; or `SumLost`, which ends the draw.

        Args:
            gradients: of its records; `None` if no sum is asked for.
            members: the numbers of its records.
            losses: for each selection, what its records add to each candidate (`candidate_losses.py`).
        """
        with full_precision():
            owners, open_user = self._owners.owner(members.numpy()), NOBODY
            if gradients is not None and self._weigh is not None:
                asked = self.request.sums
                weights = self._weigh(members.numpy())
                pooled = pool(gradients, list(self._trained), asked, owners, weights, self._problems)
                users = self._open_user.followed_by(pooled)
                open_user = users[-1:]  # may go on in the next micro-batch
                gradients, owners = users[:-1].present()
            sums = {} if gradients is None else self._clipped(gradients, owners)
            try:
                self._open_user = open_user
                self._accumulate(sums)
                for total, part in zip(self._totals, losses, strict=True):
                    total += part
            except Exception as error:  # half of it was added: to go on with single records would count them twice
                raise SumLost("the sum of a micro-batch could not be kept") from error

    def _clipped(self, gradients: Gradients | Rows, owners: Numbers) -> dict[str | Statistic, Tensor]:
        """What these units add to each release."""
        if not len(owners):
            return {}
        sums = clip_and_sum(gradients, self.noised, self._clips(owners), self._problems)
        # a sum is finite only if all its terms are, and is much faster than to look at each
        if not all(math.isfinite(part.sum()) for part in sums.values()):
            raise ArithmeticError("a product overflowed")  # nothing was added yet
        return sums

    def _weight(self, units: Numbers) -> Tensor:
        """Σ s_p over these units: what they weigh in statistics."""
        clips = self._clips(units)
        return torch.tensor(float(len(units)) if clips is None else float(clips.sum()), dtype=torch.float64)

    def _add_last_user(self) -> None:
        """The vector of a user is complete when another one comes, or here."""
        sums: dict[str | Statistic, Tensor] = {}
        with full_precision():
            with contain_errors():
                sums = self._clipped(*self._open_user.present())
            self._accumulate(sums)

    def _accumulate(self, sums: dict[str | Statistic, Tensor]) -> None:
        taken = set()
        for key in list(sums):
            part, earlier = sums.pop(key), self._sums.get(key)  # freed one by one: all are as large as the model
            if earlier is not None:
                wide = with_float64(part)
                self._sums[key] = total = earlier.to(wide.device).to(torch.float64).contiguous()
                pieces = (one.flatten().split(SUM_PIECE_NUMBERS) for one in (total, wide))
                for so_far, more in zip(*pieces, strict=True):  # as float64 a whole sum would be copied once more
                    so_far.add_(more)
                continue
            # Noise is written over a sum, and a released tensor is saved with all of its storage: no two may share one.
            storage = part.untyped_storage()
            alone = storage.data_ptr() not in taken and storage.nbytes() == part.nbytes
            self._sums[key] = part if alone else part.clone()
            taken.add(storage.data_ptr())

    def release(self) -> Released:
        """(Σ clipped + N(0, s²)) / expected batch size, once, over all ranks: each adds its share. After this the batch is gone."""
        if self._released:
            raise WrongOrder("this draw was released already: one request has one answer")
        require_same_process(self._streams.process)
        self._released = True
        if self._weigh is not None:
            with expected(self._ranks):
                self._add_last_user()
        self._ranks.arrive()
        sums = [release for release in self.noised if isinstance(release, ClippedSum)]
        asked = [(release, name) for release in sums for name in group_names(release, list(self._trained))]
        gradient = {}
        for (release, name), answer in zip(asked, self._answers(asked), strict=True):
            parameter = self._trained[name]
            restored = answer if release.frame is None else release.frame.restored(name, answer)
            if restored.dtype != parameter.dtype or restored.device != parameter.device:
                restored = restored.to(parameter.dtype).to(parameter.device)
            gradient[name] = _strip_history(restored)
        counted = self._ranks.add_up(self._count(one) for one in self.request.statistics)
        statistics = [number for one in counted for number in one.view(-1).tolist()]
        return Released(self.request, gradient, tuple(statistics), self._ranks.choose(self._selected()))

    def _of_all_ranks(self, parts: Iterable[Tensor]) -> Iterator[Tensor]:
        """The answers about parameters, from what each rank adds to them."""
        return self._ranks.add_up(parts)

    def _answers(self, asked: Sequence[tuple[ClippedSum, str]]) -> Iterator[Tensor]:
        """The sums of all ranks with their noise. Of parameters that are divided between the ranks this one answers about its own part: it
        gets the sum of that part, in float64, because it travels without noise, and adds all of the noise."""
        shards = self._ranks.shards
        if shards is None:
            yield from self._of_all_ranks(self._part(release, name) for release, name in asked)
            return
        sums = shards.add_up([name for _, name in asked], lambda name: self._pop_sum(name, self._trained[name]))
        for (release, _), own in zip(asked, sums, strict=True):
            yield self._add_noise(release, own, share=1.0)

    def _part(self, release: ClippedSum, name: str) -> Tensor:
        """What this rank adds to the answer about a parameter: its sum with its share of the noise."""
        exact = self._pop_sum(name, self._trained[name])
        kept = self._type_of_part(release, self._trained[name].dtype)
        # whatever the batch was, a part is rounded once
        if exact.dtype != kept:
            exact = with_float64(exact).to(torch.float64)
        answer = self._add_noise(release, exact)
        return answer if answer.dtype == kept else answer.to(kept)

    def _type_of_part(self, release: ClippedSum, parameter: torch.dtype) -> torch.dtype:
        """As what a part is added to those of other ranks: from public facts, so that all agree.

        A process alone rounds to the parameter's type after all noise was added, which costs nothing. A part has a share of the noise only:
        where 16 bits round it to steps as large as that, the shares of the others could not hide from which side it was rounded.
        """
        if release.frame is not None or self._ranks.wide:
            return torch.float64
        return parameter if self._ranks.count == 1 else torch.promote_types(parameter, torch.float32)

    def _count(self, one: Statistic) -> Tensor:
        """What this rank adds to the answer about a statistic, with its share of the noise."""
        return self._add_noise(one, self._pop_sum(one, nothing_counted(one)).cpu().double())

    def _selected(self) -> list[int | None]:
        """What is chosen from the summed losses, which are not kept; of several ranks the first one's choice counts."""
        totals = list(self._ranks.add_up(self._totals))
        self._totals = []
        return [self._select(*pair) for pair in zip(self.request.selections, totals, strict=True)]

    def _select(self, release: Selection, totals: Tensor) -> int | None:
        noise = self._streams.noise
        if isinstance(release, LowestLoss):
            return self._mechanisms.noisy_argmin(totals, release, noise)
        asked = release.slope * self.request.expected_batch_size * totals.new_tensor(release.line.step_sizes)
        return self._mechanisms.above_threshold(totals - asked, release, noise)

    def _add_noise(self, release: Noised, exact_sum: Tensor, share: float | None = None) -> Tensor:
        """The sum with its noise, divided by what was declared: never by the number of records that were drawn. Of several ranks each adds
        its share, unless another is given: variances add up."""
        share = self._ranks.share if share is None else share
        deviation, noise = self.request.standard_deviation(release) * share, self._streams.noise
        size = self.request.expected_batch_size if isinstance(release, ClippedSum) else self.request.expected_weight
        return self._mechanisms.add_gaussian_noise(exact_sum, deviation, noise, size)

    def _pop_sum(self, key: str | Statistic, like: Tensor) -> Tensor:
        """What was added up, handed over and not kept; zeros if the batch was empty."""
        total = self._sums.pop(key, None)
        return torch.zeros_like(like) if total is None else total.detach()


def nothing_counted(one: Statistic) -> Tensor:
    """The sum of a statistic over nobody."""
    return torch.zeros(len(one.points) if isinstance(one, NormHistogram) else (), dtype=torch.float64)


def _strip_history(answer: Tensor) -> Tensor:
    """The same numbers in a tensor that does not tell how it came to be: strides and the count of writes would tell of the batch."""
    return answer.contiguous().view(-1).view(answer.shape).data


class Curator:
    """Holds the private records and answers requests about the gradient of a model on them.

    Args:
        records: the private records.
        engine: computes per-record gradients of the model that is being trained.
        charges: who is told of every event, before it happens.
        randomness: where coins and noise come from.
        execution: memory knobs.
        mechanisms: add the noise; audits put instruments around them.
        owners: whose the records are; by default every record is a unit of privacy, and all are alike.
        individual: bounds and accounts of single records, where they are kept.
        domain: records with other values are not evaluated.
        problems: where it is counted what did not contribute, and why. Secret.
        ranks: the processes that answer together, each with owners of its own.
    """

    draw_kind: type[Draw] = Draw

    def __init__(
        self,
        records: Records,
        engine: Engine,
        charges: Charges,
        randomness: StreamSource,
        execution: Execution | None = None,
        mechanisms: Mechanisms = mechanisms,
        *,
        owners: Owners | None = None,
        individual: IndividualBounds | None = None,
        domain: Domain | None = None,
        problems: Problems | None = None,
        ranks: Ranks = ALONE,
    ):
        self._records, self._engine, self._charges, self._randomness = records, engine, charges, randomness
        self._views = records.views
        self._execution = execution or Execution()
        self._mechanisms = mechanisms
        self._owners: Owners = owners or RecordOwners(len(records))
        self._individual = individual
        self._domain, self._problems = domain or Domain(), problems or Problems()
        self._walk = ModelWalk(engine.model)
        self._numbers = sum(parameter.numel() for parameter in trained_parameters(self._walk).values())
        self._loss: StatelessLoss | None = None
        self._answerable: tuple[Request | None, list[str]] = None, []
        self._ranks = ranks

    def open(self, request: Request) -> Draw:
        """Charge `request`, then toss its coins. For loops that compute the gradients themselves."""
        found = self._walk.find()
        trained = trained_parameters(found)
        self._require_answerable(request, trained)
        self._engine.sync_weights()
        size = self._execution.physical_batch(request.expected_batch_size)
        if self._views is not None:
            size = max(1, size // self._views.count)
        self._records.start_workers(self._execution.workers)
        if self._ranks.count > 1:
            self._ranks.require_same(self._digest(request))
        self._ranks.charge(partial(self._charges.charge, request.event()))
        streams = self._randomness.next_draw()
        owners = self._owners
        taking = None if self._individual is None else self._individual.charge(request.event())
        drawn = poisson_sample(owners.coins, request.rates, streams.coins, owners.coin_groups)
        members = owners.records_of(drawn if taking is None else drawn[taking[drawn]])
        pieces = self._read(members, owners.cut(members, size, self._numbers), streams.model, self._problems)
        weigh = None if owners.pooling is None else pooling_weights(owners, members)
        clips = partial(owners.clips, request) if self._individual is None else self._individual.clips
        draw = self.draw_kind(
            request,
            pieces,
            found,
            streams,
            self._mechanisms,
            owners,
            weigh,
            clips,
            members,
            self._problems,
            self._ranks,
        )
        if self._views is not None:
            draw.view_seeds = streams.views.words(len(self._records))
        return draw

    def _digest(self, request: Request) -> bytes:
        """What must be the same on all ranks before they go on."""
        return state_digest(request, trained_parameters(self._walk))

    def _read(self, members: Numbers, cuts: Sequence[slice], secret: Stream, problems: Problems) -> Iterator[Piece]:
        """Those of these records that can be read and have declared values, where the model is."""
        device = next(iter(trained_parameters(self._walk).values())).device
        pieces = self._records.read(members, cuts, secret)
        return sieve(pieces, self._domain, device, len(members), problems, self._records.failures)

    def problems(self) -> str:
        """What did not contribute, and why: lines of JSON for the owner of the data. Secret."""
        return self._problems.text()

    def gather_problems(self) -> None:
        """Learn what other ranks have counted. All of them come here at the same step."""
        rank, found = self._ranks.rank, self._ranks.gather(self._problems.tally())
        self._problems.know([*found[:rank], *found[rank + 1 :]])

    def secret_state(self) -> dict[str, Any] | None:
        """Accounts of single people, for a checkpoint in secret/; `None` where none are kept."""
        if self._individual is None:
            return None
        state = self._individual.accounts.state()
        return {name: torch.from_numpy(one) if isinstance(one, np.ndarray) else one for name, one in state.items()}

    def restore_secret(self, state: Mapping[str, Any], later: Sequence[Event]) -> None:
        """Put back what `secret_state` returned.

        Args:
            later: what was charged after that. Whose part was how large is not known, so everybody pays the worst case.
        """
        assert self._individual is not None
        accounts = self._individual.accounts
        accounts.restore({name: one.numpy() if isinstance(one, Tensor) else one for name, one in state.items()})
        for event in later:
            accounts.charge_worst(event)

    def individual_epsilons(self, delta: float) -> Floats | None:
        """What each record has spent by its own account. Secret."""
        return None if self._individual is None else self._individual.accounts.epsilons(delta)

    def end_workers(self) -> None:
        """End the processes that read records. Another request would start new ones."""
        self._records.close()

    def answer(self, request: Request, loss_fn: LossFunction) -> Released:
        """What `request` asks for: a noisy clipped gradient, or which candidate is best."""
        if isinstance(loss_fn, nn.Module):
            if self._loss is None or self._loss.loss is not loss_fn:
                self._loss = StatelessLoss(loss_fn)
            loss_fn = self._loss
        if self._individual is not None and self._individual.due:
            self._individual.bound(self._norm_ratios(request, loss_fn))
        draw = self.open(request)
        with expected(self._ranks):
            self._add_batch(draw, loss_fn)
        return draw.release()

    def _add_batch(self, draw: Draw, loss_fn: LossFunction) -> None:
        with watch_signals(), torch_threads(self._execution.threads):
            for piece in draw.micro_batches():
                with draw.secret_dropout(), warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # a warning may be caused by one record, and is output
                    counted = self._problems.counted()
                    # a lost sum is not about a record; a MemoryError may be
                    with contain_errors(SumLost) as together:
                        self._add_records(draw, piece, loss_fn)
                    if together.failure:
                        self._problems.count_again(counted)
                        self._add_one_by_one(draw, piece, loss_fn)

    def _norm_ratios(self, request: Request, loss_fn: LossFunction) -> Floats:
        """‖g_i‖/C of every record at the weights as they are: of that record and of released values, and of nothing else.

        So each record runs alone. In a micro-batch the last bit of its norm would depend on the others, and where that bit moves its bound
        to another level, or its account over the edge, somebody else's record would have decided whether it takes part.
        """
        _require_priced_as_executed(request)
        _require_all_parameters(request, trained_parameters(self._walk))
        self._engine.sync_weights()
        ratios = np.full(len(self._records), np.inf)
        secret = seeded_generators(int.from_bytes(os.urandom(7)), model_devices(self._engine.model))
        with watch_signals(), warnings.catch_warnings(), secret:
            warnings.simplefilter("ignore")
            alone = cut_evenly(len(ratios), 1)
            for record in self._read(np.arange(len(ratios)), alone, Stream(os.urandom(KEY_BYTES)), Problems()):
                with contain_errors():
                    ratios[record.members.numpy()] = norm_ratios(self._gradients(record.batch, loss_fn), request)
        return ratios

    def _add_records(self, draw: Draw, piece: Piece, loss_fn: LossFunction) -> None:
        """All that the request asks about these records: what cannot be computed leaves none of it behind."""
        losses = [sum_losses(self._engine, loss_fn, piece.batch, release) for release in draw.request.selections]
        gradients = None
        if draw.request.noised:
            gradients = self._gradients(self._viewed(draw, piece), loss_fn)
        draw.add(gradients, piece.members, losses)

    def _viewed(self, draw: Draw, piece: Piece) -> Batch:
        """The views of each record behind each other, each with its target; the records themselves, if there are no views of them."""
        made = self._views
        if made is None:
            return piece.batch
        inputs, targets = piece.batch
        with torch.no_grad():
            views = made.of(inputs, draw.view_seeds[piece.members.numpy()])
        return views, map_tensors(lambda tensor: tensor.repeat_interleave(made.count, 0), targets)

    def _gradients(self, batch: Batch, loss_fn: LossFunction) -> Gradients | Rows:
        inputs, targets = batch
        views = 1 if self._views is None else self._views.count
        loss = self._engine.record_losses(loss_fn, self._engine.forward(inputs, views), targets).sum()
        loss = loss if views == 1 else loss / views
        self._engine.require_own_parameters(loss)
        loss.backward()
        return self._engine.gradients()

    def _add_one_by_one(self, draw: Draw, piece: Piece, loss_fn: LossFunction) -> None:
        """The records of a batch that failed as a whole; those that fail alone contribute nothing, whatever the failure is called."""
        for record in single_records(piece):
            counted = self._problems.counted()
            with contain_errors() as attempt:
                self._add_records(draw, record, loss_fn)
            if attempt.failure:
                self._problems.count_again(counted)
                self._problems.count(FAILED, 1, attempt.text or attempt.failure)

    def _require_answerable(self, request: Request, trained: Mapping[str, nn.Parameter]) -> None:
        """Refuse what would not be executed as it is priced, or does not fit the model. A schedule asks the same object again and again:
        that one is looked at once, unless it holds tensors, which may be written to, or other parameters learn."""
        known, names = self._answerable
        if request is known and names == [*trained]:
            return
        _require_priced_as_executed(request)
        _require_all_parameters(request, trained)
        self._require_same_groups(request)
        if not request.holds_tensors:
            self._answerable = request, [*trained]

    def _require_same_groups(self, request: Request) -> None:
        """Everybody is in one of the groups that the request is priced for: others would be clipped and drawn as nobody paid for."""
        groups = self._owners.coin_groups
        if (groups is None) != (not request.groups) or (
            groups is not None and groups.max(initial=-1) >= len(request.groups)
        ):
            reason = "it is priced for other groups than those that the records are in"
            raise InvalidArgument("groups", f"{len(request.groups)} of them", reason, "Use the budget of the plan")


def _require_all_parameters(request: Request, trained: Mapping[str, nn.Parameter]) -> None:
    """Each trained parameter stands in exactly one group: none is updated without clipping and noise."""
    for selection in request.selections:
        selection.line.require_usable({name: parameter.shape for name, parameter in trained.items()})
    if not request.noised:
        return
    asked = [name for release in request.sums for name in group_names(release, list(trained))]
    counted = {name for release in request.statistics for name in group_names(release, list(trained))}
    if sorted(asked) != sorted(trained) or counted - set(trained):
        odd = sorted(set(asked) ^ set(trained) | counted - set(trained))
        raise InvalidArgument(
            "releases",
            odd,
            "the groups of a request must hold every trained parameter once and nothing else",
            "List them all",
        )
    for release in request.sums:
        if release.frame is not None:
            release.frame.require_usable({name: trained[name].shape for name in release.frame.scale})


def _require_priced_as_executed(request: Request) -> None:
    """The request comes from a strategy, which may be a person's own: its sensitivity must be that of what is done here."""
    if type(request) is not Request or not all(type(release) in KINDS for release in request.releases):
        raise InvalidArgument(
            "request",
            validate.shown(request),
            "it is, or holds, a subclass of what the curator executes, and would be priced by its own claim",
            "Use Request, ClippedSum, UnclippedCount, NormSum, NormHistogram, UsableCount, LowestLoss and FirstGain themselves",
        )
    for release in (*request.sums, *request.selections):
        if not release.headroom >= FLOAT32_HEADROOM:
            raise InvalidArgument(
                "headroom",
                release.headroom,
                f"norms and sums are rounded to float32, and the noise must pay for it: at least {FLOAT32_HEADROOM:g}",
                "Leave it out",
            )
        if isinstance(release, ClippedSum):
            frame = release.frame
            held = () if frame is None else (*frame.centre.values(), *frame.scale.values())
        else:
            held = tuple(release.line.direction.values())
        if not all(type(tensor) is Tensor for tensor in held):
            raise InvalidArgument(
                "releases",
                validate.shown(release),
                "it holds tensors of a class with arithmetic of its own",
                "Use plain tensors",
            )
