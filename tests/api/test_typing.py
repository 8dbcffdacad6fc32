"""A user's file that uses all of the API passes ``mypy --strict``."""

import subprocess
import sys
from pathlib import Path

import accel

USER = """
from pathlib import Path

import numpy as np

import accel


def watch(event: accel.Event) -> None:
    print(event.kind, event.id, event.text, event.ok)


async def main(module: object, batches: list[dict[str, np.ndarray]]) -> None:
    result = accel.optimize(
        module, samples=batches, targets="cpu", gate={"int8": 25.0}, objective="latency", budget_s=600.0,
        out="runs/mine", progress=watch, threads=2,
    )
    y = result.best(**batches[0])
    z = await result.best.async_call(**batches[0])
    print(y, z)
    variant = result.variants["openvino-int8@cpu"]
    speedup: float | None = variant.speedup
    p50: float | None = variant.p50_ms
    repository: Path | None = variant.repository
    passed: bool = variant.parity is not None and variant.parity.passed
    reason: str = result.decision.reason
    page: Path = result.report("r.html")
    print(speedup, p50, repository, passed, reason, page, variant.artifact.bytes)
    with accel.load("runs/mine/best/cpu", threads=1, mode="throughput") as model:
        outputs: dict[str, np.ndarray] = model.run(batches[0])
        print(outputs, model.id, model.inputs)
    with accel.serve("runs/mine/best/cpu") as server:
        print(server.endpoint.grpc, server(**batches[0]).logits, server.client)
    source = accel.describe("model.onnx", samples=batches, out="runs/steps")
    onnx = accel.export(source)
    artifact = accel.build("ort", source)
    parity = accel.compare(artifact, source)
    own = accel.compare(lambda feed: dict(feed), source, precision="int8")
    root: Path = accel.emit(artifact, source)
    points = accel.measure([artifact], source, objective="throughput")
    decision = accel.decide(points, constraints=accel.Constraints(max_p99_ms=5.0))
    print(onnx.value.ops, parity.passed, own.reasons, root, decision.chosen, source.value.source.inputs)
    parts = accel.optimize_parts(module, ["encoder"], run=lambda text: text, samples=["a"], targets="ort")
    print(parts.speedup, parts.parts["encoder"].best)
    before: object = accel.replace(module, "encoder", result.best)
    print(before, accel.NEWEST)
    try:
        accel.convert(accel.Job(source="bert", targets="ort"))
    except accel.AccelError as error:
        print(error.message, error.fix)
    result.close()
"""


WRONG = """
import accel

print(accel.load("x").nothing, accel.optimize("bert", budget_s="soon"))
"""


def test_a_users_file_is_typed_and_a_wrong_use_is_found(tmp_path):
    (tmp_path / "user.py").write_text(USER)
    (tmp_path / "wrong.py").write_text(WRONG)
    root = Path(accel.__file__).parents[1]
    files = [str(tmp_path / "user.py"), str(tmp_path / "wrong.py")]
    command = [sys.executable, "-m", "mypy", "--strict", *files]  # in the project's folder: its settings and its cache
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=root)
    own = [line for line in done.stdout.splitlines() if "user.py" in line or "wrong.py" in line]  # an installed
    found = [line for line in own if ": error:" in line]  # package's own errors no user sees
    assert not [line for line in found if "wrong.py" not in line], done.stdout
    assert len(found) == 2, done.stdout
    assert (root / "accel" / "py.typed").is_file()
