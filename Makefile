# Everything a person or CI runs. `make help` lists it.

.DEFAULT_GOAL := help
SHELL := /bin/sh

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)

# Tools are pinned here and run from the module cache: nothing is installed,
# and go.mod stays free of them.
GOLANGCI_LINT := github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0

# Servers live in sbin on Debian, which is not in the PATH of ordinary users.
export PATH := $(PATH):/usr/local/sbin:/usr/sbin

# The race detector needs cgo, whatever the environment says.
GO_TEST := CGO_ENABLED=1 go test -race -timeout 40m

# On a developer's machine a result that is still true is taken from the cache.
ifeq ($(CI),true)
GO_TEST += -count=1
endif

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

# How the binary is built, wherever it is.
BUILD := CGO_ENABLED=0 go build -trimpath -ldflags '-s -w -X main.version=$(VERSION)'

.PHONY: build
build: ## Build bin/lockgate, static and stripped
	$(BUILD) -o bin/lockgate ./cmd/lockgate

.PHONY: demo
demo: build ## Three contenders for one lock on SQLite: one runs, one skips, one waits
	@scripts/demo.sh bin/lockgate

.PHONY: deps
deps: ## Make sure that the tests have a C compiler and MariaDB (installs them on Debian as root)
	@scripts/test-deps.sh

# The end-to-end tests build the binary in a process of their own, which the
# cache of go test cannot see: they always run. They also come by themselves,
# so that other packages' tests do not take the time that their leases count.
.PHONY: test
test: deps ## Run every test, real servers and the real binary included
	go vet ./...
	$(GO_TEST) ./bench/... ./cmd/... ./internal/...
	$(GO_TEST) -count=1 ./e2e/...

.PHONY: conformance
conformance: deps ## Run only the stores' suite, against real servers
	$(GO_TEST) -count=1 ./internal/db/...

.PHONY: e2e
e2e: deps ## Run only the tests of the built binary
	$(GO_TEST) -count=1 -v ./e2e/...

# go test fuzzes one target at a time.
FUZZ_TIME ?= 5s

.PHONY: fuzz
fuzz: deps ## Fuzz every fuzz target for FUZZ_TIME each
	@scripts/fuzz.sh $(FUZZ_TIME)

# The size that counts is that for linux/amd64, on whatever machine.
.PHONY: budget
budget: deps build ## Measure every budget on the built binary; Linux only
	GOOS=linux GOARCH=amd64 $(BUILD) -o bin/lockgate-linux-amd64 ./cmd/lockgate
	CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o bin/connect ./bench/connect
	go run ./bench/budget

# etcd is in a module of its own, so that its dependencies are not ours.
.PHONY: bench
bench: bench-deps build ## Compare with other ways to the same end; then ten thousand holders (about 6 minutes)
	cd bench/etcd && CGO_ENABLED=0 go build -trimpath -o ../../bin/etcd go.etcd.io/etcd/server/v3
	cd bench/etcd && CGO_ENABLED=0 go build -trimpath -o ../../bin/etcdctl go.etcd.io/etcd/etcdctl/v3
	go run ./bench/compare
	go run ./bench/holders

.PHONY: bench-deps
bench-deps:
	@scripts/test-deps.sh bench

.PHONY: lint
lint: ## Run golangci-lint, pinned
	go run $(GOLANGCI_LINT) run ./...

.PHONY: fmt
fmt: ## Format the Go files
	gofmt -w .

.PHONY: generate
generate: ## Write the generated files anew
	go generate ./...

.PHONY: verify
verify: ## Check modules, format, other platforms, and that generated files are fresh
	@scripts/verify.sh

.PHONY: ci
ci: ## Run what CI runs
	@.ci/run
