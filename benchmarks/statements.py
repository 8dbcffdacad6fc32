"""How many statements ``accel/`` has, and by how many each commit changed that.

    python benchmarks/statements.py -o docs/benchmarks/statements.json

Statements are those of Python's ``ast``. Of a commit, only files below ``accel/`` count; merges are left out.
"""

import argparse
import ast
import json
import subprocess
from pathlib import Path


def git(*words: str) -> str:
    """Return what git prints."""
    return subprocess.run(["git", *words], capture_output=True, text=True, check=True).stdout


def statements(revision: str, file: str) -> int:
    """Return the statements of a file at a revision; 0 where it is not there."""
    found = subprocess.run(["git", "show", f"{revision}:{file}"], capture_output=True, text=True, check=False)
    return sum(isinstance(node, ast.stmt) for node in ast.walk(ast.parse(found.stdout))) if not found.returncode else 0


def whole(revision: str) -> int:
    """Return the statements of all files at a revision."""
    files = git("ls-tree", "-r", "--name-only", revision, "accel/").splitlines()
    return sum(statements(revision, file) for file in files if file.endswith(".py"))


def main() -> None:
    """Count, and write JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--since", default="6c65654^", help="the commit before the house's first")
    parser.add_argument("-o", "--out", type=Path, required=True)
    asked = parser.parse_args()
    rows = []
    for commit in git("log", "--format=%h", "--reverse", "--no-merges", f"{asked.since}..HEAD").split():
        files = git("diff-tree", "-r", "--no-renames", "--no-commit-id", "--name-only", commit).splitlines()
        changed = [f for f in files if f.startswith("accel/") and f.endswith(".py")]
        by = sum(statements(commit, f) - statements(f"{commit}^", f) for f in changed)
        if by:
            rows.append({"commit": commit, "what": git("log", "-1", "--format=%s", commit).strip(), "by": by})
    fewer = sum(row["by"] for row in rows if row["by"] < 0)
    before, now = whole(asked.since), whole("HEAD")
    told = {
        "commit": git("rev-parse", "--short", "HEAD").strip(),
        "before": before,
        "now": now,
        "fewer": fewer,
        "fewer_share": fewer / before,
        "commits": rows,
    }
    asked.out.write_text(json.dumps(told, indent=1) + "\n")
    print({name: told[name] for name in ("before", "now", "fewer", "fewer_share")})


if __name__ == "__main__":
    main()
