PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
TEST_EXTRAS := dev,atari,box2d,docs,mujoco,pixels,popgym,report,video

# What `make test-all-pythons` runs on each Python besides a training.
PYTHONS := 3.10 3.11 3.12 3.13
QUICK_TESTS := $(wildcard tests/test_*_update.py) $(addprefix tests/test_, package_smoke.py \
	package_api_exports.py config.py yaml_strict.py checkpointing.py replay_buffer.py \
	recurrent_replay_buffer.py rollout_buffer.py dqn_trainer_smoke.py ppo_trainer_smoke.py)

# The settings of `make test-processors`: each makes this machine round like another,
# in torch's loops, oneDNN's convolutions and recurrent layers, or NumPy's matrix products.
PROCESSORS := ATEN_CPU_CAPABILITY=default ATEN_CPU_CAPABILITY=avx2 \
	ONEDNN_MAX_CPU_ISA=SSE41 ONEDNN_MAX_CPU_ISA=AVX2 \
	OPENBLAS_CORETYPE=Haswell OPENBLAS_CORETYPE=Zen

# What `make soak` runs, as docs/reliability.md describes it.
CAMPAIGNS := kills signals io_errors worker_failures malicious forgeries exactness

.PHONY: help setup train test test-release test-all-pythons test-processors soak check evidence bench docs clean
.DEFAULT_GOAL := help

help: ## Show what can be made.
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-16s %s\n", $$1, $$2}'

train: $(VENV)/.train ## Set up, then train DQN on CartPole, record a video and write a report.
	$(BIN)/rl-training train --config dqn/cartpole --report

test: $(VENV)/.test check ## Set up, then run every check and every test.
	$(BIN)/pytest -n 2 --dist worksteal

test-release: $(VENV)/.test ## Build the wheel, install it and all it needs into an empty environment, use it.
	RELEASE_INSTALL=complete $(BIN)/pytest tests/test_release.py -o timeout=3600

test-all-pythons: $(PYTHONS:%=test-python-%) ## Import, train and run quick tests on Python 3.10 to 3.13 (gigabytes).

# pyenv offers only the versions that are asked for.
test-python-%: export PYENV_VERSION = $*
test-python-%: $(VENV)/.test
	$(BIN)/mypy --python-version $*
	python$* -m venv .pythons/$*
	.pythons/$*/bin/pip install --quiet --disable-pip-version-check -c constraints.txt '.[dev]'
	cd .pythons/$* && bin/rl-training train --config dqn/cartpole --set total_timesteps=2000
	.pythons/$*/bin/pytest -q $(QUICK_TESTS)

test-processors: $(VENV)/.test ## Run the tests as other processors would round (an hour).
	@failed=; for setting in $(PROCESSORS); do \
	  echo "$$setting"; \
	  env $$setting $(BIN)/pytest -q -n 2 --dist worksteal || failed="$$failed $$setting"; \
	done; \
	test -z "$$failed" || { echo "failed with$$failed"; exit 1; }

soak: $(VENV)/.test ## Attack runs with kills, signals, failing disks, forgeries and broken workers (an hour).
	@failed=; for campaign in $(CAMPAIGNS); do \
	  echo "campaign.$$campaign"; \
	  (cd tests && ../$(BIN)/python -m campaign.$$campaign) || failed="$$failed $$campaign"; \
	done; \
	test -z "$$failed" || { echo "failed:$$failed"; exit 1; }

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

# Of __init__.py the version is taken.
SET_UP_FROM := $(VENV)/bin/pip pyproject.toml constraints.txt src/rl_training/__init__.py

$(VENV)/.train: $(SET_UP_FROM)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	@touch $@

$(VENV)/.test: $(SET_UP_FROM)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[$(TEST_EXTRAS)]'
	@touch $@ $(VENV)/.train

bench: $(VENV)/.test ## Measure speed beside other libraries (about an hour; makes their environments).
	$(BIN)/python -m benchmarks
	$(BIN)/python docs/generate.py

docs: $(VENV)/.test ## Build the documentation site in site/, and check every link of it.
	$(BIN)/python docs/build_site.py

clean: ## Remove the environment and caches.
	rm -rf $(VENV) .pythons build site .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
