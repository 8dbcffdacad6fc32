"""Write what ``--quick`` knows before there are runs: the matrix of the zoo (docs/benchmarks/zoo), reduced to times.

python benchmarks/winners.py
"""

import json
from pathlib import Path

from accel.core.values import to_json
from accel.exporters.zoo import zoo
from accel.run import favourites  # importing accel.run hands the zoo in

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    """Read every model's row; what failed its gate, or was not timed, has no part in it."""
    found = []
    for file in sorted((ROOT / "docs" / "benchmarks" / "zoo").glob("*.json")):
        row = json.loads(file.read_text())
        family = zoo().entry(row["source"].partition("@")[0]).family
        times: dict[str, dict[str, float]] = {}
        for v in row["variants"]:
            if v["status"] == "ok" and v["static"] is None and v.get("p50_ms"):
                times.setdefault(v["id"].partition("@")[2], {})[v["target"]] = round(v["p50_ms"], 3)
        found += [favourites.EarlierRun(row["hardware"]["id"], family, device, ms) for device, ms in times.items()]
    favourites.SHIPPED.write_text(json.dumps(to_json(found), indent=1) + "\n")
    print(f"{favourites.SHIPPED}: {len(found)} records")


if __name__ == "__main__":
    main()
