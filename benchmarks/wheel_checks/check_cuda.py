"""A module in memory is optimised and answers alike."""

import torch

import accel


def main() -> None:
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(6, 12), torch.nn.Tanh(), torch.nn.Linear(12, 2)).eval()
    batches = [torch.randn(1, 6) for _ in range(64)]
    result = accel.optimize(module, batches, targets="torch,ort", objective="latency", budget_s=5, out="run")
    assert {v.status for v in result.variants.values()} == {"ok"}, result
    torch.testing.assert_close(result.best(batches[0]), module(batches[0]).detach(), atol=1e-4, rtol=1e-4)
    print(result)


if __name__ == "__main__":
    main()
