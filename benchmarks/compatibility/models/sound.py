"""Sound: waves and spectrograms."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def conv1d(cin: int, cout: int, size: int, stride: int = 1, dilation: int = 1, groups: int = 1) -> nn.Module:
    pad = dilation * (size // 2)
    return nn.Sequential(nn.Conv1d(cin, cout, size, stride, pad, dilation, groups), nn.BatchNorm1d(cout), nn.ReLU())


def m5() -> nn.Module:
    return nn.Sequential(
        conv1d(1, 16, 79, 16),
        nn.MaxPool1d(4),
        conv1d(16, 16, 3),
        nn.AdaptiveAvgPool1d(1),
        nn.Flatten(),
        nn.Linear(16, 5),
    )


class WaveEncoder(nn.Module):
    """wav2vec 2.0: strided convolutions over the wave, a convolution for positions, transformer layers."""

    def __init__(self) -> None:
        super().__init__()
        self.waves = nn.ModuleList([nn.Conv1d(1, 16, 10, 5), nn.Conv1d(16, 16, 3, 2), nn.Conv1d(16, 16, 2, 2)])
        self.norm, self.places = nn.GroupNorm(16, 16), nn.Conv1d(16, 16, 8, padding=4, groups=4)
        self.body = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)

    def forward(self, wave: Tensor) -> Tensor:
        x = wave[:, None]
        for i, conv in enumerate(self.waves):
            x = F.gelu(self.norm(conv(x)) if i == 0 else conv(x))
        x = x + F.gelu(self.places(x)[..., :-1])
        return self.body(x.transpose(1, 2))


def wav2vec() -> nn.Module:
    return WaveEncoder()


class WaveNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter, self.out = nn.Conv1d(1, 16, 1), nn.Sequential(nn.ReLU(), nn.Conv1d(16, 32, 1))
        self.gates = nn.ModuleList(nn.Conv1d(16, 32, 2, dilation=2**i) for i in range(4))
        self.sides = nn.ModuleList(nn.Conv1d(16, 16, 1) for _ in range(4))

    def forward(self, wave: Tensor) -> Tensor:
        x, total = self.enter(wave), 0
        for i, (gate, side) in enumerate(zip(self.gates, self.sides, strict=True)):
            value, door = gate(F.pad(x, (2**i, 0))).chunk(2, 1)
            found = side(value.tanh() * door.sigmoid())
            x, total = x + found, total + found
        return self.out(total)


def wavenet() -> nn.Module:
    return WaveNet()


class DeepSpeech(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Sequential(nn.Conv2d(1, 4, (11, 5), (2, 2), (5, 2)), nn.BatchNorm2d(4), nn.Hardtanh(0, 20))
        self.gru, self.out = nn.GRU(4 * 20, 16, bidirectional=True, batch_first=True), nn.Linear(32, 29)

    def forward(self, spectrogram: Tensor) -> Tensor:
        x = self.conv(spectrogram[:, None]).flatten(1, 2).transpose(1, 2)
        return self.out(self.gru(x)[0]).log_softmax(-1)


def deepspeech2() -> nn.Module:
    return DeepSpeech()


class Quartz(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter, self.out = conv1d(40, 32, 11, 2), nn.Conv1d(32, 29, 1)
        self.blocks = nn.ModuleList(nn.Sequential(conv1d(32, 32, 9, groups=32), nn.Conv1d(32, 32, 1)) for _ in range(2))

    def forward(self, spectrogram: Tensor) -> Tensor:
        x = self.enter(spectrogram)
        for block in self.blocks:
            x = (x + block(x)).relu()
        return self.out(x)


def quartznet() -> nn.Module:
    return Quartz()


class Conformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter, self.attend = nn.Linear(40, 16), nn.MultiheadAttention(16, 2, batch_first=True)
        self.feeds = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 32), nn.SiLU(), nn.Linear(32, 16)) for _ in range(2)
        )
        self.point, self.depth, self.last = (
            nn.Conv1d(16, 32, 1),
            nn.Conv1d(16, 16, 7, padding=3, groups=16),
            nn.Conv1d(16, 16, 1),
        )
        self.batch, self.norm = nn.BatchNorm1d(16), nn.LayerNorm(16)

    def forward(self, features: Tensor) -> Tensor:
        x = self.enter(features)
        x = x + 0.5 * self.feeds[0](x)
        x = x + self.attend(x, x, x, need_weights=False)[0]
        h = F.glu(self.point(x.transpose(1, 2)), 1)
        x = x + self.last(F.silu(self.batch(self.depth(h)))).transpose(1, 2)
        return self.norm(x + 0.5 * self.feeds[1](x))


def conformer() -> nn.Module:
    return Conformer()


class XVector(nn.Module):
    """Mean and deviation over time make a speaker's vector."""

    def __init__(self) -> None:
        super().__init__()
        self.frames = nn.Sequential(conv1d(24, 32, 5), conv1d(32, 32, 3, dilation=2), conv1d(32, 48, 1))
        self.out = nn.Linear(96, 16)

    def forward(self, features: Tensor) -> Tensor:
        x = self.frames(features.transpose(1, 2))
        return self.out(torch.cat([x.mean(-1), x.std(-1)], -1))


def x_vector() -> nn.Module:
    return XVector()


class Ecapa(nn.Module):
    """ECAPA-TDNN: Res2 convolutions, squeeze and excitation, attentive statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.parts = conv1d(24, 32, 5), nn.ModuleList(conv1d(8, 8, 3, dilation=2) for _ in range(3))
        self.squeeze = nn.Sequential(
            nn.AdaptiveAvgPool1d(1), nn.Conv1d(32, 8, 1), nn.ReLU(), nn.Conv1d(8, 32, 1), nn.Sigmoid()
        )
        self.weigh, self.out = nn.Sequential(nn.Conv1d(32, 8, 1), nn.Tanh(), nn.Conv1d(8, 32, 1)), nn.Linear(64, 16)

    def forward(self, features: Tensor) -> Tensor:
        x = self.enter(features.transpose(1, 2))
        first, *rest = x.chunk(4, 1)
        done = [first]
        for part, piece in zip(self.parts, rest, strict=True):
            done.append(part(piece + done[-1]))
        h = torch.cat(done, 1)
        x = x + h * self.squeeze(h)
        weights = self.weigh(x).softmax(-1)
        mean = (weights * x).sum(-1)
        spread = ((weights * x * x).sum(-1) - mean**2).clamp(min=1e-6).sqrt()
        return F.normalize(self.out(torch.cat([mean, spread], -1)))


def ecapa_tdnn() -> nn.Module:
    return Ecapa()


class Separation(nn.Module):
    """Conv-TasNet: two voices from one wave by masks over a learned basis."""

    def __init__(self) -> None:
        super().__init__()
        self.basis, self.back = nn.Conv1d(1, 32, 16, 8, bias=False), nn.ConvTranspose1d(32, 1, 16, 8, bias=False)
        self.masks = nn.Sequential(
            nn.GroupNorm(1, 32), conv1d(32, 32, 3), conv1d(32, 32, 3, dilation=2), nn.Conv1d(32, 64, 1)
        )

    def forward(self, wave: Tensor) -> Tensor:
        x = self.basis(wave).relu()
        masks = self.masks(x).unflatten(1, (2, 32)).sigmoid()
        found = (x[:, None] * masks).flatten(0, 1)
        return self.back(found).unflatten(0, (-1, 2)).squeeze(2)


def conv_tasnet() -> nn.Module:
    return Separation()


class Demucs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2 = nn.Conv1d(1, 8, 8, 4, 2), nn.Conv1d(8, 16, 8, 4, 2)
        self.lstm = nn.LSTM(16, 16, bidirectional=True)
        self.back, self.up2, self.up1 = (
            nn.Linear(32, 16),
            nn.ConvTranspose1d(16, 8, 8, 4, 2),
            nn.ConvTranspose1d(8, 1, 8, 4, 2),
        )

    def forward(self, wave: Tensor) -> Tensor:
        one = self.down1(wave).relu()
        two = self.down2(one).relu()
        deep = self.back(self.lstm(two.permute(2, 0, 1))[0]).permute(1, 2, 0)
        return self.up1(self.up2(deep + two).relu() + one)


def demucs() -> nn.Module:
    return Demucs()


class HiFi(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        norm = nn.utils.parametrizations.weight_norm
        self.enter = norm(nn.Conv1d(20, 16, 7, padding=3))
        self.up = norm(nn.ConvTranspose1d(16, 8, 8, 4, 2))
        self.blocks = nn.ModuleList(norm(nn.Conv1d(8, 8, k, padding=k // 2)) for k in (3, 7))
        self.out = nn.Conv1d(8, 1, 7, padding=3)

    def forward(self, mel: Tensor) -> Tensor:
        x = self.up(F.leaky_relu(self.enter(mel), 0.1))
        x = sum(x + block(F.leaky_relu(x, 0.1)) for block in self.blocks) / 2
        return self.out(F.leaky_relu(x)).tanh()


def hifigan() -> nn.Module:
    return HiFi()


class Crepe(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(conv1d(1, 16, 64, 4), nn.MaxPool1d(4), conv1d(16, 8, 32), nn.AdaptiveMaxPool1d(8))
        self.out = nn.Linear(64, 36)

    def forward(self, frame: Tensor) -> Tensor:
        frame = (frame - frame.mean(-1, keepdim=True)) / frame.std(-1, keepdim=True).clamp(min=1e-8)
        return self.out(self.body(frame[:, None]).flatten(1)).sigmoid()


def crepe() -> nn.Module:
    return Crepe()


class Spectral(nn.Module):
    """The spectrogram is part of the model: ``torch.stft``, a mel filter, the logarithm, then DS-CNN for keywords."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("window", torch.hann_window(256))
        self.register_buffer("mel", torch.rand(129, 20))
        self.body = nn.Sequential(
            nn.Conv2d(1, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 8, 3, 1, 1, groups=8), nn.Conv2d(8, 16, 1)
        )
        self.out = nn.Linear(16, 12)

    def forward(self, wave: Tensor) -> Tensor:
        spectrum = torch.stft(wave, 256, 128, window=self.window, return_complex=True).abs().pow(2)
        features = (spectrum.transpose(1, 2) @ self.mel + 1e-6).log()
        return self.out(self.body(features[:, None]).mean((2, 3)))


def keyword_spotting() -> nn.Module:
    return Spectral()


class VoiceActivity(nn.Module):
    """One chunk in, a probability and the state out, as streaming detectors have it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.cell, self.out = conv1d(1, 16, 8, 4), nn.LSTMCell(16, 16), nn.Linear(16, 1)

    def forward(self, chunk: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        h, c = self.cell(self.conv(chunk[:, None]).mean(-1), (state[0], state[1]))
        return self.out(h).sigmoid(), torch.stack([h, c])


def voice_activity() -> nn.Module:
    return VoiceActivity()


class FastSpeech(nn.Module):
    """Non-autoregressive speech: each phoneme lasts as long as the predictor says, up to a fixed length of the mel."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.body = nn.Embedding(40, 16), nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.length, self.out = nn.Linear(16, 1), nn.Linear(16, 20)

    def forward(self, phonemes: Tensor) -> Tensor:
        x = self.body(self.embed(phonemes))
        ends = (F.softplus(self.length(x).squeeze(-1)) + 0.5).cumsum(-1)
        frame = torch.arange(32)
        which = (frame[None, :, None] >= ends[:, None]).sum(-1).clamp(max=phonemes.shape[1] - 1)
        return self.out(x.gather(1, which[..., None].expand(-1, -1, 16)))


def fastspeech() -> nn.Module:
    return FastSpeech()
