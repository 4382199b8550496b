# mmx: everything there is to build, test and install.
#
#   make demo          set up, build, move a picture between two engines
#   make check         set up, build, run every test
#   make               build only       make bench   measure
#   make sim SEEDS=n   simulator        make fuzz    fuzz every codec
#   make fleet         400 daemons and a million rooms in it, minutes
#   make cost          what its steps cost, however much there is
#   make mutants       break the core's rules, see which tests notice
#   make models        search the models of the rules (needs spin)
#   make rdma          rows over verbs, in a guest with soft devices
#   make arm64         cross-built for aarch64, and its tests, emulated
#   make cover         which lines and branches the tests reach: an hour
#   make wheel         the Python package, with the programs
#   make engines       mmx inside engines as their packages have them, or
#                      ENGINE=vllm: up to 12 GB, an hour
#   make engines-matrix   what their newest releases have changed, by name, and
#                      their short truth tables; ENGINE_PARTS=names: no tables
#   make deb           the Debian packages, in build/deb
#   make release       both, the source, an SBOM and checksums, in build/release
#   make lint          format, layers, docs, cppcheck, clang-tidy
#   make llama LLAMA=prefix   hosts for an installed llama.cpp
#   make samples   conf/*.yaml from the table of keys
#   make book      pages and manuals as HTML, in build/book
#   make manuals   manual pages and completions, from the tables and --help
#   make install DESTDIR=... PREFIX=/usr
#
# B=build/<flavour> keeps flavours apart: make B=build/asan SAN=address,undefined
# LTO=1 optimizes programs as a whole.

.DELETE_ON_ERROR:
.SUFFIXES:

VERSION := 0.1.0
B ?= build
CC ?= cc
PYTHON ?= /usr/bin/python3
PREFIX ?= /usr
LIBDIR ?= $(PREFIX)/lib
SEEDS ?= 1000
PAIRS ?= 200
ROOMS ?= 1000000
FUZZ_SECONDS ?= 60

PACKAGES := libzmq ucx libuv yaml-0.1 libssl libcrypto
WARN := -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes \
	-Wconversion -Wformat=2 -Wimplicit-fallthrough $(if $(CI),-Werror)
HARDEN := -fstack-protector-strong -fstack-clash-protection -fPIC \
	-fno-strict-aliasing -fno-delete-null-pointer-checks
CFLAGS ?= -O2 -g
ifdef SAN
CFLAGS := -O1 -g -fsanitize=$(SAN) -fno-sanitize-recover=all \
	-fno-omit-frame-pointer
LDFLAGS += -fsanitize=$(SAN)
# gcc says that fences are not modelled; ours order no data, only sleep.
WARN += $(if $(findstring thread,$(SAN)),-Wno-unknown-warning-option -Wno-tsan)
else ifdef COVER
CFLAGS := -O0 -g --coverage -fprofile-update=atomic
WARN += -Wno-format-truncation
LDFLAGS += --coverage -Wl,-u,__gcov_dump
else
HARDEN += -D_FORTIFY_SOURCE=2
LDFLAGS += -Wl,-z,relro,-z,now
endif
# LTO=1: programs are optimized as a whole: 8 % fewer instructions per room, and
# three times as long to build.
ifdef LTO
override CFLAGS += -flto=auto -ffat-lto-objects
override LDFLAGS += -flto=auto $(CFLAGS)
endif

CPPFLAGS += -Ilib -I. -D_GNU_SOURCE -DMMX_VERSION='"$(VERSION)"' \
	-DMMX_LIBDIR='"$(LIBDIR)"' -DMMX_SHARE='"$(PREFIX)/share/mmx"' \
	$(shell pkg-config --cflags $(PACKAGES) 2>/dev/null)
ALL_CFLAGS = -std=gnu11 $(CPPFLAGS) $(CFLAGS) $(WARN) $(HARDEN) -MMD -MP
LIBS = $(shell pkg-config --libs $(PACKAGES) 2>/dev/null) -lpthread -lm -ldl

# Archives are made by `ar q`: files of several folders have one name.
src = $(patsubst %.c,$(B)/%.o,$(wildcard $(1)))
BASE := $(call src,lib/base/*.c)
WIRE := $(call src,lib/wire/*.c)
CORE := $(call src,lib/core/*.c lib/core/*/*.c)
NO_UCX := $(B)/lib/io/data_none.o
IO := $(filter-out $(NO_UCX),$(call src,lib/io/*.c lib/io/*/*.c))
NODE := $(call src,lib/node/*.c lib/node/*/*.c)
CLIENT := $(call src,lib/client/*.c)
GPU := $(call src,lib/gpu/*.c)
LIBMMX := $(CLIENT) $(GPU) $(WIRE) $(BASE)
ALL_OBJ := $(BASE) $(WIRE) $(CORE) $(GPU) $(IO) $(NODE) $(CLIENT)

# The exporter is built where libmicrohttpd is; nothing else needs it.
HTTP := $(if $(shell pkg-config --exists libmicrohttpd && echo 1),libmicrohttpd)
# mmx-otel is built where libcurl, protobuf-c and its compiler are.
OTLP := $(if $(shell pkg-config --exists libcurl libprotobuf-c && \
	command -v protoc-c),libcurl libprotobuf-c)
CMDS := $(patsubst cmd/%.c,$(B)/%,$(filter-out \
	$(if $(HTTP),,cmd/mmx-exporter.c) $(if $(OTLP),,cmd/mmx-otel.c), \
	$(wildcard cmd/*.c)))
WHEEL := $(patsubst $(B)/%,$(B)/wheel/%,$(filter-out %-otel,$(CMDS)))
UNIT := $(patsubst %.c,$(B)/%,$(wildcard test/unit/*_test.c))
CONTRACT := $(patsubst %.c,$(B)/%,$(wildcard test/contract/*_test.c))
WATCH := $(patsubst %.c,$(B)/%.so,$(wildcard test/preload/*.c))
BENCH := $(B)/mmx-bench
SIM := $(if $(wildcard test/sim/*.c),$(B)/test/sim/sim)
COUNTED := $(B)/test/sim/counted
EACH := $(B)/test/each/room
FUZZERS := $(patsubst %.c,$(B)/%,$(wildcard test/fuzz/*_fuzz.c))

.PHONY: all
all: $(CMDS) $(B)/libmmx.so.0 $(B)/libmmx.a

$(B)/%.o: %.c
	@mkdir -p $(@D)
	$(CC) $(ALL_CFLAGS) -c $< -o $@

# What is in the libraries depends on the list of objects, not only on what is
# newer: files move.
MADE := $(B)/objects-$(shell echo $(ALL_OBJ) | cksum | cut -d' ' -f1).made
$(MADE):
	@mkdir -p $(@D)
	@rm -rf $(B)/objects-*.made $(B)/test/double
	@touch $@

$(B)/mmx.a: $(BASE) $(WIRE) $(CORE) $(GPU) $(IO) $(NODE) $(MADE)
	@rm -f $@
	ar qcs $@ $(filter %.o,$^)

$(B)/libmmx.a: $(LIBMMX) $(MADE)
	@rm -f $@
	ar qcs $@ $(filter %.o,$^)

ifdef SAN
# Python loads it, which has no sanitizer's runtime.
.PHONY: $(B)/libmmx.so.0
$(B)/libmmx.so.0:
	@$(MAKE) SAN= B=$(B)/plain $(B)/plain/libmmx.so.0
	@ln -sf plain/libmmx.so.0 $@
else
$(B)/libmmx.so.0: $(LIBMMX) lib/client/mmx.map $(MADE)
	$(CC) $(LDFLAGS) -shared -Wl,-soname,libmmx.so.0 \
		-Wl,--version-script=lib/client/mmx.map $(LIBMMX) -o $@
endif

$(CMDS): $(B)/%: $(B)/cmd/%.o $(B)/mmx.a $(B)/libmmx.a
	$(CC) $(LDFLAGS) $(filter %.o,$^) $(filter %.a,$^) -o $@ $(LIBS)

$(B)/mmxctl $(B)/wheel/mmxctl: $(call src,cmd/ctl/*.c)
$(B)/mmx-exporter: $(call src,cmd/exporter/*.c) $(B)/cmd/ctl/link.o \
	$(B)/cmd/ctl/rows.o
$(B)/mmx-exporter: LIBS = $(shell pkg-config --libs $(HTTP)) -lm
$(B)/mmx-otel: $(call src,cmd/otel/*.c) $(B)/cmd/otel/otlp.pb-c.o \
	$(addprefix $(B)/cmd/ctl/,link.o rows.o trace_read.o)
$(B)/mmx-otel: LIBS = $(shell pkg-config --libs $(OTLP))
# The messages of OTLP in C, as protobuf-c makes them.
$(addprefix $(B)/cmd/otel/otlp.pb-c,.c .h) &: cmd/otel/otlp.proto
	@mkdir -p $(@D)
	protoc-c --proto_path=$(<D) --c_out=$(@D) $(<F)
$(B)/cmd/otel/otlp.pb-c.o: $(B)/cmd/otel/otlp.pb-c.c
	$(CC) -std=gnu11 $(CPPFLAGS) $(CFLAGS) $(HARDEN) -c $< -o $@
$(B)/cmd/otel/otlp.o: CPPFLAGS += -I$(B)/cmd/otel
$(B)/cmd/otel/otlp.o: | $(B)/cmd/otel/otlp.pb-c.h

# Those of the wheel: NO_UCX is found before what the archive has in its place.
$(filter-out %-exporter,$(WHEEL)): $(B)/wheel/%: $(B)/cmd/%.o $(NO_UCX) \
		$(B)/mmx.a $(B)/libmmx.a
	@mkdir -p $(@D)
	$(CC) $(LDFLAGS) $(filter %.o,$^) $(filter %.a,$^) -o $@ \
		$(filter-out -luc%,$(LIBS))
$(B)/wheel/mmx-exporter: $(B)/mmx-exporter
	@mkdir -p $(@D)
	cp $< $@

# Measures; not installed.
$(BENCH): $(call src,test/bench/*.c) $(B)/mmx.a $(B)/libmmx.a
	$(CC) $(LDFLAGS) $^ -o $@ $(LIBS)

# digest.h is for programs of the installed library.
$(B)/test/unit/embedding_test.o: CPPFLAGS += -Ilib/client

# What mmx-otel makes of happenings needs no library.
$(B)/test/unit/spans_test: $(B)/cmd/otel/spans.o

$(UNIT) $(CONTRACT): $(B)/%: $(B)/%.o $(call src,test/*.c) $(B)/mmx.a $(B)/libmmx.a
	$(CC) $(LDFLAGS) $(filter %.o,$^) $(filter %.a,$^) -o $@ $(LIBS)

# The CUDA toolkit, to hold lib/gpu/cuda.def against cuda.h; nothing else needs
# it.
CUDA_HOME ?= /usr/local/cuda
$(B)/test/unit/cuda_api_test.o: CPPFLAGS += \
	$(addprefix -isystem ,$(wildcard $(CUDA_HOME)/include))

# What stands in for the driver on machines without a GPU. Never installed.
# Plain in every flavour: Python loads it as well.
DOUBLE := $(B)/test/double/libcuda.so.1
$(DOUBLE): CFLAGS := -O1 -g
$(DOUBLE): LDFLAGS :=
$(DOUBLE): $(call src,test/double/*.c)
	$(CC) $(LDFLAGS) -shared -Wl,-soname,$(@F) $^ -o $@ -lpthread

# What a test's callback is told and does not use is not named once more.
$(B)/test/%.o: WARN += -Wno-unused-parameter

# Preloaded into daemons, each for one test, and into what is emulated.
$(WATCH) $(B)/test/arm64/madvise.so: %.so: %.o
	$(CC) $(LDFLAGS) -shared $^ -o $@

# As a user of the library: nothing of ours but libmmx.
$(EACH): $(call src,test/each/*.c) $(B)/libmmx.a
	$(CC) $(LDFLAGS) $(filter %.o,$^) $(filter %.a,$^) -o $@ -lpthread

$(SIM): $(call src,test/sim/*.c) $(BASE) $(WIRE) $(CORE)
	$(CC) $(LDFLAGS) $^ -o $@

# The same, where each block of code of the core counts itself; not those of
# tables, which grow to twice their size a few times in a process's life.
counted = $(patsubst $(B)/lib/%,$(B)/counted/%,$(B)/lib/base/heap.o $(CORE))
$(B)/counted/%.o: lib/%.c
	@mkdir -p $(@D)
	$(CC) $(ALL_CFLAGS) -fsanitize-coverage=trace-pc -c $< -o $@
$(COUNTED): $(call src,test/sim/*.c) $(WIRE) $(counted) \
		$(filter-out %/heap.o,$(BASE))
	$(CC) $(LDFLAGS) $^ -o $@

$(FUZZERS): $(B)/%: $(B)/%.o $(B)/mmx.a $(B)/libmmx.a
	$(CC) $(LDFLAGS) $(FUZZ_LINK) $^ -o $@ $(LIBS)

# llama.cpp: LLAMA=prefix has its include and lib; else pkg-config finds it.
# What tests run is the same over doubles of libllama and libmtmd.
comma := ,
LLAMA_PARTS := libmmx-mtmd.so mmx-llama-encode mmx-llama-language
LLAMA_TEST := $(addprefix $(B)/test/llama/,$(LLAMA_PARTS) unsplit linked)
LLAMA_FAKE := $(B)/test/llama/libfake.so
LLAMA_CFLAGS = $(ALL_CFLAGS) -Ilib/client -isystem $(LLAMA_INC)
LLAMA_PROGRAM = $(CC) $(LLAMA_CFLAGS) $(LDFLAGS) $(filter %.c %.a,$^) -o $@ \
	$(LLAMA_LIBS) -lpthread -ldl

.PHONY: llama
llama: $(addprefix $(B)/llama/,$(LLAMA_PARTS))
$(B)/llama/%: LLAMA_INC = $(or $(LLAMA:%=%/include),\
	$(shell pkg-config --variable=includedir llama 2>/dev/null),/usr/include)
$(B)/llama/%: LLAMA_LIBS = $(if $(LLAMA),-L$(LLAMA)/lib \
	-Wl$(comma)-rpath$(comma)$(LLAMA)/lib,\
	$(shell pkg-config --libs-only-L llama 2>/dev/null)) -lmtmd -lllama \
	$(if $(wildcard $(LLAMA)/lib/libisoc23.so),\
	-Wl$(comma)--no-as-needed -lisoc23) -Wl,--allow-shlib-undefined
$(B)/test/llama/%: LLAMA_INC = test/double/llama
$(B)/test/llama/%: LLAMA_LIBS = $(LLAMA_FAKE) -Wl,-rpath,'$$ORIGIN'

$(LLAMA_FAKE): $(wildcard test/double/llama/*.c) \
		$(wildcard test/double/llama/*.h)
	@mkdir -p $(@D)
	$(CC) -std=gnu11 -O1 -g $(WARN) -fPIC -shared -Itest/double/llama \
		$(filter %.c,$^) -Wl,-soname,$(@F) -o $@
$(addprefix $(B)/,llama/libmmx-mtmd.so test/llama/libmmx-mtmd.so): \
		lib/client/llama/mtmd_preload.c lib/client/llama/digest.h \
		$(B)/libmmx.a
	@mkdir -p $(@D)
	$(CC) $(LLAMA_CFLAGS) -fvisibility=hidden -shared -Wl,-z,lazy \
		-Wl,-z,nodelete -Wl,--exclude-libs,ALL -Wl,-soname,$(@F) $(filter %.c %.a,$^) \
		-o $@ -lpthread -ldl
# Two rules: make takes the targets of one pattern rule for made together.
LLAMA_HOST = lib/client/llama/host.c lib/client/llama/host.h \
	lib/client/llama/digest.h $(B)/libmmx.a
$(B)/llama/mmx-llama-%: lib/client/llama/%.c $(LLAMA_HOST)
	@mkdir -p $(@D)
	$(LLAMA_PROGRAM)
$(B)/test/llama/mmx-llama-%: lib/client/llama/%.c $(LLAMA_HOST)
	@mkdir -p $(@D)
	$(LLAMA_PROGRAM)
# The program that knows nothing of us, and the same linked, not preloaded.
$(B)/test/llama/unsplit $(B)/test/llama/linked: test/engines/llama/reference.c
	@mkdir -p $(@D)
	$(LLAMA_PROGRAM)
$(B)/test/llama/linked: LLAMA_LIBS = -Wl,--no-as-needed \
	$(B)/test/llama/libmmx-mtmd.so $(LLAMA_FAKE) -Wl,-rpath,'$$ORIGIN'
$(B)/test/llama/linked: $(B)/test/llama/libmmx-mtmd.so
$(filter-out %.so,$(LLAMA_TEST)): $(LLAMA_FAKE)

.PHONY: clean
clean:
	rm -rf build

# What a user runs.
.PHONY: setup demo check bench sim cost fleet
setup:
	@scripts/setup

demo:
	@scripts/setup $(if $(IMAGE),--image)
	@$(MAKE) --no-print-directory -s all
	@MMX_LIBRARY=$(B)/libmmx.so.0 PYTHONPATH=lib/client/python \
		$(PYTHON) -B -m mmx demo --verbose --programs $(B) \
		$(if $(IMAGE),--image $(IMAGE))

# What only some tests need may be missing: they are skipped then, and counted.
check: setup
	@scripts/setup --check || true
	@scripts/check

sim: $(SIM)
	$(SIM) --seeds $(SEEDS) --jobs $(shell nproc)

# Whether a step of a daemon costs the same, however much there is.
cost: $(COUNTED)
	$(COUNTED) --cost

# 200 encoded, 200 langd and a million rooms: minutes of one core.
fleet: $(COUNTED)
	$(COUNTED) --fleet $(PAIRS) --rooms $(ROOMS) --limit 3600

# The Python package with the programs in it, for pip install.
.PHONY: wheel wheel-programs
wheel-programs: $(B)/libmmx.so.0 $(WHEEL)
wheel:
	@scripts/setup --wheel
	@$(MAKE) --no-print-directory wheel-programs
	@PYTHON=$(PYTHON) scripts/wheel $(B)

# The Debian packages; scripts/setup --deb has what builds them.
.PHONY: deb
deb:
	@scripts/setup --deb
	@scripts/deb/build $(B)/deb

# All that is handed out, from a clone of what is committed.
.PHONY: release
release:
	@scripts/setup --deb
	@scripts/release $(B)/release

# Engines in virtual environments under $(B)/engines; ENGINE names one of
# them, ENGINE_PARTS parts of its table.
.PHONY: engines engines-matrix
engines: all
	@test/engines/run $(ENGINE) --at $(B)/engines $(ENGINE_PARTS)
engines-matrix: all
	@test/engines/run $(ENGINE) --at $(B)/engines --matrix $(ENGINE_PARTS)

# The table, and beside the programs bench.json and the curves.
bench: all $(BENCH)
	@scripts/setup --bench
	$(BENCH) --out $(B) $(if $(shell command -v valgrind),--instructions) \
		$(BENCH_ARGS)
	test/bench/streams --build $(B)
	test/bench/engines --build $(B)
	gnuplot -e "dir='$(B)'" test/bench/curves.gp

# What CI adds.
.PHONY: lint format fuzz fuzzers tests mutants models rdma arm64 cover
tests: all $(if $(SAN),,$(WHEEL)) $(BENCH) $(WATCH) $(UNIT) $(CONTRACT) $(SIM) \
	$(COUNTED) $(DOUBLE) $(EACH) $(LLAMA_TEST)

fuzzers: $(FUZZERS)

lint:
	@scripts/lint

format:
	git ls-files '*.c' '*.h' | xargs clang-format -i

fuzz:
	@scripts/fuzz $(FUZZ_SECONDS)

# All of them: an hour of one core. MUTANTS: options of scripts/mutants.
mutants:
	@nice $(PYTHON) scripts/mutants $(MUTANTS)

models:
	@nice test/models/run $(MODELS)

rdma:
	@scripts/setup --rdma
	@$(MAKE) --no-print-directory -s all tests
	@test/rdma/run --build $(B)

# Root's, for the cache of roots. ARM64: test programs.
arm64:
	@scripts/setup --arm64
	@test/arm64/run --build $(B)/arm64 $(ARM64)

# COVER_PARTS: of scripts/check.
cover:
	@nice scripts/cover $(COVER_PARTS)

# The sample files, from the rows of conf.def.
POOL := --set control.keys=fleet.key --set pools[0].name=vit --set pools[0].blocks=64 \
	--set pools[0].layout=embedding:bf16:2352
PEER := --set peers[0].name=encoded-0 \
	--set peers[0].address=tcp://127.0.0.1:7601
.PHONY: samples
samples: all
	$(B)/mmx-encoded --config /dev/null $(POOL) --print-config --comments \
		> conf/mmx-encoded.yaml
	$(B)/mmx-langd --config /dev/null $(POOL) $(PEER) --print-config \
		--comments > conf/mmx-langd.yaml

# Not phony: `sudo make install` after `make manuals` writes nothing in $(B).
.PHONY: manuals
manuals: $(B)/man/mmx.7
$(B)/man/mmx.7: $(CMDS) $(wildcard scripts/manuals scripts/*.py cmd/README.md \
		lib/*/*.def lib/*/*/*.def lib/client/*.h)
	@$(PYTHON) scripts/manuals --build $(B) --out $(B)/man

.PHONY: book
book: manuals
	@$(PYTHON) scripts/book --build $(B)

# Install.
SHARE = $(DESTDIR)$(PREFIX)/share
.PHONY: install
install: all manuals
	install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(PREFIX)/include \
		$(DESTDIR)$(LIBDIR)/pkgconfig $(DESTDIR)/etc/mmx \
		$(DESTDIR)$(PREFIX)/lib/systemd/system \
		$(DESTDIR)$(PREFIX)/lib/sysusers.d
	install -m755 $(CMDS) $(DESTDIR)$(PREFIX)/bin
	install -m644 lib/client/mmx.h lib/client/mmx_aux.h \
		lib/client/mmx_binding.h $(DESTDIR)$(PREFIX)/include
	install -m644 $(B)/libmmx.a $(DESTDIR)$(LIBDIR)
	install -m755 $(B)/libmmx.so.0 $(DESTDIR)$(LIBDIR)
	if [ -e $(B)/llama/libmmx-mtmd.so ]; then \
		install -m755 $(B)/llama/libmmx-mtmd.so $(DESTDIR)$(LIBDIR) && \
		install -m755 $(B)/llama/mmx-llama-encode \
			$(B)/llama/mmx-llama-language $(DESTDIR)$(PREFIX)/bin; fi
	ln -sf libmmx.so.0 $(DESTDIR)$(LIBDIR)/libmmx.so
	sed -e 's|@PREFIX@|$(PREFIX)|' -e 's|@LIBDIR@|$(LIBDIR)|' \
		-e 's|@VERSION@|$(VERSION)|' lib/client/mmx.pc.in \
		> $(DESTDIR)$(LIBDIR)/pkgconfig/mmx.pc
	install -D -m644 -t $(SHARE)/mmx systemd/*.conf conf/mmx-*.yaml \
		conf/prometheus-rules.yaml conf/grafana-dashboard.json
	for f in $(notdir $(wildcard conf/mmx-*.yaml)); do \
		[ -e $(DESTDIR)/etc/mmx/$$f ] || \
		install -m644 conf/$$f $(DESTDIR)/etc/mmx || exit 1; done
	install -m644 systemd/*.service systemd/*.socket \
		$(DESTDIR)$(PREFIX)/lib/systemd/system
	sed -i 's|=/usr/bin/mmx|=$(PREFIX)/bin/mmx|' \
		$(DESTDIR)$(PREFIX)/lib/systemd/system/mmx-*.service
	for s in 1 3 5 7 8; do \
		install -D -m644 -t $(SHARE)/man/man$$s $(B)/man/*.$$s; done
	install -D -m644 $(B)/man/_mmx $(SHARE)/zsh/vendor-completions/_mmx
	for p in $(notdir $(CMDS)); do install -D -m644 $(B)/man/mmx.bash \
		$(SHARE)/bash-completion/completions/$$p; done
	install -m644 systemd/mmx.sysusers \
		$(DESTDIR)$(PREFIX)/lib/sysusers.d/mmx.conf

# Not the roots of systems that scripts/ucx-matrix makes there.
-include $(shell find $(B) -path $(B)/ucx-matrix -prune -o -name '*.d' \
	-type f -print 2>/dev/null)
