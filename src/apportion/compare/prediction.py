"""A trained model with the encoding, or the features, that it was trained with, read from a run folder: what predicts new records."""

from __future__ import annotations

import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from apportion.compare.feature_prediction import FILE as FEATURES
from apportion.compare.feature_prediction import ArrayEncoding, output_count, read_features
from apportion.curator.foreign_code import contain_errors, watch_signals
from apportion.curator.gradients.module_state import ModuleState
from apportion.errors import InvalidArgument
from apportion.tables.encoding import FILE, Encoding, read_encoding

if TYPE_CHECKING:
    from apportion.compare.resolve import Subject
    from apportion.strategies.recipes import Recipe

WEIGHTS = (Path("public") / "averaged.safetensors", Path("public") / "weights.safetensors")
"""The weights that predict: the averaged ones, where they are kept, because they are what was evaluated."""


@dataclass(frozen=True, eq=False)
class Predictor:
    """A trained model and how new records are read for it: what `apportion.load` gives back.

    Args:
        encoding: of a table the schema and the target; of a model on features the shape of its inputs.
        model: with the trained weights, ready to predict; a model on features begins with these.
    """

    encoding: Encoding | ArrayEncoding
    model: nn.Module

    def outputs(self, data: Any) -> NDArray[np.float64]:
        """What the model answers for each record, alone: a score for each class, or a number. NaN for a row that cannot be read.

        A record is never computed together with others: their number and order would move its last digits.

        Args:
            data: the path of a CSV or Parquet file, or a pandas or polars frame, which need not have the target; for a model on
                features a .npy file, an array or a tensor.
        """
        found = self.encoding.read_inputs(data)
        answers = self.answer(found.inputs)
        answers[found.broken] = np.nan
        return answers

    def answer(self, inputs: NDArray[Any]) -> NDArray[np.float64]:
        """The model's outputs for encoded records, each alone: whatever the model keeps of a record does not reach the next, and one on
        which it fails has NaN and ends nothing."""
        answers = np.full((len(inputs), self.encoding.outputs), np.nan)
        state = ModuleState(self.model)
        with torch.no_grad(), torch.random.fork_rng(devices=[]), warnings.catch_warnings(), watch_signals():
            warnings.simplefilter("ignore")  # one that a record causes would tell of it
            for place, one in enumerate(torch.from_numpy(inputs)):
                with contain_errors():
                    state.restore()
                    torch.default_generator.manual_seed(0)
                    answers[place] = self.model(one[None])[0].double().reshape(-1).numpy()
            state.restore()
        return answers

    def probabilities(self, data: Any) -> NDArray[np.float64]:
        """The probability of each class, in the order of `encoding.classes`: softmax of the outputs."""
        if self.encoding.classes is None:
            reason = "its target is a number, which has no probabilities"
            raise InvalidArgument("run", self.encoding.target, reason, "Use predict")
        return softmax(self.outputs(data))

    def predict(self, data: Any) -> list[str | None] | list[float | None]:
        """The name of the likeliest class of each record, or its number in the declared range; `None` for a row that cannot be read."""
        return self.name(self.outputs(data))

    def name(self, outputs: NDArray[np.float64]) -> list[str | None] | list[float | None]:
        """From outputs to classes or numbers."""
        readable = np.asarray(np.isfinite(outputs).all(axis=1))
        if (classes := self.encoding.classes) is not None:
            places = np.where(readable, np.nan_to_num(outputs).argmax(axis=1), -1)
            return [classes[place] if place >= 0 else None for place in places]
        assert isinstance(self.encoding, Encoding)  # arrays have classes
        numbers = self.encoding.to_number(np.clip(outputs[:, 0], 0, 1))
        return [float(one) if there else None for one, there in zip(numbers, readable, strict=True)]


def softmax(outputs: NDArray[np.float64]) -> NDArray[np.float64]:
    """e^{o_j}/Σ_k e^{o_k} for each row."""
    powers = np.exp(outputs - outputs.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def save_encoding(folder: Path, subject: Subject, recipe: Recipe, activation: str | None) -> None:
    """Write into a run folder how its table was encoded, and how its model is built."""
    if subject.encoding is not None:
        temper = None if recipe.model is None else asdict(recipe.model)
        subject.encoding.save(folder, model=subject.model_name, activation=activation, temper=temper)


def load(folder: Path | str, *, model: nn.Module | None = None) -> Predictor:
    """The trained model of a run folder, with the encoding of its table or with its features, to predict new records.

    Args:
        folder: of a run of `apportion train --schema` or `--features`; or of `apportion.train`, with the encoding saved by
            `Encoding.save(folder)`.
        model: a fresh model of the same form, if the folder does not say how to build it. It gets the trained weights.

    Returns:
        A `Predictor`: `predict(data)`, `probabilities(data)`, `outputs(data)`.

    Guarantee: none is needed. It reads what was released, and the records that are to be predicted.

    Examples:
        patients = apportion.load("runs/mlp-patients").predict("new.csv")
    """
    if (Path(folder) / FEATURES).is_file():
        return _load_on_features(Path(folder), model)
    encoding, built = read_encoding(folder)
    fresh = model if model is not None else _build(Path(folder), encoding, built)
    _load_weights(Path(folder), fresh, (encoding.width,), encoding.outputs)
    return Predictor(encoding, fresh.eval())


def _load_on_features(folder: Path, model: nn.Module | None) -> Predictor:
    """A head behind its features, which are computed from new inputs as they were from those that it was trained on."""
    extractor, head = read_features(folder, model)
    encoding = ArrayEncoding(extractor.shape, extractor.dtype, output_count(extractor, head))
    _load_weights(folder, head, (extractor.width,), encoding.outputs)
    return Predictor(encoding, nn.Sequential(extractor, head).eval())


def _load_weights(folder: Path, fresh: nn.Module, shape: tuple[int, ...], outputs: int) -> None:
    """Put the weights of a finished run into a fresh model."""
    path = next((folder / one for one in WEIGHTS if (folder / one).is_file()), None)
    if path is None:
        reason = "it holds no weights of a finished run"
        raise InvalidArgument("run", str(folder), reason, "Name the folder of a run that has ended")
    try:
        weights = load_file(path)
    except (SafetensorError, OSError, ValueError):
        raise InvalidArgument("run", str(path), "its weights cannot be read", "Restore them from a backup") from None
    _require_same_form(path, fresh, weights, shape, outputs)


def _build(folder: Path, encoding: Encoding, built: dict[str, Any]) -> nn.Module:
    from apportion.compare.table_models import build_table_model
    from apportion.models.temper import temper

    name, activation, tempering = built.get("model"), built.get("activation"), built.get("temper")
    if not isinstance(name, str):
        reason = "it does not say how its model is built"
        raise InvalidArgument("run", str(folder), reason, "Pass a fresh one: apportion.load(folder, model=...)")
    model = build_table_model(name, encoding, activation)
    try:
        return model if tempering is None else temper(model, **tempering)
    except TypeError:
        raise InvalidArgument("run", str(folder), f"{FILE} is damaged", "Restore it from a backup") from None


def _require_same_form(
    path: Path, model: nn.Module, weights: dict[str, torch.Tensor], shape: tuple[int, ...], outputs: int
) -> None:
    """Load the weights, or refuse those of another model."""
    try:
        lacking, unknown = model.load_state_dict(weights, strict=False)
        tied = {name for name, _ in model.named_parameters()} | {name for name, _ in model.named_buffers()}
        if unknown or tied & set(lacking):
            raise RuntimeError
        with torch.no_grad():
            found = model.eval()(torch.zeros(1, *shape)).shape
    except (RuntimeError, TypeError, ValueError):
        found = None
    if found is None or tuple(found) != (1, outputs):
        reason = "its weights are those of another model than the folder describes"
        raise InvalidArgument("run", str(path), reason, "Name the folder of a run that was not changed")
