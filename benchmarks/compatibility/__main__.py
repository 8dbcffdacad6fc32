"""Convert the models that strangers bring, and write down what becomes of each.

    python -m benchmarks.compatibility list
    python -m benchmarks.compatibility run onnx/silero-vad torch/unet --targets ort,openvino
    python -m benchmarks.compatibility run --sample 25
    python -m benchmarks.compatibility run --all
    python -m benchmarks.compatibility table

A source named by the beginning of its id stands for all that begin so. Each leaves one JSON file under ``--out``; the
runs themselves are deleted unless ``--keep`` is given. Real files need their packages: see ``packages.py``.
"""

import argparse
import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from accel.core.files import write_text
from benchmarks.compatibility import forked, listing, running
from benchmarks.compatibility.source import KINDS, Kind, Source

OUT = Path("runs/compatibility")
PAGE = Path("docs/compatibility.md")
ROWS = Path("docs/benchmarks/compatibility.json")


def show() -> None:
    """Print every source and the counts."""
    for source in listing.SOURCES:
        marks = "operator" if source.operator else "message" if source.wants == "message" else ""
        print(f"{source.id:<48} {source.architecture:<32} {marks:<9} {source.origin}")
    print()
    for kind, count, architectures, operators in listing.counts():
        print(f"{kind:<12} {count:>4} sources, {architectures:>4} architectures, {operators:>4} operator cases")


def run(asked: argparse.Namespace) -> bool:
    """Run the sources asked for, one after another; returns whether one ended in a traceback."""
    if asked.sample is not None:
        sources = listing.sample(asked.sample, asked.seed)
    else:
        sources = list(listing.SOURCES) if asked.all else listing.chosen(asked.names)
    if not sources:
        raise SystemExit("name sources, or give --sample N or --all")
    if not asked.warm:
        return sum(_row(source, asked) for source in sources) > 0
    found = False
    for kind in KINDS:
        own = [s for s in sources if s.kind == kind and not (asked.missing and _file(s, asked.out).exists())]
        if own:
            found |= forked.apart(lambda own=own, kind=kind: _warm(kind, own, asked)) != 0
    return found


def _warm(kind: Kind, sources: Sequence[Source], asked: argparse.Namespace) -> int:
    forked.prepare(kind)
    return min(1, sum(_row(source, asked) for source in sources))


def _file(source: Source, out: Path) -> Path:
    return out / "rows" / f"{source.id.replace('/', '__')}.json"


def _row(source: Source, asked: argparse.Namespace) -> bool:
    """Run one source, write its row and print its verdict; returns whether it ended in a traceback."""
    file = _file(source, asked.out)
    if asked.missing and file.exists():
        return False
    row = running.run(source, asked.targets, asked.out / "work", limit_s=asked.limit_s, warm=asked.warm)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_text(file, json.dumps(row, indent=1) + "\n")
    if not asked.keep:
        shutil.rmtree(asked.out / "work" / source.id, ignore_errors=True)
    word = running.verdict(row)
    why = "" if word == "passes" else " ".join((row["error"] or "").split())[:150]
    print(f"{row['seconds']:>6.1f} s  {word:<11} {source.id:<44} {why}", flush=True)
    return bool(row["traceback"])


def main() -> int:
    """Parse and do."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="every source, and how many there are")
    one = commands.add_parser("make", help="write one source into a folder")
    one.add_argument("name")
    one.add_argument("folder", type=Path)
    some = commands.add_parser("run", help="convert sources and write down what becomes of them")
    some.add_argument("names", nargs="*")
    some.add_argument("--all", action="store_true")
    some.add_argument("--sample", type=int, help="so many, of all kinds alike")
    some.add_argument("--seed", type=int, default=0, help="decides which are drawn")
    some.add_argument("--targets", default="cpu")
    some.add_argument("--limit-s", type=float, default=300.0, help="for making, and for converting, each")
    some.add_argument(
        "--warm", action="store_true", help="fork accel and its workers: imports are paid for once a kind"
    )
    some.add_argument("--missing", action="store_true", help="leave out what has a row already")
    some.add_argument("--keep", action="store_true", help="keep the sources and run directories")
    some.add_argument("--out", type=Path, default=OUT)
    page = commands.add_parser("table", help=f"write {PAGE} from the rows")
    page.add_argument("--out", type=Path, default=OUT)
    page.add_argument("--page", type=Path, default=PAGE)
    page.add_argument("--rows", type=Path, default=ROWS, help="file that keeps the rows")
    asked = parser.parse_args()
    if asked.command == "list":
        show()
        return 0
    if asked.command == "make":
        return running.make(listing.BY_ID[asked.name], asked.folder)
    if asked.command == "run":
        return int(run(asked))
    from benchmarks.compatibility import table

    rows = [json.loads(path.read_text()) for path in sorted((asked.out / "rows").glob("*.json"))]
    table.store(rows, asked.rows)
    table.write([table.compact(row) for row in rows], asked.page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
