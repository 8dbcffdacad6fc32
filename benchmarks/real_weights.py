"""What variants of the zoo's models with real weights keep of their task, and whether a spoilt INT8 is refused.

    accel zoo check --full magika -t ort,ort-int8,openvino-fp32,openvino-bf16,openvino-int8 -o RUNS
    python benchmarks/real_weights.py RUNS/magika --spoilt magika --how WORDS --json docs/benchmarks/real_weights.json

The rows of a run are those of its ``run.json``. ``--spoilt`` calibrates INT8 on one faint sample and holds it to the
gate: each must fail. Rows of other models that the file has stay.
"""

import argparse
import dataclasses
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import accel.run  # noqa: F401  hands the zoo in
from accel.builders import targets
from accel.core import document
from accel.core.accuracy import parity
from accel.core.errors import UnavailableError
from accel.core.feeds import read_feeds, write_feeds
from accel.core.values import Artifact, BuildRequest, Parity, Target, Variant, file_ref, to_json
from accel.exporters import describe, export_onnx, load, verdict
from accel.exporters.samples import make_samples
from accel.exporters.sources import recognise

FAINT = 0.05
"""What that sample is multiplied by where it is not a file: nobody brought it to the model's scale."""
JUDGED = 6
"""Feeds of the gate that are looked at; all of a stateful model, whose feeds are single steps."""


class Judged:
    """A zoo model with real weights, its samples, and what its gate says of an INT8 build of it.

    Attributes:
        own: the verdict on the model's own answers, with its score.
    """

    def __init__(self, name: str, folder: Path) -> None:
        """Run the model and export it; all files go into ``folder``."""
        self._folder, self._samples_folder = folder, folder / "samples"
        self._source = source = describe(request := recognise(name))
        if source.gate is None or source.weights != "pretrained":
            raise SystemExit(f"{name} has no trained weights here, or no task metric")
        model = load(source)
        run = model.run if source.states else None
        self._samples = make_samples(source, request, self._samples_folder, run=run)
        every = read_feeds(self._samples_folder / self._samples.gate.path)
        self._feeds = {n: every[n] for n in list(every)[:: 1 if source.states else max(1, len(every) // JUDGED)]}
        self._truth = {n: model.run(feed) for n, feed in self._feeds.items()}
        self._onnx = export_onnx(source, folder / "onnx", model=model)
        self.own = self._judge(self._truth)

    def int8(self, feeds: int | None = None) -> Parity:
        """Build ``openvino-int8`` whole, and hold it to its gate.

        Args:
            feeds: how many feeds of the calibration samples it sees; None for a single faint item.
        """
        source, files, used = self._source, self._samples_folder, f"{feeds or 'one'}.npz"
        assert self._samples.calibration is not None
        given = read_feeds(files / self._samples.calibration.path)
        shown = {name: given[name] for name in list(given)[:feeds]}
        if feeds is None:
            first = given["0"]
            single = {s.name: first[s.name][:1] if s.dims[0] == "batch" else first[s.name] for s in source.inputs}
            shown = {"0": {n: v * v.dtype.type(FAINT if v.dtype.kind == "f" else 1) for n, v in single.items()}}
        write_feeds(files / used, shown)
        samples = dataclasses.replace(self._samples, calibration=file_ref(files / used, files), labels={})
        builder, variant = targets.discover()["openvino-int8"], Variant(Target("openvino-int8", "cpu"), source.profile)
        out = self._folder / f"int8-{feeds}"
        out.mkdir()
        asked = BuildRequest(variant, source, self._onnx, str(self._folder / "onnx"), samples, str(files), threads=2)
        built = builder.build(asked, builder.options(search_s=0.0), out)
        session = builder.open(Artifact(variant, (), "", built, 0.0), out, threads=2, mode="latency")
        found = self._judge({n: session.run(feed) for n, feed in self._feeds.items()})
        session.close()
        return found

    def _judge(self, answers: Mapping[str, Mapping[str, np.ndarray]]) -> Parity:
        source = self._source
        gate = parity.gate_for("int8", outputs=source.outputs, task=source.gate, overrides={})
        labels = verdict.labels_of(self._samples, self._samples_folder, "gate")
        return verdict.compare(source, self._feeds, self._truth, answers, gate, labels=labels)


def row(model: str, variant: str, status: str, held: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of the file; ``held`` is a verdict as ``run.json`` has it."""
    told = {name: facts.get(name) for name in ("share_of_products", "whole_missed", "held_back_score", "search_s")}
    told["share_of_products"] = facts.get("share_of_products", facts.get("int8_share"))
    streams = [note for note in held["notes"] if "over streams" in note]
    verdict_ = {name: held[name] for name in ("gate", "found", "scores", "reasons")}
    return {"model": model, "variant": variant, "status": status, **verdict_, **told, "streams": streams}


def skipped(model: str, variant: str, reason: str) -> dict[str, Any]:
    """Return the row of a variant that was not built."""
    return {"model": model, "variant": variant, "status": "skipped", "reasons": [reason]}


def main() -> None:
    """Write the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", type=Path, help="run directories")
    parser.add_argument("--spoilt", nargs="*", default=[], help="zoo models whose INT8 is calibrated on one sample")
    parser.add_argument("--how", default="", help="how the runs were made: commit, machine, load")
    parser.add_argument("--json", type=Path, required=True)
    asked = parser.parse_args()
    rows = []
    for run in asked.runs:
        told = document.read(run)
        for variant in told.variants:
            if variant.parity is not None and variant.artifact is not None:
                parity, facts = to_json(variant.parity), variant.artifact.facts
                rows.append(row(told.model.name, variant.id, variant.status, parity, facts))
            elif variant.status == "skipped":
                rows.append(skipped(told.model.name, variant.id, str(variant.reason)))
    for name in asked.spoilt:
        spoilt = "openvino-int8@cpu, one faint sample"
        with tempfile.TemporaryDirectory() as folder:
            try:
                found = Judged(name, Path(folder)).int8()
            except UnavailableError as error:  # there is no INT8 of it
                rows.append(skipped(name, spoilt, str(error)))
                continue
        status = "ok" if found.passed else "gate_failed"
        rows.append(row(name, spoilt, status, dataclasses.asdict(found), {}))
        print(f"{name}: {status}: {'; '.join(found.reasons)}", flush=True)
    new = {(r["model"], r["variant"]) for r in rows}
    before = json.loads(asked.json.read_text(encoding="utf-8")) if asked.json.exists() else {"how": "", "rows": []}
    kept = [r for r in before["rows"] if (r["model"], r["variant"]) not in new]
    how = asked.how or before["how"]
    asked.json.write_text(json.dumps({"how": how, "rows": kept + rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
