# Every target first creates or updates .venv, with uv if it is available or can be installed, else with pip.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
# Without bytecode files, each of the many processes of the tests would compile TensorFlow's sources again.
export PYTHONDONTWRITEBYTECODE :=

# The newest supported Python on the PATH.
PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3.10 python3; do \
	if "$$p" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; then echo "$$p"; break; fi; done)
VENV ?= .venv
BIN := $(VENV)/bin
NOTEBOOKS ?= $(wildcard notebooks/[0-9]*.ipynb)
DATA := tests/data/d4rl/pendulum_mixed-v2.hdf5
# Tests run in three processes, because they sometimes wait for servers, and in a random order that SEED determines.
SEED ?= 0
PATHS ?= tests
TESTS := $(BIN)/python -m pytest -q -n 3 --dist worksteal -p no:cacheprovider -p randomly --randomly-seed=$(SEED)

.PHONY: help install dev demo test test-slow test-environments test-torch test-light test-lerobot test-install drill lint types notebooks docs wheel-test bench lock clean

help:  ## list the targets (default)
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 18

# The file's name depends on the set of Python files, so that the links of the editable install are updated when files
# are added or removed.
LINKED := $(VENV)/.linked-$(shell find rlds2reverb adders learners envs training cli -name '*.py*' -not -name '*.pyc' 2>/dev/null | sort | cksum | cut -d' ' -f1)

VERSIONS := 3.10 3.11 3.12 3.13
LOCKS := $(foreach v,$(VERSIONS),requirements/py$(subst .,,$(v)).lock)

install: $(LINKED)  ## create .venv with the package and the extras eval and minari
	@:

dev: $(VENV)/.dev install  ## add the packages of tests, linters and documentation, with the other extras
	@:

$(LINKED): $(VENV)/.installed
	@if ls $(VENV)/.linked-* >/dev/null 2>&1; then requirements/install.sh --link $(VENV); fi
	@rm -f $(VENV)/.linked-*
	@touch $@

$(VENV)/.installed: setup.py pyproject.toml $(LOCKS) requirements/install.sh
	@if [ "$$(uname -s)-$$(uname -m)" != Linux-x86_64 ]; then \
		echo "the lock files are for Linux on x86-64, but this is $$(uname -s) on $$(uname -m); install with pip as in docs/versions.md, and run servers in a container."; exit 1; fi
	@if [ -z "$(PYTHON)" ]; then \
		echo "rlds2reverb requires Python 3.10 to 3.13; install python3.13 and run 'make PYTHON=python3.13 $(MAKECMDGOALS)'."; exit 1; fi
	@requirements/install.sh "$(PYTHON)" $(VENV)
	@touch $@

$(VENV)/.dev: $(VENV)/.installed $(LOCKS:.lock=-dev.lock)
	@requirements/install.sh --dev $(VENV)
	@touch $@

demo: install  ## convert a D4RL file, validate it, and train an agent (20 to 40 s)
	@rm -rf build/demo
	@$(BIN)/rlds2reverb demo $(DATA) --out build/demo --reference-returns tests/data/d4rl/ref_scores.json

test: dev  ## run the fast tests in PATHS=tests, in random order (SEED=0)
	@$(TESTS) -m "not slow" $(PATHS)

test-slow: dev  ## run the slow tests, and the property tests with 25 times as many examples
	@THOROUGH=1 $(TESTS) --timeout 1200 -m "slow or hypothesis" tests

# Only this target installs these packages, beside the other ones.
test-environments: dev  ## test environments of dm_control and OGBench (Python 3.11; installs them)
	@if ! $(BIN)/python -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))'; then \
		echo "skipped, because their lock file is for Python 3.11"; exit; fi; \
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes --upgrade \
	    --target build/environments -r requirements/environments.lock; \
	PYTHONPATH=build/environments $(BIN)/python -m pytest -q -p no:cacheprovider \
	    tests/envs/test_dm_control.py tests/datasets/readers/test_ogbench.py

build/torch/.installed: requirements/torch.lock | dev
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-compile --upgrade --target build/torch \
	    --retries 1 --extra-index-url https://download.pytorch.org/whl/cpu -r $<
	@touch $@

# Imports them first, because tests are skipped without them.
test-torch: build/torch/.installed  ## test examples with PyTorch, JAX and Optuna (Python 3.11; installs them)
	@PYTHONPATH=build/torch $(BIN)/python -c "import jax, optuna, torch"
	@PYTHONPATH=build/torch $(BIN)/python -m pytest -q -p no:cacheprovider tests/test_data_loader.py tests/test_docs.py \
	    -k "batches.md or custom_agents.md or robot.md or gloo or jax or optuna or torch"

drill: dev  ## run the reliability drill (up to an hour), and write its table to docs/drill.md
	@DRILL_CONSUMER_SECS=300 $(BIN)/python -m pytest -q -n 2 --dist worksteal -p no:cacheprovider -p no:randomly \
	    --timeout 1200 -m drill --drill-trials 20 --drill-table docs/drill.md tests

lint: dev  ## check style and format with ruff
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: dev  ## check types with mypy
	@$(BIN)/mypy

# One notebook requires PyTorch, which `make test-torch` installs.
notebooks: dev  ## run the notebooks, and store their outputs (NOTEBOOKS=notebooks/03_adders.ipynb: some of them)
	@PYTHONPATH=$(CURDIR)/build/torch $(BIN)/python tests/support/notebook_outputs.py $(NOTEBOOKS)

docs: dev  ## build the documentation site in build/site
	@$(BIN)/sphinx-build -q -W --keep-going -b html -d build/site-cache docs build/site
	@echo "open build/site/index.html"

wheel-test: dev  ## build the wheel, install it in another venv, and test it
	@requirements/wheel_test.sh $(BIN)/python

bench: install  ## run the benchmarks against the baselines
	@$(BIN)/python benchmarks/bench_ingest.py
	@$(BIN)/python benchmarks/bench_memory.py
	@$(BIN)/python benchmarks/bench_adders.py
	@$(BIN)/python benchmarks/bench_envs.py
	@$(BIN)/python benchmarks/bench_sample.py
	@$(BIN)/python benchmarks/bench_replay.py

build/light/.installed: requirements/light.txt setup.py
	@rm -rf build/light && "$(PYTHON)" -m venv build/light
	@build/light/bin/python -m pip install --quiet --disable-pip-version-check --no-compile -r $< pytest pytest-timeout
	@build/light/bin/python -m pip install --quiet --disable-pip-version-check --no-deps .
	@touch $@

test-light: build/light/.installed  ## test the light installation, without TensorFlow and with the newest NumPy (installs it)
	@build/light/bin/python -m pytest -q -p no:cacheprovider --noconftest tests/test_light_install.py

build/lerobot/.installed: requirements/lerobot.lock requirements/light.txt setup.py
	@rm -rf build/lerobot && "$(PYTHON)" -m venv build/lerobot
	@build/lerobot/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-compile --retries 0 \
	    --extra-index-url https://download.pytorch.org/whl/cpu -r $<
	@touch $@

# The second installation changes nothing, unless the light installation requires a package that LeRobot does not.
test-lerobot: build/lerobot/.installed  ## test with LeRobot and robomimic, in one environment with the light installation
	@build/lerobot/bin/python -m pip install --quiet --disable-pip-version-check --no-compile -r requirements/light.txt
	@build/lerobot/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --force-reinstall .
	@HF_HUB_OFFLINE=1 HF_HOME=build/lerobot/cache build/lerobot/bin/python -m pytest -q -p no:cacheprovider --noconftest \
	    tests/libraries/test_robot_libraries.py

test-install: install  ## install each documented extra as users do, and import its features (4 GB of downloads)
	@requirements/install_test.sh "$(PYTHON)"

# The locks of the users have the versions of the tests, so that `make dev` only adds packages.
lock: dev  ## regenerate the lock files with the newest versions (requires uv)
	@options="--override requirements/overrides.txt --python-platform x86_64-manylinux_2_28 --generate-hashes --no-header \
		--no-annotate --quiet"; \
	for v in $(VERSIONS); do lock=requirements/py$${v/./}; \
		case $$v in 3.10|3.11) ;; *) options+=" --override requirements/tf_agents.txt";; esac; \
		uv pip compile setup.py requirements/cpu.in --extra dev --python-version $$v --upgrade -o $$lock-dev.lock $$options; \
		uv pip compile setup.py requirements/cpu.in --extra eval --extra minari --python-version $$v --upgrade \
			-c $$lock-dev.lock -o $$lock.lock $$options; done
	@uv pip compile requirements/environments.in --no-deps --python-version 3.11 --generate-hashes --no-header \
		--python-platform x86_64-manylinux_2_28 --no-annotate --quiet --upgrade -o requirements/environments.lock
	@grep -v -- --hash requirements/py311.lock | sed 's/ \\$$//' > requirements/server.tmp
	@uv pip compile requirements/server.in --constraint requirements/server.tmp --python-version 3.11 --generate-hashes \
		--no-header --python-platform x86_64-manylinux_2_28 --no-annotate --quiet -o rlds2reverb/reverb/process/requirements.txt
	@rm requirements/server.tmp

clean:  ## remove .venv and all build files
	@rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
