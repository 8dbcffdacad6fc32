"""Pages of the site that are made from what they describe: commands, targets, JSON Schemas, the front page, decisions.

mkdocs calls these functions (``hooks`` in mkdocs.yml). Nothing is written into docs/.
"""

import dataclasses
import html
import json
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
OUTSIDE = re.compile(
    r"\[([^]]*)\]\(((?:\.\./)+(?:accel|examples|benchmarks)/[^)]*|(?:docs/)?(?:benchmarks|examples)/[^)]*)\)"
)
"""A link to a file of the repository that is not a page: raw data, an example, code."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Give every decision its line in the navigation."""
    for entry in config.nav or []:
        if "Decisions" in entry:
            pages = [{title: f"decisions/{name}"} for name, title in _decided()]
            entry["Decisions"] = [{"All": "decisions/index.md"}, *pages]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages."""
    pages = {
        "index.md": _at_root("README.md"),
        "changelog.md": _at_root("CHANGELOG.md"),
        "decisions/index.md": _decisions(),
        "reference/commands.md": commands(),
        "reference/targets.md": targets(),
        "reference/job.md": _schema_page("Job files", "job.schema.json", job_schema(), JOB_TEXT),
        "reference/run.md": _schema_page("run.json", "run.schema.json", run_schema(), RUN_TEXT),
        "reference/job.schema.json": json.dumps(job_schema(), indent=1),
        "reference/run.schema.json": json.dumps(run_schema(), indent=1),
    }
    for path, content in pages.items():
        files.append(File.generated(config, path, content=content))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Show links to files that are no pages as their text and their path."""
    return OUTSIDE.sub(lambda link: f"{link[1]} (`{_of_repository(link[2])}`)", markdown)


def _of_repository(link: str) -> str:
    path = link.replace("../", "")
    return f"docs/{path}" if path.startswith("benchmarks/") and not link.startswith("../") else path


def _at_root(name: str) -> str:
    """Return a page that lies beside docs/, with its links as the site has them."""
    text = (ROOT / name).read_text()
    text = text.replace("](docs/decisions/)", "](decisions/index.md)").replace("](CHANGELOG.md)", "](changelog.md)")
    return re.sub(r"\]\(docs/(?!benchmarks/)", "](", text)


def _decided() -> list[tuple[str, str]]:
    """Return the file of every decision and its title, with its number written alike."""
    found = []
    for path in sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md")):
        title = re.sub(r"^# (\d+[.:] )?", "", path.read_text().splitlines()[0])
        found.append((path.name, f"{int(path.name[:4])}. {title}"))
    return found


def _decisions() -> str:
    lines = ["# Decisions", "", "Why things are as they are, half a page each.", ""]
    lines += [f"- [{title}]({name})" for name, title in _decided()]
    return "\n".join(lines) + "\n"


def commands() -> str:
    """Return every command with its arguments and options, as the command line itself has them."""
    import click
    from typer.main import get_command

    from accel.cli import app

    lines = ["# Commands", "", "Made from the command line itself; `accel COMMAND --help` says the same.", ""]

    def add(command: click.Command, path: str) -> None:
        if hasattr(command, "commands"):
            if path != "accel" and command.help:
                lines.extend([f"## {path}", "", command.help, ""])
            for name, inner in command.commands.items():
                add(inner, f"{path} {name}")
            return
        context = command.make_context(path, ["--help"], resilient_parsing=True)
        shown = context.command
        usage = " ".join(["Usage:", path, *shown.collect_usage_pieces(context)])
        lines.extend([f"## {path}", "", (command.help or "").strip(), "", f"    {usage}", ""])
        rows = [param.get_help_record(context) for param in shown.get_params(context)]
        found = [(name, text) for name, text in filter(None, rows) if "--help" not in name]
        if found:
            lines.extend(
                [
                    "| option | what it says |",
                    "|---|---|",
                    *(f"| `{_cell(n)}` | {_cell(t, plain=True)} |" for n, t in found),
                    "",
                ]
            )

    add(get_command(app), "accel")
    return "\n".join(lines)


def targets() -> str:
    """Return what each builder says of its targets."""
    from accel.builders import targets as known

    lines = [
        "# Targets",
        "",
        "What can be named after `--targets`, as the builders declare it. `cpu` and `gpu` stand for",
    ]
    lines += ["every target of that device, `NAME@DEVICE` for one. `accel targets` says which can be built here.", ""]
    lines += ["| target | devices | precision | needs | what it is |", "|---|---|---|---|---|"]
    options = []
    for name, builder in known.discover().items():
        about = builder.targets[name]
        said = _cell(about.about, plain=True)
        lines.append(f"| `{name}` | {', '.join(about.devices)} | {about.precision} | {about.needs} | {said} |")
        options.append((name, builder.options))
    lines += ["", "## Options", "", "A job file sets them below `options: {TARGET: {NAME: VALUE}}`.", ""]
    lines += ["| target | option | default |", "|---|---|---|"]
    for name, cls in options:
        for field in dataclasses.fields(cls):
            lines.append(f"| `{name}` | `{field.name}`: {_cell(str(field.type))} | `{_cell(str(field.default))}` |")
    return "\n".join(lines) + "\n"


JOB_TEXT = """`accel convert -c job.yaml` reads all of its options from a file; what is typed besides wins.
The keys are the flags without their dashes.

    source: model.onnx
    targets: [ort, openvino-int8]
    samples: real.npz
    gate: {int8: 25}
    objective: latency
    options:
      openvino: {frontend: tensorflow}
"""
RUN_TEXT = """Every run writes one, for programs. `accel.Result("runs/bert").document` is the same as Python values.
Fields may be added within a schema number; none is taken away or changes its meaning.
"""


def job_schema() -> dict[str, Any]:
    """Return the JSON Schema of a job file."""
    from accel.run.job import Job

    schema = Job.model_json_schema()
    del schema["required"]  # the command line may say them
    schema["description"] = "A job file of accel convert."
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def run_schema() -> dict[str, Any]:
    """Return the JSON Schema of run.json."""
    from pydantic import TypeAdapter
    from pydantic.json_schema import GenerateJsonSchema

    from accel.core.document import RunDocument

    class AsWritten(GenerateJsonSchema):
        """``to_json`` writes named tuples as objects."""

        def named_tuple_schema(self, schema: Any) -> Any:
            fields = {field["name"]: self.generate_inner(field["schema"]) for field in schema["fields"]}
            return {"type": "object", "title": schema["cls"].__name__, "properties": fields, "required": list(fields)}

    schema = TypeAdapter(RunDocument).json_schema(mode="serialization", schema_generator=AsWritten)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def _schema_page(title: str, file: str, schema: dict[str, Any], text: str) -> str:
    lines = [f"# {title}", "", text, f"[JSON Schema]({file}), for editors and checks.", ""]
    for name, part in [("", schema), *schema.get("$defs", {}).items()]:
        if "properties" not in part:
            continue
        if name:
            lines += [f"## {name}", ""]
        described = part.get("description", "").split("\n\nAttributes:")
        lines += [described[0].replace("\n", " "), ""] if name else []
        said = dict(re.findall(r"^    ([\w /]+): (.*(?:\n     .*)*)", described[1], re.M)) if described[1:] else {}
        words = {n: s for names, s in said.items() for n in names.split(" / ")}
        lines += ["| field | type | |", "|---|---|---|"]
        for field, own in part["properties"].items():
            about = own.get("description") or re.sub(r"\s+", " ", words.get(field, ""))
            lines.append(f"| `{field}` | {_type(own, schema.get('$defs', {}))} | {_cell(about, plain=True)} |")
        lines.append("")
    return "\n".join(lines)


def _type(schema: dict[str, Any], named: dict[str, Any]) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})" if "properties" in named[name] else _type(named[name], named)
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_type(arm, named) for arm in schema["anyOf"]))
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}), named)}"
    if schema.get("type") == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"mapping to {_type(schema['additionalProperties'], named)}"
    return str(schema.get("type", "anything"))


def _cell(text: str, *, plain: bool = False) -> str:
    """Return text for a cell of a table; as plain text, what Markdown or HTML would take for its own is escaped."""
    text = " ".join(text.split()).replace("|", "\\|")
    return re.sub(r"([*_\[\]])", r"\\\1", html.escape(text, quote=False)) if plain else text
