# The commands of the project. Everything they need is installed into .venv by the first of them.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test check format install environments clean

demo: environments
	HF_HUB_OFFLINE=$${HF_HUB_OFFLINE:-1} $(BIN)/accel convert bert --targets cpu,trt-fp16

test: environments
	HF_HUB_OFFLINE=1 $(BIN)/python -m pytest

check: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(MAKE) test

format: install
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

install: $(VENV)/installed

# torch first: the index may offer it with several GB of CUDA packages unless this very version is asked for.
$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt "$$(grep '^torch==' constraints.txt)"
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

environments: install
	$(BIN)/accel env install ort-openvino
	$(BIN)/accel env install triton
	$(BIN)/accel env install perf-analyzer

clean:
	rm -rf $(VENV) build dist *.egg-info
