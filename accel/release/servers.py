"""One server for all models of a pool: a script over the repositories as they lie in the release, nothing copied.

    servers/<pool>.sh      tritonserver on every repository of the pool, with the flags that each was measured with

A model is one that Triton loads and unloads by its name (``MODEL_CONTROL_MODE=explicit``, and ``MODELS`` for those to
begin with). The memory that is told is the sum of what each model's process was measured to take by itself.

Source: triton-inference-server/server, docs/user_guide: model_management.md ("Model Control Mode EXPLICIT",
``--load-model``), model_repository.md (several repositories, model names unique among them).
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from accel.release.document import ReleaseEntry
from accel.report import formats
from accel.triton import launch, manifest

SERVERS = "servers"
SCRIPT = """\
#!/usr/bin/env bash
# {count} models of release {version} for {pool} in one server, Triton {triton}: {names}.
# Each by itself was measured to take, with its process, {each}: {total} in all.
#   bash {pool}.sh                      all of them; TRITONSERVER=/path/to/it where it is not on PATH
#   MODEL_CONTROL_MODE=explicit MODELS="a b" bash {pool}.sh
#                                   these alone; others by POST /v2/repository/models/NAME/load
# Further arguments go to the server. ADDRESS, HTTP_PORT, GRPC_PORT and METRICS_PORT as of launch.sh.
{left_out}set -euo pipefail
root="$(cd -- "$(dirname -- "${{BASH_SOURCE[0]}}")/.." && pwd)"
export PYTHONDONTWRITEBYTECODE=1
{exports}if [[ -n "${{PYTHON_ENV:-}}" ]]; then export PATH="$PYTHON_ENV/bin:$PATH"; fi
address="${{ADDRESS:-127.0.0.1}}"
flags=(--model-control-mode="${{MODEL_CONTROL_MODE:-none}}")
if [[ "${{MODEL_CONTROL_MODE:-none}}" == explicit ]]; then
  for model in ${{MODELS:-*}}; do flags+=("--load-model=$model"); done
fi
exec "${{TRITONSERVER:-tritonserver}}" \\
{repositories}  --http-address="$address" --http-port="${{HTTP_PORT:-8000}}" \\
  --grpc-address="$address" --grpc-port="${{GRPC_PORT:-8001}}" \\
  --metrics-address="$address" --metrics-port="${{METRICS_PORT:-8002}}" \\
  --exit-timeout-secs="${{EXIT_TIMEOUT_S:-30}}" \\
{own}  "${{flags[@]}}" "$@"
"""


def scripts(
    version: str, entries: Iterable[ReleaseEntry], files: Mapping[str, Path | str]
) -> Iterator[tuple[str, str]]:
    """Yield path and text of the script of each pool that has several repositories.

    Args:
        files: of the release, with those of its repositories.

    Raises:
        InputError: a repository is damaged.
    """
    pools: dict[str, list[ReleaseEntry]] = {}
    for entry in entries:
        if entry.repository is not None:
            pools.setdefault(entry.pool, []).append(entry)
    for pool, own in pools.items():
        if len(own) > 1:
            yield f"{SERVERS}/{pool}.sh", _script(version, pool, own, files)


def _script(version: str, pool: str, entries: list[ReleaseEntry], files: Mapping[str, Path | str]) -> str:
    texts, left, memory = [], [], {}
    taken: set[str] = set()
    served, release = [], None
    for entry in entries:
        source = files[f"{entry.repository}/{manifest.FILENAME}"]
        assert isinstance(source, Path)
        made = manifest.read(source.parent)
        release = release or made.release
        if made.release != release or taken & set(made.models):
            why = f"it is for Triton {made.release}" if made.release != release else "its models' names are taken"
            left.append(f"# Left out: {entry.model}, as {why}.\n")
            continue
        taken |= set(made.models)
        served.append(entry)
        texts.append((source.parent / "launch.sh").read_text(encoding="utf-8"))
        best = next(v for v in entry.variants if v.id == entry.chosen)
        memory[entry.model] = best.peak_rss_mib
    flags = dict.fromkeys(flag for text in texts for flag in launch.flags_of(text))
    exports = dict.fromkeys(line for text in texts for line in launch.exports_of(text))
    known = [m for m in memory.values() if m is not None]
    total = formats.mebibytes(sum(known)) if len(known) == len(memory) else "not all were measured"
    return SCRIPT.format(
        count=len(served),
        version=version,
        pool=pool,
        triton=release,
        names=", ".join(memory),
        each=", ".join(f"{name} {formats.mebibytes(m) if m is not None else '?'}" for name, m in memory.items()),
        total=total,
        left_out="".join(left),
        exports="".join(f'export {name}="${{{name}:-{value}}}"\n' for name, value in exports),
        repositories="".join(f'  --model-repository="$root/{e.repository}" \\\n' for e in served),
        own="".join(f"  {flag} \\\n" for flag in flags),
    )
