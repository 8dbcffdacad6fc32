"""What a release was made of and by: an in-toto statement with SLSA's provenance, and a CycloneDX ML-BOM.

Both are written from ``release.json``'s content alone, and signed with the rest of the folder.

Sources: https://in-toto.io/Statement/v1, https://slsa.dev/spec/v1.1/provenance (its predicate), and CycloneDX 1.6,
"Machine Learning Bill of Materials" (component type ``machine-learning-model``).
"""

import json
import uuid
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any

from accel.core.errors import UnavailableError
from accel.core.values import FileRef
from accel.release.document import ModelLine, Release

STATEMENT, BOM = "provenance.json", "bom.cdx.json"
BUILD_TYPE = "https://accel.invalid/release/v1"
"""The name of our form of ``externalParameters``: SLSA asks for a URI, which need not lead anywhere."""


def demand() -> None:
    """Refuse before hours of work, rather than after.

    Raises:
        UnavailableError: cyclonedx-python-lib is not installed.
    """
    try:
        import cyclonedx  # noqa: F401
    except ImportError as error:
        raise UnavailableError(
            f"a release carries a bill of materials, and cyclonedx-python-lib is missing: {error}",
            fix="pip install 'accel[release]'",
        ) from error


def statement(release: Release, files: Iterable[FileRef]) -> str:
    """Return the in-toto statement: every file, the models it came from, and the versions that took part."""
    made = [{"name": f.path, "digest": {"sha256": f.sha256}} for f in files]
    sources = [
        {"name": m.name, "uri": m.source, "digest": {"sha256": m.onnx.sha256}, "mediaType": "application/onnx"}
        for m in release.models
        if m.onnx is not None
    ]
    packages = [
        {"uri": f"pkg:pypi/{name.lower()}@{version}", "annotations": {"machine": machine}}
        for machine, versions in release.toolchains.items()
        for name, version in versions.items()
    ]
    predicate = {
        "buildDefinition": {
            "buildType": BUILD_TYPE,
            "externalParameters": {"release": release.version, "asked_sha256": release.asked_sha256},
            "internalParameters": {"machines": list(release.toolchains)},
            "resolvedDependencies": sources + packages,
        },
        "runDetails": {
            "builder": {"id": f"pkg:pypi/accel@{release.accel}"},
            "metadata": {"finishedOn": release.created},
        },
    }
    whole = {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": made,
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": predicate,
    }
    return json.dumps(whole, indent=1) + "\n"


def bill(release: Release) -> str:
    """Return the ML-BOM: the models and their licences, what each repository was made of, and every package."""
    from cyclonedx.model.bom import Bom, BomMetaData
    from cyclonedx.model.component import Component, ComponentType
    from cyclonedx.model.dependency import Dependency
    from cyclonedx.output.json import JsonV1Dot6
    from packageurl import PackageURL

    root = Component(name="accel-release", version=release.version, type=ComponentType.APPLICATION, bom_ref="release")
    bom = Bom(
        serial_number=uuid.uuid5(uuid.NAMESPACE_URL, f"{release.version} {release.created} {release.asked_sha256}"),
        metadata=BomMetaData(component=root, timestamp=datetime.fromisoformat(release.created)),
    )
    models = [_model(model, _facts(release, model.name)) for model in release.models]
    packages = [
        Component(
            name=name, version=version, type=ComponentType.LIBRARY, bom_ref=f"pkg:{name}@{version}",
            purl=PackageURL("pypi", None, name.lower(), version),
        )
        for name, version in sorted({pair for found in release.toolchains.values() for pair in found.items()})
    ]  # fmt: skip
    bom.components.update([*models, *packages])
    # Bom.register_dependency looks through all of them each time
    needs = [(root, models), *((model, packages) for model in models), *((package, []) for package in packages)]
    bom.dependencies.update(Dependency(one.bom_ref, [Dependency(c.bom_ref) for c in of]) for one, of in needs)
    return JsonV1Dot6(bom).output_as_string(indent=1) + "\n"


def _model(model: ModelLine, facts: Iterable[tuple[str, str]]) -> Any:
    from cyclonedx.model import HashAlgorithm, HashType, Property
    from cyclonedx.model.component import Component, ComponentType
    from cyclonedx.model.license import DisjunctiveLicense

    return Component(
        name=model.name,
        version=model.revision,
        type=ComponentType.MACHINE_LEARNING_MODEL,
        bom_ref=f"model:{model.name}",
        description=model.source,
        licenses=[DisjunctiveLicense(name=model.licence)] if model.licence else [],
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=model.onnx.sha256)] if model.onnx else [],
        properties=[Property(name=f"accel:{name}", value=value) for name, value in facts],
    )


def _facts(release: Release, model: str) -> Iterator[tuple[str, str]]:
    line = next(m for m in release.models if m.name == model)
    given = {"framework": line.framework, "weights": line.weights, "accuracy": line.accuracy, "samples": line.samples}
    given["licence accepted"] = line.accepted
    yield from ((name, value) for name, value in given.items() if value)
    for entry in release.entries:
        if entry.model == model and entry.chosen:
            yield f"chosen:{entry.pool}", entry.chosen
