"""JPEG or PNG bytes → resized, cropped and normalised planes."""

import io
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

FORMATS = ("JPEG", "PNG")


class Step:
    """Decodes pictures and brings them to the model's size.

    Args:
        options: ``resize`` (length of the shorter side, [height, width] or None), ``crop`` ([height, width] or None),
            ``resample``, ``scale``, ``mean``, ``std``, ``max_pixels``, ``output`` (tensor name), ``dtype`` and
            ``channels`` of the model's input.
        folder: unused.
    """

    def __init__(self, options: Mapping[str, Any], folder: Path) -> None:
        from PIL import Image

        self.options = options
        self.filter = Image.Resampling[options["resample"].upper()]
        # Pillow only warns up to twice its own limit; the options' limit is checked before anything is decoded.
        Image.MAX_IMAGE_PIXELS = None

    def answer(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Turn ``image``, str (pictures, 1), into float (pictures, channels, height, width).

        Raises:
            ValueError: no picture, one that cannot be decoded or is too large, or several of different sizes.
        """
        planes = [self.planes(bytes(item), position) for position, item in enumerate(inputs["image"].ravel())]
        if not planes:
            raise ValueError("the request holds no picture")
        if sizes := {p.shape for p in planes} - {planes[0].shape}:
            raise ValueError(f"the request's pictures have different sizes: {planes[0].shape} and {sizes.pop()}")
        return {self.options["output"]: np.stack(planes).astype(self.options["dtype"])}

    def planes(self, data: bytes, position: int) -> np.ndarray:
        """Return one picture, float32 (channels, height, width).

        The order of roundings is transformers': filter on bytes, scale in double precision, normalise in single.
        Source: transformers, image_utils.py (load_image) and image_transforms.py (resize, center_crop, rescale,
        normalize).
        """
        picture = self._open(data, position)
        if (resize := self.options["resize"]) is not None:
            width, height = picture.size
            if isinstance(resize, int):
                long = int(resize * max(width, height) / min(width, height))
                width, height = (resize, long) if width <= height else (long, resize)
            else:
                height, width = resize
            picture = picture.resize((width, height), self.filter)
        values = np.asarray(picture)
        values = values[:, :, None] if values.ndim == 2 else values
        if (crop := self.options["crop"]) is not None:
            values = middle(values, crop)
        scaled = (values.transpose(2, 0, 1).astype(np.float64) * self.options["scale"]).astype(np.float32)
        if not self.options["mean"]:
            return scaled
        mean, std = (np.array(self.options[k], np.float32)[:, None, None] for k in ("mean", "std"))
        return (scaled - mean) / std

    def _open(self, data: bytes, position: int) -> Any:
        """Decode one picture, upright as its EXIF data say, in the model's channels."""
        from PIL import Image, ImageOps, UnidentifiedImageError

        limit = self.options["max_pixels"]
        try:
            picture = Image.open(io.BytesIO(data), formats=FORMATS)
            if picture.width * picture.height > limit:
                raise ValueError(f"it has {picture.width} x {picture.height} pixels, and {limit} are the limit")
            return ImageOps.exif_transpose(picture).convert("RGB" if self.options["channels"] == 3 else "L")
        except (OSError, SyntaxError, EOFError, struct.error, ValueError) as error:
            # Pillow tells a broken file by any of these; its text may hold the address of a buffer.
            why = "it is neither JPEG nor PNG" if isinstance(error, UnidentifiedImageError) else error
            raise ValueError(f"picture {position} of the request cannot be taken: {why}") from error


def middle(values: np.ndarray, size: Sequence[int]) -> np.ndarray:
    """Cut ``size`` out of the middle of (height, width, channels); a smaller picture gets a black frame."""
    for axis, wanted in enumerate(size):
        found = values.shape[axis]
        if found < wanted:
            before = (wanted - found + 1) // 2
            values = np.pad(values, [(before, wanted - found - before) if a == axis else (0, 0) for a in range(3)])
        else:
            start = (found - wanted) // 2
            values = np.take(values, range(start, start + wanted), axis=axis)
    return values
