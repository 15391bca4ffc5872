"""Recurrent cells through time: forward, and backward by hand.

At step t a cell takes the projected input p_t = W_ih·x_t + b_ih and the state before, h' and for an LSTM c' (σ the logistic function,
⊙ element by element):

    RNN    h = φ(p + W_hh·h'),                                            φ = tanh or relu
    LSTM   i, f, o = σ(p + W_hh·h'), g = tanh(…), c = f⊙c' + i⊙g, u = o⊙tanh(c), h = u, or W_hr·u with a projection
    GRU    r, z = σ(p + W_hh·h' + b_hh), n = tanh(p_n + r⊙(W_hh·h' + b_hh)_n), h = n + z⊙(h' − n)

The gradient of the gates is linear in that of the state, so the forward pass keeps only the **coefficients** of that linear map, and
the backward pass is one product with W_hh and a few multiplications a step. No graph is built inside the loop, and one buffer
(T, b, gates·hidden) holds in turn the projected input, the gates, the coefficients and the gradients.

Everything is time-major: (T, b, ·). A record whose sequence ends before T holds its state where it is not `moving`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

_from_sigmoid = torch.ops.aten.sigmoid_backward.grad_input  # gradient·y·(1−y), in one kernel
_from_tanh = torch.ops.aten.tanh_backward.grad_input  # gradient·(1−y²)


class Recurrence:
    """One layer in one direction, on one batch.

    Args:
        weights: "weight_hh" and, if the cell has them, "bias_hh" and "weight_hr".
        backwards: whether time runs from the end to the start.
        moving: (T, b, 1), where a record's sequence has not ended; None if all have the same length.
    """

    bias_joins_input = True
    """Whether b_hh can be added to the projected input, which is one pass less."""

    def __init__(self, weights: Mapping[str, Tensor], backwards: bool, moving: Tensor | None):
        self._weights, self._backwards, self._moving = weights, backwards, moving
        self.before: Tensor
        """h' of every step, (T, b, size): what W_hh is multiplied by."""
        self.hidden_gradients: Tensor | None = None
        """Of W_hh·h', (T, b, gates·hidden), after the backward pass; None where they are those of the projected input."""

    def forward(self, projected: Tensor, *initial: Tensor) -> tuple[Tensor, ...]:
        """Hidden states of all steps, then the final state (h, and c if there is one). Writes over `projected`."""
        steps = projected.shape[0]
        self._times = range(steps - 1, -1, -1) if self._backwards else range(steps)
        kept = [start.new_empty(steps + 1, *start.shape) for start in initial]
        self._before = [states[1:] if self._backwards else states[:-1] for states in kept]
        self._after = [states[:-1] if self._backwards else states[1:] for states in kept]
        self.before = self._before[0]
        for before, start in zip(self._before, initial, strict=True):
            before[self._times[0]] = start
        self._prepare(projected)
        for t in self._times:
            self._step(t, projected[t])
            if self._moving is not None:
                for before, after in zip(self._before, self._after, strict=True):
                    torch.where(self._moving[t], after[t], before[t], out=after[t])
        self._coefficients: Tensor | None = projected
        # Copies, which later layers may write over: the states are needed as inputs of W_hh.
        return self._after[0].clone(), *(after[self._times[-1]].clone() for after in self._after)

    def backward(self, of_outputs: Tensor | None, *of_final: Tensor | None) -> tuple[Tensor, ...]:
        """From the gradients of what `forward` returned to those of its arguments."""
        state = [
            torch.zeros_like(before[0]) if gradient is None else gradient
            for before, gradient in zip(self._before, of_final, strict=True)
        ]
        if self._coefficients is None:
            raise RuntimeError("a recurrent layer is differentiated a second time; its loss allows one backward pass")
        of_projected, self._coefficients = self._coefficients, None  # written over, step by step
        self._prepare_back(of_projected)
        for t in reversed(self._times):
            if of_outputs is not None:
                state[0] = state[0] + of_outputs[t]
            if self._moving is None:
                state = self._step_back(t, of_projected[t], *state)
                continue
            held = [gradient * ~self._moving[t] for gradient in state]
            state = self._step_back(t, of_projected[t], *(gradient * self._moving[t] for gradient in state))
            state = [gradient + past for gradient, past in zip(state, held, strict=True)]
        return of_projected, *state

    def _prepare(self, projected: Tensor) -> None: ...

    def _prepare_back(self, of_projected: Tensor) -> None: ...

    def _step(self, t: int, projected: Tensor) -> None:
        """From the state before t to the one after; leaves in `projected` the coefficients of its gradient."""
        raise NotImplementedError

    def _step_back(self, t: int, projected: Tensor, of_hidden: Tensor, *of_cell: Tensor) -> list[Tensor]:
        """From the coefficients in `projected` to its gradient, in place; returns the gradients of the state before."""
        raise NotImplementedError


class TanhRecurrence(Recurrence):
    def _step(self, t: int, projected: Tensor) -> None:
        projected.addmm_(self.before[t], self._weights["weight_hh"].T)
        self._activate(projected, self._after[0][t])

    def _activate(self, projected: Tensor, hidden: Tensor) -> None:
        torch.tanh(projected, out=hidden)
        torch.mul(hidden, hidden, out=projected).neg_().add_(1)

    def _step_back(self, t: int, projected: Tensor, of_hidden: Tensor, *of_cell: Tensor) -> list[Tensor]:
        return [projected.mul_(of_hidden) @ self._weights["weight_hh"]]


class ReluRecurrence(TanhRecurrence):
    def _activate(self, projected: Tensor, hidden: Tensor) -> None:
        torch.clamp(projected, min=0, out=hidden)
        torch.gt(hidden, 0, out=projected)


class LSTMRecurrence(Recurrence):
    def _prepare(self, projected: Tensor) -> None:
        steps, records = projected.shape[:2]
        size = projected.shape[2] // 4
        self._tanh = projected.new_empty(records, size)
        self._forget, self._through = projected.new_empty(2, steps, records, size)
        self._projects = "weight_hr" in self._weights
        self.cell_outputs = projected.new_empty(steps, records, size) if self._projects else self._after[0]
        """u of every step: what W_hr is multiplied by."""

    def _step(self, t: int, projected: Tensor) -> None:
        tanh, before, after = self._tanh, self._before[1][t], self._after[1][t]
        size = tanh.shape[1]
        projected.addmm_(self.before[t], self._weights["weight_hh"].T)
        i, f, g, o = projected.split(size, 1)
        projected[:, : 2 * size].sigmoid_()
        g.copy_(tanh.copy_(g).tanh_())  # in a slice torch would start its threads once for each row
        o.sigmoid_()
        torch.mul(f, before, out=after).addcmul_(i, g)
        torch.tanh(after, out=tanh)
        torch.mul(o, tanh, out=self.cell_outputs[t])
        if self._projects:
            torch.mm(self.cell_outputs[t], self._weights["weight_hr"].T, out=self._after[0][t])
        _from_tanh(o, tanh, grad_input=self._through[t])
        _from_sigmoid(tanh, o, grad_input=o)
        self._forget[t] = f
        _from_sigmoid(before, f, grad_input=f)
        gate = tanh.copy_(i)
        _from_sigmoid(g, i, grad_input=i)
        _from_tanh(gate, g, grad_input=g)

    def _prepare_back(self, of_projected: Tensor) -> None:
        if self._projects:
            self.output_gradients = torch.empty_like(self.before)
            """Of W_hr·u."""

    def _step_back(self, t: int, projected: Tensor, of_hidden: Tensor, *of_cell: Tensor) -> list[Tensor]:
        if self._projects:
            self.output_gradients[t] = of_hidden
            of_hidden = of_hidden @ self._weights["weight_hr"]
        size = of_hidden.shape[1]
        cell = torch.addcmul(of_cell[0], of_hidden, self._through[t])
        projected[:, : 3 * size].unflatten(1, (3, size)).mul_(cell.unsqueeze(1))
        projected[:, 3 * size :].mul_(of_hidden)
        return [projected @ self._weights["weight_hh"], cell.mul_(self._forget[t])]


class GRURecurrence(Recurrence):
    bias_joins_input = False  # b_hh of n is inside the product with r

    def _prepare(self, projected: Tensor) -> None:
        steps, records = projected.shape[:2]
        self._keep, self._reset = projected.new_empty(2, steps, records, projected.shape[2] // 3)

    def _step(self, t: int, projected: Tensor) -> None:
        before = self.before[t]
        size = before.shape[1]
        hidden = nn.functional.linear(before, self._weights["weight_hh"], self._weights.get("bias_hh"))
        hidden_n = hidden[:, 2 * size :]
        r, z = torch.sigmoid_(projected[:, : 2 * size].add(hidden[:, : 2 * size])).split(size, 1)
        n = torch.addcmul(projected[:, 2 * size :], r, hidden_n).tanh_()
        past = before - n
        torch.addcmul(n, z, past, out=self._after[0][t])
        of_r, of_z, of_n = projected.split(size, 1)
        _from_tanh(1 - z, n, grad_input=of_n)
        _from_sigmoid(past, z, grad_input=of_z)
        _from_sigmoid(of_n * hidden_n, r, grad_input=of_r)
        self._keep[t], self._reset[t] = z, r

    def _prepare_back(self, of_projected: Tensor) -> None:
        self._of_products = self.hidden_gradients = torch.empty_like(of_projected)

    def _step_back(self, t: int, projected: Tensor, of_hidden: Tensor, *of_cell: Tensor) -> list[Tensor]:
        size = of_hidden.shape[1]
        projected.unflatten(1, (3, size)).mul_(of_hidden.unsqueeze(1))
        of_product = self._of_products[t]
        of_product[:, : 2 * size] = projected[:, : 2 * size]
        torch.mul(projected[:, 2 * size :], self._reset[t], out=of_product[:, 2 * size :])
        return [torch.addmm(of_hidden * self._keep[t], of_product, self._weights["weight_hh"])]


class UnrolledRecurrence(torch.autograd.Function):
    """A recurrence as one operation of autograd: (recurrence, projected input, initial state) → (hidden states, final state)."""

    @staticmethod
    def forward(ctx: Any, recurrence: Recurrence, projected: Tensor, *initial: Tensor) -> tuple[Tensor, ...]:
        ctx.recurrence = recurrence
        ctx.set_materialize_grads(False)
        return recurrence.forward(projected, *initial)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        return None, *ctx.recurrence.backward(*gradients)
