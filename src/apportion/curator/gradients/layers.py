"""Which rule serves which layer. A layer is known by its exact type: a subclass may compute something else."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

from torch import nn

from apportion.curator.gradients.attention import replace_attention
from apportion.curator.gradients.convolution import ConvolutionUse
from apportion.curator.gradients.embedding import embedding_use, replace_embedding_bag
from apportion.curator.gradients.fallback import run_in_loop, run_under_vmap
from apportion.curator.gradients.linear import LinearUse, TransposedLinearUse
from apportion.curator.gradients.normalisation import group_norm_use, instance_norm_use, layer_norm_use, rms_norm_use
from apportion.curator.gradients.recurrent_layers import replace_recurrent_cell, replace_recurrent_layers

if TYPE_CHECKING:
    from apportion.curator.gradients.one_pass import OnePass

LAYER_RULES: dict[type[nn.Module], Callable[..., Any]] = {
    nn.Linear: LinearUse.of,
    **dict.fromkeys((nn.Conv1d, nn.Conv2d, nn.Conv3d), ConvolutionUse),
    **dict.fromkeys((nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d), ConvolutionUse),
    nn.LayerNorm: layer_norm_use,
    nn.RMSNorm: rms_norm_use,
    nn.GroupNorm: group_norm_use,
    **dict.fromkeys((nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d), instance_norm_use),
    nn.Embedding: embedding_use,
}
"""Layers whose parameters follow from their input and the gradient of their output."""
FOREIGN_RULES: dict[tuple[str, str], Callable[..., Any]] = {
    ("transformers.pytorch_utils", "Conv1D"): TransposedLinearUse.of,  # all linear layers of GPT-2
}
"""The same by module and name, for libraries that are not imported here."""

FORWARD_REPLACEMENTS: dict[type[nn.Module], Callable[..., None]] = {
    **dict.fromkeys((nn.RNN, nn.LSTM, nn.GRU), replace_recurrent_layers),
    **dict.fromkeys((nn.RNNCell, nn.LSTMCell, nn.GRUCell), replace_recurrent_cell),
    nn.MultiheadAttention: replace_attention,
    nn.EmbeddingBag: replace_embedding_bag,
}
"""Layers that do several things with their parameters: their forward pass is written out in steps that have a rule each."""


def instrument_model(scratch: nn.Module, engine: OnePass, alone: Collection[str] = ()) -> tuple[str, ...]:
    """Make every layer of the scratch copy with trained parameters tell the engine what it needs.

    Returns the modules without a rule of their own, which run under `vmap`, and those that run `alone`, one record after the other.
    """
    trained = {id(parameter): name for name, parameter in scratch.named_parameters() if parameter.requires_grad}
    fallbacks: list[str] = []
    covered: list[str] = []
    for path, module in list(scratch.named_modules()):
        if any(path.startswith(prefix) for prefix in covered):
            continue
        own = {name: trained[id(p)] for name, p in module.named_parameters(recurse=False) if id(p) in trained}
        inner = {name: trained[id(p)] for name, p in module.named_parameters() if id(p) in trained}
        if path in alone:
            run_in_loop(module, path, inner, engine)
            fallbacks.append(path)
        elif type(module) in FORWARD_REPLACEMENTS and inner:
            FORWARD_REPLACEMENTS[type(module)](module, path, inner, engine)
        elif own and (rule := _find_rule(type(module))) is not None:
            engine.hook_layer(module, path, own, rule)
            continue
        elif own or (inner and _is_parametrized(module)):
            run_under_vmap(module, path, inner, engine)
            fallbacks.append(path)
        else:
            continue
        covered.append(f"{path}." if path else "")
    scratch.requires_grad_(False)
    return tuple(fallbacks)


def _find_rule(kind: type[nn.Module]) -> Callable[..., Any] | None:
    """The rule of exactly this type. A type of another library is the one under its name there, whatever it says of itself."""
    named = kind.__module__, kind.__name__
    if named in FOREIGN_RULES and getattr(sys.modules.get(named[0]), named[1], None) is kind:
        return FOREIGN_RULES[named]
    return LAYER_RULES.get(kind)


def _is_parametrized(module: nn.Module) -> bool:
    return bool(nn.utils.parametrize.is_parametrized(module))
