"""oras is there: what a registry that does not answer is told."""

from accel.core.errors import UnavailableError
from accel.release.oci import Registry


def main() -> None:
    said = ""
    try:
        Registry("oci://127.0.0.1:9/models/small")
    except UnavailableError as error:
        said = str(error)
    assert "127.0.0.1:9" in said, said
    assert "pip install" not in said, said
    print(said)


if __name__ == "__main__":
    main()
