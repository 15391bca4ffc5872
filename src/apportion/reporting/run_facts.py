"""What a run says of itself, read once for all documents: its statement, its configuration, and what was measured on public data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from apportion.errors import InvalidArgument
from apportion.reporting.held_out_score import HeldOutScore
from apportion.reporting.measures import Measure
from apportion.reporting.result import FILE, as_number, read_json, read_results
from apportion.reporting.statements import FALSE_POSITIVE_RATES, bound_guesses, bound_true_positives

CURATOR, PUBLISHER, TRAINER = "the data curator", "whoever publishes the model", "whoever chose the settings"
"""Who knows what a run cannot know."""
_FIX = "Pass the folder of a private run of `apportion train`, or what train gives back"


@dataclass(frozen=True)
class RunFacts:
    """Everything that documents are made of.

    Args:
        statement: of the run (public/privacy.json).
        configuration: everything that was decided in advance.
        score: the last one on data declared public, by the metric that the configuration names; `None` if none was measured.
        name: of the run's folder.
        data, model: what they were called on the command line, where that is kept.
    """

    statement: Mapping[str, Any]
    configuration: Mapping[str, Any]
    score: float | None = None
    name: str | None = None
    data: str | None = None
    model: str | None = None

    @property
    def measure(self) -> Measure:
        """What the score is."""
        return Measure.of(self.configuration)

    @property
    def shown_score(self) -> str:
        """The score with its name, as a sentence has it."""
        return f"{self.measure.name} {self.measure.show(self.score, 2)}"

    @property
    def held_out(self) -> HeldOutScore | None:
        """The noisy score of held-out records; `None` if none were."""
        return HeldOutScore.of(self.statement)

    @property
    def shared(self) -> Mapping[str, Any] | None:
        """What the ledger of the data set promises for all runs together; `None` if the run has one of its own."""
        found: Mapping[str, Any] | None = self.statement.get("data_set")
        return found

    def promises(self) -> Iterator[tuple[str, float, float]]:
        """(for whom, ε, δ): for everybody, for each group, and for all runs on the data set together."""
        facts = self.statement
        yield f"this run, any {facts['unit']}", facts["epsilon"], facts["delta"]
        for group in facts.get("groups") or ():
            yield f"this run, group {group['name']}", group["epsilon"], facts["delta"]
        if shared := self.shared:
            yield f"all runs on {shared['name']}, together", shared["limit_epsilon"], shared["limit_delta"]


def attacker_limits(epsilon: float, delta: float) -> dict[str, float]:
    """What (ε, δ) leaves to an attacker who knows all but whether one record was used; see `statements.py`."""
    recognised = {
        f"recognised_at_false_positive_rate_{rate:g}": bound_true_positives(epsilon, delta, rate)
        for rate in FALSE_POSITIVE_RATES
    }
    return {"right_guesses": bound_guesses(epsilon, delta), **recognised}


def read_facts(source: Any) -> RunFacts:
    """The facts of a run: of what `train` gives back, or of its folder. Refused if it is none, or a damaged one.

    Args:
        source: a run, or the folder of one.
    """
    if isinstance(source, (str, Path)):
        found = _read_folder(Path(source))
    elif hasattr(source, "statement") and hasattr(source, "configuration"):
        history = [entry.as_json() for entry in source.history]
        configuration = source.configuration()
        found = RunFacts(source.statement(), configuration, _last_score(history, configuration))
    else:
        raise InvalidArgument("run", type(source).__name__, "it is not a run", _FIX)
    _require_statement(found, source)
    return found


def _read_folder(folder: Path) -> RunFacts:
    public = folder / "public"
    statement, configuration, history = (
        read_json(public / f"{name}.json", _FIX) for name in ("privacy", "configuration", "history")
    )
    if not isinstance(statement, Mapping) or not isinstance(configuration, Mapping) or not isinstance(history, list):
        raise InvalidArgument("run", str(folder), "its files do not hold a run", _FIX)
    data = model = None
    if (folder / FILE).is_file():  # of the command line
        first = read_results(folder).runs[0]
        data, model = first.data, first.model
    return RunFacts(statement, configuration, _last_score(history, configuration), folder.resolve().name, data, model)


def _last_score(history: list[Any], configuration: Mapping[str, Any]) -> float | None:
    name = f"test_{Measure.of(configuration).name}"
    measured = (as_number(entry.get(name)) for entry in reversed(history) if isinstance(entry, Mapping))
    return next((one for one in measured if one is not None), None)


def _require_statement(facts: RunFacts, source: Any) -> None:
    """Refuse a statement that lacks what every document says, or that a run of another kind wrote."""
    shown = str(source) if isinstance(source, (str, Path)) else type(source).__name__
    if "method" in facts.statement:  # of teachers and votes
        reason = f"it holds another kind of run ({facts.statement['method']}), which has its own page public/privacy.md"
        raise InvalidArgument("run", shown, reason, _FIX)
    numbers = ("epsilon", "delta", "sample_rate", "population", "steps_taken", "steps_planned")
    texts = ("unit", "neighbours", "accountant", "validity", "sampling", "randomness", "ledger")
    wrong = [name for name in numbers if as_number(facts.statement.get(name)) is None]
    wrong += [name for name in texts if not isinstance(facts.statement.get(name), str)]
    wrong += [name for name in ("covered", "not_covered") if not isinstance(facts.statement.get(name), list)]
    wrong += [name for name in ("clip", "noise", "versions") if not isinstance(facts.statement.get(name), Mapping)]
    wrong += [] if isinstance(facts.statement.get("private"), bool) else ["private"]
    held = facts.statement.get("holdout")
    if held is not None and (not isinstance(held, Mapping) or as_number(held.get("epsilon")) is None):
        wrong.append("the ε of holdout")
    if wrong:
        raise InvalidArgument("run", shown, f"its statement lacks {', '.join(wrong)}", "Restore public/privacy.json")
