# `make up` starts the appliance on a fresh machine, `make test` tries the code. Everything lives in `.venv` and
# `.tandem` beside this file. ARGS goes to the command: `make up ARGS="--set listen.port=8100"`.

.DEFAULT_GOAL := help
.PHONY: help up down status logs test test-slow test-gpu test-clients test-libraries client-libraries check fix bench bench-peers bench-growth image-lint installed venv venv-dev venv-gpu

# The first interpreter that is new enough; PYTHON=... chooses another. Only asked for when a target needs it.
find-python = $(shell for python in python3 python3.13 python3.12 python3.11 python3.14; do \
	"$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$python" && break; done)
PYTHON ?= $(or $(find-python),$(error tandem needs Python 3.11 or newer and found none on the PATH: install it, or name it with `make PYTHON=/path/to/python3 ...`))

help: ## this list
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 20

up: venv ## set up what is missing, fetch the model, start the appliance
	@.venv/bin/tandem up --detach $(ARGS)

down: installed ## let running requests finish, stop the appliance
	@.venv/bin/tandem down $(ARGS)

status: installed ## what runs, and what became of the last edit
	@.venv/bin/tandem status $(ARGS)

logs: installed ## follow the logs of every process
	@.venv/bin/tandem logs --follow $(ARGS)

test: venv-dev ## the tests that take seconds, real processes included
	.venv/bin/python -m pytest -m "not slow and not gpu and not clients" $(ARGS)

test-slow: venv-dev ## the tests that take minutes
	.venv/bin/python -m pytest -m "slow and not gpu" $(ARGS)

test-gpu: venv-gpu ## what only a CUDA device can show: bits, speeds, memory (under 8 minutes)
	.venv/bin/python -m pytest -m gpu -s tests/gpu $(ARGS)

# Each in an environment of its own below CLIENTS. Open WebUI comes without what it has for documents, speech and pictures,
# which is torch and gigabytes. The browser is the system's Chromium, or else one that is fetched, where that is possible.
CLIENTS := .cache/clients
test-clients: client-libraries ## other people's clients, installed aside (3 GB): LangChain, LiteLLM, llm, opencode, Codex, Claude Code, Open WebUI
	test -x $(CLIENTS)/open-webui/bin/python || .venv/bin/python -m venv $(CLIENTS)/open-webui
	! command -v npm >/dev/null || npm install --prefix $(CLIENTS)/npm --no-audit --no-fund \
		opencode-ai@1 @openai/codex@0 @anthropic-ai/claude-code@2
	$(CLIENTS)/open-webui/bin/python -m pip install --quiet -r tests/clients/open_webui_requirements.txt
	$(CLIENTS)/open-webui/bin/python -m pip install --quiet --no-deps open-webui==0.12.4
	command -v chromium || command -v chromium-browser || command -v google-chrome || \
		PLAYWRIGHT_BROWSERS_PATH="$(CURDIR)/$(CLIENTS)/browsers" \
		timeout 300 $(CLIENTS)/open-webui/bin/python -m playwright install chromium || true
	.venv/bin/python -m pytest -m clients -rs tests/clients $(ARGS)

test-libraries: client-libraries ## of these, the libraries alone: LangChain, LiteLLM, llm
	.venv/bin/python -m pytest -m clients -rs tests/clients/test_clients.py $(ARGS)

client-libraries: venv-dev
	test -x $(CLIENTS)/libraries/bin/python || .venv/bin/python -m venv $(CLIENTS)/libraries
	$(CLIENTS)/libraries/bin/python -m pip install --quiet --upgrade-strategy only-if-needed -r tests/clients/requirements.txt

check: lint test ## all that must pass before a change lands, but for the slow tests; edits nothing

lint: venv-dev ## format, lint, types, import directions, documents
	.venv/bin/ruff format --check
	.venv/bin/ruff check
	.venv/bin/mypy
	.venv/bin/lint-imports
	.venv/bin/tandem check appliance.yaml profiles/*.yaml residency/*.yaml docs/examples/*.yaml
	.venv/bin/hadolint Dockerfile

fix: venv-dev ## format, and mend what ruff can mend
	.venv/bin/ruff format
	.venv/bin/ruff check --fix

bench: venv ## measure one, two and four clients, then drafting on and off, on this machine (about 10 minutes)
	.venv/bin/python -m bench $(ARGS)
	.venv/bin/python -m bench.drafting $(ARGS)

bench-peers: venv ## the same work by llama.cpp's server, vLLM and transformers, installed aside (6 GB), and by tandem, in turns (about 20 minutes)
	.venv/bin/python -m bench.peers $(ARGS)

bench-growth: venv ## how cost grows with rows, prompts, slots, streams and who waits: figures and a plot (about 8 minutes)
	.venv/bin/python -m bench.growth $(ARGS)

image-lint: venv-dev ## lint the Dockerfile, then carry its steps out in an overlay of this machine (root, minutes)
	.venv/bin/hadolint Dockerfile
	.venv/bin/python -m pytest tests/project/test_dockerfile.py

installed:
	@test -x .venv/bin/tandem || { echo "nothing is set up here yet: make up" >&2; exit 1; }

venv:
	@"$(PYTHON)" .ci/venv.py engine

venv-dev:
	@"$(PYTHON)" .ci/venv.py engine dev

venv-gpu:
	@"$(PYTHON)" .ci/venv.py engine dev cuda
