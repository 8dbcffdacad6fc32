"""Segmentation, detection, restoration, pose, text in pictures, video. Most take pictures (batch, 3, 64, 64)."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def conv(cin: int, cout: int, size: int = 3, stride: int = 1, dilation: int = 1) -> nn.Sequential:
    pad = dilation * (size // 2)
    return nn.Sequential(nn.Conv2d(cin, cout, size, stride, pad, dilation), nn.BatchNorm2d(cout), nn.ReLU())


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.middle = conv(3, 8), conv(8, 16), conv(16, 32)
        self.up2, self.up1 = nn.ConvTranspose2d(32, 16, 2, 2), nn.ConvTranspose2d(16, 8, 2, 2)
        self.join2, self.join1, self.out = conv(32, 16), conv(16, 8), nn.Conv2d(8, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        one = self.first(x)
        two = self.second(F.max_pool2d(one, 2))
        deep = self.middle(F.max_pool2d(two, 2))
        two = self.join2(torch.cat([self.up2(deep), two], 1))
        return self.out(self.join1(torch.cat([self.up1(two), one], 1)))


def unet() -> nn.Module:
    return UNet()


class NestedUNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.c00, self.c10, self.c20 = conv(3, 8), conv(8, 16), conv(16, 32)
        self.c01, self.c11, self.c02 = conv(24, 8), conv(48, 16), conv(32, 8)
        self.out = nn.ModuleList(nn.Conv2d(8, 1, 1) for _ in range(2))

    def forward(self, x: Tensor) -> list[Tensor]:
        def up(t: Tensor) -> Tensor:
            return F.interpolate(t, scale_factor=2, mode="bilinear", align_corners=True)

        a = self.c00(x)
        b = self.c10(F.max_pool2d(a, 2))
        first = self.c01(torch.cat([a, up(b)], 1))
        c = self.c11(torch.cat([b, up(self.c20(F.max_pool2d(b, 2)))], 1))
        second = self.c02(torch.cat([a, first, up(c)], 1))
        return [head(t) for head, t in zip(self.out, (first, second), strict=True)]


def unet_plus_plus() -> nn.Module:
    return NestedUNet()


class SegNet(nn.Module):
    """Pooling keeps its indices, unpooling takes them."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.up, self.out = conv(3, 8), conv(8, 8), nn.Conv2d(8, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        pooled, where = F.max_pool2d(self.down(x), 2, return_indices=True)
        return self.out(self.up(F.max_unpool2d(pooled, where, 2)))


def segnet() -> nn.Module:
    return SegNet()


class FCN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = conv(3, 8, 3, 2), conv(8, 16, 3, 2)
        self.score1, self.score2 = nn.Conv2d(8, 2, 1), nn.Conv2d(16, 2, 1)
        self.up = nn.ConvTranspose2d(2, 2, 4, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        one = self.one(x)
        both = self.score1(one) + self.up(self.score2(self.two(one)))
        return F.interpolate(both, size=x.shape[-2:], mode="bilinear", align_corners=False)


def fcn() -> nn.Module:
    return FCN()


class DeepLab(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(conv(3, 16, 3, 2), conv(16, 16, 3, 2))
        self.pyramid = nn.ModuleList([conv(16, 8, 1), conv(16, 8, 3, 1, 2), conv(16, 8, 3, 1, 4)])
        self.whole = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(16, 8, 1), nn.ReLU())
        self.out = nn.Conv2d(32, 3, 1)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        body = self.body(x)
        whole = F.interpolate(self.whole(body), size=body.shape[-2:], mode="bilinear", align_corners=False)
        found = self.out(torch.cat([*(part(body) for part in self.pyramid), whole], 1))
        return {"out": F.interpolate(found, size=x.shape[-2:], mode="bilinear", align_corners=False)}


def deeplab_v3() -> nn.Module:
    return DeepLab()


class PSPNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(conv(3, 16, 3, 2), conv(16, 16, 3, 2))
        self.pools = nn.ModuleList(nn.Sequential(nn.AdaptiveAvgPool2d(n), nn.Conv2d(16, 4, 1)) for n in (1, 2, 4))
        self.out = nn.Conv2d(28, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        body = self.body(x)
        parts = [F.interpolate(p(body), size=body.shape[-2:], mode="bilinear", align_corners=False) for p in self.pools]
        return F.interpolate(self.out(torch.cat([body, *parts], 1)), scale_factor=4, mode="bilinear")


def pspnet() -> nn.Module:
    return PSPNet()


class Pyramid(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bodies = nn.ModuleList([conv(3, 8, 3, 2), conv(8, 16, 3, 2), conv(16, 32, 3, 2)])
        self.sides = nn.ModuleList(nn.Conv2d(c, 16, 1) for c in (8, 16, 32))
        self.smooth = nn.ModuleList(nn.Conv2d(16, 16, 3, padding=1) for _ in range(3))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        found = []
        for body in self.bodies:
            x = body(x)
            found.append(x)
        tops = [self.sides[2](found[2])]
        for level in (1, 0):
            tops.append(self.sides[level](found[level]) + F.interpolate(tops[-1], scale_factor=2))
        return {f"p{i}": smooth(top) for i, (smooth, top) in enumerate(zip(self.smooth, tops[::-1], strict=True))}


def fpn() -> nn.Module:
    return Pyramid()


class RetinaNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = Pyramid()
        self.classes, self.boxes = nn.Conv2d(16, 3 * 5, 3, padding=1), nn.Conv2d(16, 3 * 4, 3, padding=1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        levels = list(self.body(x).values())
        classes = [self.classes(p).permute(0, 2, 3, 1).reshape(x.shape[0], -1, 5) for p in levels]
        boxes = [self.boxes(p).permute(0, 2, 3, 1).reshape(x.shape[0], -1, 4) for p in levels]
        return torch.cat(classes, 1).sigmoid(), torch.cat(boxes, 1)


def retinanet() -> nn.Module:
    return RetinaNet()


class SSD(nn.Module):
    """Boxes are decoded against fixed priors."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(conv(3, 16, 3, 2), conv(16, 16, 3, 2), conv(16, 32, 3, 2))
        self.place, self.sort = nn.Conv2d(32, 8, 3, padding=1), nn.Conv2d(32, 6, 3, padding=1)
        self.register_buffer("priors", torch.rand(128, 4))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        body = self.body(x)
        place = self.place(body).permute(0, 2, 3, 1).flatten(1).unflatten(1, (-1, 4))
        scores = self.sort(body).permute(0, 2, 3, 1).flatten(1).unflatten(1, (-1, 3))
        centre = self.priors[:, :2] + place[..., :2] * 0.1 * self.priors[:, 2:]
        size = self.priors[:, 2:] * torch.exp(place[..., 2:] * 0.2)
        return {"boxes": torch.cat([centre - size / 2, centre + size / 2], -1), "scores": scores.softmax(-1)}


def ssd() -> nn.Module:
    return SSD()


class YOLO(nn.Module):
    """Two scales, decoded with grids and anchors in the graph."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Sequential(conv(3, 8, 3, 2), conv(8, 16, 3, 2)), conv(16, 32, 3, 2)
        self.heads = nn.ModuleList([nn.Conv2d(16, 14, 1), nn.Conv2d(32, 14, 1)])
        self.register_buffer("anchors", torch.tensor([[[8.0, 10], [14, 12]], [[30, 28], [22, 40]]]))

    def decode(self, raw: Tensor, level: int, stride: int) -> Tensor:
        n, _, h, w = raw.shape
        raw = raw.view(n, 2, 7, h, w).permute(0, 1, 3, 4, 2)
        rows, columns = torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")
        grid = torch.stack([columns, rows], -1).to(raw.dtype)
        centre = (raw[..., :2].sigmoid() * 2 - 0.5 + grid) * stride
        size = (raw[..., 2:4].sigmoid() * 2) ** 2 * self.anchors[level][None, :, None, None]
        return torch.cat([centre, size, raw[..., 4:].sigmoid()], -1).reshape(n, -1, 7)

    def forward(self, images: Tensor) -> Tensor:
        one = self.one(images)
        levels = (self.heads[0](one), self.heads[1](self.two(one)))
        return torch.cat([self.decode(raw, i, 4 * (i + 1)) for i, raw in enumerate(levels)], 1)


def yolo() -> nn.Module:
    return YOLO()


class CenterNet(nn.Module):
    """The best peaks of a heat map, found in the graph: max pooling, top-k, gather."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(conv(3, 16, 3, 2), conv(16, 16, 3, 2))
        self.heat, self.size = nn.Conv2d(16, 3, 1), nn.Conv2d(16, 2, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        body = self.body(x)
        heat = self.heat(body).sigmoid()
        heat = heat * (F.max_pool2d(heat, 3, 1, 1) == heat)
        scores, where = heat.flatten(1).topk(10)
        sizes = self.size(body).flatten(2).transpose(1, 2)
        cells = (where % 256)[..., None].expand(-1, -1, 2)
        return scores, where, sizes.gather(1, cells)


def centernet() -> nn.Module:
    return CenterNet()


class Hourglass(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.skip, self.low, self.out = conv(3, 16, 3, 2), conv(16, 16), conv(16, 16), nn.Conv2d(16, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        stem = self.stem(x)
        low = F.interpolate(self.low(F.max_pool2d(stem, 2)), scale_factor=2, mode="nearest")
        return self.out(self.skip(stem) + low)


def hourglass() -> nn.Module:
    return Hourglass()


class OpenPose(nn.Module):
    """Stages, each refining the maps of the one before."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(conv(3, 16, 3, 2), conv(16, 16, 3, 2))
        self.first = nn.Conv2d(16, 6, 1)
        self.stages = nn.ModuleList(nn.Sequential(conv(22, 16, 7), nn.Conv2d(16, 6, 1)) for _ in range(2))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        body = self.body(x)
        maps = self.first(body)
        for stage in self.stages:
            maps = stage(torch.cat([body, maps], 1))
        return maps[:, :4], maps[:, 4:]


def openpose() -> nn.Module:
    return OpenPose()


class DBNet(nn.Module):
    """Text detection with differentiable binarisation; works for multiples of 4 only."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.side = conv(3, 8, 3, 2), conv(8, 16, 3, 2), conv(8, 16, 1)
        self.maps = nn.ModuleList(nn.Sequential(conv(16, 8), nn.ConvTranspose2d(8, 1, 2, 2)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        one = self.one(x)
        body = self.side(one) + F.interpolate(self.two(one), scale_factor=2)
        shrunk, limit = (torch.sigmoid(m(body)) for m in self.maps)
        return torch.reciprocal(1 + torch.exp(-50 * (shrunk - limit)))


def dbnet() -> nn.Module:
    return DBNet()


class CRNN(nn.Module):
    """Text recognition: convolutions, then a bidirectional LSTM over columns."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(conv(1, 8), nn.MaxPool2d(2), conv(8, 16), nn.MaxPool2d((2, 1)), conv(16, 16))
        self.lstm = nn.LSTM(16 * 8, 24, bidirectional=True, batch_first=True)
        self.out = nn.Linear(48, 30)

    def forward(self, x: Tensor) -> Tensor:
        columns = self.body(x).flatten(1, 2).transpose(1, 2)
        return self.out(self.lstm(columns)[0]).log_softmax(-1)


def crnn() -> nn.Module:
    return CRNN()


def srcnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 9, padding=4), nn.ReLU(), nn.Conv2d(16, 8, 1), nn.ReLU(), nn.Conv2d(8, 3, 5, padding=2)
    )


def espcn() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 16, 5, padding=2), nn.Tanh(), nn.Conv2d(16, 12, 3, padding=1), nn.PixelShuffle(2))


class EDSR(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 12, 3, padding=1)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1)) for _ in range(2)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = x + 0.1 * block(x)
        return F.pixel_shuffle(self.last(x), 2)


def edsr() -> nn.Module:
    return EDSR()


class DnCNN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.noise = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), conv(16, 16), nn.Conv2d(16, 1, 3, padding=1)
        )

    def forward(self, x: Tensor) -> Tensor:
        return x - self.noise(x)


def dncnn() -> nn.Module:
    return DnCNN()


class Siamese(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(conv(3, 16, 3, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 8))

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return F.cosine_similarity(self.net(left), self.net(right))


def siamese() -> nn.Module:
    return Siamese()


class FlowNet(nn.Module):
    """Correlates two pictures over small shifts."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.out = conv(3, 8, 3, 2), nn.Conv2d(9, 2, 3, padding=1)

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        a, b = self.net(first), F.pad(self.net(second), (1, 1, 1, 1))
        h, w = a.shape[2:]
        shifts = [(a * b[:, :, i : i + h, j : j + w]).mean(1) for i in range(3) for j in range(3)]
        return self.out(torch.stack(shifts, 1))


def flownet() -> nn.Module:
    return FlowNet()


def c3d() -> nn.Module:
    return nn.Sequential(
        nn.Conv3d(3, 8, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool3d((1, 2, 2)),
        nn.Conv3d(8, 16, 3, padding=1),
        nn.BatchNorm3d(16),
        nn.ReLU(),
        nn.AdaptiveAvgPool3d(1),
        nn.Flatten(),
        nn.Linear(16, 5),
    )


class Shifted(nn.Module):
    """Temporal shift module: a part of the channels moves one frame on, another one back."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.out = conv(3, 8, 3, 2), nn.Linear(8, 5)

    def forward(self, clip: Tensor) -> Tensor:
        n, t = clip.shape[:2]
        x = self.conv(clip.flatten(0, 1)).unflatten(0, (n, t))
        on, back, stay = x[:, :, :2], x[:, :, 2:4], x[:, :, 4:]
        on = F.pad(on[:, :-1], (0, 0, 0, 0, 0, 0, 1, 0))
        back = F.pad(back[:, 1:], (0, 0, 0, 0, 0, 0, 0, 1))
        return self.out(torch.cat([on, back, stay], 2).mean((1, 3, 4)))


def temporal_shift() -> nn.Module:
    return Shifted()
