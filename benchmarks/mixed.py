"""What mixed precision brings: the variant that was chosen before it, and what is chosen now, in one session a model.

    python benchmarks/mixed.py [MODEL...] --runs runs/mixed -o docs/benchmarks/mixed_speed.json

The models are those of the zoo, at full size, whose INT8 or BF16 missed its gate when OpenVINO's variants were whole or
nothing; what was chosen then is in docs/benchmarks/zoo. Where that misses its gate on this CPU, the fastest whole
variant that holds it takes its place. Each is converted anew with that target, its framework and OpenVINO's mixed
targets, and timed for latency: all in turns, a process each, as ``accel convert`` measures, for ``ROUNDS`` rounds
however clear it is before. Rows add up in the file, so that models may be run one at a time. A quiet machine is needed.
"""

import argparse
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

from accel.bench.stability import ratio_interval
from accel.core import document
from accel.core.values import to_json

ROOT = Path(__file__).resolve().parents[1]
MODELS = (
    *("autoencoder", "dlrm", "text-recognition", "mobilenet-v2", "inception-v3", "yolo", "densenet121", "east", "gpt2"),
    "bert-large",
)
FACTS = ("share_of_products", "smooth_quant_alpha", "whole_missed", "search_s")
MIXED = ("openvino", "openvino-bf16", "openvino-int8")
WHOLE = {"bert-large": ("openvino-fp32", "ort-int8-dynamic")}
"""Variants without a search that may have been chosen where the usual choice fails, by model."""
ROUNDS = 12
"""Rounds of all: a choice needs three of what is clearly slower, an interval of how much slower it is needs more."""


def row(model: str, runs: Path) -> dict[str, Any]:
    """Convert a model and return what its session says."""
    earlier = json.loads((ROOT / "docs" / "benchmarks" / "zoo" / f"{model}.json").read_text())
    (decision,) = [d for d in earlier["decisions"] if d["objective"] == "latency" and d["device"] == "cpu"]
    before, framework = (decision[key].partition("@")[0] for key in ("chosen", "baseline"))
    targets = dict.fromkeys((framework, before, *WHOLE.get(model, ()), *MIXED))
    out = runs / model
    if not (out / document.FILENAME).exists():
        line = [sys.executable, "-m", "accel", "convert", model, "--targets", ",".join(targets)]
        subprocess.run([*line, "--objective", "latency", "--min-rounds", str(ROUNDS), "-o", str(out)], check=True)
    run = document.read(out)
    (latency,) = run.decisions
    kept: dict[str, Any] = {"model": model, "framework": framework, "before": before}
    kept |= {"after": str(latency.chosen).partition("@")[0]}
    kept |= {"hardware": to_json(run.hardware), "timings_s": to_json(run.timings_s)}
    rounds = {}
    for v in run.variants:
        facts = v.artifact.facts if v.artifact is not None else {}
        timed = [m for m in v.measurements if m.scenario == "latency" and m.rounds_ms]
        if timed:
            rounds[v.target] = timed[-1].rounds_ms
        kept.setdefault("variants", {})[v.target] = {
            "status": v.status,
            "reason": v.reason,
            "found": to_json(v.parity.found) if v.parity is not None else None,
            "p50_ms": timed[-1].p50_ms if timed else None,
            "rounds_ms": rounds.get(v.target),
            **{name: facts.get(name) for name in FACTS},
        }
    passed = {t for t, v in kept["variants"].items() if v["status"] == "ok" and v["p50_ms"] is not None}
    if before not in passed:
        before = min(passed - {*MIXED}, key=lambda t: kept["variants"][t]["p50_ms"])
        kept |= {"chosen_elsewhere": kept["before"], "before": before}
    for name, base in (("of_framework", framework), ("of_before", before)):
        if {base, kept["after"]} <= rounds.keys() and base != kept["after"]:
            ratio, *interval = ratio_interval(rounds[base], rounds[kept["after"]])
            kept[name] = {"ratio": ratio, "interval": interval}
        else:
            kept[name] = {"ratio": 1.0, "interval": None}
    return kept


def main() -> None:
    """Convert, measure and write the rows."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", nargs="*", default=MODELS)
    parser.add_argument("--runs", type=Path, required=True, help="where run directories go; those there are read")
    parser.add_argument("-o", "--out", type=Path, required=True)
    asked = parser.parse_args()
    rows = {r["model"]: r for r in json.loads(asked.out.read_text())["rows"]} if asked.out.exists() else {}
    for model in asked.models:
        rows[model] = row(model, asked.runs)
        gains = [r["of_before"]["ratio"] for r in rows.values()]
        mean = math.exp(sum(map(math.log, gains)) / len(gains))
        found = {"geometric_mean": mean, "risen": sum(g > 1 for g in gains), "of": len(gains)}
        asked.out.write_text(json.dumps({**found, "rows": list(rows.values())}, indent=1) + "\n")
        print(model, rows[model]["before"], "->", rows[model]["after"], rows[model]["of_before"], found, flush=True)


if __name__ == "__main__":
    main()
