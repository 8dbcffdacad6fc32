"""What ``accel doctor`` looks for follows from what the builders declare."""

from accel.builders import targets
from accel.run import doctor


def test_programs_are_those_that_builders_declare(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    rows = {row["what"]: row for row in doctor.examine()}
    row = rows["g++ (aoti, aoti-bf16, aoti-fp16)"]
    assert (row["found"], row["ok"], row["fix"]) == ("no", False, "apt-get install g++")
    declared = {p for name, builder in targets.discover().items() for p in builder.targets[name].programs}
    assert declared == {"g++"}
