# Two commands do everything: `make demo` and `make test`. They set up what they need on first use.
PYTHON ?= python3
BIN := .venv/bin
export PYTHONDONTWRITEBYTECODE :=
export PYSPARK_PYTHON := $(CURDIR)/$(BIN)/python
export SPARK_CONF_DIR := $(CURDIR)/tools/spark
export SPARK_LOCAL_IP := 127.0.0.1
run = JAVA_HOME="$$(cat .tools/java-home)" PATH="$(CURDIR)/$(BIN):$$PATH"

.DEFAULT_GOAL := help
.PHONY: help setup demo docs check quick test static lint types contracts jars unit pytest soak hostile format bench lock clean

help: ## list the targets
	@awk -F':.*## ' '/^[a-z]+:.*## /{printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## create .venv and find a Java (all other targets do this by themselves)
	@$(PYTHON) tools/bootstrap.py

demo: setup ## run the London congestion-charge network: brokers and clients over TLS, then the same on Spark
	@$(run) python examples/london.py

docs: setup ## build the documentation site; open build/site/index.html in a browser
	@$(run) NO_MKDOCS_2_WARNING=1 mkdocs build --quiet --strict

check: setup ## the inner loop: lint, types, import contracts, and all tests that need no Java and build neither site nor wheel, with fewer random examples and shorter attacks
	@$(MAKE) --no-print-directory --jobs=2 static quick

quick: setup
	@$(run) $(PYTEST) -m "not java and not builds" --hypothesis-profile=check $(ARGS)

# What reads the code takes one core for a minute, and so do Spark's archive and finding the tests: all at once, and tests
# first. A Spark that starts before the archive is there does without. Jars are fetched meanwhile; tests that need them wait.
test: setup ## everything that must pass: lint, types, import contracts, tests
	@$(MAKE) --no-print-directory --jobs=4 static .tools/spark.jsa jars pytest

# Niced so little that it ends before the tests do: what is left of it then has one core and the other one waits.
static: setup
	@nice -n 3 $(MAKE) --no-print-directory --jobs=1 lint types contracts

lint: setup
	@$(run) ruff check .
	@$(run) ruff format --check .

types: setup
	@$(run) mypy

contracts: setup
	@$(run) lint-imports

# Tests that share a Spark session stay in one process; ARGS="--processes=0" runs all of them in one, say for a debugger.
PYTEST = python -m pytest --processes=auto --durations=30

# Made again for each new environment, in which `setup` leaves the stamp.
.venv/penstock.stamp: | setup ;
.tools/spark.jsa: tools/spark_archive.py .venv/penstock.stamp
	@$(run) python tools/spark_archive.py

jars: setup
	@$(run) nice -n 10 python tools/jars.py > /dev/null || true

unit: setup ## the tests alone; ARGS="-k name" narrows them
	@$(MAKE) --no-print-directory --jobs=2 .tools/spark.jsa pytest

pytest: setup
	@$(run) $(PYTEST) $(ARGS)

# Attacks are measured alone: what others take of the machine would count as theirs.
HOSTILE = tests/network/hostile
soak: setup .tools/spark.jsa ## the property tests with TIMES=20 as many examples, long tests, attacks, 10 million rules, and SEEDS=10000 of each simulated world; takes hours
	@$(run) LONG=1 TIMES=$(or $(TIMES),20) $(PYTEST) -m "hypothesis or long" --ignore=$(HOSTILE) --hypothesis-profile=soak -o faulthandler_timeout=0 $(ARGS)
	@$(MAKE) --no-print-directory hostile
	@$(run) python bench/soak_conflicts.py

hostile: setup ## all attacks on broker processes with their true bounds, and DELIVERIES=1000000 under everything at once (SEED=n)
	@$(run) LONG=1 python -m pytest -s -m long -o faulthandler_timeout=0 $(ARGS) $(HOSTILE)

format: setup ## format the code and apply safe lint fixes
	@$(run) ruff format .
	@$(run) ruff check --fix .

bench: setup ## run the benchmarks (ONLY=name for one) and write bench/results.json
	@$(run) python bench/run.py $(ONLY)

COMPILE = uv pip compile --universal --generate-hashes --no-header --no-emit-index-url --python-version 3.11
lock: ## pin the dependencies that are new (needs uv on the PATH); UPGRADE=--upgrade pins the newest of all
	$(COMPILE) $(UPGRADE) --group build --output-file requirements/build.txt
	$(COMPILE) $(UPGRADE) pyproject.toml --extra spark --extra nats --extra postgres --extra delta --extra iceberg --extra duckdb --extra kafka --group dev --output-file requirements/dev.txt
	$(COMPILE) $(UPGRADE) --group java --output-file requirements/java.txt
	$(COMPILE) $(UPGRADE) --group dds --no-deps --output-file requirements/dds.txt

clean: ## remove everything that the targets created
	rm -rf .venv .tools .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build bench/results.json bench/*.html hostile-figures.json
