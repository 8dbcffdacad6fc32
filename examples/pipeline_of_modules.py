"""An OCR pipeline, detection and recognition, optimised part by part with the inputs that the parts really get.

The networks are the zoo's EAST and CRNN in small, with random weights: where the text is and what it says is nonsense,
and must be the same nonsense afterwards.
"""

import torch

import accel
import model_zoo
from model_zoo.text_recognition import SYMBOLS

HEIGHT, WIDTH = 32, 64
"""Of a line of text, as the recogniser takes it."""


class Ocr:
    """Finds the likeliest places of text in a picture and reads each."""

    def __init__(self) -> None:
        entries = model_zoo.entries()
        self.detector = entries["east"].small().load(None).eval()
        self.recogniser = entries["text-recognition"].small().load(None).eval()

    def __call__(self, picture: torch.Tensor) -> dict[str, object]:
        with torch.inference_mode():
            found = self.detector(images=picture)
            boxes = [self.box(found, place) for place in found["score"].flatten().topk(2).indices.tolist()]
            lines = torch.cat([self.line(picture, box) for box in boxes])
            steps = self.recogniser(images=lines)["log_probs"].argmax(-1)
        return {"boxes": boxes, "texts": [self.decode(row) for row in steps.tolist()]}

    def box(self, found: dict[str, torch.Tensor], place: int) -> tuple[int, int, int, int]:
        """Return top, left, bottom and right of a place of the score map, in pixels and inside the picture."""
        cells = found["score"].shape[-1]
        row, column = divmod(place, cells)
        up, right, down, left = found["geometry"][0, :4, row, column].round().int().tolist()
        y, x, side = 4 * row, 4 * column, 4 * cells
        return max(y - up, 0), max(x - left, 0), min(y + down + 4, side), min(x + right + 4, side)

    def line(self, picture: torch.Tensor, box: tuple[int, int, int, int]) -> torch.Tensor:
        """Cut a box out and bring it to the size of a line, in grey from -1 to 1."""
        top, left, bottom, right = box
        cut = picture[:, :, top:bottom, left:right].mean(1, keepdim=True)
        sized = torch.nn.functional.interpolate(cut, (HEIGHT, WIDTH), mode="bilinear", align_corners=False)
        return sized.clamp(-1, 1)

    def decode(self, steps: list[int]) -> str:
        """Join equal neighbours and drop blanks, as CTC does."""
        kept = [step for step, before in zip(steps, [0, *steps], strict=False) if step not in (0, before)]
        return "".join(SYMBOLS[step] for step in kept)


def main() -> None:
    ocr = Ocr()
    drawn = model_zoo.entries()["east"].small().samples(24)
    pictures = [torch.from_numpy(item["images"]) for item in drawn]
    found = accel.optimize_parts(
        ocr,
        ["detector", "recogniser"],
        run=ocr,
        samples=pictures,
        targets="ort",
        objective="latency",
        out="runs/ocr",
        budget_s=3,
    )
    low, high = found.speedup_ci
    print(
        f"{found.before_ms:.2f} ms before, {found.after_ms:.2f} ms after: {found.speedup:.2f} [{low:.2f}, {high:.2f}]"
    )
    print("same answers:", found.equal, ocr(pictures[0]))


if __name__ == "__main__":
    main()
