"""Losses by name: one value for each record, so that no record is scaled by the others of its batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor
from torch.nn import functional

from apportion import validate
from apportion.curator.gradients.losses import LossFunction, record_losses
from apportion.errors import InvalidArgument
from apportion.validate import Checked, checked

_Elementwise = Callable[..., Tensor]


def _known_loss(argument: str, value: Any, why: str, fix: str) -> str:
    return validate.known("loss", value, LOSSES, "there is no such loss")


def _as_weights(argument: str, value: Any, why: str, fix: str) -> tuple[float, ...]:
    if isinstance(value, (str, bytes)) or not hasattr(value, "__iter__"):
        raise InvalidArgument(argument, validate.shown(value), "it is not a list of numbers", fix)
    return tuple(validate.positive(argument, weight, why, fix) for weight in value)


@dataclass(frozen=True)
class Loss(Checked):
    """A loss by its name: a function of outputs and targets with one value for each record.

    | name            | loss of one record                       | outputs        | targets                     |
    |-----------------|------------------------------------------|----------------|-----------------------------|
    | `cross-entropy` | −log softmax(o)[t]                       | (b, classes)   | class numbers (b,), int64   |
    | `bce`           | −t·log σ(o) − (1 − t)·log(1 − σ(o))      | (b,) or (b, L) | 0 and 1, as many as outputs |
    | `mse`           | r² with r = o − t                        | (b,) or (b, K) | numbers, as many as outputs |
    | `huber`         | r²/2 for r from −1 to 1, beyond it abs(r) − ½ | likewise  | likewise                    |

    Several labels or numbers of one record are averaged. Outputs (b, 1) meet targets (b,) one by one: they are never broadcast against each
    other. Any other difference of shapes is refused.

    Args:
        name: from the table.
        weights: public weights w of classes, for classes that are rare: of each class for `cross-entropy`, of 0 and of 1 for `bce`. The
            loss of a record of class t is multiplied by w_t / max(w), and not divided by a total over the batch. So frequent classes are
            turned down, and no class is turned up, which clipping would undo. Counting the classes of private records in order to choose
            weights is a query that ε must cover.

    Guarantee: the value of a record depends on no other record.

    Examples:
        >>> import torch
        >>> from apportion import Loss
        >>> Loss("mse")(torch.tensor([[1.0], [2.0]]), torch.tensor([1.0, 4.0]))
        tensor([0., 4.])
        >>> Loss("cross-entropy", weights=[1, 9])(torch.zeros(2, 2), torch.tensor([0, 1]))
        tensor([0.0770, 0.6931])
    """

    prefix = "loss"
    by_record: ClassVar[bool] = True
    name: str = checked("cross-entropy", _known_loss, "it is the name of a loss")
    weights: Sequence[float] | None = checked(
        None, _as_weights, "a class of weight 0 would not be learnt", "Pass one number for each class, e.g. [1, 5]"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.weights is not None and self.name not in ("cross-entropy", "bce"):
            reason = f"weights are those of classes, and {self.name} is about numbers"
            raise InvalidArgument("loss.weights", self.weights, reason, "Leave them out")
        if self.weights is not None and self.name == "bce" and len(self.weights) != 2:
            raise InvalidArgument("loss.weights", self.weights, "bce has two classes", "Pass the weights of 0 and of 1")

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The loss of each record, (b,)."""
        scaled = None if self.weights is None else tuple(weight / max(self.weights) for weight in self.weights)
        values = LOSSES[self.name](scaled, outputs, targets)
        return values if values.dim() == 1 else values.flatten(1).mean(1)


def _cross_entropy(weights: tuple[float, ...] | None, outputs: Tensor, targets: Tensor) -> Tensor:
    classes = outputs.shape[1] if outputs.dim() > 1 else 1
    if classes == 1:
        reason = "its softmax is 1 whatever the model says, and nothing would be learnt"
        raise InvalidArgument("loss", f"cross-entropy of outputs {tuple(outputs.shape)}", reason, "Use the loss bce")
    if weights is not None and len(weights) != classes:
        raise InvalidArgument("loss.weights", weights, f"the model has {classes} classes", "Pass a weight for each")
    weight = None if weights is None else outputs.new_tensor(weights)
    return functional.cross_entropy(outputs, targets, weight=weight, reduction="none")


def _binary_cross_entropy(weights: tuple[float, ...] | None, outputs: Tensor, targets: Tensor) -> Tensor:
    logits, labels = paired(outputs, targets)
    values = functional.binary_cross_entropy_with_logits(logits, labels, reduction="none")
    return values if weights is None else values * (weights[0] + (weights[1] - weights[0]) * labels)


def _of_numbers(function: _Elementwise) -> _Elementwise:
    def loss(weights: None, outputs: Tensor, targets: Tensor) -> Tensor:
        return function(*paired(outputs, targets), reduction="none")

    return loss


def paired(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs and targets as (b, K), number beside number: (b,) against (b, 1) would otherwise become (b, b) without a word."""
    rows, wanted = (one.flatten(1) if one.dim() > 1 else one.unsqueeze(1) for one in (outputs, targets))
    if rows.shape != wanted.shape:
        raise InvalidArgument(
            "targets",
            tuple(targets.shape),
            f"the outputs are {tuple(outputs.shape)}: each record needs as many targets as the model has outputs for it",
            "Change the last layer of the model, or the targets",
        )
    return rows, wanted.to(rows.dtype)


LOSSES: dict[str, _Elementwise] = {
    "cross-entropy": _cross_entropy,
    "bce": _binary_cross_entropy,
    "mse": _of_numbers(functional.mse_loss),
    "huber": _of_numbers(functional.huber_loss),
}
"""What computes each: (weights, outputs, targets) to one value for each number of a record."""


def mean_loss(loss: LossFunction, outputs: Tensor, targets: Tensor) -> Tensor:
    """The mean over a batch, for training without privacy. A function that adds records up is asked for each of them alone."""
    if (
        loss == Loss() and outputs.dim() == 2 and outputs.shape[1] > 1
    ):  # the mean that torch computes in one step: to the last bit what it was when there was no other loss
        return functional.cross_entropy(outputs, targets)
    if not isinstance(loss, Loss):
        return record_losses(loss, outputs, targets, together=False).mean()
    return loss(outputs, targets).mean()


def as_loss(loss: str | LossFunction) -> LossFunction:
    """The loss that a name stands for; a function stands for itself."""
    return Loss(loss) if isinstance(loss, str) else loss
