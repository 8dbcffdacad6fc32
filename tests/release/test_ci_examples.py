"""The examples for GitHub Actions and GitLab CI: by the schemas that editors use, and every command one of ours."""

import json
import re
import shlex
from importlib import util
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from accel import cli

CI = Path(__file__).parents[2] / "examples" / "ci"
FILES = {"github-release.yml": "github-workflows.json", "gitlab-release.yml": "gitlab-ci.json"}


def scripts(value: Any) -> list[str]:
    """Return every shell script of a workflow."""
    if isinstance(value, dict):
        own = [text for k in ("run", "script", "after_script") if k in value for text in _list(value[k])]
        return own + [s for k, v in value.items() if k not in ("run", "script") for s in scripts(v)]
    return [s for item in value for s in scripts(item)] if isinstance(value, list) else []


def _list(value: Any) -> list[str]:
    return value if isinstance(value, list) else [value]


def commands(script: str) -> list[list[str]]:
    """Return the words of each accel command of a script; the shell's variables stand as they are."""
    plain = re.sub(r"\$\{\{.*?\}\}", "X", script)
    found = re.findall(r'accel release (?:[^\n>|)"]|"(?:\$\([^)]*\)|[^"])*")+', plain)
    return [shlex.split(text)[1:] for text in found]


@pytest.mark.parametrize("name", FILES)
def test_it_is_valid_by_the_published_schema(name):
    package = util.find_spec("check_jsonschema")
    if package is None or package.origin is None:
        pytest.skip("check-jsonschema, which carries the schemas, is not installed: pip install -e '.[dev]'")
    schemas = Path(package.origin).parent / "builtin_schemas" / "vendor"
    schema = json.loads((schemas / FILES[name]).read_text())
    data = yaml.safe_load((CI / name).read_text())
    data = {("on" if key is True else key): value for key, value in data.items()}  # YAML 1.1 reads on as a truth
    jsonschema.validators.validator_for(schema)(schema).validate(data)
    broken = data | ({"jobs": {"build": {"step": []}}} if "jobs" in data else {"build": {"script": 3}})
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validators.validator_for(schema)(schema).validate(broken)


@pytest.mark.parametrize("name", FILES)
def test_every_command_is_one_of_ours(name, tmp_path, monkeypatch):
    from typer.main import get_command

    monkeypatch.chdir(tmp_path)
    data = yaml.safe_load((CI / name).read_text())
    found = [words for script in scripts(data) for words in commands(script)]
    assert [words[1] for words in found] == ["plan", "build", "pull", "diff", "sign", "publish", "promote"]
    group = get_command(cli.app).commands["release"]
    for words in found:
        group.commands[words[1]].make_context(words[1], words[2:])
    with pytest.raises(Exception, match="No such option"):
        group.commands["plan"].make_context("plan", ["release.yaml", "--shop", "x"])


@pytest.mark.parametrize("name", FILES)
def test_the_report_is_posted_whatever_diff_says(name):
    text = (CI / name).read_text()
    assert text.index("release diff") < text.index("report.md", text.index("release diff"))
    assert "if: always()" in text or "after_script:" in text
