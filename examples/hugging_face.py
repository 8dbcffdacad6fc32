"""A Hugging Face model in memory, with keyword inputs and a result of its own class; a small one, random weights."""

import torch
from transformers import BertConfig, BertModel

import accel


def main() -> None:
    torch.manual_seed(0)
    config = BertConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, vocab_size=200
    )
    module = BertModel(config).eval()
    lengths = [5 + i % 8 for i in range(64)]
    batches = [{"input_ids": torch.randint(1, 200, (1, n)), "attention_mask": torch.ones(1, n).long()} for n in lengths]
    result = accel.optimize(
        module, samples=batches, targets="torch,ort", objective="latency", out="runs/bert", budget_s=5
    )
    expected, found = module(**batches[0]), result.best(**batches[0])
    print(type(found).__name__, float((expected.last_hidden_state - found.last_hidden_state).abs().max()))
    print(result.variants["ort@cpu"])


if __name__ == "__main__":
    main()
