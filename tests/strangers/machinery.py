"""What people build around a forward pass: checkpointing, half precision, functions and hooks with a backward of their own, scripts."""

from __future__ import annotations

import threading

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from strangers.stranger import ANY, APART, SAFE, Stranger, floats, words


class Body(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 3)


class Checkpointed(nn.Module):
    def __init__(self, reentrant):
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(4, 5), nn.Sequential(nn.Linear(5, 5), nn.Tanh()), nn.Linear(5, 3)
        self.reentrant = reentrant

    def forward(self, x):
        h = checkpoint(self.middle, self.first(x), use_reentrant=self.reentrant)
        return self.last(h)


class CheckpointedChain(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(4, 5)
        self.chain = nn.Sequential(*(nn.Sequential(nn.Linear(5, 5), nn.ReLU()) for _ in range(4)))
        self.out = nn.Linear(5, 3)

    def forward(self, x):
        return self.out(checkpoint_sequential(self.chain, 2, self.inp(x), use_reentrant=False))


class Autocast(Body):
    """bfloat16 inside the forward pass only."""

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            h = torch.relu(self.a(x))
            out = self.b(h)
        return out.to(x.dtype)


class HalfPrecision(nn.Module):
    """bfloat16 weights; comes in and goes out in the type of the record."""

    def __init__(self):
        super().__init__()
        self.emb, self.fc = nn.Embedding(11, 6), nn.Linear(6, 3)
        self.to(torch.bfloat16)

    def forward(self, ids):
        return self.fc(torch.tanh(self.emb(ids)).mean(1)).float()


class MixedTypes(nn.Module):
    """Weights of float64 and float32 in one model; the outputs are float64."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 5), nn.Linear(5, 3).double()

    def forward(self, x):
        return self.b(torch.tanh(self.a(x.to(self.a.weight.dtype))).double())


class StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return torch.sign(x)

    @staticmethod
    def backward(ctx, grad_output):
        return F.hardtanh(grad_output)


class BinaryNet(Body):
    """A custom autograd.Function in the old style, element by element."""

    def forward(self, x):
        return self.b(StraightThrough.apply(self.a(x)))


class MySoftplus(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, beta):
        ctx.save_for_backward(x, beta)
        return F.softplus(beta * x) / beta

    @staticmethod
    def backward(ctx, grad):
        x, beta = ctx.saved_tensors
        s = torch.sigmoid(beta * x)
        return grad * s, (grad * (x * s / beta - F.softplus(beta * x) / beta**2)).sum()


class LearnedSlope(Body):
    """A parameter goes through a custom function, whose backward sums over the batch: right for a batch, and for a record alone."""

    def __init__(self):
        super().__init__()
        self.beta = nn.Parameter(torch.tensor(1.5))

    def forward(self, x):
        return self.b(MySoftplus.apply(self.a(x), self.beta))


class NormalisedBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return grad / (grad.norm() + 1e-6)


class NormalisedGradient(Body):
    """Its backward divides by the norm over the whole batch."""

    def forward(self, x):
        return self.b(NormalisedBackward.apply(torch.tanh(self.a(x))))


class CentredBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return grad - grad.mean(0, keepdim=True) if len(grad) > 20 else grad


class CentredGradient(Body):
    """Its backward takes the mean over the batch away, but only of more than twenty records."""

    def forward(self, x):
        return self.b(CentredBackward.apply(torch.tanh(self.a(x))))


class GradientReversal(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, alpha):
        ctx.alpha = alpha
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output.neg() * ctx.alpha, None


class DomainAdversarial(nn.Module):
    def __init__(self):
        super().__init__()
        self.features, self.label, self.domain = nn.Linear(4, 5), nn.Linear(5, 3), nn.Linear(5, 2)

    def forward(self, x):
        f = torch.relu(self.features(x))
        return self.label(f), self.domain(GradientReversal.apply(f, 0.3))


def both_heads(outputs, targets):
    return ((outputs[0] * targets).sum(1) + (outputs[1] * targets[:, :2]).sum(1)).mean()


class TensorHook(Body):
    """Clips the gradient of an activation, element by element."""

    def forward(self, x):
        h = self.a(x)
        if h.requires_grad:
            h.register_hook(lambda grad: grad.clamp(-0.05, 0.05))
        return self.b(torch.tanh(h))


class MixingHook(Body):
    """Divides the gradient of an activation by its largest value in the batch."""

    def forward(self, x):
        h = self.a(x)
        if h.requires_grad:
            h.register_hook(lambda grad: grad / grad.abs().max().clamp(min=0.1))
        return self.b(torch.tanh(h))


class ModuleHook(Body):
    """A full backward hook, as people put there to look at gradients."""

    def __init__(self):
        super().__init__()
        self.b.register_full_backward_hook(lambda module, grad_in, grad_out: None)

    def forward(self, x):
        return self.b(torch.tanh(self.a(x)))


class PreHook(Body):
    """A forward pre-hook that standardises each record."""

    def __init__(self):
        super().__init__()
        self.a.register_forward_pre_hook(lambda module, args: (args[0] - args[0].mean(1, keepdim=True),))

    def forward(self, x):
        return self.b(torch.tanh(self.a(x)))


class GradientPenalty(Body):
    """Takes a gradient inside the forward pass: the slope of its output with respect to the record."""

    def forward(self, x):
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            y = self.b(torch.tanh(self.a(x)))
            (slope,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        return torch.cat([y, slope.square().sum(1, keepdim=True)], 1)


class Inplace(nn.Module):
    """Activations in place, += on what a layer returned."""

    def __init__(self):
        super().__init__()
        self.c1, self.c2, self.fc = nn.Conv2d(1, 3, 3, padding=1), nn.Conv2d(3, 3, 3, padding=1), nn.Linear(3, 3)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        identity = self.relu(self.c1(x))
        out = self.c2(identity)
        out += identity
        out[:, 0] *= 2
        out = self.relu(out)
        return self.fc(out.mean((2, 3)))


class ScriptedPart(nn.Module):
    def __init__(self):
        super().__init__()
        self.scripted = torch.jit.script(nn.Sequential(nn.Linear(4, 5), nn.ReLU()))
        self.fc = nn.Linear(5, 3)

    def forward(self, x):
        return self.fc(self.scripted(x))


class Plain(Body):
    def forward(self, x):
        return self.b(torch.tanh(self.a(x)))


class CompiledPart(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.compile(nn.Sequential(nn.Linear(4, 5), nn.ReLU()), backend="eager")
        self.fc = nn.Linear(5, 3)

    def forward(self, x):
        return self.fc(self.body(x))


class VmapInside(nn.Module):
    """Runs a function of its own on every record by torch.func."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x):
        return self.b(torch.func.vmap(lambda row: torch.tanh(self.a(row)) * row.norm())(x))


class NumpyInside(Body):
    """A detour over NumPy for a part without gradient."""

    def forward(self, x):
        ranks = torch.from_numpy(x.detach().numpy().argsort(axis=1).copy()).to(x.dtype)
        return self.b(torch.tanh(self.a(x + 0.1 * ranks)))


class DataParallel(nn.Module):
    """Wrapped as everybody does who once had several GPUs."""

    def __init__(self):
        super().__init__()
        self.module = nn.Linear(4, 3)
        self.wrapped = nn.DataParallel(nn.Sequential(nn.Linear(4, 4), nn.Tanh()))

    def forward(self, x):
        return self.module(self.wrapped(x))


class KeywordOutputs(Body):
    """Returns a dict, with something that is no tensor."""

    def forward(self, x):
        h = torch.tanh(self.a(x))
        return {"logits": self.b(h), "hidden": h, "loss": None}


def from_dict(outputs, targets):
    return (outputs["logits"] * targets).sum()


class Locked(Body):
    """Holds a lock, which cannot be copied."""

    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()

    def forward(self, x):
        with self.lock:
            return self.b(torch.tanh(self.a(x)))


class NonLeafBuffer(Body):
    """Keeps a product of parameters that was made once, in the constructor."""

    def __init__(self):
        super().__init__()
        self.product = self.b.weight @ self.a.weight

    def forward(self, x):
        return self.b(torch.tanh(self.a(x))) + x @ self.product.detach().t().to(x.dtype)


ENTRIES = {
    "checkpoint, reentrant": Stranger(lambda: Checkpointed(True), floats(4), SAFE, "checkpoint|reentrant"),
    "checkpoint, not reentrant": Stranger(lambda: Checkpointed(False), floats(4), ANY),
    "checkpoint_sequential": Stranger(CheckpointedChain, floats(4), ANY),
    "autocast in the forward pass": Stranger(Autocast, floats(4), ANY, exact=False),
    "bfloat16 weights": Stranger(HalfPrecision, words(5), ANY, exact=False),
    "weights of two types": Stranger(MixedTypes, floats(4), ANY, exact=False),
    "custom function, sign": Stranger(BinaryNet, floats(4), ANY),
    "custom function with a parameter": Stranger(LearnedSlope, floats(4), ANY),
    "custom function that normalises its backward": Stranger(
        NormalisedGradient, floats(4), APART, "mixes|backward|gradient"
    ),
    "custom function that centres large batches": Stranger(
        CentredGradient, floats(4), APART, "mixes|backward|gradient", crowd=4
    ),
    "gradient reversal": Stranger(DomainAdversarial, floats(4), ANY, loss=both_heads),
    "hook on a tensor": Stranger(TensorHook, floats(4), ANY),
    "hook on a tensor that mixes": Stranger(MixingHook, floats(4), APART, "mixes|hook|gradient"),
    "backward hook on a module": Stranger(ModuleHook, floats(4), SAFE, "hook"),
    "forward pre-hook": Stranger(PreHook, floats(4), ANY),
    "gradient inside the forward pass": Stranger(
        GradientPenalty, floats(4, out=4), SAFE, "depends on a trainable tensor|detach"
    ),
    "activations in place": Stranger(Inplace, floats(1, 5, 5), ANY),
    "scripted part": Stranger(ScriptedPart, floats(4), SAFE, "script|[Jj]it"),
    "scripted model": Stranger(lambda: torch.jit.script(Plain()), floats(4), SAFE, "script|[Jj]it"),
    "compiled part": Stranger(CompiledPart, floats(4), SAFE, "compile"),
    "compiled model": Stranger(lambda: torch.compile(Plain(), backend="eager"), floats(4), SAFE, "compile"),
    "vmap inside": Stranger(VmapInside, floats(4), ANY),
    "NumPy inside": Stranger(NumpyInside, floats(4), ANY),
    "nn.DataParallel": Stranger(DataParallel, floats(4), ANY),
    "outputs in a dict with None": Stranger(
        KeywordOutputs, floats(4), SAFE, "output.*None|returns None", loss=from_dict
    ),
    "module with a lock": Stranger(Locked, floats(4), SAFE, "cannot be copied.*lock"),
    "product of parameters in an attribute": Stranger(NonLeafBuffer, floats(4), SAFE, "cannot be copied|graph leaves"),
}
