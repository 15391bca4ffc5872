"""What a private run gives back, and the folder it is kept in.

public/   may be published: configuration, history of released values, weights (and averaged ones), privacy statement
secret/   must not: the ledger, the checkpoint, and what was wrong with records, which belong to whoever guards the data
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from safetensors.torch import save
from torch import Tensor, nn

from apportion.planning import Plan
from apportion.strategies.people import IndividualEstimate
from apportion.training.checkpoint import Checkpoints, explained, replace_file
from apportion.training.history import Entry
from apportion.training.individual_runs import write_estimate
from apportion.training.session import Session
from apportion.training.statement import as_markdown, statement
from apportion.training.storage import LEDGER
from apportion.training.versions import package_versions


class Run:
    """A private run: finished by `train`, or still going on in a loop of one's own."""

    def __init__(self, session: Session):
        self._session = session

    def __repr__(self) -> str:
        plan = self._session.plan
        return f"Run({self.steps} of {plan.steps} steps, ε = {self.epsilon():.4g} of {plan.budget.epsilon:g}, δ = {plan.budget.delta:g})"

    @property
    def model(self) -> nn.Module:
        """The model as it was passed; its weights are covered by the guarantee."""
        return self._session.weights.model

    @property
    def averaged(self) -> nn.Module | None:
        """A copy of the model with the averaged weights of `update.Plain(average=…)` or `TailAverage`, as covered as the model itself.

        It is what `evaluate` measures where an average is kept. `None` where none is.
        """
        return self._session.averaged

    @property
    def history(self) -> Sequence[Entry]:
        """One entry a step: released values and public facts."""
        return tuple(self._session.entries)

    @property
    def private(self) -> bool:
        """Whether the guarantee holds: `False` if a seed made the noise predictable."""
        return self._session.randomness.private

    @property
    def steps(self) -> int:
        """Steps taken so far."""
        return self._session.step

    def epsilon(self, delta: float | None = None, *, group: str | int | None = None) -> float:
        """ε of the steps charged so far at `delta` (the budget's by default), an upper bound. Reading it changes nothing.

        For a run that was stopped because of what somebody saw, the guarantee is the ε of the whole plan: `statement()`.

        Args:
            group: for the members of a group of the budget, by its name; or a number m, for m units that are added or removed together,
                such as a family. By default for everybody, one by one.
        """
        return self._session.account.epsilon(delta, group)

    @property
    def usable(self) -> float | None:
        """About which part of the records contributes, by the noisy count of the first steps; `None` if nothing was counted yet."""
        return self._session.usable.fraction

    def statement(self) -> dict[str, Any]:
        """The privacy statement as data."""
        return statement(self._session)

    @property
    def plan(self) -> Plan:
        """What was executed."""
        return self._session.plan

    def configuration(self) -> dict[str, Any]:
        """Everything that was decided in advance. All of it is public."""
        metric = self._session.metric
        return {
            "plan": self.plan.describe(),
            "optimizer": type(self._session.optimizer).__name__,
            "lr": self._session.initial_learning_rates,
            "versions": package_versions(),
            **({} if metric is None else {"metric": metric.name, "better": metric.better}),
        }

    def report(self, path: str | Path, *, title: str | None = None) -> Path:
        """Write one HTML page about the run, which opens anywhere; `apportion.report([one, other], path)` compares several.

        Of several ranks the first writes, here and in `save`."""
        if self._session.ranks.rank:
            return Path(path)
        from apportion.reporting import report

        return report(self, path, title=title)

    def save(self, folder: str | Path) -> Path:
        """Write the run folder. The ledger of a run that was started with `Storage(folder)` is already there.

        Of a pipeline each rank writes the weights that it has, those of its stage: stage-0.safetensors and so on."""
        root, public, rank = Path(folder), Path(folder) / "public", self._session.ranks.rank
        staged = self._session.ranks.count > 1 and not self._session.ranks.divides_records
        if rank and not staged:
            return root
        if rank == 0:
            self._save_ledger(root / LEDGER)
        with explained(public):
            public.mkdir(parents=True, exist_ok=True)
        if staged:
            _save_weights(public / f"stage-{rank}.safetensors", self._session.model.get_submodule(str(rank)))
        if rank:
            return root
        facts = self.statement() | {"written": datetime.now(UTC).isoformat(timespec="seconds")}
        if not staged:
            facts["weights_sha256"] = _save_weights(public / "weights.safetensors", self._session.model)
        if (averaged := self.averaged) is not None:
            facts["averaged_weights_sha256"] = _save_weights(public / "averaged.safetensors", averaged)
        _write_json(public / "configuration.json", self.configuration())
        replace_file(public / "plan.json", self.plan.to_json().encode())
        _write_json(public / "history.json", [entry.as_json() for entry in self.history])
        _write_json(public / "privacy.json", facts)
        replace_file(public / "privacy.md", as_markdown(facts).encode())
        self._session.write_problems(root)
        if isinstance(self.plan.recipe.people, IndividualEstimate):
            write_estimate(root, self._session)
        checkpoints = self._session.checkpoints
        # the parts of a sharded model are written by all ranks together, and not by the one that saves
        if isinstance(checkpoints, Checkpoints) and checkpoints.folder.resolve() == root.resolve():
            self._session.write_checkpoint()
        return root

    def _save_ledger(self, path: Path) -> None:
        """A copy of the charges, unless they were written there in the first place."""
        ledger, checkpoints = self._session.account.ledger, self._session.checkpoints
        if ledger.path is not None and ledger.path.resolve() == path.resolve():
            return
        if checkpoints is not None and (checkpoints.folder / LEDGER).resolve() == path.resolve():
            path.unlink(missing_ok=True)  # an older copy of this same run, from before it was resumed
        ledger.copy_to(path, self._session.account.run)  # refuses a folder that holds another run's ledger


def _save_weights(path: Path, model: nn.Module) -> str:
    """Write the weights of `model`; returns the hash of the file."""
    content = save(_without_aliases(model))
    replace_file(path, content)
    return hashlib.sha256(content).hexdigest()


def _write_json(path: Path, content: Any) -> None:
    replace_file(path, (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode())


def _without_aliases(model: nn.Module) -> dict[str, Tensor]:
    """The weights and buffers, each once: a tied parameter is stored under its first name, as safetensors demands."""
    named: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, value in model.state_dict(keep_vars=True).items():
        if id(value) not in seen:
            seen.add(id(value))
            named[name] = value.detach().clone().contiguous()
    return named
