#!/bin/sh
# What must stay true of the tree besides its tests: the modules are the ones
# that go.mod and go.sum name, the code is formatted and compiles for the other
# platforms, and the generated files are what their generators write today.
set -eu
cd "$(dirname "$0")/.."

step() { echo "verify: $*"; }

step "go.mod and go.sum are tidy"
go mod tidy -diff
(cd bench/etcd && go mod tidy -diff)

step "the modules are unmodified"
go mod verify

step "the Go files are formatted"
unformatted=$(gofmt -l .)
if [ -n "$unformatted" ]; then
	printf 'not formatted; run make fmt:\n%s\n' "$unformatted" >&2
	exit 1
fi

for platform in darwin/arm64 linux/arm64; do
	step "the code compiles for $platform"
	CGO_ENABLED=0 GOOS=${platform%/*} GOARCH=${platform#*/} go vet ./...
done

# The whole working tree is compared before and after, by way of an index of its
# own, so that uncommitted work is neither touched nor taken for staleness.
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
tree() {
	GIT_INDEX_FILE=$scratch/index git add --all
	GIT_INDEX_FILE=$scratch/index git write-tree
}

step "the generated files are fresh"
before=$(tree)
go generate ./...
after=$(tree)
if ! git --no-pager diff --exit-code "$before" "$after"; then
	echo "generated files were stale; they have been written anew, commit them" >&2
	exit 1
fi
