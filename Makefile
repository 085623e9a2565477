# All commands of a clone. Each goal first prepares the machine (scripts/setup), which is quick if nothing is missing.
#   make run PYTHON=/usr/bin/python3.12     use another Python
#   make test ARGS="tests/integration -k disk"   pass arguments to pytest

PYTHON ?=
ARGS ?=
export PYTHON

# The server runs as root.
SUDO := $(shell [ "$$(id -u)" = 0 ] || echo sudo -E)
BIN := .venv/bin
# The same cache and settings as the keeper's build (hatch_build.py), so that Go's library is compiled once.
GO_CACHE := $(or $(SKERRY_BUILD_CACHE),$(XDG_CACHE_HOME),$(HOME)/.cache)/skerry/go-build
GO := GOCACHE=$(GO_CACHE) GOPROXY=off GOTOOLCHAIN=local GOFLAGS='-mod=mod -trimpath' CGO_ENABLED=0 $(CURDIR)/$(BIN)/go
GO_TESTS := $(patsubst %/go.mod,%,$(wildcard tests/*/*/go.mod))
SKERRY := $(strip $(SUDO) $(BIN)/skerry)
# A background job of a shell ignores SIGINT, and nohup ignores SIGHUP; the tests of signals need the defaults.
SIGNALS := env --default-signal=INT,QUIT,HUP
# Much of a test is waiting. A file stays with one process, which shares its servers among its tests; tests/support/file_order.py
# says which files go first.
AT_ONCE := -n 3 --dist loadfile --no-loadscope-reorder
SETUP := @sh scripts/setup
# The tests start hundreds of servers: with PYTHONDONTWRITEBYTECODE each of them would compile the sources again.
COMPILED := @$(BIN)/python -m compileall -q src
BASE := @$(SKERRY) image build base >/dev/null

.PHONY: help run test check test-lowest test-agents test-e2b test-integrations dist bench test-vm typescript keeper clean
.DEFAULT_GOAL := help

help: ## list the goals
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

test: ## set everything up, then run the tests (as root: they create real sandboxes)
	$(SETUP) test
	$(COMPILED)
	$(BASE)
	$(SUDO) $(SIGNALS) $(BIN)/python -m pytest -m "not soak and not integrations and not agents" $(AT_ONCE) $(ARGS)

check: ## lint, formatting, types, generated code, Go
	$(SETUP) check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy --strict scripts/vm/*.py
	$(BIN)/python scripts/generate_sync.py --check
	$(BIN)/python scripts/settings_page.py --check
	$(BIN)/python scripts/model_files.py --check
	sh -n bin/skerry && sh -n scripts/setup && sh -n scripts/action && sh -n scripts/vm/init && sh -n .ci/run
	@badly=$$("$$($(BIN)/go env GOROOT)/bin/gofmt" -l keeper tests) && [ -z "$$badly" ] || { echo "gofmt -l: $$badly" >&2; exit 1; }
	for module in keeper $(GO_TESTS); do (cd $$module && $(GO) vet ./...) || exit; done

test-lowest: ## run some tests with the lowest declared version of every dependency
	$(SETUP) test
	$(SUDO) $(BIN)/python scripts/lowest_versions.py $(ARGS)

test-integrations: ## run the adapters with the newest versions of the real frameworks (needs a package registry)
	$(SETUP) test
	$(BASE)
	$(SUDO) $(BIN)/python -m pytest -m integrations tests/integrations $(ARGS)

dist: ## build the sdist and the wheels: for this platform, and without the keeper for all others
	$(SETUP) check
	SKERRY_RELEASE=1 $(BIN)/python -m hatchling build -d dist
	SKERRY_RELEASE=1 SKERRY_PURE_WHEEL=1 $(BIN)/python -m hatchling build -t wheel -d dist

test-agents: ## install the coding agents and run them with a scripted model
	$(SETUP) test
	$(BASE)
	$(SUDO) env SKERRY_TEST_AGENTS=1 $(SIGNALS) $(BIN)/python -m pytest tests/agents $(ARGS)

bench: ## measure create, run, files and delete, and compare with other tools on this machine
	$(SETUP) bench
	@$(SUDO) $(BIN)/python -m bench $(ARGS)

test-e2b: ## run the published SDKs of E2B, and its own tests: E2B_SOURCES=, E2B_INTERPRETER= name their directories
	$(SETUP) test
	$(BASE)
	$(SUDO) env $(if $(E2B_SOURCES),E2B_SOURCES=$(E2B_SOURCES)) $(if $(E2B_INTERPRETER),E2B_INTERPRETER=$(E2B_INTERPRETER)) $(BIN)/python -m pytest -s -rs tests/e2b_published.py $(ARGS)

test-vm: ## run the isolation, limits and kill tests on kernel 6.1 with cgroup v2 (QEMU, emulated; slow)
	$(SETUP) vm
	$(BASE)
	@$(SUDO) $(BIN)/python scripts/vm $(ARGS)

typescript: ## write the types of the TypeScript SDK from the API, then build it (needs Node.js 20 and npm)
	$(SETUP) check
	cd sdk/typescript && npm ci --ignore-scripts --no-audit --no-fund
	$(BIN)/python -c 'import json; from skerry.server.app import ROUTES, document; print(json.dumps(document(ROUTES)))' >sdk/typescript/openapi.json
	cd sdk/typescript && npm run generate -- openapi.json && npm run build
	rm sdk/typescript/openapi.json

keeper: ## build the keeper if its sources changed
	$(SETUP) check

clean: ## remove build products: the virtual environment, the keeper, caches (not the state directory)
	$(SUDO) rm -rf .venv .venv-integrations src/skerry/keeper/bin build dist sdk/typescript/dist sdk/typescript/node_modules .mypy_cache .ruff_cache .pytest_cache
	$(SUDO) find . -name __pycache__ -type d -prune -exec rm -rf {} +
