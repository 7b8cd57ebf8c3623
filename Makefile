# `make train` and `make test` set up on a fresh machine with Python 3.11 or newer, and nothing else.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
AT_ONCE := --numprocesses=2 --dist=loadfile --no-loadscope-reorder # two files of tests at a time: some start four ranks each
OLDEST := .venv-oldest
NEWEST := .venv-newest
CUDA := .venv-cuda
DOCS := .venv-docs
IGNORED_VULNERABILITIES := # their ids, each with its reason in a line here: what make audit leaves out
.PHONY: install train test fast oldest newest cuda nightly layouts options runs everything lint audit constraints docs site clean

install: $(VENV)/.installed

$(VENV)/.installed: setup.cfg pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit("forge needs Python 3.11 or newer; this is " + sys.version) if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@

train: install ## the first real run
	$(BIN)/python -m forge.train

test: install lint ## what CI runs
	$(BIN)/python -m pytest $(AT_ONCE) -m 'not nightly'

fast: install ## the tests that take seconds
	$(BIN)/python -m pytest $(AT_ONCE) -m 'not slow and not nightly'

oldest: $(OLDEST)/.installed ## the fast tests on the oldest torch, Hydra and OmegaConf that setup.cfg allows, in an environment of its own
	$(OLDEST)/bin/python -m pytest $(AT_ONCE) -m 'not slow and not nightly'

$(OLDEST)/.installed: setup.cfg pyproject.toml
	$(PYTHON) -m venv $(OLDEST)
	$(OLDEST)/bin/python -m pip install --quiet --disable-pip-version-check 'torch==2.11.*' 'hydra-core==1.3.8' 'omegaconf==2.3.1' --editable '.[dev]'
	touch $@

newest: $(NEWEST)/.installed ## the fast tests on the newest torch, Hydra, OmegaConf and transformers
	$(NEWEST)/bin/python -m pytest $(AT_ONCE) -m 'not slow and not nightly'

$(NEWEST)/.installed: setup.cfg pyproject.toml
	$(PYTHON) -m venv $(NEWEST)
	$(NEWEST)/bin/python -m pip install --quiet --disable-pip-version-check --upgrade 'hydra-core>=1.4.0rc1' 'omegaconf>=2.4' transformers --editable '.[dev]'
	touch $@

cuda: $(CUDA)/.installed ## every preset and layout on a fake GPU, with torch's CUDA build in an environment of its own
	$(CUDA)/bin/python tools/cuda.py

# '===' keeps a CPU build, 2.11.0+cpu, out.
$(CUDA)/.installed: setup.cfg pyproject.toml
	$(PYTHON) -m venv $(CUDA)
	$(CUDA)/bin/python -m pip install --quiet --disable-pip-version-check 'torch===2.11.0' --editable '.[fla]'
	touch $@

nightly: install lint audit ## the tests that are not fast: about three hours on two cores
	$(MAKE) --keep-going layouts options runs

LAYOUTS := tests/parallel/test_parity.py
OPTIONS := tests/hf/test_option_matrix.py tests/hf/test_option_matrix_written.py

layouts: install ## every layout of the parity matrix against one device
	$(BIN)/python -m pytest --numprocesses=2 --dist=worksteal -m 'slow or nightly' $(LAYOUTS)

options: install ## every option of every family against transformers
	$(BIN)/python -m pytest --numprocesses=2 --dist=worksteal -m 'slow or nightly' $(OPTIONS)

runs: install ## the other tests of the night: killed runs, Slurm, sweeps, notebooks, ...
	$(BIN)/python -m pytest $(AT_ONCE) -m 'slow or nightly' $(addprefix --ignore=,$(LAYOUTS) $(OPTIONS))

# Each uses an environment of its own: machines can share them out.
everything: oldest newest cuda site nightly ## the fast tests on both ends of the ranges, the fake GPU, the site, then all other tests

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports

audit: install ## fails for a known vulnerability of what is installed; passed over, with a line, where it cannot look
	$(BIN)/python tools/audit.py $(IGNORED_VULNERABILITIES)

constraints: install ## constraints.txt: what is installed now; repeated by pip install -c constraints.txt
	$(BIN)/python -m pip freeze --disable-pip-version-check --exclude-editable | sed 's/+cpu$$//' > constraints.txt

docs: install ## the pages that are made from the schema
	$(BIN)/python tools/pages.py --write docs/reference
	$(BIN)/python tools/seeds.py --write docs/reference/coming_from
	$(BIN)/python tools/seeds.py --keys forge/compose/seed_keys.py

	$(BIN)/python tools/site_pages.py --llms

site: $(DOCS)/.installed ## the documentation as a site in site/html, with every link checked
	$(DOCS)/bin/python tools/site_pages.py

# setup.cfg's extra `docs` alone: the pages are made without forge.
$(DOCS)/.installed: setup.cfg
	$(PYTHON) -m venv $(DOCS)
	$(PYTHON) -c 'import configparser as c; p = c.ConfigParser(inline_comment_prefixes="#"); p.read("setup.cfg"); print(p["options.extras_require"]["docs"])' > $(DOCS)/requirements.txt
	$(DOCS)/bin/python -m pip install --quiet --disable-pip-version-check -r $(DOCS)/requirements.txt
	touch $@

clean:
	rm -rf $(VENV) $(OLDEST) $(NEWEST) $(CUDA) $(DOCS) site build dist *.egg-info .pytest_cache .ruff_cache
