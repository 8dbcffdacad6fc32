"""``accel release``: many models, for many targets and machines, as one release."""

import functools
import os
from collections.abc import Callable
from contextlib import nullcontext
from inspect import Parameter, Signature
from pathlib import Path
from typing import Annotated, Any

import typer

from accel.cli.options import command_of
from accel.cli.output import Json, Quiet, Verbose, note, print_json, show, watching
from accel.core.errors import CheckFailed, InputError, UsageError

release_app = typer.Typer(help="Many models, targets and machines into one release.", no_args_is_help=True)

ReleaseFile = Annotated[Path, typer.Argument(help="release.yaml", show_default=False)]
Release = Annotated[Path, typer.Argument(help="Folder of a release: STORE/<version>", show_default=False)]
RELEASES, PRODUCTION, DAYS = "releases", "production", 90.0
"""Where releases lie, the pointer, and how long it counts, unless the user says otherwise."""
KEY = "Public key (PEM) that counts, or a folder of .pub files; again for more: any of them may have signed"
SignedWith = Annotated[list[Path] | None, typer.Option(help=KEY)]
Revoked = Annotated[
    list[Path] | None,
    typer.Option(help="Public key that counts no more, whatever it signed, or a list of them  (docs/releases.md)"),
]
Authorities = Annotated[
    list[Path] | None,
    typer.Option(help="Certificates (PEM), a root among them: who has one that it vouches for may have signed"),
]
Identity = Annotated[
    str | None, typer.Option(help="Who may have signed by Sigstore: you@example.com, or the URL of a CI workflow")
]
Provider = Annotated[str | None, typer.Option(help="Who vouches for --identity: https://accounts.google.com")]
Certificates = Annotated[
    list[Path] | None, typer.Option(help="Its owner's certificate (PEM), then those of the authorities above it")
]
AskTrust = Callable[..., Any]
"""Reads whose signatures count from a command's options (``_trust``)."""
Out = Annotated[Path, typer.Option("--out", "-o", help="Folder that takes <version>")]
Store = Annotated[
    str,
    typer.Option(
        help="Folder, or s3://BUCKET/PREFIX (gs://, abfs://), of runs and releases; "
        "machines that share it build one release together"
    ),
]
Cache = Annotated[
    Path | None,
    typer.Option(help="Local folder of a store in a bucket (default: below ~/.cache/accel)", show_default=False),
]


def _trust(
    key: SignedWith = None,
    revoked: Revoked = None,
    authority: Authorities = None,
    identity: Identity = None,
    identity_provider: Provider = None,
    *,
    asked: bool = True,
) -> Any:
    """Return whose signatures count.

    Args:
        asked: something must be said of it; else None where nothing was.
    """
    from accel.core import trust

    if (identity is None) != (identity_provider is None):
        fix = "give both: an identity is one of its provider, and others may give the same name"
        raise UsageError("--identity without --identity-provider, or the other way round", fix=fix)
    identities = {identity: identity_provider} if identity and identity_provider else {}
    if (asked or revoked) and not key and not authority and not identities:
        fix = "--key KEY.pub, --authority ROOT.pem, or --identity and --identity-provider"
        raise UsageError("nothing says whose signature counts" + ("; --revoked takes away" if revoked else ""), fix=fix)
    return trust.read(key or (), revoked or (), authority or (), identities) or None


def _with_trust(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of ``_trust`` in the place of its parameter ``trust``, which is what reads them."""
    *options, _ = Signature.from_callable(_trust, eval_str=True).parameters.values()
    own = Signature.from_callable(command, eval_str=True).parameters.values()
    params = [one for p in own for one in (options if p.name == "trust" else [p])]

    @functools.wraps(command)
    def with_trust(**given: Any) -> None:
        trust = functools.partial(_trust, **{option.name: given.pop(option.name) for option in options})
        command(**given, trust=trust)

    with_trust.__signature__ = Signature(  # type: ignore[attr-defined]
        [p.replace(kind=Parameter.KEYWORD_ONLY) for p in params]
    )
    return with_trust


@release_app.command()
def schema() -> None:
    """Print the JSON Schema of release.yaml, for editors."""
    from accel.release import release_file

    print_json(release_file.schema())


@release_app.command("plan")
def show_plan(file: ReleaseFile, store: Store = RELEASES, cache: Cache = None, as_json: Json = False) -> None:
    """Say what would be built here, reused, left as kits or left to another machine, and how long it takes."""
    from accel.core import hardware
    from accel.core.files import lock
    from accel.release import planning, release_file
    from accel.report.formats import seconds

    plan, (folder, shared) = release_file.read(file), _store(store, cache)
    if shared is not None:
        with lock(folder / planning.RUNS, "accel release plan"):
            shared.pull(plan)
    steps = list(planning.steps(plan, folder, hardware.detect()))
    todo = {s.model: s.seconds for s in steps if s.doing in ("build", "kits")}
    known = [s for s in todo.values() if s is not None]
    if as_json:
        print_json({"steps": steps, "models_to_convert": len(todo), "known_s": sum(known)})
        return
    show(
        steps,
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
    store: Store = RELEASES,
    cache: Cache = None,
    ray: Annotated[
        str | None, typer.Option(help="Convert on a Ray cluster: auto, or ray://HOST:PORT  (docs/releases.md)")
    ] = None,
    finished: Annotated[
        list[Path] | None, typer.Option(help="Run directory that accel build made of this release's kits elsewhere")
    ] = None,
    retry: Annotated[bool, typer.Option("--retry", help="Convert again what failed, though nothing changed")] = False,
    as_json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Convert what changed and put together the release STORE/<version>."""
    from accel.release import building, release_file

    plan = release_file.read(file)
    with watching(quiet=quiet, verbose=verbose) as progress:
        folder, shared = _store(store, cache, progress)
        release = building.build(plan, folder, progress, ray=ray, finished=finished or (), retry=retry, shared=shared)
    if as_json:
        print_json(release)
    else:
        _print_release(release)
        typer.echo(f"release: {folder / release.version}", err=True)
    failed = [f"{e.model} on {e.pool}: {e.reason}" for e in release.entries if e.held == "failed"]
    if problems := [*release.missing, *failed]:
        raise CheckFailed("the release is not complete:\n  " + "\n  ".join(problems), fix="see the fix of each")


@release_app.command()
def sign(
    folder: Release,
    key: Annotated[Path | None, typer.Option(help="Private key (PEM)")] = None,
    certificate: Certificates = None,
    sigstore: Annotated[
        bool,
        typer.Option("--sigstore", help="By Sigstore, without a key: your identity is written into a public log"),
    ] = False,
    identity_token: Annotated[
        str | None,
        typer.Option(
            help="OpenID Connect token, with --sigstore  [default: $SIGSTORE_IDENTITY_TOKEN, else a CI job's]"
        ),
    ] = None,
    interactive: Annotated[bool, typer.Option("--interactive", help="With --sigstore: log in with a browser")] = False,
    as_json: Json = False,
) -> None:
    """Sign a release: from then on it does not change."""
    from accel.core import signing
    from accel.release import checking, document

    if (key is None) != sigstore:
        raise UsageError("what signs is a key or Sigstore", fix="give one of them: --key KEY.pem, or --sigstore")
    if sigstore and certificate:
        raise UsageError("--certificate with --sigstore", fix="leave it out: Sigstore makes one")
    if (identity_token or interactive) and not sigstore:
        raise UsageError("--identity-token or --interactive without --sigstore", fix="give --sigstore, too")
    if identity_token and interactive:
        raise UsageError("--identity-token and --interactive", fix="give one of them")
    document.read(folder)
    wrong = [f for f in checking.verify(folder) if f.severity == "error"]
    if wrong:
        raise CheckFailed(f"{folder} is not signed: {wrong[0].file}: {wrong[0].why}", fix=wrong[0].fix)
    if key is not None:
        made = signing.sign(folder, key, certificates=certificate or ())
    else:
        token = identity_token or (None if interactive else os.environ.get("SIGSTORE_IDENTITY_TOKEN"))
        made = signing.sign_keyless(folder, token, interactive=interactive)
    _print_one("signature", made, as_json)


@release_app.command("verify")
@_with_trust
def verify_release(
    release: Annotated[
        str,
        typer.Argument(
            help="Folder of a release, a bundle, or where one is published (s3://BUCKET/PREFIX, file:///PATH)",
            show_default=False,
        ),
    ],
    trust: AskTrust,
    version: Annotated[str | None, typer.Option(help="Of a published place: this release")] = None,
    name: Annotated[
        str | None,
        typer.Option("--as", help=f"Of a published place: what this name stands for  [default: {PRODUCTION}]"),
    ] = None,
    serve: Annotated[bool, typer.Option("--serve", help="Also serve every repository, and check the answers")] = False,
    via: Annotated[str | None, typer.Option(help="Server: embedded, local or docker")] = None,
    as_json: Json = False,
) -> None:
    """Check who made a release, every hash, its provenance, and every repository in it."""
    from accel.release import bundle, checking, document, object_store, publishing

    if version is not None and name is not None:
        raise UsageError("--version and --as", fix="give one of them")
    signed = trust(asked=False)
    path = Path(release)
    published = (path / "releases").is_dir() and not (path / document.FILENAME).exists()
    if published or "://" in release or version is not None or name is not None:
        place = object_store.ObjectStore(release)
        found = publishing.verify(place, version=version, name=name or PRODUCTION, key=signed, serve=serve, via=via)
    else:
        if not path.exists():
            raise InputError(f"{release} does not exist", fix="name a release, a bundle, or where one was published")
        with bundle.unpacked(path) if path.is_file() else nullcontext(path) as folder:
            found = checking.verify(folder, key=signed, serve=serve, via=via)
    show(found, as_json, "findings", ("severity", "file", "field", "why", "fix"))
    if errors := [f for f in found if f.severity == "error"]:
        raise CheckFailed(f"{release} has {len(errors)} errors", fix="do not use it; take it again, or build it again")
    if not as_json:
        typer.echo(f"{release} is as it was built", err=True)


@release_app.command("import")
@_with_trust
def import_bundle(
    file: Annotated[Path, typer.Argument(help="What publish --to bundle:FILE wrote", show_default=False)],
    trust: AskTrust,
    out: Out = Path(RELEASES),
    as_json: Json = False,
) -> None:
    """Take the release out of a bundle, checked: signature and every hash."""
    from accel.release import bundle

    _print_one("release", bundle.take(file, out, key=trust()), as_json)


def _diff(
    before: Release,
    after: Release,
    accept: Annotated[
        list[str] | None, typer.Option(help="MODEL:ROW=REASON  a row that may ship although it blocks")
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    **given: Any,
) -> None:
    from accel.release import diffing

    accepted = {}
    for text in accept or ():
        name, equals, reason = text.partition("=")
        if ":" not in name or not equals or not reason.strip():
            raise UsageError(f"--accept {text!r}: expected MODEL:ROW=REASON", fix="say why: the release records it")
        accepted[name] = reason.strip()
    asked = diffing.DiffLimits.typed(given)
    with watching(quiet=quiet, verbose=verbose) as progress:
        found = diffing.diff(before, after, accept=accepted, asked=asked, progress=progress)
    if as_json:
        print_json(found)
    else:
        show(
            found.rows,
            False,
            "rows",
            ("model", "pool", "what", "before", "after", "verdict", "reason", "accepted"),
        )
    if stops := diffing.blocking(found):
        names = "\n  ".join(f"{r.model}:{r.what} on {r.pool}: {r.verdict}: {r.reason or r.after}" for r in stops)
        raise CheckFailed(f"{after} may not ship:\n  {names}", fix="repair it, or --accept MODEL:ROW=REASON")


@release_app.command("diff", cls=command_of("accel.release.diffing:DiffLimits", _diff))
def diff_releases() -> None:
    """Hold a release against an earlier one, measured side by side, and say whether it may ship."""


@release_app.command("versions")
def write_versions(
    releases: Annotated[list[Path], typer.Argument(help="Folders of releases, the oldest first", show_default=False)],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder that takes <pool>/<model>", show_default=False)],
    as_json: Json = False,
) -> None:
    """Put several releases side by side: a Triton repository for each model, with a version for each release."""
    from accel.release import versions

    found = list(versions.side_by_side(releases, out))
    rows = [{"pool": pool, "model": model, "refused": why} for pool, model, why in found]
    show(rows, as_json, "models", ("pool", "model", "refused"))
    if refused := [f"{model} on {pool}: {why}" for pool, model, why in found if why is not None]:
        said = "\n  ".join(refused)
        raise CheckFailed(f"not side by side:\n  {said}", fix="serve each release of those by itself")


@release_app.command()
@_with_trust
def prune(
    file: ReleaseFile,
    store: Store = RELEASES,
    to: Annotated[str | None, typer.Option("--to", help="Also there: s3://BUCKET/PREFIX, or a folder")] = None,
    *,
    trust: AskTrust,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would go, and remove nothing")] = False,
    as_json: Json = False,
) -> None:
    """Remove releases that release.yaml's retention does not cover, and no pointer or rollback needs."""
    from accel.core.values import to_json
    from accel.release import object_store, release_file, retention
    from accel.report.formats import size

    place = object_store.ObjectStore(to) if to is not None else None
    if _is_remote(store):
        raise UsageError(f"prune removes from folders, not from {store}", fix="see docs/releases.md, An object store")
    signed = trust() if place is not None else None
    found = retention.prune(release_file.read(file), _store(store, None)[0], place, key=signed, dry_run=dry_run)
    rows = [to_json(f) | {"removed": f.kept is None} for f in found]
    done = "would be removed" if dry_run else "removed"
    shown = rows if as_json else [r | {"size": size(r["bytes"]), "kept": r["kept"] or done} for r in rows]
    show(shown, as_json, "found", ("where", "what", "size", "kept"))
    if not as_json:
        freed = [f.bytes for f in found if f.kept is None]
        typer.echo(f"{len(freed)} of {len(found)} {done}: {size(sum(freed))}", err=True)


To = Annotated[str, typer.Option("--to", help="s3://BUCKET/PREFIX (gs://, abfs://), or a folder", show_default=False)]
As = Annotated[str, typer.Option("--as", help="Name of the pointer, such as production or canary")]
Private = Annotated[Path, typer.Option("--sign", help="Private key (PEM) that signs the pointer", show_default=False)]
Days = Annotated[float, typer.Option(help="Days until the pointer counts no more", min=0.001)]


Places = Annotated[
    list[str],
    typer.Option(
        "--to",
        help="s3://BUCKET/PREFIX (gs://, abfs://), a folder, sagemaker:URL, oci://HOST/REPOSITORY, oci-layout:FOLDER, "
        "bundle:FILE or kserve:FOLDER; again, or after a comma, for more",
    ),
]


@release_app.command()
@_with_trust
def publish(
    folder: Release,
    to: Places,
    trust: AskTrust,
    as_json: Json = False,
) -> None:
    """Upload a signed release, in one form or several; what was begun goes on, and what is there never changes."""
    from accel.release import forms

    done = forms.publish(folder, [url for text in to for url in text.split(",")], key=trust())
    if as_json:
        print_json(done)
    else:
        typer.echo("\n".join([done["digest"], *(p for p in done["published"] if p not in to)]))


@release_app.command()
@_with_trust
def promote(
    version: str,
    to: To,
    sign: Private,
    trust: AskTrust,
    certificate: Certificates = None,
    name: As = PRODUCTION,
    days: Days = DAYS,
    as_json: Json = False,
) -> None:
    """Let a name stand for a published version from now on."""
    from accel.release import object_store, publishing

    place, certificates = object_store.ObjectStore(to), certificate or ()
    made = publishing.promote(place, name, version, key=sign, public=trust(), days=days, certificates=certificates)
    _print_pointer(made, as_json)


@release_app.command()
@_with_trust
def rollback(
    to: To,
    sign: Private,
    trust: AskTrust,
    certificate: Certificates = None,
    name: As = PRODUCTION,
    days: Days = DAYS,
    as_json: Json = False,
) -> None:
    """Let a name stand for the version before its present one; again goes further back, never to what was left."""
    from accel.release import object_store, publishing

    place, certificates = object_store.ObjectStore(to), certificate or ()
    made = publishing.rollback(place, name, key=sign, public=trust(), days=days, certificates=certificates)
    _print_pointer(made, as_json)


@release_app.command()
@_with_trust
def pull(
    to: To,
    trust: AskTrust,
    name: As = PRODUCTION,
    out: Out = Path(RELEASES),
    as_json: Json = False,
) -> None:
    """Take the release that a name stands for, checked: pointer, signature and every hash."""
    from accel.release import object_store, publishing

    _print_one("release", publishing.pull(object_store.ObjectStore(to), name, out, key=trust()), as_json)


@release_app.command("list")
@_with_trust
def list_published(
    to: To,
    trust: AskTrust,
    as_json: Json = False,
) -> None:
    """List what is published, what each name stands for, and which key signed it."""
    from accel.release import object_store, publishing

    signed = trust()
    found = publishing.listed(object_store.ObjectStore(to), signed)
    if as_json:
        print_json(found)
    for what, rows in found.items() if not as_json else ():
        shown = [row | {"key": signed.name(row["key"])} for row in rows]
        more = ("names",) if what == "versions" else ("version", "number", "until")
        show(shown, False, what, (what.removesuffix("s"), *more, "key", "refused"))
    if not any(found.values()):
        note(f"nothing is published at {to}")
    if wrong := [f"{row['name']}: {row['refused']}" for row in found["names"] if row["refused"]]:
        said = "\n  ".join(wrong)
        raise CheckFailed(
            f"not every name can be followed:\n  {said}", fix="do not use those; see docs/releases.md, Keys"
        )


def _is_remote(store: str) -> bool:
    return store.partition("://")[0] not in (store, "file")


def _store(text: str, cache: Path | None, progress: Any = None) -> tuple[Path, Any]:
    """Return the local folder of a store, and the ``SharedStore`` behind it where that is an object store."""
    if not _is_remote(text):
        if cache is not None:
            raise UsageError(f"--cache with --store {text}", fix="leave it out: a folder needs no other")
        return Path(text.removeprefix("file://")), None
    from accel.release import object_store, shared

    place = object_store.ObjectStore(text)
    folder = cache or shared.cache_of(place.url)
    return folder, shared.SharedStore(place, folder, progress)


def _print_one(name: str, value: Any, as_json: bool) -> None:
    if as_json:
        print_json({name: str(value)})
    else:
        typer.echo(value)


def _print_pointer(pointer: Any, as_json: bool) -> None:
    if as_json:
        print_json(pointer)
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
