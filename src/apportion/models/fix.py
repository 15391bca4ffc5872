"""Replace the layers that cannot be trained privately by the nearest ones that can."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.modules.instancenorm import _InstanceNorm

from apportion.models.check import LayerCheck, check, copy_model

_MOST_GROUPS = 32  # as in the paper that introduced GroupNorm
_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


@dataclass(frozen=True)
class Repaired:
    """A repaired copy, one sentence for each change, and the layers that need a decision by hand."""

    model: nn.Module
    changes: tuple[str, ...]
    remaining: tuple[LayerCheck, ...]

    def __str__(self) -> str:
        lines = list(self.changes) or ["nothing to change"]
        lines += [f"left: {layer.name} ({layer.kind}): {layer.problem}. {layer.remedy}." for layer in self.remaining]
        return "\n".join(lines)


def fix(model: nn.Module) -> Repaired:
    """Return a repaired deep copy of `model`; the model passed in is not changed.

    Weights are kept, so a pre-trained model stays pre-trained, but GroupNorm does not compute what BatchNorm did: such a
    model needs some training again. A layer used in two places stays one layer. Subclasses of BatchNorm may do more than
    normalise, so they are left to the person and listed in `remaining`.
    """
    repaired = copy_model(model)
    changes: list[str] = []
    for names, module in _modules_with_names(repaired):
        label = ", ".join(name or "(model)" for name in names)
        if type(module) in _BATCH_NORMS:
            # The inner module is only reachable by its names, so every one of them is pointed to the same replacement.
            substitute, sentence = _replace_batch_norm(module)
            for name in names:
                if name:
                    repaired.set_submodule(name, substitute)
                else:
                    repaired = substitute
            changes.append(f"{label}: {sentence}")
        else:
            changes += [f"{label}: {sentence}" for sentence in _adjust_settings(module)]
    changes += _upcast_float16(repaired)
    return Repaired(repaired, tuple(changes), check(repaired).problems)


def _modules_with_names(model: nn.Module) -> list[tuple[list[str], nn.Module]]:
    """Every module once, with all the paths that lead to it."""
    names: dict[nn.Module, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        names.setdefault(module, []).append(name)
    return [(paths, module) for module, paths in names.items()]


def _replace_batch_norm(norm: nn.Module) -> tuple[nn.Module, str]:
    """The layer that takes the place of a BatchNorm, and the sentence that says so."""
    assert isinstance(norm, _BATCH_NORMS)
    channels = norm.num_features
    before = f"{type(norm).__name__}({channels})"
    if isinstance(norm, nn.BatchNorm1d) and channels == 1:
        # GroupNorm would subtract the only number of a flat record from itself.
        return nn.Identity(), f"{before} → Identity() because a record has one number here, so nothing to normalise by"
    groups = _choose_groups(channels)
    substitute = nn.GroupNorm(groups, channels, eps=norm.eps, affine=False)
    # The copy's own parameters move over, with their dtype, device, requires_grad and ties to other layers.
    substitute.affine = norm.affine
    substitute.register_parameter("weight", norm.weight)
    substitute.register_parameter("bias", norm.bias)
    substitute.train(norm.training)
    return substitute, f"{before} → GroupNorm({groups}, {channels})"


def _choose_groups(channels: int) -> int:
    """The most groups, up to 32, of equal size and of at least two channels, as one number alone has no spread."""
    most = min(_MOST_GROUPS, channels // 2)
    return next((groups for groups in range(most, 0, -1) if channels % groups == 0), 1)


def _adjust_settings(module: nn.Module) -> list[str]:
    """Change the settings of one layer of the copy, where that is enough, and say what was changed."""
    sentences: list[str] = []
    kind = type(module).__name__
    if isinstance(module, _InstanceNorm) and module.track_running_stats:
        module.track_running_stats = False
        module.running_mean = module.running_var = module.num_batches_tracked = None
        sentences.append(f"{kind}(track_running_stats=True) → {kind}(track_running_stats=False)")
    if isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and module.sparse:
        module.sparse = False
        sentences.append(f"{kind}(sparse=True) → {kind}(sparse=False)")
    # Harmless inside of a model, where the check says nothing of it, but as a first layer it overwrites the records.
    if vars(module).get("inplace") is True:
        vars(module)["inplace"] = False
        sentences.append(f"{kind}(inplace=True) → {kind}(inplace=False)")
    return sentences


def _upcast_float16(model: nn.Module) -> list[str]:
    """Turn every float16 parameter and buffer of the copy into float32, frozen ones too, as layers must agree."""
    sentences: list[str] = []
    for name, module in model.named_modules():
        narrow = [p for p in module.parameters(recurse=False) if p.dtype == torch.float16]
        for parameter in narrow:
            parameter.data = parameter.data.float()
        buffers = {key: b for key, b in module.named_buffers(recurse=False) if b.dtype == torch.float16}
        for key, buffer in buffers.items():
            setattr(module, key, buffer.float())
        if narrow or buffers:
            sentences.append(f"{name or '(model)'}: {type(module).__name__} in float16 → float32")
    return sentences
