"""Which products of a quantised file ONNX Runtime computes in INT8: observed in its own profile, not read off the file.

Pairs of QuantizeLinear and DequantizeLinear around a product are a wish: where the runtime does not make an integer
kernel of them, the product runs in float32, with the rounding on top.
"""

import math
import re
import tempfile
from collections import Counter
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from accel.builders import held_back
from accel.builders.calibration import range_feeds
from accel.builders.ort_providers import provider_for
from accel.builders.ort_session import INT8_PRODUCTS, profiled
from accel.core.errors import UnavailableError
from accel.core.values import LAYERS, BuildRequest

_RECURRENT = ("LSTM", "GRU", "RNN")


def facts(request: BuildRequest, plain: Path, built: Path, *, fix: str) -> dict[str, Any]:
    """Say of each product of the exported file in what the built one computes it.

    Args:
        plain: the exported file, whose products have the names that the built one's grew from.
        fix: what to do where this is not INT8, though every pair was fused.

    Raises:
        UnavailableError: so few multiplications are INT8 that the file is not.
        StageError: ONNX Runtime cannot run one of the files.
    """
    from accel.graph import passes, products, qdq
    from accel.graph.opset import RaiseOpset

    feed = range_feeds(request)[0]
    provider = provider_for(request.variant, threads=1, mode="latency")
    with tempfile.TemporaryDirectory(prefix="accel-layers-", dir=built.parent.parent) as scratch:
        named = Path(scratch) / built.name
        passes.rewrite(plain, named, RaiseOpset(qdq.FIRST_OPSET), qdq.NameNodes())
        work: Counter[str] = Counter()
        for node in profiled(named, provider, feed, as_written=True):
            if node["op_name"] in products.PRODUCTS or node["op_name"] in _RECURRENT:
                work[_name(node)] += _multiplications(node)
    ran = [_name(n) for n in profiled(built, provider, feed) if n["op_name"].startswith(INT8_PRODUCTS)]
    owners = {_owner(name, work) for name in ran}
    others = "none" if None in owners else "fp32"  # one of those may be the product that an integer kernel hides
    total = sum(work.values()) or 1
    rows = [(name, "int8" if name in owners else others, count / total) for name, count in work.items()]
    shares = {"int8": 0.0, others: 0.0}
    for _, precision, share in rows:
        shares[precision] += share
    unfused = [name for name in products.behind_pairs(built) if name in work and name not in owners]
    if others == "fp32" and shares["int8"] < held_back.LEAST_SHARE:
        pairs = f"; of {len(unfused)} more ONNX Runtime made no integer kernel" if unfused else ""
        raise UnavailableError(
            f"{100 * shares['int8']:.2g} % of the multiplications ({len(owners)} of {len(work)} products) would run in "
            f"INT8{pairs}: less than {100 * held_back.LEAST_SHARE:g} % is not INT8",
            fix="choose ort-int8-dynamic, whose kernels need no pairs" if unfused else fix,
        )
    return {
        "share_of_products": {name: share for name, share in shares.items() if share},
        **({LAYERS: rows} if all(shares.values()) else {}),
        **({"pairs_not_fused": unfused} if unfused and others == "fp32" else {}),
    }


def _name(node: Mapping[str, Any]) -> str:
    """Return a node's name; what the runtime makes anew in another layout it tells apart by a number."""
    return re.sub("_token_[0-9]+$", "", str(node["name"]).removesuffix("_kernel_time"))


def _owner(name: str, products: Collection[str]) -> str | None:
    """Return the product that a node was made of: its name, or the longest one to which something was added."""
    found = [p for p in products if name == p or name.startswith((f"{p}_", f"{p}/"))]
    return max(found, key=len, default=None)


def _multiplications(node: Mapping[str, Any]) -> int:
    """Count the multiplications of a product by the sizes that a profile has; of an Einsum with batches too many."""
    shapes = [next(iter(given.values())) for given in node["input_type_shape"]]
    out = next(iter(node["output_type_shape"][0].values()))
    made, kind = math.prod(out), node["op_name"]
    if kind == "MatMul":
        return made * int(shapes[0][-1])
    if kind == "Gemm":
        return math.prod(shapes[0]) * int(out[1])
    if kind in _RECURRENT:
        return math.prod(shapes[0][:2]) * (math.prod(shapes[1]) + math.prod(shapes[2]))
    if kind == "Einsum":
        return math.isqrt(made * math.prod(math.prod(shape) for shape in shapes))
    return (made if kind == "Conv" else math.prod(shapes[0])) * math.prod(shapes[1][1:])
