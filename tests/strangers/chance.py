"""Models with chance in them. A pass cannot be repeated, so that only the influence of one record is checked."""

from __future__ import annotations

import random

import torch
from torch import nn
from torch.nn import functional as F

from strangers.stranger import ANY, APART, SAFE, Stranger, floats

MIXES = "mixes.*records"


class Body(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 3)


class DropPath(Body):
    """Stochastic depth, one coin for each record, as in timm."""

    def forward(self, x):
        h = torch.tanh(self.a(x))
        keep = 0.5
        mask = h.new_empty((x.shape[0],) + (1,) * (h.ndim - 1)).bernoulli_(keep)
        return self.b(x + h * mask / keep)


class DropLayer(Body):
    """Stochastic depth, one coin for the whole batch, by torch.rand."""

    def forward(self, x):
        if self.training and torch.rand(1).item() < 0.5:
            return self.b(x)
        return self.b(x + torch.tanh(self.a(x)))


class DropLayerPython(Body):
    """The same by random.random(), which no torch seed governs."""

    def forward(self, x):
        if self.training and random.random() < 0.5:
            return self.b(x)
        return self.b(x + torch.tanh(self.a(x)))


class OwnDropout(Body):
    def forward(self, x):
        h = torch.tanh(self.a(x))
        mask = (torch.rand_like(h) > 0.3).to(h.dtype)
        return self.b(h * mask / 0.7)


class SelfNormalisedDropout(Body):
    """Divides by the share that was really kept in the batch."""

    def forward(self, x):
        h = torch.tanh(self.a(x))
        mask = (torch.rand_like(h) > 0.5).to(h.dtype)
        return self.b(h * mask / mask.mean().clamp(min=0.1))


class RecordDropout(Body):
    """Keeps a random half of the batch and weighs it by the values that were kept."""

    def forward(self, x):
        h = torch.tanh(self.a(x))
        mask = torch.rand(len(x), 1, dtype=x.dtype) > 0.3
        return self.b(h * mask / (h.detach().abs() * mask).mean().clamp(min=0.05))


class Gumbel(Body):
    def __init__(self):
        super().__init__()
        self.codes = nn.Parameter(torch.randn(4, 4))

    def forward(self, x):
        one = F.gumbel_softmax(self.a(x), tau=0.7, hard=True)
        return self.b(one @ self.codes)


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc, self.mu, self.logvar, self.dec = nn.Linear(4, 5), nn.Linear(5, 2), nn.Linear(5, 2), nn.Linear(2, 4)

    def reparameterize(self, mu, logvar):
        return mu + torch.exp(0.5 * logvar) * torch.randn_like(mu)

    def forward(self, x):
        h = F.relu(self.enc(x))
        mu, logvar = self.mu(h), self.logvar(h)
        return self.dec(self.reparameterize(mu, logvar)), mu, logvar


def elbo(outputs, targets):
    recon, mu, logvar = outputs
    return (recon * targets).sum() - 0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())


class Diffusion(nn.Module):
    """Draws a time and noise for each record, and predicts the noise."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(5, 6), nn.SiLU(), nn.Linear(6, 4))
        self.register_buffer("alphas", torch.linspace(0.99, 0.1, 10))

    def forward(self, x):
        t = torch.randint(0, 10, (x.shape[0],))
        alpha = self.alphas[t].unsqueeze(1).to(x.dtype)
        noise = torch.randn_like(x)
        noisy = alpha.sqrt() * x + (1 - alpha).sqrt() * noise
        return self.net(torch.cat([noisy, t[:, None] / 10], 1).to(x.dtype)) - noise


class MaskedAutoencoder(nn.Module):
    """Shuffles the patches of each record by argsort of noise, and keeps some."""

    def __init__(self):
        super().__init__()
        self.emb, self.mask, self.dec = nn.Linear(3, 4), nn.Parameter(torch.zeros(1, 1, 4)), nn.Linear(4, 3)

    def forward(self, x):
        b, t, _ = x.shape
        h = self.emb(x)
        order = torch.rand(b, t).argsort(1)
        kept = h.gather(1, order[:, :2, None].expand(-1, -1, 4))
        full = torch.cat([kept, self.mask.expand(b, t - 2, -1)], 1)
        full = full.gather(1, order.argsort(1)[:, :, None].expand(-1, -1, 4))
        return self.dec(full + full.mean(1, keepdim=True)).sum(1)


class WithDropout(nn.Module):
    """nn.Dropout, F.dropout and dropout inside an LSTM and a transformer layer."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(4, 4, 2, dropout=0.3, batch_first=True)
        self.layer = nn.TransformerEncoderLayer(4, 2, 8, 0.2, batch_first=True)
        self.drop, self.fc = nn.Dropout(0.4), nn.Linear(4, 3)

    def forward(self, x):
        x = self.drop(self.layer(self.lstm(x)[0]))
        return self.fc(F.dropout(x.mean(1), 0.2, self.training))


class NoisyLinear(nn.Module):
    """Noise on the weights, the same for the whole batch."""

    def __init__(self):
        super().__init__()
        self.mu, self.sigma = nn.Parameter(torch.randn(3, 4)), nn.Parameter(0.1 * torch.ones(3, 4))

    def forward(self, x):
        return F.linear(x, self.mu + self.sigma * torch.randn_like(self.mu))


class ShakeBatch(Body):
    """Adds noise of the batch's own standard deviation."""

    def forward(self, x):
        return self.b(torch.tanh(self.a(x + 0.5 * x.std() * torch.randn_like(x) if len(x) > 1 else x)))


class OwnGenerator(Body):
    """Dropout from a generator of its own."""

    def __init__(self):
        super().__init__()
        self.generator = torch.Generator().manual_seed(0)

    def forward(self, x):
        h = torch.tanh(self.a(x))
        return self.b(h * (torch.rand(h.shape, generator=self.generator) > 0.3).to(h.dtype))


def chance(model, allowed, says="", shape=(4,), out=3, loss=None):
    more = {} if loss is None else {"loss": loss}
    return Stranger(model, floats(*shape, out=out), allowed, says, random=True, **more)


ENTRIES = {
    "stochastic depth of records": chance(DropPath, ANY),
    "stochastic depth of the batch": chance(DropLayer, ANY),
    "stochastic depth by random.random": chance(DropLayerPython, SAFE, "random|chance"),
    "dropout by hand": chance(OwnDropout, ANY),
    "dropout divided by what was kept": chance(SelfNormalisedDropout, APART, MIXES),
    "dropout of records, weighed by the batch": chance(RecordDropout, APART, MIXES),
    "generator of its own": chance(OwnGenerator, SAFE, "[Gg]enerator|random"),
    "Gumbel softmax": chance(Gumbel, ANY),
    "VAE": chance(VAE, ANY, out=4, loss=elbo),
    "diffusion": chance(Diffusion, ANY, out=4),
    "masked autoencoder": chance(MaskedAutoencoder, ANY, shape=(5, 3)),
    "dropout of torch": chance(WithDropout, ANY, shape=(5, 4)),
    "noise on the weights": chance(NoisyLinear, ANY),
    "noise of the size of the batch": chance(ShakeBatch, APART, MIXES),
}
