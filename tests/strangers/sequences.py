"""Sequences of different lengths: packed and sorted, padded and masked, with time in front."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from strangers.stranger import (
    ANY,
    APART,
    SAFE,
    TOGETHER,
    Stranger,
    between,
    floats,
    length_of,
    lengths,
    masked,
    word_lengths,
    words,
)

TOKENS = 11


class PackedUnsorted(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(TOKENS, 5, padding_idx=0)
        self.lstm = nn.LSTM(5, 4, batch_first=True)
        self.fc = nn.Linear(4, 3)

    def forward(self, text, text_lengths):
        packed = pack_padded_sequence(self.emb(text), text_lengths.cpu(), batch_first=True, enforce_sorted=False)
        _, (hidden, _) = self.lstm(packed)
        return self.fc(hidden[-1])


class PackedSorted(nn.Module):
    """Sorts by length, packs with enforce_sorted=True, and puts the order back."""

    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(TOKENS, 5)
        self.gru = nn.GRU(5, 4, batch_first=True, bidirectional=True)
        self.fc = nn.Linear(8, 3)

    def forward(self, x, lens):
        lens_sorted, perm_idx = lens.sort(0, descending=True)
        packed = pack_padded_sequence(self.emb(x[perm_idx]), lens_sorted, batch_first=True)
        out, _ = pad_packed_sequence(self.gru(packed)[0], batch_first=True)
        _, unperm_idx = perm_idx.sort(0)
        out = out[unperm_idx]
        return self.fc(out.sum(1) / lens.unsqueeze(1).to(out.dtype))


class PackedNeverSorted(nn.Module):
    """enforce_sorted=True on records in any order: torch itself raises unless they happen to be sorted."""

    def __init__(self):
        super().__init__()
        self.rnn, self.fc = nn.RNN(3, 4, batch_first=True), nn.Linear(4, 3)

    def forward(self, x, lens):
        packed = pack_padded_sequence(x, lens, batch_first=True, enforce_sorted=True)
        return self.fc(self.rnn(packed)[1][-1])


class LastState(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.fc = nn.LSTM(3, 4, batch_first=True), nn.Linear(4, 3)

    def forward(self, x, lengths):
        out, _ = self.lstm(x)
        return self.fc(out[torch.arange(x.size(0)), lengths - 1])


class LastStateGather(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb, self.gru, self.fc = nn.Embedding(TOKENS, 4), nn.GRU(4, 4, batch_first=True), nn.Linear(4, 3)

    def forward(self, ids, lengths):
        out, _ = self.gru(self.emb(ids))
        idx = (lengths - 1).view(-1, 1, 1).expand(-1, 1, out.size(2))
        return self.fc(out.gather(1, idx).squeeze(1))


class SortsByFeature(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 5), nn.Linear(5, 3)

    def forward(self, x):
        order = torch.argsort(x[:, 0])
        h = torch.tanh(self.a(x[order]))
        inverse = torch.empty_like(order)
        inverse[order] = torch.arange(len(order))
        return self.b(h)[inverse]


class LengthMask(nn.Module):
    """Attention with a mask that is made from lengths; trims to the longest record of the batch, as many loaders do."""

    def __init__(self, trim):
        super().__init__()
        self.emb = nn.Embedding(TOKENS, 6, padding_idx=0)
        self.enc = nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0, batch_first=True)
        self.fc, self.trim = nn.Linear(6, 3), trim

    def forward(self, ids, lengths):
        if self.trim:
            ids = ids[:, : int(lengths.max())]
        pad = torch.arange(ids.size(1))[None, :] >= lengths[:, None]
        h = self.enc(self.emb(ids), src_key_padding_mask=pad)
        h = h.masked_fill(pad.unsqueeze(-1), 0.0)
        return self.fc(h.sum(1) / lengths[:, None])


class PaddingFromZeros(nn.Module):
    """The mask is where the token is 0; a special token in front is a bare parameter."""

    def __init__(self):
        super().__init__()
        self.tok = nn.Embedding(TOKENS, 6, padding_idx=0)
        self.cls = nn.Parameter(torch.randn(1, 1, 6))
        self.pos = nn.Parameter(0.1 * torch.randn(1, 8, 6))
        layer = nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0, batch_first=True, norm_first=True)
        self.enc = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(6, 3)

    def forward(self, ids):
        b = ids.shape[0]
        x = torch.cat([self.cls.expand(b, -1, -1), self.tok(ids)], dim=1) + self.pos
        mask = torch.cat([torch.zeros(b, 1, dtype=torch.bool), ids == 0], dim=1)
        return self.head(self.enc(x, src_key_padding_mask=mask)[:, 0])


class DeepSet(nn.Module):
    def __init__(self):
        super().__init__()
        self.phi = nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 5))
        self.rho = nn.Linear(5, 3)

    def forward(self, x, mask):
        h = self.phi(x) * mask.unsqueeze(-1)
        return self.rho(h.sum(1) / mask.sum(1, keepdim=True).clamp(min=1))


class DeepSetPicked(nn.Module):
    """Only what the mask keeps goes through the network: x[mask] puts the elements of all records into one long row."""

    def __init__(self):
        super().__init__()
        self.phi, self.rho = nn.Sequential(nn.Linear(3, 6), nn.ReLU()), nn.Linear(6, 3)

    def forward(self, x, mask):
        flat = self.phi(x[mask])
        out = x.new_zeros(*x.shape[:2], 6)
        out[mask] = flat
        return self.rho(out.sum(1))


class JoinedMask(nn.Module):
    """The padding masks of a batch joined: a place counts where any record of the batch has something."""

    def __init__(self):
        super().__init__()
        self.proj, self.fc = nn.Linear(3, 5), nn.Linear(5, 3)

    def forward(self, x, mask):
        keep = mask.any(dim=0)
        return self.fc(torch.tanh(self.proj(x))[:, keep].mean(1))


class PositionalEncoding(nn.Module):
    """The one of the tutorial: (T, 1, d), because time comes first."""

    def __init__(self, d_model, max_len=32, batch_first=False):
        super().__init__()
        position = torch.arange(max_len).unsqueeze(1)
        div_term = torch.exp(torch.arange(0, d_model, 2) * (-math.log(10000.0) / d_model))
        pe = torch.zeros(max_len, 1, d_model)
        pe[:, 0, 0::2] = torch.sin(position * div_term)
        pe[:, 0, 1::2] = torch.cos(position * div_term)
        self.batch_first = batch_first
        self.register_buffer("pe", pe.transpose(0, 1) if batch_first else pe)

    def forward(self, x):
        return x + (self.pe[:, : x.size(1)] if self.batch_first else self.pe[: x.size(0)])


class TutorialTransformer(nn.Module):
    """The language model of the tutorial: time first inside, a causal mask made on the way."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Embedding(TOKENS, 6)
        self.pos_encoder = PositionalEncoding(6)
        layer = nn.TransformerEncoderLayer(6, 2, 8, 0.0)
        self.transformer_encoder = nn.TransformerEncoder(layer, 2)
        self.decoder = nn.Linear(6, TOKENS)

    def forward(self, src):
        src = src.t()
        src_mask = nn.Transformer.generate_square_subsequent_mask(src.size(0)).to(self.decoder.weight)
        src = self.pos_encoder(self.encoder(src) * math.sqrt(6))
        return self.decoder(self.transformer_encoder(src, src_mask)).transpose(0, 1)


class BatchFirstEncoding(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp, self.pe = nn.Linear(3, 6), PositionalEncoding(6, batch_first=True)
        self.attn, self.out = nn.MultiheadAttention(6, 2, batch_first=True), nn.Linear(6, 3)

    def forward(self, x):
        x = self.pe(self.inp(x))
        return self.out(self.attn(x, x, x, need_weights=False)[0].mean(dim=1))


class WrongEncoding(nn.Module):
    """The encoding of the tutorial on inputs with the batch in front: place i of the batch gets the code of time i."""

    def __init__(self):
        super().__init__()
        self.inp, self.pe, self.out = nn.Linear(3, 6), PositionalEncoding(6), nn.Linear(6, 3)

    def forward(self, x):
        return self.out(torch.tanh(self.pe(self.inp(x))).mean(1))


class TimeFirstLstm(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.fc = nn.LSTM(3, 4, num_layers=2), nn.Linear(4, 3)

    def forward(self, x):
        out, _ = self.lstm(x.permute(1, 0, 2))
        return self.fc(out[-1])


class OwnInitialState(nn.Module):
    """Initial states that are zeros of the batch's size, and learned ones that are expanded."""

    def __init__(self):
        super().__init__()
        self.gru, self.lstm = nn.GRU(3, 4, batch_first=True), nn.LSTM(4, 4, batch_first=True)
        self.h0, self.fc = nn.Parameter(0.1 * torch.randn(1, 1, 4)), nn.Linear(4, 3)

    def forward(self, x):
        b = x.size(0)
        out, _ = self.gru(x, self.h0.expand(-1, b, -1).contiguous())
        zeros = torch.zeros(1, b, 4, dtype=x.dtype, device=x.device)
        out, _ = self.lstm(out, (zeros, zeros))
        return self.fc(out[:, -1, :])


class ForgotBatchFirst(nn.Module):
    """nn.LSTM without batch_first on a batch in front: the records are taken for time."""

    def __init__(self):
        super().__init__()
        self.lstm, self.fc = nn.LSTM(3, 4), nn.Linear(4, 3)

    def forward(self, x):
        return self.fc(self.lstm(x)[0][:, -1])


class CellLoop(nn.Module):
    """An LSTM cell by hand, and a stop where the record ends."""

    def __init__(self):
        super().__init__()
        self.cell, self.fc = nn.LSTMCell(3, 4), nn.Linear(4, 3)

    def forward(self, x, lengths):
        h = c = x.new_zeros(x.size(0), 4)
        for t in range(x.size(1)):
            h_new, c_new = self.cell(x[:, t], (h, c))
            alive = (t < lengths).unsqueeze(1)
            h, c = torch.where(alive, h_new, h), torch.where(alive, c_new, c)
        return self.fc(h)


class StopsWhenAllAreDone(nn.Module):
    """Adaptive computation: goes on until every record of the batch says stop, without freezing those that did."""

    def __init__(self):
        super().__init__()
        self.cell, self.fc = nn.GRUCell(4, 4), nn.Linear(4, 3)

    def forward(self, x):
        h = torch.zeros_like(x)
        for _ in range(6):
            before, h = h, self.cell(x, h)
            if bool(((h - before).abs().sum(1) < 0.2).all()):
                break
        return self.fc(h)


class TransformerXL(nn.Module):
    """Segments one after the other; each attends to the memory of the one before, without gradient."""

    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(TOKENS, 6)
        self.qkv, self.out = nn.Linear(6, 18), nn.Linear(6, 3)

    def forward(self, ids):
        mems, total = None, 0.0
        for segment in ids.split(4, dim=1):
            h = self.emb(segment)
            context = h if mems is None else torch.cat([mems, h], dim=1)
            q, _, _ = self.qkv(h).chunk(3, -1)
            _, k, v = self.qkv(context).chunk(3, -1)
            att = torch.softmax(q @ k.transpose(1, 2) / 6**0.5, -1)
            h = h + att @ v
            mems, total = h.detach(), total + self.out(h).sum(1)
        return total


class WaveNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.start = nn.Conv1d(1, 4, 1)
        self.filters = nn.ModuleList(nn.Conv1d(4, 4, 2, dilation=2**i) for i in range(3))
        self.gates = nn.ModuleList(nn.Conv1d(4, 4, 2, dilation=2**i) for i in range(3))
        self.skips = nn.ModuleList(nn.Conv1d(4, 3, 1) for _ in range(3))

    def forward(self, x):
        x, skip = self.start(x), 0
        for f, g, s in zip(self.filters, self.gates, self.skips, strict=True):
            z = torch.tanh(f(x)) * torch.sigmoid(g(x))
            skip = s(z)[..., -1] + skip
            x = x[..., -z.size(-1) :] + z
        return skip


class Chomp1d(nn.Module):
    def __init__(self, chomp_size):
        super().__init__()
        self.chomp_size = chomp_size

    def forward(self, x):
        return x[:, :, : -self.chomp_size].contiguous()


class TCN(nn.Module):
    """With weight_norm, as in the repository everybody copies, in its present form."""

    def __init__(self):
        super().__init__()
        norm = nn.utils.parametrizations.weight_norm
        layers = []
        for i, (n_in, n_out) in enumerate([(3, 4), (4, 4)]):
            pad = 2**i
            layers += [norm(nn.Conv1d(n_in, n_out, 2, padding=pad, dilation=2**i)), Chomp1d(pad), nn.ReLU()]
        self.net, self.linear = nn.Sequential(*layers), nn.Linear(4, 3)

    def forward(self, x):
        return self.linear(self.net(x)[:, :, -1])


class CumulativeMean(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(3, 4), nn.Linear(4, 3)

    def forward(self, x):
        h = torch.tanh(self.a(x)).cumsum(1)
        h = h / torch.arange(1, x.shape[1] + 1, dtype=x.dtype).view(1, -1, 1)
        return self.b(h.flip(1).roll(1, dims=1)[:, 0] + h[:, 0])


class TopOverTime(nn.Module):
    """Keeps the two loudest places, in the order of a learned score."""

    def __init__(self):
        super().__init__()
        self.score, self.proj, self.fc = nn.Linear(3, 1), nn.Linear(3, 4), nn.Linear(4, 3)

    def forward(self, x):
        s = self.score(x).squeeze(-1)
        value, index = s.topk(2, dim=1)
        picked = x.gather(1, index.unsqueeze(-1).expand(-1, -1, x.size(-1)))
        order = picked[..., 0].argsort(dim=1)
        picked = torch.take_along_dim(picked, order.unsqueeze(-1), 1)
        return self.fc((torch.tanh(self.proj(picked)) * value.sigmoid().unsqueeze(-1)).sum(1))


class MergesWithTime(nn.Module):
    """x.view(-1, d): records and time in one dimension, and back."""

    def __init__(self):
        super().__init__()
        self.a, self.norm, self.b = nn.Linear(3, 4), nn.GroupNorm(2, 4), nn.Linear(4, 3)

    def forward(self, x):
        b, t, d = x.shape
        h = self.norm(torch.tanh(self.a(x.reshape(-1, d))))
        return self.b(h.view(b, t, -1).mean(1))


class MergesTheWrongWay(nn.Module):
    """Comes out in the wrong order: view(t, b, d) of what was (b, t, d)."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(3, 4), nn.Linear(4, 3)

    def forward(self, x):
        b, t, _ = x.shape
        h = torch.tanh(self.a(x)).reshape(t, b, -1).cumsum(0)
        return self.b(h[-1])


class FramesThroughCnn(nn.Module):
    """A video: every frame through one CNN, then an LSTM over the frames."""

    def __init__(self):
        super().__init__()
        self.cnn = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.rnn, self.fc = nn.LSTM(3, 4, batch_first=True), nn.Linear(4, 3)

    def forward(self, x):
        b, t, c, h, w = x.size()
        features = self.cnn(x.view(b * t, c, h, w)).view(b, t, -1)
        return self.fc(self.rnn(features)[0][:, -1])


class FrameNorm(nn.Module):
    """GroupNorm on (N*T) frames, with affine weights of its own."""

    def __init__(self):
        super().__init__()
        self.conv, self.gn, self.fc = nn.Conv1d(2, 4, 3), nn.GroupNorm(2, 4), nn.Linear(4, 3)

    def forward(self, x):
        n, t = x.shape[:2]
        h = self.gn(self.conv(x.flatten(0, 1)))
        return self.fc(h.mean(-1).unflatten(0, (n, t)).amax(1))


class PackedByZeros(nn.Module):
    """Finds the lengths itself: the last place of a record that is not zero."""

    def __init__(self):
        super().__init__()
        self.gru, self.fc = nn.GRU(3, 4, batch_first=True), nn.Linear(4, 3)

    def forward(self, x, lengths):
        found = (x.abs().sum(-1) > 0).sum(1)
        packed = pack_padded_sequence(x, found.cpu(), batch_first=True, enforce_sorted=False)
        return self.fc(self.gru(packed)[1][-1])


class AnyLength(nn.Module):
    """Takes records of any length, without padding."""

    def __init__(self):
        super().__init__()
        self.emb, self.gru, self.fc = nn.Embedding(TOKENS, 4), nn.GRU(4, 4, batch_first=True), nn.Linear(4, 3)

    def forward(self, ids):
        return self.fc(self.gru(self.emb(ids))[0].amax(1))


class AnyLengthTheWrongWay(nn.Module):
    """reshape(t, b, d) in place of a transposition: right as long as t is 1, as it is for the first record."""

    def __init__(self):
        super().__init__()
        self.rnn, self.fc = nn.RNN(3, 4), nn.Linear(4, 3)

    def forward(self, x):
        b, t, d = x.shape
        return self.fc(self.rnn(x.reshape(t, b, d))[0][-1])


class CRF(nn.Module):
    """A BiLSTM with a conditional random field: the loss is what comes out."""

    def __init__(self):
        super().__init__()
        self.emb, self.lstm = nn.Embedding(TOKENS, 4), nn.LSTM(4, 2, batch_first=True, bidirectional=True)
        self.emit, self.trans = nn.Linear(4, 3), nn.Parameter(torch.randn(3, 3))
        self.start, self.end = nn.Parameter(torch.randn(3)), nn.Parameter(torch.randn(3))

    def forward(self, ids, lengths):
        emissions = self.emit(self.lstm(self.emb(ids))[0])
        tags = ids % 3
        mask = torch.arange(ids.size(1)) < lengths[:, None]
        score = self.start[tags[:, 0]] + emissions[:, 0].gather(1, tags[:, :1]).squeeze(1)
        alpha = self.start + emissions[:, 0]
        for t in range(1, ids.size(1)):
            step = self.trans[tags[:, t - 1], tags[:, t]] + emissions[:, t].gather(1, tags[:, t : t + 1]).squeeze(1)
            score = score + step * mask[:, t]
            onward = torch.logsumexp(alpha.unsqueeze(2) + self.trans + emissions[:, t].unsqueeze(1), dim=1)
            alpha = torch.where(mask[:, t].unsqueeze(1), onward, alpha)
        last = tags.gather(1, (lengths - 1).unsqueeze(1)).squeeze(1)
        return torch.logsumexp(alpha + self.end, 1) - score - self.end[last]


def likelihood(outputs, targets):
    return (outputs * targets[:, 0]).mean()


class Speech(nn.Module):
    """A spectrogram, a recurrent network, and the CTC loss."""

    def __init__(self):
        super().__init__()
        self.gru, self.fc = nn.GRU(5, 4, batch_first=True), nn.Linear(4, 4)

    def forward(self, wave):
        spectrum = torch.stft(wave, 8, 4, window=torch.hann_window(8, dtype=wave.dtype), return_complex=True)
        return self.fc(self.gru(spectrum.abs().add(1e-3).log().transpose(1, 2))[0]).log_softmax(-1)


def ctc(outputs, targets):
    inputs = torch.full((len(outputs),), outputs.shape[1])
    lengths = (targets > 0).sum(1)
    return F.ctc_loss(outputs.transpose(0, 1), targets, inputs, lengths, reduction="none")


def speech(wide):
    label = torch.randint(1, 4, (3,))
    label[length_of(wide, 3) :] = 0
    return torch.randn(24), label


def any_length(wide):
    return torch.randint(0, TOKENS, (between(1, 8) if wide else 4,)), torch.randn(3)


def one_place_or_more(wide):
    return torch.randn(3 if wide else 1, 3), torch.randn(3)


ENTRIES = {
    "packed by what is not zero": Stranger(PackedByZeros, lengths(5, 3), ANY),
    "conditional random field": Stranger(CRF, word_lengths(5), ANY, loss=likelihood),
    "spectrogram and CTC": Stranger(Speech, speech, ANY, loss=ctc),
    "records of any length": Stranger(AnyLength, any_length),
    "records of any length the wrong way": Stranger(AnyLengthTheWrongWay, one_place_or_more, SAFE, "mix"),
    "packed LSTM, unsorted": Stranger(PackedUnsorted, word_lengths(6), ANY),
    "packed GRU, sorted and back": Stranger(PackedSorted, word_lengths(6), ANY),
    "packed RNN, enforce_sorted": Stranger(PackedNeverSorted, lengths(5, 3), SAFE, "sorted"),
    "last state by arange": Stranger(LastState, lengths(5, 3), ANY),
    "last state by gather": Stranger(LastStateGather, word_lengths(6), ANY),
    "sorted by a feature and back": Stranger(SortsByFeature, floats(4), SAFE, "sorts|mix|record"),
    "mask from lengths": Stranger(lambda: LengthMask(trim=False), word_lengths(6)),
    "trimmed to the longest record": Stranger(lambda: LengthMask(trim=True), word_lengths(6), ANY),
    "padding from zeros, class token": Stranger(PaddingFromZeros, words(7)),
    "deep set, masked mean": Stranger(DeepSet, masked(5, 3)),
    "deep set, x[mask]": Stranger(DeepSetPicked, masked(5, 3), ANY),
    "masks joined over the batch": Stranger(JoinedMask, masked(5, 3), SAFE, "mix"),
    "tutorial transformer, time first": Stranger(TutorialTransformer, words(6, out=(6, TOKENS)), ANY),
    "encoding in a buffer, batch first": Stranger(BatchFirstEncoding, floats(5, 3)),
    "encoding of the wrong dimension": Stranger(WrongEncoding, floats(5, 3), SAFE, "mix"),
    "LSTM, time first": Stranger(TimeFirstLstm, floats(5, 3)),
    "initial states, zeros and learned": Stranger(OwnInitialState, floats(5, 3), ANY),
    "LSTM without batch_first": Stranger(ForgotBatchFirst, floats(5, 3), SAFE, "mix"),
    "LSTM cell with lengths": Stranger(CellLoop, lengths(5, 3)),
    "stops when all records are done": Stranger(StopsWhenAllAreDone, floats(4), APART, "mixes.*records"),
    "Transformer-XL memory": Stranger(TransformerXL, words(8), TOGETHER),
    "WaveNet": Stranger(WaveNet, floats(1, 12)),
    "TCN with weight norm": Stranger(TCN, floats(3, 8), ANY),
    "cumsum, flip and roll over time": Stranger(CumulativeMean, floats(5, 3)),
    "topk and argsort over time": Stranger(TopOverTime, floats(6, 3)),
    "records merged with time": Stranger(MergesWithTime, floats(5, 3), ANY),
    "records merged with time the wrong way": Stranger(MergesTheWrongWay, floats(5, 3), SAFE, "mix"),
    "frames through a CNN": Stranger(FramesThroughCnn, floats(4, 1, 5, 5), ANY),
    "GroupNorm on records times frames": Stranger(FrameNorm, floats(3, 2, 6), ANY),
}
