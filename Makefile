# The doors of the project; each works on a bare machine with git, make and Python 3.11 (with venv).
PYTHON ?= python3.11
PORT ?= 3333
HOST ?= 127.0.0.1
DATA_DIR ?= ./data
RUNTIME ?= process
export PORT HOST DATA_DIR RUNTIME

VENV := .venv/bin
BOOT = $(PYTHON) -m apps.ops.bootstrap
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help run run-production check test install lock messages vendor password python engine-image bench bench-gateway bench-intake bench-scheduler soak soak-gateway

help: ## Show the doors
	@grep -E '^[a-z-]+:.*## ' Makefile | sed -E 's/:.*## /\t/' | expand -t 17

python:
	@command -v $(PYTHON) >/dev/null || { echo "HeteroFlow needs Python 3.11 with venv, and $(PYTHON) is not there; install it: apt-get install python3.11 python3.11-venv (Debian 12: python3 python3-venv), or name it: make run PYTHON=..." >&2; exit 1; }

run: python ## Start everything and serve the demo model (PORT=3333 DATA_DIR=./data)
	@exec setpriv --pdeathsig TERM $(BOOT) -- manage.py up $(ARGS)

# A data directory of its own: the embedded profile's database, node and lock are others.
run-production: export DATA_DIR := $(if $(filter file,$(origin DATA_DIR)),./data-production,$(DATA_DIR))
run-production: python ## The production profile on one machine, to try it: PostgreSQL, Redis, nginx, processes
	@exec setpriv --pdeathsig TERM $(BOOT) -- manage.py run-production $(ARGS)

install: python ## Make .venv hold what the lock files say, the tests' tools too
	@$(BOOT) --with-tools

password: python ## Give a person a new password: make password USER=admin
	@$(BOOT) -- manage.py password $(USER)

check: install ## Lint, types, imports, migrations, translations, fast tests (about three minutes)
	@bash .ci/check

test: install ## Everything: check, whole stacks, faults, browser, both profiles (about 25 minutes)
	@bash .ci/test $(ARGS)

bench: bench-gateway bench-scheduler ## Both of the next two

bench-gateway: install ## Compare the gateway with others (BENCH_ONLY=direct,nginx,ours; see bench/README.md)
	@$(VENV)/python -m bench

bench-scheduler: install ## The decision alone, a whole tick on PostgreSQL, growth to 5,000 nodes (BENCH_PARTS=decide,tick,growth)
	@$(VENV)/python -m bench.scheduler

bench-intake: install ## Heartbeats and API calls a second of one server (BENCH_PROFILE=production: of all that run-production starts)
	@$(VENV)/python -m bench.intake

soak: install ## Minutes of mixed traffic on the production profile, and a verdict (DURATION=300, seconds; FAULTS=1 kills)
	@$(VENV)/python -m bench.soak

soak-gateway: install ## 450 callers of the gateway while its engines die, hang, reset, talk nonsense (DURATION=300, seconds)
	@$(VENV)/python -m bench.gateway_soak

# The second and the third lock name no version that the first one does not.
COMPILE = $(VENV)/pip-compile --quiet --generate-hashes --allow-unsafe --strip-extras \
  --no-header --no-emit-index-url --no-emit-trusted-host --no-emit-find-links
lock: install ## Pin what pyproject.toml asks for, with hashes: the server, the tests' tools, the agent alone
	$(COMPILE) -o requirements.txt pyproject.toml
	$(COMPILE) --extra dev -c requirements.txt -o requirements-dev.txt pyproject.toml
	$(COMPILE) -c requirements.txt -o requirements-agent.txt agent/requirements.in

messages: install ## Collect sentences for translation and compile them (needs Debian's gettext)
	DJANGO_SETTINGS_MODULE=heteroflow.settings.test $(VENV)/python manage.py makemessages -l zh_Hans --no-obsolete \
	  --ignore '.venv' --ignore 'data' --ignore 'tests'
	DJANGO_SETTINGS_MODULE=heteroflow.settings.test $(VENV)/python manage.py compilemessages --ignore '.venv'

engine-image: install ## Build a small llama.cpp image from what is installed here, for RUNTIME=docker
	$(VENV)/python tools/engine_image.py $(ARGS)

vendor: install ## Take the pinned browser libraries out of their npm packages (needs npm)
	$(VENV)/python tools/vendor.py
