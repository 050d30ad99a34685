# Everything sets itself up: each target makes .venv on its first call and is instant about it afterwards.

# The first of these that is 3.11, 3.12 or 3.13; asked for only when something is installed.
FITS = import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))
PYTHONS := python3 python3.13 python3.12 python3.11
PYTHON ?= $(shell for python in $(PYTHONS); do "$$python" -c "$(FITS)" 2>/dev/null && { echo "$$python"; break; }; done)
ROUNDS ?= 100
HISTORIES ?= 100000
EXAMPLES ?= 2000
SIMULATED ?= 500000
CHECKPOINTS ?= 20000
WORKERS ?= 2
PYTEST_ARGS ?=
# Whatever the shell says: without bytecode each worker, and each of the hundred programs that tests start, compiles everything again.
export PYTHONDONTWRITEBYTECODE :=

VENV := .venv
BIN := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup $(PYTEST_ARGS)
INSTALLED := $(VENV)/stamp-installed
JAVA := $(VENV)/stamp-java
JARS := $(VENV)/stamp-jars

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup demo test test-slow test-all coverage lint format bench model past soak years fuzz clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(JARS) ## make .venv, install Holdfast and what it needs, fetch the JARs
	@# nothing else

demo: $(JARS) ## the whole story on real data: a Spark job killed three times, resumed, cleaned up meanwhile
	@$(BIN)/holdfast demo

test: $(JARS) ## the fast tests
	@$(PYTEST) -m "not slow"

test-slow: $(JARS) ## the slow tests only
	@$(PYTEST) -m slow || [ $$? -eq 5 ]  # 5: there is none

test-all: $(JARS) ## every test
	@$(PYTEST)

coverage: $(JARS) ## what of catalog/, writers/ and compaction/ the fast tests run, branch by branch: not less than its floor
	@rm -f .coverage .coverage.*
	@$(BIN)/python -m coverage run $(subst $(BIN)/python ,,$(PYTEST)) -m "not slow"
	@$(BIN)/python -m coverage combine --quiet
	@$(BIN)/python -m coverage report

lint: $(INSTALLED) ## ruff, mypy, import-linter
	@$(BIN)/ruff check --quiet
	@$(BIN)/ruff format --check --quiet || { $(BIN)/ruff format --check; echo "make format does it"; exit 1; }
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo

format: $(INSTALLED) ## let ruff format and sort
	@$(BIN)/ruff check --fix --quiet || true
	@$(BIN)/ruff format --quiet

bench: $(JARS) ## every benchmark, with its goal
	@$(BIN)/python -m benchmarks

model: $(INSTALLED) ## random histories of the protocol over the real decisions (HISTORIES=100000)
	@$(BIN)/python -m tests.protocol.model --histories $(HISTORIES)
	@$(BIN)/python -m tests.protocol.bisimulation --histories $$(( $(HISTORIES) / 50 + 1 ))

past: $(JARS) ## the catalog as it was, against copies of then, over a hundred random histories
	@PAST_HISTORIES=100 $(BIN)/python -m pytest -q -m slow tests/catalog/test_past.py -k many_histories

soak: $(JARS) ## real processes, killed at random (ROUNDS=100)
	@$(BIN)/python -m tests.protocol.soak --rounds $(ROUNDS)

years: $(INSTALLED) ## a catalog lives through years, in memory and for real (SIMULATED=500000 CHECKPOINTS=20000)
	@$(BIN)/python -m tests.protocol.years --simulated $(SIMULATED) --checkpoints $(CHECKPOINTS)

fuzz: $(INSTALLED) ## hostile input for everything that takes some (EXAMPLES=2000)
	@$(BIN)/python -m tests.protocol.fuzz --examples $(EXAMPLES)

clean: ## remove .venv, caches and build outputs
	@rm -rf $(VENV) build dist *.egg-info .coverage .coverage.* .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	@rm -rf artifacts derby.log metastore_db spark-warehouse
	@find . -name .git -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +

# Made again where it is of another Python than the one asked for.
$(INSTALLED): pyproject.toml constraints.txt
	@[ -n "$(PYTHON)" ] \
	  || { echo "Holdfast needs Python 3.11, 3.12 or 3.13, and none of $(PYTHONS) is one: say where with make PYTHON=/path/to/python3.13" >&2; exit 1; }
	@"$(PYTHON)" -c "" 2>/dev/null \
	  || { echo "Holdfast needs Python 3.11, 3.12 or 3.13, and '$(PYTHON)' does not run: say which one with make PYTHON=python3.13" >&2; exit 1; }
	@"$(PYTHON)" -c "$(FITS)" \
	  || { echo "Holdfast needs Python 3.11, 3.12 or 3.13, and '$(PYTHON)' is `"$(PYTHON)" --version 2>&1`: say which one with make PYTHON=python3.13" >&2; exit 1; }
	@echo "installing into $(VENV): some minutes the first time" >&2
	@version='import sys; print(sys.version_info[:2])'; \
	[ "`$(BIN)/python -c "$$version" 2>/dev/null`" = "`"$(PYTHON)" -c "$$version"`" ] \
	  || { rm -rf $(VENV)/bin $(VENV)/lib $(VENV)/lib64 $(VENV)/pyvenv.cfg && "$(PYTHON)" -m venv $(VENV); }
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-input -e ".[spark,demo,test,dev]" -c constraints.txt
	@touch $@

# Asked before anything is installed, for who needs Spark.
$(JAVA):
	@java="$${JAVA_HOME:+$$JAVA_HOME/bin/}java"; \
	version=`"$$java" -version 2>&1 | sed -n 's/.* version "\([0-9]*\).*/\1/p' | head -n 1`; \
	case "$$version" in \
	  17|21) ;; \
	  '') echo "Spark needs Java 17, and '$$java' does not run: install it, or set JAVA_HOME to it" >&2; exit 1 ;; \
	  *) echo "Spark needs Java 17, and '$$java' is Java $$version: set JAVA_HOME to a Java 17" >&2; exit 1 ;; \
	esac
	@mkdir -p $(VENV) && touch $@

# The first session resolves the JARs of delta-spark into the user's Ivy cache; later ones find them there.
$(JARS): $(JAVA) $(INSTALLED)
	@echo "fetching the JARs of delta-spark: half a minute the first time" >&2
	@$(BIN)/python -c "$$FETCH_JARS" >$(VENV)/jars.log 2>&1 || { cat $(VENV)/jars.log >&2; exit 1; }
	@touch $@

define FETCH_JARS
import os, sys
from delta import configure_spark_with_delta_pip
from pyspark.sql import SparkSession
os.environ["PYSPARK_PYTHON"] = sys.executable
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
configure_spark_with_delta_pip(builder).getOrCreate().stop()
endef
export FETCH_JARS
