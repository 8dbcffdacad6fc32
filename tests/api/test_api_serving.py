"""``accel.serve`` with the real embedded server."""

import pytest
import tiny_module

import accel
from accel.core import environments
from accel.core.errors import InputError, SampleError, StageError


@pytest.mark.skipif(not environments.installed("triton"), reason="the embedded server is not installed")
def test_a_client_gets_what_the_model_answers_in_process(result):
    sample = tiny_module.samples(1)[0]
    given = {"ids": sample["ids"], "mask": sample["mask"], "extra_bias": sample["extra"]["bias"]}
    with accel.serve(result.variants["ort@cpu"].repository) as server:
        assert server.client.is_model_ready(server.model)
        found = server(**given)
        with pytest.raises(SampleError, match="no input 'strange'"):
            server(**given, strange=1)
    with pytest.raises(StageError, match="was stopped"):
        server(**given)
    expected = result.best(**sample)["logits"].numpy()
    assert abs(found.logits - expected).max() < 1e-5


def test_what_is_no_repository_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"manifest\.json"), accel.serve(tmp_path):
        pass
