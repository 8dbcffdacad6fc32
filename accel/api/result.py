"""What a run found, for Python: its variants, its decisions, and the best variant as something to call.

Everything is read from the run directory, so a result can be had again at any time, in any process.
"""

import contextlib
import shutil
import threading
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from accel.api.model import Model, load
from accel.core import document, hardware
from accel.core.errors import CheckFailed, OutputError, UsageError
from accel.core.values import Artifact, Decision, Measurement
from accel.report.from_run import run_view
from accel.report.view import VariantView


class VariantResult:
    """One variant of a run.

    Attributes:
        id: ``openvino-int8@cpu``.
        status: ``ok``, or why it cannot be chosen: ``gate_failed``, ``failed``, ``skipped``, ``deferred``.
        reason / fix: of such a status.
        parity: how it compared with the source; None where it never ran.
        speedup: how many times as fast as the baseline of the same session, by the run's first objective; None where
            that is not known.
        p50_ms: median latency of a batch of one; None where it was not measured.
        precision: what it really computes in.
        measurements: every point.
    """

    def __init__(self, row: VariantView, run_dir: Path) -> None:
        self._row, self._run_dir = row, run_dir
        self.id = row.id
        self.status, self.reason, self.fix = row.status, row.reason, row.fix
        self.parity: document.Verdict | None = row.parity
        self.speedup: float | None = row.speedup
        self.p50_ms: float | None = row.latency.p50_ms if row.latency else None
        self.precision: str | None = row.precision
        self.measurements: tuple[Measurement, ...] = row.measurements

    @property
    def repository(self) -> Path | None:
        """Its Triton model repository; None where there is none."""
        return self._run_dir / self._row.repository if self._row.repository else None

    @property
    def artifact(self) -> Artifact:
        """What was built; its files lie in ``folder``.

        Raises:
            InputError: nothing was built of it.
        """
        return self._row.to_artifact()

    @property
    def folder(self) -> Path:
        """Where the built files lie."""
        return self._run_dir / "variants" / self.id

    def load(self, *, threads: int | None = None, mode: Literal["latency", "throughput"] = "latency") -> Model:
        """Load it into this process.

        Args:
            threads / mode: as for ``accel.load``; by default as many threads as it was measured with.

        Raises:
            InputError: nothing was built of it.
            UnavailableError: its runtime is not in this process's environment.
        """
        if threads is None and (measured := self._row.latency) is not None:
            threads = min(measured.threads, hardware.cpu_threads())
        return load(self.repository or self.folder, threads=threads, mode=mode)

    def __repr__(self) -> str:
        figures = [f"{self.speedup:.2f} x" if self.speedup else "", f"{self.p50_ms:.3g} ms" if self.p50_ms else ""]
        return f"<{self.id} {self.status}{''.join(f', {f}' for f in figures if f)}>"


class Result(contextlib.AbstractContextManager["Result"]):
    """What a run found.

    Args:
        path: the run directory.

    Attributes:
        path: the run directory.
        document: ``run.json``.
        variants: every variant that was asked for, by id, the best first.
        decisions: one for each device and objective.

    Raises:
        InputError: there is no run, or none that this version reads.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.document = document.read(self.path)
        view = run_view(self.document)
        self.variants: Mapping[str, VariantResult] = {row.id: VariantResult(row, self.path) for row in view.variants}
        self.decisions: tuple[Decision, ...] = self.document.decisions
        self._lock = threading.Lock()
        self._best: Model | None = None

    @cached_property
    def decision(self) -> Decision:
        """The decision that ``best`` follows: by the first objective, of a device on which something qualified.

        Raises:
            CheckFailed: the run decided nothing.
        """
        if not self.decisions:
            raise CheckFailed(f"the run {self.path} decided nothing: {self._outcomes()}", fix="see report.html in it")
        own = list(document.shipping(self.decisions).values())
        return next((d for d in reversed(own) if d.chosen is not None), own[0])

    @property
    def best(self) -> Model:
        """The chosen variant, loaded when it is first asked for.

        Raises:
            CheckFailed: no variant was chosen; the message has the reason.
            UnavailableError: its runtime is not in this process's environment.
        """
        with self._lock:
            if self._best is None:
                chosen = self.decision.chosen
                if chosen is None:
                    raise CheckFailed(f"{self.decision.reason}: {self._outcomes()}", fix=f"{self.path / 'report.html'}")
                self._best = self.variants[chosen].load()
            return self._best

    def report(self, path: str | Path) -> Path:
        """Write the report to a file: ``.html`` (self-contained) or ``.md``; return its path.

        Raises:
            UsageError: another suffix.
            OutputError: it cannot be written.
        """
        out = Path(path)
        if out.suffix not in (".html", ".md"):
            raise UsageError(f"cannot write a report to {out}: expected a file that ends in .html or .md")
        try:
            shutil.copyfile(self.path / f"report{out.suffix}", out)
        except OSError as error:
            raise OutputError(
                f"cannot write {out}: {error}", fix="name a folder that exists and can be written"
            ) from error
        return out

    def close(self) -> None:
        """Close ``best`` if it was loaded; it is loaded again when it is asked for."""
        with self._lock:
            model, self._best = self._best, None
        if model is not None:
            model.close()

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return Result, (self.path,)

    def __repr__(self) -> str:
        return f"<accel.Result {self.path}: {(self.decisions and self.decision.reason) or self._outcomes()}>"

    def _repr_html_(self) -> str:
        """Show the verdict and the variants in a notebook."""
        from accel.report.notebook import fragment

        return fragment(run_view(self.document))

    def _outcomes(self) -> str:
        return "; ".join(f"{v.id} {v.status}" + (f" ({v.reason})" if v.reason else "") for v in self.variants.values())
