"""Runs what is missing of a study, several cells at a time, and keeps each as it ends."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from functools import partial
from pathlib import Path
from typing import Any

from apportion import validate
from apportion.compare.processes import explain_broken_pool, process_pool
from apportion.compare.resolve import resolve
from apportion.errors import ApportionError, DataNotFound, InvalidArgument
from apportion.reporting.result import RunResult
from reproduction.study.paper_experiment import Cell
from reproduction.study.run_cell import run_cell
from reproduction.study.study_results import StudyResults

Show = Callable[[Cell, RunResult], None]
Outcome = RunResult | ApportionError


def run_study(
    results: StudyResults,
    *,
    only: str = "",
    processes: int = 1,
    data_dir: Path | None = None,
    show: Show = lambda cell, run: None,
) -> StudyResults:
    """Run every cell that is missing and whose data is available. An interruption loses only the cells that were running; a refused
    cell does not stop the others.

    Args:
        only: run only the cells whose "experiment: recipe, seed" contains this text.
    """
    # one seed of everything first, so that an interrupted table has all of its rows
    wanted = sorted((cell for cell in results.missing if only in cell.title), key=lambda cell: cell.seed or 0)
    results.without_data = _without_data(results.missing, data_dir)
    cells = [cell for cell in wanted if not (cell.needs_data and cell.experiment.data in results.without_data)]
    for cell, outcome in _outcomes(cells, processes, data_dir):
        if isinstance(outcome, ApportionError):
            results.refused[cell.place] = " ".join(str(outcome).split())
            continue
        results.add(cell, outcome)
        show(cell, outcome)
    results.save()
    return results


def recheck(
    results: StudyResults,
    count: int,
    *,
    only: str = "",
    processes: int = 1,
    data_dir: Path | None = None,
    show: Show = lambda cell, run: None,
) -> list[dict[str, Any]]:
    """Run some kept cells again, drawn at random, and compare.

    The same seed must give exactly the same accuracies and ε on the same kind of processor with the same versions. Another processor
    may add up in another order, which changes about the twelfth digit of ε and of the noise.
    """
    validate.whole("recheck", count, "so many cells are run again", "Use 3")
    kept = [cell for cell in results.study.cells if cell.place in results.runs and only in cell.title]
    if not kept:
        raise InvalidArgument("recheck", count, "no such cell of this study has been run", "Run the study first")
    findings = []
    for cell, run in _outcomes(random.sample(kept, min(count, len(kept))), processes, data_dir):
        if isinstance(run, ApportionError):
            raise run
        show(cell, run)
        before = results.runs[cell.place]
        experiment, recipe, seed = cell.place
        findings.append(
            {
                "experiment": experiment,
                "recipe": recipe,
                "seed": seed,
                "same": run.history == before.history,
                "test_accuracy": run.test_accuracy,
                "test_accuracy_before": before.test_accuracy,
                "epsilon": run.epsilon,
                "epsilon_before": before.epsilon,
            }
        )
    return findings


def _without_data(cells: Sequence[Cell], data_dir: Path | None) -> dict[str, str]:
    """Which data is missing or incomplete, and how to get it."""
    found = {}
    for name, cell in {cell.experiment.data: cell for cell in cells if cell.needs_data}.items():
        declared = cell.experiment.sampling().population
        try:
            held = resolve(name, cell.experiment.model, data_dir).population
        except DataNotFound as error:
            found[name] = " ".join(str(error).split())
        else:
            if held not in (None, declared) and cell.experiment.unit != "user":
                found[name] = f"{held:,} records are there, and the study is about {declared:,}"
    return found


def _outcomes(cells: Sequence[Cell], processes: int, data_dir: Path | None) -> Iterator[tuple[Cell, Outcome]]:
    """Each cell with its run, or with the reason for its refusal, as they end. The number of processes changes no result."""
    processes = validate.whole("processes", processes, "they run the cells", "Use 1 to have no others")
    work = partial(_outcome, run=run_cell, data_dir=data_dir)
    if processes == 1 or len(cells) < 2:
        for cell in cells:
            yield cell, work(cell)
        return
    pool = process_pool(processes)
    waiting: dict[Future[Outcome], Cell] = {pool.submit(work, cell): cell for cell in cells}
    try:
        with explain_broken_pool(processes, "study"):
            while waiting:
                done, _ = wait(waiting, return_when=FIRST_COMPLETED)
                for future in done:
                    yield waiting.pop(future), future.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _outcome(cell: Cell, run: Callable[..., RunResult], data_dir: Path | None) -> Outcome:
    try:
        return run(cell, data_dir=data_dir)
    except ApportionError as error:
        return error
