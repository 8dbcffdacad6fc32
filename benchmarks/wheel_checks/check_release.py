"""A release of an ONNX file is built, signed, verified, published, promoted and pulled; to and from a folder."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

RELEASE = """
release: "1"
defaults: {objective: latency, rounds: 2, round_s: 0.02, threads: 1, max_shape: "x:4x8"}
pools:
  here: {device: cpu, targets: [ort]}
models:
  small: {source: small.onnx, samples: small.npz}
"""


def accel(*words: str) -> None:
    done = subprocess.run([sys.executable, "-m", "accel", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, (words, done.stdout[-1000:], done.stderr[-2000:])


def main(place: str) -> None:
    rng = np.random.default_rng(0)
    weight = numpy_helper.from_array(rng.standard_normal((8, 4)).astype(np.float32), "w")
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 8])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 4])
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "small", [x], [y], [weight])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), "small.onnx")
    np.savez("small.npz", x=rng.standard_normal((400, 8)).astype(np.float32))
    Path("release.yaml").write_text(RELEASE)
    subprocess.run(["openssl", "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", "key.pem"], check=True)
    subprocess.run(["openssl", "ec", "-in", "key.pem", "-pubout", "-out", "key.pub"], check=True, capture_output=True)
    accel("release", "build", "release.yaml", "--store", "store")
    accel("release", "sign", "store/1", "--key", "key.pem")
    accel("release", "verify", "store/1", "--key", "key.pub")
    accel("release", "publish", "store/1", "--to", place, "--key", "key.pub")
    accel("release", "promote", "1", "--to", place, "--key", "key.pub", "--sign", "key.pem")
    accel("release", "pull", "--to", place, "--key", "key.pub", "-o", "pulled")
    assert Path("pulled/1/release.json").read_bytes() == Path("store/1/release.json").read_bytes()
    print("built, signed, verified, published, promoted, pulled")


if __name__ == "__main__":
    main(f"file://{Path('place').absolute()}")
