"""``accel release publish``: the forms in which a release goes out, by how a place is named.

s3://BUCKET/PREFIX, gs://…, abfs://…      the release itself, with pointers (``publishing``)
file:///PATH, PATH                        the same in a folder
sagemaker:URL                             archives and JSON for SageMaker, in a folder or a bucket (``sagemaker``)
oci://HOST/REPOSITORY, oci-layout:FOLDER  an artifact, and an image for each repository (``oci``)
bundle:FILE                               all of it as one file (``bundle``)
kserve:FOLDER                             YAML that serves it from one of the others (``kserve``)
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from accel.core.errors import UsageError
from accel.core.trust import Trusted
from accel.core.values import sha256_file
from accel.release import bundle, kserve, oci, publishing, sagemaker
from accel.release.document import FILENAME
from accel.release.object_store import ObjectStore


def publish(folder: Path, places: Sequence[str], *, key: Trusted) -> dict[str, Any]:
    """Publish a signed release in every form that is asked for, and return its digest and where it went.

    Raises:
        CheckFailed / OutputError: as ``publishing.publish``.
        UsageError: KServe is asked for without a place that it can read from.
    """
    release = publishing.fit(folder, key)
    digest = sha256_file(folder / FILENAME)
    published: list[str] = []
    storage: dict[str, str] = {}  # of the last place that a cluster can read
    for place in sorted(places, key=lambda p: p.startswith("kserve:")):
        form, _, url = place.partition(":")
        if form == "sagemaker":
            published.append(sagemaker.publish(folder, release, ObjectStore(url)))
        elif form in ("oci", "oci-layout"):
            store = oci.Registry(place) if form == "oci" else oci.Layout(Path(url))
            images = oci.publish(folder, release, store)
            if form == "oci":
                storage = {root: f"oci+native://{image}" for root, image in images.items()}
            published.append(f"{store.url}:{release.version}")
        elif form == "bundle":
            published.append(str(bundle.write(folder, release, Path(url))))
        elif form == "kserve":
            if not storage and any(e.repository for e in release.entries):
                raise UsageError(
                    f"{place}: KServe reads models from a place that the cluster reaches, and none is given",
                    fix="--to s3://BUCKET/PREFIX or --to oci://HOST/REPOSITORY in the same command",
                )
            published.append(str(kserve.write(folder, release, Path(url), storage)))
        else:
            publishing.upload(folder, release, to := ObjectStore(place), key=key)
            if not to.local:
                base = f"{to.address}/releases/{release.version}/{digest}"
                storage = {e.repository: f"{base}/{e.repository}" for e in release.entries if e.repository}
            published.append(place)
    return {"digest": digest, "published": published}
