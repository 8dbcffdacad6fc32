"""One model: ``accel inspect`` shows it, ``accel narrow`` makes the integers of an ONNX file smaller."""

import json
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from accel.cli import complete
from accel.cli.output import Json, print_json, show
from accel.core.errors import UsageError, nearest
from accel.graph import LEVEL, LEVELS

Strings = list[str] | None


def inspect(
    source: Annotated[
        str,
        typer.Argument(
            help="What accel convert takes, an OpenVINO IR, a TensorRT plan or a run", autocompletion=complete.sources
        ),
    ],
    shape: Annotated[Strings, typer.Option(help="input_ids:1x128,…  of a source that does not say")] = None,
    range: Annotated[Strings, typer.Option(help="NAME=LO:HI of an integer input")] = None,
    part: Annotated[str | None, typer.Option(help="Part of a Hugging Face model")] = None,
    as_json: Json = False,
) -> None:
    """Show what a source is before it is converted, or what an ONNX file, an IR, a plan or a run holds."""
    from accel.exporters.sources import recognise
    from accel.run import inspection, job

    path = Path(source)
    if inspection.is_artifact(path):
        found = inspection.inspect(path)
    else:
        shapes, ranges = job.shapes(shape or ()), job.ranges(range or ())
        options = [
            w for flag, given in (("--shape", shape), ("--range", range)) for v in given or () for w in (flag, v)
        ]
        options += ["--part", part] if part else []
        found = inspection.inspect_source(recognise(source, opt_shapes=shapes, ranges=ranges, part=part), options)
        if path.suffix == ".onnx":
            found = inspection.inspect(path) | found
    if as_json:
        print_json(found)
    else:
        _print_tree(found)


def narrow(
    source: Annotated[Path, typer.Argument(help="ONNX file")],
    out: Annotated[Path, typer.Option("--out", "-o", help="ONNX file to write")],
    range: Annotated[Strings, typer.Option(help="NAME=LO:HI of an integer input")] = None,
    min_shape: Annotated[Strings, typer.Option(help="input_ids:1x1,…")] = None,
    max_shape: Annotated[Strings, typer.Option(help="input_ids:16x512,…")] = None,
    level: Annotated[str, typer.Option(help="keep, io or interior")] = LEVEL,
    runtime: Annotated[
        str | None, typer.Option(help="Whose kernels limit the interior; another word lists them  [default: ort]")
    ] = None,
    report: Annotated[Path | None, typer.Option(help="Also write the report as JSON")] = None,
    as_json: Json = False,
) -> None:
    """Make INT64 values INT32 where they are proved to fit, and say why the others stay."""
    from accel.builders.narrow import narrow_file
    from accel.core.values import ShapeRange, to_json
    from accel.run import job

    if level not in LEVELS:
        expected = f"{', '.join(LEVELS[:-1])} or {LEVELS[-1]}{nearest(level, LEVELS)}"
        raise UsageError(f"--level is {level!r}: expected {expected}")
    low, high = job.shapes(min_shape or ()), job.shapes(max_shape or ())
    if odd := sorted(low.keys() ^ high.keys()):
        raise UsageError(f"input {odd[0]!r} needs both --min-shape and --max-shape: together they bound its axes")
    found = narrow_file(
        source,
        out,
        level=cast(Any, level),
        runtime=runtime,
        ranges=job.ranges(range or ()),
        shapes={name: ShapeRange(low[name], high[name], high[name]) for name in high},
    )
    document = to_json(found)
    if report is not None:
        from accel.core.files import write_text

        write_text(report, json.dumps(document, indent=1) + "\n")
    if as_json:
        print_json(document)
        return
    rows = [{**v, "interval": "{}..{}".format(*v["interval"]) if v["interval"] else ""} for v in document["values"]]
    show(rows, False, "values", ("name", "role", "decision", "interval", "reason"))
    for spec in found.inputs:
        typer.echo(f"assumes {spec.name} in [{spec.lo}, {spec.hi}]: {spec.reason}")
    typer.echo(f"{out}: {found.count('narrowed')} narrowed, {found.count('kept')} kept, {found.casts} casts added")


def _print_tree(value: Any, indent: int = 0) -> None:
    for key, item in value.items():
        if isinstance(item, dict):
            typer.echo(f"{'  ' * indent}{key}:")
            _print_tree(item, indent + 1)
        elif isinstance(item, list):
            typer.echo(f"{'  ' * indent}{key}:")
            for entry in item:
                typer.echo(f"{'  ' * (indent + 1)}- {json.dumps(entry) if isinstance(entry, dict | list) else entry}")
        else:
            typer.echo(f"{'  ' * indent}{key}: {item}")
