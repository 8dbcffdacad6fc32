"""What a report shows, as frozen values: the page, the Markdown and the terminal only lay them out.

``from_run`` makes them from a run document. Properties are words and figures that more than one layout wants.
"""

import re
from dataclasses import dataclass

from accel.core.document import RunDocument, VariantRecord
from accel.core.errors import END_OF_LOG, LOG_INDENT
from accel.core.values import LAYERS, PYTHON_BACKEND, Decision, Measurement, OutputParity, to_json
from accel.report.formats import decibels, figures, metric, metric_name, pairs, seconds, shares, size

COLOUR = re.compile("#[0-9a-fA-F]{6}")
PRECISIONS = ("fp32", "tf32", "bf16", "fp16", "int8", "fp8")
WORDS = {"ok": "passed", "gate_failed": "gate failed", "failed": "failed", "skipped": "skipped", "deferred": "deferred"}


@dataclass(frozen=True, slots=True)
class GateView:
    """One gate: its name, the least value that passes and the value found."""

    name: str
    needed: float | None
    found: float | None
    passed: bool
    scores: tuple[float, float] | None = None
    """Of a task metric: the variant's value and the source's own, whose share ``found`` is."""

    @property
    def label(self) -> str:
        """``SQNR``, ``rank correlation``."""
        return metric_name(self.name)

    @property
    def shown(self) -> str:
        """The value found, in its unit; ``exact`` where nothing differs; ``0.9100 (of 0.9200)`` beside the source's."""
        if self.scores is not None and (own := metric(self.name, self.scores[1])) != "1.0000":
            return f"{metric(self.name, self.scores[0])} (of {own})"
        return "exact" if self.found is None and self.passed else metric(self.name, self.found)

    @property
    def least(self) -> str:
        """The least value that passes, in its unit; of a task metric that at which the share is kept."""
        if self.scores is not None and self.needed is not None:
            return metric(self.name, self.needed * self.scores[1])
        return metric(self.name, self.needed)


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantView(VariantRecord):
    """One row: what the run says of a variant, its points of the table, and why it stands where it stands.

    Attributes:
        facts: of the build, and of the GPU while it was measured.
        latency: batch 1, one at a time; None where it was not measured.
        best: the batch size with the highest throughput.
        traffic: the size of groups that answers most requests of their own lengths; None where it was not measured.
        objective: the first objective of its device; by it the rows are sorted.
        latency_speedup / throughput_speedup / traffic_speedup: against the baseline of the same session.
        speedup_ci: the decision's interval; only the variant chosen by that objective has one.
        wins: objectives that chose it.
        lost: (objective, reason) of those that did not, where it passed its gate.
        contested: how many decisions its device has.
    """

    gates: tuple[GateView, ...]
    outputs: tuple[OutputParity, ...]
    facts: tuple[tuple[str, str], ...]
    latency: Measurement | None = None
    best: Measurement | None = None
    traffic: Measurement | None = None
    objective: str = "latency"
    latency_speedup: float | None = None
    throughput_speedup: float | None = None
    traffic_speedup: float | None = None
    speedup_ci: tuple[float, float] | None = None
    wins: tuple[str, ...] = ()
    lost: tuple[tuple[str, str], ...] = ()
    tied: bool = False
    contested: int = 0
    baseline: bool = False
    partly: str | None = None

    @property
    def precision(self) -> str | None:
        """What really runs."""
        return self.artifact.effective_precision if self.artifact else None

    @property
    def bytes(self) -> int | None:
        """Size of the built files."""
        built = self.artifact
        return (built.bytes or sum(f.bytes for f in built.files) or None) if built else None

    @property
    def family(self) -> str:
        """The first word of the target, which shares one colour."""
        return re.sub("[^a-z0-9]", "", self.target.split("-")[0].lower()) or "other"

    @property
    def colours(self) -> tuple[str, ...] | None:
        """Of its runtime on a light page and on a dark one; None where the run does not say, or not in ``#rrggbb``."""
        given = self.runtime.colours if self.runtime else None
        return given if given and len(given) == 2 and all(map(COLOUR.fullmatch, given)) else None

    @property
    def computes(self) -> bool:
        """Whether it computes anything: what asks for no precision and has none shows the harness's own cost."""
        return not (self.artifact and self.artifact.precision == self.precision == "none")

    @property
    def chosen(self) -> bool:
        """Whether one of its device's decisions names it."""
        return bool(self.wins)

    @property
    def speedup(self) -> float | None:
        """By the first objective of its device."""
        speedups = {"throughput": self.throughput_speedup, "traffic": self.traffic_speedup}
        return speedups.get(self.objective, self.latency_speedup)

    @property
    def mark(self) -> str:
        """One or two words on how it stands."""
        if self.wins:
            return "chosen" if len(self.wins) == self.contested else f"best {' and '.join(self.wins)}"
        if self.status != "ok":
            return WORDS.get(self.status, self.status)
        return "baseline" if self.baseline else "ties" if self.tied else ""

    @property
    def note(self) -> str | None:
        """Why it is not, or not everywhere, the chosen one; and if not all feeds were asked of it."""
        told = None if self.wins else self.reason
        if self.lost:
            objective, told = self.lost[0]
            told = f"{objective}: {told}" if self.wins or objective != self.objective else told
        told = (told or "").partition(END_OF_LOG)[0]  # the log stands among its details
        return "; ".join(filter(None, (told, self.partly))) or None

    @property
    def log(self) -> str:
        """The last lines of the log of a process that died; a document as it is read has a space for a line's end."""
        lines = (self.reason or "").partition(END_OF_LOG)[2].split(f" {LOG_INDENT}")
        return "\n".join(lines).strip()

    @property
    def exact(self) -> bool:
        """Every output equals the reference."""
        return bool(self.outputs) and all(o.exact for o in self.outputs)

    @property
    def sqnr_db(self) -> float | None:
        """The worst output's SQNR, over those that are not exact."""
        return min((o.sqnr_db for o in self.outputs if o.sqnr_db is not None and not o.exact), default=None)

    @property
    def accuracy(self) -> str | None:
        """The figure that its gate looks at: ``exact``, ``32.1 dB`` or the task metric's value."""
        if (task := self._task_gate) is not None:
            return task.shown
        if self.exact:
            return "exact"
        found = next((g.found for g in self.gates if g.name == "sqnr_db" and g.found is not None), self.sqnr_db)
        return None if found is None else decibels(found)

    @property
    def accuracy_label(self) -> str | None:
        """Name of the task metric, where one replaces SQNR."""
        return self._task_gate.label if self._task_gate else None

    @property
    def _task_gate(self) -> GateView | None:
        return next((g for g in self.gates if g.name not in ("sqnr_db", "shape_db") and g.found is not None), None)

    @property
    def kind(self) -> str:
        """One of fp32, tf32, bf16, fp16, int8, fp8: what really runs, else what was asked for, else ``none``."""
        for text in (self.artifact and self.artifact.precision, self.precision):
            for name in PRECISIONS:
                if text and name in text.lower():
                    return name
        return "none"

    @property
    def layers(self) -> tuple[tuple[str, str, float], ...]:
        """Of a build of several precisions: each product's name, precision and share of the multiplications."""
        rows = self.artifact.facts.get(LAYERS, ()) if self.artifact else ()
        whole = isinstance(rows, list | tuple) and all(isinstance(r, list | tuple) and len(r) == 3 for r in rows)
        told = [(str(name), precision, share) for name, precision, share in rows] if whole else []
        known = all(p in (*PRECISIONS, "none") and isinstance(s, int | float) for _, p, s in told)
        return tuple(told) if known else ()

    @property
    def layers_line(self) -> str:
        """The share of the multiplications in each precision, the largest first."""
        parts = dict.fromkeys((precision for _, precision, _ in self.layers), 0.0)
        for _, precision, share in self.layers:
            parts[precision] += share
        return shares(parts)

    @property
    def precisions(self) -> str | None:
        """What runs, as a mark: the shares of a build of several precisions, else the precision."""
        return self.layers_line if len({precision for _, precision, _ in self.layers}) > 1 else self.precision

    @property
    def built(self) -> tuple[tuple[str, str], ...]:
        """What was built, from what and where it lies, as name and text."""
        asked = self.artifact.precision if self.artifact else None
        rows = [("precision asked for", None if asked == "none" else asked), ("precision that runs", self.precision)]
        rows += [("size", None if self.bytes is None else size(self.bytes)), ("repository", self.repository)]
        rows += [("differs from the release", "; ".join(self.unverified_for_release))]
        rows += [(name.replace("_", " "), value) for name, value in self.facts]
        versions = self.artifact.versions if self.artifact else {}
        rows += [("versions", ", ".join(f"{name} {value}" for name, value in versions.items()))]
        return tuple((name, value) for name, value in rows if value)

    @property
    def peak_rss_mib(self) -> float | None:
        """Peak memory of the process that measured latency, else throughput, else the traffic."""
        point = self.latency or self.best or self.traffic
        return point.peak_rss_mib if point else None

    @property
    def served(self) -> tuple[Measurement, ...]:
        """The newest point of each load that a Triton server was put under, by repository and then by load."""
        newest = {
            (p.repository, p.batch, p.rate_per_s, p.concurrency): p for p in self.measurements if p.via == "triton"
        }
        order = lambda p: (p.repository or "", p.rate_per_s or 0.0, p.concurrency or 0, p.batch or 0)  # noqa: E731
        return tuple(sorted(newest.values(), key=order))

    def both_ways(self, objective: str) -> str:
        """Say what it takes in process and as served, with the server's own split of the time of a request."""
        every = [p for p in self.measurements if (p.via, p.scenario) == ("inprocess", objective)]
        behind = [p for p in self.served if p.scenario == objective]
        if not every or not behind:
            return f"{self.id} was not measured {'in process' if behind else 'as served'}"
        alone, point = (max(points, key=lambda p: p.throughput_per_s) for points in (every, behind))
        if objective == "latency":
            said = [f"{figures(p.p50_ms or p.mean_ms)} ms" for p in (alone, point)]
        else:
            said = [f"{figures(p.throughput_per_s)}/s" for p in (alone, point)]
            said[0] += f" (batch {alone.batch})"
        text = f"{self.id} {said[0]} in process, {said[1]} as served through {point.backend}, {point.load}"
        if (server := point.server) is None:
            return text
        inside = server.queue_ms + server.input_ms + server.infer_ms + server.output_ms
        parts = {
            "model": server.infer_ms,
            "queue": server.queue_ms,
            "copies": server.input_ms + server.output_ms,
            "network and client": max(0.0, point.mean_ms - inside),
        }
        return f"{text} ({', '.join(f'{name} {figures(ms)} ms' for name, ms in parts.items())})"

    @property
    def by_batch(self) -> tuple[Measurement, ...]:
        """The best point of each batch size in process, over the scenarios that look for throughput."""
        looking = [p for p in self.measurements if p.scenario not in ("latency", "traffic") and p.via == "inprocess"]
        known = [p for p in looking if p.batch >= 1 and p.throughput_per_s > 0]
        sizes = sorted({p.batch for p in known})
        return tuple(max((p for p in known if p.batch == n), key=lambda p: p.throughput_per_s) for n in sizes)

    @property
    def by_group(self) -> tuple[Measurement, ...]:
        """The newest traffic point of each size of groups."""
        newest = {p.batch: p for p in self.measurements if p.traffic is not None}
        return tuple(newest[batch] for batch in sorted(newest))

    @property
    def unstable(self) -> bool:
        """Whether a point of the table did not settle."""
        return any(p is not None and not p.stable for p in (self.latency, self.best, self.traffic))


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionView(Decision):
    """The choice for one device and objective, with the row it chose.

    Attributes:
        row: the chosen variant.
        limits: the constraints in words.
        latency / best / traffic: the chosen one's points, as ``via`` measured it.
    """

    row: VariantView | None
    limits: tuple[str, ...]
    latency: Measurement | None
    best: Measurement | None
    traffic: Measurement | None

    @property
    def faster(self) -> bool:
        """Whether it is faster than the baseline, also at the lower end of the interval."""
        return (self.speedup or 0.0) >= 1 and (self.speedup_ci is None or self.speedup_ci[0] > 1)

    @property
    def doubt(self) -> str | None:
        """What a headline says beside a figure that does not settle the choice; None where nothing is open."""
        if self.verdict == "undecided":
            return "not decided"
        open_ = self.speedup_ci is not None and self.speedup_ci[0] <= 1 <= self.speedup_ci[1]
        return "not known to be faster" if open_ else None


@dataclass(frozen=True, slots=True)
class RunView:
    """A whole run, ready to be laid out.

    Attributes:
        document: the run itself; the rest is what is made of it.
        integers: what became of 64-bit integers.
        hardware: name and text of each fact.
    """

    document: RunDocument
    name: str
    framework: str
    integers: str | None
    hardware_id: str
    hardware: tuple[tuple[str, str], ...]
    variants: tuple[VariantView, ...]
    decisions: tuple[DecisionView, ...]

    @property
    def proved(self) -> bool:
        """Whether the accuracy figures are worth something."""
        return self.document.model.accuracy == "proved"

    @property
    def accuracy_line(self) -> str:
        """One sentence on what the accuracy figures are worth."""
        if not any(v.status in ("ok", "deferred") for v in self.document.variants):
            return "No variant passed: nothing is proved."
        if self.proved:
            return "Accuracy proved: real weights met real samples."
        compared = "only speed was compared; " if self.measures else ""
        return f"Accuracy UNPROVED: {compared}agreement on these weights or samples proves nothing."

    @property
    def measures(self) -> bool:
        """Whether the run was to measure anything."""
        return self.document.settings.get("bench") != "none"

    @property
    def why_no_decision(self) -> str:
        """Why a run without decisions has none."""
        if not self.measures:
            return "nothing was measured, as asked (--bench none): variants were built, proved and packaged only"
        return "the run was stopped early, or no variant could be measured"

    @property
    def model(self) -> tuple[tuple[str, str], ...]:
        """Where the model came from and what it takes and gives, as name and text."""
        model = self.document.model
        rows = [("source", model.source), ("weights", model.weights), ("revision", model.revision)]
        for name, specs in (("input", model.inputs), ("output", model.outputs)):
            rows += [(name, f"{s.name}: {s.dtype} {'×'.join(map(str, s.dims)) or 'scalar'}") for s in specs]
        rows.append(("integers", self.integers))
        return tuple((name, value) for name, value in rows if value)

    @property
    def sample_facts(self) -> tuple[tuple[str, str], ...]:
        """What calibration and gate ran on, as name and text."""
        found = pairs(to_json(self.document.model.samples) or {})
        return tuple((name.replace("_", " "), value) for name, value in found) or (
            ("samples", "not recorded in this run"),
        )

    @property
    def method(self) -> tuple[str, ...]:
        """How the figures came about, in sentences."""
        if not self.measures:
            return (f"Not at all: {self.why_no_decision}.",)
        settings = dict(pairs(self.document.settings))
        rounds = f"Up to {settings['rounds']} rounds" if "rounds" in settings else "Rounds"
        length = f" of {settings['round_s']} s" if "round_s" in settings else ""
        return (
            "Every variant ran in a fresh process with the same inputs, the same warm-up and the same monotonic clock; "
            f"copies in and out are part of the time. {rounds}{length} were interleaved across the variants, so that "
            "drift of the machine hits all alike; what was clearly slower left early.",
            "A speed-up is a ratio within one session, with its 99 % interval over the paired rounds. Two variants tie "
            "when the interval of their ratio lies inside ±3 %; a tie goes to the higher precision, then to the "
            "smaller artifact. Where the interval allows either to be faster, the choice is undecided. Memory is the "
            "peak resident set of the variant's process.",
        )

    @property
    def settings_and_times(self) -> tuple[tuple[str, str], ...]:
        """The settings of the run and how long its stages took, as name and text."""
        times = tuple((f"{name} took", seconds(value)) for name, value in self.document.timings_s.items())
        return tuple((name.replace("_", " "), value) for name, value in pairs(self.document.settings)) + times

    @property
    def traffic(self) -> tuple[tuple[VariantView, Measurement], ...]:
        """The newest point of each size of groups that requests of their own lengths were answered in."""
        return tuple((v, p) for v in self.variants for p in v.by_group)

    @property
    def served(self) -> tuple[tuple[VariantView, Measurement], ...]:
        """Every point that a Triton server answered, with its variant."""
        return tuple((v, p) for v in self.variants for p in v.served)

    @property
    def served_line(self) -> str:
        """What answered, where it was not the backend that the repository was emitted for."""
        text = "A real Triton server answered, loaded through gRPC on this machine, which the load generator shared."
        if any(p.backend == PYTHON_BACKEND for _, p in self.served):
            text += " “python” is the Python-backend variant: the same artifact, answered by Triton's Python backend."
        return text

    @property
    def disagreements(self) -> tuple[str, ...]:
        """Where something else was chosen as served than in process: what each of the two takes either way."""
        said = []
        chosen = {(d.via, d.device, d.objective): d.row for d in self.decisions if d.row is not None}
        for (via, device, objective), served in chosen.items():
            alone = chosen.get(("inprocess", device, objective))
            if via == "triton" and alone is not None and alone.id != served.id:
                each = "; ".join(row.both_ways(objective) for row in (alone, served))
                said.append(f"For {objective}, {served.id} was chosen as served and {alone.id} in process: {each}.")
        return tuple(said)

    @property
    def verdicts(self) -> tuple[tuple[DecisionView, ...], ...]:
        """The decisions, with those of one device together that chose the same variant."""
        groups: dict[tuple[str, str, str], list[DecisionView]] = {}
        for decision in self.decisions:
            key = decision.row.id if decision.row else f"nothing for {decision.objective}"
            groups.setdefault((decision.device, decision.via, key), []).append(decision)
        return tuple(tuple(group) for group in groups.values())

    @property
    def objectives(self) -> tuple[str, ...]:
        """The objectives that the rows' speed-ups are for: the first one of each device."""
        return tuple(dict.fromkeys(v.objective for v in self.variants if v.speedup is not None))

    @property
    def by_device(self) -> tuple[tuple[str | None, tuple[VariantView, ...]], ...]:
        """The rows in groups with a heading, one a device; one group without, where only one device was measured."""
        devices = list(dict.fromkeys(v.device for v in self.variants))
        if len({v.device for v in self.variants if v.latency or v.best}) < 2:
            return ((None, self.variants),)
        return tuple((d, tuple(v for v in self.variants if v.device == d)) for d in devices)

    @property
    def title(self) -> str:
        """The GPUs and the CPU of the run, in words."""
        return " · ".join(v for kind in ("GPU", "CPU") for k, v in self.hardware if k == kind) or self.hardware_id
