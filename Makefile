# Weighbridge: `make run` to try it, `make test` to trust it.
#
#   make run                      embedded Postgres and Valkey, the gateway, one real vLLM replica (SmolLM2 without a GPU)
#   make run REPLICAS=2           two replicas
#   make run REPLICAS=simulated   no model at all: ready in seconds
#   make run ARGS="--public 0.0.0.0:8080"    any option of `weighbridge up`

PYTHON ?= python3
REPLICAS ?=
ARGS ?=
PYTEST_ARGS ?=
UPGRADE ?=

BIN := .venv/bin
LOCK := .venv-lock/bin/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
	--no-emit-index-url $(if $(UPGRADE),--upgrade) pyproject.toml deploy/locks/build.in

.DEFAULT_GOAL := help
.PHONY: help run test check lock chaos clean
# One recipe at a time: two of them would install into one virtual environment.
.NOTPARALLEL:

help: ## show this
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: ## start everything and print what to try; Ctrl-C stops it
	@$(PYTHON) deploy/install.py runtime
	@exec $(BIN)/weighbridge up $(if $(REPLICAS),--replicas $(REPLICAS)) $(ARGS)

test: ## run every test, against real services
	@$(PYTHON) deploy/install.py dev
	$(BIN)/python -m pytest -n 2 --dist loadgroup -m "not slow" $(PYTEST_ARGS)

chaos: ## run the long forms of the chaos tests
	@$(PYTHON) deploy/install.py dev
	$(BIN)/python -m pytest -m slow tests/chaos $(PYTEST_ARGS)

check: ## format, lint, types, floors, dependencies, migrations, deploy files
	@$(PYTHON) deploy/install.py dev
	$(BIN)/ruff format --check --quiet .
	$(BIN)/ruff check --quiet .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/deptry .
	$(BIN)/check-jsonschema --builtin-schema vendor.compose-spec compose.yaml
	$(BIN)/hadolint deploy/*.Dockerfile
	$(BIN)/python -m pytest -q tests/service/test_migrations.py

lock: ## resolve the locks anew; UPGRADE=1 takes the newest versions
	@test -x .venv-lock/bin/uv || { $(PYTHON) -m venv .venv-lock && .venv-lock/bin/pip install -q uv; }
	$(LOCK) -o deploy/locks/gateway.txt
	$(LOCK) --extra services -c deploy/locks/gateway.txt -o deploy/locks/runtime.txt
	$(LOCK) --extra services --group test --group quality -c deploy/locks/runtime.txt -o deploy/locks/dev.txt

clean: ## remove what was installed and cached; data in .weighbridge stays
	rm -rf .venv .venv-vllm .venv-lock .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
