"""``python -m accel``: the command line where the script is not on PATH."""

from accel.cli import main

main()
