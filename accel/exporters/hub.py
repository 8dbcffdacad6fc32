"""Hugging Face models on this machine: where the cache keeps them, and how one that the user named is fetched."""

import os
from pathlib import Path

from accel.core.errors import InputError, UnavailableError, raised_as
from accel.core.files import load_json


def huggingface_folder(reference: str, revision: str | None = None) -> Path | None:
    """Return the folder on this machine that holds a hub id's files, or None where it was never downloaded.

    Source: https://huggingface.co/docs/huggingface_hub/guides/manage-cache (refs/<revision> names the commit,
    snapshots/<commit>/ holds the files).
    """
    if Path(reference).is_dir():
        return Path(reference)
    home = Path(os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface")
    cache = Path(os.environ.get("HF_HUB_CACHE") or home / "hub").expanduser()
    repository = cache / f"models--{reference.replace('/', '--')}"
    ref = repository / "refs" / (revision or "main")
    commit = ref.read_text().strip() if ref.is_file() else revision
    folder = repository / "snapshots" / commit if commit else None
    return folder if folder is not None and _complete(folder) else None


def _complete(folder: Path) -> bool:
    """Say whether the folder holds a config and every file of its safetensors weights (a download may have stopped)."""
    if not (folder / "config.json").is_file():
        return False
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        try:
            shards = set(load_json(index.read_text())["weight_map"].values())
        except (ValueError, KeyError, AttributeError):
            return False
        return all((folder / shard).is_file() for shard in shards)
    return (folder / "model.safetensors").is_file()


def offline() -> bool:
    """Say whether the user forbade the network with HF_HUB_OFFLINE."""
    return os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on")


def download(reference: str, revision: str | None = None) -> Path:
    """Bring a hub id's config, tokenizer and safetensors here; called only for what the user asked for by name.

    Raises:
        UnavailableError: the network is forbidden or fails, or the hub has no such model.
    """
    if offline():
        raise UnavailableError(
            f"{reference} is not a folder here, nor a hub id in the local cache, and HF_HUB_OFFLINE is set",
            fix="unset HF_HUB_OFFLINE, or give a local folder by its path",
        )
    with raised_as(
        UnavailableError,
        Exception,
        f"{reference} could not be downloaded",
        fix="check the name and the network, or give a local folder by its path",
    ):
        from huggingface_hub import snapshot_download

        snapshot_download(
            reference, revision=revision, allow_patterns=["*.json", "*.safetensors", "*.txt", "*.model", "README.md"]
        )
    folder = huggingface_folder(reference, revision)
    if folder is None:
        raise InputError(f"{reference} has no safetensors weights, or its download stopped half-way", fix="repeat it")
    return folder
