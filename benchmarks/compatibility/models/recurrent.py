"""Recurrent and convolutional networks over sequences."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

WORDS = 100


class Classifier(nn.Module):
    def __init__(self, kind: type, **more: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, 16)
        self.rnn = kind(16, 24, batch_first=True, **more)
        self.out = nn.Linear(48 if more.get("bidirectional") else 24, 4)

    def forward(self, ids: Tensor) -> Tensor:
        return self.out(self.rnn(self.embed(ids))[0][:, -1])


def rnn() -> nn.Module:
    return Classifier(nn.RNN)


def lstm() -> nn.Module:
    return Classifier(nn.LSTM)


def gru() -> nn.Module:
    return Classifier(nn.GRU)


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.lstm = nn.Embedding(WORDS, 16), nn.LSTM(16, 12, 2, batch_first=True, bidirectional=True)
        self.out = nn.Linear(24, 7)

    def forward(self, ids: Tensor) -> Tensor:
        return self.out(self.lstm(self.embed(ids))[0])


def bilstm_tagger() -> nn.Module:
    return Tagger()


class Streaming(nn.Module):
    """State goes in and comes out; its batch axis is the second one."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.out = nn.LSTM(8, 16, batch_first=True), nn.Linear(16, 3)

    def forward(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        found, (h, c) = self.lstm(x, (h, c))
        return self.out(found), h, c


def streaming_lstm() -> nn.Module:
    return Streaming()


def lstm_projection() -> nn.Module:
    class Projected(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(8, 32, batch_first=True, proj_size=8)

        def forward(self, x: Tensor) -> Tensor:
            return self.lstm(x)[0]

    return Projected()


class Attentive(nn.Module):
    """Encoder and decoder by GRU with additive attention, ten steps, greedy."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.encoder = nn.Embedding(WORDS, 16), nn.GRU(16, 16, batch_first=True)
        self.cell, self.score, self.out = nn.GRUCell(32, 16), nn.Linear(32, 1), nn.Linear(16, WORDS)

    def forward(self, ids: Tensor) -> Tensor:
        memory, last = self.encoder(self.embed(ids))
        state, word, logits = last[0], torch.zeros_like(ids[:, 0]), []
        for _ in range(10):
            both = torch.cat([memory, state[:, None].expand_as(memory)], -1)
            context = (self.score(both).softmax(1) * memory).sum(1)
            state = self.cell(torch.cat([self.embed(word), context], -1), state)
            logits.append(self.out(state))
            word = logits[-1].argmax(-1)
        return torch.stack(logits, 1)


def seq2seq_attention() -> nn.Module:
    return Attentive()


class ConvLSTM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gates, self.out = nn.Conv2d(9, 32, 3, padding=1), nn.Conv2d(8, 1, 1)

    def forward(self, clip: Tensor) -> Tensor:
        n, steps, _, height, width = clip.shape
        h = c = clip.new_zeros(n, 8, height, width)
        for t in range(steps):
            i, f, o, g = self.gates(torch.cat([clip[:, t], h], 1)).chunk(4, 1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
        return self.out(h)


def convlstm() -> nn.Module:
    return ConvLSTM()


class QuasiRecurrent(nn.Module):
    """QRNN: gates by convolution, the recurrence as a cumulative product."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(8, 32, 2)

    def forward(self, x: Tensor) -> Tensor:
        z, f = self.conv(F.pad(x.transpose(1, 2), (1, 0))).chunk(2, 1)
        keep = f.sigmoid().clamp(0.05, 0.95)
        decay = keep.log().cumsum(-1).exp()
        return (decay * ((1 - keep) * z.tanh() / decay).cumsum(-1)).transpose(1, 2)


def qrnn() -> nn.Module:
    return QuasiRecurrent()


class Chomped(nn.Module):
    def __init__(self, width: int, dilation: int) -> None:
        super().__init__()
        self.pad = 2 * dilation
        self.conv = nn.utils.parametrizations.weight_norm(nn.Conv1d(width, width, 3, dilation=dilation))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.conv(F.pad(x, (self.pad, 0))))


def tcn() -> nn.Module:
    return nn.Sequential(nn.Conv1d(4, 16, 1), Chomped(16, 1), Chomped(16, 2), Chomped(16, 4), nn.Conv1d(16, 1, 1))


class TextCNN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, 16)
        self.convs = nn.ModuleList(nn.Conv1d(16, 8, k) for k in (3, 4, 5))
        self.out = nn.Linear(24, 2)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids).transpose(1, 2)
        return self.out(torch.cat([conv(x).relu().amax(-1) for conv in self.convs], -1))


def textcnn() -> nn.Module:
    return TextCNN()


class FastText(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bag, self.out = nn.EmbeddingBag(WORDS, 16), nn.Linear(16, 4)

    def forward(self, ids: Tensor) -> Tensor:
        return self.out(self.bag(ids))


def fasttext() -> nn.Module:
    return FastText()


class Beats(nn.Module):
    """N-BEATS: each block takes what it explains away from the history."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(24, 32), nn.ReLU(), nn.Linear(32, 30)) for _ in range(3))

    def forward(self, history: Tensor) -> Tensor:
        total = torch.zeros_like(history[:, :6])
        for block in self.blocks:
            back, ahead = block(history).split([24, 6], -1)
            history, total = history - back, total + ahead
        return total


def nbeats() -> nn.Module:
    return Beats()


class DeepAR(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.mean, self.scale = nn.LSTM(3, 16, batch_first=True), nn.Linear(16, 1), nn.Linear(16, 1)

    def forward(self, series: Tensor) -> tuple[Tensor, Tensor]:
        found, _ = self.lstm(series)
        return self.mean(found), F.softplus(self.scale(found))


def deepar() -> nn.Module:
    return DeepAR()
