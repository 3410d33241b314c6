GO ?= go
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo 0.1.0-dev)
LDFLAGS = -s -w -X main.version=$(VERSION)

.PHONY: all build runsc test lint generate bench bench-results peers soak fuzz clean

all: build

build: runsc
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o bin/pando ./cmd/pando
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '-s -w' -o bin/pando-guest ./cmd/pando-guest

# gVisor's runtime, a module of its own: a minute or two the first time.
runsc:
	CGO_ENABLED=0 $(GO) build -C cmd/pando-runsc -trimpath -ldflags '-s -w' -o ../../bin/pando-runsc .

# Every test that this machine can run. What it can't is listed at the end, with
# the reason; with SKIPS=FILE a skip that the file doesn't list is a failure.
test:
	$(GO) vet ./...
	for os in darwin windows; do CGO_ENABLED=0 GOOS=$$os $(GO) build -o /dev/null ./cmd/pando || exit 1; done # clients of a daemon elsewhere
	$(GO) test -json -timeout 60m ./... | $(GO) run ./tools/skips $(if $(SKIPS),-known $(SKIPS))

# Formatting, static analysis, and that nothing generated is out of date.
lint:
	@test -z "$$(gofmt -l .)" || { echo "not formatted:"; gofmt -l .; exit 1; }
	$(GO) tool -modfile=tools/lint/go.mod staticcheck ./...
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
	for a in run exec spawn eval branch chain density api cli ledger checkpoint import gateway policy; do \
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
	CGO_ENABLED=0 $(GO) build -C cmd/pando-runsc -trimpath -ldflags '-s -w' -o ../../bin/peers/runsc gvisor.dev/gvisor/runsc

.PHONY: bin/peers/machine-init
bin/peers/machine-init:
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '-s -w' -o $@ ./internal/vmm/vmmtest/testdata/guest
	chmod a-x $@

# What takes too long for every change: the heavy tests, with a kill at every step
# of every act, twice over with the processors busy, and the race detector over the
# packages (whose tests fork; the binary itself is not built with it).
soak: build
	E2E_SOAK=1 $(GO) test -timeout 2h -count=1 ./e2e
	E2E_SOAK=1 $(GO) test -timeout 2h -count=1 -run TestForksLeaveNothing ./internal/backend/namespace
	E2E_SOAK=1 $(GO) test -timeout 2h -count=1 ./internal/backend/microvm
	for i in 1 2; do (while :; do :; done) & busy="$$busy $$!"; done; trap 'kill $$busy' EXIT; \
		E2E_SOAK=1 $(GO) test -timeout 2h -count=2 -run 'TestF18|TestF19' ./e2e
	$(MAKE) fuzz
	CGO_ENABLED=1 $(GO) test -race -timeout 2h -count=1 $$($(GO) list ./... | grep -v /e2e$$)

# Every parser of what others send, each for so long.
FUZZTIME ?= 10m
fuzz:
	for d in $$(grep -rl '^func Fuzz' --include='*_test.go' internal client | xargs -n1 dirname | sort -u); do \
		for f in $$(sed -n 's/^func \(Fuzz[A-Za-z]*\)(.*/\1/p' $$d/*_test.go); do \
			$(GO) test -run xxx -fuzz "^$$f\$$" -fuzztime $(FUZZTIME) ./$$d || exit 1; \
		done; \
	done

clean:
	rm -rf bin
