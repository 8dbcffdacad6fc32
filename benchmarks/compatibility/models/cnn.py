"""Image classifiers, written from their papers with few and narrow layers; all take pictures (batch, 3, 64, 64)."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

CLASSES = 10


def conv(cin: int, cout: int, size: int = 3, stride: int = 1, groups: int = 1, act: type | None = nn.ReLU) -> nn.Module:
    """Convolution, batch normalisation and activation."""
    parts: list[nn.Module] = [
        nn.Conv2d(cin, cout, size, stride, size // 2, groups=groups, bias=False),
        nn.BatchNorm2d(cout),
    ]
    return nn.Sequential(*parts, *([act()] if act else []))


def head(features: int) -> nn.Module:
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(features, CLASSES))


class Sum(nn.Module):
    """Residual: ``act(main(x) + side(x))``."""

    def __init__(self, main: nn.Module, side: nn.Module | None = None, act: nn.Module | None = None) -> None:
        super().__init__()
        self.main, self.side, self.act = main, side or nn.Identity(), act or nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.main(x) + self.side(x))


class Join(nn.Module):
    """Branches side by side, joined along channels."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self.branches], 1)


class Squeeze(nn.Module):
    """Squeeze and excitation."""

    def __init__(self, channels: int, gate: type = nn.Sigmoid) -> None:
        super().__init__()
        self.scale = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(channels, channels // 2, 1),
            nn.ReLU(),
            nn.Conv2d(channels // 2, channels, 1),
            gate(),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale(x)


class Shuffle(nn.Module):
    """Channel shuffle."""

    def __init__(self, groups: int) -> None:
        super().__init__()
        self.groups = groups

    def forward(self, x: Tensor) -> Tensor:
        n, c, h, w = x.shape
        return x.view(n, self.groups, c // self.groups, h, w).transpose(1, 2).reshape(n, c, h, w)


def lenet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2),
        nn.Tanh(),
        nn.AvgPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.Tanh(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(400, 120),
        nn.Tanh(),
        nn.Linear(120, 84),
        nn.Tanh(),
        nn.Linear(84, CLASSES),
    )


def alexnet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 11, 4, 2),
        nn.ReLU(),
        nn.LocalResponseNorm(5),
        nn.MaxPool2d(3, 2),
        nn.Conv2d(16, 32, 5, padding=2, groups=2),
        nn.ReLU(),
        nn.MaxPool2d(3, 2),
        nn.Conv2d(32, 32, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Dropout(),
        nn.Linear(128, 64),
        nn.ReLU(),
        nn.Linear(64, CLASSES),
    )


def zfnet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 7, 2, 1),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, ceil_mode=True),
        nn.Conv2d(16, 32, 5, 2),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, ceil_mode=True),
        nn.Conv2d(32, 32, 3, padding=1),
        nn.ReLU(),
        head(32),
    )


def network_in_network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 5, padding=2),
        nn.ReLU(),
        nn.Conv2d(16, 16, 1),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, 1),
        nn.Conv2d(16, CLASSES, 1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )


def vgg() -> nn.Module:
    layers: list[nn.Module] = []
    channels = 3
    for width in (8, 16, 32):
        layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, width, 3, padding=1)]
        layers += [nn.ReLU(), nn.MaxPool2d(2)]
        channels = width
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(32 * 64, 64), nn.ReLU(), nn.Linear(64, CLASSES))


def _inception(cin: int) -> nn.Module:
    return Join(
        conv(cin, 8, 1),
        nn.Sequential(conv(cin, 8, 1), conv(8, 16)),
        nn.Sequential(conv(cin, 4, 1), conv(4, 8, 5)),
        nn.Sequential(nn.MaxPool2d(3, 1, 1), conv(cin, 8, 1)),
    )


def googlenet() -> nn.Module:
    return nn.Sequential(
        conv(3, 16, 7, 2), nn.MaxPool2d(3, 2, ceil_mode=True), _inception(16), _inception(40), head(40)
    )


def inception_v3() -> nn.Module:
    def wide(cin: int, cout: int) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(cin, cout, (1, 7), padding=(0, 3)),
            nn.ReLU(),
            nn.Conv2d(cout, cout, (7, 1), padding=(3, 0)),
            nn.ReLU(),
        )

    mixed = Join(
        conv(16, 8, 1),
        nn.Sequential(conv(16, 8, 1), wide(8, 8)),
        nn.Sequential(nn.AvgPool2d(3, 1, 1, count_include_pad=False), conv(16, 8, 1)),
    )
    reduced = Join(conv(24, 16, 3, 2), nn.MaxPool2d(3, 2, 1))
    return nn.Sequential(conv(3, 16, 3, 2), mixed, reduced, head(40))


def _basic(cin: int, cout: int, stride: int = 1) -> nn.Module:
    main = nn.Sequential(conv(cin, cout, 3, stride), conv(cout, cout, act=None))
    side = conv(cin, cout, 1, stride, act=None) if stride > 1 or cin != cout else None
    return Sum(main, side, nn.ReLU())


def _bottleneck(cin: int, mid: int, cout: int, stride: int = 1, groups: int = 1) -> nn.Module:
    main = nn.Sequential(conv(cin, mid, 1), conv(mid, mid, 3, stride, groups), conv(mid, cout, 1, act=None))
    side = conv(cin, cout, 1, stride, act=None) if stride > 1 or cin != cout else None
    return Sum(main, side, nn.ReLU())


def resnet18() -> nn.Module:
    return nn.Sequential(
        conv(3, 16, 7, 2), nn.MaxPool2d(3, 2, 1), _basic(16, 16), _basic(16, 32, 2), _basic(32, 64, 2), head(64)
    )


def resnet50() -> nn.Module:
    return nn.Sequential(
        conv(3, 16, 7, 2), nn.MaxPool2d(3, 2, 1), _bottleneck(16, 8, 32), _bottleneck(32, 16, 64, 2), head(64)
    )


def resnext() -> nn.Module:
    return nn.Sequential(
        conv(3, 16, 3, 2), _bottleneck(16, 16, 32, groups=4), _bottleneck(32, 32, 64, 2, groups=8), head(64)
    )


def wide_resnet() -> nn.Module:
    return nn.Sequential(conv(3, 16), _basic(16, 64, 2), _basic(64, 128, 2), head(128))


def preact_resnet() -> nn.Module:
    def block(width: int) -> nn.Module:
        parts = [nn.BatchNorm2d(width), nn.ReLU(), nn.Conv2d(width, width, 3, padding=1)]
        return Sum(nn.Sequential(*parts, nn.BatchNorm2d(width), nn.ReLU(), nn.Conv2d(width, width, 3, padding=1)))

    return nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), block(16), block(16), nn.BatchNorm2d(16), nn.ReLU(), head(16))


def senet() -> nn.Module:
    def block(width: int) -> nn.Module:
        return Sum(nn.Sequential(conv(width, width), conv(width, width, act=None), Squeeze(width)), None, nn.ReLU())

    return nn.Sequential(conv(3, 16, 3, 2), block(16), block(16), head(16))


class _Spatial(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 1, 7, padding=3)

    def forward(self, x: Tensor) -> Tensor:
        both = torch.cat([x.amax(1, keepdim=True), x.mean(1, keepdim=True)], 1)
        return x * torch.sigmoid(self.conv(both))


def cbam() -> nn.Module:
    block = Sum(nn.Sequential(conv(16, 16), Squeeze(16), _Spatial()), None, nn.ReLU())
    return nn.Sequential(conv(3, 16, 3, 2), block, head(16))


class _Dense(nn.Module):
    def __init__(self, channels: int, growth: int, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(
                nn.BatchNorm2d(channels + i * growth), nn.ReLU(), nn.Conv2d(channels + i * growth, growth, 3, padding=1)
            )
            for i in range(layers)
        )

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.cat([x, layer(x)], 1)
        return x


def densenet() -> nn.Module:
    shrink = nn.Sequential(nn.BatchNorm2d(40), nn.ReLU(), nn.Conv2d(40, 20, 1), nn.AvgPool2d(2))
    return nn.Sequential(conv(3, 16, 3, 2), _Dense(16, 8, 3), shrink, _Dense(20, 8, 3), head(44))


def dual_path() -> nn.Module:
    class Dual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.main = conv(24, 24)

        def forward(self, x: Tensor) -> Tensor:
            new = self.main(x)
            return torch.cat([x[:, :16] + new[:, :16], x[:, 16:], new[:, 16:]], 1)

    return nn.Sequential(conv(3, 24, 3, 2), Dual(), head(32))


def squeezenet() -> nn.Module:
    def fire(cin: int) -> nn.Module:
        squeeze = nn.Sequential(nn.Conv2d(cin, 8, 1), nn.ReLU())
        wide = Join(
            nn.Sequential(nn.Conv2d(8, 16, 1), nn.ReLU()), nn.Sequential(nn.Conv2d(8, 16, 3, padding=1), nn.ReLU())
        )
        return nn.Sequential(squeeze, wide)

    return nn.Sequential(
        nn.Conv2d(3, 16, 3, 2),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, ceil_mode=True),
        fire(16),
        fire(32),
        nn.Conv2d(32, CLASSES, 1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )


def mobilenet_v1() -> nn.Module:
    def separable(cin: int, cout: int, stride: int) -> nn.Module:
        return nn.Sequential(conv(cin, cin, 3, stride, cin), conv(cin, cout, 1))

    return nn.Sequential(conv(3, 8, 3, 2), separable(8, 16, 1), separable(16, 32, 2), head(32))


def _inverted(cin: int, cout: int, stride: int, act: type, extra: nn.Module | None = None) -> nn.Module:
    wide = cin * 4
    parts = [conv(cin, wide, 1, act=act), conv(wide, wide, 3, stride, wide, act=act), extra or nn.Identity()]
    main = nn.Sequential(*parts, conv(wide, cout, 1, act=None))
    return Sum(main) if stride == 1 and cin == cout else main


def mobilenet_v2() -> nn.Module:
    return nn.Sequential(
        conv(3, 8, 3, 2, act=nn.ReLU6), _inverted(8, 8, 1, nn.ReLU6), _inverted(8, 16, 2, nn.ReLU6), head(16)
    )


def mobilenet_v3() -> nn.Module:
    return nn.Sequential(
        conv(3, 8, 3, 2, act=nn.Hardswish),
        _inverted(8, 8, 1, nn.Hardswish, Squeeze(32, nn.Hardsigmoid)),
        _inverted(8, 16, 2, nn.Hardswish, Squeeze(32, nn.Hardsigmoid)),
        head(16),
    )


def mnasnet() -> nn.Module:
    return nn.Sequential(
        conv(3, 8, 3, 2), _inverted(8, 16, 2, nn.ReLU), _inverted(16, 16, 1, nn.ReLU, Squeeze(64)), head(16)
    )


def efficientnet() -> nn.Module:
    return nn.Sequential(
        conv(3, 8, 3, 2, act=nn.SiLU),
        _inverted(8, 8, 1, nn.SiLU, Squeeze(32)),
        _inverted(8, 16, 2, nn.SiLU, Squeeze(32)),
        head(16),
    )


def efficientnet_v2() -> nn.Module:
    fused = Sum(nn.Sequential(conv(8, 32, 3, act=nn.SiLU), conv(32, 8, 1, act=None)))
    return nn.Sequential(conv(3, 8, 3, 2, act=nn.SiLU), fused, _inverted(8, 16, 2, nn.SiLU, Squeeze(32)), head(16))


def shufflenet_v1() -> nn.Module:
    main = nn.Sequential(conv(24, 24, 1, groups=3), Shuffle(3), conv(24, 24, 3, 1, 24, act=None), conv(24, 24, 1, 1, 3))
    return nn.Sequential(conv(3, 24, 3, 2), Sum(main, None, nn.ReLU()), head(24))


class _Split(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        half = width // 2
        self.branch = nn.Sequential(conv(half, half, 1), conv(half, half, 3, 1, half, act=None), conv(half, half, 1))
        self.shuffle = Shuffle(2)

    def forward(self, x: Tensor) -> Tensor:
        left, right = x.chunk(2, 1)
        return self.shuffle(torch.cat([left, self.branch(right)], 1))


def shufflenet_v2() -> nn.Module:
    return nn.Sequential(conv(3, 16, 3, 2), nn.MaxPool2d(3, 2, 1), _Split(16), _Split(16), head(16))


def xception() -> nn.Module:
    def separable(cin: int, cout: int) -> nn.Module:
        parts = [nn.ReLU(), nn.Conv2d(cin, cin, 3, padding=1, groups=cin), nn.Conv2d(cin, cout, 1)]
        return nn.Sequential(*parts, nn.BatchNorm2d(cout))

    entry = Sum(
        nn.Sequential(separable(16, 32), separable(32, 32), nn.MaxPool2d(3, 2, 1)), conv(16, 32, 1, 2, act=None)
    )
    return nn.Sequential(conv(3, 16, 3, 2), entry, Sum(separable(32, 32)), head(32))


def regnet() -> nn.Module:
    def block(cin: int, cout: int, stride: int) -> nn.Module:
        main = nn.Sequential(
            conv(cin, cout, 1), conv(cout, cout, 3, stride, cout // 8), Squeeze(cout), conv(cout, cout, 1, act=None)
        )
        return Sum(main, conv(cin, cout, 1, stride, act=None), nn.ReLU())

    return nn.Sequential(conv(3, 16, 3, 2), block(16, 24, 2), block(24, 48, 2), head(48))


class _ChannelNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x.permute(0, 2, 3, 1), self.weight.shape, self.weight, self.bias).permute(0, 3, 1, 2)


class _ConvNext(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width, 1e-6)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.scale = nn.Parameter(torch.full((width,), 0.5))

    def forward(self, x: Tensor) -> Tensor:
        found = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        found = self.scale * self.narrow(F.gelu(self.wide(found)))
        return x + found.permute(0, 3, 1, 2)


def convnext() -> nn.Module:
    stem = [nn.Conv2d(3, 16, 4, 4), _ChannelNorm(16)]
    down = [_ChannelNorm(16), nn.Conv2d(16, 32, 2, 2)]
    return nn.Sequential(*stem, _ConvNext(16), *down, _ConvNext(32), head(32))


class _Ghost(nn.Module):
    def __init__(self, cin: int, cout: int) -> None:
        super().__init__()
        self.main, self.cheap = conv(cin, cout // 2, 1), conv(cout // 2, cout // 2, 3, groups=cout // 2)

    def forward(self, x: Tensor) -> Tensor:
        main = self.main(x)
        return torch.cat([main, self.cheap(main)], 1)


def ghostnet() -> nn.Module:
    return nn.Sequential(conv(3, 16, 3, 2), _Ghost(16, 32), conv(32, 32, 3, 2, 32, act=None), _Ghost(32, 32), head(32))


class _Rep(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.big, self.small = conv(width, width, act=None), conv(width, width, 1, act=None)
        self.same = nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.big(x) + self.small(x) + self.same(x))


def repvgg() -> nn.Module:
    return nn.Sequential(conv(3, 16, 3, 2), _Rep(16), _Rep(16), head(16))


class _Res2(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.parts = nn.ModuleList(conv(width // 4, width // 4) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        first, *rest = x.split(x.shape[1] // 4, 1)
        done = [first]
        for part, piece in zip(self.parts, rest, strict=True):
            done.append(part(piece + done[-1]))
        return x + torch.cat(done, 1)


def res2net() -> nn.Module:
    return nn.Sequential(conv(3, 16, 3, 2), _Res2(16), _Res2(16), head(16))


class _Select(nn.Module):
    """Selective kernel: two kernels, weighed by a softmax."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.small, self.big = conv(width, width), conv(width, width, 5)
        self.gate = nn.Linear(width, 2 * width)

    def forward(self, x: Tensor) -> Tensor:
        both = torch.stack([self.small(x), self.big(x)], 1)
        weights = self.gate(both.sum(1).mean((2, 3))).view(-1, 2, x.shape[1], 1, 1).softmax(1)
        return (both * weights).sum(1)


def sknet() -> nn.Module:
    return nn.Sequential(conv(3, 16, 3, 2), _Select(16), head(16))


def darknet() -> nn.Module:
    def leaky() -> nn.Module:
        return nn.LeakyReLU(0.1)

    def block(width: int) -> nn.Module:
        return Sum(nn.Sequential(conv(width, width // 2, 1, act=leaky), conv(width // 2, width, act=leaky)))

    return nn.Sequential(conv(3, 16, act=leaky), conv(16, 32, 3, 2, act=leaky), block(32), block(32), head(32))


class _Partial(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.left, self.right = conv(width, width // 2, 1, act=nn.Mish), conv(width, width // 2, 1, act=nn.Mish)
        self.main = Sum(conv(width // 2, width // 2, act=nn.Mish))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.left(x), self.main(self.right(x))], 1)


def cspnet() -> nn.Module:
    return nn.Sequential(conv(3, 16, 3, 2, act=nn.Mish), _Partial(16), head(16))


class HighResolution(nn.Module):
    """HRNet: two resolutions that exchange what they found."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.down = conv(3, 16, 3, 2), conv(16, 32, 3, 2)
        self.high, self.low = conv(16, 16), conv(32, 32)
        self.up, self.out = nn.Conv2d(32, 16, 1), head(16)

    def forward(self, x: Tensor) -> Tensor:
        high = self.stem(x)
        low = self.low(self.down(high))
        up = F.interpolate(self.up(low), size=high.shape[2:], mode="bilinear", align_corners=False)
        return self.out(self.high(high) + up)


def hrnet() -> nn.Module:
    return HighResolution()


def convmixer() -> nn.Module:
    def block(width: int) -> nn.Module:
        depth = nn.Sequential(
            nn.Conv2d(width, width, 5, padding="same", groups=width), nn.GELU(), nn.BatchNorm2d(width)
        )
        return nn.Sequential(Sum(depth), nn.Conv2d(width, width, 1), nn.GELU(), nn.BatchNorm2d(width))

    return nn.Sequential(nn.Conv2d(3, 16, 8, 8), nn.GELU(), nn.BatchNorm2d(16), block(16), block(16), head(16))


class Transformer2d(nn.Module):
    """Spatial transformer: the picture is turned by what a small network says."""

    def __init__(self) -> None:
        super().__init__()
        self.where = nn.Sequential(nn.AvgPool2d(8), nn.Flatten(), nn.Linear(192, 6))
        self.net = nn.Sequential(conv(3, 16, 3, 2), head(16))

    def forward(self, x: Tensor) -> Tensor:
        theta = 0.1 * self.where(x).view(-1, 2, 3) + torch.tensor([[1.0, 0, 0], [0, 1.0, 0]])
        grid = F.affine_grid(theta, [x.shape[0], 3, 64, 64], align_corners=False)
        return self.net(F.grid_sample(x, grid, align_corners=False))


def spatial_transformer() -> nn.Module:
    return Transformer2d()


class Capsules(nn.Module):
    """CapsNet with two rounds of routing."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 32, 9, 8)
        self.weight = nn.Parameter(torch.randn(1, 196, CLASSES, 8, 8) * 0.1)

    def forward(self, x: Tensor) -> Tensor:
        found = self.conv(x)[:, :, :7, :7].reshape(x.shape[0], 196, 8)
        votes = (self.weight @ found[:, :, None, :, None]).squeeze(-1)
        logits = torch.zeros_like(votes[..., 0])
        for _ in range(2):
            total = (logits.softmax(2)[..., None] * votes).sum(1, keepdim=True)
            norm = total.pow(2).sum(-1, keepdim=True)
            total = norm / (1 + norm) * total / (norm + 1e-6).sqrt()
            logits = logits + (votes * total).sum(-1)
        return total.squeeze(1).norm(dim=-1)


def capsnet() -> nn.Module:
    return Capsules()
