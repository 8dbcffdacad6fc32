"""A tiny BERT, requests of many lengths for it, and what holds answers against those to each row alone."""

import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from live import THREADS, Live

from accel.builders import targets
from accel.core.accuracy import parity
from accel.core.errors import InputError
from accel.core.values import Target, Variant
from accel.exporters import verdict
from accel.run.group_check import GroupCheck, check_groups
from accel.run.tasks import Described
from accel.triton.servers.answers import client, infer

BERT = """
import numpy as np
import torch


class Layer(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.mix, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.up, self.down = torch.nn.Linear(width, 2 * width), torch.nn.Linear(2 * width, width)
        self.first, self.second = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)

    def forward(self, hidden, hide):
        q, k, v = self.mix(hidden).chunk(3, -1)
        scores = torch.softmax(q @ k.transpose(1, 2) / 4 + hide, -1)
        hidden = self.first(hidden + self.out(scores @ v))
        return self.second(hidden + self.down(torch.nn.functional.gelu(self.up(hidden))))


class Tiny(torch.nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.words, self.places = torch.nn.Embedding(50, width), torch.nn.Embedding(64, width)
        self.layers = torch.nn.ModuleList([Layer(width), Layer(width)])
        self.pool = torch.nn.Linear(width, width)

    def forward(self, input_ids, attention_mask):
        hide = (1 - attention_mask[:, None, :].to(torch.float32)) * -1e9
        hidden = self.words(input_ids) + self.places(torch.arange(input_ids.shape[1]))
        for layer in self.layers:
            hidden = layer(hidden, hide)
        return {"hidden": hidden, "pooled": torch.tanh(self.pool(hidden[:, 0]))}


def build():
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    return Tiny(), [
        {"input_ids": rng.integers(0, 50, (1, n)), "attention_mask": np.ones((1, n), np.int64)}
        for n in rng.integers(3, 40, 150)
    ]
"""
SIZES = {"min": (1, 1), "opt": (1, 32), "max": (8, 64)}


def checked(bert: Live, target: str) -> tuple[GroupCheck, dict[str, float]]:
    """Build a target and ask whether requests may share its calls, by the gate of its precision."""
    artifact = bert._build(Variant(Target(target, "cpu"), bert.source.profile))
    precision = targets.info(artifact.variant.target).precision
    gate = parity.gate_for(precision, outputs=bert.source.outputs, task=None, overrides={})
    described = Described(bert.source, bert.samples)
    found = check_groups(artifact, bert._files(artifact.variant), described, bert.folder / "samples", gate, THREADS)
    return found, gate


def load(seed: int) -> dict[str, np.ndarray]:
    """Return a request as one of many clients sends it: of one or more texts, padded or not, at either end."""
    rng = np.random.default_rng(seed)
    rows = int(rng.choice([1, 1, 1, 2, 5, 8]))
    lengths = rng.integers(1, 50, rows)
    width = int(lengths.max()) if seed % 3 else 64
    mask = (np.arange(width) < lengths[:, None]).astype(np.int64)
    if seed % 5 == 0:
        mask = mask[:, ::-1].copy()  # padded on the left
    if seed % 7 == 0:
        mask[:, 1:-1:3] = 0
    return {"input_ids": rng.integers(0, 50, (rows, width)), "attention_mask": mask}


SENT = {str(i): load(i) for i in range(120)}


def hold(bert: Live, single: dict[str, dict[str, np.ndarray]], found: dict[str, dict[str, np.ndarray]]) -> None:
    """Hold answers against those to each row alone; what lies behind the end of a text is 0."""
    _, gate = checked(bert, "ort")
    held = verdict.compare(bert.source, SENT, single, found, gate)
    assert held.passed, held.reasons
    assert held.found["sqnr_db"] is None or held.found["sqnr_db"] > 100, "None: every value is equal"
    for name, feed in SENT.items():
        ends = feed["attention_mask"].shape[1] - feed["attention_mask"][:, ::-1].argmax(axis=1)
        after_end = np.arange(feed["attention_mask"].shape[1]) >= ends[:, None]
        assert not found[name]["hidden"][after_end].any(), "what is not computed is 0"


def counters(served: Any) -> dict[str, float]:
    """Read the model's own counters at ``/metrics``."""
    with urllib.request.urlopen(f"http://{served.endpoint.metrics}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    return {line.partition("{")[0]: float(line.split()[-1]) for line in lines if line.startswith("accel_")}


def asked(bert: Live, running: Any) -> dict[str, dict[str, np.ndarray]]:
    """Return the answers to what sixteen clients send at once."""

    def ask(name: str) -> dict[str, np.ndarray]:
        with client(running.endpoint) as calls:
            return infer(calls, "tiny", SENT[name], bert.source.outputs)

    with ThreadPoolExecutor(16) as clients:
        return dict(zip(SENT, clients.map(ask, SENT), strict=True))


def hold_mixed_load(bert: Live, served: Any, single: dict[str, dict[str, np.ndarray]]) -> float:
    """Hold the answers to many clients, and that requests of theirs share calls; return how many calls were made."""
    before = counters(served)
    found = asked(bert, served)
    after = counters(served)
    hold(bert, single, found)
    calls, rows, tokens, places = (after[name] - before[name] for name in after)
    assert rows == sum(len(feed["input_ids"]) for feed in SENT.values())
    assert rows / calls > 3, "requests of different lengths share calls"
    assert tokens <= places < 64 * rows
    return calls


def refusals(bert: Live, served: Any, feeds: dict[int, dict[str, np.ndarray]]) -> dict[int, str]:
    """Send requests at once; return the messages of those that are refused."""

    def ask(number: int) -> str:
        with client(served.endpoint) as calls:
            try:
                infer(calls, "tiny", feeds[number], bert.source.outputs)
            except InputError as error:
                return error.message
        return ""

    with ThreadPoolExecutor(len(feeds)) as clients:
        return {n: said for n, said in zip(feeds, clients.map(ask, feeds), strict=True) if said}


def hold_one_refusal(bert: Live, served: Any) -> None:
    """Hold that of requests that come together only the one outside the contract is refused."""
    feeds = {n: load(n) for n in range(12)}
    feeds[3] = load(1) | {"input_ids": load(1)["input_ids"] + 100}
    found = refusals(bert, served, feeds)
    assert list(found) == [3]
    assert "expected values in [0, 49]" in found[3]
