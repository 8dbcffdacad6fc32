"""Rows of tables, recommendation and reinforcement learning."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

IDS = 50


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 3))


def self_normalising() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 32), nn.SELU(), nn.AlphaDropout(), nn.Linear(32, 1))


class TabularResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter, self.out = nn.Linear(16, 32), nn.Linear(32, 3)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.BatchNorm1d(32), nn.Linear(32, 64), nn.ReLU(), nn.Dropout(), nn.Linear(64, 32))
            for _ in range(2)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        for block in self.blocks:
            x = x + block(x)
        return self.out(x)


def tabular_resnet() -> nn.Module:
    return TabularResNet()


class WideDeep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.wide = nn.Embedding(IDS, 8), nn.Linear(10, 1)
        self.deep = nn.Sequential(nn.Linear(42, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, numbers: Tensor, ids: Tensor) -> Tensor:
        both = torch.cat([numbers, self.embed(ids).flatten(1)], 1)
        return torch.sigmoid(self.wide(numbers) + self.deep(both))


def wide_and_deep() -> nn.Module:
    return WideDeep()


class DeepFM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.embed = nn.Embedding(IDS, 1), nn.Embedding(IDS, 8)
        self.deep = nn.Sequential(nn.Linear(40, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, ids: Tensor) -> Tensor:
        e = self.embed(ids)
        pairs = 0.5 * (e.sum(1).pow(2) - e.pow(2).sum(1)).sum(1, keepdim=True)
        return torch.sigmoid(self.first(ids).sum(1) + pairs + self.deep(e.flatten(1)))


def deepfm() -> nn.Module:
    return DeepFM()


class Cross(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers, self.out = nn.ModuleList(nn.Linear(16, 16) for _ in range(3)), nn.Linear(16, 1)

    def forward(self, x: Tensor) -> Tensor:
        found = x
        for layer in self.layers:
            found = x * layer(found) + found
        return self.out(found)


def deep_cross() -> nn.Module:
    return Cross()


class DLRM(nn.Module):
    """Bags of ids given with offsets, pairwise dot products below the diagonal."""

    def __init__(self) -> None:
        super().__init__()
        self.bottom, self.top = nn.Linear(13, 8), nn.Linear(14, 1)
        self.tables = nn.ModuleList(nn.Embedding(IDS, 8) for _ in range(3))
        self.register_buffer("pairs", torch.tril_indices(4, 4, -1))

    def forward(self, dense: Tensor, first: Tensor, second: Tensor, third: Tensor) -> Tensor:
        x = self.bottom(dense).relu()
        ids = (first, second, third)
        all_ = torch.stack([x, *(t(i) for t, i in zip(self.tables, ids, strict=True))], 1)
        dots = (all_ @ all_.transpose(1, 2))[:, self.pairs[0], self.pairs[1]]
        return self.top(torch.cat([x, dots], 1)).sigmoid()


def dlrm() -> nn.Module:
    return DLRM()


class Collaborative(nn.Module):
    """NCF: a generalised factorisation beside a small network."""

    def __init__(self) -> None:
        super().__init__()
        self.user, self.item = nn.Embedding(IDS, 16), nn.Embedding(IDS, 16)
        self.net, self.out = nn.Sequential(nn.Linear(16, 8), nn.ReLU()), nn.Linear(16, 1)

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        u, i = self.user(user), self.item(item)
        both = torch.cat([u[:, :8] * i[:, :8], self.net(torch.cat([u[:, 8:], i[:, 8:]], -1))], -1)
        return self.out(both).squeeze(-1).sigmoid()


def neural_collaborative() -> nn.Module:
    return Collaborative()


class AutoInt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.attend = nn.Embedding(IDS, 16), nn.MultiheadAttention(16, 2, batch_first=True)
        self.out = nn.Linear(80, 1)

    def forward(self, ids: Tensor) -> Tensor:
        e = self.embed(ids)
        return self.out((e + self.attend(e, e, e)[0]).relu().flatten(1))


def autoint() -> nn.Module:
    return AutoInt()


def _sparsemax(x: Tensor) -> Tensor:
    ordered = x.sort(-1, descending=True).values
    total = ordered.cumsum(-1) - 1
    rank = torch.arange(1, x.shape[-1] + 1)
    inside = (rank * ordered > total).sum(-1, keepdim=True)
    return (x - total.gather(-1, inside - 1) / inside).clamp(min=0)


class TabNet(nn.Module):
    """Two steps; each looks at a few columns, chosen by a sparsemax."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(16)
        self.choose, self.think = (nn.ModuleList(nn.Linear(16, 16) for _ in range(2)) for _ in range(2))
        self.out = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x)
        prior, state, total = torch.ones_like(x), x, torch.zeros_like(x)
        for choose, think in zip(self.choose, self.think, strict=True):
            mask = _sparsemax(choose(state) * prior)
            prior = prior * (1.3 - mask)
            state = F.glu(torch.cat([think(mask * x), think(x)], -1))
            total = total + state.relu()
        return self.out(total)


def tabnet() -> nn.Module:
    return TabNet()


class SoftTrees(nn.Module):
    """NODE: oblivious trees with soft splits."""

    def __init__(self) -> None:
        super().__init__()
        self.split, self.leaves = nn.Linear(16, 8 * 3), nn.Parameter(torch.randn(8, 8, 2))
        bits = (torch.arange(8)[:, None] >> torch.arange(3)) & 1
        self.register_buffer("bits", bits.float())

    def forward(self, x: Tensor) -> Tensor:
        right = self.split(x).unflatten(-1, (8, 1, 3)).sigmoid()
        leaf = (right * self.bits + (1 - right) * (1 - self.bits)).prod(-1)
        return torch.einsum("ntl,tlo->no", leaf, self.leaves)


def soft_trees() -> nn.Module:
    return SoftTrees()


class FTTransformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(8, 16)), nn.Parameter(torch.randn(8, 16))
        self.first = nn.Parameter(torch.randn(1, 1, 16))
        self.body, self.out = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, norm_first=True), nn.Linear(16, 1)

    def forward(self, x: Tensor) -> Tensor:
        tokens = x[..., None] * self.weight + self.bias
        tokens = torch.cat([self.first.expand(x.shape[0], -1, -1), tokens], 1)
        return self.out(self.body(tokens)[:, 0])


def ft_transformer() -> nn.Module:
    return FTTransformer()


class DuelingQ(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(4, 8, 8, 4), nn.ReLU(), nn.Conv2d(8, 8, 4, 2), nn.ReLU(), nn.Flatten())
        self.value, self.gain = nn.Linear(128, 1), nn.Linear(128, 6)

    def forward(self, frames: Tensor) -> Tensor:
        body = self.body(frames / 255.0)
        gain = self.gain(body)
        return self.value(body) + gain - gain.mean(1, keepdim=True)


def dueling_dqn() -> nn.Module:
    return DuelingQ()


class ActorCritic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.mean, self.value = nn.Linear(8, 32), nn.Linear(32, 2), nn.Linear(32, 1)
        self.log = nn.Parameter(torch.randn(2))

    def forward(self, observation: Tensor) -> dict[str, Tensor]:
        body = self.body(observation).tanh()
        mean = self.mean(body)
        return {"mean": mean, "deviation": self.log.exp().expand_as(mean), "value": self.value(body).squeeze(-1)}


def actor_critic() -> nn.Module:
    return ActorCritic()
