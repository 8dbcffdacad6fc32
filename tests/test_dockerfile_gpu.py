"""What can be said of Dockerfile.gpu without docker: it starts from a release that is known, and ends as it should."""

import re
import tomllib
from pathlib import Path

from accel.triton.launch import image
from accel.triton.releases import RELEASES

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "Dockerfile.gpu").read_text()


def test_it_starts_from_a_release_whose_tensorrt_is_known():
    name = re.search(r"^ARG TRITON=(\S+)$", TEXT, re.MULTILINE)[1]
    assert RELEASES[name].tensorrt is not None
    base = re.search(r"^FROM (\S+)$", TEXT, re.MULTILINE)[1]
    assert base.replace("${TRITON}", name) == image(RELEASES[name])


def test_it_runs_accel_as_no_root():
    users = re.findall(r"^USER (\S+)$", TEXT, re.MULTILINE)
    assert users[-1] == "accel"
    assert re.search(r'^ENTRYPOINT \["accel"\]$', TEXT, re.MULTILINE)


def test_it_installs_extras_that_exist():
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    asked = re.findall(r"/opt/accel/source\[([a-z,]+)\]", TEXT)
    assert asked
    assert {extra for group in asked for extra in group.split(",")} <= known.keys()


def test_the_version_is_read_from_the_library(tmp_path):
    """The words between ``sed`` and the package's name, on a folder that looks like an image's."""
    import subprocess

    library = tmp_path / "libnvinfer.so.10"
    (tmp_path / "libnvinfer.so.10.16.1").write_text("")
    library.symlink_to("libnvinfer.so.10.16.1")
    step = TEXT[TEXT.index("RUN set -eu; \\") + 4 : TEXT.index("\nCOPY")].replace("\\\n", " ")
    listed = f"\tlibnvinfer.so.10 (libc6,x86-64) => {library}\n\tlibnvinfer_plugin.so.10 (libc6) => {library}_plugin\n"
    script = f"ldconfig() {{ cat <<'E'\n{listed}E\n}}\npython() {{ echo \"$@\"; }}\n{step}"
    done = subprocess.run(
        ["sh", "-c", script], capture_output=True, text=True, env={"CUDA_VERSION": "13.0.2", "PATH": "/usr/bin:/bin"}
    )
    assert "tensorrt-cu13-bindings==10.16.1.*" in done.stdout, done.stderr
