"""One exported model for every test that types it: an export takes longer than typing."""

from pathlib import Path

import numpy as np
import pytest
from exported_models import MODELS

Feeds = list[dict[str, np.ndarray]]


@pytest.fixture(scope="session")
def small_bert(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Feeds]:
    """A small BERT as the exporter leaves it, and feeds of which no row is masked altogether."""
    path = tmp_path_factory.mktemp("small_bert") / "model.onnx"
    MODELS["bert"].export(path, dynamo=True)
    feeds = MODELS["bert"].feeds()
    for feed in feeds:
        feed["attention_mask"][:, 0] = 1
    return path, feeds
