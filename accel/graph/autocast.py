"""FP32 → FP16 or BF16 by NVIDIA Model Optimizer's autocast; this runs in the ``modelopt`` environment.

Only the casting is left to it: which nodes stay in FP32 is decided before, from measured ranges, and the result is
checked after, both in ``fp16``.
"""

import re
from pathlib import Path
from typing import Literal

from accel.core import environments

ENVIRONMENT = environments.declare(
    environments.Environment(
        "modelopt",
        (
            "nvidia-modelopt==0.47.0",
            "onnx-graphsurgeon==0.6.1",
            "onnxslim==0.1.98",
            "polygraphy==0.53.6",
            "onnxconverter-common==1.16.0",
            "omegaconf==2.4.0",
            "pulp==3.3.2",
            "nvidia-ml-py==13.615.71",
            "lief==1.0.0",
            "cppimport==26.4.17",
            "mako==1.4.3",
            "markupsafe==3.0.4",
            "pybind11==3.1.0",
            "filelock==4.2.11",
            "colorama==0.4.6",
        ),
        "its own pins ask for an older onnx and for onnxruntime-gpu, neither of which autocast needs",
        over_main=True,
    )
)


def autocast(source: Path, out: Path, to: Literal["fp16", "bf16"], keep: tuple[str, ...]) -> str:
    """Write the model at ``source`` with every node in ``to``, except those in ``keep``, weights beside it.

    Args:
        source: checked, every node named, constants of type FP32.
        keep: names of the nodes that stay in FP32.

    Source: ``modelopt.onnx.autocast.convert_to_mixed_precision``,
    https://nvidia.github.io/Model-Optimizer/guides/8_autocast.html.
    """
    from importlib.metadata import version

    import numpy as np
    import onnx_ir as ir
    from modelopt.onnx.autocast import convert_to_mixed_precision

    from accel.graph import passes

    model = convert_to_mixed_precision(
        str(source),
        low_precision_type=to,
        nodes_to_exclude=[f"{re.escape(name)}$" for name in keep],
        data_max=np.inf,  # no run of its own: ranges were measured
        init_max=np.inf,
        keep_io_types=True,
        providers=["cpu"],
    )
    model.graph.ClearField("value_info")  # shapes in it can be wrong after the casts
    passes.save(ir.from_proto(model), out, data=f"{out.name}.data")
    return version("nvidia-modelopt")
