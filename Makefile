# Every target sets up .venv by itself: with uv where it is there (or can be got), else with pip.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= $(shell for p in python3.11 python3.10 python3; do \
	if "$$p" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 11))' 2>/dev/null; then echo "$$p"; break; fi; done)
VENV := .venv
BIN := $(VENV)/bin
DATA := tests/data/d4rl/hopper_medium-v2.hdf5
TRAIN_DATA := tests/data/d4rl/invertedpendulum_random-v2.hdf5
# Four processes, since tests wait for servers; in a random order, and another seed is another order.
SEED ?= 0
TESTS := $(BIN)/python -m pytest -q -n 4 --dist worksteal -p no:cacheprovider -p randomly --randomly-seed=$(SEED)

.PHONY: help install demo test test-slow lint types wheel-test bench lock clean

help:  ## what there is
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

# A name of its own for each set of Python files: the links of the editable install are made again when it changes.
LINKED := $(VENV)/.linked-$(shell find rlds2reverb adders learners envs cli -name '*.py' 2>/dev/null | sort | cksum | cut -d' ' -f1)

install: $(LINKED)  ## make .venv
	@:

$(LINKED): $(VENV)/.installed
	@if ls $(VENV)/.linked-* >/dev/null 2>&1; then requirements/install.sh --link $(VENV); fi
	@rm -f $(VENV)/.linked-*
	@touch $@

$(VENV)/.installed: setup.py pyproject.toml requirements/py310.lock requirements/py311.lock requirements/install.sh
	@if [ "$$(uname -s)-$$(uname -m)" != Linux-x86_64 ]; then \
		echo "rlds2reverb needs Linux on x86-64 (dm-reverb has wheels for nothing else), this is $$(uname -s) on $$(uname -m): use a Linux machine, a container or WSL 2."; exit 1; fi
	@if [ -z "$(PYTHON)" ]; then \
		echo "rlds2reverb needs Python 3.10 or 3.11 (dm-reverb 0.14.0 has no wheel above): install python3.11, then run 'make PYTHON=python3.11 $(MAKECMDGOALS)'."; exit 1; fi
	@requirements/install.sh "$(PYTHON)" $(VENV)
	@touch $@

demo: install  ## convert a D4RL file, check it bit for bit, train on it
	@$(BIN)/rlds2reverb demo $(DATA)
	@rm -rf build/demo
	@echo; echo "Last, an agent from the steps of a random policy, half a minute to a minute:"; echo
	@$(BIN)/rlds2reverb train --algo iql --data $(TRAIN_DATA) --env InvertedPendulum-v5 --run-dir build/demo \
	    --references tests/data/d4rl/ref_scores.json --steps 4000 --eval-every 1000 --log-every 1000

test: install  ## the fast tests, in the random order of SEED=0
	@$(TESTS) -m "not slow" tests

test-slow: install  ## the slow tests, and twenty-five times as many examples of the property tests
	@THOROUGH=1 $(TESTS) -m "slow or hypothesis" tests

lint: install  ## ruff
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: install  ## mypy
	@$(BIN)/mypy

wheel-test: install  ## build the wheel, install it elsewhere, and use it once
	@requirements/wheel_test.sh $(BIN)/python

bench: install  ## how fast, against the reference
	@$(BIN)/python benchmarks/bench_ingest.py
	@$(BIN)/python benchmarks/bench_memory.py
	@$(BIN)/python benchmarks/bench_adders.py
	@$(BIN)/python benchmarks/bench_sample.py
	@$(BIN)/python benchmarks/bench_replay.py

lock: install  ## write the lock files again, with the newest versions (needs uv)
	@for v in 3.10 3.11; do uv pip compile setup.py requirements/cpu.in --extra dev --extra minari --extra eval \
		--override requirements/overrides.txt --python-version $$v --python-platform x86_64-manylinux_2_28 \
		--generate-hashes --no-header --no-annotate --quiet --upgrade -o requirements/py$${v/./}.lock; done

clean:  ## remove .venv and everything built
	@rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
