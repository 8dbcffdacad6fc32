"""One library that embeds sentences, in a process of its own: ``child.py ROLE MODEL [MORE]``, JSON in and out by lines.

Each role is used as its own documentation shows. It imports what the role needs and nothing of accel for the others:
they run with the interpreter of their own environment.
"""

import asyncio
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

Embed = Callable[[list[str]], Any]


def sentence_transformers(folder: str) -> tuple[Embed, str]:
    """``encode`` sorts by length and takes batches of 32."""
    from sentence_transformers import SentenceTransformer, __version__

    model = SentenceTransformer(folder, device="cpu")
    return lambda texts: model.encode(texts, show_progress_bar=False), __version__


def infinity(folder: str, engine: str) -> tuple[Embed, str]:
    """Infinity's engine in process, which joins what waits to batches of 32."""
    from importlib.metadata import version

    from infinity_emb import AsyncEmbeddingEngine, EngineArgs

    if engine == "optimum":  # version 0.0.78 finds the ONNX file of a folder only where it is the working directory
        os.chdir(folder)
        folder = "."
    loop = asyncio.new_event_loop()
    made = AsyncEmbeddingEngine.from_args(
        EngineArgs(model_name_or_path=folder, engine=engine, device="cpu", compile=False, bettertransformer=False)
    )
    loop.run_until_complete(made.astart())
    return lambda texts: loop.run_until_complete(made.embed(sentences=texts))[0], version("infinity_emb")


def accel(folder: str, repository: str) -> tuple[Embed, str]:
    """A variant that accel built, with the folder's own tokenizer."""
    import tokenizers

    import accel

    tokenizer = tokenizers.Tokenizer.from_file(str(Path(folder, "tokenizer.json")))
    tokenizer.no_padding()
    tokenizer.enable_truncation(json.loads(Path(folder, "sentence_bert_config.json").read_text())["max_seq_length"])
    model = accel.load(repository)

    def embed(texts: list[str]) -> np.ndarray:
        requests = []
        for found in tokenizer.encode_batch_fast(texts):
            ids = np.array([found.ids])
            known = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
            requests.append({spec.name: known[spec.name] for spec in model.inputs})
        return np.concatenate([answer["sentence_embedding"] for answer in model.run_all(requests)])

    return embed, model.id


def main() -> None:
    """Answer each line: ``{"texts": […]}`` with the seconds it took, and, where asked, the vectors as a file."""
    role, *given = sys.argv[1:]
    embed, version = {"sentence-transformers": sentence_transformers, "infinity": infinity, "accel": accel}[role](
        *given
    )
    print(json.dumps({"version": version}), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        begin, cpu = time.perf_counter(), time.process_time()
        found = embed(asked["texts"])
        taken = {"seconds": time.perf_counter() - begin, "cpu_s": time.process_time() - cpu}
        if "out" in asked:
            np.save(asked["out"], np.asarray(found, np.float32))
        print(json.dumps(taken), flush=True)


if __name__ == "__main__":
    main()
