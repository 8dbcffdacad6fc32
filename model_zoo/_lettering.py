"""Printed text, made by rule from the zoo's own words and the font inside Pillow."""

from collections.abc import Sequence
from functools import cache

import numpy as np

from model_zoo import _pictures, _text

FILES = ("_lettering.py", "_pictures.py", *_text.FILES)
RUN = 12
"""So many lines in a row have one width, so that they can share a batch."""


@cache
def words() -> Sequence[str]:
    """Return the distinct words of the zoo's sentences that have only the letters a to z, and some numbers."""
    found = {w.strip(".,;:!?\"'()").lower() for text in _text.sentences(450) for w in text.split()}
    return sorted(w for w in found if w.isascii() and w.isalpha()) + [str(n) for n in range(7, 9000, 97)]


def line(seed: int, height: int, width: int) -> np.ndarray:
    """Print words until the line is full: uint8 (height, width), dark on light or light on dark, slightly noisy."""
    return words_of_a_line(seed, height, width)[0]


def words_of_a_line(seed: int, height: int, width: int) -> tuple[np.ndarray, str]:
    """Return what ``line`` prints, and its text, as far as there was room for it."""
    from PIL import Image, ImageDraw, ImageFont

    rng = np.random.default_rng([seed, width])
    font = ImageFont.load_default(float(height * rng.uniform(0.55, 0.75)))
    paper, ink = rng.uniform(160, 250), rng.uniform(0, 90)
    if rng.random() < 0.3:
        paper, ink = ink, paper
    picture = Image.new("L", (width, height), int(paper))
    draw = ImageDraw.Draw(picture)
    x = float(rng.uniform(1, height / 4))
    said: list[str] = []
    while x < width:
        word = str(rng.choice(words()))
        if x > height / 2 and x + draw.textlength(word, font=font) > width:
            break
        draw.text((x, height / 2 + rng.uniform(-1, 1)), word, fill=int(ink), font=font, anchor="lm")
        said.append(word)
        x += draw.textlength(word + " ", font=font)
    noisy = np.asarray(picture, np.float32) + rng.normal(0, 6, (height, width))
    return np.clip(noisy, 0, 255).astype(np.uint8), " ".join(said)


def scene(seed: int, height: int, width: int) -> np.ndarray:
    """Draw a picture with words at several places, sizes and angles: uint8 (height, width, 3)."""
    from PIL import Image, ImageDraw, ImageFont

    rng = np.random.default_rng([seed, height, width, 2])
    picture = Image.fromarray(_pictures.lit(_pictures.dead_leaves(seed, height, width), seed))
    for _ in range(int(rng.integers(3, 9))):
        word = str(rng.choice(words()))
        font = ImageFont.load_default(float(height * rng.uniform(0.05, 0.16)))
        left, top, right, bottom = (int(v) for v in font.getbbox(word))
        stencil = Image.new("L", (right + left, bottom + top), 0)
        ImageDraw.Draw(stencil).text((0, 0), word, fill=255, font=font)
        stencil = stencil.rotate(float(rng.normal(0, 15)), expand=True, resample=Image.Resampling.BILINEAR)
        ink = (255, 255, 255) if rng.random() < 0.5 else tuple(int(v) for v in rng.integers(0, 90, 3))
        place = (int(rng.uniform(0, 0.7) * width), int(rng.uniform(0, 0.8) * height))
        picture.paste(ink, place, stencil)
    return np.asarray(picture)


def page(seed: int, height: int, width: int) -> tuple[np.ndarray, list[list[int]]]:
    """Print a few words that do not touch: uint8 (height, width, 3), and [left, top, right, bottom] of each."""
    from PIL import Image, ImageDraw, ImageFont

    rng = np.random.default_rng([seed, height, width, 3])
    paper, ink = (tuple(int(v) for v in rng.uniform(low, low + 60, 3)) for low in (190, 0))
    picture = Image.new("RGB", (width, height), paper)
    draw = ImageDraw.Draw(picture)
    boxes: list[list[int]] = []
    y = float(rng.uniform(4, 16))
    while y < height - 36:
        font = ImageFont.load_default(float(rng.uniform(16, 28)))
        word = str(rng.choice([w for w in words() if len(w) > 3]))
        place = (float(rng.uniform(6, max(7, width - 10 - draw.textlength(word, font=font)))), y)
        box = [int(v) for v in draw.textbbox(place, word, font=font)]
        if box[2] < width - 4:
            draw.text(place, word, fill=ink, font=font)
            boxes.append(box)
        y = box[3] + float(rng.uniform(10, 22))
    noisy = np.asarray(picture, np.float32) + rng.normal(0, 4, (height, width, 3))
    return np.clip(noisy, 0, 255).astype(np.uint8), boxes
