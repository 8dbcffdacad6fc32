"""Serve what was chosen with a real Triton server, and ask it; needs ``accel env install triton`` or a tritonserver."""

import torch

import accel


def main() -> None:
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(6, 12), torch.nn.Tanh(), torch.nn.Linear(12, 2)).eval()
    batches = [torch.randn(1, 6) for _ in range(64)]
    result = accel.optimize(module, samples=batches, targets="ort", objective="latency", out="runs/served", budget_s=5)
    with accel.serve("runs/served/best/cpu") as server:
        answer = server(input=batches[0])
        print(
            server.endpoint.grpc,
            answer.output,
            float((module(batches[0]) - torch.from_numpy(answer.output)).abs().max()),
        )
    result.close()


if __name__ == "__main__":
    main()
