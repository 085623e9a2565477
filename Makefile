# Everything a clone can do. Each goal first makes the machine ready (scripts/setup), which is quick when it is.
#   make run PYTHON=/usr/bin/python3.12     another Python
#   make test ARGS="tests/integration -k disk"   what is given to pytest

PYTHON ?=
ARGS ?=
export PYTHON

# The wall is built by a server that runs as root.
SUDO := $(shell [ "$$(id -u)" = 0 ] || echo sudo -E)
BIN := .venv/bin
# With the keeper's cache and as it is built (hatch_build.py): Go's library is compiled once.
GO_CACHE := $(or $(SKERRY_BUILD_CACHE),$(XDG_CACHE_HOME),$(HOME)/.cache)/skerry/go-build
GO := GOCACHE=$(GO_CACHE) GOPROXY=off GOTOOLCHAIN=local GOFLAGS='-mod=mod -trimpath' CGO_ENABLED=0 $(CURDIR)/$(BIN)/go
GO_TESTS := $(patsubst %/go.mod,%,$(wildcard tests/*/*/go.mod))
SKERRY := $(strip $(SUDO) $(BIN)/skerry)
# What a shell starts in the background ignores Ctrl-C, and nohup the hang-up; both would reach the tests of it.
SIGNALS := env --default-signal=INT,QUIT,HUP
# Much of a test is waiting. A file stays with one process, which shares its servers among its tests; tests/ordering.py
# says which files go first.
AT_ONCE := -n 3 --dist loadfile --no-loadscope-reorder
SETUP := @sh scripts/setup
# Hundreds of servers are started: where bytecode is not to be written (PYTHONDONTWRITEBYTECODE), each would compile anew.
COMPILED := @$(BIN)/python -m compileall -q src
BASE := @$(SKERRY) image build base >/dev/null

.PHONY: help run test check bench test-vm keeper clean
.DEFAULT_GOAL := help

help: ## this list
	@sed -n 's/^\([a-z-]*\): ## /  make \1\t/p' Makefile | expand -t 18

run: ## set everything up, then run the quick start in a real sandbox
	$(SETUP) run
	@$(SKERRY) doctor >/dev/null 2>&1 || $(SKERRY) doctor
	$(BASE)
	@$(SUDO) $(BIN)/python examples/quickstart.py
	@echo
	@echo "Next:"
	@echo "  $(SKERRY) run -- python3 -c 'print(6*7)'"
	@echo "  $(SKERRY) create --name dev"
	@echo "  $(SKERRY) exec dev -- bash -lc 'id; sudo id'"
	@echo "  $(SKERRY) shell dev"
	@echo "  $(SKERRY) doctor"
	@echo "  docs/README.md, and examples/quickstart.py, which you just saw run"

test: ## set everything up, then run the tests (as root: they build real walls)
	$(SETUP) test
	$(COMPILED)
	$(BASE)
	$(SUDO) $(SIGNALS) $(BIN)/python -m pytest -m "not soak" $(AT_ONCE) $(ARGS)

check: ## lint, formatting, types, generated code, Go
	$(SETUP) check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy --strict scripts/vm/*.py
	$(BIN)/python scripts/generate_sync.py --check
	$(BIN)/python scripts/settings_page.py --check
	sh -n scripts/setup && sh -n scripts/vm/init && sh -n .ci/run
	@badly=$$("$$($(BIN)/go env GOROOT)/bin/gofmt" -l keeper tests) && [ -z "$$badly" ] || { echo "gofmt -l: $$badly" >&2; exit 1; }
	for module in keeper $(GO_TESTS); do (cd $$module && $(GO) vet ./...) || exit; done

bench: ## measure: create, run, files, delete, against what else the machine has
	$(SETUP) bench
	$(BASE)
	@$(SUDO) $(BIN)/python -m bench $(ARGS)

test-vm: ## the wall, limits and kill tests on a cgroup v2 machine with kernel 6.1 (QEMU, emulated; slow)
	$(SETUP) vm
	$(BASE)
	@$(SUDO) $(BIN)/python scripts/vm $(ARGS)

keeper: ## build the keeper if its sources changed
	$(SETUP) check

clean: ## remove what was built here: the virtual environment, the keeper, caches (not the state directory)
	$(SUDO) rm -rf .venv src/skerry/keeper/bin build dist .mypy_cache .ruff_cache .pytest_cache
	$(SUDO) find . -name __pycache__ -type d -prune -exec rm -rf {} +
