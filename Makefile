# Every target does its own set-up: a virtual environment with the pinned, tested versions.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
KERNEL := rlds_cli/loader/_kernel.so
READY  := $(VENV)/.ready $(KERNEL)
PEERS  := PYTHONPATH=. .bench-data/peers/bin/python
TORCHRL := 0.14.0

.PHONY: help docs demo test test-docs test-view test-all test-ray test-native kernel wheels check registry bench bench-formats bench-download bench-convert bench-video bench-preprocess bench-grow bench-share bench-versions bench-remote bench-defects test-export learn soak fuzz attack screenshots clean

help:
	@echo "make demo      the whole way, from an archive to an evaluated policy; says what it installs"
	@echo "make test      the tests, but for those of the documentation"
	@echo "make test-docs the tests of the documentation: its code, its commands and the examples run"
	@echo "make test-view the site, and the tests of pages in Chromium; without one they are skipped, and the last line says so"
	@echo "make test-all  all tests: those that take long, and more cases of what the others run through"
	@echo "make test-ray  preprocess on a Ray cluster of two nodes on this machine; installs Ray, 80 MB"
	@echo "make test-native  the loader's tests with a kernel that checks its memory accesses and arithmetic (gcc or clang, Linux)"
	@echo "make kernel    compile the C code again: the loader's kernel and its batches, and sha256"
	@echo "make wheels    wheels for Linux and macOS, and the source distribution, in dist/"
	@echo "make check     ruff, mypy --strict, registry, phrases of pages and docstrings, the structure of the code"
	@echo "make docs      the site of the documentation, in site/"
	@echo "make registry  ids, URLs, hashes, defects of every entry"
	@echo "make bench     figures, against peers measured in the same run"
	@echo "make bench-formats  litdata, Lance, TensorDict, torchcodec and LeRobot beside ours, from the disk and from a bucket"
	@echo "make bench-download  downloads alone, over the loopback interface"
	@echo "make bench-convert   imports and readers of archives: rates against peers, memory; BEFORE=COMMIT as well"
	@echo "make bench-video  frames of videos, beside torchcodec"
	@echo "make bench-preprocess  figures of preprocess and inspect"
	@echo "make bench-grow  figures of datasets that grow"
	@echo "make bench-versions  time and bytes of selections, trims and labels; BEFORE=COMMIT as well"
	@echo "make bench-share  figures of export and push, beside copies and other uploads"
	@echo "make bench-defects  planted faults that rlds check --measure and its peers find, false findings; SEEDS=1,2 as well"
	@echo "make bench-remote  figures of datasets at an address, over the loopback interface"
	@echo "make test-export  LeRobot and TensorFlow Datasets read what is exported to them; installs both, 3 GB"
	@echo "make learn     the training examples in full, and whether they reach what they should: about ten minutes"
	@echo "make screenshots  pictures of the site, the viewer and reports, to look at (needs Chromium)"
	@echo "make fuzz      damaged files to every parser of our own, for five minutes, and random histories of versions; MINUTES=60 for more"
	@echo "make attack    hostile datasets, locks, homes, archives, servers and requests against the commands: about half an hour"
	@echo "make soak      kill conversion, preprocess, writers and readers at random moments, many times; MINUTES=60 for more histories"

$(VENV)/.ready: pyproject.toml constraints.txt hatch_build.py
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "rlds needs Python 3.11 or later; try make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

# The installation above compiles the kernel, too.
$(KERNEL): rlds_cli/loader/kernel.c rlds_cli/loader/slabs.c rlds_cli/base/files/sha256.c | $(VENV)/.ready
	$(BIN)/python hatch_build.py

kernel: $(READY)

# What the demonstration needs: rlds and Gymnasium, with the torch without CUDA, but no tools of the tests, which other
# targets add to the same environment.
$(VENV)/.demo: pyproject.toml constraints.txt hatch_build.py
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Into $(VENV) go rlds, torch without CUDA, and Gymnasium: about 1 GB."
	$(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt torch --index-url https://download.pytorch.org/whl/cpu \
		|| echo "that index is not reached: torch comes with the rest"
	$(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt -e '.[spaces]'
	touch $@

demo: $(if $(wildcard $(VENV)/.ready),$(READY),$(VENV)/.demo)
	PATH="$(CURDIR)/$(BIN):$$PATH" RLDS_HOME="$(CURDIR)/.demo" sh examples/demo.sh

# One process more than there are cores: tests wait for processes that they started.
WORKERS = $$($(BIN)/python -c 'import os; print(os.cpu_count() + 1)')

# The tests start some hundred processes. Where PYTHONDONTWRITEBYTECODE is set, each would compile what it imports, which
# takes longer than all else that it does.
COMPILED = $(BIN)/python -m compileall -q rlds_cli tests

QUICK = not slow and not thorough
# A process that a test has ended is not started again: it would begin with that test.
RUN = $(BIN)/python -m pytest -n $(WORKERS) --max-worker-restart 0

# Each worker would rewrite the assertions of all modules, which takes a tenth of the time; those that fail run again.
test: $(READY)
	$(COMPILED)
	$(RUN) --dist loadfile -m '$(QUICK) and not docs and not source and not view' --assert=plain \
		|| { $(BIN)/python -m pytest --last-failed -m '$(QUICK) and not docs and not source and not view'; exit 1; }

test-docs: $(READY)
	$(BIN)/python -m pytest -m '$(QUICK) and docs' --assert=plain $$(grep -rl --include='test_*.py' 'mark\.docs' tests)

test-view: $(READY) docs
	$(BIN)/python -m pytest -m view --assert=plain $$(grep -rl --include='test_*.py' 'mark\.view' tests)
	@$(BIN)/python tests/support/chromium.py

test-all: $(READY)
	$(COMPILED)
	$(RUN) --dist loadfile --hypothesis-profile=all

test-ray: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,ray]'
	$(BIN)/python -m pytest tests/preprocess/test_preprocess_ray.py

test-native: $(READY)
	$(BIN)/python scripts/test_native.py $(TESTS)

# Zig compiles for all platforms.
wheels:
	$(PYTHON) -m venv build/wheels
	build/wheels/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt hatchling ziglang
	for tag in $$(build/wheels/bin/python hatch_build.py --platforms); do \
		RLDS_WHEEL=$$tag build/wheels/bin/python -m hatchling build -t wheel -d dist || exit 1; done
	build/wheels/bin/python -m hatchling build -t sdist -d dist
	rm -rf build/wheels

check: $(READY) registry
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python scripts/prose.py
	$(BIN)/python -m pytest -m source --assert=plain $$(grep -rl --include='test_*.py' 'mark\.source' tests)

docs: .bench-data/docs/.ready
	NO_MKDOCS_2_WARNING=1 .bench-data/docs/bin/mkdocs build

.bench-data/docs/.ready: docs/requirements.txt
	$(PYTHON) -m venv .bench-data/docs
	.bench-data/docs/bin/pip install --quiet --disable-pip-version-check -r docs/requirements.txt
	touch $@

FORMATS := .bench-data/peers/.ready .bench-data/remote-peers/.ready .bench-data/lerobot/.ready

bench: $(READY) $(FORMATS)
	$(BIN)/python benchmarks

bench-formats: $(READY) $(FORMATS)
	PYTHONPATH=. $(BIN)/python benchmarks/formats.py

bench-download: $(READY)
	$(BIN)/python benchmarks/download.py

bench-convert: $(READY) .bench-data/peers/.ready
	$(BIN)/python benchmarks/imports.py $(if $(BEFORE),--before $(BEFORE))
	$(BIN)/python benchmarks/records.py
	$(BIN)/python benchmarks/images.py

bench-video: $(READY) .bench-data/peers/.ready
	$(PEERS) benchmarks/video.py

bench-preprocess: $(READY) .bench-data/peers/.ready
	$(PEERS) benchmarks/preprocess

bench-grow: $(READY) .bench-data/peers/.ready
	$(PEERS) benchmarks/growing.py

bench-share: $(READY) .bench-data/peers/.ready
	$(BIN)/python benchmarks/sharing.py

bench-versions: $(READY)
	$(BIN)/python benchmarks/versions.py $(if $(BEFORE),--before $(BEFORE))

bench-defects: $(READY) .bench-data/doctors/.ready
	PYTHONPATH=. $(BIN)/python benchmarks/defects $(if $(SEEDS),--seeds $(SEEDS))

bench-remote: $(READY) .bench-data/remote-peers/.ready
	$(BIN)/python benchmarks/remote.py

test-export: $(READY) .bench-data/lerobot/.ready .bench-data/tfds/.ready
	$(BIN)/python scripts/check_exports.py --python lerobot=.bench-data/lerobot/bin/python \
		--python lerobot2.1=.bench-data/lerobot/bin/python --python tfds=.bench-data/tfds/bin/python

.bench-data/lerobot/.ready: scripts/lerobot.txt $(VENV)/.ready
	$(PYTHON) -m venv $(@D)
	$(BIN)/python -c 'import site; print(*site.getsitepackages())' > $$($(@D)/bin/python -c 'import site; print(*site.getsitepackages())')/zz_ours.pth
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r scripts/lerobot.txt && touch $@

.bench-data/tfds/.ready: $(VENV)/.ready
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check tensorflow tensorflow-datasets==4.9.10 && touch $@

# Libraries that want other versions of what we have live beside it, and find the rest in our environment. Published
# wheels of torchrl have an extension for another torch: its prioritised sampler needs a build of its own.
.bench-data/peers/.ready: benchmarks/peers.txt $(VENV)/.ready
	$(PYTHON) -m venv $(@D)
	$(BIN)/python -c 'import site; print(*site.getsitepackages())' > $$($(@D)/bin/python -c 'import site; print(*site.getsitepackages())')/zz_ours.pth
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check -r benchmarks/peers.txt && touch $@ \
		|| echo "the peers are not here, and not timed"
	-$(@D)/bin/python -m pip install --quiet --disable-pip-version-check flashbax==0.1.3
	-git clone --quiet --depth 1 --branch v$(TORCHRL) https://github.com/pytorch/rl $(@D)/torchrl-source \
		&& SETUPTOOLS_SCM_PRETEND_VERSION=$(TORCHRL) $(@D)/bin/python -m pip install --quiet --disable-pip-version-check \
			--force-reinstall --no-build-isolation --no-deps $(@D)/torchrl-source

.bench-data/doctors/.ready: benchmarks/doctors.txt scripts/lerobot.txt $(VENV)/.ready
	$(PYTHON) -m venv $(@D)
	$(BIN)/python -c 'import site; print(*site.getsitepackages())' > $$($(@D)/bin/python -c 'import site; print(*site.getsitepackages())')/zz_ours.pth
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r scripts/lerobot.txt && \
		for p in $$(grep -v '^#' benchmarks/doctors.txt); do \
			$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps $$p || echo "$$p is not here"; done; touch $@

# Peers of training from an address: none of them may bring another torch, so all of their packages are listed.
.bench-data/remote-peers/.ready: benchmarks/remote_peers.txt $(VENV)/.ready
	$(PYTHON) -m venv $(@D)
	$(BIN)/python -c 'import site; print(*site.getsitepackages())' > $$($(@D)/bin/python -c 'import site; print(*site.getsitepackages())')/zz_ours.pth
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r benchmarks/remote_peers.txt && touch $@ \
		|| echo "litdata, streaming, lance and datasets are not here, and not timed"

# LEARN=iql: only the examples whose title holds the word.
learn: $(READY)
	$(BIN)/python scripts/learn.py $(LEARN)

soak: $(READY)
	$(BIN)/python scripts/soak.py
	$(BIN)/python scripts/soak_sharing.py
	$(BIN)/python scripts/soak_exports.py
	$(BIN)/python scripts/soak_remote.py --sample 60
	$(BIN)/python scripts/soak_versions.py --minutes $(or $(MINUTES),10)

fuzz: $(READY)
	$(BIN)/python scripts/fuzz.py --minutes $(or $(MINUTES),5)
	RLDS_HISTORIES=$$(($(or $(MINUTES),5) * 20)) RLDS_KILLS_EVERY=20 $(BIN)/python -m pytest -q tests/contract/test_versions_model.py

attack: $(READY)
	$(BIN)/python scripts/attack $(ATTACK)

screenshots: $(READY) docs
	$(BIN)/python scripts/screenshots.py screenshots

registry: $(READY)
	$(BIN)/python scripts/check_registry.py

clean:
	rm -rf $(VENV) rlds_cli/loader/_kernel.* rlds_cli/loader/_slabs.so rlds_cli/base/files/_sha256.so .demo dist build bench-results screenshots .bench-data
