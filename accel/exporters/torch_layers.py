"""Layers of torch that torch.onnx writes badly, lent in another form while a model is exported."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.nn import functional
from torch.nn.modules import transformer

BAG, LSTM = torch.nn.EmbeddingBag.forward, torch.nn.LSTM.forward
IS_CAUSAL = transformer._detect_is_causal_mask
REDUCED = {"sum": torch.sum, "mean": torch.mean, "max": torch.amax}


@contextlib.contextmanager
def exportable_forwards(module: torch.nn.Module) -> Iterator[None]:
    """Lend the forwards below to torch's own layers, while ``module`` is exported."""
    own: tuple[tuple[Any, Any], ...] = ((torch.nn.EmbeddingBag, _bag), (torch.nn.LSTM, _projected))
    lstms = [part for part in module.modules() if isinstance(part, torch.nn.LSTM) and part.proj_size]
    for part in lstms:  # no operator of ONNX does it, and the weights are constants
        part.inverses = [torch.linalg.pinv(names[-1].detach()).T for names in part.all_weights]
    for kind, forward in own:
        kind.forward = forward
    transformer._detect_is_causal_mask = _is_causal
    try:
        yield
    finally:
        torch.nn.EmbeddingBag.forward, torch.nn.LSTM.forward = BAG, LSTM
        transformer._detect_is_causal_mask = IS_CAUSAL
        for part in lstms:
            del part.inverses


def _is_causal(mask: Any, is_causal: bool | None = None, size: int | None = None) -> bool:
    """Masks of nn.Transformer as they are given: it looks into one for whether it is causal, a value no graph has."""
    return is_causal is True


def _bag(self: Any, input: Any, offsets: Any = None, per_sample_weights: Any = None) -> Any:
    """Bags of one length: a lookup and a reduction. torch's ONNX of it is a loop over bags."""
    if input.dim() != 2 or per_sample_weights is not None or self.padding_idx is not None or self.max_norm is not None:
        return BAG(self, input, offsets, per_sample_weights)
    return REDUCED[self.mode](functional.embedding(input, self.weight), 1)


def _projected(self: Any, input: Any, hx: Any = None) -> Any:
    """An LSTM with projections as one without, and a projection of what it gives: ONNX has no other.

    The state h that returns is ``W_hr · r`` of an unprojected r, so ``W_hh · h`` is ``(W_hh · W_hr) · r``. A first
    state of the caller's is projected back by the pseudo-inverse of ``W_hr``: exact where its rows are independent.

    Source: https://docs.pytorch.org/docs/stable/generated/torch.nn.LSTM.html (proj_size).
    """
    if not self.proj_size or not isinstance(input, torch.Tensor) or input.dim() != 3:
        return LSTM(self, input, hx)
    x = input if self.batch_first else input.transpose(0, 1)
    hidden, cells = [], []
    directions = 2 if self.bidirectional else 1
    for layer in range(self.num_layers):
        found = []
        for way in range(directions):
            place = layer * directions + way
            weight, back, *biases, out = (getattr(self, name) for name in self._all_weights[place])
            cell = x.new_zeros(1, x.shape[0], self.hidden_size) if hx is None else hx[1][place : place + 1]
            raw = torch.zeros_like(cell) if hx is None else hx[0][place : place + 1] @ self.inverses[place]
            given = x.flip(1) if way else x
            weights = [weight, back @ out, *biases]
            y, h, c = torch.lstm(given, (raw, cell), weights, bool(biases), 1, 0.0, False, False, True)
            found.append((y.flip(1) if way else y) @ out.T)
            hidden.append(h @ out.T)
            cells.append(c)
        x = torch.cat(found, -1)
    return x if self.batch_first else x.transpose(0, 1), (torch.cat(hidden), torch.cat(cells))
