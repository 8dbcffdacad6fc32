"""Which TensorRT and which GPU a plan runs on: what a plan's own account says against what is there.

Source: NVIDIA TensorRT documentation, "Version Compatibility" and "Hardware Compatibility": a plan runs on the TensorRT
version that built it, or, built version compatible, on later ones; and on GPUs of the compute capability it was built
on, or, built with AMPERE_PLUS, on all from 8.0.
"""

import re
from collections.abc import Mapping
from typing import Any

FIX = "finish its kit there (`accel build KIT`), or build it with version_compatible or hardware_compatibility"


def version_mismatch(facts: Mapping[str, Any], version: str) -> str | None:
    """Say why the plan does not run on a TensorRT version; None where it does, as far as both versions are stated.

    Args:
        facts: ``Built.facts`` of a plan.
        version: as far as it is known (``11`` says the major version and no more).
    """
    built = str(facts.get("tensorrt", ""))
    have, want = _numbers(version), _numbers(built)
    if not have or not want or all(a == b for a, b in zip(have, want, strict=False)):
        return None
    if facts.get("version_compatible") and have > want[: len(have)]:
        return None
    return f"with TensorRT {built}, and TensorRT {version} is to run it"


def gpu_mismatch(facts: Mapping[str, Any], capability: str) -> str | None:
    """Say why the plan does not run on a GPU; None where it does.

    Args:
        capability: compute capability of the GPU, ``9.0``; empty where it is not known.
    """
    built = str(facts.get("compute_capability", ""))
    if not built or not capability or built == capability:
        return None
    if facts.get("hardware_compatibility") == "ampere_plus" and _numbers(capability) >= (8, 0):
        return None
    gpu = facts.get("gpu", "a GPU")
    return f"on {gpu} (compute capability {built}), and a GPU of compute capability {capability} is to run it"


def _numbers(version: str) -> tuple[int, ...]:
    found = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, found[0].split("."))) if found else ()
