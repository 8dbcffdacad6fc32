"""TorchScript files: recognised by content, held against rules, converted and compared."""

import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from accel.core.errors import InputError, StageError
from accel.exporters import describe, export_onnx, load
from accel.exporters.sources import recognise
from accel.exporters.torchscript import read_script

pytestmark = pytest.mark.filterwarnings("ignore")  # torch's own, about TorchScript
SHAPE = {"x": (1, 8)}


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one = torch.nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.one(x).relu()


class Waits(Net):
    """Keeps what it saw: the next answer depends on it."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += 1
        return self.one(x) if self.seen % 2 else x[:, :3]


class Rate(Net):
    def forward(self, x: torch.Tensor, rate: int) -> torch.Tensor:
        return self.one(x) * rate


class Saves(Net):
    """Would write a file of the machine that converts it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch.save(x, "/tmp/accel-was-here")
        return self.one(x)


def saved(tmp_path: Path, module: torch.nn.Module, name: str = "net.pt") -> Path:
    torch.manual_seed(0)
    torch.jit.script(module.eval()).save(str(tmp_path / name))
    return tmp_path / name


@pytest.mark.parametrize("name", ["net.pt", "net.pth", "net.jit", "net.ts"])
def test_an_archive_is_recognised_by_its_content(tmp_path: Path, name: str) -> None:
    assert recognise(str(saved(tmp_path, Net(), name))).kind == "torchscript"
    torch.save(Net().state_dict(), tmp_path / name)
    with pytest.raises(InputError, match="a pickle by its suffix" if name[4] == "p" else "not a model file"):
        recognise(str(tmp_path / name))


def test_a_script_is_converted_and_answers_as_torch_does(tmp_path: Path) -> None:
    path = saved(tmp_path, Net())
    source = describe(recognise(str(path), opt_shapes=SHAPE))
    assert (source.kind, source.name, source.inputs[0].dims) == ("torchscript", "net", ("batch", 8))
    export_onnx(source, tmp_path / "onnx")
    x = np.linspace(-1, 1, 24, dtype=np.float32).reshape(3, 8)
    expected = torch.jit.load(str(path))(torch.from_numpy(x)).detach().numpy()
    np.testing.assert_array_equal(load(source).run({"x": x})["output"], expected)


def test_a_traced_lstm_keeps_its_batch(tmp_path: Path) -> None:
    class Last(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = torch.nn.LSTM(8, 4, batch_first=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.lstm(x)[0][:, -1]

    torch.jit.trace(Last().eval(), torch.randn(2, 5, 8)).save(str(tmp_path / "last.jit"))
    source = describe(recognise(str(tmp_path / "last.jit"), opt_shapes={"x": (1, 5, 8)}))
    assert [s.dims for s in source.outputs] == [("batch", 4)]


@pytest.mark.parametrize(
    ("module", "error", "says"),
    [
        (Rate, InputError, "argument 'rate' of the TorchScript module is int"),
        (Waits, StageError, "cannot make an exported program|changed when it was converted|cannot run what it made"),
    ],
)
def test_what_cannot_be_converted_says_so(
    module: type[torch.nn.Module], error: type[Exception], says: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=says) as caught:
        describe(recognise(str(saved(tmp_path, module())), opt_shapes=SHAPE))
    assert caught.match("file.py:factory")


class Dropped(Net):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.dropout = torch.nn.LSTM(8, 8, num_layers=2), torch.nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.one(self.dropout(self.lstm(x[:, None])[0][:, 0]))


@pytest.mark.parametrize(("dropout", "says"), [(0.5, "aten::dropout"), (0.0, None)])
def test_a_trace_in_training_mode_is_refused_where_it_drops_values(
    dropout: float, says: str | None, tmp_path: Path
) -> None:
    module = Dropped().train()
    module.dropout.p = dropout
    torch.jit.trace(module, torch.ones(1, 8), check_trace=False).save(str(tmp_path / "net.pt"))
    request = recognise(str(tmp_path / "net.pt"), opt_shapes=SHAPE)
    if says is None:
        describe(request)
        return
    with pytest.raises(InputError, match=rf"in training mode: its {says}(.|\n)*after model.eval\(\)"):
        describe(request)


def rewritten(path: Path, change: Callable[[str, bytes], bytes], more: tuple[str, ...] = ()) -> Path:
    """Write the archive again, record by record."""
    with zipfile.ZipFile(path) as old:
        records = [(i, old.read(i)) for i in old.infolist()]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as new:
        for info, data in records:
            new.writestr(info.filename, change(info.filename, data))
        for name in more:
            new.writestr(name, b"")
    return path


@pytest.mark.parametrize(
    "line",
    [
        'torch.save(x, "/tmp/accel-was-here")',
        'ops.aten.save(x, "/tmp/accel-was-here")',
        'x.save("/tmp/accel-was-here")',
        "ops.rpc.rpc_sync(x)",
        "o = ops",
        'torch.from_file("/etc/passwd")',
        "c = __torch__.torch.classes.own.Thing()",
        "import os",
    ],
)
def test_code_that_does_more_than_compute_is_never_loaded(line: str, tmp_path: Path) -> None:
    def change(name: str, data: bytes) -> bytes:
        return data.replace(b"    one = self.one", f"    {line}\n    one = self.one".encode())

    path = rewritten(saved(tmp_path, Net()), change)
    with pytest.raises(InputError, match=r"calls|uses operators|imports"):
        read_script(path)
    assert not Path("/tmp/accel-was-here").exists()


def test_a_script_that_saves_is_refused_as_torch_writes_it(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"calls 'torch.save'"):
        read_script(saved(tmp_path, Saves()))


@pytest.mark.parametrize("name", ["data.pkl", "constants.pkl"])
def test_a_pickle_of_more_than_tensors_is_never_loaded(name: str, tmp_path: Path) -> None:
    attack = b"cos\nsystem\n(S'touch /tmp/accel-was-here'\ntR."
    path = rewritten(saved(tmp_path, Net()), lambda n, data: attack if n.endswith(name) else data)
    with pytest.raises(InputError, match="names 'os system'"):
        read_script(path)
    assert not Path("/tmp/accel-was-here").exists()


def test_two_records_of_one_name_are_refused(tmp_path: Path) -> None:
    path = rewritten(saved(tmp_path, Net()), lambda n, data: data, more=("net/DATA.pkl",))
    with pytest.raises(InputError, match="two records of one name"):
        read_script(path)


@pytest.mark.parametrize("cut", [100, -40])
def test_a_truncated_archive_is_an_error_that_says_so(cut: int, tmp_path: Path) -> None:
    path = saved(tmp_path, Net())
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(InputError, match=r"cannot load|is a pickle"):
        read_script(path)
