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
from apportion.errors import InvalidArgument

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
    out: Annotated[Path | None, option("A new CSV file for the predictions.", "standard output")] = None,
    id_column: Annotated[
        str | None,
        option(
            "A column of the file that is copied beside the predictions, to join them.",
            "the schema's id, or unit, if the file has it",
            name="--id",
        ),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Predict the target of new records, with the schema that the model was trained with.

    One line for each record: the class with the largest probability and the probability of each class, or a number. A value that breaks
    the schema is treated as in training. A row with another number of fields than the header, or none of whose numbers can be read, has no
    prediction.

    Example: apportion predict runs/default-patients.csv new.csv --out predictions.csv
    """
    from apportion.compare.prediction import load
    from apportion.training.checkpoint import replace_file

    _require_new_csv(out)
    _require_finished(run)
    predictor = load(run)
    header, rows = _predictions(predictor, data)
    target, (column, ids) = header[0], _read_ids(predictor, data, id_column)
    if out is not None:
        replace_file(out, _as_csv(header, rows, column, ids).encode())
        print_error_stream(f"Predictions: {out}")
    if as_json:
        content: dict[str, Any] = {
            "run": str(run),
            "data": str(data),
            "target": target,
            "classes": predictor.encoding.classes,
        }
        content |= {"predictions": [row[0] for row in rows], "out": None if out is None else str(out)}
        content |= {} if column is None else {"id": column, "ids": ids}
        content |= {"probabilities": [row[1:] for row in rows]} if predictor.encoding.classes else {}
        typer.echo(json.dumps(content))
    elif out is None:
        typer.echo(_as_csv(header, rows, column, ids), nl=False)


def _require_new_csv(out: Path | None) -> None:
    """Before anything is computed: predictions are a CSV file, and replace nothing."""
    if out is None:
        return
    from apportion.reporting.export import require_suffix

    require_suffix("out", out, (".csv",))
    if out.exists():
        raise InvalidArgument("out", str(out), "there is a file already", "Choose another, or remove it")


def _require_finished(run: Path) -> None:
    """Refuse the folder of a run of a table that was interrupted: it says how it began, but not yet how its model predicts."""
    from apportion.compare.run_settings import load_settings, was_started
    from apportion.tables.encoding import FILE

    if was_started(run) and not (run / FILE).is_file() and load_settings(run).experiment.table is not None:
        reason = "its run has not ended: it was interrupted, or is still going on"
        raise InvalidArgument("run", str(run), reason, f"Go on with it: apportion train --resume {run}")


def _read_ids(predictor: Predictor, data: Path, column: str | None) -> tuple[str | None, list[str]]:
    """The column that names the records, and its cells."""
    from apportion.tables.encoding import Encoding
    from apportion.tables.table_files import read_header, read_texts

    if not isinstance(predictor.encoding, Encoding):
        if column is not None:
            raise InvalidArgument(
                "id", column, "arrays have no columns", "Leave it out: predictions come in the order of the file"
            )
        return None, []
    schema = predictor.encoding.schema
    if column is None:
        header = read_header("data", data, schema.form)
        column = next((name for name in (schema.id, schema.unit) if name in header), None)
    return column, [] if column is None else read_texts("data", data, column, schema.form)


def _predictions(predictor: Predictor, data: Path) -> tuple[list[str], list[list[Any]]]:
    from apportion.compare.prediction import softmax

    outputs, target, classes = predictor.outputs(data), predictor.encoding.target, predictor.encoding.classes
    found = predictor.name(outputs)
    if classes is None:
        return [target], [[one] for one in found]
    probabilities = [[round(one, 6) if one == one else None for one in row] for row in softmax(outputs).tolist()]
    header = [target, *(f"probability of {name}" for name in classes)]
    return header, [[one, *row] for one, row in zip(found, probabilities, strict=True)]


def _as_csv(header: list[str], rows: list[list[Any]], column: str | None, ids: list[str]) -> str:
    text = io.StringIO()
    if column is not None:
        header, rows = [column, *header], [[one, *row] for one, row in zip(ids, rows, strict=True)]
    csv.writer(text, lineterminator="\n").writerows(
        [header, *(["" if one is None else one for one in row] for row in rows)]
    )
    return text.getvalue()
