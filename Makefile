# Two commands do everything on a fresh Debian 12 machine (as root): `make demo` and `make test`.
# `make check` needs neither root nor Slurm nor a cluster.

SHELL := /bin/bash
.DELETE_ON_ERROR:

# The devcluster's user must be able to execute the Python and to read the package: nothing below root's home can.
ifeq ($(shell id -u),0)
VENV ?= /var/lib/slurm_llm/venv
else
VENV ?= $(CURDIR)/.venv
endif
BIN := $(VENV)/bin
SYSTEM_PYTHON ?= /usr/bin/python3
SOURCES := $(shell find slurm_llm job_templates site_configs -type f -not -name '*.pyc') pyproject.toml

.PHONY: help install demo test test-vllm check lint format clean

help:
	@sed -n 's/^\([a-z-]*\): .*## \(.*\)/  make \1\t\2/p' Makefile

# What a check needs: a browser looks at reports. And as root, where jobs are run, MPI and the library that Triton's
# Python stub links to.
PACKAGES := python3-venv shellcheck chromium-headless-shell fonts-dejavu-core
ifeq ($(shell id -u),0)
PACKAGES += libpython3.11 openmpi-bin libopenmpi3 libpmix2 libpmix-dev iproute2 haproxy nginx-light prometheus
endif

$(VENV)/.dependencies: pyproject.toml
	@missing=$$(for name in $(PACKAGES); do \
	    dpkg-query -W -f '$${Status}' $$name 2>/dev/null | grep -q 'ok installed' || echo $$name; done); \
	if [ -n "$$missing" ] && [ "$$(id -u)" = 0 ]; then \
	    apt-get update -qq && DEBIAN_FRONTEND=noninteractive \
	        apt-get install -qq -y --no-install-recommends $$missing >/dev/null; \
	elif [ -n "$$missing" ]; then echo "ask root to install Debian's:" $$missing; exit 1; fi
	@mkdir -p $(VENV) && chmod 755 $(VENV)
	@umask 022 && $(SYSTEM_PYTHON) -m venv $(VENV) && $(BIN)/pip install --quiet --upgrade pip
	@umask 022 && $(BIN)/pip install --quiet '.[rehearsal,test]'
	@touch $@

# Installed as a wheel, not in place: what is tried and tested is what users get, package data included.
$(VENV)/.package: $(VENV)/.dependencies $(SOURCES)
	@rm -rf build
	@umask 022 && $(BIN)/pip install --quiet --no-deps --force-reinstall .
	@touch $@

install: $(VENV)/.package ## set up the Python environment

demo: install ## serve a rehearsal on a real four-node Slurm, watch it, talk to it, take it down
	@PYTHON=$(BIN)/python docs/examples/demo.sh

# An older Triton, whose servers collide when they share a node and a shared-memory prefix: a test needs it.
$(VENV)/triton-2.43/.installed: $(VENV)/.dependencies
	@umask 022 && $(BIN)/pip install --quiet --no-deps --upgrade --target $(VENV)/triton-2.43 nvidia-pytriton==0.5.3
	@touch $@

# The load generator of `bench`, 0.4 GB, in a Python environment of its own: its numpy is not the rehearsal's.
AIPERF_VENV ?= $(VENV)-aiperf
$(AIPERF_VENV)/.installed: tests/benching/requirements.txt
	@umask 022 && $(SYSTEM_PYTHON) -m venv --clear $(AIPERF_VENV) && $(AIPERF_VENV)/bin/pip install --quiet --upgrade pip
	@umask 022 && $(AIPERF_VENV)/bin/pip install --quiet --no-deps -r tests/benching/requirements.txt
	@touch $@

# Tests send Ctrl-C, to which a shell makes deaf what it runs beside itself.
HEARING = env --default-signal=INT,QUIT,HUP
PYTEST = AIPERF_VENV=$(AIPERF_VENV) $(HEARING) $(BIN)/python -m pytest -q -m '(cluster or rehearsal) and not vllm'
SECOND = DEVCLUSTER_STATE=/var/lib/slurm_llm/devcluster-second DEVCLUSTER_USER=llm2
BESIDE := tests/rehearsal tests/agent tests/engines $(patsubst %,tests/cluster/test_%.py, \
    bench containers devcluster epilog front image imitation in_allocation logs metrics prometheus report security \
    site_check site_features site_init site_rehearsal stages staging then top tunnel)
test: install $(VENV)/triton-2.43/.installed $(AIPERF_VENV)/.installed ## every check and test, on a real Slurm cluster too (needs root)
	@# Tests that run jobs mostly wait: two streams of them, each on a cluster of its own. The second is told at the end.
	@told=$$(mktemp); { $(HEARING) $(MAKE) --no-print-directory check; first=$$?; \
	    $(SECOND) $(PYTEST) $(BESIDE) && (exit $$first); } >"$$told" 2>&1 & others=$$!; \
	echo "$(PYTEST)"; $(PYTEST) $(BESIDE:%=--ignore=%); status=$$?; \
	wait $$others || status=$$?; cat "$$told"; rm -f "$$told"; exit $$status

# A vLLM for the CPU, 2.2 GB, in a Python environment of its own: its torch and numpy are nobody else's.
VLLM_VENV ?= $(VENV)-vllm
$(VLLM_VENV)/.installed: tests/vllm/requirements.txt tests/vllm/requirements-alone.txt
	@umask 022 && $(SYSTEM_PYTHON) -m venv --clear $(VLLM_VENV) && $(VLLM_VENV)/bin/pip install --quiet --upgrade pip
	@umask 022 && $(VLLM_VENV)/bin/pip install --quiet -r tests/vllm/requirements.txt
	@umask 022 && $(VLLM_VENV)/bin/pip install --quiet --no-deps -r tests/vllm/requirements-alone.txt
	@# Triton's stub starts Python in the C locale whatever the environment says; packages read UTF-8 as they are imported.
	@umask 022 && echo 'import locale; locale.setlocale(locale.LC_CTYPE, "C.UTF-8")' \
	    >"$$($(VLLM_VENV)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/utf8.pth"
	@touch $@

test-vllm: install $(VLLM_VENV)/.installed ## a real vLLM under a real Triton on a real Slurm cluster (needs root)
	VLLM_VENV=$(VLLM_VENV) $(HEARING) $(BIN)/python -m pytest -q -m vllm tests/vllm

check: install ## everything that starts no job and needs no root
	@$(MAKE) --no-print-directory lint
	$(BIN)/python -m pytest -q -m 'not cluster and not rehearsal and not vllm'

lint: install ## ruff, mypy --strict, the layers of imports
	$(BIN)/ruff check --quiet .
	$(BIN)/ruff format --quiet --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo 2>/dev/null || $(BIN)/lint-imports

format: install ## let ruff format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix-only .

clean: ## remove what builds and tests leave in the checkout
	rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
