"""What OMP_WAIT_POLICY costs and saves torch, quiet and beside a neighbour; the ways take turns.

python benchmarks/waiting.py OUT.json [--rounds N]
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

WAYS = {
    "spinning": {},
    "passive": {"OMP_WAIT_POLICY": "PASSIVE"},
    "bound": {"OMP_PROC_BIND": "true", "OMP_PLACES": "cores"},
}
NEIGHBOURS = {"quiet": None, "nice 19": "import os\nos.nice(19)\nwhile True: pass", "one core": "while True: pass"}
MODELS = {"forty small layers": (40, 384, 64), "four large layers": (4, 3072, 128)}
TIMED = """
import json, sys, time, statistics, torch
layers, width, rows = map(int, sys.argv[1:])
torch.set_num_threads(len(__import__("os").sched_getaffinity(0)))
model = torch.nn.Sequential(*[torch.nn.Linear(width, width) for _ in range(layers)]).eval()
x = torch.randn(rows, width)
with torch.inference_mode():
    for _ in range(5): model(x)
    times, end = [], time.perf_counter() + 1.5
    while time.perf_counter() < end or len(times) < 3:
        start = time.perf_counter(); model(x); times.append(time.perf_counter() - start)
print(statistics.median(times) * 1e3)
"""


def main() -> None:
    """Time every way, model and neighbour in turn."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    found: dict[str, dict[str, dict[str, list[float]]]] = {}
    for neighbour, script in NEIGHBOURS.items():
        beside = subprocess.Popen([sys.executable, "-c", script]) if script else None
        try:
            for _ in range(given.rounds):
                for model, shape in MODELS.items():
                    for way, variables in WAYS.items():
                        command = [sys.executable, "-c", TIMED, *map(str, shape)]
                        env = {k: v for k, v in os.environ.items() if not k.startswith("OMP_")} | variables
                        done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
                        times = found.setdefault(neighbour, {}).setdefault(model, {}).setdefault(way, [])
                        times.append(float(done.stdout))
        finally:
            if beside:
                beside.kill()
                beside.wait()
        for model, ways in found[neighbour].items():
            figures = ", ".join(f"{way} {statistics.median(times):.2f} ms" for way, times in ways.items())
            print(f"{neighbour}, {model}: {figures}", flush=True)
    given.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
