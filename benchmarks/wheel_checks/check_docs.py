"""The site is built from the checkout by what the extra brings, with warnings as errors."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def main() -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "-f", str(ROOT / "mkdocs.yml"), "-d"]
    done = subprocess.run([*command, str(Path("site").absolute())], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    print(len(list(Path("site").rglob("*.html"))), "pages")


if __name__ == "__main__":
    main()
