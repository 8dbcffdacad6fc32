"""The public names are there, and importing accel costs nothing."""

import subprocess
import sys

import pytest

import accel


@pytest.mark.parametrize("name", accel.__all__)
def test_public_names_exist_and_are_documented(name):
    value = getattr(accel, name)
    assert isinstance(value, str) or value.__doc__


def test_a_shell_completes_the_public_names():
    assert set(accel.__all__) <= set(dir(accel))


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = accel.no_such_name


def test_import_is_light():
    code = "import sys, accel; print(len([m for m in sys.modules if m.startswith('accel')]))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) == 1
