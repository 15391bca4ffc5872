"""Recurrent layers: RNN, LSTM, GRU and their cells.

A layer in one direction multiplies, at every time step, W_ih with x_t and W_hh with h_{t−1}; an LSTM with a projection also W_hr with
its output. `recurrent_cells.py` runs it and keeps both sides of these products; `TimeProducts` turns them into norms and sums.

The gradient of a matrix is g = Σ_t β_t ⊗ a_t with its inputs a_t and the gradients β_t of the product, as for a linear layer over T
positions; the ways to ‖g‖² are those of `linear.py`. Here several matrices may have the same β_t, so one Gram matrix of β serves all of
them. Everything comes time-major, (T, b, ·), as a loop over time leaves it, and is seen by record, (b, T, ·), without being moved.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, linear
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from apportion.curator.gradients.layer_use import scale_rows, upcast_half, weighted_sum, zero_rows
from apportion.curator.gradients.linear import choose_kernel, gram_norms, materialised_norms
from apportion.curator.gradients.recurrent_cells import (
    GRURecurrence,
    LSTMRecurrence,
    Recurrence,
    ReluRecurrence,
    TanhRecurrence,
    UnrolledRecurrence,
)
from apportion.curator.gradients.rounding import gram_matrix, squared_row_norms
from apportion.errors import UnsupportedModel

if TYPE_CHECKING:
    from apportion.curator.gradients.one_pass import OnePass


NamedTensors = Iterator[tuple[str, Tensor]]
"""A full name may come twice: two matrices of a layer may be one parameter."""


class TimeProducts:
    """Matrices whose products have the same gradient.

    Args:
        names: full names of what learns, by own name.
        gradients: β, (T, b·views, out).
        inputs: a, (T, b·views, in), by the own name of each matrix.
        biases: own names of what is added to the products.
        views: rows of a record, which lie behind each other in time from here on.
    """

    def __init__(
        self,
        names: Mapping[str, str],
        gradients: Tensor,
        inputs: Mapping[str, Tensor],
        biases: Sequence[str],
        views: int = 1,
    ):
        self._gradients = _by_record(gradients, views)
        self._inputs = [(names[own], _by_record(value, views)) for own, value in inputs.items() if own in names]
        self._biases = [names[own] for own in biases if own in names]
        self._totals: Tensor | None = None

    def kernels(self) -> set[str]:
        return {self._kernel(inputs) for _, inputs in self._inputs}

    def _kernel(self, inputs: Tensor) -> str:
        return choose_kernel(inputs.shape[1], inputs.shape[2], self._gradients.shape[2])

    def squared_norms(self) -> NamedTensors:
        of_gradients = gram_matrix(self._gradients) if "Gram" in self.kernels() else self._gradients
        for name, inputs in self._inputs:
            match self._kernel(inputs):
                case "product of norms":
                    yield name, squared_row_norms(inputs) * squared_row_norms(self._gradients)
                case "Gram":
                    yield name, gram_norms(inputs, self._gradients, of_gradients)
                case _:
                    yield name, materialised_norms(inputs, self._gradients)
        if self._biases:
            norms = squared_row_norms(self._bias_rows())
            yield from ((name, norms) for name in self._biases)

    def weighted_sums(self, weights: Mapping[str, Tensor]) -> NamedTensors:
        for name, inputs in self._inputs:
            # the inputs, because they are smaller than the gradients; both lie in memory by time
            product = scale_rows(weights[name], inputs, self._gradients).transpose(0, 1)
            yield name, self._gradients.transpose(0, 1).flatten(0, 1).T @ product.flatten(0, 1)
        if self._biases:
            yield from ((name, weighted_sum(weights[name], self._bias_rows())) for name in self._biases)

    def rows(self, records: slice) -> NamedTensors:
        for name, inputs in self._inputs:
            yield name, self._gradients[records].mT @ inputs[records]
        for name in self._biases:
            yield name, self._gradients[records].sum(1)

    def _bias_rows(self) -> Tensor:
        """Σ_t β_t, for the norms and again for the sums."""
        if self._totals is None:
            self._totals = self._gradients.sum(1)
        return self._totals

    def zero_records(self, records: Tensor) -> None:
        self._gradients, self._totals = zero_rows(records, self._gradients), None
        self._inputs = [(name, zero_rows(records, inputs)) for name, inputs in self._inputs]


def _by_record(values: Tensor, views: int) -> Tensor:
    """(T, b·views, size) → (b, views·T, size)."""
    rows = upcast_half(values).transpose(0, 1)
    return rows if views == 1 else rows.unflatten(0, (-1, views)).flatten(1, 2)


class RecurrentUse:
    """One use of a layer in one direction. Own names: "weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_hr"."""

    def __init__(self, names: Mapping[str, str], inputs: Tensor, recurrence: Recurrence):
        self.names, self._inputs, self._recurrence = names, inputs, recurrence
        self._products: list[TimeProducts] = []

    def receive(self, output_gradient: Tensor, views: int = 1) -> None:
        """The gradient of the projected input; the recurrence has those of the other products."""
        recurrence, names = self._recurrence, self.names
        if recurrence.hidden_gradients is None:
            inputs = {"weight_ih": self._inputs, "weight_hh": recurrence.before}
            self._products = [TimeProducts(names, output_gradient, inputs, ["bias_ih", "bias_hh"], views)]
        else:
            self._products = [
                TimeProducts(names, output_gradient, {"weight_ih": self._inputs}, ["bias_ih"], views),
                TimeProducts(names, recurrence.hidden_gradients, {"weight_hh": recurrence.before}, ["bias_hh"], views),
            ]
        if isinstance(recurrence, LSTMRecurrence) and "weight_hr" in names:
            inputs = {"weight_hr": recurrence.cell_outputs}
            self._products.append(TimeProducts(names, recurrence.output_gradients, inputs, [], views))

    @property
    def kernel(self) -> str:
        return ", ".join(sorted(set().union(*(products.kernels() for products in self._products))))

    def squared_norms(self) -> dict[str, Tensor]:
        return _sum_by_name(products.squared_norms() for products in self._products)

    def weighted_sums(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return _sum_by_name(products.weighted_sums(weights) for products in self._products)

    def rows(self, name: str, records: slice) -> Tensor:
        return _sum_by_name(products.rows(records) for products in self._products)[name]

    def zero_records(self, records: Tensor) -> None:
        for products in self._products:
            products.zero_records(records)


def _sum_by_name(parts: Iterable[NamedTensors]) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for part in parts:
        for name, value in part:
            found[name] = found[name] + value if name in found else value
    return found


class _RecurrentRunner:
    """The directions of a recurrent module in the scratch copy, each run as a recurrence that the engine watches."""

    def __init__(self, module: nn.Module, path: str, names: Mapping[str, str], engine: OnePass):
        self._module, self._path, self._engine = module, path, engine
        full = {id(parameter): names[own] for own, parameter in module.named_parameters() if own in names}
        self._names = {  # a parameter that serves as several matrices of the module is named once only in `names`
            own: full[id(p)] for own, p in module.named_parameters(remove_duplicate=False) if id(p) in full
        }

    def run(
        self,
        suffix: str,
        inputs: Tensor,
        initial: Sequence[Tensor],
        backwards: bool = False,
        moving: Tensor | None = None,
    ) -> tuple[Tensor, ...]:
        """One direction on `inputs` (T, b, in): its hidden states (T, b, out), then its final state."""
        parameters = dict(self._module.named_parameters(remove_duplicate=False))
        owned = ("weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_hr")
        weights = {own: parameters[own + suffix] for own in owned if own + suffix in parameters}
        names = {own: self._names[own + suffix] for own in owned if own + suffix in self._names}
        recurrence = _recurrence_type(self._module)(weights, backwards, moving)
        bias: Tensor | None = weights.get("bias_ih")
        if bias is not None and recurrence.bias_joins_input:
            bias = bias + weights["bias_hh"]
        projected = linear(inputs, weights["weight_ih"], bias)
        if names:
            use = RecurrentUse(names, self._engine.save_input(self._path, inputs, batch_dimension=1), recurrence)
            projected = self._engine.tap_output(use, projected, batch_dimension=1)
        if (checker := self._engine.checker) is not None:
            checker.require_rows(f"what {self._path} goes through in time", projected, 1)
            for state in initial:
                checker.require_rows(f"the first state of {self._path}", state, 0)
            return checker.replace_kernel(
                lambda: (
                    checker.make_traced((*projected.shape[:2], initial[0].shape[1]), 1, projected),
                    *(checker.make_traced(tuple(state.shape), 0, projected) for state in initial),
                ),
                projected,
                *initial,
            )
        results: tuple[Tensor, ...] = UnrolledRecurrence.apply(recurrence, projected, *initial)
        return results

    def require_batched(self, inputs: Tensor, dimensions: int) -> None:
        if inputs.dim() != dimensions:
            raise UnsupportedModel(
                f"{self._path} ({type(self._module).__name__}) is called with an input of shape {tuple(inputs.shape)}, which has no "
                f"batch dimension, so there are no records to tell apart. Give it {dimensions} dimensions"
            )


def _recurrence_type(module: nn.Module) -> type[Recurrence]:
    if isinstance(module, (nn.LSTM, nn.LSTMCell)):
        return LSTMRecurrence
    if isinstance(module, (nn.GRU, nn.GRUCell)):
        return GRURecurrence
    return ReluRecurrence if module.nonlinearity == "relu" else TanhRecurrence


def replace_recurrent_layers(module: nn.RNNBase, path: str, names: Mapping[str, str], engine: OnePass) -> None:
    """Run an `nn.RNN`, `nn.LSTM` or `nn.GRU` of the scratch copy as recurrences, layer by layer and direction by direction."""
    layers = _RecurrentRunner(module, path, names, engine)
    is_lstm = isinstance(module, nn.LSTM)
    directions = 2 if module.bidirectional else 1

    def forward(input: Any, hx: Any = None) -> Any:  # noqa: A002, the module's own name
        moving = None
        if isinstance(input, PackedSequence):
            sequence, lengths = pad_packed_sequence(input)
            if int(lengths.min()) < sequence.shape[0]:
                moving = (torch.arange(sequence.shape[0])[:, None] < lengths).unsqueeze(2).to(sequence.device)
            checked, batch_sizes = input.data, input.batch_sizes
        else:
            layers.require_batched(input, 3)
            sequence = input.transpose(0, 1).contiguous() if module.batch_first else input
            checked, batch_sizes = input, None
        given: Any = _zero_state(module, sequence) if hx is None else hx if is_lstm else (hx,)
        module.check_forward_args(checked, given if is_lstm else given[0], batch_sizes)
        finals = []
        for layer in range(module.num_layers):
            results = []
            for direction in range(directions):
                place = layer * directions + direction
                suffix = f"_l{layer}" + ("_reverse" if direction else "")
                results.append(layers.run(suffix, sequence, [state[place] for state in given], bool(direction), moving))
            sequence = results[0][0] if directions == 1 else torch.cat([result[0] for result in results], 2)
            finals += [result[1:] for result in results]
            if module.dropout and layer < module.num_layers - 1:
                sequence = dropout(sequence, module.dropout, module.training)
        if isinstance(input, PackedSequence):
            output: Any = _pack_again(sequence, lengths, input)
        else:
            output = sequence.transpose(0, 1) if module.batch_first else sequence
        states = tuple(torch.stack(state) for state in zip(*finals, strict=True))
        return output, states if is_lstm else states[0]

    module.forward = forward


def _zero_state(module: nn.RNNBase, sequence: Tensor) -> tuple[Tensor, ...]:
    count = module.num_layers * (2 if module.bidirectional else 1)
    hidden = sequence.new_zeros(count, sequence.shape[1], module.proj_size or module.hidden_size)
    if not isinstance(module, nn.LSTM):
        return (hidden,)
    return hidden, sequence.new_zeros(count, sequence.shape[1], module.hidden_size)


def _pack_again(sequence: Tensor, lengths: Tensor, like: PackedSequence) -> PackedSequence:
    """Records are in their own order here; `like` has them by falling length."""
    if like.sorted_indices is not None:
        sequence, lengths = sequence.index_select(1, like.sorted_indices), lengths[like.sorted_indices.cpu()]
    packed = pack_padded_sequence(sequence, lengths)
    return PackedSequence(packed.data, like.batch_sizes, like.sorted_indices, like.unsorted_indices)


def replace_recurrent_cell(module: nn.RNNCellBase, path: str, names: Mapping[str, str], engine: OnePass) -> None:
    """Run an `nn.RNNCell`, `nn.LSTMCell` or `nn.GRUCell` of the scratch copy as a recurrence of one step."""
    layers = _RecurrentRunner(module, path, names, engine)
    is_lstm = isinstance(module, nn.LSTMCell)

    def forward(input: Tensor, hx: Any = None) -> Any:  # noqa: A002, the module's own name
        layers.require_batched(input, 2)
        if hx is None:
            zeros = input.new_zeros(input.shape[0], module.hidden_size)
            hx = (zeros, zeros) if is_lstm else zeros
        _, *states = layers.run("", input.unsqueeze(0), hx if is_lstm else (hx,))
        return tuple(states) if is_lstm else states[0]

    module.forward = forward
