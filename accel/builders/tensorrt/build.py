"""A typed ONNX file into a TensorRT plan: parse, configure, build, keep the kernel timings.

The network is always strongly typed: its precisions are those of the ONNX file, on TensorRT 10 as on 11. Polygraphy's
profile, configuration and build loaders are used, whose calls exist in both; parsing is done through the API itself,
since Polygraphy's parser loses the node and the operator of an error.
"""

import contextlib
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from accel.builders.tensorrt.library import Log
from accel.builders.tensorrt.options import TensorRtOptions
from accel.core import environments
from accel.core.errors import StageError
from accel.core.values import ShapeRange


def build_plan(
    trt: Any,
    log: Log,
    onnx: Path,
    plan: Path,
    *,
    profile: Mapping[str, ShapeRange],
    options: TensorRtOptions,
    tf32: bool,
    timings: Path | None,
    report_progress: Callable[[str], None],
) -> None:
    """Build ``onnx`` into ``plan``, for the shapes of ``profile``.

    Args:
        trt: the imported package.
        tf32: whether FP32 products may round their inputs to TF32; set or cleared explicitly, since TensorRT's default
            (on) and Polygraphy's (off) differ.
        timings: file with kernel timings of earlier builds, extended by this one; None keeps none.
        report_progress: takes a short phrase for each step of the build.

    Raises:
        UnavailableError: CUDA does not start, or the driver is too old.
        StageError: the parser does not know an operator, memory ran out, or TensorRT found no way to build it.
        KeyboardInterrupt: the user stopped the build.
    """
    from polygraphy.backend.trt import CreateConfig, Profile, engine_bytes_from_network
    from polygraphy.exception import PolygraphyException

    builder = create(lambda: trt.Builder(log.logger), log, "TensorRT's builder cannot be made")
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    if network is None:
        raise log.failure("TensorRT makes no strongly typed network")
    parser = create(lambda: trt.OnnxParser(network, log.logger), log, "TensorRT's ONNX parser cannot be made")
    log.clear()
    if not parser.parse_from_file(str(onnx)):
        raise _unparsed(parser, log, onnx)
    shapes = Profile()
    for name, range_ in profile.items():
        shapes.add(name, min=range_.min, opt=range_.opt, max=range_.max)
    monitor = _monitor(trt, report_progress)
    levels = trt.HardwareCompatibilityLevel
    if timings is not None:
        with contextlib.suppress(OSError):
            timings.parent.mkdir(parents=True, exist_ok=True)
        if not os.access(timings.parent, os.W_OK):
            timings = None  # in a sandbox: TensorRT measures anew
    workspace = {trt.MemoryPoolType.WORKSPACE: options.workspace_mib << 20} if options.workspace_mib else None
    log.clear()
    try:
        configure = CreateConfig(
            profiles=[shapes],
            tf32=tf32,
            load_timing_cache=str(timings) if timings is not None and timings.exists() else None,
            memory_pool_limits=workspace,
            builder_optimization_level=options.optimization_level,
            profiling_verbosity=trt.ProfilingVerbosity.DETAILED,  # the inspector then tells each layer's precision
            hardware_compatibility_level=(
                None
                if options.hardware_compatibility == "none"
                else getattr(levels, options.hardware_compatibility.upper())
            ),
            version_compatible=options.version_compatible,
            refittable=options.weights == "refittable",
            strip_plan=options.weights == "stripped",
            weight_streaming=options.weight_streaming,
            progress_monitor=monitor,
        )
        built = engine_bytes_from_network(
            (builder, network, parser),
            config=configure,
            save_timing_cache=str(timings) if timings is not None else None,
        )
    except PolygraphyException as error:
        if monitor.stopped:
            raise KeyboardInterrupt from None
        raise log.failure(f"TensorRT {trt.__version__} could not build {onnx.name} ({error})") from error
    plan.write_bytes(bytes(built))


def timing_file(gpu: str, version: str) -> Path:
    """Return where kernel timings for one GPU model and one TensorRT version are kept."""
    name = re.sub(r"[^A-Za-z0-9.]+", "-", f"{gpu}-tensorrt-{version}").strip("-").lower()
    return environments.home() / "timing-caches" / f"{name}.bin"


def create(make: Callable[[], Any], log: Log, what: str) -> Any:
    """Make one of TensorRT's objects; the bindings raise TypeError where the library returns none.

    Raises:
        UnavailableError: CUDA does not start, or the driver is too old.
        StageError: another cause, in TensorRT's words.
    """
    log.clear()
    try:
        made = make()
    except TypeError as error:
        raise log.failure(what) from error
    if made is None:
        raise log.failure(what)
    return made


def _unparsed(parser: Any, log: Log, onnx: Path) -> StageError:
    """Name every node that the parser refused, with its operator and the parser's reason."""
    lines = []
    operators = []
    for index in range(parser.num_errors):
        error = parser.get_error(index)
        operator, node = error.node_operator(), error.node_name()
        operators.append(operator or "a node")
        lines.append(f"{operator or 'node'} {node or f'number {error.node()}'!s}: {error.desc()}")
    if not lines:
        return log.failure(f"TensorRT's parser cannot read {onnx.name}")  # type: ignore[return-value]
    names = ", ".join(dict.fromkeys(operators))
    return StageError(
        f"TensorRT's parser refuses {len(lines)} node(s) of {onnx.name}: " + "; ".join(lines[:5]),
        fix=f"replace {names} in the model by operators of TensorRT's support matrix, or serve it with another target",
    )


def _monitor(trt: Any, report_progress: Callable[[str], None]) -> Any:
    """Make the progress monitor of one build; its ``stopped`` says whether the user ended it."""

    class Monitor(trt.IProgressMonitor):
        """Counts the steps of the outermost phase, and ends the build on Ctrl-C.

        TensorRT calls back on the thread that builds, so a Ctrl-C that Python noted meanwhile is raised in here.
        """

        def __init__(self) -> None:
            trt.IProgressMonitor.__init__(self)
            self.stopped = False
            self._steps: dict[str, int] = {}
            self._outer: str | None = None

        def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
            with self._guard():
                if not parent_phase:
                    self._outer = phase_name
                self._steps[phase_name] = num_steps
                report_progress(phase_name.lower())

        def step_complete(self, phase_name: str, step: int) -> bool:
            with self._guard():
                if phase_name == self._outer:
                    report_progress(f"{phase_name.lower()} {step + 1}/{self._steps[phase_name]}")
            return not self.stopped

        def phase_finish(self, phase_name: str) -> None:
            with self._guard():
                self._steps.pop(phase_name, None)

        @contextlib.contextmanager
        def _guard(self) -> Iterator[None]:
            try:
                yield
            except KeyboardInterrupt:
                self.stopped = True

    return Monitor()
