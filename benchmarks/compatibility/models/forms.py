"""PyTorch as people have it: the network is small and known, how it is wrapped, fed or answered is what is tried."""

import copy
from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

ROWS = {"x": torch.linspace(-1, 1, 64).reshape(4, 16)}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(16, 32), nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.two(self.one(x).relu())


def _pictures() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)
    )


def scripted() -> Any:
    return torch.jit.script(Net()), ROWS


def traced() -> Any:
    return torch.jit.trace(_pictures().eval(), torch.randn(1, 3, 32, 32)), torch.randn(2, 3, 32, 32)


def compiled() -> Any:
    return torch.compile(Net()), ROWS


def data_parallel() -> Any:
    return nn.DataParallel(_pictures()), torch.randn(2, 3, 32, 32)


def dynamically_quantised() -> Any:
    return torch.ao.quantization.quantize_dynamic(Net().eval(), {nn.Linear}), ROWS


def half() -> Any:
    return Net().half(), {"x": ROWS["x"].half()}


def bfloat16() -> Any:
    return Net().bfloat16(), ROWS


def double() -> Any:
    return Net().double(), {"x": ROWS["x"].double()}


def double_samples() -> Any:
    return Net(), {"x": ROWS["x"].numpy().astype("float64")}


def list_of_samples() -> Any:
    return Net(), [{"x": torch.randn(1, 16)} for _ in range(40)]


def one_row() -> Any:
    """A single row, without a batch axis."""
    return Net(), {"x": torch.randn(16)}


class TwoTensors(nn.Module):
    """A tuple of tensors as one argument."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Net()

    def forward(self, pair: tuple[Tensor, Tensor]) -> Tensor:
        return self.net(pair[0]) + self.net(pair[1])


def tuple_argument() -> Any:
    return TwoTensors(), {"pair": (torch.randn(2, 16), torch.randn(2, 16))}


class ManyTensors(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = Net()

    def forward(self, parts: list[Tensor]) -> list[Tensor]:
        return [self.net(part) for part in parts]


def list_argument() -> Any:
    return ManyTensors(), {"parts": [torch.randn(2, 16), torch.randn(2, 16)]}


class Nested(nn.Module):
    """A dict of tensors in, a nested dict out."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Net()

    def forward(self, batch: dict[str, Tensor]) -> dict[str, Any]:
        found = self.net(batch["x"]) * batch["weight"]
        return {"scores": found, "parts": {"best": found.amax(-1), "all": [found.sum(-1), found.mean(-1)]}}


def nested_dicts() -> Any:
    return Nested(), {"batch": {"x": torch.randn(2, 16), "weight": torch.rand(2, 1)}}


class NestedOutput(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = Net()

    def forward(self, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        found = self.net(x)
        return found, {"best": found.amax(-1), "probabilities": found.softmax(-1)}


def nested_output() -> Any:
    return NestedOutput(), ROWS


class Optional(nn.Module):
    """An input that may be left out, and a keyword that is a flag."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Net()

    def forward(self, x: Tensor, mask: Tensor | None = None, *, normalise: bool = True) -> Tensor:
        found = self.net(x if mask is None else x * mask)
        return F.normalize(found) if normalise else found


def optional_left_out() -> Any:
    return Optional(), ROWS


def optional_given() -> Any:
    return Optional(), {**ROWS, "mask": torch.ones(4, 16)}


class Keywords(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = Net()

    def forward(self, **inputs: Tensor) -> Tensor:
        return self.net(inputs["left"]) - self.net(inputs["right"])


def keywords() -> Any:
    return Keywords(), {"left": torch.randn(2, 16), "right": torch.randn(2, 16)}


class Starred(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = Net()

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.net(inputs[0]) - self.net(inputs[1])


def starred() -> Any:
    return Starred(), (torch.randn(2, 16), torch.randn(2, 16))


@dataclass
class Found:
    scores: Tensor
    best: Tensor | None = None


class DataclassOutput(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = Net()

    def forward(self, x: Tensor) -> Found:
        scores = self.net(x)
        return Found(scores, scores.argmax(-1))


def dataclass_output() -> Any:
    return DataclassOutput(), ROWS


Pair = namedtuple("Pair", ["scores", "best"])


class NamedTupleOutput(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = Net()

    def forward(self, x: Tensor) -> Pair:
        scores = self.net(x)
        return Pair(scores, scores.argmax(-1))


def namedtuple_output() -> Any:
    return NamedTupleOutput(), ROWS


class ModelOutputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = Net()

    def forward(self, x: Tensor) -> Any:
        from transformers.modeling_outputs import SequenceClassifierOutput

        return SequenceClassifierOutput(logits=self.net(x), hidden_states=(x, self.net.one(x)))


def model_output() -> Any:
    return ModelOutputs(), ROWS


class Scalar(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = Net()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        found = self.net(x)
        return found, found.mean()


def scalar_output() -> Any:
    return Scalar(), ROWS


class ScalarInput(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = Net()

    def forward(self, x: Tensor, temperature: Tensor) -> Tensor:
        return (self.net(x) / temperature).softmax(-1)


def scalar_input() -> Any:
    return ScalarInput(), {**ROWS, "temperature": torch.tensor(0.7)}


class Decisions(nn.Module):
    """Integers, booleans and text-like ids come out."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Net()

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        found = self.net(x)
        return {"class": found.argmax(-1), "sure": found.softmax(-1).amax(-1) > 0.5, "order": found.argsort(-1)}


def decisions() -> Any:
    return Decisions(), ROWS


class Dropping(nn.Module):
    """Dropout left on by mistake: no two runs agree."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Net()

    def forward(self, x: Tensor) -> Tensor:
        return self.net(F.dropout(x, 0.5))


def dropout_left_on() -> Any:
    return Dropping(), ROWS


class Counting(nn.Module):
    """A buffer changes with every call, and the answer with it."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Net()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.net(x) + self.calls


def changing_buffer() -> Any:
    return Counting(), ROWS


class Branching(nn.Module):
    """Control flow that depends on values."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Net()

    def forward(self, x: Tensor) -> Tensor:
        found = self.net(x)
        return found * 2 if found.sum() > 0 else found - 1


def data_dependent() -> Any:
    return Branching(), ROWS


class Filtering(nn.Module):
    """The output's length depends on values."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Net()

    def forward(self, x: Tensor) -> Tensor:
        found = self.net(x)
        return found[found.amax(-1) > 0]


def data_dependent_shape() -> Any:
    return Filtering(), ROWS


class Tied(nn.Module):
    """The second input's length is that of the first, doubled."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Net()

    def forward(self, short: Tensor, long: Tensor) -> Tensor:
        return self.net(short.repeat(1, 2, 1) + long)


def tied_shapes() -> Any:
    return Tied(), [{"short": torch.randn(1, n, 16), "long": torch.randn(1, 2 * n, 16)} for n in (3, 5, 8)]


class Straight(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.sign()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad


class Binarised(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = Net()

    def forward(self, x: Tensor) -> Tensor:
        return self.net(Straight.apply(x + 0.05))


def custom_function() -> Any:
    return Binarised(), ROWS


def parametrised() -> Any:
    net = Net()
    nn.utils.parametrizations.spectral_norm(net.one)
    nn.utils.parametrizations.weight_norm(net.two)
    return net, ROWS


def shared_weights() -> Any:
    layer = nn.Linear(16, 16)
    return nn.Sequential(layer, nn.ReLU(), layer, nn.Tanh(), layer), {"input": ROWS["x"]}


def hooked() -> Any:
    net = Net()
    net.one.register_forward_hook(lambda module, args, found: found * 2)
    return net, ROWS


class Counter(nn.Module):
    """Reads the number of rows as a Python number, and keeps numbers in plain attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.scale, self.seen = Net(), 0.5, []

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(x.shape[0])
        return self.net(x) * self.scale / x.size(0)


def remembers() -> Any:
    return Counter(), ROWS


def ensemble() -> Any:
    """Five copies, run by vmap over stacked weights."""
    nets = [Net() for _ in range(5)]
    params, buffers = torch.func.stack_module_state(nets)
    base = copy.deepcopy(nets[0]).to("meta")

    class Stacked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weights = nn.ParameterDict({k.replace(".", "_"): nn.Parameter(v) for k, v in params.items()})

        def forward(self, x: Tensor) -> Tensor:
            weights = {k: self.weights[k.replace(".", "_")] for k in params}
            each = torch.func.vmap(lambda w: torch.func.functional_call(base, (w, buffers), (x,)))
            return each(weights).mean(0)

    return Stacked(), ROWS


class FirstOfMany(nn.Module):
    """Large integers as ids, more than INT32 holds."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(97, 8)

    def forward(self, ids: Tensor) -> Tensor:
        return self.embed(ids % 97).sum(1)


def hashed_ids() -> Any:
    return FirstOfMany(), {"ids": torch.randint(0, 2**40, (4, 6))}


class Bytes(nn.Module):
    """Pictures as bytes, channels last, normalised inside."""

    def __init__(self) -> None:
        super().__init__()
        self.net = _pictures()

    def forward(self, image: Tensor) -> Tensor:
        return self.net(image.permute(0, 3, 1, 2).float() / 255)


def byte_pictures() -> Any:
    return Bytes(), {"image": torch.randint(0, 256, (2, 32, 32, 3), dtype=torch.uint8)}


def bare_module() -> Any:
    """Neither samples nor shapes: nothing says what the input is."""
    return Net()


def write_torchscript(path: str) -> None:
    """A TorchScript file, as older releases gave them to clients."""
    torch.manual_seed(0)
    torch.jit.trace(_pictures().eval(), torch.randn(1, 3, 32, 32)).save(path)


def write_state_dict(path: str) -> None:
    torch.manual_seed(0)
    torch.save(Net().state_dict(), path)


def write_exported(path: str, dynamic: bool) -> None:
    torch.manual_seed(0)
    shapes = {"x": {0: torch.export.Dim("batch", max=16)}} if dynamic else None
    torch.export.save(torch.export.export(Net().eval(), (ROWS["x"],), dynamic_shapes=shapes), path)
