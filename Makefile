# Two commands do all of their set-up: `make demo` and `make test`.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt

# One thread for each of the two test workers; more would fight over the same cores.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 2 --dist loadgroup

.PHONY: demo test test-all test-lm-eval check atlas clean

demo: $(VENV)/.installed
	$(BIN)/lmlab demo

test: check
	$(PYTEST) -m "not slow"

test-all: check
	$(PYTEST)

# Apart, since lm-eval brings 350 MB along (pyarrow, pandas, its tasks).
test-lm-eval: $(VENV)/.installed-test
	$(PIP) --editable ".[lm-eval]"
	$(PYTEST) tests/unit/interop/test_lm_eval.py

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

# KenLM's reader is compiled as it is installed; where there is no C++ compiler its tests skip.
# minicons and arviz-stats say that they need pandas and more, and what is asked of them does not.
$(VENV)/.installed-test: $(VENV)/.installed
	$(PIP) --editable ".[test]"
	$(PIP) kenlm || echo "kenlm could not be built: the tests that read our ARPA files with it will skip"
	$(PIP) --no-deps minicons wonderwords || echo "minicons is not there: the tests that compare with its scores will skip"
	$(PIP) --no-deps arviz-stats || echo "arviz-stats is not there: the test that compares with its R-hat will skip"
	touch $@

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache
