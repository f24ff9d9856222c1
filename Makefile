# A thin layer over CMake. `make` builds build/abar; `make help` lists the rest.
PREFIX ?= /usr/local
BUILD ?= build
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
ABAR := $(BUILD)/abar
SOURCES = $(shell git ls-files '*.c' '*.h' '*.cu' '*.cpp')
# CUDA=on, off or auto on the command line. In the environment the name may mean anything, such as a folder.
cuda := $(if $(filter environment,$(origin CUDA)),$(filter on off auto,$(CUDA)),$(CUDA))

.PHONY: all help bootstrap configure build quickstart test bench format check-format install wheel asan tsan fuzz clean

all: build

help:
	@echo 'make              install missing packages, build $(ABAR) and the libraries'
	@echo 'make quickstart   build $(ABAR) alone, then train LeNet-5 on Fashion-MNIST'
	@echo 'make test         build and run all tests; the last line counts them. Tests that compute run once for every'
	@echo '                  instruction set of this CPU: ABAR_ISA=baseline, avx2 or avx512 takes that one alone,'
	@echo '                  TESTS=REGEX the tests with such names'
	@echo 'make bench        step times beside PyTorch'
	@echo 'make install      into PREFIX (now $(PREFIX))'
	@echo 'make wheel        the Python package into dist/: sdist and wheel, which needs nothing installed'
	@echo 'make asan tsan    the tests under the address and undefined, or thread, sanitizer'
	@echo 'make fuzz         fuzz the file readers, SECONDS_EACH=60 seconds each (clang)'
	@echo 'make format       clang-format everything; check-format only looks'
	@echo 'make clean        remove what was built; runs/ stays'
	@echo
	@echo 'CUDA=off, on, auto: with or without the cuda device, or where CUDA is found (the default). The build folder keeps it.'
	@echo 'BUILD=FOLDER, CC=clang: another build folder and, when it is new, another compiler. JOBS=N: compile N files at once.'

bootstrap:
	@tools/bootstrap

configure: bootstrap
	@tools/configure release $(BUILD) $(cuda)

build: configure
	@cmake --build $(BUILD) --parallel $(JOBS) --target abar_cli abar_optim_shared abar_all_shared

# Where there is no GPU, a new build folder is without CUDA: its kernels take minutes to compile.
quickstart: bootstrap
	@tools/configure release $(BUILD) $(or $(cuda),gpu)
	@cmake --build $(BUILD) --parallel $(JOBS) --target abar_cli
	@tools/quickstart $(ABAR)

test: configure
	@cmake --build $(BUILD) --parallel $(JOBS)
	@tools/test-summary $(BUILD) $(if $(TESTS),-R '$(TESTS)')

bench: build
	@bench/run $(ABAR)
	@bench/methods $(ABAR)
	@python=$${ABAR_PYTHON:-python3}; if command -v $$python >/dev/null; then \
	    for program in binding binding_steps; do ABAR_LIBRARY=$(abspath $(BUILD))/libabar_optim.so $$python bench/$$program.py; done; \
	else echo "bench: no $$python: the binding is not timed"; fi

install: build
	cmake --install $(BUILD) --prefix "$(PREFIX)"

wheel: bootstrap
	@tools/wheel $(if $(filter on,$(cuda)),--cuda)

asan: bootstrap
	@tools/configure asan build-asan
	@cmake --build build-asan --parallel $(JOBS)
	@tools/test-summary build-asan

# gcc's OpenMP runtime is opaque to the thread sanitizer; the threads of the loader and of a comparison are ours.
tsan: bootstrap
	@tools/configure tsan build-tsan
	@cmake --build build-tsan --parallel $(JOBS)
	@OMP_NUM_THREADS=1 tools/test-summary build-tsan -R "loader|test_jobs|images_check"

fuzz: bootstrap
	@if ! command -v clang >/dev/null; then echo 'fuzz: clang is missing: apt-get install clang libomp-dev' >&2; exit 1; fi
	@tools/configure fuzz build-fuzz
	@cmake --build build-fuzz --parallel $(JOBS) --target fuzzers
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
	rm -rf $(BUILD) build build-*
