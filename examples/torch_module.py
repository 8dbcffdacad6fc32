"""A torch module in memory, defined in this very file: optimise it, call the chosen variant, load it again later."""

import torch

import accel


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(100, 32)
        self.out = torch.nn.Linear(32, 5)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        hidden = self.embed(ids)
        if mask is not None:
            hidden = hidden * mask[..., None]
        return {"logits": self.out(hidden.mean(1)), "hidden": hidden}


def main() -> None:
    torch.manual_seed(0)
    batches = [{"ids": torch.randint(0, 100, (1, 4 + i % 5)), "mask": torch.ones(1, 4 + i % 5)} for i in range(64)]
    result = accel.optimize(
        Net(), samples=batches, targets="torch,ort", objective="latency", out="runs/net", budget_s=5
    )
    print(result.decision.reason)
    print(result.best(**batches[0])["logits"])
    with accel.load("runs/net/best/cpu") as model:
        print(model)


if __name__ == "__main__":
    main()
