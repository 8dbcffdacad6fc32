"""An encoder–decoder of Hugging Face (a T5, small, random weights), optimised part by part while it generates text.

The decoder is called once for each token; its arguments are recorded as generation really makes them.
"""

import torch
from transformers import T5Config, T5ForConditionalGeneration

import accel


def generate(model: T5ForConditionalGeneration, ids: torch.Tensor) -> list[int]:
    """Translate as a user does; the cache of past keys is an object, which no exported program takes."""
    with torch.inference_mode():
        made = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=5, do_sample=False, use_cache=False
        )
    return made[0].tolist()


def main() -> None:
    torch.manual_seed(0)
    config = T5Config(
        vocab_size=100,
        d_model=32,
        d_kv=8,
        d_ff=64,
        num_layers=2,
        num_heads=4,
        decoder_start_token_id=0,
        eos_token_id=None,
    )
    model = T5ForConditionalGeneration(config).eval()
    texts = [torch.randint(2, 100, (1, 6 + i % 5)) for i in range(24)]
    before = [generate(model, ids) for ids in texts]
    found = accel.optimize_parts(
        model,
        ["encoder", "decoder"],
        run=lambda ids: generate(model, ids),
        samples=texts,
        targets="ort",
        objective="latency",
        out="runs/t5",
        budget_s=3,
    )
    low, high = found.speedup_ci
    print(
        f"{found.before_ms:.1f} ms before, {found.after_ms:.1f} ms after: {found.speedup:.2f} [{low:.2f}, {high:.2f}]"
    )
    print({name: (part.best.id, part.variants[part.best.id].parity.passed) for name, part in found.parts.items()})
    print("same texts:", found.equal and [generate(model, ids) for ids in texts] == before, before[0])


if __name__ == "__main__":
    main()
