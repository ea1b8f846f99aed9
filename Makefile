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

.PHONY: build
build: ## Build bin/lockgate, static and stripped
	CGO_ENABLED=0 go build -trimpath -ldflags '-s -w -X main.version=$(VERSION)' -o bin/lockgate ./cmd/lockgate

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
	$(GO_TEST) ./cmd/... ./internal/...
	$(GO_TEST) -count=1 ./e2e/...

.PHONY: conformance
conformance: deps ## Run only the stores' suite, against real servers
	$(GO_TEST) -count=1 ./internal/db/...

.PHONY: e2e
e2e: deps ## Run only the tests of the built binary
	$(GO_TEST) -count=1 -v ./e2e/...

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
