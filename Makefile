# meshd: build, test and check. `make` alone lists the targets.

PREFIX  ?= /usr
DESTDIR ?=
UNITDIR ?= /usr/lib/systemd/system
PKG     ?= ./...

# Outside a git checkout (a release tarball) the packager may set both: make build VERSION=1.2.3 COMMIT=abc
git      = $(if $(wildcard .git),$(shell git $(1) 2>/dev/null))
VERSION ?= $(or $(call git,describe --tags --match 'v*' --dirty),0.1.0-dev)
COMMIT  ?= $(or $(call git,rev-parse -q --verify --short=12 HEAD),unknown)

export PREFIX DESTDIR UNITDIR

.DEFAULT_GOAL := help
.PHONY: help build run run-consul test check bench fmt install uninstall envoy consul clean distclean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## build the static binary bin/meshd
	CGO_ENABLED=0 go build -trimpath -buildvcs=false \
		-ldflags '-s -w -X main.version=$(VERSION) -X main.commit=$(COMMIT)' -o bin/meshd ./cmd/meshd

run: ## run meshd and an Envoy here, with example entries
	@./scripts/run

run-consul: ## the same with a Consul, in which example services are registered
	@./scripts/run-consul

test: ## run every test, race detector on, with a real Envoy (PKG=./internal/xds for one package)
	@./scripts/test $(PKG)

check: ## formatting, analysers, dead code, module files, golden files, architecture
	@./scripts/check

bench: ## run the benchmarks, and bench-xds (PKG=./internal/xds for one package alone)
	go test -run '^$$' -bench . -benchmem $(PKG)
ifeq ($(PKG),./...)
	$(MAKE) bench-xds
endif

bench-xds: build ## measure meshd with 1,000 clients beside a bare broadcast (BENCH="-rows change -streams 200"; bin/bench.json)
	CGO_ENABLED=0 go build -trimpath -buildvcs=false -o bin/bench ./internal/bench
	bin/bench -o bin/bench.json $(BENCH)

fmt: ## format the Go code
	go tool -modfile=tools/go.mod gofumpt -w .

install: ## install binary, unit, completions, /etc/meshd (DESTDIR= PREFIX=/usr); starts nothing
	@test -x bin/meshd || $(MAKE) build
	@./scripts/install

uninstall: ## remove what install put there, but for settings and state
	@./scripts/install --uninstall

envoy: ## print the path of the Envoy that the tests use, fetched into .tools/ if need be
	@./scripts/envoy

consul: ## print the path of a Consul, built into .tools/ if need be (minutes)
	@./scripts/consul

clean: ## remove what build made; .tools/ stays
	rm -rf bin coverage.out

distclean: clean ## remove .tools/ too
	rm -rf .tools
