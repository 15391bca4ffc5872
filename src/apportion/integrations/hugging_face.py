"""Fine-tune a model of Hugging Face's transformers privately, whole or with adapters of peft: what `Trainer` does, in one call.

Models of transformers run as they are in `apportion.train`, but many ask whether a batch has any padding *at all*, to take a shortcut.
Such a question is about all records, so those models would run one record after the other. Here they attend by a way of their own
(`ATTENTION`): scaled dot products with the mask that they were given, whatever is in it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset

from apportion import validate
from apportion.budget import Public
from apportion.curator.distinct import require_distinct
from apportion.curator.foreign_code import contain_errors
from apportion.curator.records import Records, as_records
from apportion.curator.tree import drop_objects
from apportion.domain import IGNORED, Domain
from apportion.errors import InvalidArgument
from apportion.execution import ACCUMULATION
from apportion.extras import require_extra
from apportion.integrations.model_loss import ModelLoss, given_losses
from apportion.integrations.token_losses import base_model, predicts_next_token, problem_type, usual_loss
from apportion.models.synthetic import prepare_model, run_model, synthetic_batches, trees_agree
from apportion.planning import Plan
from apportion.training.evaluation import require_public
from apportion.training.preflight import require_known_processes
from apportion.training.run import Run
from apportion.training.train import train

require_extra("hf", "transformers")
from transformers import AttentionInterface, PreTrainedModel  # noqa: E402
from transformers.integrations.sdpa_attention import sdpa_attention_forward  # noqa: E402
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask  # noqa: E402

ATTENTION = "records-apart"
"""The name of the way to attend under which it is registered in transformers."""
LABELS = ("labels", "label")
_MICRO_BATCH = "execution=apportion.Execution(micro_batch=...)"
_TOKENIZE = 'Tokenize first: data.map(lambda item: tokenizer(item["text"], padding="max_length", truncation=True, max_length=128))'


def fine_tune(
    model: nn.Module,
    data: Any,
    plan: Plan,
    *,
    lr: float,
    loss: Callable[[Any, Any], Tensor] | None = None,
    optimizer: Any = "adamw",
    evaluate: Public | None = None,
    **options: Any,
) -> Run:
    """Train a `PreTrainedModel`, or a `PeftModel` around one, on private sequences or images. The model is trained in place.

    The parameters with `requires_grad` learn, with peft the adapters alone; the others stay as they are. A record is one item of the data
    set, such as a sequence of tokens with its mask and its labels; its gradient is clipped and noised as in `apportion.train`:
    (Σ_i g_i·min(1, C_t/‖g_i‖) + N(0, (z_t·C_t)²)) / (q·population).

    Args:
        model: a model whose output has `logits`; or an `apportion.integrations.ModelLoss` around one that computes its loss itself.
        data: a map-style data set of dicts: what the model's `forward` names, and `labels`. Other fields are left out, and lists
            become tensors. For a causal language model `labels` may be missing: they are the tokens that are not padding. For an
            encoder-decoder model `decoder_input_ids` are made from them. Pad all records to one length, and pass `attention_mask`.
        plan: what is executed: `apportion.plan(recipe, budget=..., population=..., batch_size=..., epochs=...)`.
        lr, optimizer: as of `apportion.train`.
        loss: loss(outputs, labels); by default that of transformers for this kind of model, with one value for each record
            (`causal_lm_loss`, `token_loss`, cross-entropy, squared error for float labels of one output, or binary cross-entropy).
        evaluate: data declared public, on which accuracy is measured.
        options: of `apportion.train`: scheduler, validation, metric, domain, execution, storage, seed, progress. Without a domain, labels
            that are class numbers must be less than the number of the model's outputs, or −100. Other records contribute nothing, and are
            not usable; neither is a sequence none of whose labels counts.

    Returns:
        A `Run`, as of `apportion.train`.

    Guarantee: that of `apportion.train`. No gradient of a record depends on another record, on its place in a batch or on the batch's size.

    Examples:
        >>> import torch, transformers, apportion as ap
        >>> config = transformers.GPT2Config(vocab_size=11, n_positions=8, n_embd=8, n_layer=1, n_head=2)
        >>> model = transformers.GPT2LMHeadModel(config)
        >>> texts = [{"input_ids": torch.randint(11, (6,)), "attention_mask": torch.ones(6, dtype=torch.long)} for _ in range(20)]
        >>> budget = ap.Budget(epsilon=3.0, delta=1e-5, unit=ap.Record())
        >>> plan = ap.plan(budget=budget, population=20, sample_rate=0.5, steps=2)
        >>> run = ap.integrations.fine_tune(model, texts, plan, lr=1e-3)
        >>> run.epsilon() <= 3.0
        True
    """
    _require_options(loss, options)
    _require_no_autocast()
    require_known_processes(model)
    if hasattr(model, "_orig_mod"):
        reason = "it would be compiled anew for batches of every size"
        raise InvalidArgument("model", type(model).__name__, reason, "Pass the model that torch.compile was given")
    inner = model.model if isinstance(model, ModelLoss) else model
    metric = options.get("metric")
    if inner is not model and evaluate is not None and (metric is None or isinstance(metric, str)):
        reason = "the outputs of a ModelLoss are losses, which have no accuracy"
        fix = 'Pass apportion.Metric("loss", lambda losses, _: float(losses.mean()), better="lower"), or leave out evaluate'
        raise InvalidArgument("metric", metric, reason, fix)
    layout = _Layout.of(inner, keep_labels=inner is not model)
    records = layout.records(data, "data", shifted=loss is None and predicts_next_token(model))
    if evaluate is not None:
        options["evaluate"] = Public(layout.records(require_public(evaluate).data, "evaluate"))
    if loss is None and inner is model:
        loss = usual_loss(model)
        if (classes := _count_classes(base_model(model), records.example[1])) is not None:
            options.setdefault("domain", Domain(classes=classes))
    with attend_apart(model, records.example[0]):
        return train(model, loss or given_losses, records, plan, lr=lr, optimizer=optimizer, **options)


def _count_classes(model: Any, target: Any) -> int | None:
    """How many classes labels are of, if they are class numbers: tokens of a language model, or those of a classifier."""
    if not isinstance(model, PreTrainedModel) or not isinstance(target, Tensor) or target.is_floating_point():
        return None
    if (words := model.get_output_embeddings()) is not None:
        return int(words.weight.shape[0])
    classes = int(model.config.num_labels)
    return classes if problem_type(model, target, classes) == "single_label_classification" else None


def _require_options(loss: Any, options: dict[str, Any]) -> None:
    """Refuse what `transformers.Trainer` is told otherwise, in words of those who come from there."""
    if loss is not None and not callable(loss):
        fix = "Leave it out for that of the model, or pass a function of (outputs, labels)"
        raise InvalidArgument("loss", validate.shown(loss), "it cannot be called", fix)
    for name, value in options.items():
        if "accumul" in name:
            raise InvalidArgument(
                name, validate.shown(value), "there is no such option", f"{ACCUMULATION}: {_MICRO_BATCH}"
            )
        if name in ("epochs", "num_train_epochs", "max_steps", "steps", "batch_size", "per_device_train_batch_size"):
            fix = "Pass apportion.plan(budget=..., population=..., batch_size=..., epochs=...)"
            raise InvalidArgument(name, validate.shown(value), "it is a part of the plan, because it has a price", fix)
        validate.known("options", name, inspect.signature(train).parameters, "there is no such option")


def _require_no_autocast() -> None:
    if any(torch.is_autocast_enabled(kind) for kind in ("cpu", "cuda", "mps")):
        raise InvalidArgument(
            "torch.autocast",
            "enabled",
            "in 16 bits records that run together have other gradients than alone, by more than the rounding that is allowed for, so that "
            "each would have to run alone, which takes longer than float32",
            f"Call fine_tune outside of torch.autocast; to save memory use {_MICRO_BATCH}",
        )


@dataclass(frozen=True)
class _Layout:
    """Which fields of an item are inputs of a model, and which is its target.

    Args:
        inputs: the names that the model's forward pass knows.
        keep_labels: whether the model computes its loss itself, from labels among the inputs.
        next_token: whether labels may be the tokens themselves.
        shift: makes the inputs of a decoder from labels (1, tokens); `None` if there is no decoder.
    """

    inputs: frozenset[str]
    keep_labels: bool
    next_token: bool
    shift: Callable[[Tensor], Tensor] | None

    @staticmethod
    def of(model: nn.Module, *, keep_labels: bool) -> _Layout:
        base = base_model(model)
        decoder = bool(getattr(getattr(base, "config", None), "is_encoder_decoder", False))
        shift = getattr(base, "prepare_decoder_input_ids_from_labels", None) if decoder and not keep_labels else None
        names = frozenset(inspect.signature(base.forward).parameters)
        return _Layout(names, keep_labels, predicts_next_token(model), shift)

    def records(self, data: Any, argument: str, *, shifted: bool = False) -> Records:
        """The records of a data set of dicts, which are made pairs; whatever is no such data set as it is.

        Args:
            shifted: whether the first label of a sequence is nobody's next token. As one that does not count, it is not taken for something
                to learn from where it is the only one.
        """
        first = None
        if not isinstance(data, (tuple, Mapping)):
            with contain_errors():  # `as_records` says that it cannot be read, and nothing of what is in it
                first = data[0]
        if isinstance(first, str):
            raise InvalidArgument(argument, "texts", "a model reads numbers of tokens", _TOKENIZE)
        if not isinstance(first, Mapping):
            return as_records(data)
        self._require_fields(argument, first)
        require_distinct(argument, data)
        try:
            return as_records(_Arranged(data, self, shifted))
        except InvalidArgument as error:
            fix = "Return lists, tensors or arrays of numbers, all of one length: " + _TOKENIZE
            raise InvalidArgument(argument, type(data).__name__, error.reason, fix) from None

    def _require_fields(self, argument: str, first: Mapping[str, Any]) -> None:
        """Refuse items without the fields that the model needs. Names and types of fields are public, their values are not told."""
        names = ", ".join(map(str, first))
        known = [name for name in first if name in self.inputs and (self.keep_labels or name not in LABELS)]
        if not known or any(_is_text(first[name]) for name in known):
            reason = "the model takes none of them, or they are texts where it takes numbers of tokens"
            raise InvalidArgument(argument, f"items with {names}", reason, _TOKENIZE)
        given = None if self.keep_labels else next((name for name in LABELS if name in first), None)
        if given is not None and _is_text(first[given]):
            fix = "Number them by a list that was fixed without looking at the records"
            raise InvalidArgument(
                argument, f"items with {names}", f"{given!r} holds texts, not numbers of classes", fix
            )
        if not (self.keep_labels or self.next_token or given):
            reason = "there is neither 'labels' nor 'label', which the model is to predict"
            fix = (
                'Add them: data.map(lambda item: {"labels": ...}), or rename the column that holds them; around a model that computes its '
                "loss from other fields, such as start_positions, put apportion.integrations.ModelLoss(model)"
            )
            raise InvalidArgument(argument, f"items with {names}", reason, fix)

    def pair(self, item: Mapping[str, Any]) -> tuple[dict[str, Tensor], Tensor]:
        given = {name: torch.as_tensor(value) for name, value in item.items() if name in (*self.inputs, *LABELS)}
        if self.keep_labels:
            return {name: value for name, value in given.items() if name in self.inputs}, torch.zeros(())
        labels = next((given.pop(name) for name in LABELS if name in given), None)
        if labels is None:
            labels = self._next_tokens(given)
        inputs = {name: value for name, value in given.items() if name in self.inputs}
        if self.shift is not None and "decoder_input_ids" not in inputs:
            inputs["decoder_input_ids"] = self.shift(labels.unsqueeze(0)).squeeze(0)
        return inputs, labels

    def _next_tokens(self, given: dict[str, Tensor]) -> Tensor:
        if not self.next_token:
            raise KeyError("labels")
        tokens = given["input_ids"]
        return torch.where(given.get("attention_mask", torch.ones_like(tokens)) == 0, IGNORED, tokens)


def _is_text(value: Any) -> bool:
    """Whether it is a text, or a list of texts."""
    return isinstance(value, str) or (isinstance(value, (list, tuple)) and any(isinstance(one, str) for one in value))


class _Arranged(Dataset[Any]):
    """A data set of dicts as one of pairs."""

    def __init__(self, data: Any, layout: _Layout, shifted: bool):
        self._data, self._layout, self._shifted = data, layout, shifted

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, index: int) -> tuple[dict[str, Tensor], Tensor]:
        inputs, labels = self._layout.pair(self._data[index])
        if self._shifted and labels.dim():
            labels = labels.clone()
            labels[:1] = IGNORED
        return inputs, labels


@contextmanager
def attend_apart(model: nn.Module, example: Any = None) -> Iterator[None]:
    """Within this block the models of transformers in `model` attend without looking at the whole batch, and keep no caches.

    Nor do words of frozen embeddings ask for gradients, as for adapters under checkpointing that needs it (`use_reentrant=True`, which is
    refused): they are no parameter.

    Args:
        example: inputs of one record. A model that would compute something else on records like it, because it knows only the ways to
            attend that it names itself, stays as it is.
    """
    _register_attention()
    before = _padded_outputs(model, example)
    with ExitStack() as undo:
        with ExitStack() as switched:
            for part in model.modules():
                for key, hook in list(part._forward_hooks.items()):
                    if getattr(hook, "__name__", "").startswith(
                        "make_inputs_require_grad"
                    ):  # of transformers and of peft
                        undo.callback(part._forward_hooks.__setitem__, key, part._forward_hooks.pop(key))
                if isinstance(part, PreTrainedModel):
                    if (attention := part.config._attn_implementation) in ("sdpa", "eager"):
                        part.set_attn_implementation(ATTENTION)
                        switched.callback(part.set_attn_implementation, attention)
                    if getattr(part.config, "use_cache", False):
                        part.config.use_cache = False
                        undo.callback(setattr, part.config, "use_cache", True)
            if trees_agree(_padded_outputs(model, example), before):
                undo.push(switched.pop_all())
        yield


def _padded_outputs(model: nn.Module, example: Any) -> Any:
    """The outputs for synthetic records of different lengths; `None` without an example, or if the model does not run on such records."""
    if example is not None:
        subject = prepare_model(model)
        for batch in synthetic_batches("data", example, subject, kind="padded"):
            with suppress(Exception), torch.no_grad():
                return drop_objects(run_model(subject, batch, seed=0))
    return None


def _register_attention() -> None:
    def mask(*args: Any, **named: Any) -> Any:
        return sdpa_mask(*args, **(named | {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}))

    def attend(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **named: Any) -> Any:
        if (bias := named.get("position_bias")) is None:
            return sdpa_attention_forward(module, query, key, value, mask, **named)
        return _attend_with_bias(query, key, value, mask, bias, named), None

    AttentionInterface.register(ATTENTION, attend)
    AttentionMaskInterface.register(ATTENTION, mask)


def _attend_with_bias(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, bias: Tensor, named: Mapping[str, Any]
) -> Tensor:
    """softmax(q·kᵀ·s + bias)·v, written out. torch's kernels disagree on records that are all padding where a bias is learned."""
    scale = named.get("scaling")
    scores = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale) + bias
    if mask is not None:
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    weights = functional.dropout(scores.softmax(-1), named.get("dropout", 0.0))
    return (weights @ value).transpose(1, 2).contiguous()
