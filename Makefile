# make demo   one episode on PTX-Gemm-H100, on this machine, without a GPU
# make test   lint, types and the test suite
# make soak   the tests that take many minutes
# make fuzz   random PTX against an interpreter, and damaged PTX, for FUZZ_SECONDS (60)
# make sanitize  tests of native code, built with AddressSanitizer and UndefinedBehaviorSanitizer; TESTS="tests/plan …" for some
# make gpu    everything that needs a GPU, with its tables; GPU_PYTHON=python3 takes an interpreter that has torch and cupy
# Each makes .venv first; a second run finds it ready.

VENV := .venv
BIN := $(VENV)/bin
PYTEST_FLAGS ?= -n auto --dist loadfile
PROJECT := pyproject.toml setup.py
GPU_PYTHON ?= $(BIN)/python
GPU_FLAGS ?=
FUZZ_SECONDS ?= 60
TESTS ?=

.PHONY: demo test soak fuzz sanitize gpu lint tests test-gymnasium-1.2.2 test-trainers clean

demo: $(VENV)/.demo-ready
	@$(BIN)/ptxgym demo

test: lint tests

lint: $(VENV)/.test-ready
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

tests: $(VENV)/.test-ready test-gymnasium-1.2.2 test-trainers
	@$(BIN)/python -m pytest $(PYTEST_FLAGS)

soak: $(VENV)/.test-ready
	@$(BIN)/python -m pytest -m slow $(PYTEST_FLAGS)

fuzz: $(VENV)/.test-ready
	@$(BIN)/python -m tests.fuzz --seconds $(FUZZ_SECONDS)

sanitize: $(VENV)/.test-ready
	@$(BIN)/python -m tests.sanitize $(TESTS)

ifeq ($(GPU_PYTHON),$(BIN)/python)
gpu: $(VENV)/.gpu-ready
endif
gpu:
	@$(GPU_PYTHON) -m tests.gpu $(GPU_FLAGS)

# RLlib pins Gymnasium 1.2.2; the environment's tests also run on it, from a folder in front of the newest one.
test-gymnasium-1.2.2: $(VENV)/gymnasium-1.2.2
	@PYTHONPATH=$(VENV)/gymnasium-1.2.2 $(BIN)/python -m pytest -q tests/test_spaces.py tests/test_env.py $(PYTEST_FLAGS)

$(VENV)/gymnasium-1.2.2: | $(VENV)/.test-ready
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --target $@ gymnasium==1.2.2

# The adapters whose libraries are light, against them; docs/trainers/README.md says how to run the others.
test-trainers: $(VENV)/trainers
	@PYTHONPATH=$(VENV)/trainers $(BIN)/python -m pytest -q tests/adapters/test_skyrl.py tests/adapters/test_openenv.py \
	    tests/adapters/test_pages.py $(PYTEST_FLAGS)

$(VENV)/trainers: | $(VENV)/.test-ready
	@$(BIN)/pip install --quiet --disable-pip-version-check --target $@ "skyrl-gym>=0.4" "openenv>=0.10"

$(BIN)/python:
	@python=$$(sh .ci/preflight.sh) && "$$python" -m venv $(VENV)

$(VENV)/.demo-ready: $(PROJECT) | $(BIN)/python
	@sh .ci/preflight.sh > /dev/null
	@echo "installing ptxgym and the CUDA compiler into $(VENV) ..."
	@$(BIN)/pip install --quiet --disable-pip-version-check --editable ".[toolchain]"
	@touch $@

$(VENV)/.test-ready: $(PROJECT) | $(BIN)/python
	@sh .ci/preflight.sh > /dev/null
	@echo "installing ptxgym, the CUDA compiler and the test tools into $(VENV) ..."
	@$(BIN)/pip install --quiet --disable-pip-version-check --editable ".[toolchain,agents,report,cluster,serve,wandb,dev]"
	@touch $@ $(VENV)/.demo-ready

# torch and cupy are gigabytes: they are installed only where there is a GPU to use them on.
$(VENV)/.gpu-ready: $(PROJECT) | $(VENV)/.test-ready
	@if command -v nvidia-smi > /dev/null && nvidia-smi -L > /dev/null 2>&1; then \
	    echo "installing torch, cupy and the CUDA bindings into $(VENV) ..."; \
	    $(BIN)/pip install --quiet --disable-pip-version-check --editable ".[toolchain,agents,report,cluster,serve,wandb,dev,gpu]" && touch $@; \
	fi

clean:
	rm -rf $(VENV) build dist *.egg-info .cache .pytest_cache .mypy_cache .ruff_cache .hypothesis
