"""Many models, targets and machines as one release."""

import accel.run  # noqa: F401  hands the zoo to the rooms below
