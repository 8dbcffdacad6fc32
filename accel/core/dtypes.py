"""Names of data types: NumPy's, and the server's."""

from collections.abc import Mapping

from accel.core.errors import InputError

DATATYPES: Mapping[str, str] = {
    "bool": "TYPE_BOOL",
    "uint8": "TYPE_UINT8",
    "uint16": "TYPE_UINT16",
    "uint32": "TYPE_UINT32",
    "uint64": "TYPE_UINT64",
    "int8": "TYPE_INT8",
    "int16": "TYPE_INT16",
    "int32": "TYPE_INT32",
    "int64": "TYPE_INT64",
    "float16": "TYPE_FP16",
    "float32": "TYPE_FP32",
    "float64": "TYPE_FP64",
    "bfloat16": "TYPE_BF16",
    "str": "TYPE_STRING",
    "object": "TYPE_STRING",
}
"""NumPy dtype name → Triton data type. Source: server docs/user_guide/model_configuration.md, "Datatypes"."""


def datatype(dtype: str) -> str:
    """Return Triton's name of a NumPy dtype.

    Raises:
        InputError: Triton has no such type.
    """
    if dtype not in DATATYPES:
        raise InputError(f"Triton has no data type for {dtype!r}: expected one of {sorted(DATATYPES)}")
    return DATATYPES[dtype]
