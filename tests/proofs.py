"""Engines that are proved once for models of one structure, in suites that train the same small model again and again.

What a proof takes is public: modules, shapes and types. Suites about models, engines, guards and audits prove anew every time.
"""

from contextlib import contextmanager
from unittest import mock

from torch import Tensor, nn
from torch.utils._pytree import tree_flatten

from apportion.training import opening

PROVED_ONCE = {
    *("cli", "compare", "fuzz", "report", "search", "strategies", "teachers", "tuning"),
    *(
        "test_crash",
        "test_early_stopping",
        "test_feedback_runs",
        "test_individual_runs",
        "test_make_private",
        "test_metrics",
        "test_people",
        "test_replay_of_people",
        "test_resume",
        "test_run_folder",
        "test_sealed",
        "test_sklearn",
        "test_train",
        "test_update_runs",
        "test_usable",
        "checks_runs",
        "test_fabric",
    ),
}
"""Folders and modules of tests."""
_prove, _proved = opening.choose_engine, {}


def _structure(model):
    own = [*model.named_parameters(), *model.named_buffers()]
    tensors = [(name, tensor.shape, tensor.dtype, tensor.device, tensor.requires_grad) for name, tensor in own]
    return repr(model), tuple(type(module) for module in model.modules()), tuple(tensors)


def _kind(tree):
    leaves, structure = tree_flatten(tree)
    return str(structure), tuple((leaf.shape, leaf.dtype) if isinstance(leaf, Tensor) else leaf for leaf in leaves)


def _remembered(model, loss_fn, inputs, target, wanted="auto"):
    loss = _structure(loss_fn) if isinstance(loss_fn, nn.Module) else loss_fn
    key = _structure(model), loss, _kind(inputs), _kind(target), wanted
    if key not in _proved:
        _proved[key] = _prove(model, loss_fn, inputs, target, wanted)
    return _proved[key]


@contextmanager
def proofs_remembered():
    with mock.patch.object(opening, "choose_engine", _remembered):
        yield
