# Two commands do all of their set-up: `make demo` and `make test`.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV ?= .venv
BIN := $(VENV)/$(if $(filter Windows_NT,$(OS)),Scripts,bin)
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt

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
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 2 --dist loadgroup

.PHONY: demo test test-all test-lm-eval fuzz crash check atlas clean

demo: $(VENV)/.installed
	$(BIN)/lmlab demo

test: check
	$(PYTEST) $(STRICT) -m "not slow"

test-all: check
	$(PYTEST) $(STRICT)

# Apart, since lm-eval brings 350 MB along (pyarrow, pandas, its tasks).
test-lm-eval: $(VENV)/.installed-test
	$(PIP) --editable ".[lm-eval]"
	$(PYTEST) $(STRICT) tests/unit/interop/test_lm_eval.py

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
# minicons and arviz-stats declare pandas and more, which the parts used here do not need.
$(VENV)/.installed-test: $(VENV)/.installed
	$(PIP) --editable ".[test]"
	$(PIP) kenlm || $(call MISSING,kenlm)
	$(PIP) --no-deps minicons wonderwords || $(call MISSING,minicons)
	$(PIP) --no-deps arviz-stats || $(call MISSING,arviz-stats)
	touch $@

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache
