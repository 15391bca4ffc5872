"""Which layers of a model cannot be trained privately, judged by their type and their weights alone.

`check` reads the model and no record. It finds the layers that are known to mix records, to keep un-noised statistics of
them, or to hold weights that no gradient can be taken of. What a layer written by hand does is found by `probe`, which runs
the model on synthetic records.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import _SpectralNorm
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from apportion.errors import UnsupportedModel

_ROOT = "(model)"
_TRAINABLE_DTYPES = (torch.float32, torch.float64, torch.bfloat16)

# A reason and what to do about it.
_Finding = tuple[str, str]
_Module = TypeVar("_Module", bound=nn.Module)


@dataclass(frozen=True)
class LayerCheck:
    """One layer: how much of it is trained, and why it cannot be trained privately (`problem` is None if it can)."""

    name: str
    kind: str
    parameters: int
    trainable: bool
    problem: str | None = None
    remedy: str | None = None


@dataclass(frozen=True)
class ModelCheck:
    """The verdict on every layer that holds state or is known to be a problem."""

    layers: tuple[LayerCheck, ...]

    @property
    def problems(self) -> tuple[LayerCheck, ...]:
        """The layers that cannot be trained privately, in the order of the model."""
        return tuple(layer for layer in self.layers if layer.problem is not None)

    @property
    def ok(self) -> bool:
        """Whether no layer is known to be a problem."""
        return not self.problems

    @property
    def parameters(self) -> int:
        """How many numbers are trained; a weight that layers share counts once."""
        return sum(layer.parameters for layer in self.layers)

    def require(self) -> None:
        """Raise one `UnsupportedModel` that names every offending layer, the reason and the fix; else do nothing."""
        if self.ok:
            return
        # A deep model has dozens of the same normalisation layer: say the reason once and list the layers in front of it.
        names: dict[tuple[str, str | None, str | None], list[str]] = {}
        for layer in self.problems:
            names.setdefault((layer.kind, layer.problem, layer.remedy), []).append(layer.name)
        sentences = [
            f"{', '.join(same)} ({kind}): {problem}. {remedy}." for (kind, problem, remedy), same in names.items()
        ]
        raise UnsupportedModel(f"This model cannot be trained privately. {' '.join(sentences)}")

    def __str__(self) -> str:
        rows = [("layer", "kind", "trained", "verdict")]
        for layer in self.layers:
            trained = f"{layer.parameters:,}" if layer.trainable else "-"
            rows.append((layer.name, layer.kind, trained, "ok" if layer.problem is None else "PROBLEM"))
        widths = [max(len(row[column]) for row in rows) for column in range(3)]
        lines = [f"{a:<{widths[0]}}  {b:<{widths[1]}}  {c:>{widths[2]}}  {d}" for a, b, c, d in rows]
        lines.append(f"{self.parameters:,} trained numbers, {len(self.problems)} of {len(self.layers)} layers refused")
        lines += [f"{layer.name} ({layer.kind}): {layer.problem}. {layer.remedy}." for layer in self.problems]
        return "\n".join(lines)


def check(model: nn.Module) -> ModelCheck:
    """Judge every layer of `model` by its type and its weights, without running it and without changing it."""
    layers: list[LayerCheck] = []
    counted: set[int] = set()
    for name, module in _judged_modules(model):
        findings = [*_type_findings(module), *_weight_findings(module)]
        parameters = _own_tensors(module, "parameters")
        if not (parameters or _own_tensors(module, "buffers") or findings):
            continue
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        count = sum(p.numel() for p in trained if id(p) not in counted and not is_lazy(p))
        counted.update(id(parameter) for parameter in trained)
        layer = LayerCheck(name or _ROOT, type(module).__name__, count, bool(trained))
        layers.append(_with_findings(layer, findings))
    if not any(layer.trainable for layer in layers):
        root = next((layer for layer in layers if layer.name == _ROOT), None)
        finding = (
            "it has no trainable parameter, so that there is nothing to train",
            "Set requires_grad=True on the parameters to train",
        )
        if root is None:
            layers.insert(0, _with_findings(LayerCheck(_ROOT, type(model).__name__, 0, False), [finding]))
        else:
            layers[layers.index(root)] = _with_findings(root, [finding])
    return ModelCheck(tuple(layers))


def copy_model(model: _Module) -> _Module:
    """Return a deep copy of `model`, or raise `UnsupportedModel` if PyTorch cannot copy it."""
    try:
        return copy.deepcopy(model)
    except Exception as error:
        raise UnsupportedModel(
            f"The model cannot be copied, and only a copy is ever probed or repaired: {error} "
            "Run lazy layers once on example data, and replace torch.nn.utils.weight_norm by "
            "torch.nn.utils.parametrizations.weight_norm."
        ) from error


def _judged_modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Every module once, without the inner modules of a parametrization, which are judged with the layer they serve."""
    inner: set[int] = set()
    for name, module in model.named_modules():
        if id(module) in inner:
            continue
        if parametrize.is_parametrized(module):
            inner.update(id(part) for part in _parametrizations(module).modules())
        yield name, module


def _parametrizations(module: nn.Module) -> nn.Module:
    parametrizations = module.parametrizations
    assert isinstance(parametrizations, nn.Module)
    return parametrizations


def _own_tensors(module: nn.Module, kind: Literal["parameters", "buffers"]) -> list[Any]:
    """Of the module itself, without its children."""
    own = list(getattr(module, kind)(recurse=False))
    if parametrize.is_parametrized(module):
        own += getattr(_parametrizations(module), kind)()
    return own


def _with_findings(layer: LayerCheck, findings: list[_Finding]) -> LayerCheck:
    """Add `findings` to those the layer already has; both texts stay one phrase that ends without a full stop."""
    if not findings:
        return layer
    problems = [text for text in (layer.problem, *(problem for problem, _ in findings)) if text is not None]
    remedies = [text for text in (layer.remedy, *(remedy for _, remedy in findings)) if text is not None]
    return replace(layer, problem="; also, ".join(problems), remedy=". ".join(remedies))


def _type_findings(module: nn.Module) -> Iterator[_Finding]:
    """What is known about the type of a layer and its settings."""
    # A frozen BatchNorm in eval mode mixes nothing, but a training loop calls model.train(), which un-freezes its
    # statistics. So it is refused in any mode.
    if isinstance(module, _BatchNorm):
        flat = ", or by nn.LayerNorm on flat features" if isinstance(module, nn.BatchNorm1d) else ""
        yield (
            "it normalises a record by the statistics of the whole batch, which mixes records, "
            "and its running statistics keep a trace of them without noise",
            f"Replace it by nn.GroupNorm{flat}; ap.fix(model) does it in a copy",
        )
    if isinstance(module, _InstanceNorm) and module.track_running_stats:
        yield (
            "its running statistics keep a trace of the records without noise",
            "Use track_running_stats=False; ap.fix(model) does it in a copy",
        )
    if isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
        if module.max_norm is not None:
            yield (
                "max_norm rescales the rows that a record looks up during the forward pass, "
                "so that the weights tell without noise which rows were used",
                "Use max_norm=None",
            )
        if module.sparse:
            yield (
                "its gradients are sparse, and noise must be added to every row, also to those that no record uses",
                "Use sparse=False; ap.fix(model) does it in a copy",
            )
    if module._backward_hooks or module._backward_pre_hooks:
        yield (
            "its backward hook is handed the gradients of many records at once, so that it sees them without noise and may mix them",
            "Remove it: call .remove() on what register_full_backward_hook returned, or put its arithmetic into the forward pass",
        )
    checkpointing = getattr(getattr(module, "_gradient_checkpointing_func", None), "keywords", {})  # of transformers
    if getattr(module, "gradient_checkpointing", False) and checkpointing.get("use_reentrant", False) is not False:
        yield (
            "it checkpoints with use_reentrant=True, by which what is trained behind frozen layers gets no gradient, only noise",
            'Call model.gradient_checkpointing_enable({"use_reentrant": False})',
        )
    hooks = list(module._forward_pre_hooks.values())
    power_iteration = any(isinstance(hook, SpectralNorm) for hook in hooks) or (
        parametrize.is_parametrized(module)
        and any(isinstance(part, _SpectralNorm) for part in _parametrizations(module).modules())
    )
    if power_iteration:
        yield (
            "the power iteration of spectral_norm advances with every forward pass, "
            "so that the gradient of a record depends on how many records came before it",
            "Use torch.nn.utils.parametrizations.orthogonal or weight_norm, or no constraint",
        )
    if any(isinstance(hook, WeightNorm) for hook in hooks):
        yield (
            "torch.nn.utils.weight_norm leaves the weight of the last pass in the layer, which then cannot be copied",
            "Use torch.nn.utils.parametrizations.weight_norm",
        )


def _weight_findings(module: nn.Module) -> Iterator[_Finding]:
    """What the parameters and buffers of a layer rule out, whatever its type."""
    parameters = _own_tensors(module, "parameters")
    state = [*parameters, *_own_tensors(module, "buffers")]
    if any(is_lazy(tensor) for tensor in state):
        if not isinstance(module, _BatchNorm):  # no example data helps a lazy BatchNorm
            yield (
                "its parameters have no shape yet",
                "Run the model once on example data that is not private before it is checked",
            )
        return
    if any(tensor.is_meta for tensor in state):
        yield (
            "it is on the meta device, where tensors have no values",
            "Move it with model.to_empty(device=...) and load or initialise its weights",
        )
        return
    if any(parameter._backward_hooks or parameter._post_accumulate_grad_hooks for parameter in parameters):
        yield (
            "a hook on one of its parameters would not be called: the gradients of single records never meet in parameter.grad",
            "Remove it, and change released gradients in the optimiser, or scale the loss of a record",
        )
    dtypes = {parameter.dtype for parameter in parameters if parameter.requires_grad} - set(_TRAINABLE_DTYPES)
    if torch.float16 in dtypes:
        yield (
            "its weights are float16, in which the gradient of a record overflows or vanishes before it is clipped",
            "Use float32 or bfloat16; ap.fix(model) makes it float32 in a copy",
        )
    for dtype in sorted(dtypes - {torch.float16}, key=str):
        yield (
            f"its weights are {str(dtype).removeprefix('torch.')}, for which clipping and noise are not defined here",
            "Use float32, float64 or bfloat16, and two real weights for a complex one",
        )
    if not all(bool(torch.isfinite(parameter).all()) for parameter in parameters):
        yield (
            "it has weights that are NaN or infinite, which make every gradient NaN",
            "Initialise it again or load a sound checkpoint",
        )
