# Needs Python 3.11 or newer and make, nothing else: each target makes the virtual
# environment it works in. CONSTRAINTS=file pins versions, ARGS=... goes to pytest, which runs
# in two processes, or to the benchmarks.

CONSTRAINTS ?=
ARGS ?=
VENV ?= .venv$(subst /,-,$(addprefix -,$(CONSTRAINTS)))

NEW_ENOUGH = import sys; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell for name in python3 python3.14 python3.13 python3.12 python3.11 python; do \
	"$$name" -c '$(NEW_ENOUGH)' 2>/dev/null && echo "$$name" && break; done)

INSTALLED = $(VENV)/installed

QUICK = not postgres and not pgbouncer and not mariadb and not redis and not mongodb and not s3 \
	and not node and not slow

.PHONY: help demo test quick lint bench clean

help:
	@echo "make demo    a small LangGraph application, its threads, and a sweep of them"
	@echo "make test    the whole suite, on a Postgres that it starts itself"
	@echo "make quick   what needs no server and is not slow, in a minute"
	@echo "make lint    ruff, mypy, who may import whom, and what is generated"
	@echo "make bench   the table of benchmarks, also in benchmarks/RESULTS.md; ARGS='--scale 0.05' for a try"
	@echo "make clean   remove $(VENV)"

$(INSTALLED): pyproject.toml $(CONSTRAINTS)
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed; name it with PYTHON=..." >&2; exit 1; }
	"$(PYTHON)" -m venv "$(VENV)"
	"$(VENV)/bin/python" -m pip install --quiet --disable-pip-version-check \
		-e '.[test]' $(addprefix -c ,$(CONSTRAINTS))
	@touch "$@"

demo: $(INSTALLED)
	@"$(VENV)/bin/python" examples/demo.py

test: $(INSTALLED)
	"$(VENV)/bin/python" -m pytest -n 2 $(ARGS)

quick: $(INSTALLED)
	"$(VENV)/bin/python" -m pytest -n 2 -m "$(QUICK)" $(ARGS)

lint: $(INSTALLED)
	"$(VENV)/bin/python" -m pip install --quiet --disable-pip-version-check -r lint-requirements.txt
	"$(VENV)/bin/python" scripts/unasync.py --check
	"$(VENV)/bin/ruff" check .
	"$(VENV)/bin/ruff" format --check .
	"$(VENV)/bin/mypy"
	"$(VENV)/bin/lint-imports" --no-cache

bench: $(INSTALLED)
	"$(VENV)/bin/python" -m benchmarks $(ARGS)

clean:
	rm -rf "$(VENV)"
