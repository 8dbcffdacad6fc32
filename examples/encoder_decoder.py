"""An encoder–decoder of Hugging Face, optimised part by part while it generates text.

It has the sizes of google/t5-efficient-tiny, with a small vocabulary and random weights. The decoder is called once for
each token; its arguments are recorded as generation really makes them. With one thread each, the parts need not wait
for one another's threads.
"""

import torch
from transformers import T5Config, T5ForConditionalGeneration

import accel


def generate(model: T5ForConditionalGeneration, ids: torch.Tensor) -> list[int]:
    """Answer as a user would; the cache of past keys is an object, which no exported program takes.

    A token comes once: random weights would only repeat the first.
    """
    how = {"max_new_tokens": 5, "do_sample": False, "use_cache": False, "no_repeat_ngram_size": 1}
    with torch.inference_mode():
        made = model.generate(ids, attention_mask=torch.ones_like(ids), **how)
    return made[0].tolist()


def main() -> None:
    torch.manual_seed(0)
    config = T5Config(
        vocab_size=1000,
        d_model=256,
        d_kv=64,
        d_ff=1024,
        num_layers=4,
        num_heads=4,
        decoder_start_token_id=0,
        eos_token_id=None,
    )
    model = T5ForConditionalGeneration(config).eval()
    texts = [torch.randint(2, 1000, (1, 6 + i % 5)) for i in range(12)]
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
        threads=1,
        rounds=12,
    )
    low, high = found.speedup_ci
    print(
        f"{found.before_ms:.1f} ms before, {found.after_ms:.1f} ms after: {found.speedup:.2f} [{low:.2f}, {high:.2f}]"
    )
    print({name: (part.best.id, part.variants[part.best.id].parity.passed) for name, part in found.parts.items()})
    print("same texts:", found.equal and [generate(model, ids) for ids in texts] == before, before[0])


if __name__ == "__main__":
    main()
