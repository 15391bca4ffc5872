"""From a CSV file to a private model and its predictions: python examples/train_from_csv.py patients.csv

Without a file it makes up one. What the columns hold is declared here; nothing of it is looked up in the records.
"""

import sys
from pathlib import Path

import numpy as np
import torch

import apportion as ap

SCHEMA = ap.tables.Schema(
    {
        "age": {"range": (18, 90)},
        "sex": {"categories": ["M", "F"]},
        "dose": {"range": (0, 10), "missing": True},
        "outcome": {"categories": ["ill", "well"]},
    }
)


def make_patients(path: Path, count: int = 3000) -> Path:
    random = np.random.default_rng(0)
    lines = ["age,sex,dose,outcome"]
    for age, dose in zip(random.uniform(18, 90, count), random.uniform(0, 10, count), strict=True):
        outcome = "ill" if (age - 54) / 10 - dose + 5 > 0 else "well"
        lines.append(
            f"{age:.1f},{random.choice(['M', 'F'])},{'' if random.random() < 0.1 else round(dose, 2)},{outcome}"
        )
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def main(path: Path, folder: Path) -> None:
    encoding = ap.tables.Encoding(SCHEMA, target="outcome")
    model = torch.nn.Sequential(torch.nn.Linear(encoding.width, 32), torch.nn.Tanh(), torch.nn.Linear(32, 2))
    budget = ap.Budget(epsilon=2.0, delta=1e-6, unit=ap.Record())
    plan = ap.plan(budget=budget, population=3000, sample_rate=0.1, steps=50)

    records = ap.tables.records(path, SCHEMA, target="outcome")
    run = ap.train(model, ap.Loss("cross-entropy"), records, plan, lr=2.0, storage=ap.Storage(folder))
    encoding.save(folder)
    print(f"ε = {run.epsilon():.2f}; the statement is in {folder / 'public' / 'privacy.md'}")

    fresh = torch.nn.Sequential(torch.nn.Linear(encoding.width, 32), torch.nn.Tanh(), torch.nn.Linear(32, 2))
    new = folder / "new.csv"
    new.write_text("age,sex,dose\n80,F,1\n25,M,9.5\n50,M,\n", encoding="utf-8")
    predictor = ap.load(folder, model=fresh)
    for name, probabilities in zip(predictor.predict(new), predictor.probabilities(new), strict=True):
        print(name, probabilities.round(3))


if __name__ == "__main__":
    given = [Path(argument) for argument in sys.argv[1:]]
    out = given[1] if len(given) > 1 else Path("runs") / "from-csv"
    out.parent.mkdir(parents=True, exist_ok=True)
    main(given[0] if given else make_patients(out.parent / "patients.csv"), out)
