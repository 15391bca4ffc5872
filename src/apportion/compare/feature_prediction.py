"""A head and the features that it was trained on, kept in a run folder: what predicts new inputs in one call."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from apportion.compare.feature_choice import FeatureChoice
from apportion.compare.feature_subject import build_head, scaled
from apportion.errors import InvalidArgument
from apportion.features.extractor import Extractor
from apportion.models.temper import temper
from apportion.training.checkpoint import replace_file

if TYPE_CHECKING:
    from apportion.compare.experiment import Experiment
    from apportion.compare.resolve import Subject
    from apportion.strategies.recipes import Recipe

FILE = Path("public") / "features.json"
"""Where a run folder keeps which features its model was trained on."""
_FORMAT = 1


@dataclass(frozen=True)
class InputArray:
    """New records as they were read; `broken` says which have no prediction whatever the model answers."""

    inputs: NDArray[Any]
    broken: NDArray[np.bool_]


@dataclass(frozen=True)
class ArrayEncoding:
    """How new records of a model on features are read: arrays of the shape that it was trained on.

    Args:
        shape, dtype: of the inputs of one record.
        outputs: one for each class.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    outputs: int
    target = "class"
    span = 1.0

    @property
    def classes(self) -> tuple[str, ...]:
        """Classes have numbers."""
        return tuple(str(number) for number in range(self.outputs))

    def read_inputs(self, source: Any) -> InputArray:
        """The records of a .npy file, an array or a tensor: (records, *shape)."""
        if isinstance(source, (str, Path)):
            try:
                source = np.load(source, allow_pickle=False)
            except (OSError, ValueError, EOFError) as error:
                reason = getattr(error, "strerror", None) or "it is not an array in NumPy's format .npy"
                raise InvalidArgument("data", str(source), f"it cannot be read: {reason}", "Name a .npy file") from None
        inputs = torch.as_tensor(source)
        wanted = f"{str(self.dtype).removeprefix('torch.')} of shape (records, {', '.join(map(str, self.shape))})"
        if tuple(inputs.shape[1:]) != self.shape or inputs.is_floating_point() != self.dtype.is_floating_point:
            found = f"{str(inputs.dtype).removeprefix('torch.')} of shape {tuple(inputs.shape)}"
            raise InvalidArgument("data", found, f"the model was trained on {wanted}", "Convert them")
        return InputArray(inputs.to(self.dtype).numpy(), np.zeros(len(inputs), dtype=bool))


def save_features(
    folder: Path, experiment: Experiment, subject: Subject, recipe: Recipe, activation: str | None
) -> None:
    """Write into a run folder which features its model was trained on, and how it is built. All of it is public."""
    if subject.extractor is None or experiment.features is None:
        return
    from apportion.compare.feature_subject import DEFAULT_HEAD, classes_of

    extractor = subject.extractor
    content = {
        "format": _FORMAT,
        "features": experiment.features.model_dump(),
        "public": extractor.features.public,
        "shape": list(extractor.shape),
        "dtype": str(extractor.dtype).removeprefix("torch."),
        "digest": extractor.digest(),
        "model": experiment.model or DEFAULT_HEAD,
        "classes": classes_of(subject),
        "activation": activation,
        "temper": None if recipe.model is None else asdict(recipe.model),
    }
    replace_file(folder / FILE, (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode())


def read_features(folder: Path, model: nn.Module | None) -> tuple[Extractor, nn.Module]:
    """The extractor of a run folder, and its head without trained weights.

    Args:
        model: a fresh head, if the folder does not say how to build it.
    """
    path = folder / FILE
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        choice, shape = FeatureChoice(**content["features"]), tuple(int(size) for size in content["shape"])
        dtype, digest = getattr(torch, content["dtype"]), content["digest"]
        name, classes, activation = content["model"], content["classes"], content["activation"]
        tempering = content["temper"]
        if content["format"] != _FORMAT or not isinstance(dtype, torch.dtype):
            raise ValueError("it has another format")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        line = (str(error).splitlines() or [""])[0]
        raise InvalidArgument("run", str(path), f"it is damaged: {line}", "Restore it from a backup") from None
    extractor = Extractor(choice.build_map(), shape, choice.build_norm(), dtype)
    if extractor.digest() != digest:
        reason = "its features are computed in another way than those that its model was trained on"
        raise InvalidArgument("run", str(path), reason, "Use the weights and the code that it was trained with")
    head = model if model is not None else build_head(name, extractor.width, classes, activation)
    head = scaled(choice, extractor, head)
    return extractor, head if tempering is None else temper(head, **tempering)


def output_count(extractor: Extractor, head: nn.Module) -> int:
    """How many outputs the head has."""
    with torch.no_grad():
        found: Tensor = head.eval()(torch.zeros(1, extractor.width))
    return int(found.shape[1])
