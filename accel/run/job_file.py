"""The YAML form of a conversion: ``accel convert -c job.yaml``. Keys are the command's options without dashes.

``options`` (builder options by target) and ``triton`` (overrides of the emitted configs) stand only here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from accel.core.errors import InputError
from accel.core.yaml_file import read_yaml


class JobFile(BaseModel):
    """Every key a job file may hold; what is absent keeps the command's default, what the command line gives wins."""

    model_config = ConfigDict(extra="forbid")

    source: str | None = None
    targets: str | list[str] | None = None
    out: str | None = None
    device: Literal["cpu", "cuda"] | None = None
    task: str | None = None
    weights: Literal["auto", "pretrained", "random"] | None = None
    revision: str | None = None
    signature: str | None = None
    input_tensors: list[str] | None = None
    output_tensors: list[str] | None = None
    inputs_as_nchw: list[str] | None = None
    samples: str | None = None
    random_samples: bool | None = None
    range: list[str] | None = None
    min_shape: list[str] | None = None
    shape: list[str] | None = None
    max_shape: list[str] | None = None
    ints: Literal["keep", "io", "interior"] | None = None
    allow_unproved_int64: bool | None = None
    static: bool | None = None
    model_name: str | None = None
    model_version: int | None = Field(default=None, ge=1)
    objective: Literal["latency", "throughput"] | None = None
    max_p99_ms: float | None = Field(default=None, gt=0)
    min_throughput: float | None = Field(default=None, gt=0)
    max_memory_mib: float | None = Field(default=None, gt=0)
    gate: list[str] | None = None
    require: list[str] | None = None
    timeout: float | None = Field(default=None, gt=0)
    threads: int | None = Field(default=None, ge=1)
    triton_release: str | None = None
    ensemble: bool | dict[str, Any] | None = None
    bench: Literal["inprocess", "triton", "both"] | None = None
    via: Literal["embedded", "local", "docker"] | None = None
    rounds: int | None = Field(default=None, ge=2)
    round_s: float | None = Field(default=None, gt=0)
    opset: int | None = None
    sign_kits: str | None = None
    sandbox: bool | None = None
    options: dict[str, dict[str, Any]] = Field(default_factory=dict)
    triton: dict[str, Any] = Field(default_factory=dict)


def read(path: Path) -> JobFile:
    """Read a job file.

    Raises:
        InputError: the file is missing, no YAML, or holds a key or value that is not known; the message names it.
    """
    data = read_yaml(path, "job file")
    try:
        return JobFile.model_validate({} if data is None else data)
    except ValidationError as error:
        found = "; ".join(f"{'.'.join(map(str, e['loc'])) or 'the file'}: {e['msg']}" for e in error.errors())
        raise InputError(f"job file {path}: {found}", fix=f"known keys: {', '.join(JobFile.model_fields)}") from error
