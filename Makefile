# `make help` lists the targets. Everything runs in .venv, which `make install` makes; nothing outside this folder is
# touched but pip's cache and the project's own (see README, "What comes out").
PYTHON ?= python3.11
VENV   ?= .venv
OUT    ?= .
# `alfworld` adds ALFWorld's reference engine (env.engine=textworld), which is compiled: EXTRAS=hf,search,alfworld,dev make install
EXTRAS ?= hf,search,dev
PORT   ?= 5000
FOLDER ?= $(OUT)/tracking
BIN    := $(abspath $(VENV))/bin
SLURM_PACKAGES := slurmctld slurmd slurm-client slurm-wlm-basic-plugins munge slurmdbd slurm-wlm-mysql-plugin mariadb-server-core mariadb-client-core
STAMP  := $(VENV)/.installed-$(EXTRAS)
# One thread per process: two runs side by side on two cores beat one run on two threads.
export OMP_NUM_THREADS ?= 1

.DEFAULT_GOAL := help
.PHONY: help install main-table quick test tracking-server slurm-packages lint types format check backbone bench clean

help:  ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

install: $(STAMP)  ## virtual environment with everything in it; compiles nothing

# The venv's bin stands first on the path because building Fast Downward calls a command named `python`. All extras are
# installed in one go: with the project already installed in editable mode, pip cannot build source packages.
$(STAMP): pyproject.toml constraints/cpu.txt
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) not found: install Python 3.11 or say make PYTHON=..."; exit 2; }
	@case ",$(EXTRAS)," in *,alfworld,*) command -v g++ >/dev/null || { echo "g++ not found: EXTRAS=$(EXTRAS) compiles ALFWorld's reference engine (Debian: apt-get install g++ make)"; exit 2; } ;; esac
	test -x "$(BIN)/python" || $(PYTHON) -m venv "$(VENV)"
	"$(BIN)/python" -m pip install --quiet --upgrade pip
	@if "$(BIN)/python" -m pip show -q agentic-rl-harness 2>/dev/null; then "$(BIN)/python" -m pip uninstall -q -y agentic-rl-harness; fi
	PATH="$(BIN):$$PATH" "$(BIN)/python" -m pip install --quiet -c constraints/cpu.txt -e ".[$(EXTRAS)]"
	touch "$(STAMP)"

main-table: $(STAMP)  ## the main table at laptop scale: real games, real updates (half an hour on 2 cores)
	"$(BIN)/python" -m harness sweep=main_table runtime.out="$(OUT)"

quick: $(STAMP)  ## one short cell per method, a few minutes
	"$(BIN)/python" -m harness sweep=quick runtime.out="$(OUT)"

test: $(STAMP)  ## all tests, on all cores
	"$(BIN)/python" -m pytest -n auto --dist loadfile --no-loadscope-reorder

tracking-server: $(STAMP)  ## MLflow on PostgreSQL for a lab, on 127.0.0.1:$(PORT), kept in $(FOLDER); Ctrl-C ends both
	"$(BIN)/python" -m harness.tracking_server --folder "$(FOLDER)" --port "$(PORT)"

slurm-packages:  ## Debian packages of Slurm, for the tests that start one (as root)
	apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $(SLURM_PACKAGES)

lint: $(STAMP)  ## ruff
	"$(BIN)/ruff" check . && "$(BIN)/ruff" format --check .

types: $(STAMP)  ## mypy --strict
	"$(BIN)/mypy"

format: $(STAMP)  ## rewrite the code in the house's format
	"$(BIN)/ruff" check --fix . ; "$(BIN)/ruff" format .

check: lint types test  ## what the gate runs

backbone: $(STAMP)  ## rebuild the shipped tiny-s from its recipe
	"$(BIN)/python" -m harness.backbones build tiny-s --ship

bench: $(STAMP)  ## benchmarks, ratios measured side by side
	for f in benchmarks/*.py; do "$(BIN)/python" "$$f" || exit 1; done

clean:  ## remove the virtual environment and caches, never runs/ or results/
	rm -rf "$(VENV)" .pytest_cache .mypy_cache .ruff_cache *.egg-info
