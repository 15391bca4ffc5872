"""Made-up results for the tests of the report: of a comparison, and of a whole table of a paper. No figure here was measured."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

from plotly.offline import get_plotlyjs

from apportion.reporting import RunResult, write_report

STEPS, EVERY = 200, 20
RECIPES: dict[str, Any] = {
    "non-private": (0.971, None, None),
    "constant": (0.902, {"kind": "Constant", "threshold": 1.0}, {"kind": "Constant", "multiplier": 1.31}),
    "lin-decay": (0.921, {"kind": "Decay", "start": 0.5, "power": 0.5}, {"kind": "Constant", "multiplier": 1.31}),
    "noise-falls": (0.913, {"kind": "Constant", "threshold": 0.8}, {"kind": "Geometric", "start": 1.9, "rate": 0.996}),
}


def make_run(
    recipe: str, seed: int, *, target: float = 3.0, data: str = "digits", seeded: bool = False
) -> dict[str, Any]:
    """One run as a comparison describes it."""
    final, clip, noise = RECIPES[recipe]
    rng = random.Random(f"{recipe}{seed}{target}{data}")
    private = clip is not None
    final = final - (0.03 / target if private else 0) + rng.uniform(-0.008, 0.008)
    history = []
    for step in range(1, STEPS + 1):
        measured = step == 1 or step % EVERY == 0
        accuracy = 0.1 + (final - 0.1) * (1 - math.exp(-step / 22)) / (1 - math.exp(-STEPS / 22)) + rng.gauss(0, 0.015)
        falls = 1.9 * 0.996**step if recipe == "noise-falls" else 1.31
        history.append(
            {
                "step": step,
                "epoch": 1 + step // 10,
                "epsilon": (target - 0.003) * math.sqrt(step / STEPS) if private else None,
                "clip": (0.5 / math.sqrt(step) if recipe == "lin-decay" else clip.get("threshold")) if clip else None,
                "noise_multiplier": falls if private else None,
                "test_accuracy": (final if step == STEPS else accuracy) if measured else None,
            }
        )
    return {
        "recipe": recipe,
        "data": data,
        "model": "mlp",
        "epsilon": target - 0.003 if private else None,
        "target_epsilon": target if private else None,
        "delta": 1e-5 if private else None,
        "unit": "record" if private else None,
        "neighbours": "add or remove one record" if private else None,
        "test_accuracy": final,
        "steps": STEPS,
        "draws": STEPS,
        "seed": seed,
        "seconds": 12.3 + seed,
        "sample_rate": 0.1,
        "expected_batch_size": 143.7,
        "population": 1437,
        "lr": 1.0,
        "optimizer": "sgd",
        "private": private and not seeded,
        "accountant": "PLD (dp-accounting)" if private else None,
        "clip": clip,
        "noise": noise,
        "statement": (
            f"Whatever is computed from the released model, the probability of any result changes by at most a factor e^{target:g} "
            f"(plus δ = 1e-05), when one record is added to the training data or removed from it. This held for all {STEPS} steps."
            if private
            else None
        ),
        "history": history,
    }


def make_results(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """The content of results.json."""
    return {
        "version": 1,
        "title": "Three recipes on digits",
        "created": "2026-05-01T12:00:00Z",
        "apportion": "0.1.0",
        "versions": {"python": "3.11.9", "torch": "2.4.0"},
        "runs": runs,
    }


def comparison() -> dict[str, Any]:
    """Three private recipes and non-private training, two seeds each; one of the recipes is seeded."""
    return make_results(
        [make_run(recipe, seed, seeded=recipe == "noise-falls") for recipe in RECIPES for seed in (0, 1)]
    )


# The experiment of a table: its label, data, and for each recipe what the imaginary paper reports and of which recipe it is a control.
EXPERIMENTS = (
    (
        "mnist, ε = 1.2",
        "mnist",
        1.2,
        {"constant": (0.9, None), "lin-decay": (0.91, None), "noise-falls": (None, "lin-decay")},
    ),
    ("mnist, ε = 2.93", "mnist", 2.93, {"non-private": (0.98, None), "lin-decay": (0.88, None)}),
    ("fashion-mnist, ε = 2.93", "fashion-mnist", 2.93, {"constant": (0.84, None), "lin-decay": (0.93, None)}),
)


def paper_table() -> dict[str, Any]:
    """A table of an imaginary paper: three experiments, a control, thresholds by layer, an ε that is claimed too small."""
    runs = []
    for label, data, target, recipes in EXPERIMENTS:
        for recipe, (paper, control_of) in recipes.items():
            for seed in (0, 1, 2):
                run = make_run(recipe, seed, target=target, data=data, seeded=True)
                run |= {"experiment": label, "paper_accuracy": paper, "control_of": control_of, "momentum": 0.9}
                run |= {
                    "paper_epsilon": None
                    if recipe == "non-private"
                    else 0.87 * target
                    if recipe == "constant"
                    else target
                }
                run |= {"lr_schedule": None, "commit": "0123abc", "versions": {"torch": "2.4.0"}}
                groups = {("constant", "fashion-mnist"): (0.5, 1.0), ("lin-decay", data): (0.4, 0.7, 1.0, 1.6)}
                for entry in run["history"] if (recipe, data) in groups else ():
                    entry["clip"] = [entry["clip"] * factor for factor in groups[recipe, data]]
                runs.append(run)
    return make_results(runs) | {
        "title": "Made-up figures in the shape of a table",
        "name": "made-up-table",
        "source": "Nobody et al., Table 2 (made up)",
        "note": "None of these figures was measured or published: they are here to test the report.",
    }


def typed(runs: list[dict[str, Any]]) -> list[RunResult]:
    """Runs as files have them, read."""
    return [RunResult.from_json(run) for run in runs]


def plotly_source() -> str:
    """The script that every page embeds."""
    return str(get_plotlyjs())


def page_of(results: dict[str, Any], folder: Path) -> str:
    """The page without plotly.js, whose own source holds all kinds of strings."""
    return write_report(results, folder / "report.html").read_text(encoding="utf-8").replace(plotly_source(), "")
