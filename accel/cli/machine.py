"""This machine: ``accel targets`` and ``doctor`` say what it can build, ``accel env`` brings what is missing."""

from typing import Any

import typer

from accel.cli.output import Json, Quiet, print_json, show
from accel.core.errors import UnavailableError

env_app = typer.Typer(help="Environments for packages that cannot share one with the rest.", no_args_is_help=True)


def list_targets(as_json: Json = False) -> None:
    """List what can be built, and what cannot be built here and why."""
    from accel.run import doctor

    rows = doctor.targets_here()
    if as_json:
        print_json({"targets": rows})
        return
    show([row for row in rows if row["available"]], False, "targets", ("target", "device", "about"))
    for reason, fix in dict.fromkeys((row["reason"], row["fix"]) for row in rows if not row["available"]):
        names = ", ".join(f"{row['target']}@{row['device']}" for row in rows if row["reason"] == reason)
        typer.echo(f"\nnot here: {reason}\n  {names}\n  fix: {fix}")


def check_machine(as_json: Json = False) -> None:
    """Say what is here, what is missing, and the command that brings it."""
    from accel.run import doctor

    rows = doctor.examine()
    show(rows, as_json, "checks", ("what", "found", "fix"))
    if any(row["needed"] and not row["ok"] for row in rows):
        raise UnavailableError("something that every run needs is missing", fix="see the table above")


def _environments() -> Any:
    """Return the module of environments, which knows those of builders once these are imported."""
    from accel.builders import targets
    from accel.core import environments

    targets.discover()
    return environments


@env_app.command("list")
def env_list(as_json: Json = False) -> None:
    """List the environments."""
    environments = _environments()

    rows = [
        {
            "name": e.name,
            "installed": environments.installed(e.name),
            "packages": " ".join(e.requirements),
            "why": e.why,
        }
        for e in environments.ENVIRONMENTS.values()
    ]
    show(rows, as_json, "environments", ("name", "installed", "packages", "why"))


@env_app.command("install")
def env_install(name: str, quiet: Quiet = False) -> None:
    """Make an environment and install its packages."""
    environments = _environments()

    environments.install(name, report=(lambda _: None) if quiet else (lambda line: typer.echo(line, err=True)))


@env_app.command("remove")
def env_remove(name: str) -> None:
    """Delete an environment."""
    environments = _environments()

    typer.echo(f"{name} removed" if environments.remove(name) else f"{name} is not installed", err=True)
