"""Records that take different routes: experts, branches on values and sizes, graphs in one long batch."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from strangers.stranger import ANY, APART, REFUSED, SAFE, TOGETHER, Stranger, between, floats


def routed(wide):
    """Usual records all go to one expert, wide ones to any."""
    x = torch.randn(4)
    if not wide:
        x[0] = 3.0
    return x, torch.randn(3)


def loud_or_not(wide):
    return torch.randn(4) * (100.0 if wide and between(0, 1) else 1.0), torch.randn(3)


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(4, 3)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)) for _ in range(3))


class HardByMask(Experts):
    """Switch transformer: top-1, each expert gets its records by a boolean index."""

    def forward(self, x):
        probs = self.gate(x).softmax(-1)
        weight, choice = probs.max(-1)
        out = x.new_zeros(x.size(0), 3)
        for i, expert in enumerate(self.experts):
            picked = choice == i
            if picked.any():
                out[picked] = expert(x[picked]) * weight[picked].unsqueeze(-1)
        return out


class HardByIndex(Experts):
    """With index_select and index_add, top-2."""

    def forward(self, x):
        weights, chosen = self.gate(x).softmax(-1).topk(2, dim=-1)
        out = torch.zeros(x.size(0), 3, dtype=x.dtype)
        for i, expert in enumerate(self.experts):
            rows, nth = torch.where(chosen == i)
            if rows.numel() == 0:
                continue
            out.index_add_(0, rows, expert(x.index_select(0, rows)) * weights[rows, nth, None])
        return out


class SortedByExpert(Experts):
    """Records sorted by expert, cut into pieces by bincount, and put back."""

    def forward(self, x):
        choice = self.gate(x).argmax(-1)
        order = choice.argsort(stable=True)
        counts = torch.bincount(choice, minlength=3).tolist()
        parts = [expert(part) for expert, part in zip(self.experts, x[order].split(counts), strict=True)]
        out = torch.cat(parts)
        return torch.empty_like(out).index_copy(0, order, out)


class Soft(Experts):
    def forward(self, x):
        g = self.gate(x).softmax(-1)
        return torch.einsum("bk,bko->bo", g, torch.stack([expert(x) for expert in self.experts], 1))


class Capacity(Experts):
    """At most half of the batch for an expert: who comes later is dropped."""

    def forward(self, x):
        probs = self.gate(x).softmax(-1)
        onehot = F.one_hot(probs.argmax(-1), 3)
        place = (onehot.cumsum(0) * onehot).sum(-1)
        kept = place <= max(1, len(x) // 2)
        everyone = torch.stack([expert(x) for expert in self.experts], 1)
        return (everyone * (onehot * kept[:, None]).unsqueeze(-1)).sum(1)


class ExpertChoice(Experts):
    """Each expert picks its best records: topk over the batch."""

    def forward(self, x):
        scores = self.gate(x).softmax(-1)
        out = torch.zeros(x.size(0), 3, dtype=x.dtype)
        for i, expert in enumerate(self.experts):
            value, rows = scores[:, i].topk(max(1, len(x) // 2))
            out = out.index_add(0, rows, expert(x[rows]) * value[:, None])
        return out


class BalancedLoss(Experts):
    """With the auxiliary loss of load balancing as a second output: a mean over the batch, given to every record."""

    def forward(self, x):
        g = self.gate(x).softmax(-1)
        out = (g.unsqueeze(-1) * torch.stack([expert(x) for expert in self.experts], 1)).sum(1)
        fraction = F.one_hot(g.argmax(-1), 3).to(x.dtype).mean(0)
        aux = (fraction * g.mean(0)).sum() * 3
        return out, aux.expand(len(x))


def with_auxiliary(outputs, targets):
    return ((outputs[0] * targets).sum(1) + outputs[1]).mean()


class TokenExperts(nn.Module):
    """Top-1 experts for the tokens of (b, t, d), flattened to one row of tokens."""

    def __init__(self):
        super().__init__()
        self.gate, self.fc = nn.Linear(4, 2), nn.Linear(4, 3)
        self.experts = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])

    def forward(self, x):
        flat = x.reshape(-1, x.shape[-1])
        p = self.gate(flat).softmax(-1)
        y = torch.zeros_like(flat)
        for k, e in enumerate(self.experts):
            index = (p.argmax(-1) == k).nonzero().squeeze(1)
            y[index] = p[index, k].unsqueeze(1) * e(flat[index])
        return self.fc(y.view_as(x).mean(1))


class Body(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 3)


class BranchOnSum(Body):
    def forward(self, x):
        h = self.a(x)
        if x.sum() > 0:
            h = torch.relu(h)
        return self.b(h)


class BranchOnMaximum(Body):
    """Mixes records only where one is loud."""

    def forward(self, x):
        if x.abs().max() > 5:
            x = x / x.abs().max()
        return self.b(torch.tanh(self.a(x)))


class BranchOnOne(Body):
    """`if batch size is 1`, as for BatchNorm's sake."""

    def forward(self, x):
        h = self.a(x)
        if x.shape[0] == 1:
            return self.b(h)
        return self.b(h - h.mean(0))


class BranchOnLargeBatch(Body):
    """Only batches of more than eight records are normalised."""

    def forward(self, x):
        h = self.a(x)
        if len(x) > 8:
            h = h - h.mean(0)
        return self.b(torch.tanh(h))


class BranchOnHugeBatch(Body):
    """Only batches of more than a hundred records are normalised; no test of a model would use so many."""

    def forward(self, x):
        h = self.a(x)
        if len(x) > 100:
            h = h - h.mean(0)
        return self.b(torch.tanh(h))


class BranchOnSomeSizes(Body):
    """Centres batches of seven, ten and eleven records."""

    def forward(self, x):
        h = self.a(x)
        if len(x) in (7, 10, 11):
            h = h - h.mean(0)
        return self.b(torch.tanh(h))


class DropsRecords(Body):
    """Leaves out the records that are too loud, without a word."""

    def forward(self, x):
        x = x[x.abs().amax(1) < 50]
        return self.b(torch.tanh(self.a(x)))


class BranchOnTraining(Body):
    def forward(self, x):
        h = torch.tanh(self.a(x))
        if self.training:
            h = h * 2
        return self.b(h)


class BranchOnCounter(Body):
    """A warm-up: the first calls leave a layer out."""

    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        h = self.a(x) if self.calls > 2 else x
        return self.b(torch.tanh(h))


class PerRecordLoop(Body):
    """A Python loop over the records of the batch, with a branch for each."""

    def forward(self, x):
        out = []
        for row in x:
            h = self.a(row) if row[0] > 0 else torch.tanh(self.a(row))
            out.append(self.b(h))
        return torch.stack(out)


class WhereBranch(Body):
    def forward(self, x):
        h = self.a(x)
        h = torch.where((x.sum(1, keepdim=True) > 0).expand_as(h), torch.relu(h), -h)
        return self.b(h.masked_fill(h.abs() < 0.1, 0.0))


class EarlyExit(Body):
    """Records that are sure leave early, the others go on as a smaller batch."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 3)

    def forward(self, x):
        out = self.first(x)
        unsure = out.softmax(1).amax(1) < 0.5
        if unsure.any():
            out = out.clone()
            out[unsure] = out[unsure] + self.b(torch.tanh(self.a(x[unsure])))
        return out


def graph(wide):
    """Nodes of one graph, the number of its record for each, and its edges."""
    nodes = torch.randn(5, 4) * (3 if wide else 1)
    return (nodes, torch.randint(0, 5, (2, 6))), torch.randn(3)


class DenseGraph(nn.Module):
    """One graph a record with an adjacency matrix: message passing is bmm."""

    def __init__(self):
        super().__init__()
        self.w, self.out = nn.Linear(4, 5), nn.Linear(5, 3)

    def forward(self, x, edges):
        b, n, _ = x.shape
        adj = torch.zeros(b, n, n, dtype=x.dtype)
        adj[torch.arange(b)[:, None], edges[:, 0], edges[:, 1]] = 1.0
        adj = adj + torch.eye(n, dtype=x.dtype)
        h = torch.relu(torch.bmm(adj / adj.sum(-1, keepdim=True), self.w(x)))
        return self.out(h.mean(1))


class OffsetGraph(nn.Module):
    """The graphs of a batch joined into one large one inside the model: node numbers get an offset."""

    def __init__(self):
        super().__init__()
        self.w, self.out = nn.Linear(4, 5), nn.Linear(5, 3)

    def forward(self, x, edges):
        b, n, d = x.shape
        flat = x.reshape(b * n, d)
        shifted = (edges + (torch.arange(b) * n)[:, None, None]).permute(1, 0, 2).reshape(2, -1)
        h = self.w(flat)
        h = torch.zeros_like(h).index_add(0, shifted[1], h[shifted[0]]) + h
        return self.out(torch.relu(h).view(b, n, -1).mean(1))


class FlatGraph(nn.Module):
    """A record is a node; `batch` says which graph it is of, and the graph is what is classified."""

    def __init__(self):
        super().__init__()
        self.w, self.out = nn.Linear(4, 5), nn.Linear(5, 3)

    def forward(self, x, batch):
        h = torch.relu(self.w(x))
        graphs = int(batch.max()) + 1
        pooled = torch.zeros(graphs, 5, dtype=x.dtype).index_add(0, batch, h)
        return self.out(pooled)


class FlatGraphBack(FlatGraph):
    """The same, with the answer given back to every node."""

    def forward(self, x, batch):
        return super().forward(x, batch)[batch]


def node(wide):
    return (torch.randn(4), torch.tensor(between(0, 3 if wide else 1))), torch.randn(3)


class NeighbourAttention(nn.Module):
    """Records attend to the nearest records of the batch."""

    def __init__(self):
        super().__init__()
        self.w, self.out = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x):
        h = self.w(x)
        near = torch.cdist(h, h).topk(min(2, len(x)), largest=False).indices
        return self.out(torch.tanh(h[near].mean(1)))


ENTRIES = {
    "experts, hard by mask": Stranger(HardByMask, routed, ANY),
    "experts, top-2 by index_select": Stranger(HardByIndex, routed, ANY),
    "experts, sorted by bincount": Stranger(SortedByExpert, routed, ANY),
    "experts, soft": Stranger(Soft, routed, TOGETHER),
    "experts with a capacity": Stranger(Capacity, routed, APART, "mixes.*records"),
    "experts that choose records": Stranger(ExpertChoice, routed, APART, "mixes.*records"),
    "experts with a balancing loss": Stranger(BalancedLoss, routed, APART, "mixes.*records", loss=with_auxiliary),
    "experts of tokens": Stranger(TokenExperts, floats(5, 4), ANY),
    "branch on x.sum()": Stranger(BranchOnSum, floats(4), SAFE, "mixes.*records"),
    "branch on the largest value of the batch": Stranger(BranchOnMaximum, floats(4), SAFE, "mixes.*records"),
    "branch on a batch of one": Stranger(BranchOnOne, floats(4), SAFE, "mixes.*records"),
    "branch on more than eight records": Stranger(BranchOnLargeBatch, floats(4), SAFE, "mixes.*records"),
    "branch on more than a hundred records": Stranger(
        BranchOnHugeBatch, floats(4), SAFE, "mixes.*records|size", crowd=12
    ),
    "branch on seven, ten or eleven records": Stranger(BranchOnSomeSizes, floats(4), SAFE, "mixes.*records|size"),
    "loud records left out": Stranger(DropsRecords, loud_or_not, SAFE, "rows|shape|records"),
    "branch on self.training": Stranger(BranchOnTraining, floats(4)),
    "branch on a counter": Stranger(BranchOnCounter, floats(4), SAFE, "state|calls|remember|attribute"),
    "loop over records with a branch": Stranger(PerRecordLoop, floats(4), ANY),
    "torch.where and masked_fill": Stranger(WhereBranch, floats(4)),
    "early exit of sure records": Stranger(EarlyExit, floats(4), ANY),
    "graphs with adjacency matrices": Stranger(DenseGraph, graph, ANY),
    "graphs joined inside the model": Stranger(OffsetGraph, graph, ANY),
    "graph batch with a batch index": Stranger(FlatGraph, node, REFUSED, "rows|records|batch dimension"),
    "graph batch, answers given back": Stranger(FlatGraphBack, node, REFUSED, "mixes.*records"),
    "nearest records of the batch": Stranger(NeighbourAttention, floats(4), APART, "mixes.*records"),
}
