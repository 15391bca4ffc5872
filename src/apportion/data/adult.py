"""Adult (Census Income): categories and scales from its public documentation, never from the rows.

Each row becomes a vector in [0, 1]: six scaled numbers, then eight categories as one-hot vectors. The last place of each
category stands for "?" and for anything that the documentation does not list.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch

from apportion.data import files, tensors
from apportion.data.entry import DataSet, Entry

# Column → largest value to be expected. The two capital columns span four decades and are scaled by their logarithm.
NUMBERS = {0: 100, 2: 1_500_000, 4: 16, 10: 100_000, 11: 5_000, 12: 100}
LOGARITHMIC = (10, 11)

# Column → the values listed in adult.names.
CATEGORIES = {
    1: "Private Self-emp-not-inc Self-emp-inc Federal-gov Local-gov State-gov Without-pay Never-worked",
    3: "Bachelors Some-college 11th HS-grad Prof-school Assoc-acdm Assoc-voc 9th 7th-8th 12th Masters 1st-4th 10th "
    "Doctorate 5th-6th Preschool",
    5: "Married-civ-spouse Divorced Never-married Separated Widowed Married-spouse-absent Married-AF-spouse",
    6: "Tech-support Craft-repair Other-service Sales Exec-managerial Prof-specialty Handlers-cleaners "
    "Machine-op-inspct Adm-clerical Farming-fishing Transport-moving Priv-house-serv Protective-serv Armed-Forces",
    7: "Wife Own-child Husband Not-in-family Other-relative Unmarried",
    8: "White Asian-Pac-Islander Amer-Indian-Eskimo Other Black",
    9: "Female Male",
    13: "United-States Cambodia England Puerto-Rico Canada Germany Outlying-US(Guam-USVI-etc) India Japan Greece South "
    "China Cuba Iran Honduras Philippines Italy Poland Jamaica Vietnam Mexico Portugal Ireland France "
    "Dominican-Republic Laos Ecuador Taiwan Haiti Columbia Hungary Guatemala Nicaragua Scotland Thailand Yugoslavia "
    "El-Salvador Trinadad&Tobago Peru Hong Holand-Netherlands",
}
COLUMNS = 15


def _places() -> tuple[dict[int, dict[str, int]], int]:
    """Where each category is in the vector, and the width of the vector."""
    start, places = len(NUMBERS), {}
    for column, listed in CATEGORIES.items():
        values = [*listed.split(), "?"]
        places[column] = {value: start + offset for offset, value in enumerate(values)}
        start += len(values)
    return places, start


PLACES, WIDTH = _places()


def read(entry: Entry, folder: Path) -> DataSet:
    """adult.data trains, adult.test tests."""
    train_path, test_path = files.required(folder, "adult.data"), files.required(folder, "adult.test")
    return entry.dataset(_part(entry, train_path), _part(entry, test_path), folder)


def encode(fields: list[str]) -> np.ndarray[Any, Any]:
    """One row as a vector; it depends on this row alone."""
    vector = np.zeros(WIDTH, dtype=np.float32)
    for place, (column, largest) in enumerate(NUMBERS.items()):
        value = float(fields[column])
        scaled = math.log1p(max(value, 0)) / math.log1p(largest) if column in LOGARITHMIC else value / largest
        vector[place] = min(max(scaled, 0), 1)
    for column, places in PLACES.items():
        vector[places.get(fields[column], places["?"])] = 1
    return vector


def _part(entry: Entry, path: Path) -> tensors.Pair:
    vectors, labels = [], []
    for number, line in enumerate(files.read_text(path).split("\n"), start=1):
        if not line.strip() or line.startswith("|"):
            continue
        fields = [field.strip() for field in line.split(",")]
        label = fields[-1].rstrip(".")
        try:
            if len(fields) != COLUMNS or label not in ("<=50K", ">50K"):
                raise ValueError
            vectors.append(encode(fields))
        except ValueError:
            reason = f"a line needs {COLUMNS} fields that end in <=50K or >50K"
            raise files.unfit(f"{path}:{number}", reason, "Correct it") from None
        labels.append(int(label == ">50K"))
    inputs = torch.from_numpy(np.stack(vectors)) if vectors else torch.empty((0, WIDTH))
    return tensors.pair(entry, inputs, labels, path)
