"""The real Python bindings of two TensorRT majors, over libraries that make nothing.

Run as a script, it fetches and builds them once, below this environment; the tests do so themselves where nobody did.
"""

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

VERSIONS = ("10.16.1.11", "11.4.0.106")
LIBRARIES = ("nvinfer", "nvinfer_plugin", "nvonnxparser")
HERE = Path(__file__).resolve().parent


def bindings(version: str) -> Path:
    """Return the folder to import ``tensorrt_bindings`` from; fetched by pip and compiled where it is not there yet.

    Raises:
        RuntimeError: pip or the compiler failed; the message holds what they said.
    """
    folder = Path(sys.prefix) / "accel-tensorrt-bindings" / version
    if (folder / "complete").exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        made = Path(scratch) / "made"
        wheel = f"tensorrt-cu13-bindings=={version}"
        _run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", scratch, wheel])
        with zipfile.ZipFile(next(Path(scratch).glob("*.whl"))) as archive:
            archive.extractall(made)
        major = version.partition(".")[0]
        for name in LIBRARIES:
            library = f"lib{name}.so.{major}"
            out = made / "tensorrt_bindings" / library
            _run(["gcc", "-shared", "-fPIC", f"-Wl,-soname,{library}", "-o", str(out), str(HERE / "stub.c")])
        (made / "complete").write_text(version)
        try:
            made.rename(folder)
        except OSError:  # another process was faster
            if not (folder / "complete").exists():
                raise
    return folder


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}\n{done.stdout}{done.stderr}")


if __name__ == "__main__":
    for wanted in VERSIONS:
        print(bindings(wanted))
