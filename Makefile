GO ?= go
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo 0.1.0-dev)
comma := ,
LDFLAGS = -s -w -X main.version=$(VERSION)

# Programs, lints and tests are compiled alike (the race detector apart, which needs C),
# whatever directory they are in, so that Go compiles each package once.
export CGO_ENABLED = 0

.PHONY: all build runsc test test-host test-vm test-clients campaign lint generate bench bench-results peers soak fuzz clean

all: build

build: runsc
	$(GO) build -trimpath -ldflags '$(LDFLAGS)' -o bin/ ./cmd/pando ./cmd/pandod ./cmd/pando-bench
	$(GO) build -trimpath -ldflags '-s -w' -o bin/pando-guest ./cmd/pando-guest
	ln -sf pando bin/git-remote-pando

# gVisor's runtime, a module of its own: a minute or two the first time.
runsc:
	$(GO) build -C cmd/pando-runsc -trimpath -ldflags '-s -w' -o ../../bin/pando-runsc .

# The tests, in tiers: testdata/tiers.txt says what is in which. A test that fails runs
# once more, alone; one that passes then is flaky, and a line in testdata/flaky.txt.
# Skipped tests are listed with the reason; with SKIPS=FILE a skip that FILE does not
# list is a failure.
TESTS = $(GO) run -trimpath ./tools/tests -flaky testdata/flaky.txt $(if $(SKIPS),-skips $(SKIPS)) $(if $(MARKS),-marks $(MARKS))
# Scripts run what was built, and don't build it once more.
BUILT = PANDO_BIN=$(CURDIR)/bin/pando

# Needs nothing but Go: no root, no programs of the host. Uses the race detector where
# there is a C compiler.
RACE ?= $(if $(shell command -v gcc || command -v cc),-race)
test:
	$(GO) vet -trimpath ./...
	$(TESTS) -groups 2 -tier quick -shuffle $(RACE)
	$(TESTS) -groups 2 -tier plain -shuffle

# Namespaces, cgroups, gateways, scripts; of the current user, or with TEST_USER=NAME, as
# root, of an ordinary user. TIERS=host leaves out the longer part. More packages and
# tests at once than there are processors, because they often wait.
test-host: TIERS = host,host-full
test-host: build
	$(BUILT) $(TESTS) -groups 2 -p 1 -parallel 4 -tier $(TIERS)$(if $(TEST_USER), -user $(TEST_USER),$(if $(filter 0,$(shell id -u)),$(comma)root))

# gVisor and QEMU. TIERS=vm leaves out the longer part.
test-vm: TIERS = vm,vm-full
test-vm: build
	$(BUILT) $(TESTS) -p 1 -tier $(TIERS)

# Real clients and agents, from npm's registry.
test-clients: build
	$(BUILT) $(TESTS) -p 1 -tier clients

# Formatting, static analysis, and that nothing generated is out of date.
lint:
	@test -z "$$(gofmt -l .)" || { echo "not formatted:"; gofmt -l .; exit 1; }
	GOFLAGS=-trimpath $(GO) tool -modfile=tools/lint/go.mod staticcheck ./...
	$(GO) run -trimpath ./tools/words
	$(GO) mod tidy -diff
	$(GO) mod verify
	cd cmd/pando-runsc && $(GO) mod verify
	@if command -v mypy >/dev/null; then cd sdk/python && mypy --strict --python-version 3.9 --cache-dir /dev/null pando generate.py; \
		else echo "there is no mypy: the types of sdk/python are not checked"; fi

# The documents and schemas made from the code.
generate:
	$(GO) run ./tools/openapi
	$(GO) run ./tools/seccompdoc
	python3 sdk/python/generate.py
	python3 sdk/python/generate.py

# Shows that the benchmarks work; what is published comes from bench-results,
# on a quiet machine.
bench: build
	bin/pando bench --quick all
	bin/pando bench --quick all --backend gvisor

bench-results: build peers
	mkdir -p bench/results
	for a in run exec spawn eval branch chain density ipython api crowd agents caches accept ssh services steps race replay cli ledger checkpoint import gateway policy; do \
		bin/pando bench $$a --json > bench/results/$$a.json.new && mv bench/results/$$a.json.new bench/results/$$a.json || exit 1; \
	done
	for a in run exec spawn eval branch chain density; do \
		for b in gvisor microvm; do \
			PATH=$(CURDIR)/bin/peers:$$PATH bin/pando bench $$a --backend $$b --json > bench/results/$$a-$$b.json.new && mv bench/results/$$a-$$b.json.new bench/results/$$a-$$b.json || exit 1; \
		done; \
	done
	$(GO) run ./tools/benchchart

# What cells are measured beside, used by nothing but the benchmarks: gVisor's own
# runtime, of the same version as ours and with all its commands, and what machines of a
# plain QEMU run, which is no program for a host.
peers: bin/peers/machine-init
	$(GO) build -C cmd/pando-runsc -trimpath -ldflags '-s -w' -o ../../bin/peers/runsc gvisor.dev/gvisor/runsc

.PHONY: bin/peers/machine-init
bin/peers/machine-init:
	$(GO) build -trimpath -ldflags '-s -w' -o $@ ./internal/vmm/vmmtest/testdata/guest
	chmod a-x $@

# What takes too long for every change, all of it or PARTS of it: see tools/soak. It
# appends a line a part to testdata/soak.txt.
PARTS ?=
soak: build
	GO='$(GO)' MAKE='$(MAKE)' tools/soak $(PARTS)

# Runs .ci/run N times from clean clones, half of them beside two busy loops, and
# appends a line for each to testdata/campaign.txt: commit, load, seconds, result.
N ?= 10
campaign:
	tools/campaign $(N)

# Every parser of what others send, each for so long.
FUZZTIME ?= 10m
fuzz:
	tools/fuzz $(FUZZTIME)

clean:
	rm -rf bin
