# `make demo` and `make test` need nothing but make and python3 >= 3.11: each target installs what it uses into .venv.
# `make check` is for while you work, on SQLite and within a minute; `make test` is what CI runs, `make long` the whole.
comma := ,
PYTHON3 ?= python3
PYTHON := .venv/bin/python
# Most tests wait for processes and servers, so there are more workers than processors. But while a test waits, its
# processes look again and again: with still more workers, all of them take longer.
PYTEST := $(PYTHON) -m pytest $(LONG) --dist worksteal
# Another order each time: it begins by saying which one. To repeat it: make test-sqlite SEED=1234
SEED ?= default
SHUFFLED := -p randomly --randomly-seed=$(SEED) --randomly-dont-reset-seed
MANAGE := $(PYTHON) example_project/manage.py
MYSQL := $(findstring mysql,$(DATABASE_URL) $(MYSQL_URL))
EXTRAS := postgres$(addprefix $(comma),$(MYSQL))
INSTALLED := .venv/installed$(addprefix -,$(MYSQL))

# A machine may forbid it, but without bytecode each process of the tests compiles all of them anew.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo freeze serve check test-changed test test-sqlite test-postgresql test-mysql test-in-life long green coverage lint format bench chaos simulate clusters pictures docs mutation mutants model messages

demo: $(INSTALLED)-demo
	$(MANAGE) migrate --verbosity 0
	$(MANAGE) race --rounds 20

freeze: $(INSTALLED)-demo
	$(MANAGE) migrate --verbosity 0
	$(MANAGE) freeze

# For example: make serve PORT=8001
PORT ?= 8000

serve: $(INSTALLED)-demo
	$(MANAGE) migrate --verbosity 0
	$(MANAGE) make_history
	$(MANAGE) create_admin --port $(PORT)
	$(MANAGE) runserver $(PORT)

# First the tests of what has changed, then the fast ones. What is all slow is not even imported, and those of the pages
# and of the tasks take almost as long as all the others together.
check: lint test-changed
	$(PYTEST) -n 2 -m 'not slow' -r fE $(SHUFFLED) $(addprefix --ignore=tests/,admin browser clusters processes contract/test_tasks.py)
	$(PYTHON) -m tests.ties

test-changed: $(INSTALLED)-test
	$(PYTHON) -m tests.mirror | xargs -r $(PYTHON) -m pytest -q --database sqlite

TESTED := sqlite postgresql $(if $(MYSQL_URL),mysql)
# Two databases side by side, each with three processes: while some wait, the others keep two cores busy. With more, the
# tests only wait for each other, some of them for too long. A report comes in one piece.
SIDE_BY_SIDE := $(if $(filter output-sync,$(.FEATURES)),--output-sync=target) --jobs=2 --keep-going
# Each pytest adds the names of its tests that failed (tests/conftest.py), so that they can all be printed at the end.
export PYTEST_FAILURES ?= $(CURDIR)/.venv/failures
NAMED = || { echo "FAILED make $@" >>$(PYTEST_FAILURES); exit 1; }

test: $(INSTALLED)-test
	@echo "Each of these prints its report when it ends, in some minutes: $(TESTED)."
	@: >$(PYTEST_FAILURES)
	@$(MAKE) --no-print-directory $(SIDE_BY_SIDE) $(TESTED:%=test-%) || { cat $(PYTEST_FAILURES); exit 1; }

test-sqlite: $(INSTALLED)-test
	$(PYTEST) -n 3 $(SHUFFLED) --database sqlite $(NAMED)

test-postgresql: $(INSTALLED)-test
	$(PYTEST) -n 3 --database postgresql $(NAMED)

# One cluster for all of its tests.
test-mysql: $(INSTALLED)-test
	$(PYTEST) -n 3 --ignore=tests/clusters --database mysql $(NAMED)
	$(if $(LONG),$(PYTEST) tests/clusters --database mysql $(NAMED))

# The tests of CI, again and again on a busy machine. For example: make green ROUNDS=3 AT=2026-12-31T23:50:00
ROUNDS ?= 20

green: $(INSTALLED)-test
	$(PYTHON) -m tests.under_load --rounds $(ROUNDS) $(addprefix --at ,$(AT)) -- $(MAKE) test

# What a lock is, and what the commands do, in a project that has what real ones have: tests/life/everywhere.py.
test-in-life: $(INSTALLED)-life
	$(PYTEST) -n 4 --in-life tests/contract tests/processes --database sqlite
	$(PYTEST) -n 4 --in-life tests/contract tests/processes --database postgresql

# What takes hours: before a release, and each night, with a machine for each part. It needs all that CI needs.
LONG_PARTS := sqlite postgresql mysql in-life pythons mutants simulate model clusters chaos soak

long:
	$(if $(MYSQL_URL),,$(error Set MYSQL_URL, for example to mysql://root@127.0.0.1:3306/test: this needs MariaDB or MySQL too))
	@$(MAKE) --no-print-directory --keep-going $(LONG_PARTS:%=long-%)

$(addprefix long-,sqlite postgresql mysql): long-%:
	$(MAKE) test TESTED=$* LONG=--long

$(addprefix long-,mutants simulate model clusters): long-%:
	$(MAKE) $*

long-in-life:
	$(MAKE) test-in-life LONG=--long

long-pythons: $(INSTALLED)-test
	$(PYTHON) -m pip install --quiet --group tox
	.venv/bin/tox run --skip-missing-interpreters=true -- --long

long-chaos:
	env -u DATABASE_URL $(MAKE) chaos

long-soak:
	$(MAKE) bench PARTS=soak

# Which branches the fast tests take. What runs in processes of its own is not seen.
coverage: $(INSTALLED)-test
	$(PYTEST) -n 3 -m 'not slow' --database sqlite --cov --cov-report=term:skip-covered --cov-report=html

lint: $(INSTALLED)-lint
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m mypy
	.venv/bin/lint-imports
	.venv/bin/codespell

format: $(INSTALLED)-lint
	$(PYTHON) -m ruff check --fix .
	$(PYTHON) -m ruff format .

# For example: make chaos SECONDS=600 DATABASE_URL=mysql://root@127.0.0.1:3306/chaos
SECONDS ?= 60

# For example: make bench PARTS="cost waits" or make bench PARTS=endurance CYCLES=100000 PLOTS=docs/images
CYCLES ?= 2000

bench: $(INSTALLED)-bench
	$(PYTHON) -m tests.benchmarks $(PARTS) --cycles $(CYCLES) $(addprefix --plots ,$(PLOTS))

# Breaks each function of a wing in all the ways that mutmut knows, and lists what no test on SQLite notices.
# For example: make mutation WING=models.locks
WING ?= jobs
# As in a worker of pytest-xdist, the database is chosen before. The mutants share it, so they run one after the other.
MUTMUT := PYTEST_XDIST_WORKER=gw0 DATABASE_URL=sqlite:///$(CURDIR)/mutants/default.sqlite3 .venv/bin/mutmut

mutation: $(INSTALLED)-mutation
	$(MUTMUT) run --max-children 1 'django_singlejob.$(WING)*'
	$(MUTMUT) results | sed '/: not checked$$/d'

chaos: $(INSTALLED)-test
	$(PYTHON) -m tests.chaos --seconds $(SECONDS)

# For example: make simulate SECONDS=600 SIMULATED="--processes 2 --scenario job --seed 7"
simulate: $(INSTALLED)-test
	$(PYTHON) -m tests.simulation --seconds $(SECONDS) $(SIMULATED)

# For example: make clusters SECONDS=30 SCENARIOS="synchronous-split one-of-two"
clusters: $(INSTALLED)-test
	$(PYTHON) -m tests.clusters --seconds $(SECONDS) $(SCENARIOS)

# For example: make mutants DATABASES="sqlite postgresql" MUTANTS="no-gate renew-by-save"
mutants: $(INSTALLED)-test
	$(PYTHON) -m tests.mutants $(addprefix --database ,$(DATABASES)) $(addprefix --only ,$(MUTANTS))

# All forms of the models of the protocol and of a run, which needs spin and gcc: about ten minutes.
model: $(INSTALLED)-test
	$(PYTHON) -m tests.model

pictures: $(INSTALLED)-test
	SINGLEJOB_PICTURES=docs/images $(PYTHON) -m pytest --database sqlite tests/browser/test_looks.py

docs: $(INSTALLED)-docs
	$(PYTHON) -m tests.pages
	.venv/bin/zensical build --clean --strict

.venv/created:
	@$(PYTHON3) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "$(PYTHON3) is older than 3.11. Put a newer one first in PATH.")'
	$(PYTHON3) -m venv --clear .venv
	$(PYTHON) -m pip install --quiet --upgrade 'pip>=25.1'
	touch $@

$(INSTALLED)-%: pyproject.toml .venv/created
	$(PYTHON) -m pip install --quiet --editable '.[$(EXTRAS)]' --group $*
	touch $@

# Brings the translations up to date with the texts. What is left to translate then, tests/test_translations.py says.
messages: $(INSTALLED)-test
	cd django_singlejob && ../$(PYTHON) -m django makemessages --locale de --locale es --no-wrap --no-location --no-obsolete
	cd django_singlejob && ../$(PYTHON) -m django compilemessages
