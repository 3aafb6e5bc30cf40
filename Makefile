# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Any Python from 3.11 on works. Everything else is installed below .cache and ~/.cache/lanewise-dra.
PYTHON ?= python3
RUN := $(PYTHON) tools/environment.py
ONLY ?=
ARGS ?=
K8S ?=
LAB_NODES ?= 2
SLOW ?= 1
NOX := $(RUN) runner nox --envdir .cache/nox

.DEFAULT_GOAL := help
.PHONY: help try test test-all lint docs bench cluster lab setup lock clean python

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

try: python ## run the collection on example machines: no hardware, no SSH, no root
	@$(PYTHON) tools/try.py

test: python ## the quick checks, about 16 minutes; ONLY="lint units" runs only those, ARGS="-k vrf" is for pytest
	@$(NOX) $(if $(ONLY),--sessions $(ONLY),--tags quick) $(if $(ARGS),-- $(ARGS))

test-all: python ## all other checks: an hour, and hours more with virtual nodes; SLOW= leaves those out
	@LANEWISE_SLOW=$(SLOW) $(NOX) --tags rest

lint: python ## style, types and Ansible's own linters
	@$(NOX) --sessions lint

docs: python ## check the plugin documentation and build the site in .cache/docs/site
	@$(NOX) --sessions docs

bench: python ## measure, and write docs/bench/latest.jsonl
	@$(RUN) dev python -m tests.bench

cluster: python ## run a Kubernetes control plane on loopback until Ctrl-C; K8S=1.34 runs an older one
	@$(RUN) core python -m tests.cluster $(if $(K8S),--kubernetes $(K8S))

lab: python ## run virtual nodes with GPUs and SR-IOV NICs until Ctrl-C; LAB_NODES=1 runs one
	@$(RUN) core python -m tests.lab --nodes $(LAB_NODES)

setup: python ## link this checkout as lanewise.dra for your own playbooks run from here
	@$(PYTHON) tools/downloads.py
	@$(RUN) setup sh -c 'ansible-galaxy collection list lanewise.dra && \
	  echo "To use the ansible-core of this checkout: export PATH=$$VIRTUAL_ENV/bin:\$$PATH"'

lock: python ## resolve requirements/*.in again and write the lock files, with hashes
	@$(NOX) --sessions lock

clean: ## remove everything that these targets created, even environments that checkouts share
	rm -rf .cache "$${XDG_CACHE_HOME:-$$HOME/.cache}/lanewise-dra"
	grep -ls 'make clean. of lanewise.dra' ~/.ansible/test/cache/get_pip_*.py | xargs -r rm

python: ## check that PYTHON, by default python3, is 3.11 or later; the other targets do it first
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "needs Python 3.11 or later as '$(PYTHON)'; set another one with: make PYTHON=/path/to/python3"; exit 1; }
