"""Real Triton servers: where one can run, its process, what it says of itself, and whether it answers rightly."""
