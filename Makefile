# `make audit` and `make test` do all the set-up that they need.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV ?= .venv
RUN := $(VENV)/.run-installed
DEV := $(VENV)/.dev-installed
# Files of tests that run side by side; each may start a Flower run of its own.
WORKERS ?= 2
STAMP := $(shell date +%Y%m%d-%H%M%S)

.PHONY: audit deploy-local test test-slow test-all test-long test-deploy \
	test-flower fuzz lint benchmark calibration vulnerabilities screenshot screenshots docs clean

audit: $(RUN) ## Audit the embedded default and say where the report is.
	$(VENV)/bin/fedattack audit quickstart --out runs/quickstart-$(STAMP)

deploy-local: $(RUN) ## Audit a SuperLink and three SuperNodes, processes on this machine; INSECURE=1 for no TLS and no keys.
	$(VENV)/bin/fedattack audit quickstart --on $(if $(INSECURE),processes-insecure,processes) \
		--out runs/deployed-$(STAMP) --seeds 1 --set clients=3 --set rounds=3

test: $(DEV) lint ## Format, lint, type and run the tests that take little time.
	$(VENV)/bin/python -m pytest --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder

test-slow: $(DEV) ## Test by real runs and by seconds of computing.
	$(VENV)/bin/python -m pytest -m slow --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder $(PYTEST)

test-all: test test-slow test-long test-deploy ## Run all tests (an hour and a half).

test-long: $(DEV) ## Test what takes minutes: runs that are killed, grids of runs, apps that are observed from outside.
	$(VENV)/bin/python -m pytest -m long --numprocesses $(WORKERS) --dist loadfile $(PYTEST)

test-deploy: $(DEV) ## Test real deployments (minutes).
	$(VENV)/bin/python -m pytest -m deploy $(PYTEST)

test-flower: $(DEV) ## Test observers and defences beside eight versions of Flower (twenty minutes, needs the network).
	$(VENV)/bin/python -m tests.flower_versions

lint: $(DEV)
	$(VENV)/bin/ruff format --check
	$(VENV)/bin/ruff check
	$(VENV)/bin/mypy

benchmark: $(DEV) ## Print what attacks, witnesses and observers cost beside the plain way, as one table (under ten minutes).
	$(VENV)/bin/python -m tests.benchmarks.table

calibration: $(DEV) ## How often reports cry wolf, see what is there, and state intervals that hold (hours); CI runs a short version.
	$(VENV)/bin/python -m tests.benchmarks.calibration
	$(VENV)/bin/python -m tests.benchmarks.claims
	$(VENV)/bin/python -m tests.benchmarks.canaries

fuzz: $(DEV) ## Hostile, altered and costly folders, killed writers (hours); CI runs a short version.
	$(VENV)/bin/python -m tests.fuzz.folders --count 2000 --workers $(WORKERS)
	$(VENV)/bin/python -m tests.fuzz.mutants --count 10000 --workers $(WORKERS)
	$(VENV)/bin/python -m tests.fuzz.costs --count 400 --workers $(WORKERS)
	$(VENV)/bin/python -m tests.fuzz.kills --count 300
	$(VENV)/bin/python -m tests.fuzz.kills --count 30 --observed

vulnerabilities: $(DEV) ## Look up all pinned packages in a database of known holes (needs the network).
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check pip-audit
	$(VENV)/bin/pip-audit --requirement constraints.txt --no-deps --disable-pip

screenshot: $(DEV) ## Make the README's picture from a quickstart's report (needs Chromium).
	$(VENV)/bin/python -m tests.report.screenshot

screenshots: $(DEV) ## Take pictures of every kind of page (minutes, needs Chromium).
	$(VENV)/bin/python -m tests.report.gallery build/gallery-$(STAMP)

docs: $(DEV) ## Make a site of the guides, with a reference and a search, that needs no network: build/site/index.html.
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --quiet --strict --config-file .docs/mkdocs.yml
	@echo build/site/index.html

clean:
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache

$(RUN): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[audit]'
	touch $@

$(DEV): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@
