"""From a name on the command line to the thing itself: built in, or a person's own `module:function`."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from apportion import data as data_room
from apportion.budget import Public
from apportion.data import DataSet
from apportion.domain import Domain
from apportion.errors import ApportionError, InvalidArgument
from apportion.strategies.descriptions import build, describe

if TYPE_CHECKING:
    from torch import nn

    from apportion.compare.table_subject import TableChoice
    from apportion.features.extractor import Extractor
    from apportion.tables.encoding import EncodedTable, Encoding


@dataclass(frozen=True)
class Subject:
    """What is trained on what: data, and a way to build a fresh model, `build()` or `build(activation)`; who wrote each record, where that
    is known; which values records may have; and, secret, what was wrong with them when they were read. Of a table also how it is encoded,
    and its records; of features what computed them."""

    data_name: str
    model_name: str
    train: Any
    test: Public | None
    population: int | None
    build: Callable[..., nn.Module]
    writers: Any = None
    domain: Domain | None = None
    problems: Mapping[str, int] = field(default_factory=dict)
    encoding: Encoding | None = None
    table: EncodedTable | None = None
    extractor: Extractor | None = None

    @property
    def usable_train(self) -> Any:
        """The records that have a target, for training without privacy, which has no other way to leave a record out."""
        return self.train if self.table is None else tuple(part[self.table.usable] for part in self.train)


def resolve(
    data_name: str, model_name: str | None, data_dir: Path | None = None, table: TableChoice | None = None
) -> Subject:
    """Load the data and find the model. Nothing is trained.

    Args:
        table: how a CSV or Parquet file is read.
    """
    from apportion.compare import networks as models
    from apportion.compare.table_subject import require_table_choice, table_subject

    require_table_choice(data_name, table)
    if table is not None:
        return table_subject(data_name, model_name, table)
    if is_own(data_name):
        train, test = own_data(data_name)
        if model_name is None or not is_own(model_name):
            reason = "built-in models do not know the shape of your own data"
            raise InvalidArgument("model", model_name, reason, "Pass --model module:function")
        return Subject(data_name, model_name, train, test, None, partial(own_model, model_name))
    data: DataSet = data_room.load(data_name, data_dir)
    name = model_name or models.default_name(data)
    build = partial(own_model, name) if is_own(name) else partial(models.build, name, data)
    words = None if data.vocabulary is None else (0, data.vocabulary - 1)
    domain = Domain(classes=data.classes, inputs=words)
    return Subject(data_name, name, data.train, data.test, data.population, build, data.writers, domain)


def load_model(
    model_name: str, data_name: str | None, data_dir: Path | None = None, table: TableChoice | None = None
) -> nn.Module:
    """A fresh model by name; a built-in one needs data to know its inputs and classes."""
    if is_own(model_name):
        return own_model(model_name)
    return resolve(data_name or "digits", model_name, data_dir, table).build()


def load_example(
    model_name: str, data_name: str | None, data_dir: Path | None = None, table: TableChoice | None = None
) -> Any:
    """One record of the data with all values set to zero; `None` for an own model whose data was not named."""
    from apportion.curator.records import as_records

    if data_name is None and is_own(model_name):
        return None
    return as_records(resolve(data_name or "digits", model_name, data_dir, table).train).example


def is_own(name: str) -> bool:
    return ":" in name and not name.startswith("folder:")


def find_own(argument: str, name: str) -> Any:
    """What the person calls `module:function`, found from the current folder or installed."""
    module_name, _, function_name = name.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return getattr(importlib.import_module(module_name), function_name)
    except Exception as error:  # whatever the person's module does while it is imported
        fix = "Name an importable module and a function in it: module:function"
        raise InvalidArgument(argument, name, f"it cannot be imported: {error}", fix) from error


def call_own(argument: str, name: str) -> Any:
    """Call the person's function `module:function`, which needs no arguments."""
    function = find_own(argument, name)
    try:
        return function()
    except ApportionError:
        raise
    except Exception as error:
        reason = f"calling it failed with {type(error).__name__}: {error}"
        raise InvalidArgument(argument, name, reason, "It must work without arguments") from error


def own_strategy(role: str, name: str) -> dict[str, Any]:
    """A strategy as data, for a recipe: by its kind, built-in or a person's own `module:Class`, or as a `module:function` returns it."""
    from apportion.strategies.recipes.recipe import require_role

    if not is_own(name) or isinstance(find_own(role, name), type):
        return {"kind": name}
    strategy = call_own(role, name)
    require_role(role, strategy)
    described = describe(strategy)
    if build(role, described) != strategy:
        reason = f"the {type(strategy).__name__} that it returns is another one when it is built again from its settings {described}"
        raise InvalidArgument(role, name, reason, "Make its class a frozen dataclass of numbers and texts")
    return described


def own_model(name: str, activation: str | None = None) -> nn.Module:
    from torch import nn

    if activation is not None:
        reason = "your own function builds the model"
        raise InvalidArgument("activation", activation, reason, "Choose the activation there")
    model = call_own("model", name)
    if not isinstance(model, nn.Module):
        raise InvalidArgument("model", name, f"it returned a {type(model).__name__}", "Return a torch.nn.Module")
    return model


def own_data(name: str) -> tuple[Any, Public | None]:
    value = call_own("data", name)
    if isinstance(value, DataSet):
        return value.train, value.test
    if isinstance(value, tuple) and len(value) == 2 and (value[1] is None or isinstance(value[1], Public)):
        return value
    reason = "it must return (train_data, test_data), and the test data must be declared public, or be None"
    fix = "Return ((inputs, targets), apportion.Public((test_inputs, test_targets)))"
    raise InvalidArgument("data", name, reason, fix)
