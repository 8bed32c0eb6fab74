# `make up` starts the appliance on a fresh machine, `make test` tries the code. Everything lives in `.venv` and
# `.tandem` beside this file. ARGS goes to the command: `make up ARGS="--set listen.port=8100"`.

.DEFAULT_GOAL := help
.PHONY: help up down status logs test test-slow test-gpu test-clients test-open-webui check fix bench image-lint installed venv venv-dev venv-gpu

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
	.venv/bin/python -m pytest -m "not slow and not gpu" $(ARGS)

test-slow: venv-dev ## the tests that take minutes
	.venv/bin/python -m pytest -m "slow and not gpu" $(ARGS)

test-gpu: venv-gpu ## what only a CUDA device can show: bits, speeds, memory (under 8 minutes)
	.venv/bin/python -m pytest -m gpu -s tests/gpu $(ARGS)

test-clients: venv-dev ## other people's clients, installed aside: LangChain, LiteLLM, llm and, with npm, opencode, Codex, Claude Code
	test -x .venv-clients/bin/python || .venv/bin/python -m venv .venv-clients
	.venv-clients/bin/pip install --quiet --upgrade-strategy only-if-needed -r tests/clients/requirements.txt
	! command -v npm >/dev/null || npm install --prefix .venv-clients/npm --no-audit --no-fund \
		opencode-ai@1 @openai/codex@0 @anthropic-ai/claude-code@2
	.venv/bin/python -m pytest tests/clients $(ARGS)

test-open-webui: venv-dev ## Open WebUI in the system's Chromium, installed aside (1.3 GB)
	test -x .venv-openwebui/bin/python || .venv/bin/python -m venv .venv-openwebui
	.venv-openwebui/bin/pip install --quiet -r tests/clients/open_webui_requirements.txt
	.venv-openwebui/bin/pip install --quiet --no-deps open-webui==0.12.4
	.venv/bin/python -m pytest tests/clients/test_open_webui.py $(ARGS)

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
