# Two commands on a fresh machine: `make demo` and `make test`. Each does all its own set-up.
PYTHON  ?= python3
VENV    := .venv
BIN     := $(VENV)/bin
PIP     := $(BIN)/python -m pip --disable-pip-version-check --quiet
WORKERS ?= 2
COUNT   ?= 2000
SEED    ?= 0
# One thread per test process: two processes with two OpenMP threads each would fight for two cores.
ONE     := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
COMPILE := $(BIN)/python -m compileall -qq -j 0 -x '/tests?/|/torch/(_inductor|testing/_internal)/' $(VENV)/lib || true
TORCH   := $(shell sed -n 's/^torch==/torch==/p' constraints.txt)

# Install hcal with extras at the pinned versions. HASHED=1, as in the workflows: every pin by its hash, nothing else.
ifdef HASHED
install  = $(PIP) install --no-compile --require-hashes --no-deps -r constraints-hashed.txt && \
           $(PIP) install --no-compile --no-deps --no-build-isolation -e .
else
install  = $(PIP) install --no-compile -c constraints.txt -e '.[$(1)]'
endif

.DEFAULT_GOAL := help
.PHONY: help demo test lint types unit test-all slow browser fuzz readme results mutants docs links fresh hashes sbom audit package test-oldest test-newest clean

help:  ## list the commands
	@grep -E '^[a-z -]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

$(VENV)/.run: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(call install,plot)
	@touch $@

$(VENV)/.test: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(if $(HASHED),,$(PIP) install --no-compile -c constraints.txt $(TORCH))
	$(call install,test)
	@$(COMPILE); touch $@ $(VENV)/.run

$(VENV)/.all: $(VENV)/.test
	$(call install,test-all)
	@touch $@

$(VENV)/.docs: $(VENV)/.test
	$(call install,docs)
	@touch $@

demo: $(VENV)/.run  ## train a network, calibrate it, show before and after
	$(BIN)/hcal demo

test: lint types unit  ## lint, types, tests: what must pass before a change lands (minutes)

lint: $(VENV)/.test
	$(BIN)/ruff check . && $(BIN)/ruff format --check .
types: $(VENV)/.test
	$(BIN)/mypy
unit: $(VENV)/.test
	$(ONE) $(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal

test-all: $(VENV)/.all lint types unit slow browser  ## everything: also slow tests, Dask, browser, examples, studies

slow: $(VENV)/.all
	$(ONE) $(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal -m slow

browser: $(VENV)/.all  ## the report in headless Chromium; installs it where apt-get is at hand
	@command -v chromium chromedriver >/dev/null || { apt-get update -qq && apt-get install -y -qq chromium chromium-driver; }
	$(ONE) $(BIN)/python -m pytest -q -m browser

fuzz: $(VENV)/.test  ## attack readers, model files, metrics and entry points with made-up input (COUNT, SEED)
	$(ONE) $(BIN)/python tests/fuzz --count $(COUNT) --seed $(SEED)

readme: $(VENV)/.run  ## write numbers, tables and pictures into README.md and the tutorial
	$(BIN)/python tools/readme.py && $(BIN)/python tools/tutorial.py

results: $(VENV)/.run  ## name the results files that are older than the code they speak of, with their commands
	@$(BIN)/python tools/results.py

mutants: $(VENV)/.test  ## the share of 300 sampled mutants that the tests kill (an hour)
	$(PIP) install -c constraints.txt coverage && $(ONE) $(BIN)/python tools/mutants.py

docs: $(VENV)/.docs  ## build the documentation and its gallery into site/; a warning or a dead link is an error
	$(ONE) $(BIN)/python -m sphinx -b html -W --keep-going -q -d build/doctrees docs site
	$(BIN)/python tools/site.py site
	@echo "open site/index.html"

links: $(VENV)/.docs  ## ask every address outside the site whether it is still there; needs a network
	$(ONE) $(BIN)/python -m sphinx -b linkcheck -q -d build/doctrees -D plot_gallery=0 docs build/links

fresh:  ## install hcal alone, without any extra, and use it with two classes and ten
	rm -rf .venv-fresh && $(PYTHON) -m venv .venv-fresh
	.venv-fresh/bin/python -m pip install --quiet -c constraints.txt .
	cd .venv-fresh && bin/python ../tools/fresh.py

hashes sbom: $(VENV)/.test  ## write constraints-hashed.txt; write versions and licences of the pins as CycloneDX
	$(BIN)/python tools/pins.py $@

audit:  ## ask the advisory database about every pin; fails where it cannot be asked
	$(PYTHON) tools/pins.py audit

package: $(VENV)/.test  ## build wheel and sdist with the pinned tools
	$(PIP) install -c constraints.txt build hatchling && $(BIN)/python -m build --no-isolation

test-oldest:  ## the tests with the oldest supported versions of every dependency (constraints-oldest.txt)
	$(PYTHON) -m venv .venv-oldest
	.venv-oldest/bin/python -m pip install --quiet -c constraints-oldest.txt -e '.[all]' pytest pytest-xdist hypothesis psutil
	$(ONE) .venv-oldest/bin/python -m pytest -q -n $(WORKERS)

test-newest:  ## the tests with the newest version of every dependency; PRE=--pre takes pre-releases too
	$(PYTHON) -m venv .venv-newest
	.venv-newest/bin/python -m pip install --quiet --upgrade $(PRE) -e '.[all,test]'
	$(ONE) .venv-newest/bin/python -m pytest -q -n $(WORKERS)

clean:
	rm -rf $(VENV) .venv-* build dist site docs/api docs/gallery .mypy_cache .ruff_cache .pytest_cache
