"""``accel tune``."""

import math
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from accel.cli.options import command_of
from accel.cli.output import Json, Quiet, Verbose, note, print_json, show, watching
from accel.core.errors import UsageError, nearest

if TYPE_CHECKING:
    from accel.triton.tune.request import TuneRequest


def tune() -> None:
    """Find the serving configuration that carries the most within a latency budget, and write it as a repository."""


def _tune(as_json: Json = False, quiet: Quiet = False, verbose: Verbose = False, **given: Any) -> None:
    from accel.triton.tune import measured, session, together

    asked, mix = _requests(given)
    with watching(quiet=quiet, verbose=verbose) as progress:
        told: Any = {"notice": progress.notice, "progress": progress.variant, "stage": progress.stage}
        if mix:
            place = given.get("out") or Path("runs") / "+".join(asked)
            shared = {name: together.SharedModel(one, mix[name]) for name, one in asked.items()}
            found, folder = together.tune_together(shared, place, **told)
        else:
            found, folder = session.tune(*asked.values(), **told)
    if as_json:
        print_json(found)
        return
    rows = [row for row in found["tried"] if row["measured"] or row["default"]]
    width = None if sys.stdout.isatty() else 140
    show([_row(row) for row in rows], False, "tried", tuple(_row(rows[0])), width=width)
    for one in found["costs"]:
        typer.echo(_cost(one))
    typer.echo(found["decision"]["reason"])
    for one in found["limits"]:
        typer.echo(f"{one['name']}: {one['found']:.4g} (limit {one['limit']:g})")
    for warning in found["decision"]["warnings"]:
        note(warning)
    typer.echo(f"repository: {folder / found['repository']}\nreport: {folder / measured.REPORT}")


TuneCommand = command_of("accel.triton.tune.request:TuneRequest", _tune)


def _requests(typed: Mapping[str, Any]) -> "tuple[dict[str, TuneRequest], Mapping[str, float]]":
    """Return what is asked of each model, and the share of the requests that each gets where several share a server.

    Raises:
        UsageError: as ``TuneRequest``, or a model has no budget, or what is given by model names others.
        InputError: a target is neither a run nor a repository, or as ``TuneRequest``.
    """
    from accel.triton.tune import together
    from accel.triton.tune.request import TuneRequest

    models: dict[str, list[Path]] = {}
    for target in map(Path, typed.get("targets", ())):
        models.setdefault(together.model_of(target), []).append(target)
    p99s, rates = (_by_model(typed.get(key), key, models) for key in ("max_p99_ms", "rate"))
    if p99s and (missing := [name for name in models if name not in p99s]):
        raise UsageError(f"--max-p99-ms has no budget of {', '.join(missing)}", fix="give one for each model")
    mix = together.mix(rates, list(models)) if len(models) > 1 else {}
    common = {key: value for key, value in typed.items() if key not in ("max_p99_ms", "rate")}
    if not models:
        TuneRequest.typed(common)  # which says what is missing
    asked = {}
    for name, paths in models.items():
        budget = {"max_p99_ms": p99s[name]} if p99s else {}
        rate = {"rate": rates[name]} if rates and not mix else {}
        asked[name] = TuneRequest.typed({**common, "targets": paths, **budget, **rate})
    return asked, mix


def _by_model(text: str | None, key: str, models: Collection[str]) -> dict[str, float]:
    """Read a number for all models, or ``NAME=NUMBER,…``.

    Raises:
        UsageError: no number above 0, or a model that is not there.
    """
    found: dict[str, float] = {}
    option = f"--{key.replace('_', '-')}"
    for part in (text or "").split(",") if text is not None else ():
        name, _, value = part.rpartition("=")
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not 0.001 <= number < math.inf:
            raise UsageError(f"{option} {part}: expected a number from 0.001 on", fix=f"{option} 100, or NAME=100,…")
        if name and name.strip() not in models:
            raise UsageError(
                f"{option}: there is no model {name.strip()!r}{nearest(name.strip(), models)}",
                fix=f"the models are {', '.join(models)}",
            )
        if not name and key == "rate" and len(models) > 1:
            raise UsageError(
                "--rate of several models is their mix", fix=f"--rate {','.join(f'{n}=10' for n in models)}"
            )
        found |= {name.strip(): number} if name else dict.fromkeys(models, number)
    return found


def _row(row: dict[str, Any]) -> dict[str, str]:
    from accel.report.formats import figures

    predicted, measured = row["predicted"], row["measured"]
    return {
        "": "★" if row["chosen"] else "as it ships" if row["default"] else "",
        "repository": row["repository"],
        "settings": row["label"],
        "predicted/s": figures(predicted["throughput_per_s"]) if predicted else "—",
        "carries/s": figures(row["carries_per_s"]) if measured else "—",
        "p50 ms": f"{measured['p50_ms']:.4g}" if measured and measured["p50_ms"] else "—",
        "p99 ms": f"{measured['p99_ms']:.4g}" if measured and measured["p99_ms"] else "—",
        "MiB": f"{row['memory_mib']:.0f}" if row["memory_mib"] else "—",
    }


def _cost(one: dict[str, Any]) -> str:
    from accel.report.formats import figures

    words = [f"{one['hardware']}: {figures(one['per_minute'])} invocations a minute at most ({one['configuration']})"]
    if one["machines"] is not None:
        words.append(f"{one['machines']} needed for the rate")
    if one["usd_per_million"] is not None:
        words.append(f"{one['usd_per_million']:.3g} USD per million, {one['usd_per_hour']:.3g} USD an hour")
    return ", ".join(words)
