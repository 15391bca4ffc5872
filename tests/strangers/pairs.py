"""Pairs, triplets and contrasts: several inputs of one record, and losses that compare records with each other."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from strangers.stranger import ANY, APART, REFUSED, Stranger, between, pair_of, words


def tower():
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))


class Siamese(nn.Module):
    def __init__(self):
        super().__init__()
        self.net, self.fc = tower(), nn.Linear(3, 1)

    def forward(self, x1, x2):
        return self.fc(torch.abs(self.net(x1) - self.net(x2))).squeeze(1)


class OneTower(nn.Module):
    """Both halves through the tower in one go."""

    def __init__(self):
        super().__init__()
        self.net, self.fc = tower(), nn.Linear(6, 3)

    def forward(self, left, right):
        both = self.net(torch.cat([left, right]))
        a, b = both.chunk(2)
        return self.fc(torch.cat([a, b], 1))


class OneTowerTheWrongWay(OneTower):
    """What was joined end to end is taken apart in turns: right for one record."""

    def forward(self, left, right):
        return self.fc(self.net(torch.cat([left, right])).view(-1, 6))


class Stacked(nn.Module):
    """The pair as one input (b, 2, d), merged with the batch."""

    def __init__(self):
        super().__init__()
        self.net = tower()

    def forward(self, x):
        z = self.net(x.flatten(0, 1)).view(-1, 2, 3)
        return F.cosine_similarity(z[:, 0], z[:, 1])


class TwoTowers(nn.Module):
    """A recommender: tables of users and items, and biases."""

    def __init__(self):
        super().__init__()
        self.user, self.item = nn.Embedding(7, 4), nn.Embedding(11, 4)
        self.user_bias, self.item_bias = nn.Embedding(7, 1), nn.Embedding(11, 1)
        self.mu = nn.Parameter(torch.zeros(1))

    def forward(self, user, item):
        dot = (self.user(user) * self.item(item)).sum(-1)
        return dot + self.user_bias(user).squeeze(-1) + self.item_bias(item).squeeze(-1) + self.mu


def rating(wide):
    """Wide records have the users and items that nobody else has."""
    return (torch.tensor(between(0, 6 if wide else 1)), torch.tensor(between(0, 10 if wide else 1))), torch.randn(())


class Triplet(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = tower()

    def forward(self, anchor, positive, negative):
        return self.net(anchor), self.net(positive), self.net(negative)


def triplet_loss(outputs, targets):
    return (F.triplet_margin_loss(*outputs, margin=2.0, reduction="none") * targets[:, 0]).mean()


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = tower()

    def forward(self, x1, x2):
        return F.normalize(self.net(x1), dim=1), F.normalize(self.net(x2), dim=1)


def info_nce(outputs, targets):
    a, b = outputs
    logits = a @ b.t() / 0.1
    return F.cross_entropy(logits, torch.arange(len(a)))


def nt_xent(outputs, targets):
    """SimCLR: 2b views, each with one positive."""
    z = torch.cat(outputs)
    n = len(outputs[0])
    sim = (z @ z.t() / 0.5).masked_fill(torch.eye(2 * n, dtype=torch.bool), float("-inf"))
    return F.cross_entropy(sim, torch.cat([torch.arange(n, 2 * n), torch.arange(n)]))


def barlow(outputs, targets):
    """Correlations over the batch."""
    a, b = (part - part.mean(0) for part in outputs)
    c = a.t() @ b / len(a)
    return (c - torch.eye(3, dtype=c.dtype)).square().sum()


def hardest_negative(outputs, targets):
    """Mines the hardest negative of the batch."""
    a, b = outputs
    distance = torch.cdist(a, b)
    positive = distance.diagonal()
    negative = (distance + 1e3 * torch.eye(len(a), dtype=a.dtype)).min(1).values
    return F.relu(positive - negative + 1.0).mean()


class InBatchNegatives(nn.Module):
    """Returns the matrix of scores of all pairs of the batch."""

    def __init__(self):
        super().__init__()
        self.q, self.d = tower(), tower()

    def forward(self, query, document):
        return self.q(query) @ self.d(document).t()


def diagonal(outputs, targets):
    return F.cross_entropy(outputs, torch.arange(len(outputs)))


class BahdanauPairs(nn.Module):
    """Question and answer of different lengths, attended to each other."""

    def __init__(self):
        super().__init__()
        self.emb, self.w, self.fc = nn.Embedding(11, 4), nn.Linear(4, 4, bias=False), nn.Linear(8, 3)

    def forward(self, ids):
        question, answer = ids[:, :3], ids[:, 3:]
        q, a = self.emb(question), self.emb(answer)
        scores = torch.bmm(self.w(q), a.transpose(1, 2)).masked_fill((answer == 0)[:, None], -1e9)
        attended = torch.bmm(scores.softmax(-1), a)
        return self.fc(torch.cat([q, attended], -1).amax(1))


class Ranker(nn.Module):
    """A list of candidates for each query: scored one by one, the loss over the list."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 1))

    def forward(self, x):
        return F.log_softmax(self.net(x.view(-1, 4)).view(x.size(0), -1), dim=1)


ENTRIES = {
    "Siamese pair": Stranger(Siamese, pair_of(4, out=())),
    "Siamese pair, one tower for cat([left, right])": Stranger(OneTower, pair_of(4), ANY),
    "Siamese halves taken apart the wrong way": Stranger(OneTowerTheWrongWay, pair_of(4), APART, "mixes.*records"),
    "Siamese pair merged with the batch": Stranger(
        Stacked, lambda wide: (torch.randn(2, 4) * (10 if wide else 1), torch.randn(())), ANY
    ),
    "two towers of embeddings": Stranger(TwoTowers, rating, ANY),
    "triplets": Stranger(Triplet, pair_of(4, parts=3), loss=triplet_loss),
    "InfoNCE": Stranger(Encoder, pair_of(4), REFUSED, "loss.*mixes|mixes.*records", loss=info_nce),
    "NT-Xent": Stranger(Encoder, pair_of(4), REFUSED, "loss.*mixes|mixes.*records", loss=nt_xent),
    "Barlow twins": Stranger(Encoder, pair_of(4), REFUSED, "loss.*mixes|mixes.*records", loss=barlow),
    "hardest negative of the batch": Stranger(
        Encoder, pair_of(4), REFUSED, "loss.*mixes|mixes.*records", loss=hardest_negative
    ),
    "in-batch negatives": Stranger(
        InBatchNegatives, pair_of(4, out=()), REFUSED, "shape|mixes.*records", loss=diagonal
    ),
    "attention between two texts": Stranger(BahdanauPairs, words(8)),
    "ranked candidates, merged with the batch": Stranger(
        Ranker, lambda wide: (torch.randn(6, 4) * (10 if wide else 1), torch.randn(6)), ANY
    ),
}
