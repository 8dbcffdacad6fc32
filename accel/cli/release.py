"""``accel release``: many models, for many targets and machines, as one release."""

from pathlib import Path
from typing import Annotated, Any

import typer

from accel.cli.output import Json, Quiet, Verbose, print_json, show, watching
from accel.core.errors import CheckFailed, UsageError

release_app = typer.Typer(help="Many models, targets and machines into one release.", no_args_is_help=True)

ReleaseFile = Annotated[Path, typer.Argument(help="release.yaml", show_default=False)]
Release = Annotated[Path, typer.Argument(help="Folder of a release: STORE/<version>", show_default=False)]
Store = Annotated[
    Path, typer.Option(help="Folder of runs and releases; machines that share it build one release together")
]


@release_app.command()
def schema() -> None:
    """Print the JSON Schema of release.yaml, for editors."""
    from accel.release import release_file

    print_json(release_file.schema())


@release_app.command("plan")
def show_plan(file: ReleaseFile, store: Store = Path("releases"), as_json: Json = False) -> None:
    """Say what would be built here, reused, left as kits or left to another machine, and how long it takes."""
    import accel.run  # noqa: F401  hands the zoo in
    from accel.core import hardware
    from accel.core.values import to_json
    from accel.release import planning, release_file
    from accel.report.formats import seconds

    steps = list(planning.steps(release_file.read(file), store, hardware.detect()))
    todo = {s.model: s.seconds for s in steps if s.doing in ("build", "kits")}
    known = [s for s in todo.values() if s is not None]
    if as_json:
        print_json({"steps": to_json(steps), "models_to_convert": len(todo), "known_s": sum(known)})
        return
    show(
        [to_json(s) | {"targets": ", ".join(s.targets)} for s in steps],
        False,
        "steps",
        ("model", "pool", "doing", "targets", "reason"),
    )
    new = len(todo) - len(known)
    told = f"{len(todo)} of {len({s.model for s in steps})} models to convert"
    told += f"; {len(known)} of them took {seconds(sum(known))} last time" if known else ""
    typer.echo(told + (f"; {new} were never converted here" if new else ""), err=True)


@release_app.command("build")
def build_release(
    file: ReleaseFile,
    store: Store = Path("releases"),
    retry: Annotated[bool, typer.Option("--retry", help="Convert again what failed, though nothing changed")] = False,
    as_json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Convert what changed and put together the release STORE/<version>."""
    import accel.run  # noqa: F401  hands the zoo in
    from accel.core.values import to_json
    from accel.release import building, release_file

    plan = release_file.read(file)
    with watching(quiet=quiet, verbose=verbose) as progress:
        release = building.build(plan, store, progress, retry=retry)
    if as_json:
        print_json(to_json(release))
    else:
        _print_release(release)
        typer.echo(f"release: {store / release.version}", err=True)
    failed = [f"{e.model} on {e.pool}: {e.reason}" for e in release.entries if e.held == "failed"]
    if problems := [*release.missing, *failed]:
        raise CheckFailed("the release is not complete:\n  " + "\n  ".join(problems), fix="see the fix of each")


@release_app.command()
def sign(
    folder: Release,
    key: Annotated[Path, typer.Option(help="Private key (PEM)")],
    certificate: Annotated[
        list[Path] | None, typer.Option(help="Its owner's certificate (PEM), then those of the authorities above it")
    ] = None,
) -> None:
    """Sign a release: from then on it does not change."""
    from accel.core import signing
    from accel.release import checking, document

    document.read(folder)
    wrong = [f for f in checking.verify(folder) if f.severity == "error"]
    if wrong:
        raise CheckFailed(f"{folder} is not signed: {wrong[0].file}: {wrong[0].why}", fix=wrong[0].fix)
    typer.echo(signing.sign(folder, key, certificates=certificate or ()))


@release_app.command("verify")
def verify_release(
    folder: Release,
    key: Annotated[Path | None, typer.Option(help="Public key (PEM) that it must be signed with")] = None,
    authority: Annotated[
        list[Path] | None, typer.Option(help="Certificates (PEM) above the signer's, the root among them")
    ] = None,
    serve: Annotated[bool, typer.Option("--serve", help="Also serve every repository, and check the answers")] = False,
    via: Annotated[str | None, typer.Option(help="Server: embedded, local or docker")] = None,
    as_json: Json = False,
) -> None:
    """Check who made a release, every hash, its provenance, and every repository in it."""
    import accel.run  # noqa: F401
    from accel.core.values import to_json
    from accel.release import checking

    found = [to_json(f) for f in checking.verify(folder, key=key, authorities=authority or (), serve=serve, via=via)]
    show(found, as_json, "findings", ("severity", "file", "field", "why", "fix"))
    if errors := [f for f in found if f["severity"] == "error"]:
        raise CheckFailed(f"{folder} has {len(errors)} errors", fix="do not use it; take it again, or build it again")
    if not as_json:
        typer.echo(f"{folder} is as it was built", err=True)


@release_app.command("diff")
def diff_releases(
    before: Release,
    after: Release,
    accept: Annotated[
        list[str] | None, typer.Option(help="MODEL:ROW=REASON  a row that may ship although it blocks")
    ] = None,
    rounds: Annotated[int, typer.Option(help="Interleaved rounds at most, for each model and pool", min=6)] = 40,
    round_s: Annotated[float, typer.Option(help="Least seconds of each round", min=0.01)] = 0.2,
    budget_s: Annotated[float, typer.Option(help="Seconds of rounds at most", min=0.1)] = 60.0,
    as_json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Hold a release against an earlier one, measured side by side, and say whether it may ship."""
    import accel.run  # noqa: F401
    from accel.core.values import to_json
    from accel.release import diffing

    accepted = {}
    for text in accept or ():
        name, given, reason = text.partition("=")
        if ":" not in name or not given or not reason.strip():
            raise UsageError(f"--accept {text!r}: expected MODEL:ROW=REASON", fix="say why: the release records it")
        accepted[name] = reason.strip()
    asked = diffing.Asked(rounds, round_s, budget_s)
    with watching(quiet=quiet, verbose=verbose) as progress:
        found = diffing.diff(before, after, accept=accepted, asked=asked, progress=progress)
    if as_json:
        print_json(to_json(found))
    else:
        show(
            to_json(found.rows),
            False,
            "rows",
            ("model", "pool", "what", "before", "after", "verdict", "reason", "accepted"),
        )
    if stops := diffing.blocking(found):
        names = "\n  ".join(f"{r.model}:{r.what} on {r.pool}: {r.verdict}: {r.reason or r.after}" for r in stops)
        raise CheckFailed(f"{after} may not ship:\n  {names}", fix="mend it, or --accept MODEL:ROW=REASON")


To = Annotated[str, typer.Option("--to", help="s3://BUCKET/PREFIX, or a folder", show_default=False)]
As = Annotated[str, typer.Option("--as", help="Name of the pointer, such as production or canary")]
Public = Annotated[Path, typer.Option("--key", help="Public key (PEM)", show_default=False)]
Private = Annotated[Path, typer.Option("--sign", help="Private key (PEM) that signs the pointer", show_default=False)]
Days = Annotated[float, typer.Option(help="Days until the pointer counts no more", min=0.001)]


@release_app.command()
def publish(folder: Release, to: To, key: Public) -> None:
    """Upload a signed release; what was begun goes on, and what is there never changes."""
    import accel.run  # noqa: F401
    from accel.release import publishing

    typer.echo(publishing.publish(folder, publishing.Place(to), key=key))


@release_app.command()
def promote(
    version: str, to: To, key: Public, sign: Private, name: As = "production", days: Days = 90.0, as_json: Json = False
) -> None:
    """Let a name stand for a published version from now on."""
    from accel.release import publishing

    _print_pointer(publishing.promote(publishing.Place(to), name, version, key=sign, public=key, days=days), as_json)


@release_app.command()
def rollback(
    to: To, key: Public, sign: Private, name: As = "production", days: Days = 90.0, as_json: Json = False
) -> None:
    """Let a name stand for the version before its present one."""
    from accel.release import publishing

    _print_pointer(publishing.rollback(publishing.Place(to), name, key=sign, public=key, days=days), as_json)


@release_app.command()
def pull(
    to: To,
    key: Public,
    name: As = "production",
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder that takes <version>")] = Path("releases"),
) -> None:
    """Take the release that a name stands for, checked: pointer, signature and every hash."""
    from accel.release import publishing

    typer.echo(publishing.pull(publishing.Place(to), name, out, key=key))


@release_app.command("list")
def list_published(to: To, key: Public, as_json: Json = False) -> None:
    """List what is published, and what each name stands for."""
    from accel.release import publishing

    rows = publishing.listed(publishing.Place(to), key)
    show(rows, as_json, "versions", ("version", "names"))


def _print_pointer(pointer: Any, as_json: bool) -> None:
    from accel.core.values import to_json

    if as_json:
        print_json(to_json(pointer))
    else:
        typer.echo(f"{pointer.name} is {pointer.version} (number {pointer.sequence}, until {pointer.expires})")


def _print_release(release: Any) -> None:
    from accel.release.document import WORDS

    rows = [
        {"model": e.model, "pool": e.pool, "state": WORDS[e.held], "variant": e.chosen, "machine": e.hardware}
        | {"why": None if e.held == "ready" else e.reason}
        for e in release.entries
    ]
    show(rows, False, "entries", ("model", "pool", "state", "variant", "machine", "why"))
