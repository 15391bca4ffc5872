"""Attention and images: positions, rotations, patches, warps, spectra, and networks in the shape of a U."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F

from strangers.stranger import ANY, APART, Stranger, classes, floats, lengths, masked, words


class CausalSelfAttention(nn.Module):
    """The one of minGPT, with its mask in a buffer."""

    def __init__(self, n_embd=6, n_head=2, block_size=8):
        super().__init__()
        self.c_attn, self.c_proj = nn.Linear(n_embd, 3 * n_embd), nn.Linear(n_embd, n_embd)
        self.register_buffer("bias", torch.tril(torch.ones(block_size, block_size)).view(1, 1, block_size, block_size))
        self.n_head, self.n_embd = n_head, n_embd

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(self.n_embd, dim=2)
        k = k.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        q = q.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        v = v.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = att.masked_fill(self.bias[:, :, :T, :T] == 0, float("-inf"))
        y = F.softmax(att, dim=-1) @ v
        return self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C))


class MinGPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(11, 6),
                "wpe": nn.Embedding(8, 6),
                "h": nn.ModuleList(CausalSelfAttention() for _ in range(2)),
                "ln_f": nn.LayerNorm(6),
            }
        )
        self.lm_head = nn.Linear(6, 11, bias=False)
        self.transformer.wte.weight = self.lm_head.weight

    def forward(self, idx):
        _, t = idx.size()
        pos = torch.arange(0, t, dtype=torch.long, device=idx.device).unsqueeze(0)
        x = self.transformer.wte(idx) + self.transformer.wpe(pos)
        for block in self.transformer.h:
            x = x + block(x)
        return self.lm_head(self.transformer.ln_f(x))


class RelativePositions(nn.Module):
    """A learned bias for each distance, looked up in a table by a buffer of indices, as in Swin."""

    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(4, 12), nn.Linear(4, 3)
        self.table = nn.Parameter(0.5 * torch.randn(2 * 5 - 1, 2))
        place = torch.arange(5)
        self.register_buffer("index", place[:, None] - place[None] + 4)

    def forward(self, x):
        b, n, _ = x.shape
        q, k, v = self.qkv(x).reshape(b, n, 3, 2, 2).permute(2, 0, 3, 1, 4).unbind(0)
        bias = self.table[self.index.view(-1)].view(n, n, 2).permute(2, 0, 1)
        attn = (q @ k.transpose(-2, -1) + bias.unsqueeze(0)).softmax(-1)
        return self.out((attn @ v).transpose(1, 2).reshape(b, n, 4).mean(1))


class ShawPositions(nn.Module):
    """Relative keys from an nn.Embedding that is called without a batch dimension."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(3, 4) for _ in range(3))
        self.rel, self.out = nn.Embedding(9, 4), nn.Linear(4, 3)

    def forward(self, x):
        t = x.size(1)
        place = torch.arange(t)
        rel = self.rel((place[None] - place[:, None]).clamp(-4, 4) + 4)
        q = self.q(x)
        scores = q @ self.k(x).transpose(1, 2) + torch.einsum("btd,tsd->bts", q, rel)
        return self.out((scores.softmax(-1) @ self.v(x)).mean(1))


class ALiBi(nn.Module):
    def __init__(self):
        super().__init__()
        self.mha, self.out = nn.MultiheadAttention(4, 2, batch_first=True), nn.Linear(4, 3)
        self.register_buffer("slopes", torch.tensor([0.5, 0.25]))

    def forward(self, x, lengths):
        b, t, _ = x.shape
        place = torch.arange(t, dtype=x.dtype)
        bias = -(place[None] - place[:, None]).abs() * self.slopes[:, None, None]
        mask = bias.repeat(b, 1, 1)
        mask = mask.masked_fill((place >= lengths[:, None]).repeat_interleave(2, 0)[:, None], -1e9)
        return self.out(self.mha(x, x, x, attn_mask=mask, need_weights=False)[0][:, 0])


class Rotary(nn.Module):
    """Rotary embeddings with complex numbers, as in the first Llama."""

    def __init__(self):
        super().__init__()
        self.qk, self.v, self.out = nn.Linear(4, 8), nn.Linear(4, 4), nn.Linear(4, 3)
        freqs = torch.outer(torch.arange(8).float(), 1.0 / 10000 ** (torch.arange(0, 4, 2).float() / 4))
        self.register_buffer("freqs", freqs)

    def rotate(self, x):
        freqs_cis = torch.polar(torch.ones_like(self.freqs), self.freqs)[: x.shape[1]]
        x_ = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(x_ * freqs_cis).flatten(2)

    def forward(self, x):
        q, k = self.qk(x).chunk(2, -1)
        attended = F.scaled_dot_product_attention(self.rotate(q), self.rotate(k), self.v(x), is_causal=True)
        return self.out(attended.mean(1))


class CachedRotary(nn.Module):
    """Rotary tables that are made at the first call and kept in attributes."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.out = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)
        self.cos_cached, self.sin_cached, self.seen = None, None, 0

    def tables(self, t, like):
        if t > self.seen:
            angle = torch.outer(torch.arange(t, dtype=like.dtype), torch.tensor([1.0, 0.1], dtype=like.dtype))
            angle = torch.cat([angle, angle], -1)
            self.cos_cached, self.sin_cached, self.seen = angle.cos(), angle.sin(), t
        return self.cos_cached[:t], self.sin_cached[:t]

    def forward(self, x):
        cos, sin = self.tables(x.size(1), x)

        def turned(y):
            a, b = y.chunk(2, -1)
            return y * cos + torch.cat([-b, a], -1) * sin

        scores = turned(self.q(x)) @ turned(self.k(x)).transpose(1, 2)
        return self.out((scores.softmax(-1) @ x).mean(1))


class PatchTransformer(nn.Module):
    """A ViT by unfold, with a class token and positions."""

    def __init__(self):
        super().__init__()
        self.proj, self.cls = nn.Linear(16, 6), nn.Parameter(torch.randn(1, 1, 6))
        self.pos = nn.Parameter(0.1 * torch.randn(1, 5, 6))
        self.block = nn.TransformerEncoderLayer(6, 2, 8, 0.0, F.gelu, batch_first=True, norm_first=True)
        self.head = nn.Linear(6, 3)

    def forward(self, img):
        p = F.unfold(img, 4, stride=4).transpose(1, 2)
        x = torch.cat([self.cls.repeat(img.shape[0], 1, 1), self.proj(p)], 1) + self.pos
        return self.head(self.block(x)[:, 0])


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.inc, self.down1, self.down2 = self.double(1, 3), self.double(3, 4), self.double(4, 4)
        self.up1, self.up2 = self.double(8, 3), self.double(6, 3)
        self.outc = nn.Conv2d(3, 2, 1)

    def double(self, n_in, n_out):
        return nn.Sequential(
            nn.Conv2d(n_in, n_out, 3, padding=1), nn.GroupNorm(1, n_out), nn.ReLU(inplace=True),
            nn.Conv2d(n_out, n_out, 3, padding=1), nn.ReLU(inplace=True),
        )  # fmt: skip

    def forward(self, x):
        x1 = self.inc(x)
        x2 = self.down1(F.max_pool2d(x1, 2))
        x3 = self.down2(F.max_pool2d(x2, 2))
        x = self.up1(torch.cat([F.interpolate(x3, scale_factor=2, mode="bilinear"), x2], 1))
        return self.outc(self.up2(torch.cat([F.interpolate(x, scale_factor=2), x1], 1)))


class SpatialTransformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.localization = nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.Tanh(), nn.Linear(8, 6))
        self.localization[3].bias.data.copy_(torch.tensor([1, 0, 0, 0, 1, 0], dtype=torch.float))
        self.localization[3].weight.data.mul_(0.1)
        self.conv, self.fc = nn.Conv2d(1, 3, 3), nn.Linear(3 * 16, 3)

    def forward(self, x):
        theta = self.localization(x).view(-1, 2, 3)
        x = F.grid_sample(x, F.affine_grid(theta, x.size(), align_corners=False), align_corners=False)
        return self.fc(F.relu(self.conv(x)).view(-1, 48))


class FourierLayer(nn.Module):
    """A Fourier neural operator: real weights for the lowest modes, as pairs."""

    def __init__(self):
        super().__init__()
        self.lift, self.w, self.out = nn.Linear(1, 3), nn.Conv1d(3, 3, 1), nn.Linear(3, 1)
        self.weights = nn.Parameter(0.3 * torch.randn(3, 3, 4, 2))

    def forward(self, x):
        x = self.lift(x.unsqueeze(-1)).transpose(1, 2)
        x_ft = torch.fft.rfft(x)
        out_ft = torch.zeros_like(x_ft)
        out_ft[:, :, :4] = torch.einsum("bix,iox->box", x_ft[:, :, :4], torch.view_as_complex(self.weights))
        x = F.gelu(torch.fft.irfft(out_ft, n=x.size(-1)) + self.w(x))
        return self.out(x.transpose(1, 2)).squeeze(-1)


class FNet(nn.Module):
    """Fourier transforms over time and features in place of attention; over the batch they would mix records."""

    def __init__(self, dim):
        super().__init__()
        self.a, self.norm, self.out, self.dim = nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 3), dim

    def forward(self, x):
        x = self.norm(self.a(x))
        x = x + torch.fft.fft(torch.fft.fft(x, dim=-1), dim=self.dim).real
        return self.out(x.mean(1))


class SqueezeExcite(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.fc = nn.Conv2d(2, 4, 3), nn.Linear(4, 3)
        self.se = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(4, 2, 1), nn.ReLU(), nn.Conv2d(2, 4, 1), nn.Sigmoid()
        )

    def forward(self, x):
        x = self.conv(x)
        return self.fc((x * self.se(x)).mean([2, 3]))


class DepthwiseResidual(nn.Module):
    """A ConvNeXt block: depthwise, permuted for LayerNorm, a learned scale for each layer."""

    def __init__(self):
        super().__init__()
        self.dwconv, self.norm = nn.Conv2d(4, 4, 3, padding=1, groups=4), nn.LayerNorm(4)
        self.pw1, self.pw2 = nn.Linear(4, 8), nn.Linear(8, 4)
        self.gamma, self.head = nn.Parameter(0.5 * torch.ones(4)), nn.Linear(4, 3)

    def forward(self, x):
        y = self.dwconv(x).permute(0, 2, 3, 1)
        y = self.gamma * self.pw2(F.gelu(self.pw1(self.norm(y))))
        return self.head((x + y.permute(0, 3, 1, 2)).mean((2, 3)))


class CapsuleNet(nn.Module):
    """Routing by agreement, three rounds."""

    def __init__(self):
        super().__init__()
        self.primary, self.W = nn.Conv2d(1, 8, 3, stride=2), nn.Parameter(0.3 * torch.randn(1, 8, 3, 4, 4))

    def squash(self, s):
        n = (s**2).sum(-1, keepdim=True)
        return n / (1 + n) * s / (n.sqrt() + 1e-8)

    def forward(self, x):
        u = self.squash(self.primary(x).view(x.size(0), 8, 4))
        u_hat = (self.W @ u[:, :, None, :, None]).squeeze(-1)
        b = torch.zeros(x.size(0), 8, 3, 1, dtype=x.dtype)
        for r in range(3):
            c = F.softmax(b, dim=2)
            v = self.squash((c * u_hat).sum(1, keepdim=True))
            if r < 2:
                b = b + (u_hat.detach() * v.detach()).sum(-1, keepdim=True)
        return v.squeeze(1).norm(dim=-1)


class NeuralOde(nn.Module):
    """Runge-Kutta with fixed steps; time is one more input."""

    def __init__(self):
        super().__init__()
        self.f, self.out = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 4)), nn.Linear(4, 3)

    def field(self, t, y):
        return self.f(torch.cat([y, torch.full_like(y[:, :1], t)], 1))

    def forward(self, y):
        h = 0.25
        for i in range(4):
            t = i * h
            k1 = self.field(t, y)
            k2 = self.field(t + h / 2, y + h / 2 * k1)
            k3 = self.field(t + h / 2, y + h / 2 * k2)
            y = y + h / 6 * (k1 + 2 * k2 + 2 * k3 + self.field(t + h, y + h * k3))
        return self.out(y)


class AdaptiveOde(NeuralOde):
    """Halves its step while the error of the whole batch is too large: how far a record goes depends on the others."""

    def forward(self, y):
        t, h = 0.0, 0.5
        while t < 1:
            k1 = self.field(t, y)
            k2 = self.field(t + h, y + h * k1)
            if float((k2 - k1).abs().max()) * h > 0.02 and h > 0.05:
                h = h / 2
                continue
            y, t = y + h * k1, t + h
        return self.out(y)


class MemoryAttention(nn.Module):
    """Attends to a memory in a buffer, and to its nearest entries."""

    def __init__(self):
        super().__init__()
        self.q, self.out = nn.Linear(4, 4), nn.Linear(8, 3)
        self.register_buffer("memory", torch.randn(9, 4))

    def forward(self, x):
        q = self.q(x)
        soft = (q @ self.memory.t()).softmax(-1) @ self.memory
        near = torch.cdist(q, self.memory).topk(2, largest=False).indices
        return self.out(torch.cat([soft, self.memory[near].mean(1) * q], 1))


class Quantised(nn.Module):
    """VQ-VAE: the nearest code, straight through; the losses of code and commitment are in the output."""

    def __init__(self):
        super().__init__()
        self.enc, self.dec, self.codebook = nn.Linear(4, 3), nn.Linear(3, 4), nn.Embedding(6, 3)

    def forward(self, x):
        z = self.enc(x)
        code = torch.cdist(z, self.codebook.weight).argmin(-1)
        q = self.codebook(code)
        commit = F.mse_loss(q, z.detach(), reduction="none").sum(1) + 0.25 * F.mse_loss(
            q.detach(), z, reduction="none"
        ).sum(1)
        q = z + (q - z).detach()
        return self.dec(q), commit


def vq_loss(outputs, targets):
    recon, commit = outputs
    return ((recon * targets).sum(1) + commit).mean()


class QuantisedMean(Quantised):
    """The same with the losses averaged over the batch inside the model, as in the repository everybody copies."""

    def forward(self, x):
        recon, commit = super().forward(x)
        return recon, commit.mean().expand(len(x))


class SetTransformer(nn.Module):
    """Learned queries, repeated for each record, attend to the set."""

    def __init__(self):
        super().__init__()
        self.inducing = nn.Parameter(torch.randn(1, 2, 4))
        self.up, self.attn, self.out = nn.Linear(3, 4), nn.MultiheadAttention(4, 1, batch_first=True), nn.Linear(8, 3)

    def forward(self, x, pad):
        x = self.up(x)
        h, _ = self.attn(self.inducing.repeat(x.size(0), 1, 1), x, x, key_padding_mask=pad)
        return self.out(h.flatten(1))


class InstanceNormed(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.ReflectionPad2d(1), nn.Conv2d(2, 4, 3), nn.InstanceNorm2d(4, affine=True), nn.LeakyReLU(0.2),
            nn.PixelShuffle(2), nn.Conv2d(1, 3, 3), nn.AdaptiveMaxPool2d(1), nn.Flatten(),
        )  # fmt: skip

    def forward(self, x):
        return self.net(x)


class TwoBranches(nn.Module):
    """Inception: several kernels side by side, concatenated, one layer used twice at different sizes."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Conv2d(2, 2, 1), nn.Conv2d(2, 2, 3, padding=1), nn.Conv2d(4, 3, 3)

    def forward(self, x):
        y = torch.cat([self.a(x), self.b(x)], 1)
        return self.c(F.relu(y)).mean((2, 3)) + self.c(F.avg_pool2d(y, 2)).mean((2, 3))


class Perceiver(nn.Module):
    """Softmax over the slots, then normalised over the places: slot attention with a GRU cell on b * slots rows."""

    def __init__(self):
        super().__init__()
        self.mu, self.k, self.v, self.q = nn.Parameter(torch.randn(1, 2, 4)), *(nn.Linear(4, 4) for _ in range(3))
        self.gru, self.norm, self.out = nn.GRUCell(4, 4), nn.LayerNorm(4), nn.Linear(4, 3)

    def forward(self, x):
        b = x.shape[0]
        slots = self.mu.expand(b, -1, -1)
        k, v = self.k(x), self.v(x)
        for _ in range(2):
            before = slots
            attn = (k @ self.q(self.norm(slots)).transpose(1, 2)).softmax(-1) + 1e-8
            updates = (attn / attn.sum(1, keepdim=True)).transpose(1, 2) @ v
            slots = self.gru(updates.reshape(-1, 4), before.reshape(-1, 4)).view(b, 2, 4)
        return self.out(slots.sum(1))


ENTRIES = {
    "minGPT": Stranger(MinGPT, words(6, out=(6, 11)), ANY),
    "relative positions from a table": Stranger(RelativePositions, floats(5, 4), ANY),
    "relative keys from an embedding": Stranger(ShawPositions, floats(5, 3), ANY),
    "ALiBi": Stranger(ALiBi, lengths(5, 4), ANY),
    "rotary, complex": Stranger(Rotary, floats(6, 4)),
    "rotary, cached in attributes": Stranger(CachedRotary, floats(6, 4), ANY),
    "patches by unfold": Stranger(PatchTransformer, floats(1, 8, 8), ANY),
    "U-Net": Stranger(UNet, floats(1, 8, 8, out=(2, 8, 8))),
    "spatial transformer": Stranger(SpatialTransformer, floats(1, 6, 6)),
    "Fourier neural operator": Stranger(FourierLayer, floats(8, out=8), ANY),
    "FNet": Stranger(lambda: FNet(1), floats(5, 4)),
    "squeeze and excitation": Stranger(SqueezeExcite, floats(2, 5, 5)),
    "ConvNeXt block": Stranger(DepthwiseResidual, floats(4, 5, 5), ANY),
    "capsules": Stranger(CapsuleNet, floats(1, 6, 6), ANY),
    "neural ODE, fixed steps": Stranger(NeuralOde, floats(4)),
    "neural ODE, steps by the error of the batch": Stranger(AdaptiveOde, floats(4), APART, "mixes.*records"),
    "memory in a buffer": Stranger(MemoryAttention, floats(4)),
    "VQ-VAE": Stranger(Quantised, floats(4, out=4), ANY, loss=vq_loss),
    "slot attention": Stranger(Perceiver, floats(5, 4), ANY),
    "learned queries": Stranger(SetTransformer, masked(5, 3, kept=False), ANY),
    "instance norm with weights": Stranger(InstanceNormed, floats(2, 5, 5)),
    "branches side by side, a layer at two sizes": Stranger(TwoBranches, classes(2, 8, 8), loss=F.cross_entropy),
}
