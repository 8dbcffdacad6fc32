"""Graphs, sets, points and trees of features: sizes that are not batches, and indices as inputs."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

FactoryResult = tuple[nn.Module, dict[str, Tensor]]


def _graph(nodes: int = 12, edges: int = 40) -> dict[str, Tensor]:
    return {"x": torch.randn(nodes, 8), "edge_index": torch.randint(0, nodes, (2, edges))}


class GCN(nn.Module):
    """A dense, normalised adjacency, as a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        a = adjacency + torch.eye(adjacency.shape[-1])
        degree = a.sum(-1).rsqrt()
        a = degree[..., None] * a * degree[..., None, :]
        return a @ self.two((a @ self.one(x)).relu())


def gcn() -> FactoryResult:
    links = (torch.rand(1, 12, 12) > 0.7).float()
    return GCN(), {"x": torch.randn(1, 12, 8), "adjacency": torch.maximum(links, links.transpose(1, 2))}


class GAT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.project, self.source, self.target = nn.Linear(8, 16), nn.Linear(16, 1), nn.Linear(16, 1)

    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        h = self.project(x)
        scores = F.leaky_relu(self.source(h) + self.target(h).transpose(1, 2), 0.2)
        return scores.masked_fill(adjacency == 0, -1e9).softmax(-1) @ h


def gat() -> FactoryResult:
    links = (torch.rand(1, 12, 12) > 0.6).float() + torch.eye(12)
    return GAT(), {"x": torch.randn(1, 12, 8), "adjacency": links.clamp(max=1)}


class SAGE(nn.Module):
    """Edges as an index, the mean over neighbours by index_add; no batch axis."""

    def __init__(self) -> None:
        super().__init__()
        self.own, self.others = nn.Linear(8, 16), nn.Linear(8, 16)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        source, target = edge_index[0], edge_index[1]
        total = torch.zeros_like(x).index_add(0, target, x[source])
        count = torch.zeros_like(x[:, 0]).index_add(0, target, torch.ones_like(source, dtype=x.dtype))
        return self.own(x) + self.others(total / count.clamp(min=1)[:, None])


def graphsage() -> FactoryResult:
    return SAGE(), _graph()


class GIN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net, self.epsilon = (
            nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8)),
            nn.Parameter(torch.zeros(1)),
        )

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        index = edge_index[1][:, None].expand(-1, x.shape[1])
        total = torch.zeros_like(x).scatter_add(0, index, x[edge_index[0]])
        return self.net((1 + self.epsilon) * x + total).sum(0)


def gin() -> FactoryResult:
    return GIN(), _graph()


class MPNN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.message, self.update = nn.Linear(20, 8), nn.GRUCell(8, 8)

    def forward(self, x: Tensor, edge_index: Tensor, edge_features: Tensor) -> Tensor:
        for _ in range(2):
            both = torch.cat([x[edge_index[0]], x[edge_index[1]], edge_features], -1)
            total = torch.zeros_like(x).index_add(0, edge_index[1], self.message(both).relu())
            x = self.update(total, x)
        return x


def mpnn() -> FactoryResult:
    return MPNN(), {**_graph(), "edge_features": torch.randn(40, 4)}


class DGCNN(nn.Module):
    """Neighbours are the nearest points, found in the graph by top-k."""

    def __init__(self) -> None:
        super().__init__()
        self.edge, self.out = nn.Linear(6, 16), nn.Linear(16, 5)

    def forward(self, points: Tensor) -> Tensor:
        far = torch.cdist(points, points)
        near = far.topk(4, -1, largest=False).indices
        n = torch.arange(points.shape[0])[:, None, None]
        others = points[n, near]
        both = torch.cat([points[:, :, None].expand_as(others), others - points[:, :, None]], -1)
        return self.out(self.edge(both).relu().amax(2).amax(1))


def dgcnn() -> nn.Module:
    return DGCNN()


class PointNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.turn = nn.Sequential(nn.Conv1d(3, 16, 1), nn.BatchNorm1d(16), nn.ReLU())
        self.angle, self.body, self.out = nn.Linear(16, 9), nn.Conv1d(3, 32, 1), nn.Linear(32, 5)

    def forward(self, points: Tensor) -> Tensor:
        turn = self.angle(self.turn(points).amax(-1)).view(-1, 3, 3) + torch.eye(3)
        return self.out(self.body(torch.bmm(turn, points)).relu().amax(-1))


def pointnet() -> nn.Module:
    return PointNet()


class DeepSets(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.each, self.all = nn.Sequential(nn.Linear(4, 16), nn.ReLU()), nn.Linear(16, 2)

    def forward(self, items: Tensor, mask: Tensor) -> Tensor:
        return self.all((self.each(items) * mask[..., None]).sum(1) / mask.sum(1, keepdim=True).clamp(min=1))


def deep_sets() -> FactoryResult:
    return DeepSets(), {"items": torch.randn(2, 10, 4), "mask": (torch.rand(2, 10) > 0.3).float()}


class SetTransformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter, self.seed = nn.Linear(4, 16), nn.Parameter(torch.randn(1, 2, 16))
        self.induce, self.pool = (nn.MultiheadAttention(16, 2, batch_first=True) for _ in range(2))

    def forward(self, items: Tensor) -> Tensor:
        x = self.enter(items)
        x = x + self.induce(x, x, x)[0]
        return self.pool(self.seed.expand(items.shape[0], -1, -1), x, x)[0]


def set_transformer() -> nn.Module:
    return SetTransformer()


class SchNet(nn.Module):
    """Energy of atoms at places: radial functions of distances filter the neighbours."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.filter = (
            nn.Embedding(10, 16),
            nn.Sequential(nn.Linear(8, 16), nn.Softplus(), nn.Linear(16, 16)),
        )
        self.out = nn.Sequential(nn.Linear(16, 8), nn.Softplus(), nn.Linear(8, 1))
        self.register_buffer("centres", torch.linspace(0, 5, 8))

    def forward(self, numbers: Tensor, places: Tensor) -> Tensor:
        far = (places[:, :, None] - places[:, None]).pow(2).sum(-1).add(1e-6).sqrt()
        weights = self.filter(torch.exp(-((far[..., None] - self.centres) ** 2)))
        x = self.embed(numbers)
        x = x + (weights * x[:, None]).sum(2)
        return self.out(x).sum((1, 2))


def schnet() -> FactoryResult:
    return SchNet(), {"numbers": torch.randint(0, 10, (2, 6)), "places": torch.randn(2, 6, 3)}
