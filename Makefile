# What there is to run. `make demo` and `make test` do all the set-up they need; the environment is .venv here.
# PYTHON names another interpreter of 3.11 or newer, ARGS is passed on: make demo ARGS="--out report"

SHELL := /bin/sh
VENV := .venv/bin
# Only when given, so that the set-up may choose among the interpreters there are.
export PYTHON
ARGS ?=
# Of the tests: two processes; a JVM or a browser beside each keeps two cores busy. PROCESSES=0 is one.
PROCESSES ?= 2

.DEFAULT_GOAL := help
.PHONY: help setup demo lab dashboard screenshots book docs browser test suite test-all quick check lint types prose pytest bench format lock golden clean

help: ## say what there is to run
	@sed -n 's/^\([a-z-]*\):.*## /\1	/p' Makefile | while IFS='	' read -r name text; do printf '  make %-11s %s\n' "$$name" "$$text"; done

setup: ## make .venv, unless it is there and up to date
	@sh scripts/setup.sh

demo: setup ## the main job: flights into a log, a killed writer, recovery, Spark, a report
	$(VENV)/walkit demo $(ARGS)

lab: setup ## JupyterLab on notebooks/; ARGS="--no-browser --ip=0.0.0.0" for another machine's browser
	$(VENV)/jupyter lab --notebook-dir=notebooks $(ARGS)

dashboard: setup ## the live dashboard, on the address that it prints
	PATH="$(CURDIR)/$(VENV):$$PATH" panel serve dashboards/app.py $(ARGS)

screenshots: setup browser ## make the pictures of the dashboard in README.md again
	$(VENV)/python scripts/screenshots.py

book: setup ## every notebook executed once, as one offline site in build/book
	$(VENV)/python scripts/book.py $(ARGS)

docs: setup ## the site of the documentation in build/docs, and the book; ARGS="--no-execute" without outputs
	$(VENV)/python scripts/make_docs.py $(ARGS)

browser: ## Debian's chromium for the tests of the dashboard, if it is missing and this is root
	@sh scripts/browser.sh

test: lint browser ## lint, then types and suite beside each other
	@$(MAKE) --no-print-directory -j 2 types suite

suite: setup ## all tests that are not slow
	$(VENV)/python -m pytest -n $(PROCESSES) --dist loadfile --no-loadscope-reorder $(ARGS)

test-all: check browser ## every test, those marked slow too: about an hour; docs/evidence.md has the last result
	HYPOTHESIS_PROFILE=release $(VENV)/python -m pytest -m "" -n $(PROCESSES) --dist loadfile --no-loadscope-reorder $(ARGS)

quick: setup ## the tests that the changed files reach, nearest first, for a minute; ARGS="--base HEAD~1"
	$(VENV)/python -m tests.support.quick $(ARGS)

pytest: setup ## the tests alone: make pytest ARGS="-m 'not spark' tests/log"
	$(VENV)/python -m pytest $(ARGS)

check: lint types ## lint and types

lint: setup ## codespell and ruff
	$(VENV)/codespell README.md CHANGELOG.md CONTRIBUTING.md docs walkit tests scripts dashboards
	$(VENV)/ruff check .
	$(VENV)/ruff format --check .

types: setup ## mypy --strict
	$(VENV)/mypy

prose: ## the English of the documents by Harper (npm), before a release; ARGS=--lower
	npm install --prefix build/prose --no-audit --no-fund --silent harper.js@2.10.0
	node scripts/prose.mjs build/prose/node_modules/harper.js $(ARGS)

bench: setup ## walkit bench write beside the raw device
	$(VENV)/walkit bench write $(ARGS)

format: setup ## let ruff fix what it can
	$(VENV)/ruff check --fix .
	$(VENV)/ruff format .

lock: setup ## make requirements.lock again from pyproject.toml; UPGRADE=1 takes the newest versions
	@sh scripts/lock.sh $(if $(UPGRADE),--upgrade)

golden: setup ## make data/golden and the example in FORMAT.md again, after a change of the format
	$(VENV)/python scripts/make_golden.py

clean: ## remove .venv and every cache
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
