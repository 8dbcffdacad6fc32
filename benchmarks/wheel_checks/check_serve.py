"""Both clients of Triton can be imported, and the command says what a server here would be."""

import subprocess
import sys

import tritonclient.grpc
import tritonclient.http


def main() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "accel", "serve", "nowhere"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2, done
    assert "config.pbtxt" in done.stderr, done.stderr
    print(tritonclient.grpc.__name__, tritonclient.http.__name__)


if __name__ == "__main__":
    main()
