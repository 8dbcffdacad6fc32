"""The code of the steps around a model: each module is copied as ``step.py`` beside ``backend_py/step.py``.

A module imports NumPy and the one library that its work needs, nothing of accel. It offers ``Step(options, folder)``
with ``answer(inputs)``: arrays of one request by name → arrays by name. A ``ValueError`` is the client's mistake, and
its text goes back to the client. A step may also offer ``align(answers)``, which sees all answers of one call.
"""
