"""Autoencoders, generators, diffusion, flows and fields."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def autoencoder() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, 2, 1),
        nn.ReLU(),
        nn.Conv2d(8, 4, 3, 2, 1),
        nn.ReLU(),
        nn.ConvTranspose2d(4, 8, 3, 2, 1, 1),
        nn.ReLU(),
        nn.ConvTranspose2d(8, 1, 3, 2, 1, 1),
        nn.Sigmoid(),
    )


class VAE(nn.Module):
    """In eval mode the mean stands for the sample."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.mean, self.spread = nn.Linear(64, 32), nn.Linear(32, 4), nn.Linear(32, 4)
        self.out = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 64), nn.Sigmoid())

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = self.enter(x).relu()
        mean, log = self.mean(h), self.spread(h)
        z = mean + torch.randn_like(mean) * (log / 2).exp() if self.training else mean
        return self.out(z), mean, log


def vae() -> nn.Module:
    return VAE()


class VQ(nn.Module):
    """VQ-VAE: the nearest code stands for each vector."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.codes = nn.Conv2d(3, 8, 4, 4), nn.Embedding(32, 8)
        self.up = nn.ConvTranspose2d(8, 3, 4, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        found = self.down(x).permute(0, 2, 3, 1)
        far = (found[..., None, :] - self.codes.weight).pow(2).sum(-1)
        which = far.argmin(-1)
        return self.up(self.codes(which).permute(0, 3, 1, 2)), which


def vq_vae() -> nn.Module:
    return VQ()


def dcgan() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (16, 1, 1)),
        nn.ConvTranspose2d(16, 32, 4),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.ConvTranspose2d(32, 16, 4, 2, 1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.ConvTranspose2d(16, 3, 4, 2, 1),
        nn.Tanh(),
    )


class StyleConv(nn.Module):
    """Modulated convolution of StyleGAN 2, one set of weights per item."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight, self.style = nn.Parameter(torch.randn(width, width, 3, 3)), nn.Linear(16, width)

    def forward(self, x: Tensor, w: Tensor) -> Tensor:
        n, c, height, width = x.shape
        weight = self.weight[None] * (1 + self.style(w))[:, None, :, None, None]
        weight = weight * torch.rsqrt(weight.pow(2).sum((2, 3, 4), keepdim=True) + 1e-8)
        found = F.conv2d(x.reshape(1, n * c, height, width), weight.flatten(0, 1), padding=1, groups=n)
        return F.leaky_relu(found.view(n, -1, height, width), 0.2)


class StyleGAN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.map = nn.Sequential(nn.Linear(16, 16), nn.LeakyReLU(0.2), nn.Linear(16, 16))
        self.start, self.conv = nn.Parameter(torch.randn(1, 8, 8, 8)), StyleConv(8)
        self.colour = nn.Conv2d(8, 3, 1)

    def forward(self, z: Tensor) -> Tensor:
        w = self.map(z * torch.rsqrt(z.pow(2).mean(1, keepdim=True) + 1e-8))
        x = self.conv(self.start.repeat(z.shape[0], 1, 1, 1), w)
        return self.colour(F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)).tanh()


def stylegan() -> nn.Module:
    return StyleGAN()


class Pix2Pix(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2 = nn.Conv2d(3, 8, 4, 2, 1), nn.Conv2d(8, 16, 4, 2, 1)
        self.up2, self.up1 = nn.ConvTranspose2d(16, 8, 4, 2, 1), nn.ConvTranspose2d(16, 3, 4, 2, 1)
        self.norm = nn.InstanceNorm2d(8)

    def forward(self, x: Tensor) -> Tensor:
        one = F.leaky_relu(self.down1(x), 0.2)
        back = self.norm(self.up2(F.leaky_relu(self.down2(one), 0.2)))
        return self.up1(torch.cat([back.relu(), one], 1)).tanh()


def pix2pix() -> nn.Module:
    return Pix2Pix()


def cyclegan() -> nn.Module:
    def block() -> nn.Module:
        return nn.Sequential(nn.ReflectionPad2d(1), nn.Conv2d(16, 16, 3), nn.InstanceNorm2d(16), nn.ReLU())

    last = [nn.ReflectionPad2d(3), nn.Conv2d(8, 3, 7), nn.Tanh()]
    up = [nn.ConvTranspose2d(16, 8, 3, 2, 1, 1), nn.InstanceNorm2d(8), nn.ReLU()]
    return nn.Sequential(nn.ReflectionPad2d(3), nn.Conv2d(3, 8, 7), nn.Conv2d(8, 16, 3, 2, 1), block(), *up, *last)


class Timed(nn.Module):
    def __init__(self, cin: int, cout: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(4, cin), nn.GroupNorm(4, cout)
        self.conv1, self.conv2 = nn.Conv2d(cin, cout, 3, padding=1), nn.Conv2d(cout, cout, 3, padding=1)
        self.time, self.side = nn.Linear(32, cout), nn.Conv2d(cin, cout, 1)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        h = self.conv1(F.silu(self.norm1(x))) + self.time(t)[:, :, None, None]
        return self.side(x) + self.conv2(F.silu(self.norm2(h)))


class Diffusion(nn.Module):
    """UNet of DDPM: a sinusoidal time step, residual blocks, attention in the middle."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.a, self.b, self.c = nn.Conv2d(3, 8, 3, padding=1), Timed(8, 16), Timed(16, 16), Timed(32, 8)
        self.attend, self.out = nn.MultiheadAttention(16, 2, batch_first=True), nn.Conv2d(8, 3, 3, padding=1)

    def forward(self, sample: Tensor, timestep: Tensor) -> Tensor:
        speed = torch.exp(-math.log(10000.0) * torch.arange(16) / 16)
        angle = timestep[:, None].float() * speed
        t = torch.cat([angle.sin(), angle.cos()], -1)
        high = self.a(self.enter(sample), t)
        low = self.b(F.avg_pool2d(high, 2), t)
        tokens = low.flatten(2).transpose(1, 2)
        low = low + self.attend(tokens, tokens, tokens)[0].transpose(1, 2).view_as(low)
        return self.out(self.c(torch.cat([high, F.interpolate(low, scale_factor=2)], 1), t))


def ddpm_unet() -> nn.Module:
    return Diffusion()


class DiT(nn.Module):
    """Diffusion transformer: the time step scales and shifts the norms."""

    def __init__(self) -> None:
        super().__init__()
        self.patch, self.time = nn.Conv2d(4, 32, 2, 2), nn.Sequential(nn.Linear(1, 32), nn.SiLU(), nn.Linear(32, 192))
        self.attend = nn.MultiheadAttention(32, 4, batch_first=True)
        self.feed, self.out = nn.Linear(32, 32), nn.Linear(32, 16)
        self.norm = nn.LayerNorm(32, elementwise_affine=False)

    def forward(self, latent: Tensor, t: Tensor) -> Tensor:
        x = self.patch(latent).flatten(2).transpose(1, 2)
        shift1, scale1, gate1, shift2, scale2, gate2 = self.time(t).unsqueeze(1).chunk(6, -1)
        h = self.norm(x) * (1 + scale1) + shift1
        x = x + gate1 * self.attend(h, h, h, need_weights=False)[0]
        x = x + gate2 * self.feed(self.norm(x) * (1 + scale2) + shift2)
        n, _, h2, w2 = latent.shape
        x = self.out(x).view(n, h2 // 2, w2 // 2, 2, 2, 4)
        return torch.einsum("nhwpqc->nchpwq", x).reshape(n, 4, h2, w2)


def dit() -> nn.Module:
    return DiT()


class RealNVP(nn.Module):
    """Affine couplings with alternating masks; gives z and the log-determinant."""

    def __init__(self) -> None:
        super().__init__()
        self.nets = nn.ModuleList(nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 12)) for _ in range(4))
        self.register_buffer("mask", torch.tensor([1.0, 0, 1, 0, 1, 0]))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        total = x.new_zeros(x.shape[0])
        for i, net in enumerate(self.nets):
            mask = self.mask if i % 2 == 0 else 1 - self.mask
            scale, shift = net(x * mask).chunk(2, -1)
            scale = scale.tanh() * (1 - mask)
            x, total = x * scale.exp() + shift * (1 - mask), total + scale.sum(-1)
        return x, total


def realnvp() -> nn.Module:
    return RealNVP()


class MADE(nn.Module):
    """Autoregressive by masked weights."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(8, 32), nn.Linear(32, 8)
        order = torch.arange(32) % 7
        self.register_buffer("mask1", (order[:, None] >= torch.arange(8)).float())
        self.register_buffer("mask2", (torch.arange(8)[:, None] > order).float())

    def forward(self, x: Tensor) -> Tensor:
        h = F.linear(x, self.one.weight * self.mask1, self.one.bias).relu()
        return F.linear(h, self.two.weight * self.mask2, self.two.bias)


def made() -> nn.Module:
    return MADE()


class MaskedConv(nn.Conv2d):
    def forward(self, x: Tensor) -> Tensor:
        mask = torch.ones_like(self.weight)
        mask[:, :, self.kernel_size[0] // 2, self.kernel_size[1] // 2 :] = 0
        mask[:, :, self.kernel_size[0] // 2 + 1 :] = 0
        return self._conv_forward(x, self.weight * mask, self.bias)


def pixelcnn() -> nn.Module:
    return nn.Sequential(
        MaskedConv(1, 16, 7, padding=3), nn.ReLU(), MaskedConv(16, 16, 3, padding=1), nn.Conv2d(16, 4, 1)
    )


class NeRF(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.density = nn.Sequential(nn.Linear(39, 32), nn.ReLU(), nn.Linear(32, 32)), nn.Linear(32, 1)
        self.colour = nn.Sequential(nn.Linear(35, 16), nn.ReLU(), nn.Linear(16, 3), nn.Sigmoid())

    def forward(self, points: Tensor, directions: Tensor) -> tuple[Tensor, Tensor]:
        waves = [f(points * 2.0**i) for i in range(6) for f in (torch.sin, torch.cos)]
        body = self.body(torch.cat([points, *waves], -1))
        return self.colour(torch.cat([body, directions], -1)), self.density(body).relu()


def nerf() -> nn.Module:
    return NeRF()


class SIREN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(2, 32), nn.Linear(32, 32)])
        self.out = nn.Linear(32, 3)

    def forward(self, xy: Tensor) -> Tensor:
        for layer in self.layers:
            xy = torch.sin(3 * layer(xy))
        return self.out(xy)


def siren() -> nn.Module:
    return SIREN()
