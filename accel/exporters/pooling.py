"""``--pool``: one vector of each text in place of a vector of each token, as a part of the model that is converted.

Padding then never leaves the server, and answers shrink by the number of tokens. Imports no framework at its top.
"""

import dataclasses
from typing import TYPE_CHECKING

from accel.core.errors import UsageError
from accel.core.processing import Pool
from accel.core.values import ModelSource, TensorSpec, sha256_json
from accel.exporters.processing_files import EMBEDDING
from accel.exporters.request import Pooling
from accel.exporters.zoo import zoo

if TYPE_CHECKING:
    import torch


def key(of_model: str, pool: str | None) -> str:
    """Return the key of a model whose tokens are pooled, from the model's own."""
    return of_model if pool is None else sha256_json([of_model, pool])


def pooled(source: ModelSource, pool: Pooling | None) -> ModelSource:
    """Return what a source gives where its token vectors are pooled; its other outputs are left out.

    A task metric looks at what the model gave before, so it does not judge the vectors: their SQNR does.

    Args:
        source: as its exporter describes it; it may pool by itself, as a sentence-transformers folder does.

    Raises:
        UsageError: it gives no vector of each token, has no mask, or is not a source of PyTorch.
    """
    if pool is None:
        return source
    marked = dataclasses.replace(source, pool=pool, key=key(source.key, pool))
    if pool == "none" or any(spec.name == EMBEDDING for spec in source.outputs):
        return marked
    if source.framework != "torch":
        raise UsageError(f"--pool is for PyTorch sources, and {source.name} is {source.framework}'s")
    tokens = _tokens(source)
    vector = TensorSpec(EMBEDDING, tokens.dtype, (tokens.dims[0], tokens.dims[2]))
    return dataclasses.replace(marked, outputs=(vector,), gate=None)


def fuse(source: ModelSource, module: "torch.nn.Module") -> "torch.nn.Module":
    """Wrap a module so that it gives what ``pooled`` says; normalised where the zoo's entry says so."""
    if source.pool in (None, "none"):
        return module
    from accel.exporters.sentence_encoder import Normalize, SentenceEncoder

    if isinstance(module, SentenceEncoder):  # as modules.json says, by another mode
        return module
    step = zoo().entry(source.reference).pipeline if source.kind == "zoo" else None
    after = [Normalize()] if step is not None and isinstance(step.post, Pool) and step.post.normalise else []
    return SentenceEncoder(module, [str(source.pool)], after, str(source.mask)).eval()


def _tokens(source: ModelSource) -> TensorSpec:
    """Return the output with a vector of each token: float (batch, seq, width) along the mask's axes."""
    mask = next((s.dims for s in source.inputs if s.name == source.mask), None)
    found = next((s for s in source.outputs if len(s.dims) == 3), None)
    if found is None or found.dims[:2] != mask or not isinstance(found.dims[2], int) or "logits" in found.name:
        outputs = ", ".join(f"{s.name} {list(s.dims)}" for s in source.outputs)
        raise UsageError(
            f"--pool needs a vector of each token along the axes of the mask, and {source.name} gives {outputs}",
            fix="convert the encoder alone (--task feature-extraction), or leave --pool out",
        )
    return found
