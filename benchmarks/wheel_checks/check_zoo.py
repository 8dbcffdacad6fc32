"""A model known by name is converted, reduced."""

import accel


def main() -> None:
    result = accel.optimize("minilm@small", targets="ort", objective="latency", budget_s=5, out="run")
    assert {v.status for v in result.variants.values()} == {"ok"}, result
    print(result)


if __name__ == "__main__":
    main()
