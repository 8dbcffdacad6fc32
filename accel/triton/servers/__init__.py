"""Real Triton servers: where one can run, its process, what it says of itself, and whether it answers rightly."""

from typing import Literal

Via = Literal["embedded", "local", "docker"]
"""Ways to run a server; ``hosts.HOSTS`` has what each does."""
