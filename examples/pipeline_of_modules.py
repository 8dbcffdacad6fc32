"""An OCR-like pipeline, detection and recognition, optimised part by part with the inputs that the parts really get."""

import torch

import accel


class Detector(torch.nn.Module):
    """Gives a row of features for each of four columns of a picture."""

    def __init__(self) -> None:
        super().__init__()
        self.convolutions = torch.nn.Sequential(torch.nn.Conv2d(1, 8, 3, padding=1), torch.nn.ReLU())

    def forward(self, picture: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.adaptive_avg_pool2d(self.convolutions(picture), (1, 4)).flatten(2).transpose(1, 2)


class Recogniser(torch.nn.Module):
    """Gives the scores of ten characters for each column."""

    def __init__(self) -> None:
        super().__init__()
        self.out = torch.nn.Linear(8, 10)

    def forward(self, columns: torch.Tensor) -> torch.Tensor:
        return self.out(columns)


class Reader:
    """Reads a picture as four digits."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.detector, self.recogniser = Detector().eval(), Recogniser().eval()

    def __call__(self, picture: torch.Tensor) -> str:
        with torch.inference_mode():
            scores = self.recogniser(self.detector(picture))
        return "".join(map(str, scores.argmax(-1)[0].tolist()))


def main() -> None:
    reader = Reader()
    pictures = [torch.rand(1, 1, 16, 32) for _ in range(64)]
    found = accel.optimize_parts(
        reader,
        ["detector", "recogniser"],
        run=reader,
        samples=pictures,
        targets="ort",
        objective="latency",
        out="runs/reader",
        budget_s=5,
    )
    low, high = found.speedup_ci
    print(
        f"{found.before_ms:.2f} ms before, {found.after_ms:.2f} ms after: {found.speedup:.2f} [{low:.2f}, {high:.2f}]"
    )
    print("same answers:", found.equal, reader(pictures[0]))


if __name__ == "__main__":
    main()
