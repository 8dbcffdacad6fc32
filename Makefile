# The commands of the project. Everything they need is installed into .venv by the first of them.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Processes that run the tests, each with a gigabyte or two at its largest. Three on two cores take a tenth less time, and loads that tests put on
# servers are then late.
WORKERS ?= 2

.PHONY: demo test test-gpu campaign zoo-check compatibility docs check format install tensorflow plugin schemas azurite environments clean

demo: install
	printf '%s\n' ort-openvino modelopt | xargs -P $(WORKERS) -I NAME $(BIN)/accel env install NAME
	HF_HUB_OFFLINE=$${HF_HUB_OFFLINE:-1} $(BIN)/accel convert bert --targets cpu,trt-fp16

test: environments tensorflow plugin schemas
	$(BIN)/python tests/builders/trt_stubs/bindings.py >/dev/null
	HF_HUB_OFFLINE=1 OMP_WAIT_POLICY=PASSIVE $(BIN)/python -m pytest -n $(WORKERS)

# The tests that take minutes each, of which `make test` runs a part.
campaign: environments tensorflow
	HF_HUB_OFFLINE=1 OMP_WAIT_POLICY=PASSIVE $(BIN)/python -m pytest -n $(WORKERS) -m campaign

# Every model of the zoo, reduced, for every CPU target; --full takes the models as they are.
zoo-check: environments tensorflow
	HF_HUB_OFFLINE=1 $(BIN)/accel zoo check

# Every source of the corpus to two runtimes, built and proved, and docs/compatibility.md. It goes on where it was stopped:
# remove runs/compatibility/rows to begin anew. SOURCES="--sample 40" takes a part.
SOURCES ?= --all
compatibility: environments tensorflow $(VENV)/packages
	HF_HUB_OFFLINE=1 COMPATIBILITY_PACKAGES=$(VENV)/packages $(BIN)/python -m benchmarks.compatibility run $(SOURCES) \
		--missing --targets ort,openvino-fp32
	$(BIN)/python -m benchmarks.compatibility table

$(VENV)/packages:
	$(BIN)/python -m pip install --quiet --no-deps --target $@ rapidocr==3.10.0 silero-vad==6.2.3 magika==1.0.3 basic-pitch==0.4.0

# Needs an NVIDIA GPU; TensorRT's libraries only where they are installed. Prints a table.
test-gpu: environments
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev,cuda]'
	$(BIN)/accel env install ort-gpu
	HF_HUB_OFFLINE=1 $(BIN)/python -m pytest -m gpu tests/gpu
	HF_HUB_OFFLINE=1 $(BIN)/python -m pytest tests/contract -k cuda -rs

# The site, into site/: open site/index.html, or for its search `python -m http.server -d site`.
docs: install
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

check: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
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

# TensorFlow sources and targets are an extra of their own.
tensorflow: $(VENV)/tensorflow

$(VENV)/tensorflow: $(VENV)/installed
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[tensorflow]'
	touch $@

# The runtime of examples/plugin; its test installs the plug-in itself.
plugin: $(VENV)/plugin

$(VENV)/plugin: $(VENV)/installed
	$(BIN)/python -m pip install --quiet --constraint constraints.txt MNN
	touch $@

# The schemas that Kubernetes and KServe publish, for a test; in wheels that are read as they are (published_schemas.py).
schemas: $(VENV)/schemas

$(VENV)/schemas: $(VENV)/installed
	$(BIN)/python -m pip download --quiet --no-deps --dest $@ kubernetes-validate==1.37.0 kserve==0.21.0
	touch $@

# Azure's emulator, for tests that are skipped without it: it comes from npm.
azurite: $(VENV)/azurite

$(VENV)/azurite: $(VENV)/installed
	npm install --silent --no-audit --no-fund --prefix $@ azurite@3.35.0
	touch $@

environments: install
	printf '%s\n' triton modelopt perf-analyzer ort-openvino weights | xargs -P $(WORKERS) -I NAME $(BIN)/accel env install NAME

clean:
	rm -rf $(VENV) build dist site *.egg-info
