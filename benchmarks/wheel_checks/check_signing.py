"""A folder is signed with a key pair and verified."""

import subprocess
from pathlib import Path

from accel.core import signing


def main() -> None:
    subprocess.run(["openssl", "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", "key.pem"], check=True)
    subprocess.run(["openssl", "ec", "-in", "key.pem", "-pubout", "-out", "key.pub"], check=True, capture_output=True)
    folder = Path("kit")
    folder.mkdir()
    (folder / "file").write_text("content")
    signing.sign(folder, Path("key.pem"))
    signing.verify(folder, Path("key.pub"))
    print("signed and verified")


if __name__ == "__main__":
    main()
