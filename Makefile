# Every target does its own set-up: a virtual environment with the pinned, tested versions.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
KERNEL := rlds_cli/loader/_kernel.so
READY  := $(VENV)/.ready $(KERNEL)

.PHONY: help demo test test-all test-native test-ray kernel wheels check registry bench bench-download bench-convert bench-preprocess learn soak fuzz attack screenshots clean

help:
	@echo "make demo      the whole way, from archive to training, without a network"
	@echo "make test      the tests"
	@echo "make test-all  the tests, with those that take long: the demonstration, memory, kills in the middle"
	@echo "make test-native  the tests of the compiled kernel under AddressSanitizer and UBSan (needs gcc)"
	@echo "make test-ray  preprocess on a Ray cluster of two nodes on this machine; installs Ray, 80 MB"
	@echo "make kernel    compile the loader's kernel again, after kernel.c was edited"
	@echo "make wheels    wheels for Linux and macOS, and the source distribution, in dist/"
	@echo "make check     ruff, mypy --strict, registry"
	@echo "make registry  ids, URLs, hashes, defects of every entry"
	@echo "make bench     figures, against peers measured in the same run"
	@echo "make bench-download  downloads alone, over the loopback interface"
	@echo "make bench-convert   readers of archives: rates against peers, memory"
	@echo "make bench-preprocess  figures of preprocess and inspect"
	@echo "make learn     the training examples in full, and whether they reach what they should: about seven minutes"
	@echo "make screenshots  pictures of the reports of the samples, to look at (needs Chromium)"
	@echo "make fuzz      damaged files to every parser of our own, for five minutes; MINUTES=60 for more"
	@echo "make attack    hostile datasets, locks, homes, archives and servers against the commands: about half an hour"
	@echo "make soak      kill conversion and preprocess at random moments, many times"

$(VENV)/.ready: pyproject.toml constraints.txt hatch_build.py
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "rlds needs Python 3.11 or later; try make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

# The installation above compiles the kernel, too.
$(KERNEL): rlds_cli/loader/kernel.c | $(VENV)/.ready
	$(BIN)/python hatch_build.py

kernel: $(READY)

demo: $(READY)
	PATH="$(CURDIR)/$(BIN):$$PATH" RLDS_HOME="$(CURDIR)/.demo" sh examples/demo.sh

# One process more than there are cores: tests wait for processes that they started.
WORKERS = $$($(BIN)/python -c 'import os; print(os.cpu_count() + 1)')

test: $(READY)
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile -m 'not slow'

test-all: $(READY)
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --hypothesis-profile=all

# The interpreter is not built with the sanitizers, so their libraries are loaded before it. A copy of the package has
# the kernel that is tested; pytest as a command, not a module, leaves the package beside the Makefile out of its path.
NATIVE   := build/native
SANITIZE := -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
test-native: $(READY)
	rm -rf $(NATIVE) && mkdir -p $(NATIVE) && cp -r rlds_cli registry $(NATIVE)/
	$(CC) -O1 -g $(SANITIZE) -std=c11 -Wall -Wextra -Werror -shared -fPIC -fvisibility=hidden -fno-math-errno \
		-ffp-contract=off -o $(NATIVE)/rlds_cli/loader/_kernel.so rlds_cli/loader/kernel.c -lm
	LD_PRELOAD="$$($(CC) -print-file-name=libasan.so) $$($(CC) -print-file-name=libubsan.so)" \
		ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 PYTHONMALLOC=malloc PYTHONPATH=$(NATIVE) \
		$(BIN)/pytest -q --capture=sys tests/test_loader_kernel.py

test-ray: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,ray]'
	$(BIN)/python -m pytest tests/test_preprocess_ray.py

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

bench: $(READY) .bench-data/peers/.ready
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[bench]'
	$(BIN)/python benchmarks

bench-download: $(READY)
	$(BIN)/python benchmarks/download.py

bench-convert: $(READY) .bench-data/peers/.ready
	$(BIN)/python benchmarks/records.py
	$(BIN)/python benchmarks/images.py

bench-preprocess: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[bench]'
	$(BIN)/python benchmarks/preprocess

# Libraries that want other versions of what we have live beside it, and find the rest in our environment.
.bench-data/peers/.ready: benchmarks/peers.txt $(VENV)/.ready
	$(PYTHON) -m venv $(@D)
	$(BIN)/python -c 'import site; print(*site.getsitepackages())' > $$($(@D)/bin/python -c 'import site; print(*site.getsitepackages())')/zz_ours.pth
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check -r benchmarks/peers.txt && touch $@ \
		|| echo "cpprb, tianshou and rlox are not here, and not timed"

soak: $(READY)
	$(BIN)/python scripts/soak.py

fuzz: $(READY)
	$(BIN)/python scripts/fuzz.py --minutes $(or $(MINUTES),5)

attack: $(READY)
	$(BIN)/python scripts/attack $(ATTACK)

screenshots: $(READY)
	$(BIN)/python scripts/screenshots.py screenshots

registry: $(READY)
	$(BIN)/python scripts/check_registry.py

clean:
	rm -rf $(VENV) rlds_cli/loader/_kernel.* .demo dist build bench-results screenshots .bench-data
