# Two commands on a fresh machine: `make demo` and `make test`. Each does all its own set-up.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check --quiet
STAMP  := $(VENV)/.stamp
# One more than the two cores: tests that wait for processes leave them idle.
WORKERS ?= 3
TRITON  ?= triton==3.9.0
COUNT   ?= 2000
SEED    ?= 0
# Bytecode is made by all cores at once, and not of what nobody imports; pip would use one.
COMPILE := $(BIN)/python -m compileall -qq -j 0 -x '/tests?/|/torch/(_inductor|testing/_internal)/' $(VENV)/lib || true
# One thread per test worker: two workers with two OpenMP threads each would fight for two cores.
ONE    := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1

.DEFAULT_GOAL := help
.PHONY: help demo test lint types unit test-browser readme pages theory slow fuzz hashes licences audit test-oldest package examples-fresh test-evaluators docs clean

help:  ## list the commands
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

$(STAMP)-run: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --no-compile -c constraints.txt torch==$$(sed -n 's/^torch==//p' constraints.txt)
	$(PIP) install --no-compile -c constraints.txt -e '.[plot,frames,fast]'
	@$(COMPILE)
	@touch $@

$(STAMP)-test: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --no-compile -c constraints.txt torch==$$(sed -n 's/^torch==//p' constraints.txt)
	$(PIP) install --no-compile -c constraints.txt -e '.[all,test]'
	# The GPU kernels run in Triton's interpreter here; a CUDA build of torch brings a Triton of its own.
	@$(BIN)/python -c "import triton" 2>/dev/null || [ "$$(uname)" != Linux ] || $(PIP) install --no-compile $(TRITON)
	@$(COMPILE)
	@touch $@

demo: $(STAMP)-run  ## train a network, calibrate it, show before and after
	$(BIN)/hcal demo

test: lint types unit  ## everything that must pass before a change lands

lint: $(STAMP)-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)-test
	$(BIN)/mypy

unit: $(STAMP)-test
	$(ONE) $(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal

test-browser: $(STAMP)-test  ## the report in headless Chromium; installs it where apt-get is at hand
	@command -v chromium >/dev/null && command -v chromedriver >/dev/null || \
		{ apt-get update -qq && apt-get install -y -qq chromium chromium-driver; }
	$(ONE) $(BIN)/python -m pytest -q -m browser

readme: $(STAMP)-run  ## write the demo's numbers into the README; a test compares the two
	$(BIN)/python benchmarks/readme.py

pages: $(STAMP)-test  ## write the pages of docs that are made from results/*.csv
	$(ONE) $(BIN)/python -m studies page results/shared.csv --published results/published.csv \
		--ablations results/ablations.csv
	$(ONE) $(BIN)/python -m studies.central_page results/central.csv
	$(ONE) $(BIN)/python -m studies.joint page results/joint.csv
	$(ONE) $(BIN)/python -m studies.spread page
	$(ONE) $(BIN)/python -m studies.learning_curve page

theory: $(STAMP)-test  ## check the theorems by experiment again and write the page (minutes)
	$(ONE) $(BIN)/python -m studies theory

slow: $(STAMP)-test  ## the tests that take minutes
	$(ONE) $(BIN)/python -m pytest -q -n $(WORKERS) -m slow

fuzz: $(STAMP)-test  ## attack every reader, model file, metric and entry point with made-up input (COUNT, SEED)
	$(ONE) $(BIN)/python tests/fuzz --count $(COUNT) --seed $(SEED)

hashes: $(STAMP)-test  ## write the hashes of the pins (constraints-hashed.txt)
	$(BIN)/python tools/pins.py hashes

licences: $(STAMP)-test  ## write the licences of what hcal needs (docs/licences.md)
	$(BIN)/python tools/pins.py licences

audit: $(STAMP)-test  ## ask the advisory database about every pin; fails where it cannot be asked
	$(PYTHON) -m venv .venv-audit
	.venv-audit/bin/python -m pip install --quiet pip-audit packaging
	.venv-audit/bin/python tools/pins.py audit

test-oldest:  ## the tests with the oldest supported versions of every dependency (constraints-oldest.txt)
	$(PYTHON) -m venv .venv-oldest
	.venv-oldest/bin/python -m pip install --quiet -c constraints-oldest.txt \
		-e '.[all]' pytest pytest-xdist hypothesis psutil polars onnxruntime torchmetrics
	$(ONE) .venv-oldest/bin/python -m pytest -q -n $(WORKERS) $(OLDEST_TESTS)

package:  ## build wheel and sdist, check them, list what is in the wheel
	$(PYTHON) -m venv .venv-package
	.venv-package/bin/python -m pip install --quiet build twine
	.venv-package/bin/python tools/package.py

examples-fresh:  ## every example in an empty venv with the wheel and what its error names; hcal[all] (minutes)
	$(PYTHON) -m venv .venv-package
	.venv-package/bin/python -m pip install --quiet build
	.venv-package/bin/python tools/fresh.py

test-evaluators: $(STAMP)-test  ## Lightning and CatBoost, too large for every run, in a venv of their own
	$(PYTHON) -m venv .venv-evaluators
	.venv-evaluators/bin/python -m pip install --quiet -c constraints.txt \
		torch==$$(sed -n 's/^torch==//p' constraints.txt)
	.venv-evaluators/bin/python -m pip install --quiet -c constraints.txt \
		-e '.[plot,frames,fast,torchmetrics]' pytest hypothesis psutil pytorch-ignite lightning catboost
	$(ONE) .venv-evaluators/bin/python -m pytest -q -k "catboost or lightning" \
		tests/integrations/test_boosters.py tests/integrations/test_evaluators.py

docs: $(STAMP)-test  ## build the documentation into site/, offline; a warning is an error
	$(PIP) install -c constraints.txt -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	@echo "open site/index.html"

clean:
	rm -rf $(VENV) build dist site .mypy_cache .ruff_cache .pytest_cache
