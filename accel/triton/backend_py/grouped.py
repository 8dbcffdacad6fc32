"""Serves one accel artifact in Triton's Python backend, requests of different sizes together.

``model.py`` beside it, with two differences. ``allow_ragged_batch`` lets the server hand over what waits whatever its
shape; that is trimmed by its mask and grouped by length, or packed into rows that texts share, or grouped by shape
where there is no mask, and answered in the client's shape (``accel.triton.grouping``). And what is handed over waits
here, not in the server: ``execute`` returns at once, a thread answers, and so a group is made of all that wait. All
that is taken at once is answered before anything that came later, the short ones first, so that a long one waits for
what came with it and no longer. Beyond ``HELD`` rows the server's own queue, with its limits, holds the rest.

Source: python_backend pull request 364 (24.06), response senders of models that are not decoupled; core,
src/dynamic_batch_scheduler.cc: inputs without ``allow_ragged_batch`` close a batch where the shape changes.
"""

import contextlib
import functools
import importlib
import json
import threading
from concurrent.futures import ThreadPoolExecutor

import triton_python_backend_utils as pb_utils  # type: ignore[import-not-found]

# The server imports this file as ``<version>.grouped``, below the model's folder.
plain = importlib.import_module(f"{__name__.rpartition('.')[0]}.model".lstrip("."))

HELD = 256
"""Rows that wait here at most: more would wait where the server's queue policy does not see them."""


COUNTERS = {
    "accel_calls": "Calls of the model, each on requests of similar length or of one shape",
    "accel_rows": "Rows in these calls",
    "accel_tokens": "Positions of these rows that masks show, or that lie between such; without a mask their values",
    "accel_places": "Positions in these calls, with padding",
}
"""Counters at the server's ``/metrics``: rows per call, and the share of padding, 1 - tokens / places."""


class TritonPythonModel(plain.TritonPythonModel):  # type: ignore[name-defined]
    """The class the Python backend looks for."""

    def initialize(self, args):  # type: ignore[no-untyped-def]
        """Open the artifact's session, in the thread that will run it."""
        self.thread = ThreadPoolExecutor(max_workers=1)
        self.thread.submit(super().initialize, args).result()
        self.grouping = importlib.import_module("accel.triton.grouping")
        spec = json.loads((plain.HERE / "artifact.json").read_text(encoding="utf-8"))
        self.how = importlib.import_module("accel.core.values").from_json(self.grouping.Grouping, spec["grouping"])
        self.merged = most_merged(json.loads(args["model_config"]), self.how.rows)
        self.families, self.counters = [], []  # a counter lives as long as its family
        with contextlib.suppress(Exception):  # a server without metrics has none
            self.families = [pb_utils.MetricFamily(n, w, pb_utils.MetricFamily.COUNTER) for n, w in COUNTERS.items()]
            self.counters = [family.Metric(labels={"model": args["model_name"]}) for family in self.families]
        self.waiting: list = []  # (rows, sender, wanted outputs, feed)
        self.held, self.running, self.changed = 0, False, threading.Condition()

    def opened(self, builder, spec, artifact, **how):  # type: ignore[no-untyped-def]
        """Return the session that the builder opens: where texts share rows, one that takes such rows."""
        if not spec["grouping"].get("packing"):
            return super().opened(builder, spec, artifact, **how)
        return builder.open_packed(artifact, plain.HERE / "artifact", mask=spec["grouping"]["mask"], **how)

    def execute(self, requests):  # type: ignore[no-untyped-def]
        """Take requests in, and have them answered.

        Inputs are copied: what the server passes is gone when this returns (python_backend README, ``execute``).
        """
        from accel.core.errors import AccelError

        taken = []
        for request in requests:
            sender = request.get_response_sender()
            try:
                feed = self.fit({t.name(): plain.np.array(t.as_numpy()) for t in request.inputs()})
            except AccelError as error:
                send(sender, plain.refuse(plain.Wrong(error.message)))
                continue
            taken.append((len(next(iter(feed.values()))), sender, request.requested_output_names(), feed))
        with self.changed:
            self.changed.wait_for(lambda: self.held < HELD)
            self.waiting += taken
            self.held += sum(rows for rows, *_ in taken)
            if not self.running:
                self.running = True
                self.thread.submit(self.work)

    def work(self):  # type: ignore[no-untyped-def]
        """Answer what waits, up to a window of rows at a time, until nothing does."""
        while True:
            with self.changed:
                rows, count = 0, 0
                for more, *_ in self.waiting:
                    if count and rows + more > self.grouping.WINDOW:
                        break
                    rows, count = rows + more, count + 1
                taken = {number: one[1:] for number, one in enumerate(self.waiting[:count])}
                self.waiting = self.waiting[count:]
                if not taken:
                    self.running = False
                    return
            try:
                self.answer_all(taken)
            except Exception as error:  # noqa: BLE001  no client waits for an answer that nobody will send
                for sender, *_ in taken.values():
                    send(sender, plain.refuse(f"{type(error).__name__}: {error}"))
            finally:
                with self.changed:
                    self.held -= rows
                    self.changed.notify_all()

    def answer_all(self, taken):  # type: ignore[no-untyped-def]
        """Answer requests, those of the cheapest groups first; one that fails does not take others along."""
        feeds, axis = {number: feed for number, (_, _, feed) in taken.items()}, self.how.axis
        answers = self.grouping.Answers(feeds, self.inputs, self.outputs, axis)

        def answer(number, found):  # type: ignore[no-untyped-def]
            sender, wanted, _ = taken.pop(number)
            if not isinstance(found, str):
                found = pb_utils.InferenceResponse([pb_utils.Tensor(n, a) for n, a in found.items() if n in wanted])
            send(sender, plain.refuse(found) if isinstance(found, str) else found)

        most = max(
            self.merged, *(len(next(iter(feed.values()))) for feed in feeds.values())
        )  # a client's batch stays one
        how = self.how.merging(most)
        for group, outputs in self.started(self.grouping.groups(feeds, how), feeds, how):
            if not any(row.request in taken for row in group):
                continue  # what they belong to was answered alone
            self.count(group, how)
            try:
                found = dict(answers.take(group, outputs()))
            except Exception:  # noqa: BLE001  whatever a runtime raises is the answer to the request that caused it
                found = {row.request: self.alone(feeds[row.request]) for row in group if row.request in taken}
            for number, complete in found.items():
                answer(number, complete)

    def started(self, groups, feeds, how):  # type: ignore[no-untyped-def]
        """Yield groups, each with what returns its outputs when it is called: here one call of the session."""
        return ((group, functools.partial(self.call, group, feeds, how)) for group in groups)

    def call(self, group, feeds, how):  # type: ignore[no-untyped-def]
        """Return the outputs of a group row by row, its rows joined to one feed."""
        return self.grouping.call(group, feeds, self.inputs, self.outputs, how, self.session.run)

    def count(self, group, how):  # type: ignore[no-untyped-def]
        """Count a call: the server's own statistics say only how often requests were handed over."""
        tokens, places = sum(row.length for row in group), self.grouping.places(group, how)
        for counter, more in zip(self.counters, (1, len(group), tokens, places), strict=False):
            counter.increment(more)

    def alone(self, feed):  # type: ignore[no-untyped-def]
        """Return the answer to one request by itself, at its own length, or the message of its failure."""
        return self.answers([feed])[0]

    def run(self, feeds):  # type: ignore[no-untyped-def]
        """Run feeds by themselves, in such calls as the session takes."""
        if self.how.packing is None:
            return super().run(feeds)
        given = dict(enumerate(feeds))
        found = self.grouping.answered(given, self.inputs, self.outputs, self.how.merging(1), self.session.run)
        return [found[number] for number in given]

    def finalize(self):  # type: ignore[no-untyped-def]
        """Close the session, when all is answered."""
        self.thread.submit(super().finalize).result()
        self.thread.shutdown()


def most_merged(config, rows):  # type: ignore[no-untyped-def]
    """Return the most rows of a call that the config lets requests be merged to: as the server, were it to merge them.

    Without ``dynamic_batching`` that is one; a delay lets a batch grow beyond its preferred sizes.
    """
    batching = config.get("dynamic_batching")
    if batching is None:
        return 1
    rows = min(rows, int(config.get("max_batch_size") or rows))
    preferred = [int(size) for size in batching.get("preferred_batch_size", ())]
    return max(preferred) if preferred and not int(batching.get("max_queue_delay_microseconds", 0)) else rows


def send(sender, response):  # type: ignore[no-untyped-def]
    """Send the one response of a request; where there is no room for it (shared memory is full), a refusal says so.

    Never raises: one request that cannot be answered must not keep all others from theirs.
    """
    flags = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
    try:
        sender.send(response, flags=flags)
    except Exception as error:  # noqa: BLE001  whatever the server's own code raises
        with contextlib.suppress(Exception):
            sender.send(plain.refuse(f"the answer could not be sent: {error}"), flags=flags)
