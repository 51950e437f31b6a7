PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
TEST_EXTRAS := dev,atari,box2d,mujoco,pixels,popgym,report

.PHONY: help setup train test check evidence bench clean
.DEFAULT_GOAL := help

help: ## Show what can be made.
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-8s %s\n", $$1, $$2}'

train: $(VENV)/.train ## Set up, then train DQN on CartPole and print the result.
	$(BIN)/rl-training train --config dqn/cartpole

test: $(VENV)/.test check ## Set up, then run every check and every test.
	$(BIN)/pytest -n 2 --dist worksteal

check: $(VENV)/.test ## The fast half of the tests: lint, format, types, import rules.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

evidence: $(VENV)/.test ## Make the evidence cards that are missing, which can take hours, and the results page.
	$(BIN)/rl-training evidence run-missing
	$(BIN)/python docs/generate.py

setup: $(VENV)/.test ## Create .venv with everything a developer needs.

$(VENV)/bin/pip:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.train: $(VENV)/bin/pip pyproject.toml constraints.txt
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	@touch $@

$(VENV)/.test: $(VENV)/bin/pip pyproject.toml constraints.txt
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[$(TEST_EXTRAS)]'
	@touch $@ $(VENV)/.train

bench: $(VENV)/.test ## Measure speed beside other libraries (about an hour; makes their environments).
	$(BIN)/python -m benchmarks
	$(BIN)/python docs/generate.py

clean: ## Remove the environment and caches.
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
