"""``accel tune``."""

import math
import sys
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from accel.cli.output import Json, Quiet, Verbose, note, print_json, show, watching
from accel.core.errors import UsageError, nearest


def tune(
    targets: Annotated[
        list[Path],
        typer.Argument(help="Run directories or repositories of one model, or of several that share a server"),
    ],
    max_p99_ms: Annotated[
        str, typer.Option(help="Budget that 99 % of the requests must keep: 100, or by model bert=100,minilm=20")
    ],
    rate: Annotated[
        str | None,
        typer.Option(
            help="Requests per second that are to be carried: 200; of several models their mix bert=50,minilm=200"
        ),
    ] = None,
    arrivals: Annotated[
        str, typer.Option(help="Open loop: poisson, constant or a file of times; closed: a closed loop")
    ] = "poisson",
    mode: Annotated[str, typer.Option(help="predict, brute, quick or optuna")] = "predict",
    prices: Annotated[Path | None, typer.Option(help="Price list: HARDWARE_ID: {usd_per_hour: 0.17}")] = None,
    headroom: Annotated[float, typer.Option(help="Share of --rate that is kept free", min=0)] = 0.2,
    max_p50_ms: Annotated[float | None, typer.Option(help="Budget of the median", min=0.001)] = None,
    max_p90_ms: Annotated[float | None, typer.Option(help="Budget that 90 % must keep", min=0.001)] = None,
    max_p95_ms: Annotated[float | None, typer.Option(help="Budget that 95 % must keep", min=0.001)] = None,
    min_throughput: Annotated[float | None, typer.Option(help="Items per second to carry", min=0.001)] = None,
    max_memory_mib: Annotated[float | None, typer.Option(help="What the server's processes may take", min=1)] = None,
    max_gpu_memory_mib: Annotated[float | None, typer.Option(help="What may be in use on its GPUs", min=1)] = None,
    max_cost: Annotated[float | None, typer.Option(help="USD per million inferences, with --prices", min=1e-9)] = None,
    space: Annotated[
        Path | None, typer.Option(help="Configurations to choose from (YAML)  [default: accel's own]")
    ] = None,
    trials: Annotated[
        int | None, typer.Option(help="Most that quick and optuna measure  [default: 1/8]", min=1)
    ] = None,
    data: Annotated[Path | None, typer.Option(help="Requests to send: .json or .npz  [default: stored sample]")] = None,
    via: Annotated[str | None, typer.Option(help="Server: embedded, local or docker")] = None,
    seconds: Annotated[float, typer.Option(help="Least length of a probe", min=0.05)] = 1.5,
    requests: Annotated[int, typer.Option(help="Least requests of a probe", min=10)] = 300,
    budget_s: Annotated[
        float | None, typer.Option(help="How long to measure  [default: 900; brute: no limit]", min=1)
    ] = None,
    seed: Annotated[int, typer.Option(help="Decides what quick and optuna try")] = 0,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Folder  [default: RUN/tuned]")] = None,
    as_json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Find the serving configuration that carries the most within a latency budget, and write it as a repository."""
    from accel.bench.ranges import arrivals as read_arrivals
    from accel.triton.tune import measured, session, space as spaces, together
    from accel.triton.tune.constraints import TuneLimits
    from accel.triton.tune.cost import read_prices
    from accel.triton.tune.lab import Goal
    from accel.triton.tune.search import MODES, Mode

    if mode not in MODES:
        raise UsageError(f"--mode {mode} is unknown", fix=f"give {', '.join(MODES)}")
    kind, gaps_s = (None, ()) if arrivals == "closed" else read_arrivals(arrivals)
    budgets = {"p50": max_p50_ms, "p90": max_p90_ms, "p95": max_p95_ms}
    models: dict[str, list[Path]] = {}
    for target in targets:
        models.setdefault(together.model_of(target), []).append(target)
    p99s, rates = _by_model(max_p99_ms, "--max-p99-ms", models), _by_model(rate, "--rate", models)
    if missing := [name for name in models if name not in p99s]:
        raise UsageError(f"--max-p99-ms has no budget of {', '.join(missing)}", fix="give one for each model")
    if len(models) > 1 and rate is not None and "=" not in rate:
        raise UsageError("--rate of several models is their mix", fix=f"--rate {','.join(f'{n}=10' for n in models)}")
    only = next(iter(models))
    limits_ms = {name: ms for name, ms in budgets.items() if ms is not None}
    asked = measured.TuneRequest(
        tuple(targets),
        Goal(p99s[only], kind, gaps_s, rates.get(only), limits_ms),
        cast(Mode, mode),
        out=out,
        prices=read_prices(prices) if prices else {},
        headroom=headroom,
        limits=TuneLimits(min_throughput, max_memory_mib, max_gpu_memory_mib, max_cost),
        trials=trials,
        data=data,
        via=via,
        probe_s=seconds,
        least=requests,
        budget_s=budget_s,
        seed=seed,
        space=spaces.read(space) if space is not None else None,
    )
    with watching(quiet=quiet, verbose=verbose) as progress:
        told: Any = {"notice": progress.notice, "progress": progress.variant, "stage": progress.stage}
        if len(models) == 1:
            found, folder = session.tune(asked, **told)
        else:
            shares, place = together.mix(rates, list(models)), out or Path("runs") / "+".join(models)
            each = {
                name: together.SharedModel(
                    replace(asked, targets=tuple(own), goal=replace(asked.goal, limit_ms=p99s[name], rate_per_s=None)),
                    shares[name],
                )
                for name, own in models.items()
            }
            found, folder = together.tune_together(each, place, **told)
    if as_json:
        print_json(found)
        return
    rows = [row for row in found["tried"] if row["measured"]]
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


def _by_model(text: str | None, option: str, models: Collection[str]) -> dict[str, float]:
    """Read a number for all models, or ``NAME=NUMBER,…``.

    Raises:
        UsageError: no number above 0, or a model that is not there.
    """
    found: dict[str, float] = {}
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
        found |= {name.strip(): number} if name else dict.fromkeys(models, number)
    return found


def _row(row: dict[str, Any]) -> dict[str, str]:
    predicted, measured = row["predicted"], row["measured"]
    return {
        "": "★" if row["chosen"] else "as it ships" if row["default"] else "",
        "repository": row["repository"],
        "settings": row["label"],
        "predicted/s": f"{predicted['throughput_per_s']:.4g}" if predicted else "—",
        "measured/s": f"{measured['throughput_per_s']:.4g}",
        "p50 ms": f"{measured['p50_ms']:.4g}" if measured["p50_ms"] else "—",
        "p99 ms": f"{measured['p99_ms']:.4g}" if measured["p99_ms"] else "—",
        "MiB": f"{row['memory_mib']:.0f}" if row["memory_mib"] else "—",
    }


def _cost(one: dict[str, Any]) -> str:
    words = [f"{one['hardware']}: {one['per_minute']:.4g} invocations a minute at most ({one['configuration']})"]
    if one["machines"] is not None:
        words.append(f"{one['machines']} needed for the rate")
    if one["usd_per_million"] is not None:
        words.append(f"{one['usd_per_million']:.3g} USD per million, {one['usd_per_hour']:.3g} USD an hour")
    return ", ".join(words)
