"""`apportion predict`: classes or numbers for new records, by the model of a run."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from apportion.cli import options
from apportion.cli.options import option
from apportion.cli.output import print_error_stream

if TYPE_CHECKING:
    from apportion.compare.prediction import Predictor


def predict(
    run: Annotated[Path, typer.Argument(help="The folder of a run that was trained on a table, or with --features.")],
    data: Annotated[
        Path,
        typer.Argument(
            help="A CSV or Parquet file with new records, without a target or with it; for features a .npy file."
        ),
    ],
    out: Annotated[Path | None, option("A CSV file for the predictions.", "standard output")] = None,
    as_json: options.Json = False,
) -> None:
    """Predict the target of new records, with the schema that the model was trained with.

    One line for each record: the class with the largest probability and the probability of each class, or a number. A value that breaks
    the schema is treated as in training. A row with another number of fields than the header has no prediction.

    Example: apportion predict runs/default-patients.csv new.csv --out predictions.csv
    """
    from apportion.compare.prediction import load
    from apportion.training.checkpoint import replace_file

    predictor = load(run)
    header, rows = _predictions(predictor, data)
    if out is not None:
        replace_file(out, _as_csv(header, rows).encode())
        print_error_stream(f"Predictions: {out}")
    if as_json:
        content: dict[str, Any] = {
            "run": str(run),
            "data": str(data),
            "target": header[0],
            "classes": predictor.encoding.classes,
        }
        content |= {"predictions": [row[0] for row in rows], "out": None if out is None else str(out)}
        content |= {"probabilities": [row[1:] for row in rows]} if predictor.encoding.classes else {}
        typer.echo(json.dumps(content))
    elif out is None:
        typer.echo(_as_csv(header, rows), nl=False)


def _predictions(predictor: Predictor, data: Path) -> tuple[list[str], list[list[Any]]]:
    from apportion.compare.prediction import softmax

    outputs, target, classes = predictor.outputs(data), predictor.encoding.target, predictor.encoding.classes
    found = predictor.name(outputs)
    if classes is None:
        return [target], [[one] for one in found]
    probabilities = [[round(one, 6) if one == one else None for one in row] for row in softmax(outputs).tolist()]
    header = [target, *(f"probability of {name}" for name in classes)]
    return header, [[one, *row] for one, row in zip(found, probabilities, strict=True)]


def _as_csv(header: list[str], rows: list[list[Any]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(
        [header, *(["" if one is None else one for one in row] for row in rows)]
    )
    return text.getvalue()
