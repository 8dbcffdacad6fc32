"""The schemas that Kubernetes and KServe publish, read from the wheels that carry them: nothing of them is installed.

``make schemas`` downloads both (23 MB; installed, the first is 108 MB in 17,000 files) to ``.venv/schemas``, or
$ACCEL_SCHEMAS names another folder.

Source: kubernetes-validate (the JSON Schema of each Kubernetes release, made from its OpenAPI document) and kserve (its
``kserve/models``, made from the OpenAPI document of its resources: a class for each type, with the type of each field
and the name that it has in JSON).
"""

import ast
import functools
import json
import os
import re
import sys
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jsonschema
from referencing import Registry
from referencing.jsonschema import DRAFT202012

FOLDER = Path(os.environ.get("ACCEL_SCHEMAS") or Path(sys.prefix) / "schemas")
WHEELS = {name: next(FOLDER.glob(f"{name}-*.whl"), None) for name in ("kubernetes_validate", "kserve")}
MISSING = [name for name, wheel in WHEELS.items() if wheel is None]
ROOT = "kubernetes_validate/kubernetes-json-schema/"
META = "io.k8s.apimachinery.pkg.apis.meta.v1."
TYPES = {"str": "string", "int": "integer", "bool": "boolean", "float": "number", "object": "object"}


def releases() -> list[str]:
    """Return the releases of Kubernetes that there are schemas of, the oldest first: ``1.25.0``."""
    found = {m[1] for name in _wheel("kubernetes_validate").namelist() if (m := re.match(rf"{ROOT}v([\d.]+)-", name))}
    return sorted(found, key=lambda v: tuple(map(int, v.split("."))))


def errors(manifest: Mapping[str, Any], kubernetes: str) -> list[str]:
    """Return what is wrong with a manifest, with where: unknown fields as well as missing and wrong ones.

    Args:
        manifest: of Kubernetes itself, or of KServe.
        kubernetes: the release whose types are meant; KServe's own are those of its wheel.
    """
    group, _, version = manifest["apiVersion"].rpartition("/")
    if group == "serving.kserve.io":
        schema = _kserve(f"V{version[1:]}{manifest['kind']}")
    else:
        group = f"{group.partition('.')[0]}-" if group else ""
        schema = _kubernetes(kubernetes, f"{manifest['kind'].lower()}-{group}{version}.json")
    definitions = _kubernetes(kubernetes, "_definitions.json")
    registry = Registry().with_resource(definitions["$id"], DRAFT202012.create_resource(definitions))
    found = jsonschema.Draft202012Validator(schema, registry=registry).iter_errors(manifest)
    return [f"{'.'.join(map(str, e.absolute_path))}: {e.message}" for e in found]


@functools.cache
def _wheel(name: str) -> zipfile.ZipFile:
    wheel = WHEELS[name]
    assert wheel is not None
    return zipfile.ZipFile(wheel)


@functools.cache
def _kubernetes(release: str, file: str) -> Any:
    return json.loads(_wheel("kubernetes_validate").read(f"{ROOT}v{release}-local-strict/{file}"))


@functools.cache
def _models() -> Mapping[str, tuple[dict[str, str], dict[str, str], list[str]]]:
    """Return of each of KServe's types the types of its fields, their names, and which must be there."""
    return {name: found for file in _wheel("kserve").namelist() if "/models/v" in file for name, found in _read(file)}


def _read(file: str) -> Iterator[tuple[str, tuple[dict[str, str], dict[str, str], list[str]]]]:
    text = _wheel("kserve").read(file).decode()
    for node in ast.parse(text).body:
        if isinstance(node, ast.ClassDef):
            said = {a.targets[0].id: a.value for a in node.body if isinstance(a, ast.Assign)}
            types, names = (ast.literal_eval(said[name]) for name in ("openapi_types", "attribute_map"))
            yield node.name, (types, names, re.findall(r"Invalid value for `(\w+)`, must not be `None`", text))


@functools.cache
def _kserve(name: str) -> Any:
    """Return the JSON Schema of one of KServe's types."""
    types, names, needed = _models()[name]
    return {
        "type": "object",
        "properties": {names[field]: _schema(types[field]) for field in types},
        "required": [names[field] for field in needed],
        "additionalProperties": False,
    }


@functools.cache
def _schema(said: str) -> Any:
    """Return the JSON Schema of a type as the generator writes it: ``list[V1Container]``, ``dict(str, str)``."""
    if match := re.fullmatch(r"list\[(.+)\]", said):
        return {"type": "array", "items": _schema(match[1])}
    if match := re.fullmatch(r"dict\(str, (.+)\)", said):
        return {"type": "object", "additionalProperties": _schema(match[1])}
    if said in TYPES:
        return {"type": TYPES[said]}
    if said in _models():
        return _kserve(said)
    definitions = _kubernetes(releases()[-1], "_definitions.json")
    name = next((n for n in definitions["$defs"] if n.endswith(f".core.v1.{said[2:]}") or n == META + said[2:]), None)
    return name is not None and {"$ref": f"{definitions['$id']}#/$defs/{name}"}  # what is not known is refused
