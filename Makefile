# A thin cover over CMake. `make` builds build/abar; `make help` lists the rest.
PREFIX ?= /usr/local
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
ABAR := build/abar
SOURCES = $(shell git ls-files '*.c' '*.h' '*.cu' '*.cpp')

.PHONY: all help bootstrap build quickstart test bench format check-format install asan tsan fuzz clean

all: build

help:
	@echo 'make              install what is missing, build build/abar'
	@echo 'make quickstart   the same, then train LeNet-5 on Fashion-MNIST'
	@echo 'make test         build and run all tests; the last line counts them'
	@echo 'make bench        step times beside PyTorch'
	@echo 'make install      into PREFIX (now $(PREFIX))'
	@echo 'make asan tsan    the tests under the address and undefined, or thread, sanitizer'
	@echo 'make fuzz         fuzz the file readers for a minute each (clang)'
	@echo 'make format       clang-format everything; check-format only looks'
	@echo 'make clean        remove what was built; runs/ stays'

bootstrap:
	@tools/bootstrap

# $(call configure,PRESET,FOLDER)
configure = test -f $(2)/build.ninja || cmake --preset $(1) --log-level=WARNING

build: bootstrap
	@$(call configure,release,build)
	@cmake --build build --parallel $(JOBS)

quickstart: build
	@tools/quickstart $(ABAR)

test: build
	@tools/test-summary build

bench: build
	@bench/run $(ABAR)
	@bench/methods $(ABAR)
	@if command -v python3 >/dev/null; then python3 bench/binding.py; else echo 'bench: no python3: the binding is not timed'; fi

install: build
	cmake --install build --prefix $(PREFIX)

asan: bootstrap
	@$(call configure,asan,build-asan)
	@cmake --build build-asan --parallel $(JOBS)
	@tools/test-summary build-asan

# gcc's OpenMP runtime is opaque to the thread sanitizer; the threads of the loader and of a comparison are ours.
tsan: bootstrap
	@$(call configure,tsan,build-tsan)
	@cmake --build build-tsan --parallel $(JOBS)
	@OMP_NUM_THREADS=1 tools/test-summary build-tsan -R "loader|test_jobs"

fuzz: bootstrap
	@$(call configure,fuzz,build-fuzz)
	@cmake --build build-fuzz --parallel $(JOBS)
	@for target in build-fuzz/tests/fuzz/fuzz_*; do \
	    test -x $$target -a -f $$target || continue; name=$$(basename $$target); \
	    mkdir -p build-fuzz/corpus/$$name; echo $$name; \
	    $$target -max_total_time=$(or $(SECONDS_EACH),60) -print_final_stats=1 -verbosity=0 \
	        build-fuzz/corpus/$$name tests/fuzz/corpus/$$name || exit 1; \
	done

format:
	@clang-format -i $(SOURCES)

check-format:
	@clang-format --dry-run -Werror $(SOURCES)

clean:
	rm -rf build build-asan build-tsan build-fuzz build-debug build-gpu
