"""The engine: per-record norms and clipped sums from one forward and one backward pass.

The forward pass runs the whole micro-batch through a **scratch copy** of the model, whose weights are copies that autograd does not
track. Every layer with trained parameters notes its input; the backward pass brings the gradient of its output, and skips what an
ordinary one would spend on weight gradients. From the two, layer by layer, follow the squared norms of the records' gradients, and
after clipping weights were chosen, the weighted sums (`layer_use.py`). No per-record gradient outlives its layer, and nothing is
differentiated twice.

Modules without a rule of their own run record by record under `torch.func.vmap` (`fallback.py`), while all others keep the fast path.
Whether a model's records stay apart, and whether these gradients are those of single records, is established beforehand on synthetic
records (`probe.py`).
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from apportion.curator.gradients.layer_use import LayerUse, full_precision, split_records, upcast_half, weighted_sum
from apportion.curator.gradients.layers import instrument_model
from apportion.curator.gradients.losses import LossFunction, record_losses, require_own_leaves
from apportion.curator.gradients.model_walk import Found, ModelWalk, trained_parameters
from apportion.curator.gradients.module_state import ModelStructure, ModuleState
from apportion.curator.gradients.rounding import squared_row_norms
from apportion.curator.tree import batch_size, call_arguments, drop_objects, map_tensors
from apportion.devices import with_float64
from apportion.errors import UnsupportedModel, WrongOrder
from apportion.execution import Mode

LayerCall = tuple[str, int]
"""A layer, and which of its calls in a forward pass."""


class RecordChecker(Protocol):
    """Checks, while an engine runs on tensors without values, that its layers get the rows of single records (`proof.py`)."""

    def require_own_input(self, call: LayerCall, value: Tensor) -> None:
        """Raise if a layer is called with something that belongs to no record."""
        ...

    def require_rows(self, what: str, value: Tensor, dimension: int) -> None:
        """Raise unless row i along `dimension` is made of record i alone, for every i, and nothing else is in it."""
        ...

    def replace_kernel(self, outputs: Callable[[], tuple[Tensor, ...]], *inputs: Tensor) -> tuple[Tensor, ...]:
        """Stands for one of the engine's own kernels, which are known to keep records apart: its outputs, and gradients of its inputs."""
        ...

    def make_traced(self, shape: tuple[int, ...], dimension: int, like: Tensor) -> Tensor:
        """A tensor whose records are along `dimension`."""
        ...

    def output_alone(self, path: str, call: int, inputs: Any) -> Any:
        """Stands for a module that runs one record after the other: what its call number `call` returns."""
        ...


class InputOverwritten(UnsupportedModel):
    """A later layer overwrote an input that is needed in the backward pass."""

    def __init__(self, layer: str):
        super().__init__(
            f"the input of {layer} is overwritten in place after it was used, so its gradient cannot be computed. "
            "Use inplace=False, and x = x + y instead of x += y; ap.fix(model) does the former in a copy"
        )
        self.layer = layer


class RecordGradients:
    """The gradients of b records, by parameter, without writing them out.

    Args:
        uses: every use of a layer in the forward pass; together they mention each trained parameter at least once.
        shapes: of the trained parameters, by name. One that no record used has a gradient of zero.
    """

    def __init__(self, uses: list[LayerUse], shapes: Mapping[str, Tensor], records: int):
        self._shapes, self._records = shapes, records
        counted = [name for use in uses for name in use.names.values()]
        distinct = set(counted)
        self._shared = {name for name in distinct if counted.count(name) > 1} if len(distinct) < len(counted) else set()
        self._uses = uses
        self._unused = shapes.keys() - distinct

    def squared_norms(self) -> dict[str, Tensor]:
        """‖g_i‖² for each parameter, (b,), in float64."""
        norms: dict[str, Tensor] = {}
        for use in self._uses:
            if not self._shared or set(use.names.values()) - self._shared:
                norms.update(use.squared_norms())
        for name in self._shared:  # norms of sums do not add up: the rows are added first
            parts = [squared_row_norms(self.rows(name, part)) for part in self._chunks(name)]
            norms[name] = torch.cat(parts)
        for name in self._unused:
            norms[name] = with_float64(self._shapes[name].new_zeros(self._records))
        return {
            name: norms[name] if norms[name].dtype == torch.float64 else norms[name].double() for name in self._shapes
        }

    def weighted_sums(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Σ_i w_i·g_i for each parameter."""
        sums: dict[str, Tensor] = {}
        for use in self._uses:
            if not self._shared or set(use.names.values()) - self._shared:
                sums.update(use.weighted_sums(weights))
        for name in self._shared:  # of the rows whose norms were taken: sums of single uses would round differently
            parts = [weighted_sum(weights[name][part], self.rows(name, part)) for part in self._chunks(name)]
            sums[name] = torch.stack(parts).sum(0)
        for name in self._unused:
            sums[name] = torch.zeros_like(self._shapes[name])
        return {name: sums[name].reshape(self._shapes[name].shape) for name in self._shapes}

    def kernels(self) -> dict[str, str]:
        """How the norms of each parameter are computed, for people."""
        found = dict.fromkeys(self._unused, "not used")
        for use in self._uses:
            found |= dict.fromkeys(use.names.values(), use.kernel)
        return found | dict.fromkeys(self._shared, "rows of several uses added")

    def zero_records(self, records: Tensor) -> None:
        """Set the gradients of these records, a mask (b,), to zero: NaN times a weight of zero would still be NaN."""
        for use in self._uses:
            use.zero_records(records)

    def rows(self, name: str, records: slice) -> Tensor:
        """The gradients of some records for one parameter, written out: (n, *shape)."""
        shape = self._shapes[name].shape
        uses = [use.rows(name, records).reshape(-1, *shape) for use in self._uses if name in use.names.values()]
        if len(uses) == 1:
            return uses[0]
        return torch.stack(uses).sum(0) if uses else self._shapes[name].new_zeros(records.stop - records.start, *shape)

    def __len__(self) -> int:
        return self._records

    def _chunks(self, name: str) -> list[slice]:
        return split_records(self._records, self._shapes[name].numel())


class OpenPass(NamedTuple):
    """What a forward pass has noted, until its backward pass."""

    uses: list[LayerUse]
    noted: list[tuple[str, Tensor, int]]
    leaves: list[Tensor]
    collected: list[LayerUse]
    records: int | None
    views: int


class _OutputTap(torch.autograd.Function):
    """The output of a layer, unchanged; its gradient is delivered on its way back, and goes no further than it must.

    A tensor's own hook would not do: it is also called when somebody differentiates with respect to that tensor.
    """

    @staticmethod
    def forward(context: Any, output: Tensor, anchor: Tensor, deliver: Callable[[Tensor], None], copy: bool) -> Tensor:
        context.deliver = deliver
        if copy:
            return output.clone()
        if output._is_view():
            return output.view_as(output)
        context.mark_dirty(output)  # so that a later layer may overwrite it, as nn.ReLU(inplace=True) does
        return output

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor | None, None, None, None]:
        context.deliver(gradient)
        return gradient if context.needs_input_grad[0] else None, None, None, None


def to_channels_last(tensor: Tensor) -> Tensor:
    """The same values; images and kernels with the channels of a pixel side by side in memory."""
    # `contiguous` would leave images of one channel as they are: both layouts fit them, but kernels go by the strides
    return tensor.to(memory_format=torch.channels_last) if tensor.dim() == 4 else tensor


class OnePass:
    """`forward` a micro-batch, run a backward pass of its summed loss, then fetch the `gradients`.

    Args:
        model: the model that is trained; never run itself.
        mode: which of the three ways. Copies of the layers' inputs are for models that overwrite them in place. Channels last is a
            layout of images and kernels in memory; some models take the usual one for granted, as `x.view(len(x), -1)` does.
        alone: modules whose records must not run together: they run one record after the other, while all others keep the fast path.
        shared: calls of layers on something that belongs to no record, as embeddings of positions are: input and output get a row for each
            record, so that the gradient of the output is that of single records.
        losses_together: whether the records' losses are evaluated under `vmap`, or one after the other.
        lent: whether the model is there for this engine alone: the scratch copy uses its weights, and a step in which code writes to them
            goes no further.
    """

    checker: RecordChecker | None = None
    """While the engine is traced (`proof.py`), checks everything whose rows must belong to one record each."""
    proved_outputs: Mapping[str, list[Any]] | None = None
    """Of what kind the outputs of modules that run alone were when records were traced, by module and call; `None` if that is not known."""
    rebuilt = False
    """Whether the scratch copy was made anew since, from the model as it was then: nothing that was shown of this engine holds any more."""

    def __init__(
        self,
        model: nn.Module,
        mode: Mode = "one-pass",
        alone: Collection[str] = (),
        shared: Collection[LayerCall] = (),
        losses_together: bool = True,
        lent: bool = False,
    ):
        self.model, self.mode, self._lent = model, mode, lent
        self.alone, self._shared, self._losses_together = frozenset(alone), frozenset(shared), losses_together
        self._calls: Counter[str] = Counter()
        self.outputs_alone: dict[str, list[Any]] = {}
        """What each call of a module that runs alone returned in the last forward pass: shapes and types of one record."""
        self._channels_last = mode == "one-pass, channels last"
        self._uses: list[LayerUse] = []
        self._noted: list[tuple[str, Tensor, int]] = []
        self._records: int | None = None
        self._views = 1
        self.anchor = torch.zeros((), requires_grad=True)
        """What autograd differentiates to: a first layer's output must require a gradient although nothing before it does."""
        self._copy_inputs = mode == "one-pass, copying inputs"
        self._leaves: list[Tensor] = []
        self._collected: list[LayerUse] = []
        self._walk = ModelWalk(model)
        self._structure = ModelStructure(self._walk)
        self._writes = _count_writes(self._walk.find())
        self._build()

    def _build(self) -> None:
        lent = self.model.parameters() if self._lent else ()
        memo: dict[int, Any] = {id(one): nn.Parameter(one.detach(), requires_grad=one.requires_grad) for one in lent}
        self.scratch = copy.deepcopy(self.model, memo)
        if self._channels_last:
            for parameter in self.scratch.parameters():
                parameter.data = to_channels_last(parameter.data)
        self.fallbacks = instrument_model(self.scratch, self, self.alone)
        """Modules without a rule of their own."""
        self.module_state = ModuleState(self.scratch)
        self._copies = ModelWalk(self.scratch).find()  # as they are whenever the state of the modules was restored
        self._copied: list[tuple[int, int]] = []

    def hook_layer(self, module: nn.Module, path: str, names: Mapping[str, str], make: Callable[..., LayerUse]) -> None:
        """At every call of `module` save its input, and have the gradient of its output delivered."""

        def noted(module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any], output: Tensor) -> Tensor:
            given = inputs[0] if inputs else named["input"]
            call = path, self._calls[path]
            self._calls[path] += 1
            if call in self._shared:
                given, output = self._expand_to_records(given), self._expand_to_records(output)
            elif self.checker is not None:
                self.checker.require_own_input(call, given)
            use = make(module, names, self.save_input(path, given))
            self._require_one_row_each(use, given)
            return self.tap_output(use, output)

        # First of the hooks: what a hook of the model's own makes of the output comes after the layer.
        module.register_forward_hook(noted, with_kwargs=True, prepend=True)

    def _expand_to_records(self, value: Tensor) -> Tensor:
        """The same value for every record."""
        assert self._records is not None
        rows = value if value.shape[0] == 1 else value.unsqueeze(0)
        return rows.expand(self._records, *rows.shape[1:])

    def save_input(self, path: str, value: Tensor, batch_dimension: int = 0) -> Tensor:
        """Keep an input for the backward pass, and detect later whether it was overwritten."""
        kept = value.detach()
        if self.checker is not None:
            self.checker.require_rows(f"the input of {path}", value, batch_dimension)
        if self._copy_inputs:
            return upcast_half(kept.clone())
        self._noted.append((path, kept, kept._version))
        return upcast_half(kept)

    def tap_output(self, use: LayerUse, output: Tensor, batch_dimension: int = 0) -> Tensor:
        """The layer's output, as later layers see it; its gradient is delivered to `use`."""
        self._require_one_row_each(use, output, batch_dimension)
        uses = self._uses  # of this forward pass, whichever is open when the gradient arrives

        def deliver(gradient: Tensor) -> None:
            if self.checker is not None:
                self.checker.require_rows(f"the gradient of {', '.join(use.names.values())}", gradient, batch_dimension)
                return
            if not self._records:
                return  # of an empty batch every gradient is zero, as of a layer that was not used
            with full_precision():
                use.receive(upcast_half(gradient.detach()), self._views)
            uses.append(use)

        tapped: Tensor = _OutputTap.apply(output, self.anchor, deliver, self._copy_inputs)
        return tapped

    def collect(self, use: LayerUse, leaves: Collection[Tensor]) -> None:
        """A use whose gradients autograd leaves in tensors of its own, with a row for each record."""
        for leaf in leaves:
            self._require_one_row_each(use, leaf)
        self.collect_alone(use, leaves)

    def collect_alone(self, use: LayerUse, leaves: Collection[Tensor]) -> None:
        """Likewise, with tensors of its own for each record."""
        self._leaves.extend(leaves)
        self._collected.append(use)

    def _require_one_row_each(self, use: LayerUse, value: Tensor, batch_dimension: int = 0) -> None:
        """A layer that gets k rows of one record would clip each of them separately, and they would add up to k·C."""
        if self.checker is not None:
            self.checker.require_rows(", ".join(use.names.values()), value, batch_dimension)
            return
        if (rows := value.shape[batch_dimension]) != self._records:
            raise UnsupportedModel(
                f"the layer with {', '.join(use.names.values())} got {rows} rows for {self._records} records: its first dimension "
                "is not the batch. Keep the records apart in the first dimension"
            )

    def forward(self, inputs: Any, views: int = 1) -> Any:
        """The model's outputs for a batch. So many rows of it, one after the other, are views of one record."""
        self._sync()
        return self.run(inputs, views)

    def run(self, inputs: Any, views: int = 1) -> Any:
        """The outputs of the scratch copy as it is."""
        self._views = views
        self._uses, self._noted, self._leaves, self._collected = [], [], [], []
        self._records, self.outputs_alone, self._calls = batch_size(inputs), {}, Counter()
        positional, named = call_arguments(map_tensors(to_channels_last, inputs) if self._channels_last else inputs)
        return drop_objects(self.scratch(*positional, **named))

    def record_losses(self, loss_fn: LossFunction, outputs: Any, targets: Any) -> Tensor:
        """The loss of every row alone, (b·views,)."""
        return record_losses(loss_fn, outputs, targets, together=self._losses_together)

    def require_own_parameters(self, loss: Tensor) -> None:
        """Refuse a loss that would leave a raw gradient in something that is not the engine's own."""
        require_own_leaves(loss, [self.anchor, *self._leaves])

    def gradients(self) -> RecordGradients:
        """What the backward pass delivered. Can be fetched once."""
        if self._records is None:
            raise WrongOrder("no forward pass is open: call the private model on the batch before the step")
        for path, value, version in self._noted:
            if value._version != version:
                raise InputOverwritten(path)
        for use in self._collected:
            use.receive(self.anchor, self._views)
        records, self._records = self._records // self._views, None
        uses, self._uses, self._noted, self._collected, self._leaves = self._uses + self._collected, [], [], [], []
        return RecordGradients(uses, trained_parameters(self._walk), records)

    def set_aside(self) -> OpenPass:
        """The forward pass that is open. Others may run before `take_up` goes on with it, as in a pipeline."""
        return OpenPass(self._uses, self._noted, self._leaves, self._collected, self._records, self._views)

    def take_up(self, kept: OpenPass) -> None:
        """Go on with a forward pass that was set aside: its backward pass comes next."""
        self._uses, self._noted, self._leaves, self._collected, self._records, self._views = kept

    def row_leaves(self) -> list[Tensor]:
        """The tensors in which autograd leaves the gradients of modules without a rule, one row per record."""
        return list(self._leaves)

    def sync_weights(self) -> None:
        """Copy weights, buffers and training flags from the model; to be called before every step.

        Micro-batches detect changes themselves, except those made through `parameter.data`, which leave no trace.
        """
        self._copied = []
        found = self._structure.require_same()
        self._writes = _count_writes(found)
        self._take_over(found)

    def _sync(self) -> None:
        self._take_over(self._structure.require_same())

    def _take_over(self, found: Found) -> None:
        if self._lent and self._writes != _count_writes(found):
            raise UnsupportedModel("the model writes to its own weights when it is run. Leave that to the optimizer")
        try:
            self._copy_state(found)
        except Exception:  # what a module made of its copy cannot be undone
            self._build()
            self.rebuilt = True
            self._copy_state(found)

    def _copy_state(self, found: Found) -> None:
        self.module_state.restore()
        state = self._state(found) if self._copied else []
        written = not state or self._copied != state  # not for the further micro-batches of a step
        if written or found.buffers:
            with torch.no_grad():
                for copied, original in zip(self._copies.buffers, found.buffers, strict=True):
                    if not torch.equal(copied, original):  # autograd may have kept it for a pass that was set aside
                        copied.copy_(original)
                if written and not self._lent:
                    for copied, original in self._weights(found):
                        copied.copy_(original)
        if written:
            self._copied = self._state(found)
        for own, module in zip(self._copies.modules.values(), found.modules.values(), strict=True):
            if own.training != module.training:  # torch takes longer to set a flag than to look at it
                own.training = module.training

    def _weights(self, found: Found) -> Iterator[tuple[Tensor, Tensor]]:
        """Every parameter of the scratch copy, and that of the model."""
        return zip(self._copies.parameters.values(), found.parameters.values(), strict=True)

    def _state(self, found: Found) -> list[tuple[int, int]]:
        """Which weights there are and how often each was written to."""
        return [(tensor.data_ptr(), tensor._version) for pair in self._weights(found) for tensor in pair]


def _count_writes(found: Found) -> list[int]:
    """How often each weight was written to, in the model or in the scratch copy that uses it."""
    return [parameter._version for parameter in found.parameters.values()]
