"""Everything a user asks of one conversion: one model, of which every other form is made.

The flags of ``accel convert`` (``accel.cli.convert``), the keys of a job file (``accel convert -c job.yaml``), the
keyword arguments of ``accel.Job`` and what a deferred build takes to another machine are the fields of ``Job``. A new
option is a new field, with its default, its limits and its help.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    Field,
    InstanceOf,
    PlainValidator,
    WithJsonSchema,
    model_validator,
)
from pydantic.json_schema import SkipJsonSchema

from accel.bench.race import LEAST_ROUNDS
from accel.builders import SEARCH_S, targets
from accel.core import hardware, signing
from accel.core.accuracy.parity import GATES_DB
from accel.core.errors import InputError, UsageError, nearest
from accel.core.options import AboveZero, Options, OptionTrait, keys
from accel.core.values import GraphChoice, Target
from accel.core.yaml_file import read_yaml
from accel.exporters import OPSET, ensemble_request, sources
from accel.exporters.request import Pooling, SourceRequest, Weights
from accel.exporters.traffic import FROM_SAMPLES
from accel.graph import Level
from accel.run.decide import Constraints, Objective
from accel.triton import releases
from accel.triton.servers import Via

PYTHON_VARIANT = ".python"
"""What a repository's name ends in where the Python backend serves the same artifact as a native backend beside it."""
ROUTED_VARIANT = ".routed"
"""What its name ends in where a model before the native one groups requests by length."""


def _texts(given: Any) -> Sequence[str]:
    if isinstance(given, str):
        return [given]
    if not isinstance(given, list | tuple) or not all(isinstance(text, str) for text in given):
        raise ValueError("expected a text, or a list of them")
    return given


def names(given: Any) -> Any:
    """Read names given one by one, or several separated by commas."""
    if not isinstance(given, str | list | tuple):
        return given
    text = given if isinstance(given, str) else ",".join(map(str, given))
    return tuple(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))


def shapes(given: Any) -> Any:
    """Read shapes given as trtexec writes them; ``sources.parse_shapes``."""
    if isinstance(given, Mapping):
        return given
    return {name: shape for text in _texts(given) for name, shape in sources.parse_shapes(text).items()}


def ranges(given: Any) -> Any:
    """Read ranges given as ``NAME=LO:HI``; ``sources.parse_range``."""
    return given if isinstance(given, Mapping) else dict(sources.parse_range(text) for text in _texts(given))


def axis_names(given: Any) -> Any:
    """Read names of axes given as ``INPUT:POSITION=NAME``; ``sources.parse_axis_name``."""
    if isinstance(given, Mapping):
        return given
    return dict(sources.parse_axis_name(part) for text in _texts(given) for part in text.split(","))


def states(given: Any) -> Any:
    """Read states given as ``OUTPUT=INPUT``, and return them by input."""
    pairs = given.items() if isinstance(given, Mapping) else map(sources.parse_pair, _pairs(given))
    found: dict[str, str] = {}
    for output, input in pairs:
        if not isinstance(input, str):
            raise ValueError(f"{output}: {input!r} is not a name of an input")
        if found.setdefault(input, output) != output:
            raise UsageError(f"--state: the input {input!r} is given two outputs", fix="give each state one pair")
    return found


def pairs(given: Any) -> Any:
    """Read pairs given as ``NAME=VALUE``."""
    return given if isinstance(given, Mapping) else dict(map(sources.parse_pair, _pairs(given)))


def _pairs(given: Any) -> list[str]:
    return [part for text in _texts(given) for part in text.split(",")]


def _gates(given: Any) -> Any:
    if isinstance(given, Mapping):
        return given
    found = {}
    for text in _texts(given):
        name, _, value = text.partition("=")
        try:
            found[name.strip()] = float(value)
        except ValueError:
            found[name.strip()] = math.nan
        if not math.isfinite(found[name.strip()]):
            raise UsageError(
                f"--gate {text!r}: expected NAME=VALUE", fix=f"a precision ({', '.join(GATES_DB)}: dB) or a metric"
            )
    return found


def _targets(given: Mapping[str, Any]) -> tuple[Target, ...]:
    """Return the targets of fields that were read, each on the devices it is wanted for."""
    device = given.get("device")
    devices = (device,) if device else hardware.detect().devices
    return targets.parse(",".join(map(str, given["targets"])), devices=devices, only=device is not None)


def default_ints(given: Mapping[str, Any]) -> Level:
    """Return ``io`` where a runtime takes part that gains by int32 or forces it."""
    wanted = _targets(given) if "targets" in given else ()
    return "io" if any(targets.info(target).prefers_int32 for target in wanted) else "keep"


TEXTS: Any = str | list[str]
"""How a file gives names, shapes and the like, for its JSON Schema."""
Names = Annotated[tuple[str, ...], BeforeValidator(names, TEXTS), OptionTrait.REPEATED]
Shapes = Annotated[dict[str, tuple[int, ...]], BeforeValidator(shapes, TEXTS | dict[str, Any]), OptionTrait.REPEATED]
AxisNames = Annotated[dict[str, str], BeforeValidator(axis_names, TEXTS | dict[str, Any]), OptionTrait.REPEATED]
Ranges = Annotated[dict[str, tuple[int, int]], BeforeValidator(ranges, TEXTS | dict[str, Any]), OptionTrait.REPEATED]
States = Annotated[dict[str, str], BeforeValidator(states, TEXTS | dict[str, str]), OptionTrait.REPEATED]
Files = Annotated[dict[str, Path], BeforeValidator(pairs, TEXTS | dict[str, str]), OptionTrait.REPEATED]
Pairs = Annotated[dict[str, str], BeforeValidator(pairs, TEXTS | dict[str, str]), OptionTrait.REPEATED]
Gates = Annotated[dict[str, float], BeforeValidator(_gates, TEXTS | dict[str, Any]), OptionTrait.REPEATED]
Objectives = Annotated[tuple[Objective, ...], BeforeValidator(names, Objective | list[Objective]), Field(min_length=1)]


class Job(Options, BaseModel):
    """One conversion. A field with a description is a flag of ``accel convert``, under its alias where it has one.

    Attributes:
        source / targets: as ``accel convert`` takes them, or what ``recognise`` and ``parse_targets`` made of them.
        options: builder options by target name.
        triton: changes of the emitted configs, by target name (``""`` for all, ``NAME.python`` for what the Python
            backend serves), as the text of a partial ``config.pbtxt``; in a job file, fields of Triton's ModelConfig.
        command: shell line that repeats the job; written into run.json and the report.

    Raises:
        UsageError: an option that is missing, unknown, out of its limits, or contradicts another.
        InputError: the source or another file is missing or broken.
    """

    MISSING: ClassVar = {
        "source": "accel convert SOURCE --targets cpu; `accel zoo` lists known models",
        "targets": "--targets cpu, or --targets openvino,ort; `accel targets` lists them",
    }

    source: Annotated[
        str | SkipJsonSchema[InstanceOf[SourceRequest]],
        OptionTrait.ARGUMENT,
        Field(description="Zoo name, HF folder or hub id, file.py:factory, .pt2, .onnx, SavedModel, .keras, .pb"),
    ]
    targets: Annotated[
        str | tuple[str | Target, ...],
        BeforeValidator(names, json_schema_input_type=TEXTS),
        Field(description="Comma-separated, or cpu, gpu, all"),
    ]
    out: Annotated[Path | None, Field(description="Run directory  [default: runs/<model>]")] = None
    device: Annotated[Literal["cpu", "cuda"] | None, Field(description="Only this device: cpu or cuda")] = None
    weights: Annotated[Weights, Field(description="auto, pretrained or random")] = "auto"
    task: Annotated[str | None, Field(description="Hugging Face task or class, over the one in the config")] = None
    part: Annotated[
        str | None, Field(description="Part of a Hugging Face model: encoder, decoder, text, image or step")
    ] = None
    revision: Annotated[str | None, Field(description="Revision of a hub id")] = None
    pool: Annotated[
        Pooling | None,
        Field(
            description="One vector of each text: mean, cls, max, lasttoken, or none  [default: as modules.json of a "
            "sentence-transformers folder says]"
        ),
    ] = None
    signature: Annotated[
        str | None, Field(description="Signature of a SavedModel  [default: serving_default, or the only one]")
    ] = None
    input_tensors: Annotated[Names, Field(description="x:0,…  of a frozen graph  [default: its placeholders]")] = ()
    output_tensors: Annotated[Names, Field(description="y:0,…  of a frozen graph  [default: its only end]")] = ()
    inputs_as_nchw: Annotated[
        Names, Field(description="Inputs of a TensorFlow model that clients give with channels first")
    ] = ()
    samples: Annotated[str | None, Field(description=".npz, .jsonl or file.py:generator for calibration and gate")] = (
        None
    )
    random_samples: Annotated[bool, Field(description="Accept random values as samples")] = False
    metric: Annotated[
        str | None,
        Field(
            description="What variants must keep of the source's own score: accuracy, f1, mrr, cer or file.py:function"
        ),
    ] = None
    labels: Annotated[str | None, Field(description="Key of each sample that holds the right answer, for --metric")] = (
        None
    )
    ranges: Annotated[Ranges, Field(alias="range", description="NAME=LO:HI of an integer input")] = {}
    min_shapes: Annotated[Shapes, Field(alias="min_shape", description="input_ids:1x1,…")] = {}
    opt_shapes: Annotated[Shapes, Field(alias="shape", description="input_ids:1x128,…  the typical (opt) shape")] = {}
    max_shapes: Annotated[Shapes, Field(alias="max_shape", description="input_ids:16x512,…")] = {}
    multiples: Annotated[
        Shapes,
        Field(alias="multiple", description="images:1x1x32x32  what each axis is a multiple of  [default: found]"),
    ] = {}
    axis_names: Annotated[
        AxisNames, Field(alias="rename_axes", description="INPUT:POSITION=NAME of an ONNX file's axis")
    ] = {}
    states: Annotated[
        States,
        Field(alias="state", description="OUTPUT=INPUT of a stateful model: what a step leaves for the next"),
    ] = {}
    initial_states: Annotated[
        Files,
        Field(alias="initial_state", description="INPUT=FILE.npy  a state at the first step  [default: zeros]"),
    ] = {}
    io: Annotated[
        Pairs,
        Field(description="INPUT=uint8 or INPUT=fp16: what clients send of a float input; the model casts"),
    ] = {}
    mask: Annotated[
        str | None,
        Field(description="Input that is 0 at padding, or none  [default: attention_mask or input_mask]"),
    ] = None
    ints: Annotated[
        Level,
        Field(description="INT64 → INT32: keep, io or interior  [default: io or keep]"),
    ] = Field(default_factory=default_ints)
    allow_unproved_int64: Annotated[
        bool, Field(description="Accept runtimes that compute int64 as int32 where values are not proved to fit")
    ] = False
    static: Annotated[bool, Field(description="Also build for the one typical shape")] = False
    model_name: Annotated[str | None, Field(description="Name on the server")] = None
    model_version: Annotated[int, OptionTrait.CARRIED, Field(ge=1, description="Version folder on the server")] = 1
    quick: Annotated[
        bool, Field(description="A first verdict, by latency: only the targets that win most often for such models")
    ] = False
    traffic: Annotated[
        Path | None, Field(description="Recorded requests (.jsonl): length or shape of each, for the objective traffic")
    ] = None
    objectives: Annotated[
        Objectives,
        OptionTrait.CARRIED,
        Field(
            alias="objective",
            description="latency, throughput or traffic (requests of their own lengths)  [default: the first two, and "
            "traffic where --traffic is given]",
        ),
    ] = Field(
        default_factory=lambda given: (
            *(("latency",) if given.get("quick") else ("latency", "throughput")),
            *(("traffic",) if given.get("traffic") else ()),
        )
    )
    max_p99_ms: Annotated[AboveZero | None, Field(description="Constraint on the p99's upper bound")] = None
    min_throughput_per_s: Annotated[
        AboveZero | None, Field(alias="min_throughput", description="Constraint, items per second")
    ] = None
    max_memory_mib: Annotated[AboveZero | None, Field(description="Constraint on peak memory")] = None
    max_gpu_memory_mib: Annotated[AboveZero | None, Field(description="Constraint on memory of the GPU")] = None
    gates: Annotated[
        Gates,
        OptionTrait.CARRIED,
        Field(
            alias="gate",
            description="NAME=VALUE: int8=25 (dB), sqnr_db=40; accuracy=0.98 (share of the source's own score)",
        ),
    ] = {}
    required: Annotated[Names, Field(alias="require", description="Target that must end ok")] = ()
    timeout_s: Annotated[
        AboveZero, OptionTrait.CARRIED, Field(alias="timeout", description="Limit per build and measurement, s")
    ] = 1800.0
    threads: Annotated[
        int,
        Field(ge=1, description="CPU threads  [default: what this cgroup has]"),
    ] = Field(default_factory=hardware.cpu_threads)
    triton_release: Annotated[
        str, OptionTrait.CARRIED, Field(description="Release that repositories are for  [default: newest]")
    ] = releases.NEWEST
    triton_config: Annotated[
        Path | None, Field(description=".pbtxt with fields that override those of every emitted config")
    ] = None
    ensemble: Annotated[
        ensemble_request.EnsembleRequest | None,
        OptionTrait.SWITCH,
        PlainValidator(ensemble_request.asked, json_schema_input_type=bool | dict[str, Any]),
        Field(description="Also serve text or pictures in, answers out"),
    ] = None
    bench: Annotated[
        Literal["inprocess", "triton", "both", "none"],
        Field(description="Measure inprocess, as triton serves it, both, or none (prove only)  [default: inprocess]"),
    ] = "inprocess"
    via: Annotated[
        Via | None,
        Field(description="Server to measure on: embedded, local or docker  [default: what is here]"),
    ] = None
    rounds: Annotated[  # one round has no interval
        int,
        OptionTrait.CARRIED,
        Field(ge=2, description="Interleaved rounds at most; measuring ends once it is decided"),
    ] = 60
    min_rounds: Annotated[
        int,
        Field(
            ge=2,
            description="Interleaved rounds at least, however clear it is before  "
            f"[default: {LEAST_ROUNDS}, and fewer of what is far behind]",
        ),
    ] = Field(default_factory=lambda given: min(LEAST_ROUNDS, given.get("rounds", LEAST_ROUNDS)))
    budget_s: Annotated[
        AboveZero,
        Field(
            description="Seconds of rounds at most, for each objective and way of measuring  [default: 120, quick 30]",
        ),
    ] = Field(default_factory=lambda given: 30.0 if given.get("quick") else 120.0)
    round_s: Annotated[AboveZero, OptionTrait.CARRIED, Field(description="Least seconds of each round")] = 0.3
    remeasure: Annotated[bool, Field(description="Measure anew, also what an earlier call has measured")] = False
    search_s: Annotated[
        float | None,
        Field(
            ge=0,
            allow_inf_nan=False,
            description="Seconds for which a build searches layers that must stay finer; 0 for none  "
            f"[default: {SEARCH_S:g}]",
        ),
    ] = None
    int8: Annotated[
        Literal["search", "all"],
        Field(description="INT8: what holds the gate (search), or all whatever it misses (all)"),
    ] = "search"
    exhaustive: Annotated[
        bool,
        Field(description="Also build what takes long and cannot win, and prove every variant on all feeds"),
    ] = False
    opset: Annotated[int, Field(description="ONNX opset")] = OPSET
    sign_kits: Annotated[Path | None, Field(description="Private key (PEM) that signs the kits")] = None
    sandbox: Annotated[
        bool, Field(description="Run the model without network, able to write to its output only (needs bubblewrap)")
    ] = False
    options: dict[str, dict[str, Any]] = {}
    triton: Annotated[dict[str, str], WithJsonSchema({"type": "object"})] = {}
    command: Annotated[SkipJsonSchema[str], OptionTrait.INTERNAL] = ""

    @cached_property
    def request(self) -> SourceRequest:
        """What is to be converted."""
        if isinstance(self.source, SourceRequest):
            return self.source
        return sources.recognise(
            self.source,
            task=self.task,
            part=self.part,
            weights=self.weights,
            revision=self.revision,
            samples=self.samples,
            random_samples=self.random_samples,
            metric=self.metric,
            labels=self.labels,
            ranges=self.ranges,
            min_shapes=self.min_shapes,
            opt_shapes=self.opt_shapes,
            max_shapes=self.max_shapes,
            multiples=self.multiples,
            axis_names=self.axis_names,
            model_name=self.model_name,
            graph=GraphChoice(self.signature, self.input_tensors, self.output_tensors, self.inputs_as_nchw),
            traffic=self._traffic,
            pool=self.pool,
            states=self.states,
            initial=self.initial_states,
            io=self.io,
            mask=self.mask,
        )

    @property
    def _traffic(self) -> str | None:
        """What the requests of the traffic are like, as ``SourceRequest`` has it."""
        if "traffic" not in self.objectives:
            return None
        return str(self.traffic.resolve()) if self.traffic is not None else FROM_SAMPLES

    @cached_property
    def wanted(self) -> tuple[Target, ...]:
        """What to build, in the user's order."""
        return _targets({"device": self.device, "targets": self.targets})

    @property
    def grouped(self) -> frozenset[str]:
        """Names of targets that only a group brought in: left out where the source is another framework's."""
        return frozenset(t.name for t in self.wanted) - targets.named(",".join(map(str, self.targets)))

    @property
    def run_dir(self) -> Path:
        """Where everything is written."""
        return self.out or Path("runs") / self.request.name

    @property
    def constraints(self) -> Constraints:
        """What a chosen variant must keep."""
        return Constraints(self.max_p99_ms, self.min_throughput_per_s, self.max_memory_mib, self.max_gpu_memory_mib)

    @cached_property
    def overrides(self) -> dict[str, str]:
        """What changes in the emitted configs of each wanted target, ``triton_config`` winning over ``triton``."""
        if not self.triton and self.triton_config is None:
            return {}
        from accel.triton import overrides

        last = overrides.from_file(self.triton_config) if self.triton_config is not None else ""
        found = {}
        for name in dict.fromkeys(target.name for target in self.wanted):
            own = overrides.merged(self.triton.get("", ""), self.triton.get(name, ""))
            found[name] = overrides.merged(own, last)
            found[name + PYTHON_VARIANT] = overrides.merged(own, self.triton.get(name + PYTHON_VARIANT, ""), last)
        return found

    @property
    def carried(self) -> dict[str, Any]:
        """The options that matter also where a deferred build is finished."""
        marked = (name for name, info in Job.model_fields.items() if OptionTrait.CARRIED in info.metadata)
        return {name: getattr(self, name) for name in marked}

    @model_validator(mode="after")
    def _checked(self) -> Self:
        releases.release(self.triton_release)
        known = [text for target in self.wanted for text in (target.name, str(target))]
        for text in self.required:  # a target's name, ``name@device``, or a static variant's id
            if text.partition("+")[0] not in known:
                raise UsageError(
                    f"--require {text!r} is not among the targets{nearest(text, known)}", fix="add it to --targets"
                )
        if self.min_rounds > self.rounds:
            raise UsageError(
                f"--min-rounds {self.min_rounds} is more than --rounds {self.rounds}", fix="raise --rounds to it"
            )
        if self.sandbox and self.bench in ("triton", "both"):
            raise UsageError(
                f"--sandbox holds accel's own processes, and --bench {self.bench} runs a server beside them",
                fix="measure in process, or run accel in a container",
            )
        if "traffic" in self.objectives and self.bench == "triton":
            raise UsageError("the objective traffic is measured in process", fix="--bench both, or --bench inprocess")
        if self.traffic is not None and "traffic" not in self.objectives:
            raise UsageError(
                "--traffic is for the objective traffic", fix="--objective traffic, or leave --traffic out"
            )
        if self.sign_kits is not None:
            signing.check_key(self.sign_kits)
        _check_options(self.options)
        _ = self.request, self.overrides  # wrong ones are refused at once
        return self


KEYS = keys(Job)
"""What a job file may hold."""


def assemble(given: Mapping[str, Any], config: Path | None, *, command: str) -> Job:
    """Make the job from what was typed, and a job file beneath it.

    Args:
        given: options by the keys of a job file; only those that were given.
        config: job file whose values stand where ``given`` has none.
        command: shell line that repeats the job.

    Raises:
        UsageError: as ``Job``.
        InputError: as ``Job``, or the job file is missing or broken; the message names the key.
    """
    asked = read(config) if config is not None else {}
    # The flag asks for an ensemble; which one, a job file may say.
    asked |= {k: v for k, v in given.items() if k != "ensemble" or not asked.get(k)}
    return Job.model_validate(asked | {"command": command}, context={"config": config, "typed": given})


def read(path: Path) -> dict[str, Any]:
    """Read the keys and values of a job file, the changes of the emitted configs as their text.

    Raises:
        UsageError: changes for a target that does not exist.
        InputError: the file is missing, no YAML, or has a key that is not known.
    """
    return options(read_yaml(path, "job file"), path)


def options(data: Any, path: Path) -> dict[str, Any]:
    """Read what a file gives as a job's keys and values.

    Raises:
        UsageError / InputError: as ``read``.
    """
    if not isinstance(data, dict | None):
        raise InputError(f"job file {path} holds {type(data).__name__}: expected keys and values")
    asked = {str(k): v for k, v in (data or {}).items() if v is not None}
    for key in asked:
        if key not in KEYS:
            raise InputError(
                f"job file {path}: unknown key {key!r}{nearest(key, KEYS)}", fix=f"known keys: {', '.join(KEYS)}"
            )
    if asked.get("triton") and isinstance(asked["triton"], dict):
        from accel.triton import overrides

        known = [name + ending for name in targets.discover() for ending in ("", PYTHON_VARIANT)]
        asked["triton"] = overrides.from_job(asked["triton"], path, known)
    return asked


def _check_options(given: Mapping[str, Mapping[str, Any]]) -> None:
    """Hold builder options against each builder's own dataclass."""
    known = targets.discover()
    for target, values in given.items():
        if target not in known:
            raise UsageError(f"options for unknown target {target!r}{nearest(target, known)}")
        fields = [f.name for f in dataclasses.fields(known[target].options)]
        for name in values:
            if name not in fields:
                raise UsageError(
                    f"target {target} has no option {name!r}{nearest(name, fields)}", fix=f"it has: {fields}"
                )
