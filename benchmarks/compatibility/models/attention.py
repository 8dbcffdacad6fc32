"""Transformers and their rivals, written from their papers with one or two narrow layers."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

WORDS, WIDTH, HEADS = 100, 32, 4


def _heads(x: Tensor) -> Tensor:
    return x.unflatten(-1, (HEADS, -1)).transpose(1, 2)


class Attention(nn.Module):
    """Multi-head attention; ``bias`` is added to the scores."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Tensor, memory: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
        memory = x if memory is None else memory
        found = F.scaled_dot_product_attention(_heads(self.q(x)), _heads(self.k(memory)), _heads(self.v(memory)), bias)
        return self.out(found.transpose(1, 2).flatten(2))


def feedforward(width: int = WIDTH) -> nn.Module:
    return nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))


class Block(nn.Module):
    """Pre-norm block around any mixer of tokens."""

    def __init__(self, mixer: nn.Module, width: int = WIDTH) -> None:
        super().__init__()
        self.mixer, self.feed = mixer, feedforward(width)
        self.one, self.two = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: Tensor, *more: Tensor) -> Tensor:
        x = x + self.mixer(self.one(x), *more)
        return x + self.feed(self.two(x))


class Encoder(nn.Module):
    """PyTorch's own encoder layers, with a padding mask."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 64, batch_first=True)
        self.body, self.out = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(WIDTH, 3)
        self.register_buffer("places", torch.randn(64, WIDTH))

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        x = self.embed(input_ids) + self.places[: input_ids.shape[1]]
        return self.out(self.body(x, src_key_padding_mask=attention_mask == 0)[:, 0])


def transformer_encoder() -> nn.Module:
    return Encoder()


class EncoderDecoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.out = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)
        self.body = nn.Transformer(WIDTH, HEADS, 1, 1, 64, batch_first=True)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        return self.out(self.body(self.embed(source), self.embed(target), tgt_mask=mask))


def transformer() -> nn.Module:
    return EncoderDecoder()


class GPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(64, WIDTH)
        self.blocks = nn.ModuleList(Block(Attention()) for _ in range(2))
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, ids: Tensor) -> Tensor:
        length = ids.shape[1]
        x = self.embed(ids) + self.places(torch.arange(length))
        mask = torch.triu(torch.full((length, length), float("-inf")), 1)
        for block in self.blocks:
            x = block(x, None, mask)
        return self.norm(x) @ self.embed.weight.T


def gpt() -> nn.Module:
    return GPT()


class Rotary(nn.Module):
    """Llama's attention: rotary positions, fewer heads of keys than of queries."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 16), nn.Linear(WIDTH, 16)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("speed", 10000.0 ** (-torch.arange(0, 8, 2) / 8))

    def turn(self, x: Tensor) -> Tensor:
        angle = torch.arange(x.shape[2])[:, None] * self.speed
        cos, sin = angle.cos().repeat(1, 2), angle.sin().repeat(1, 2)
        left, right = x.chunk(2, -1)
        return x * cos + torch.cat([-right, left], -1) * sin

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part(x).unflatten(-1, (-1, 8)).transpose(1, 2) for part in (self.q, self.k, self.v))
        k, v = (t.repeat_interleave(2, 1) for t in (self.turn(k), v))
        found = F.scaled_dot_product_attention(self.turn(q), k, v, is_causal=True)
        return self.out(found.transpose(1, 2).flatten(2))


class Llama(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.attend = nn.Embedding(WORDS, WIDTH), Rotary()
        self.norms = nn.ModuleList(nn.RMSNorm(WIDTH) for _ in range(3))
        self.gate, self.up, self.down = nn.Linear(WIDTH, 64), nn.Linear(WIDTH, 64), nn.Linear(64, WIDTH)
        self.out = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        x = x + self.attend(self.norms[0](x))
        h = self.norms[1](x)
        return self.out(self.norms[2](x + self.down(F.silu(self.gate(h)) * self.up(h))))


def llama() -> nn.Module:
    return Llama()


class RelativeT5(nn.Module):
    """T5's encoder: buckets of distances give a bias to the scores."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.attend, self.bias = nn.Embedding(WORDS, WIDTH), Attention(), nn.Embedding(16, HEADS)
        self.norm = nn.RMSNorm(WIDTH)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        place = torch.arange(ids.shape[1])
        far = place[None] - place[:, None]
        near = far.abs().clamp(min=1)
        bucket = torch.where(near < 4, far.abs(), (4 + (near.float() / 4).log() * 2).long().clamp(max=7))
        bias = self.bias(bucket + 8 * (far > 0)).permute(2, 0, 1)[None]
        return x + self.attend(self.norm(x), None, bias)


def t5_encoder() -> nn.Module:
    return RelativeT5()


class Alibi(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.block = nn.Embedding(WORDS, WIDTH), Block(Attention())
        self.register_buffer("slopes", 2.0 ** -torch.arange(1, HEADS + 1))

    def forward(self, ids: Tensor) -> Tensor:
        place = torch.arange(ids.shape[1])
        bias = -(place[None] - place[:, None]).abs() * self.slopes[:, None, None]
        return self.block(self.embed(ids), None, bias[None])


def alibi() -> nn.Module:
    return Alibi()


class ViT(nn.Module):
    def __init__(self, blocks: nn.Module) -> None:
        super().__init__()
        self.patch, self.first = nn.Conv2d(3, WIDTH, 16, 16), nn.Parameter(torch.randn(1, 1, WIDTH))
        self.places, self.blocks = nn.Parameter(torch.randn(1, 17, WIDTH)), blocks
        self.out = nn.Linear(WIDTH, 10)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patch(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.first.expand(x.shape[0], -1, -1), tokens], 1) + self.places
        return self.out(self.blocks(tokens)[:, 0])


def vit() -> nn.Module:
    return ViT(nn.Sequential(Block(Attention()), Block(Attention())))


class MixTokens(nn.Module):
    def __init__(self, tokens: int) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(tokens, 32), nn.GELU(), nn.Linear(32, tokens))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x.transpose(1, 2)).transpose(1, 2)


def mlp_mixer() -> nn.Module:
    return ViT(nn.Sequential(Block(MixTokens(17)), Block(MixTokens(17))))


class SpatialGate(nn.Module):
    """gMLP: half of the channels gate the other half, mixed over tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.narrow = nn.Linear(WIDTH, 64), nn.Linear(32, WIDTH)
        self.mix, self.norm = nn.Conv1d(17, 17, 1), nn.LayerNorm(32)

    def forward(self, x: Tensor) -> Tensor:
        left, right = F.gelu(self.wide(x)).chunk(2, -1)
        return self.narrow(left * self.mix(self.norm(right)))


def gmlp() -> nn.Module:
    return ViT(nn.Sequential(Block(SpatialGate()), Block(SpatialGate())))


class Swin(nn.Module):
    """Windows of 4 × 4, shifted by 2 in the second block, with a relative bias."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, WIDTH, 8, 8)
        self.blocks = nn.ModuleList(Block(Attention()) for _ in range(2))
        self.bias = nn.Parameter(torch.randn(1, HEADS, 16, 16))
        self.merge, self.out = nn.Linear(4 * WIDTH, WIDTH), nn.Linear(WIDTH, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).permute(0, 2, 3, 1)
        n, h, w, c = x.shape
        for i, block in enumerate(self.blocks):
            x = torch.roll(x, (-2 * i, -2 * i), (1, 2))
            windows = x.view(n, h // 4, 4, w // 4, 4, c).transpose(2, 3).reshape(-1, 16, c)
            windows = block(windows, None, self.bias)
            x = windows.view(n, h // 4, w // 4, 4, 4, c).transpose(2, 3).reshape(n, h, w, c)
            x = torch.roll(x, (2 * i, 2 * i), (1, 2))
        four = [x[:, i::2, j::2] for i in (0, 1) for j in (0, 1)]
        return self.out(self.merge(torch.cat(four, -1)).mean((1, 2)))


def swin() -> nn.Module:
    return Swin()


class Linearised(nn.Module):
    """Linear attention: elu + 1 as the feature map."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        q, k = F.elu(self.q(x)) + 1, F.elu(self.k(x)) + 1
        memory = torch.einsum("bnd,bne->bde", k, self.v(x))
        return torch.einsum("bnd,bde->bne", q, memory) / (q * k.sum(1, keepdim=True)).sum(-1, keepdim=True)


class Tokens(nn.Module):
    """Embedding, blocks and a head over the mean token."""

    def __init__(self, *blocks: nn.Module) -> None:
        super().__init__()
        self.embed, self.blocks, self.out = nn.Embedding(WORDS, WIDTH), nn.ModuleList(blocks), nn.Linear(WIDTH, 3)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.out(x.mean(1))


def linear_transformer() -> nn.Module:
    return Tokens(Block(Linearised()))


class Fourier(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.fft.fft2(x, dim=(-2, -1)).real


def fnet() -> nn.Module:
    return Tokens(Block(Fourier()))


class Linformer(nn.Module):
    """Keys and values are brought down to 8 along the sequence, whose length is fixed."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.attend = nn.Linear(32, 8), Attention()

    def forward(self, x: Tensor) -> Tensor:
        return self.attend(x, self.down(x.transpose(1, 2)).transpose(1, 2))


def linformer() -> nn.Module:
    return Tokens(Block(Linformer()))


class Experts(nn.Module):
    """Mixture of experts: the two best of four, computed densely and weighed."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.experts = nn.Linear(WIDTH, 4), nn.ModuleList(feedforward() for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        best, which = self.gate(x).topk(2, -1)
        weights = torch.zeros_like(self.gate(x)).scatter(-1, which, best.softmax(-1))
        return (torch.stack([e(x) for e in self.experts], -1) * weights.unsqueeze(-2)).sum(-1)


def mixture_of_experts() -> nn.Module:
    return Tokens(Block(Attention()), Experts())


class Retention(nn.Module):
    """RetNet in its parallel form: a decay instead of a softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.norm = nn.GroupNorm(HEADS, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        place = torch.arange(x.shape[1])
        far = (place[:, None] - place[None]).float()
        decay = torch.where(far >= 0, 0.9 ** far.clamp(min=0), torch.zeros_like(far))
        found = (_heads(self.q(x)) @ _heads(self.k(x)).transpose(-1, -2) * decay) @ _heads(self.v(x))
        return self.norm(found.transpose(1, 2).flatten(2).transpose(1, 2)).transpose(1, 2)


def retnet() -> nn.Module:
    return Tokens(Block(Retention()))


class Selective(nn.Module):
    """Mamba: a selective state space, scanned step by step over a fixed length."""

    def __init__(self, states: int = 4) -> None:
        super().__init__()
        self.enter, self.conv = nn.Linear(WIDTH, 2 * WIDTH), nn.Conv1d(WIDTH, WIDTH, 4, padding=3, groups=WIDTH)
        self.select, self.out = nn.Linear(WIDTH, WIDTH + 2 * states), nn.Linear(WIDTH, WIDTH)
        self.log = nn.Parameter(torch.arange(1, states + 1).float().log().repeat(WIDTH, 1))

    def forward(self, x: Tensor) -> Tensor:
        x, gate = self.enter(x).chunk(2, -1)
        x = F.silu(self.conv(x.transpose(1, 2))[..., : x.shape[1]].transpose(1, 2))
        step, b, c = self.select(x).split([WIDTH, self.log.shape[1], self.log.shape[1]], -1)
        step = F.softplus(step)[..., None]
        decay, grow = (-step * self.log.exp()).exp(), step * b[:, :, None] * x[..., None]
        state, found = torch.zeros_like(grow[:, 0]), []
        for t in range(x.shape[1]):
            state = decay[:, t] * state + grow[:, t]
            found.append((state * c[:, t, None]).sum(-1))
        return self.out(torch.stack(found, 1) * F.silu(gate))


def mamba() -> nn.Module:
    return Tokens(Selective())


class TimeMix(nn.Module):
    """RWKV: each token mixes with the last one; keys decay over time."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Parameter(torch.rand(3, WIDTH))
        self.k, self.v, self.r = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.decay = nn.Parameter(-torch.rand(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        last = F.pad(x[:, :-1], (0, 0, 1, 0))
        k, v, r = (part(x * m + last * (1 - m)) for part, m in zip((self.k, self.v, self.r), self.mix, strict=True))
        place = torch.arange(x.shape[1])
        far = (place[:, None] - place[None])[..., None].clamp(min=0) * self.decay
        causal = (place[:, None] >= place[None])[None, ..., None]
        weights = torch.where(causal, (far[None] + k[:, None]).exp(), torch.zeros(()))
        return r.sigmoid() * (weights * v[:, None]).sum(2) / weights.sum(2)


def rwkv() -> nn.Module:
    return Tokens(Block(TimeMix()))


class StateSpace(nn.Module):
    """S4D as a long convolution by FFT."""

    def __init__(self) -> None:
        super().__init__()
        self.rate, self.mix = nn.Parameter(torch.rand(WIDTH, 8)), nn.Parameter(torch.randn(WIDTH, 8))

    def forward(self, x: Tensor) -> Tensor:
        length = x.shape[1]
        kernel = (self.mix[..., None] * (-self.rate[..., None] * torch.arange(length)).exp()).sum(1)
        found = torch.fft.rfft(x.transpose(1, 2), 2 * length) * torch.fft.rfft(kernel, 2 * length)
        return torch.fft.irfft(found, 2 * length)[..., :length].transpose(1, 2)


def s4() -> nn.Module:
    return Tokens(Block(StateSpace()))


class Perceiver(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.latents, self.read, self.think = nn.Parameter(torch.randn(1, 8, WIDTH)), Attention(), Block(Attention())
        self.enter, self.out = nn.Linear(6, WIDTH), nn.Linear(WIDTH, 5)

    def forward(self, x: Tensor) -> Tensor:
        latents = self.latents.expand(x.shape[0], -1, -1)
        return self.out(self.think(latents + self.read(latents, self.enter(x))).mean(1))


def perceiver() -> nn.Module:
    return Perceiver()


class DETR(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 16, 7, 4, 3), nn.ReLU(), nn.Conv2d(16, WIDTH, 3, 2, 1))
        self.rows, self.columns = nn.Parameter(torch.rand(8, 16)), nn.Parameter(torch.rand(8, 16))
        self.queries, self.body2 = nn.Parameter(torch.rand(6, WIDTH)), nn.Transformer(WIDTH, HEADS, 1, 1, 64)
        self.classes, self.boxes = nn.Linear(WIDTH, 4), nn.Linear(WIDTH, 4)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        body = self.body(x)
        places = torch.cat([self.columns[None].expand(8, -1, -1), self.rows[:, None].expand(-1, 8, -1)], -1)
        tokens = places.flatten(0, 1)[:, None] + body.flatten(2).permute(2, 0, 1)
        found = self.body2(tokens, self.queries[:, None].expand(-1, x.shape[0], -1)).transpose(0, 1)
        return {"pred_logits": self.classes(found), "pred_boxes": self.boxes(found).sigmoid()}


def detr() -> nn.Module:
    return DETR()


class TwoTowers(nn.Module):
    """CLIP: pictures against texts, all with all."""

    def __init__(self) -> None:
        super().__init__()
        self.image = nn.Sequential(nn.Conv2d(3, 16, 8, 8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.project, self.text = nn.Linear(16, 8), nn.EmbeddingBag(WORDS, 8)
        self.scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))

    def forward(self, images: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        pictures, texts = F.normalize(self.project(self.image(images))), F.normalize(self.text(ids))
        logits = self.scale.exp() * pictures @ texts.T
        return logits, logits.T


def clip() -> nn.Module:
    return TwoTowers()


class PatchTST(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.block, self.out = nn.Linear(8, WIDTH), Block(Attention()), nn.Linear(7 * WIDTH, 12)

    def forward(self, series: Tensor) -> Tensor:
        mean, spread = series.mean(1, keepdim=True), series.std(1, keepdim=True) + 1e-5
        patches = ((series - mean) / spread).transpose(1, 2).unfold(-1, 8, 4)
        n, channels = patches.shape[:2]
        found = self.block(self.embed(patches).flatten(0, 1)).flatten(1)
        return self.out(found).unflatten(0, (n, channels)).transpose(1, 2) * spread + mean


def patchtst() -> nn.Module:
    return PatchTST()


class SASRec(nn.Module):
    """Next item: scores of candidates against a history that is padded with zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.items, self.attend = nn.Embedding(WORDS, WIDTH, padding_idx=0), nn.MultiheadAttention(WIDTH, HEADS)
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, history: Tensor, candidates: Tensor) -> Tensor:
        x = self.items(history).transpose(0, 1)
        x = self.norm(x + self.attend(x, x, x, need_weights=False)[0])[-1]
        return (self.items(candidates) * x[:, None]).sum(-1)


def sasrec() -> nn.Module:
    return SASRec()
