"""Losses of sequences of tokens, one value for each sequence, and the usual loss of a Hugging Face model.

A record is a sequence. What its loss is divided by must be its own: the number of tokens *of that sequence* which count, never
that of the batch. transformers divides by the tokens of the whole batch, where one long sequence makes the gradients of all others
smaller. Whatever is evaluated here has one value for each record, so that nothing is reduced over a batch at all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from torch import Tensor, nn
from torch.nn import functional

from apportion.domain import IGNORED
from apportion.errors import InvalidArgument

Reduction = Literal["mean", "sum"]


def token_loss(outputs: Any, labels: Tensor, *, reduction: Reduction = "mean") -> Tensor:
    """Cross-entropy of the tokens of each sequence: ℓ_i = Σ_t −log p(y_it) / n_i over the n_i tokens whose label is not −100.

    For masked language models, the labelling of tokens, and encoder-decoder models such as T5.

    Args:
        outputs: logits (batch, tokens, classes), or the output of a model with `logits`.
        labels: (batch, tokens), int64; −100 where a token does not count, as padding.
        reduction: "mean" divides by the tokens of that record which count (by 1 if none does), "sum" does not divide.

    Returns:
        (batch,), one value for each record, which depends on that record alone.

    Source: `ForTokenClassification` of transformers, with the divisor of each record in place of that of the batch.

    Examples:
        >>> import torch, apportion as ap
        >>> logits, labels = torch.zeros(2, 3, 4), torch.tensor([[1, 2, 3], [1, -100, -100]])
        >>> [round(loss, 3) for loss in ap.integrations.token_loss(logits, labels).tolist()]
        [1.386, 1.386]
        >>> [round(loss, 3) for loss in ap.integrations.token_loss(logits, labels, reduction="sum").tolist()]
        [4.159, 1.386]
    """
    if reduction not in ("mean", "sum"):
        raise InvalidArgument("reduction", reduction, "there is no such reduction", 'Use "mean" or "sum"')
    logits: Tensor = getattr(outputs, "logits", outputs)
    losses = functional.cross_entropy(logits.mT, labels, ignore_index=IGNORED, reduction="none").sum(1)
    return losses / (labels != IGNORED).sum(1).clamp(min=1) if reduction == "mean" else losses


def causal_lm_loss(outputs: Any, labels: Tensor, *, reduction: Reduction = "mean") -> Tensor:
    """The loss of a causal language model, in which position t predicts token t + 1: `token_loss` of shifted tokens.

        ℓ_i = Σ_t −log p(y_i,t+1 | y_i,≤t) / n_i        over the n_i tokens after the first whose label is not −100

    Args:
        outputs: logits (batch, tokens, vocabulary), or the output of a model with `logits`.
        labels: (batch, tokens), int64: the tokens themselves, not shifted, with −100 for padding.
        reduction: "mean" divides by the tokens of that record which count, "sum" does not divide.

    Returns:
        (batch,), one value for each record, which depends on that record alone.

    Source: `ForCausalLMLoss` of transformers, with the divisor of each record in place of that of the batch.

    Examples:
        >>> import torch, apportion as ap
        >>> tokens = torch.tensor([[1, 2, 3], [1, 2, -100]])
        >>> certain = 100 * torch.nn.functional.one_hot(tokens.roll(-1, 1).clamp(min=0), 4).float()
        >>> ap.integrations.causal_lm_loss(certain, tokens).tolist()
        [0.0, 0.0]
    """
    logits: Tensor = getattr(outputs, "logits", outputs)
    return token_loss(logits[:, :-1], labels[:, 1:], reduction=reduction)


def usual_loss(model: nn.Module) -> Callable[[Any, Tensor], Tensor]:
    """The loss that transformers uses for this kind of model and labels, one value for each record."""
    causal = predicts_next_token(model)

    def loss(outputs: Any, labels: Tensor) -> Tensor:
        logits = getattr(outputs, "logits", outputs)
        if not isinstance(logits, Tensor):
            fix = "Use a model with a head, or pass a loss of (outputs, labels)"
            raise InvalidArgument("model", type(outputs).__name__, "its output has no logits", fix)
        if logits.dim() == 3:
            return causal_lm_loss(logits, labels) if causal else token_loss(logits, labels)
        problem = problem_type(model, labels, logits.shape[1])
        if problem == "single_label_classification":
            return functional.cross_entropy(logits, labels, reduction="none")
        alike = labels.reshape(logits.shape).to(logits.dtype)
        if problem == "regression":
            return functional.mse_loss(logits, alike, reduction="none").mean(1)
        return functional.binary_cross_entropy_with_logits(logits, alike, reduction="none").mean(1)

    return loss


def problem_type(model: nn.Module, labels: Tensor, outputs: int) -> str:
    """What a classifier of transformers learns, by its rule: as its configuration says; numbers, if it has a single output; one class, if
    labels are whole numbers; otherwise which of several labels apply."""
    declared = getattr(getattr(base_model(model), "config", None), "problem_type", None)
    if isinstance(declared, str):
        return declared
    if outputs == 1:
        return "regression"
    return "multi_label_classification" if labels.is_floating_point() else "single_label_classification"


def predicts_next_token(model: nn.Module) -> bool:
    """Whether it is a causal language model, by the name of its class, as transformers itself tells which loss a model has."""
    name = type(base_model(model)).__name__
    return "CausalLM" in name or "LMHeadModel" in name


def base_model(model: nn.Module) -> Any:
    """The model of transformers inside adapters of peft."""
    inner: Any = getattr(model, "get_base_model", None)
    return model if inner is None else inner()
