"""One run: options, stages and their cache, worker processes, measuring sessions, decision, run.json, kits.

Importing this room hands the model zoo to the rooms below, which never import it.
"""

from accel.exporters import zoo


def _zoo() -> zoo.Zoo:
    import model_zoo

    return model_zoo


zoo.hand_in(_zoo)
