"""As much of a precision as the gate allows, in OpenVINO: which layers stay finer, found on calibration samples.

In a model that runs in bfloat16 a mark in the IR keeps a node in float32. In an INT8 model a layer returns to float by
taking out the FakeQuantize nodes around it. The whole model is tried first; where it holds the gate, nothing changes.
"""

import fcntl
import itertools
import json
import math
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np

from accel.builders import held_back
from accel.builders.calibration import calibration_feeds
from accel.core.errors import StageError, first_line
from accel.core.feeds import Feed
from accel.core.values import LAYERS, BuildRequest, Precision, from_json, sha256_json, to_json
from accel.graph import sensitivity

ROOM_DB = held_back.ROOM_DB / 2
"""The room above the gate: what misses it is built again with twice as much."""
JUDGE_S = 5.0
"""How long the float model may take for the feeds that judge; one of them judges in any case."""
BESIDE_DB = 3.0
"""So far above INT8's floor bfloat16 may do for all that is float beside it: half of the noise may be its."""
OTHERS_SHARE = 0.5
"""Share of the time in which other ways to calibrate are tried."""
RANGES_SHARE = 0.12
"""Other ranges are worth half a decibel (docs/benchmarks/calibrations.json), and histograms take three times as long:
the share of the time in which they are tried."""
FEW_ITEMS = 64
"""With fewer calibration items, those that judged calibrate what is built in the end, too: the quarter of 43 sentences
is worth up to 0.8 dB of MiniLM."""
NOTHING = "no part of it was found to hold the gate"
SHORT = {"f32": "fp32", "f16": "fp16", "bf16": "bf16", "u8": "int8", "i8": "int8"}
"""OpenVINO's name of a type → accel's name of the precision."""
_SUMMED = {"Convolution": 1, "GroupConvolution": 2, "ConvolutionBackpropData": 1, "GroupConvolutionBackpropData": 2}
"""Convolution → the axis of its weights from which on all belong to one value of its output (backwards: its input)."""
_LIGHT = ("Const", "Eltwise", "Input", "Output", "Reorder")
"""Layer types of a compiled model that hold no products, though they may have the name of one that they follow."""
RECURRENT = ("LSTMSequence", "GRUSequence", "RNNSequence")
_PRODUCTS = (*_SUMMED, *RECURRENT, "MatMul")

Calibration = Mapping[str, float | str]
"""The option of the target that says how it is calibrated (``smooth_quant_alpha``, ``activation_ranges``), if any."""
Quantise = Callable[[Sequence[Feed], Calibration], Any]
"""Takes the feeds that calibrate, and how."""


@dataclass(frozen=True, slots=True)
class Mixed:
    """What was found.

    Attributes:
        expected: whether the model holds its gate on the samples that judged.
        marked: nodes to keep in float32, by their names in the IR.
        facts: what a reader should know; empty where the whole model holds the gate.
    """

    expected: bool
    marked: tuple[str, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Mixing:
    """The searches of one build.

    Attributes:
        core: OpenVINO's, with the number of threads set.
        scratch: a folder for trials.
        seconds: that a search may take, for INT8 with other ways to calibrate; 0 for none.
    """

    core: Any
    request: BuildRequest
    scratch: Path
    seconds: float

    @property
    def possible(self) -> bool:
        """Whether there are time and calibration samples, the last of which judge."""
        return self.seconds > 0 and self.request.samples.calibration is not None

    def bf16(self, model: Any, hint: str | None) -> Mixed:
        """Find as few layers of a model to stay in float32 as hold the gate where the rest is bfloat16.

        Builds that ask the same of the same model share one search: whoever comes second waits for the first.

        Args:
            hint: the inference precision for which the model is compiled; None for the plugin's default.
        """
        if self.request.shared is None or (hint is None and not self.computes_bf16()):
            return self._bf16(model, hint)
        names = sorted(op.get_friendly_name() for op in model.get_ops())
        gate = held_back.gate_of(self.request, "bf16")
        source, samples = self.request.source, self.request.samples.sha256
        asked = (source, samples, self.request.variant.static, names, gate, self.request.room)
        file = Path(self.request.shared) / f"bf16-{sha256_json([*map(to_json, asked), self.seconds])}.json"
        with suppress(OSError):  # a sandbox lets nothing be written there
            file.parent.mkdir(parents=True, exist_ok=True)
        if not os.access(file.parent, os.W_OK):
            return self._bf16(model, hint)
        with file.open("a+") as shared:
            fcntl.flock(shared, fcntl.LOCK_EX)
            shared.seek(0)
            if text := shared.read():
                return from_json(Mixed, json.loads(text))
            found = self._bf16(model, hint)
            shared.write(json.dumps(to_json(found)))
            return found

    def _bf16(self, model: Any, hint: str | None) -> Mixed:
        _, held = self._held(model, "bf16")
        why = self._missed(held, "bf16", model, hint)
        if not why:
            return Mixed(True)
        layers = _layers(model)
        saved, trial = self.scratch / "saved.xml", self.scratch / "trial.xml"
        save(_keep_marks(model.clone()), saved, ())
        ir = _Markable(saved)

        def marked(kept: Iterable[str]) -> Any:
            ir.write(trial, {node for layer in kept for node in layers[layer]})
            return self.core.read_model(trial, saved.with_suffix(".bin"))

        units = {layer: (layer,) for layer in layers}
        kept, facts = self._search(held, units, model, why, lambda kept: (marked(kept), hint), self.seconds)
        return Mixed(bool(kept), tuple(sorted({n for layer in kept for n in layers[layer]})), facts)

    def int8(self, model: Any, quantise: Quantise, others: Sequence[Calibration]) -> tuple[Any, Mixed]:
        """Quantise a model, and return as few layers of it to float as hold the gate; returns the model that does.

        What judges does not calibrate: on its own samples INT8 looks better by some decibels. Where the whole model
        misses the gate, other ways to calibrate are tried first, which cost no speed. What is float runs in the
        plugin's default precision. Where that is bfloat16 and too coarse, as much is marked to run in float32 as holds
        bfloat16's own gate: its noise is a tenth of INT8's then, and the builds in bfloat16 share that search.

        Args:
            model: as it was before.
            quantise: what NNCF makes of it from some feeds, its weights in float32 behind FakeQuantize nodes.
            others: ways to calibrate to try beside the usual one, the likeliest first.
        """
        rest, held = self._held(model, "int8")
        start = time.monotonic()
        chosen: Calibration = {}
        quantised = quantise(rest, chosen)
        took = time.monotonic() - start
        start = time.monotonic()  # the first one is needed in any case: it is not a part of the search
        why = self._missed(held, "int8", quantised, None)
        facts: dict[str, Any] = {"whole_missed": f"on calibration samples: {why}"} if why else {}
        if why and others:
            best = self._score(held, (quantised, None))
            tried: list[dict[str, Any]] = [{"score": _finite(best)}]
            for way in others:
                share = RANGES_SHARE if "activation_ranges" in way else OTHERS_SHARE
                if best >= held.floor or time.monotonic() - start + took > share * self.seconds:
                    break
                other = quantise(rest, way)
                score = self._score(held, (other, None))
                tried.append({**way, "score": _finite(score)})
                if score > best:
                    quantised, chosen, best = other, way, score
            facts |= {**chosen, "calibrations": tried}
            if chosen:
                why = self._missed(held, "int8", quantised, None, strict=True)
        every = calibration_feeds(self.request)
        final = quantised
        if len(rest) < len(every):
            if self.request.samples.calibration_items < FEW_ITEMS:
                final = quantise(every, chosen)
            else:
                facts["held_back_feeds"] = len(every) - len(rest)
        if not why:
            return final, Mixed(True, facts=facts)
        left = self.seconds - (time.monotonic() - start)
        marked: tuple[str, ...] = ()
        if self.computes_bf16() and not self._score(held, (model, None)) >= held.floor + BESIDE_DB:
            beside = replace(self, request=replace(self.request, room=1)).bf16(model, None)
            all_nodes = (op.get_friendly_name() for op in model.get_ops())
            marked = beside.marked if beside.expected else tuple(all_nodes)
        parts = self._parts(model, quantised, marked)
        kept, found = self._search(held, parts.units, model, why, lambda kept: (parts.without(kept), None), left)
        facts = found | facts
        share = facts.get("share_of_products", {}).get("int8", 0.0)
        if share < held_back.LEAST_SHARE:
            for told in ("held_back_score", "float_nodes", "share_of_products", LAYERS):  # of what is not built
                facts.pop(told, None)
            if facts.pop("held_back_feeds", 0):  # nobody judges any more: what is whole may as well learn from all
                final = quantise(every, chosen)
            little = f"only {100 * share:.2g} % of the multiplications were found to hold the gate in INT8"
            return final, Mixed(False, facts={**facts, "mixed": little if share else NOTHING})
        if final is not quantised:
            whole = self._parts(model, final, marked)
            parts = whole if whole.units.keys() == parts.units.keys() else parts
        return parts.without(kept), Mixed(True, facts=facts)

    def _parts(self, model: Any, quantised: Any, marked: Collection[str]) -> "_Quantised":
        if not marked:
            return _Quantised(model, quantised)
        save(quantised.clone(), self.scratch / "marked.xml", marked)
        return _Quantised(model, self.core.read_model(self.scratch / "marked.xml"))  # read back, every copy keeps them

    def computes_bf16(self) -> bool:
        """Say whether the plugin computes in bfloat16 unless it is told not to."""
        return bool(self.core.get_property("CPU", "INFERENCE_PRECISION_HINT").to_string() == "bf16")

    def _held(self, model: Any, precision: Precision) -> tuple[list[Feed], held_back.HeldBack]:
        names = [spec.name for spec in self.request.source.outputs]

        def open_model(given: tuple[Any, str | None]) -> Callable[[Feed], Feed]:
            compiled = self._compile(*given)
            return lambda feed: {name: np.array(found[name]) for found in [compiled(dict(feed))] for name in names}

        # Where few judges were wrong once, all judge that need not calibrate: with fewer, INT8 would be another one.
        more = self.request.room > 1 and precision != "int8"
        return held_back.for_gate(
            *(self.request, (model, "f32"), precision, calibration_feeds(self.request), open_model),
            room_db=ROOM_DB,
            seconds=JUDGE_S,
            share=1 if more else 4,
        )

    def _missed(
        self, held: held_back.HeldBack, precision: Precision, model: Any, hint: str | None, *, strict: bool = False
    ) -> str:
        """Say why a whole model does not hold its gate, or if strict the gate with the room.

        Where that was believed once and the gate said otherwise, it takes more than what the whole model has here,
        once: what is asked strictly holds the raised floor or misses it.
        """
        again = self.request.room > 1
        try:
            found = held.compare(
                (model, hint), held.gate if strict or again else held_back.gate_of(self.request, precision)
            )
            if again and not strict and found.passed:
                held.ask_more(found, self.request.room * ROOM_DB)
                found = held.compare((model, hint), held.gate)
        except (RuntimeError, StageError) as error:  # the second where sizes of outputs depend on values
            return first_line(error)
        return "; ".join(found.reasons)

    def _score(self, held: held_back.HeldBack, given: tuple[Any, str | None]) -> float:
        try:
            return held.score(given)
        except (RuntimeError, StageError):  # some choices compile and then do not run
            return -math.inf

    def _estimate(self, held: held_back.HeldBack, given: tuple[Any, str | None]) -> float:
        try:
            return held.estimate(given)
        except (RuntimeError, StageError):
            return math.inf

    def _search(
        self,
        held: held_back.HeldBack,
        units: Mapping[str, tuple[str, ...]],
        model: Any,
        why: str,
        trial: Callable[[Iterable[str]], tuple[Any, str | None]],
        seconds: float,
    ) -> tuple[tuple[str, ...], dict[str, Any]]:
        """Return the units that stay finer, all of them only where nothing else holds, and the facts.

        Args:
            units: name → nodes.
            model: the float model.
            why: what the whole model misses.
            trial: makes of the units that stay finer a model, and what to compile it for.
        """
        facts: dict[str, Any] = {"whole_missed": f"on calibration samples: {why}"}
        facts |= held_back.second_build(self.request)
        nothing = facts | {"mixed": NOTHING}
        if not units:
            return (), nothing
        work = products(model, self.request)

        found = sensitivity.search(
            [(unit,) for unit in units],
            {unit: max(1, sum(work.get(node, 0) for node in nodes)) for unit, nodes in units.items()},
            lambda kept: self._score(held, trial(kept)),
            held.floor,
            evaluations=sys.maxsize,
            points=1,
            seconds=seconds,
            loss=held.loss,
            estimate=lambda kept: self._estimate(held, trial(kept)),
        )
        facts["search_s"] = found.search_s
        if not found.holds or not found.chosen.quantised:
            return (), nothing | {"search_s": found.search_s}
        kept = found.chosen.kept
        rows = precisions(self._compile(*trial(kept)), work)
        shares: Counter[str] = Counter()
        for _, precision, share in rows:
            shares[precision] += share
        return kept, facts | {
            "held_back_score": found.chosen.score,
            "float_nodes": sorted(node for unit in kept for node in units[unit]),
            "share_of_products": {name: share for name, share in shares.most_common() if share},
            LAYERS: rows,
        }

    def _compile(self, model: Any, hint: str | None) -> Any:
        """Compile a model as it would be shipped: with weights in 8 bits the plugin may choose other kernels."""
        if any(op.get_type_name() == "FakeQuantize" for op in model.get_ops()):
            model = model.clone()
            store_int8(model)
        settings = {} if hint is None else {"INFERENCE_PRECISION_HINT": hint}
        return self.core.compile_model(model, "CPU", settings)


class _Quantised:
    """A model that NNCF quantised, and copies of it with some operations in float again.

    Attributes:
        units: what returns to float together, as it shares FakeQuantize nodes: name → operations.
    """

    def __init__(self, model: Any, quantised: Any) -> None:
        from nncf.common.factory import build_graph
        from nncf.common.quantization.quantizer_removal import find_quantizer_nodes_to_cut
        from nncf.openvino.graph.node_utils import get_bias_value, is_node_with_bias
        from nncf.quantization.algorithms.accuracy_control import openvino_backend
        from nncf.quantization.passes import find_shapeof_subgraphs

        _name_apart(quantised)
        self._backend = openvino_backend.OVAccuracyControlAlgoBackend()
        self._model, self._graph = quantised, build_graph(quantised)
        before = build_graph(model)
        found = {node.node_name: node for node in self._graph.get_all_nodes()}
        for node in before.get_all_nodes():
            if is_node_with_bias(node, before) and node.node_name in found:  # NNCF corrected it for the rounding
                found[node.node_name].attributes["original_bias"] = get_bias_value(node, before, model)
        kinds = self._backend.get_quantizer_metatypes()
        values = deepcopy(self._graph)  # sizes, whose graphs join parts that have nothing else in common, left out
        weighted = values.get_nodes_by_metatypes(self._backend.get_op_with_weights_metatypes())
        starts = self._backend.get_start_nodes_for_activation_path_tracing(values)
        sizes = find_shapeof_subgraphs(values, self._backend.get_shapeof_metatypes(), [*weighted, *starts])
        values.remove_nodes_from(sizes)
        self._groups: dict[str, tuple[Sequence[Any], Sequence[Any]]] = {}
        seen: set[str] = set()
        for quantiser in (node for node in values.topological_sort() if node.metatype in kinds):
            if quantiser.node_name not in seen:
                group = find_quantizer_nodes_to_cut(
                    *(values, quantiser, kinds, self._backend.get_const_metatypes()),
                    self._backend.get_quantizable_metatypes(),
                    self._backend.get_quantize_agnostic_metatypes(),
                )
                seen.update(node.node_name for node in group[0])
                self._groups[str(len(self._groups))] = group
        self.units = {number: tuple(op.node_name for op in ops) for number, (_, ops) in self._groups.items()}

    def without(self, kept: Iterable[str]) -> Any:
        """Return a copy with some units in float."""
        from nncf.common.quantization.quantizer_removal import revert_operations_to_floating_point_precision
        from nncf.quantization.advanced_parameters import RestoreMode

        groups = [self._groups[number] for number in kept]
        return revert_operations_to_floating_point_precision(
            list({op.node_name: op for _, ops in groups for op in ops}.values()),
            list({node.node_name: node for quantisers, _ in groups for node in quantisers}.values()),
            self._model,
            self._graph,
            RestoreMode.ACTIVATIONS_AND_WEIGHTS,
            self._backend.get_op_with_weights_metatypes(),
            self._backend.is_node_with_weight,
            self._backend.get_weight_tensor_port_ids,
        )


def store_int8(model: Any) -> None:
    """Store weights that are behind FakeQuantize nodes in 8 bits."""
    from openvino._offline_transformations import compress_quantize_weights_transformation

    compress_quantize_weights_transformation(model)


def _finite(score: float) -> float | None:
    return score if math.isfinite(score) else None


def _name_apart(model: Any) -> None:
    """Give every node a name of its own: a bias that layers share NNCF corrects for each, and calls all alike."""
    taken = {op.get_friendly_name() for op in model.get_ops()}
    seen: set[str] = set()
    for op in model.get_ordered_ops():
        name = op.get_friendly_name()
        if name in seen:
            name = next(own for number in itertools.count(1) if (own := f"{name}/{number}") not in taken)
            op.set_friendly_name(name)
            taken.add(name)
        seen.add(name)


def save(model: Any, ir: Path, marked: Collection[str]) -> None:
    """Write a model as an IR, some of its nodes marked to run in float32 whatever the inference precision is.

    Args:
        model: changed where its nodes would lose their mark.
    """
    import openvino as ov

    if marked:
        _keep_marks(model)
    ov.save_model(model, ir, compress_to_fp16=False)
    if marked:
        _Markable(ir).write(ir, marked)


def _keep_marks(model: Any) -> Any:
    """Replace each MaxPool by one of the first operation set, as OpenVINO does itself and drops the mark (2026.4.1)."""
    for op in model.get_ordered_ops():
        if op.get_type_name() == "MaxPool" and len(op.outputs()) == 2:
            _to_first_opset(op)
    return model


def _to_first_opset(pool: Any) -> None:
    from openvino import opset1

    told, name = pool.get_attributes(), pool.get_friendly_name()
    plain = set(told["dilations"]) == {1} and told["rounding_type"] in ("floor", "ceil")
    if not plain or pool.output(1).get_target_inputs():
        return
    same = [told[key] for key in ("strides", "pads_begin", "pads_end", "kernel", "rounding_type", "auto_pad")]
    other = opset1.max_pool(pool.input_value(0), *same)
    for reader in pool.output(0).get_target_inputs():
        reader.replace_source_output(other.output(0))
    other.set_friendly_name(name)


class _Markable:
    """The XML of an IR, in which layers can be marked; from Python a mark is ignored (seen with 2026.4.1).

    Source: OpenVINO, ``DisableFP16Compression`` (``precise``).
    """

    def __init__(self, ir: Path) -> None:
        tree = ElementTree.parse(ir)
        layers = tree.getroot().find("layers")
        assert layers is not None
        self._layers = [(layer, {each.get("name") for each in layer.iter("layer")}) for layer in layers]
        for layer in list(layers):
            layers.remove(layer)
        layers.text = "\0"
        text = ElementTree.tostring(tree.getroot(), encoding="unicode")
        self._before, _, self._behind = text.partition("\0")
        self._texts: dict[tuple[int, frozenset[str | None]], str] = {}

    def write(self, out: Path, names: Collection[str]) -> None:
        """Write the file with these layers marked, those in the bodies of loops among them."""
        wanted = set(names)
        texts = (self._text(i, frozenset(inside & wanted)) for i, (_, inside) in enumerate(self._layers))
        out.write_text("".join([self._before, *texts, self._behind]), encoding="utf-8")

    def _text(self, index: int, names: frozenset[str | None]) -> str:
        """Return a layer as text; searches ask for the same ones again and again."""
        if (index, names) not in self._texts:
            layer = deepcopy(self._layers[index][0])
            for each in layer.iter("layer"):
                if each.get("name") in names:
                    info = each.find("rt_info")
                    if info is None:
                        info = ElementTree.SubElement(each, "rt_info")
                    ElementTree.SubElement(info, "attribute", name="precise", version="0")
            self._texts[index, names] = ElementTree.tostring(layer, encoding="unicode")
        return self._texts[index, names]


def products(model: Any, request: BuildRequest) -> dict[str, int]:
    """Count the multiplications of each matrix product, convolution and recurrent layer at the typical shape."""
    fixed = model.clone()
    with suppress(RuntimeError):  # what stays dynamic counts as one
        fixed.reshape({spec.name: list(request.variant.profile[spec.name].opt) for spec in request.source.inputs})
    counts = {}
    for op in fixed.get_ordered_ops():
        kind = op.get_type_name()
        if kind not in _PRODUCTS:
            continue
        shapes = [[d.get_length() if d.is_static else 1 for d in v.get_partial_shape()] for v in op.inputs()]
        shape = [d.get_length() if d.is_static else 1 for d in op.get_output_partial_shape(0)]
        if kind == "MatMul":
            each = shapes[0][-2 if op.get_attributes()["transpose_a"] else -1]
        elif kind in RECURRENT:
            shape, each = shapes[0][:2], math.prod(shapes[-3]) + math.prod(shapes[-2])
        else:
            shape, each = (shapes[0] if "Backprop" in kind else shape), math.prod(shapes[1][_SUMMED[kind] :])
        counts[op.get_friendly_name()] = math.prod(shape) * each
    return counts


def precisions(compiled: Any, work: Mapping[str, int]) -> list[list[Any]]:
    """Return each product's name, precision and share of the multiplications, as the compiled model's own graph says.

    A product that its graph does not name has ``none``.
    """
    found: dict[str, str] = {}
    for layer in compiled.get_runtime_model().get_ops():
        info = layer.get_rt_info()
        if info["layerType"].astype(str) not in _LIGHT:
            names = {_plain(name) for name in info["originalLayersNames"].astype(str).split(",")}
            precision = SHORT.get(info["runtimePrecision"].astype(str), "none")
            found = dict.fromkeys(names, precision) | found
    total = sum(work.values())
    return [[name, found.get(_plain(name), "none"), count / total] for name, count in work.items()]


def _plain(name: str) -> str:
    """Return a product's name without what the frontend and the plugin add where they split it."""
    return name.partition("/WithoutBiases")[0]


def _layers(model: Any) -> dict[str, list[str]]:
    """Return each matrix product, convolution and recurrent layer with the lighter nodes up to the next ones.

    A light node goes with all the layers whose results it takes, and one that takes none with the first layer.
    """
    layers: dict[str, list[str]] = {}
    above: dict[str, set[str]] = {}  # node → the nearest layers that it comes from
    leading = []
    for op in model.get_ordered_ops():
        name, kind = op.get_friendly_name(), op.get_type_name()
        before = [value.get_node().get_friendly_name() for value in op.input_values()]
        above[name] = set().union(*(above[n] for n in before))
        if kind in _PRODUCTS:
            layers[name], above[name] = [name], {name}
        elif kind not in ("Constant", "Result"):
            for layer in above[name]:
                layers[layer].append(name)
            if not above[name]:
                leading.append(name)
    if layers:
        next(iter(layers.values())).extend(leading)
    return layers
