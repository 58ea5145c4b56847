# Everything a developer runs. Needs make and Python 3.11 or newer with venv; the rest is installed
# into .venv and .venv-proto on first use. Options reach the program through ARGS, for example
#
#     make test ARGS="tests/unit/domain -k lease"

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
SHELL := /bin/bash

PYTHON ?= python3
ARGS ?=

# Tests start hundreds of processes; without compiled files, each of them compiles the whole package anew.
unexport PYTHONDONTWRITEBYTECODE

VENV := .venv
BIN := $(VENV)/bin
PROTO_VENV := .venv-proto
DOCS_VENV := .venv-docs
GENERATORS := grpcio-tools mypy-protobuf googleapis-common-protos
PIP_INSTALL := -m pip install -qq --disable-pip-version-check
PGAI := $(VENV)/pgai

# Folders with Python in them; bench and tests may be absent from a source archive. `tasks` is also there as liveness/tasks, a link:
# mypy follows it, ruff does not.
SOURCES := $(wildcard liveness tasks tests examples bench scripts)
TYPED := $(filter-out tasks,$(SOURCES))
PROTOS := $(shell find proto -name '*.proto')
DESCRIPTORS := build/liveness.binpb
RELEASED := proto/released.binpb

.PHONY: help run demo demo-temporal test unit check fmt proto proto-release blocking-client reference docs bench crash mutants sim clean
.PHONY: edge edge-wheel check-style check-types check-proto check-generated check-edge

help: ## list these targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sort | sed -E 's/:.*## /\t/' | expand -t 16

run: $(VENV)/.ready-run ## start a server (ARGS: options of `liveness serve`)
	@$(BIN)/liveness serve $(ARGS)

demo: $(VENV)/.ready-run ## see workers die and their work move on (ARGS: options of `liveness demo`)
	@$(BIN)/liveness demo $(ARGS)

demo-temporal: $(VENV)/.ready-dev ## see a Temporal worker die and another one take its activity over, in seconds
	@$(BIN)/python examples/temporal/run.py

test: $(VENV)/.ready-dev ## run the tests (ARGS: options of pytest)
	@$(BIN)/python scripts/build_edge.py --where-possible $(if $(ARGS),,--test)
	@$(BIN)/python scripts/run_tests.py $(ARGS)

edge: $(VENV)/.ready-run ## build the native listener; needs Rust, and is optional
	@$(BIN)/python scripts/build_edge.py

edge-wheel: edge ## build a wheel of the native listener into dist/, for this platform and Python 3.11 or newer
	@cd edge && ../$(BIN)/python -m maturin build --release --locked --quiet --out ../dist
	@ls dist/liveness_edge-*.whl

unit: $(VENV)/.ready-dev ## run the tests that need no process, server or database (ARGS: options of pytest)
	@$(BIN)/python -m pytest -q -n auto tests/unit $(ARGS)

check: check-style check-types check-proto check-generated check-edge ## lint, types, proto rules, generated code

check-style: $(VENV)/.ready-dev
	@echo "Style"
	@$(BIN)/ruff check $(SOURCES)
	@$(BIN)/ruff format --check $(SOURCES)

check-types: $(VENV)/.ready-dev
	@echo "Types"
	@$(BIN)/mypy $(TYPED)

check-proto: $(VENV)/.ready-dev $(DESCRIPTORS)
	@echo "Proto: lint, and nothing that breaks released clients"
	@$(BIN)/buf lint $(DESCRIPTORS)
	@$(BIN)/buf breaking $(DESCRIPTORS) --against $(RELEASED)

check-generated: $(PROTO_VENV)/.ready $(VENV)/.ready-dev
	@echo "Generated code is current"
	@$(PROTO_VENV)/bin/python scripts/generate_proto.py check
	@$(BIN)/python scripts/generate_blocking_client.py check
	@$(BIN)/python scripts/generate_reference.py check

check-edge: $(VENV)/.ready-dev
	@echo "Native edge"
	@$(BIN)/python scripts/build_edge.py --where-possible --check

fmt: $(VENV)/.ready-dev ## format the code and fix what can be fixed
	@$(BIN)/ruff check --fix $(SOURCES)
	@$(BIN)/ruff format $(SOURCES)
	@if command -v cargo >/dev/null; then cd edge && cargo fmt; fi

proto: $(PROTO_VENV)/.ready ## generate liveness/v1 from proto/
	@$(PROTO_VENV)/bin/python scripts/generate_proto.py generate

blocking-client: $(VENV)/.ready-dev ## generate the SDK's blocking client from its client
	@$(BIN)/python scripts/generate_blocking_client.py generate

reference: $(VENV)/.ready-dev ## generate docs/reference from the code
	@$(BIN)/python scripts/generate_reference.py generate

docs: $(DOCS_VENV)/.ready $(VENV)/.ready-dev ## build the documentation site into build/site; fails on broken links
	@$(BIN)/python scripts/generate_reference.py check
	@NO_MKDOCS_2_WARNING=1 DISABLE_MKDOCS_2_WARNING=true $(DOCS_VENV)/bin/mkdocs build --quiet --strict
	@echo "The site is in build/site: open build/site/index.html"

# `make check` compares proto/ with the baseline in proto/released.binpb, the contract that clients in
# the field were built from. Refresh and commit it with each release, and never to silence a finding.
proto-release: $(PROTO_VENV)/.ready ## make today's proto/ the contract that must not break
	@$(PROTO_VENV)/bin/python scripts/generate_proto.py baseline $(RELEASED)
	@echo "$(RELEASED) is refreshed; commit it with the release."

bench: $(VENV)/.ready-bench ## run the benchmarks (ARGS: options of `python -m bench`)
	@$(BIN)/python -m bench $(ARGS)

sim: $(VENV)/.ready-dev ## run simulated worlds (ARGS: options of `python -m tests.simulation`)
	@$(BIN)/python -m tests.simulation $(ARGS)

crash: $(VENV)/.ready-dev ## inject real faults into real processes (ARGS: options of `python -m tests.crash`)
	@$(BIN)/python -m tests.crash $(ARGS)

mutants: $(VENV)/.ready-dev ## plant bugs in copies of the tree and see which tests notice (ARGS: names, --jobs, --json, --write)
	@$(BIN)/python -m tests.mutants $(ARGS)

clean: ## remove environments, caches and build products
	rm -rf $(VENV) $(PROTO_VENV) $(DOCS_VENV) .venv*.unfinished build dist edge/target *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(DESCRIPTORS): $(PROTOS) scripts/generate_proto.py $(PROTO_VENV)/.ready
	@$(PROTO_VENV)/bin/python scripts/generate_proto.py descriptors $@

# While something is being installed into an environment, a mark lies beside it. A mark that is already
# there means that an earlier run was interrupted: then the environment is made anew.
# $(1): folder, $(2): what for
define begin_environment
@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	echo "liveness needs Python 3.11 or newer, and '$(PYTHON)' is $$($(PYTHON) -V 2>&1 || true)." \
		"Name another one, for example: make $(or $(firstword $(MAKECMDGOALS)),run) PYTHON=python3.12" >&2; \
	exit 1; }
@echo "Setting up $(1) for $(2) (once) …"
@if [ ! -x $(1)/bin/python ] || [ -e $(1).unfinished ]; then \
	touch $(1).unfinished && $(PYTHON) -m venv --clear $(1); fi
@touch $(1).unfinished
endef

define end_environment
@rm $(1).unfinished
@touch $@
endef

# setuptools comes first so that the build uses the pinned one instead of fetching its own.
$(VENV)/.ready-run: pyproject.toml constraints.txt
	$(call begin_environment,$(VENV),running)
	@$(BIN)/python $(PIP_INSTALL) -c constraints.txt setuptools
	@$(BIN)/python $(PIP_INSTALL) -c constraints.txt --no-build-isolation -e '.[server]'
	$(call end_environment,$(VENV))

$(VENV)/.ready-dev: pyproject.toml constraints.txt
	$(call begin_environment,$(VENV),development)
	@$(BIN)/python $(PIP_INSTALL) -c constraints.txt setuptools
	@$(BIN)/python $(PIP_INSTALL) -c constraints.txt --no-build-isolation -e '.[dev]'
	$(install_pgai)
	@touch $(VENV)/.ready-run
	$(call end_environment,$(VENV))

$(VENV)/.ready-bench: pyproject.toml constraints.txt
	$(call begin_environment,$(VENV),benchmarks)
	@$(BIN)/python $(PIP_INSTALL) -c constraints.txt setuptools
	@$(BIN)/python $(PIP_INSTALL) -c constraints.txt --no-build-isolation -e '.[bench]'
	$(install_pgai)
	@touch $(VENV)/.ready-run $(VENV)/.ready-dev
	$(call end_environment,$(VENV))

# Tests run one class of pgai, which needs none of what pgai asks for. It lies apart, so that nobody imports it by mistake.
define install_pgai
@$(BIN)/python $(PIP_INSTALL) -c constraints.txt --no-deps --upgrade --target $(PGAI) pgai
endef

# Apart from .venv, because the generator needs an older protobuf than the one we run with.
$(PROTO_VENV)/.ready: constraints-proto.txt
	$(call begin_environment,$(PROTO_VENV),generating code)
	@$(PROTO_VENV)/bin/python $(PIP_INSTALL) -c constraints-proto.txt $(GENERATORS)
	$(call end_environment,$(PROTO_VENV))

# Apart from .venv, so that nobody who runs the tests has to install it.
$(DOCS_VENV)/.ready: constraints-docs.txt
	$(call begin_environment,$(DOCS_VENV),the documentation)
	@$(DOCS_VENV)/bin/python $(PIP_INSTALL) -c constraints-docs.txt mkdocs-material
	$(call end_environment,$(DOCS_VENV))
