# Two commands for a newcomer: `make run` and `make test`. Each sets up a virtual environment of its own first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: run test mcu lint types unit format clean help

help:
	@echo "make run    train pcapsnet2 on MNIST on the CPU, evaluate it and write a report"
	@echo "make test   lint, type-check and run the whole test suite"
	@echo "make mcu    run exported networks on an emulated microcontroller and compare them with Python"
	@echo "make format let ruff rewrite the sources"
	@echo "make clean  remove the virtual environment and caches"

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "purecaps needs Python 3.11 or newer; try: make PYTHON=python3.11 $(MAKECMDGOALS)"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt setuptools torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --no-build-isolation --editable ".[dev]"
	@touch $@

run: $(READY)
	$(BIN)/purecaps train --model pcapsnet2 --data mnist --device cpu

test: lint types unit

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy

# One thread for each of the two workers: more would only fight over the cores.
unit: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

mcu: $(READY)
	$(BIN)/python tools/mcu/run.py

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache build src/*.egg-info
