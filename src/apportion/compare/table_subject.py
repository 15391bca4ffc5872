"""A table of one's own as the subject of a run: its schema, its target, and public records of the same form to test on."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError, field_validator

from apportion import validate
from apportion.budget import Public
from apportion.compare.resolve import Subject, is_own
from apportion.compare.table_models import DEFAULT_MODEL, build_table_model
from apportion.domain import Domain
from apportion.errors import InvalidArgument
from apportion.tables.encoding import EncodedTable, Encoding
from apportion.tables.schema import Schema
from apportion.tables.table_files import is_table

if TYPE_CHECKING:
    from torch import Tensor

    from apportion.training.named_losses import Loss


class TableChoice(BaseModel):
    """What an experiment says about a table.

    Args:
        target: the column to be predicted.
        declared: the schema, `schema` in an experiment file: there, or the path of a TOML file, which is read once. So a run that goes on
            reads its records as it began to.
        path: of the table, if the name of the data does not say it.
        test: a table of the same form that is declared public.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    target: str
    declared: dict[str, Any] = Field(validation_alias=AliasChoices("schema", "declared"))
    path: Path | None = None
    test: Path | None = None

    @field_validator("declared", mode="before")
    @classmethod
    def _read(cls, value: Any) -> dict[str, Any]:
        schema = Schema.read(value) if isinstance(value, (str, Path)) else Schema.from_dict(value)
        return schema.to_dict()

    def encoding(self) -> Encoding:
        """The schema and the target."""
        return Encoding(Schema.from_dict(self.declared), self.target)

    def default_loss(self) -> dict[str, Any]:
        """Cross-entropy for classes, with the weights that the schema declares, and the squared error for a number."""
        encoding = self.encoding()
        return {"name": "mse"} if encoding.classes is None else {"weights": encoding.class_weights}

    def fitting_loss(self, name: str, weights: tuple[float, ...] | None) -> dict[str, Any]:
        """A loss that somebody chose, with the weights that the schema declares; refused if it is not about such a target.

        `bce` of a logit o₁ − o₀ is `cross-entropy` of the two outputs o₀ and o₁, number for number: that is what two classes get.
        """
        encoding = self.encoding()
        if is_own(name):
            if encoding.class_weights is not None:
                reason = "the schema declares loss.weights, and your own function is the loss"
                raise InvalidArgument("loss", name, reason, "Weight it there, and take them out of the schema")
            return {"name": name, "weights": weights}
        classes = len(encoding.classes or ())
        fitting = ("cross-entropy", "bce") if classes == 2 else ("cross-entropy",) if classes else ("mse", "huber")
        target = f"the target {self.target!r} is {f'one of {classes} categories' if classes else 'a number of a range'}"
        validate.known("loss", name, fitting, target)
        chosen = encoding.class_weights if weights is None else weights
        return {"name": "cross-entropy" if name == "bce" else name, "weights": chosen}

    def loss(self) -> Loss:
        """The loss of which nobody has said anything."""
        from apportion.training.named_losses import Loss

        chosen = self.default_loss()
        return Loss(chosen.get("name", "cross-entropy"), chosen.get("weights"))


def choose_table(values: Mapping[str, Any] | None) -> TableChoice | None:
    """The choice, or one clear line about what is wrong with it; `None` of nothing."""
    try:
        return None if values is None else TableChoice(**values)
    except ValidationError as error:
        first = error.errors()[0]
        if isinstance(ours := first.get("ctx", {}).get("error"), InvalidArgument):
            raise ours from None
        place = ".".join(map(str, first["loc"]))
        raise InvalidArgument(place, first.get("input"), first["msg"].lower(), "Correct this setting") from None


def require_table_choice(data_name: str, table: object) -> None:
    """Refuse a table without a schema, and a schema without a table."""
    if is_table(data_name) and table is None:
        reason = f"what the columns of {data_name} hold, and which is the target, must be declared"
        raise InvalidArgument(
            "schema",
            None,
            reason,
            "Pass --schema patients.toml and --target, as docs/tables.md says; a command without them reads no tables",
        )
    if table is not None and not is_table(data_name):
        reason = "a schema describes the columns of a CSV or Parquet file"
        raise InvalidArgument("data", data_name, reason, "Pass --data patients.csv, or leave --schema and --target out")


def table_subject(data_name: str, model_name: str | None, table: TableChoice) -> Subject:
    """Read the table and find the model."""
    encoding = table.encoding()
    test = None if table.test is None else Public(_as_pair(encoding.read_public(table.test)))
    found = encoding.read(table.path or Path(data_name))
    name = model_name or DEFAULT_MODEL
    return Subject(
        data_name=Path(data_name).name,
        model_name=name,
        train=_as_pair(found),
        test=test,
        population=None,
        build=partial(build_table_model, name, encoding),
        domain=None if encoding.classes is None else Domain(classes=len(encoding.classes)),
        problems=found.problems,
        encoding=encoding,
        table=found,
    )


def training_part(found: EncodedTable) -> dict[str, Any]:
    """What changes of a subject if only some of its records are trained on."""
    return {"train": _as_pair(found), "table": found}


def _as_pair(found: EncodedTable) -> tuple[Tensor, Tensor]:
    import torch

    assert found.targets is not None
    return torch.from_numpy(found.inputs), torch.from_numpy(found.targets)
