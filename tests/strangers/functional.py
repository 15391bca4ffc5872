"""Weights used by functions, computed from the record, shared, listed, normalised or frozen."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrize

from strangers.stranger import ANY, REFUSED, SAFE, TOGETHER, Stranger, classes, floats, pair_of, words


class FunctionalNet(nn.Module):
    """All weights are parameters of its own, as in the code of MAML."""

    def __init__(self):
        super().__init__()
        self.vars = nn.ParameterList(
            [
                nn.Parameter(0.3 * torch.randn(4, 1, 3, 3)),
                nn.Parameter(torch.zeros(4)),
                nn.Parameter(0.3 * torch.randn(3, 4 * 4 * 4)),
                nn.Parameter(torch.zeros(3)),
            ]
        )

    def forward(self, x):
        x = F.relu(F.conv2d(x, self.vars[0], self.vars[1]))
        return F.linear(x.flatten(1), self.vars[2], self.vars[3])


class FunctionalEmbedding(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.randn(11, 5))
        self.weight, self.scale = nn.Parameter(torch.randn(3, 5)), nn.Parameter(torch.ones(()))

    def forward(self, ids):
        x = F.embedding(ids, self.table, padding_idx=0)
        x = F.layer_norm(x, (5,)) * self.scale
        return F.linear(x.mean(1), self.weight)


class IndexedTable(nn.Module):
    """self.table[ids], a bare parameter beside an embedding with padding_idx."""

    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(11, 4, padding_idx=0)
        self.table = nn.Parameter(torch.randn(11, 4))
        self.cls, self.fc = nn.Parameter(torch.randn(4)), nn.Linear(4, 3)

    def forward(self, ids):
        return self.fc(torch.tanh(self.emb(ids) + self.table[ids] + self.cls).sum(1))


class ScaledEmbedding(nn.Embedding):
    """A subclass that scales what it looks up."""

    def forward(self, input):  # noqa: A002
        return super().forward(input) * math.sqrt(self.embedding_dim)


class ForgetfulEmbedding(nn.Embedding):
    """A subclass that looks up in its own way, shifted by one."""

    def forward(self, input):  # noqa: A002
        return F.embedding((input + 1) % self.num_embeddings, self.weight)


class Looked(nn.Module):
    def __init__(self, table):
        super().__init__()
        self.emb, self.fc = table, nn.Linear(4, 3)

    def forward(self, ids):
        return self.fc(self.emb(ids).mean(1))


class MyLinear(nn.Linear):
    """Standardises its weight before use, as in weight-standardised ResNets."""

    def forward(self, input):  # noqa: A002
        w = self.weight
        w = (w - w.mean(1, keepdim=True)) / (w.std(1, keepdim=True) + 1e-5)
        return F.linear(input, w, self.bias)


class EqualisedConv(nn.Conv2d):
    def forward(self, x):
        return self._conv_forward(x, self.weight * (2 / self.weight[0].numel()) ** 0.5, self.bias)


class Bags(nn.Module):
    """EmbeddingBag with offsets, made from the batch's lists of equal length."""

    def __init__(self):
        super().__init__()
        self.bag, self.fc = nn.EmbeddingBag(11, 4, mode="sum"), nn.Linear(4, 3)

    def forward(self, ids):
        offsets = torch.arange(0, ids.numel(), ids.size(1))
        return self.fc(self.bag(ids.reshape(-1), offsets))


class RaggedBags(nn.Module):
    """The text classifier of the tutorial: tokens of the batch without padding, and where each record begins."""

    def __init__(self):
        super().__init__()
        self.embedding, self.fc = nn.EmbeddingBag(11, 4, mode="mean"), nn.Linear(4, 3)

    def forward(self, ids):
        there = ids != 0
        lens = there.sum(1)
        offsets = torch.cat([lens.new_zeros(1), lens.cumsum(0)[:-1]])
        return self.fc(self.embedding(ids[there], offsets))


class Tied(nn.Module):
    def __init__(self, functional):
        super().__init__()
        self.emb, self.body = nn.Embedding(11, 5), nn.Linear(5, 5)
        self.functional = functional
        if not functional:
            self.decoder = nn.Linear(5, 11)
            self.decoder.weight = self.emb.weight

    def forward(self, ids):
        h = torch.tanh(self.body(self.emb(ids)))
        return F.linear(h, self.emb.weight) if self.functional else self.decoder(h)


class TiedAutoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Linear(5, 3)
        self.bias = nn.Parameter(torch.zeros(5))

    def forward(self, x):
        return F.linear(torch.sigmoid(self.enc(x)), self.enc.weight.t(), self.bias)


class Dictionary(nn.Module):
    def __init__(self):
        super().__init__()
        self.p = nn.ParameterDict({"w": nn.Parameter(torch.randn(4, 5)), "v": nn.Parameter(torch.randn(5, 3))})
        self.b = nn.ParameterDict({"b": nn.Parameter(torch.zeros(3))})

    def forward(self, x):
        return torch.tanh(x @ self.p["w"]) @ self.p["v"] + self.b["b"]


class HyperNetwork(nn.Module):
    """The weights of a layer come from the record: bmm."""

    def __init__(self):
        super().__init__()
        self.hyper, self.out = nn.Linear(4, 4 * 5), nn.Linear(5, 3)

    def forward(self, x, z):
        w = self.hyper(z).view(-1, 5, 4)
        return self.out(torch.tanh(torch.bmm(w, x.unsqueeze(2)).squeeze(2)))


class DynamicConv(nn.Module):
    """Kernels mixed by attention for each record, then one grouped convolution in which records are groups."""

    def __init__(self):
        super().__init__()
        self.attention = nn.Linear(2, 3)
        self.weight, self.fc = nn.Parameter(0.3 * torch.randn(3, 4, 2, 3, 3)), nn.Linear(4, 3)

    def forward(self, x):
        b, c, h, w = x.shape
        pi = F.softmax(self.attention(x.mean((2, 3))), dim=1)
        weight = (pi @ self.weight.view(3, -1)).view(b * 4, c, 3, 3)
        out = F.conv2d(x.view(1, b * c, h, w), weight, padding=1, groups=b)
        return self.fc(F.relu(out.view(b, 4, h, w)).mean((2, 3)))


class ModulatedConv(nn.Module):
    """StyleGAN2: one weight, modulated and demodulated by each record's style."""

    def __init__(self):
        super().__init__()
        self.weight, self.style = nn.Parameter(torch.randn(1, 3, 2, 3, 3)), nn.Linear(4, 2)
        self.fc = nn.Linear(3, 3)

    def forward(self, x, w):
        b, c, h, width = x.shape
        s = self.style(w).view(b, 1, c, 1, 1) + 1
        weight = self.weight * s
        weight = weight * torch.rsqrt(weight.pow(2).sum([2, 3, 4], keepdim=True) + 1e-8)
        out = F.conv2d(x.reshape(1, -1, h, width), weight.view(b * 3, c, 3, 3), padding=1, groups=b)
        return self.fc(out.view(b, 3, h, width).amax((2, 3)))


def styled(wide):
    return (torch.randn(2, 5, 5), (5 if wide else 1) * torch.randn(4)), torch.randn(3)


class Einsums(nn.Module):
    """Attention of several heads in einsums alone."""

    def __init__(self):
        super().__init__()
        self.wq, self.wk, self.wv = (nn.Parameter(torch.randn(2, 4, 3)) for _ in range(3))
        self.wo = nn.Parameter(torch.randn(2, 3, 3))

    def forward(self, x):
        q, k, v = (torch.einsum("btd,hde->bhte", x, w) for w in (self.wq, self.wk, self.wv))
        a = torch.einsum("bhte,bhse->bhts", q, k).div(3**0.5).softmax(-1)
        return torch.einsum("bhts,bhse,hef->bf", a, v, self.wo)


class Bilinear(nn.Module):
    def __init__(self):
        super().__init__()
        self.bi, self.core = nn.Bilinear(4, 4, 3), nn.Parameter(torch.randn(4, 4, 3))

    def forward(self, x, y):
        return self.bi(x, y) + torch.einsum("bi,bj,ijk->bk", x, y, self.core)


class Normed(nn.Module):
    def __init__(self, norm):
        super().__init__()
        self.a, self.b = norm(nn.Linear(4, 5)), nn.Linear(5, 3)

    def forward(self, x):
        return self.b(torch.relu(self.a(x)))


class Symmetric(nn.Module):
    def forward(self, x):
        return x.triu() + x.triu(1).transpose(-1, -2)


class Exponential(nn.Module):
    def forward(self, x):
        return torch.matrix_exp(x - x.transpose(-1, -2))


class Parametrised(nn.Module):
    """A symmetric and an orthogonal matrix."""

    def __init__(self):
        super().__init__()
        self.sym, self.rot, self.out = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)
        parametrize.register_parametrization(self.sym, "weight", Symmetric())
        parametrize.register_parametrization(self.rot, "weight", Exponential())

    def forward(self, x):
        return self.out(torch.tanh(self.rot(self.sym(x))))


class LoRALinear(nn.Module):
    def __init__(self, base, r=2, alpha=4):
        super().__init__()
        self.base = base
        for p in self.base.parameters():
            p.requires_grad = False
        self.lora_a = nn.Parameter(torch.randn(r, base.in_features) / r)
        self.lora_b = nn.Parameter(0.1 * torch.randn(base.out_features, r))
        self.scaling = alpha / r

    def forward(self, x):
        return self.base(x) + (x @ self.lora_a.T @ self.lora_b.T) * self.scaling


class MergedLoRA(LoRALinear):
    """The product of the low-rank weights is added to the weight first."""

    def forward(self, x):
        return F.linear(x, self.base.weight + self.scaling * self.lora_b @ self.lora_a, self.base.bias)


class Adapter(nn.Module):
    """Bottlenecks in a frozen transformer layer."""

    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(6, 2, 8, 0.0, batch_first=True).requires_grad_(False)
        self.down, self.up = nn.Linear(6, 2), nn.Linear(2, 6)
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        h = self.layer(x)
        return self.head((h + self.up(F.gelu(self.down(h)))).mean(1))


class PartlyFrozen(nn.Module):
    """Features without gradient, one frozen layer in the middle, biases only in another."""

    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU())
        self.middle, self.bias_only, self.head = nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 3)
        self.middle.requires_grad_(False)
        self.bias_only.weight.requires_grad = False

    def forward(self, x):
        with torch.no_grad():
            f = self.features(x).mean((2, 3))
        return self.head(torch.relu(self.bias_only(torch.relu(self.middle(f)))))


class FiLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.film, self.fc = nn.Conv2d(2, 4, 3, padding=1), nn.Linear(4, 8), nn.Linear(4, 3)

    def forward(self, x, cond):
        gamma, beta = self.film(cond).chunk(2, dim=1)
        h = F.relu(gamma[:, :, None, None] * self.conv(x) + beta[:, :, None, None])
        return self.fc(h.mean((2, 3)))


class ModulesInAList(nn.Module):
    """Layers in a Python list are no children: torch does not see their weights. Only the last layer learns."""

    def __init__(self):
        super().__init__()
        self.layers = [nn.Linear(4, 4) for _ in range(2)]
        self.out = nn.Linear(4, 3)

    def _apply(self, fn, recurse=True):
        self.layers = [layer._apply(fn) for layer in self.layers]
        return super()._apply(fn, recurse)

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return self.out(x)


class Unused(nn.Module):
    """A head that is never called, and one that only some records would use."""

    def __init__(self):
        super().__init__()
        self.body, self.used, self.unused = nn.Linear(4, 5), nn.Linear(5, 3), nn.Linear(5, 7)
        self.spare = nn.Parameter(torch.randn(2))

    def forward(self, x):
        return self.used(torch.tanh(self.body(x)))


class Universal(nn.Module):
    """One layer six times, with a code for the depth."""

    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(6, 2, 8, 0.0, batch_first=True)
        self.depth, self.head = nn.Parameter(torch.randn(3, 1, 1, 6)), nn.Linear(6, 3)

    def forward(self, x):
        for step in self.depth:
            x = self.layer(x + step)
        return self.head(x[:, 0])


class FastWeights(nn.Module):
    """Linear attention as an outer-product memory that is written at every step."""

    def __init__(self):
        super().__init__()
        self.k, self.v, self.q, self.out = (nn.Linear(3, 4) for _ in range(4))
        self.out = nn.Linear(4, 3)

    def forward(self, x):
        memory = x.new_zeros(x.size(0), 4, 4)
        for t in range(x.size(1)):
            k, v = F.elu(self.k(x[:, t])) + 1, self.v(x[:, t])
            memory = 0.9 * memory + k.unsqueeze(2) * v.unsqueeze(1)
        q = F.elu(self.q(x[:, -1])) + 1
        return self.out((q.unsqueeze(1) @ memory).squeeze(1))


class UniqueRows(nn.Module):
    """Looks every token of the batch up once, and deals the rows out."""

    def __init__(self):
        super().__init__()
        self.emb, self.fc = nn.Embedding(11, 4), nn.Linear(4, 3)

    def forward(self, ids):
        unique, inverse = torch.unique(ids, return_inverse=True)
        return self.fc(torch.tanh(self.emb(unique))[inverse].sum(1))


class SparseFeatures(nn.Module):
    """A sparse matrix over the features: records are columns for a while."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 3)
        self.register_buffer("places", torch.tensor([[0, 1, 2, 3, 0], [1, 2, 3, 0, 0]]))

    def forward(self, x):
        matrix = torch.sparse_coo_tensor(self.places, torch.ones(5, dtype=x.dtype), (4, 4))
        return self.b(torch.sparse.mm(matrix, torch.tanh(self.a(x)).t()).t())


class AdaIN(nn.Module):
    """Instance norm as batch norm of one long record, (1, b·c, h, w), as in MUNIT."""

    def __init__(self):
        super().__init__()
        self.conv, self.style, self.fc = nn.Conv2d(2, 3, 3), nn.Linear(4, 6), nn.Linear(3, 3)

    def forward(self, x, style):
        h = self.conv(x)
        b, c = h.shape[:2]
        weight, bias = self.style(style).chunk(2, 1)
        flat = h.contiguous().view(1, b * c, *h.shape[2:])
        h = F.batch_norm(flat, None, None, weight.reshape(-1), bias.reshape(-1), True).view(h.shape)
        return self.fc(h.square().mean((2, 3)))


class GroupForEachRecord(nn.Module):
    """Group norm of (1, b·c, t) with as many groups as records."""

    def __init__(self):
        super().__init__()
        self.conv, self.fc = nn.Conv1d(2, 3, 3), nn.Linear(3, 3)

    def forward(self, x):
        h = self.conv(x)
        h = F.group_norm(h.reshape(1, -1, h.shape[2]), h.shape[0]).view(h.shape)
        return self.fc(h.amax(2))


class Quantiser(nn.Module):
    """Weights in eight levels, straight through; learned step size."""

    def __init__(self):
        super().__init__()
        self.weight, self.step = nn.Parameter(torch.randn(3, 4)), nn.Parameter(torch.tensor(0.2))

    def forward(self, x):
        scaled = (self.weight / self.step).clamp(-4, 3)
        rounded = scaled + (scaled.round() - scaled).detach()
        return F.linear(x, rounded * self.step)


class Detours(nn.Module):
    """Ways over the whole batch that lead every record back to itself."""

    def __init__(self, way):
        super().__init__()
        self.a, self.b, self.way = nn.Linear(4, 4), nn.Linear(4, 3), way

    def forward(self, x):
        return self.b(self.way(torch.tanh(self.a(x))))


def there_and_back(h):
    return h.flip(0).square().flip(0).roll(2, 0).roll(-2, 0)


def diagonal_of_pairs(h):
    return h * (h @ h.t()).diagonal().unsqueeze(1)


def counted_up(h):
    return h[torch.ones(len(h), dtype=torch.long).cumsum(0) - 1]


def copies(h):
    return h.repeat_interleave(3, 0).square().view(len(h), 3, -1).mean(1)


class ZeroTimesParameters(nn.Module):
    """Zero times parameters without another use, so that each has a gradient."""

    def __init__(self):
        super().__init__()
        self.used, self.unused = nn.Linear(4, 3), nn.Linear(4, 2)

    def forward(self, x):
        return self.used(x) + 0 * sum(parameter.sum() for parameter in self.unused.parameters())


ENTRIES = {
    "flipped, rolled and back": Stranger(lambda: Detours(there_and_back), floats(4), ANY),
    "diagonal of all pairs": Stranger(lambda: Detours(diagonal_of_pairs), floats(4), ANY),
    "identity matrix of the batch": Stranger(
        lambda: Detours(lambda h: torch.eye(len(h), dtype=h.dtype) @ h), floats(4), ANY
    ),
    "index that counts the records": Stranger(lambda: Detours(counted_up), floats(4), ANY),
    "repeat_interleave and back": Stranger(lambda: Detours(copies), floats(4), ANY),
    "zero times parameters": Stranger(ZeroTimesParameters, floats(4), ANY),
    "unique tokens of the batch": Stranger(UniqueRows, words(5), ANY),
    "sparse matrix over features": Stranger(SparseFeatures, floats(4), ANY),
    "AdaIN by batch_norm of one long record": Stranger(AdaIN, styled, ANY),
    "a group of group_norm for each record": Stranger(GroupForEachRecord, floats(2, 6), ANY),
    "quantised weights": Stranger(Quantiser, floats(4), ANY),
    "functional conv2d and linear, parameter list": Stranger(FunctionalNet, floats(1, 6, 6), ANY),
    "functional embedding": Stranger(FunctionalEmbedding, words(5), ANY),
    "padding_idx beside bare parameters": Stranger(IndexedTable, words(5), ANY),
    "subclass of nn.Embedding that scales": Stranger(
        lambda: Looked(ScaledEmbedding(11, 4, padding_idx=0)), words(5), ANY
    ),
    "subclass of nn.Embedding that shifts": Stranger(lambda: Looked(ForgetfulEmbedding(11, 4)), words(5), ANY),
    "subclass of nn.Linear that standardises": Stranger(
        lambda: nn.Sequential(MyLinear(4, 5), nn.ReLU(), MyLinear(5, 3)), floats(4), ANY
    ),
    "subclass of nn.Conv2d that equalises": Stranger(
        lambda: nn.Sequential(EqualisedConv(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 3)), floats(1, 6, 6), ANY
    ),
    "EmbeddingBag with offsets": Stranger(Bags, words(5), ANY),
    "EmbeddingBag with ragged offsets": Stranger(RaggedBags, words(5), ANY),
    "tied embedding and decoder": Stranger(lambda: Tied(False), words(5, out=(5, 11))),
    "tied embedding by F.linear": Stranger(lambda: Tied(True), words(5, out=(5, 11)), ANY),
    "tied autoencoder by weight.t()": Stranger(TiedAutoencoder, floats(5, out=5), ANY),
    "parameter dictionary": Stranger(Dictionary, floats(4), ANY),
    "hypernetwork, bmm": Stranger(HyperNetwork, pair_of(4)),
    "dynamic convolution, records as groups": Stranger(DynamicConv, floats(2, 5, 5), ANY),
    "modulated convolution": Stranger(ModulatedConv, styled, ANY),
    "einsum attention": Stranger(Einsums, floats(5, 4), ANY),
    "bilinear": Stranger(Bilinear, pair_of(4), ANY),
    "weight norm": Stranger(lambda: Normed(nn.utils.parametrizations.weight_norm), floats(4), ANY),
    "weight norm, the old one": Stranger(lambda: Normed(torch.nn.utils.weight_norm), floats(4), SAFE, "weight_norm"),
    "spectral norm": Stranger(
        lambda: Normed(nn.utils.parametrizations.spectral_norm), floats(4), REFUSED, "spectral_norm"
    ),
    "spectral norm, the old one": Stranger(lambda: Normed(nn.utils.spectral_norm), floats(4), REFUSED, "spectral_norm"),
    "symmetric and orthogonal parametrisations": Stranger(Parametrised, floats(4), ANY),
    "LoRA by hand": Stranger(
        lambda: nn.Sequential(LoRALinear(nn.Linear(4, 5)), nn.ReLU(), LoRALinear(nn.Linear(5, 3))), floats(4), ANY
    ),
    "LoRA merged into the weight": Stranger(
        lambda: nn.Sequential(MergedLoRA(nn.Linear(4, 5)), nn.ReLU(), nn.Linear(5, 3)), floats(4), ANY
    ),
    "adapters": Stranger(Adapter, floats(4, 6)),
    "frozen parts": Stranger(PartlyFrozen, classes(1, 6, 6), TOGETHER, loss=F.cross_entropy),
    "FiLM": Stranger(FiLM, styled),
    "modules in a Python list": Stranger(ModulesInAList, floats(4), SAFE, "list|outside|not.*parameter"),
    "parameters that are never used": Stranger(Unused, floats(4)),
    "one layer several times": Stranger(Universal, floats(4, 6), ANY),
    "fast weights": Stranger(FastWeights, floats(5, 3)),
}
