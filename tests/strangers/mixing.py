"""Arithmetic over the batch dimension, by mistake or on purpose: never run together."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from strangers.attending import FNet, QuantisedMean, vq_loss
from strangers.stranger import APART, REFUSED, SAFE, Stranger, between, floats, masked, words

MIXES = "mixes.*records"


class Body(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x):
        return self.b(self.mix(torch.tanh(self.a(x))))


def mixing(function):
    class Mixes(Body):
        def mix(self, h):
            return function(h)

    return Mixes


def weighted_by_rank(h):
    return h * h.sum(1).argsort().argsort()[:, None]


def rare_shift(h):
    """Takes the loudest record as a reference, but only if it is very loud."""
    norms = h.detach().norm(dim=1)
    return torch.where(norms.max() > 1.8, h - h[norms.argmax()], h)


def outlier_free(h):
    """Values beyond three standard deviations of the batch are cut: nothing is cut in a batch of well-behaved records."""
    limit = 3 * h.detach().std(0, unbiased=False) + 1e3 * (h.detach().abs().amax(0) < 0.95)
    return h.clamp(min=-limit, max=limit)


def mixes_backwards(h):
    """The values are those of the record; their gradient is not."""
    mixed = h.cumsum(0)
    return h.detach() + mixed - mixed.detach()


def rarely_mixes_backwards(h):
    """The same, where one record is loud."""
    mixed = torch.where(h.detach().norm(dim=1).amax() > 1.8, h.flip(0), h)
    return h.detach() + mixed - mixed.detach()


def numbered(h):
    """The place in the batch as a feature."""
    return h + torch.arange(len(h), dtype=h.dtype)[:, None]


def last_doubled(h):
    h = h.clone()
    h[-1] *= 2
    return h


def overlapping(h):
    """Windows of two rows by as_strided, past the end of a record."""
    padded = torch.cat([h, h[-1:]]).contiguous()
    return padded.as_strided((len(h), 2, h.shape[1]), (h.shape[1], h.shape[1], 1)).amax(1)


def quantised(h):
    """Eight bits for the largest value of the batch, straight through."""
    scale = h.detach().abs().max().clamp(min=1e-8) / 7
    return h + ((h / scale).round() * scale - h).detach()


class Square(nn.Module):
    """Transposes where the batch is as large as the record is wide."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 10), nn.Linear(10, 3)

    def forward(self, x):
        h = torch.tanh(self.a(x))
        return self.b(h.mT if h.shape[0] == h.shape[1] else h)


class GateWithoutDimension(Body):
    """(b, d) times (b,): right for one record, an error for most batches, and something else for a batch of d."""

    def mix(self, h):
        return h * h.sum(1).sigmoid()


class FixedBatchSize(nn.Module):
    """Knows its batch size from the constructor."""

    def __init__(self):
        super().__init__()
        self.batch_size, self.rnn, self.fc = 8, nn.RNN(3, 4, batch_first=True), nn.Linear(4, 3)

    def forward(self, x):
        h0 = torch.zeros(1, self.batch_size, 4, dtype=x.dtype)
        return self.fc(self.rnn(x, h0)[0][:, -1])


class FaintlyMixing(nn.Module):
    """A billionth of the sum over the batch, which is nothing unless a record is enormous."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x):
        h = self.a(x)
        return self.b(torch.tanh(h + 1e-9 * h.sum(0)))


def enormous(wide):
    return torch.randn(4) * (1e10 if wide and between(0, 1) else 1.0), torch.randn(3)


class Imputes(Body):
    """Missing values are filled with the mean of the batch."""

    def forward(self, x):
        x = torch.where(x.isnan(), torch.nan_to_num(x.nanmean(0)), x)
        return self.b(torch.tanh(self.a(x)))


def incomplete(wide):
    x = torch.randn(4)
    if wide:
        x[between(0, 3)] = float("nan")
    return x, torch.randn(3)


class UnknownWord(nn.Module):
    """A word that is not known gets the mean of the batch."""

    def __init__(self):
        super().__init__()
        self.emb, self.fc = nn.Embedding(11, 4), nn.Linear(4, 3)

    def forward(self, ids):
        h = self.emb(ids)
        h = torch.where((ids == 10).unsqueeze(-1), h.mean((0, 1)), h)
        return self.fc(torch.tanh(h).sum(1))


class CentredBySite(nn.Module):
    """Each record beside the mean of the records of its hospital: records of different hospitals stay apart."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x, site):
        h = self.a(x)
        sums = torch.zeros(5, 4, dtype=h.dtype).index_add(0, site, h)
        counts = torch.zeros(5, dtype=h.dtype).index_add(0, site, torch.ones_like(h[:, 0])).clamp(min=1)
        return self.b(torch.tanh(h + 2 * (sums / counts[:, None])[site]))


class PrototypeOfTheClass(nn.Module):
    """Distances to the mean of each class in the batch, by a matrix of who is of which class."""

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 3)

    def forward(self, x, label):
        h = self.a(x)
        member = F.one_hot(label, 5).to(h.dtype)
        prototypes = member.t() @ h / member.sum(0).clamp(min=1)[:, None]
        return h * 0.5 + prototypes[label]


def of_a_site(wide):
    return (torch.randn(4) * (3 if wide else 1), torch.tensor(between(0, 4))), torch.randn(3)


def pooled(h):
    return F.avg_pool1d(h.t().unsqueeze(0), 3, stride=1, padding=1).squeeze(0).t()


def cut_at_quantiles(h):
    low, high = h.detach().quantile(0.1, dim=0), h.detach().quantile(0.9, dim=0)
    return torch.minimum(torch.maximum(h, low), high)


def tiled(h):
    """repeat where repeat_interleave was meant: neighbours are averaged in place of copies."""
    return h.repeat(2, 1).view(len(h), 2, -1).mean(1)


def zero_of_all(h):
    """Nothing is added, so that every output has a gradient, until a record is infinite."""
    return h + 0.0 * (h / (h.abs() < 0.999)).sum()


class BatchAsImage(nn.Module):
    """(b, d) as one image of b rows."""

    def __init__(self):
        super().__init__()
        self.conv, self.fc = nn.Conv2d(1, 2, 3, padding=1), nn.Linear(8, 3)

    def forward(self, x):
        return self.fc(torch.relu(self.conv(x[None, None])).squeeze(0).transpose(0, 1).flatten(1))


class MixedUp(Body):
    """Mixup inside the model, with a fixed share so that it is repeatable."""

    def mix(self, h):
        return 0.7 * h + 0.3 * h.flip(0)


class RandomMixUp(Body):
    def forward(self, x):
        if self.training:
            lam, index = float(torch.rand(())), torch.randperm(x.size(0))
            x = lam * x + (1 - lam) * x[index]
        return self.b(torch.tanh(self.a(x)))


class NormOverBatch(nn.Module):
    """LayerNorm over the wrong dimension: it can only be built for one batch size, and is applied to the transposed."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x):
        h = self.a(x).t()
        return self.b(F.layer_norm(h, h.shape[-1:]).t())


class WholeNorm(nn.Module):
    """F.layer_norm over all dimensions of the tensor, the batch included."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x):
        h = self.a(x)
        return self.b(F.layer_norm(h, h.shape))


class TimeFirstAttention(nn.Module):
    """nn.MultiheadAttention without batch_first on a batch in front: records attend to each other."""

    def __init__(self):
        super().__init__()
        self.attn, self.fc = nn.MultiheadAttention(4, 2), nn.Linear(4, 3)

    def forward(self, x):
        return self.fc(self.attn(x, x, x, need_weights=False)[0].mean(1))


class SoftmaxOverRecords(nn.Module):
    """nn.Softmax(dim=0) where dim=1 was meant."""

    def __init__(self):
        super().__init__()
        self.score, self.v, self.fc = nn.Linear(3, 1), nn.Linear(3, 4), nn.Linear(4, 3)

    def forward(self, x):
        return self.fc((self.score(x).softmax(0) * self.v(x)).sum(1))


class PadsWithTheBatch(nn.Module):
    """Masked values are filled with the mean of all that is not masked in the batch."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(3, 4), nn.Linear(4, 3)

    def forward(self, x, mask):
        h = self.a(x)
        filled = torch.where(mask.unsqueeze(-1), h, h[mask].mean(0))
        return self.b(torch.tanh(filled).mean(1))


class ConvOverRecords(nn.Module):
    """The transposed batch is taken for one sequence: the records are its places."""

    def __init__(self):
        super().__init__()
        self.conv, self.fc = nn.Conv1d(4, 4, 3, padding=1), nn.Linear(4, 3)

    def forward(self, x):
        return self.fc(self.conv(x.t()).t())


def with_norm(norm, *shape):
    layers = {1: lambda: nn.Linear(4, 4), 3: lambda: nn.Conv2d(2, 4, 3)}[len(shape)]

    def build():
        return nn.Sequential(layers(), norm(), nn.ReLU(), nn.Flatten(), nn.LazyLinear(3))

    def built():
        model = build()
        model(torch.randn(2, *shape))
        return model

    return built


class Squeezes(nn.Module):
    """x.squeeze() without a dimension."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 5), nn.Linear(5, 1)

    def forward(self, x):
        return self.b(torch.tanh(self.a(x))).squeeze()


class SqueezesInside(nn.Module):
    """The same inside, where it does no harm: whatever was lost comes back."""

    def __init__(self):
        super().__init__()
        self.conv, self.fc = nn.Conv2d(1, 3, 3), nn.Linear(3, 2)

    def forward(self, x):
        h = F.adaptive_avg_pool2d(self.conv(x), 1).squeeze()
        return self.fc(h).view(-1, 2)


class Flattens(nn.Module):
    """view(-1, 2) where the output has four numbers a record: two rows for each."""

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 4)

    def forward(self, x):
        return self.a(x).view(-1, 2)


class MeanOutput(nn.Module):
    """Returns its own loss, a mean over the batch, as many models do that take labels."""

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 3)

    def forward(self, x):
        return self.a(x).square().mean()


def first_output(outputs, targets):
    return outputs.sum()


def focal(outputs, targets):
    """Divides by the number of positives of the batch."""
    return (outputs * targets).sum() / (targets > 0).sum().clamp(min=1)


def broadcast(outputs, targets):
    """(b, 1) against (b,): every prediction is compared with every target."""
    return F.mse_loss(outputs, targets)


def cox(outputs, targets):
    """The partial likelihood: a patient is compared with all who are still there."""
    time, risk = targets[:, 0], outputs[:, 0]
    risk = risk[time.argsort(descending=True)]
    return (risk.logcumsumexp(0) - risk).mean()


def concordance(outputs, targets):
    """1 − the concordance correlation coefficient, from means and variances over the batch."""
    x, y = outputs[:, 0], targets[:, 0]
    covariance = ((x - x.mean()) * (y - y.mean())).mean()
    return 1 - 2 * covariance / (x.var(unbiased=False) + y.var(unbiased=False) + (x.mean() - y.mean()) ** 2)


def weighted_cross_entropy(outputs, targets):
    """Its mean divides by the sum of the batch's weights: with one record it has none."""
    return F.cross_entropy(outputs, targets.argmax(1), weight=torch.tensor([1.0, 2.0, 5.0], dtype=outputs.dtype))


ENTRIES = {
    "cumsum over records": Stranger(mixing(lambda h: h.cumsum(0)), floats(4), APART, MIXES),
    "roll over records": Stranger(mixing(lambda h: h + h.roll(1, 0)), floats(4), APART, MIXES),
    "flip of the records": Stranger(MixedUp, floats(4), APART, MIXES),
    "topk over records": Stranger(
        mixing(lambda h: h * (h >= h.topk(max(1, len(h) // 2), dim=0).values[-1])), floats(4), APART, MIXES
    ),
    "argsort over records": Stranger(mixing(weighted_by_rank), floats(4), APART, MIXES),
    "centred over records": Stranger(mixing(lambda h: h - h.mean(0, keepdim=True)), floats(4), APART, MIXES),
    "difference to the record before": Stranger(
        mixing(lambda h: h - F.pad(h, (0, 0, 1, 0))[:-1]), floats(4), APART, MIXES
    ),
    "loud record as a reference": Stranger(mixing(rare_shift), floats(4), APART, MIXES),
    "number of the record as a feature": Stranger(mixing(numbered), floats(4), APART, MIXES),
    "last record doubled": Stranger(mixing(last_doubled), floats(4), APART, MIXES),
    "unfold over records": Stranger(
        mixing(lambda h: torch.cat([h, h[-1:]]).unfold(0, 2, 1).amax(-1)), floats(4), APART, MIXES
    ),
    "as_strided over records": Stranger(mixing(overlapping), floats(4), APART, MIXES),
    "quantised by the largest value of the batch": Stranger(mixing(quantised), floats(4), APART, MIXES),
    "transposed where the batch is square": Stranger(Square, floats(4), SAFE, "mixes.*records|size"),
    "gate without a dimension": Stranger(GateWithoutDimension, floats(4), SAFE, "mixes.*records|size of tensor|shape"),
    "fixed batch size": Stranger(FixedBatchSize, floats(5, 3), SAFE, "hidden.*size|batch size|shape"),
    "a billionth of the others": Stranger(FaintlyMixing, enormous, APART, MIXES),
    "missing values filled by the batch": Stranger(Imputes, incomplete, APART, MIXES),
    "unknown words filled by the batch": Stranger(UnknownWord, words(5), APART, MIXES),
    "mean of the same hospital": Stranger(CentredBySite, of_a_site, APART, MIXES),
    "prototypes of the classes": Stranger(PrototypeOfTheClass, of_a_site, APART, MIXES),
    "reversed by an index": Stranger(
        mixing(lambda h: h + h[torch.arange(len(h) - 1, -1, -1)]), floats(4), APART, MIXES
    ),
    "shifted by an index": Stranger(
        mixing(lambda h: h + h[(torch.arange(len(h)) + 1) % len(h)]), floats(4), APART, MIXES
    ),
    "causal mask over records": Stranger(
        mixing(lambda h: torch.ones(len(h), len(h), dtype=h.dtype).tril() @ h), floats(4), APART, MIXES
    ),
    "halves of the flattened batch": Stranger(
        mixing(lambda h: h.view(2, -1, 2).mean(0).repeat(1, 2)), floats(4), APART, MIXES
    ),
    "pooled along the records": Stranger(mixing(pooled), floats(4), APART, MIXES),
    "cut at quantiles of the batch": Stranger(mixing(cut_at_quantiles), floats(4), APART, MIXES),
    "repeat in place of repeat_interleave": Stranger(mixing(tiled), floats(4), APART, MIXES),
    "zero times the sum of the batch": Stranger(mixing(zero_of_all), floats(4), APART, MIXES),
    "the batch as an image": Stranger(BatchAsImage, floats(4), APART, MIXES),
    "mixes in the backward pass only": Stranger(mixing(mixes_backwards), floats(4), APART, MIXES),
    "mixes in the backward pass where one is loud": Stranger(mixing(rarely_mixes_backwards), floats(4), APART, MIXES),
    "outliers of the batch are cut": Stranger(mixing(outlier_free), floats(4), APART, MIXES),
    "scaled by the norm of the batch": Stranger(mixing(lambda h: h / h.norm().clamp(min=3.0)), floats(4), APART, MIXES),
    "scaled by the batch size": Stranger(mixing(lambda h: h / len(h)), floats(4), APART, MIXES),
    "Gram matrix of the records": Stranger(mixing(lambda h: (h @ h.t()).softmax(-1) @ h), floats(4), APART, MIXES),
    "whitened by Cholesky": Stranger(
        mixing(lambda h: h @ torch.linalg.cholesky(h.t() @ h + torch.eye(4, dtype=h.dtype))), floats(4), APART, MIXES
    ),
    "einsum without the record": Stranger(
        mixing(lambda h: h * torch.einsum("bi,bj->ij", h, h).mean()), floats(4), APART, MIXES
    ),
    "one long row of all records": Stranger(mixing(lambda h: h.t().reshape(h.shape)), floats(4), APART, MIXES),
    "mixup": Stranger(RandomMixUp, floats(4), APART, MIXES, random=True),
    "layer norm of the transposed": Stranger(NormOverBatch, floats(4), APART, "mixes.*records|failed"),
    "layer norm over everything": Stranger(WholeNorm, floats(4), APART, MIXES),
    "attention without batch_first": Stranger(TimeFirstAttention, floats(5, 4), APART, MIXES),
    "softmax over records": Stranger(SoftmaxOverRecords, floats(5, 3), APART, MIXES),
    "filled with the mean of the batch": Stranger(PadsWithTheBatch, masked(5, 3), APART, MIXES),
    "convolution along the records": Stranger(ConvOverRecords, floats(4), APART, MIXES),
    "Fourier transform over records": Stranger(lambda: FNet(0), floats(5, 4), APART, MIXES),
    "VQ-VAE with a mean over the batch": Stranger(QuantisedMean, floats(4, out=4), APART, MIXES, loss=vq_loss),
    "BatchNorm1d": Stranger(
        with_norm(lambda: nn.BatchNorm1d(4), 4), floats(4), REFUSED, "BatchNorm.*statistics of the whole batch"
    ),
    "BatchNorm2d": Stranger(
        with_norm(lambda: nn.BatchNorm2d(4), 2, 5, 5), floats(2, 5, 5), REFUSED, "statistics of the whole batch"
    ),
    "BatchNorm2d without running statistics": Stranger(
        with_norm(lambda: nn.BatchNorm2d(4, track_running_stats=False), 2, 5, 5),
        floats(2, 5, 5),
        REFUSED,
        "statistics of the whole batch",
    ),
    "BatchNorm frozen in eval mode": Stranger(
        with_norm(lambda: nn.BatchNorm2d(4).eval().requires_grad_(False), 2, 5, 5),
        floats(2, 5, 5),
        SAFE,
        "statistics of the whole batch",
    ),
    "SyncBatchNorm": Stranger(
        lambda: nn.SyncBatchNorm.convert_sync_batchnorm(with_norm(lambda: nn.BatchNorm2d(4), 2, 5, 5)()),
        floats(2, 5, 5),
        REFUSED,
        "statistics of the whole batch",
    ),
    "InstanceNorm with running statistics": Stranger(
        with_norm(lambda: nn.InstanceNorm2d(4, track_running_stats=True), 2, 5, 5),
        floats(2, 5, 5),
        REFUSED,
        "running statistics",
    ),
    "F.batch_norm": Stranger(
        mixing(lambda h: F.batch_norm(h, None, None, training=True) if len(h) > 1 else h), floats(4), APART, MIXES
    ),
    "x.squeeze()": Stranger(Squeezes, floats(4, out=()), SAFE, "squeeze"),
    "x.squeeze() inside": Stranger(SqueezesInside, floats(1, 5, 5, out=2), SAFE, "squeeze"),
    "several rows for a record": Stranger(Flattens, floats(4, out=2), REFUSED, "rows|shape|batch dimension"),
    "loss as the output": Stranger(MeanOutput, floats(4), REFUSED, "batch dimension|single|shape", loss=first_output),
    "loss divided by the positives of the batch": Stranger(
        lambda: nn.Linear(4, 3), floats(4), SAFE, "loss mixes records", loss=focal
    ),
    "broadcast in the loss": Stranger(
        lambda: nn.Linear(4, 1), floats(4, out=()), SAFE, "loss mixes records", loss=broadcast
    ),
    "Cox partial likelihood": Stranger(lambda: nn.Linear(4, 1), floats(4), REFUSED, "loss mixes records", loss=cox),
    "concordance": Stranger(lambda: nn.Linear(4, 1), floats(4), REFUSED, "loss mixes records", loss=concordance),
    "cross entropy with class weights": Stranger(
        lambda: nn.Linear(4, 3), floats(4), SAFE, "loss mixes records", loss=weighted_cross_entropy
    ),
}
