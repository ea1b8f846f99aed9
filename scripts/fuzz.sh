#!/bin/sh
# Fuzzes every fuzz target of the module, one after the other, each for as long as
# the argument says (5s by default). It finds them by itself. What go test finds is
# kept in testdata, to be committed with its fix.
set -eu
cd "$(dirname "$0")/.."

time=${1:-5s}
targets=0
# Packages without are left out first: some start servers only to say so.
for package in $(grep -rl --include='*_test.go' '^func Fuzz' . | xargs -n1 dirname | sort -u); do
	# It lists the targets and then says that the package is ok.
	listed=$(go test -list '^Fuzz' "$package") || {
		printf '%s\n' "$listed" >&2
		exit 1
	}
	for target in $(printf '%s\n' "$listed" | grep '^Fuzz' || :); do
		echo "fuzz: $target in $package, for $time"
		go test -run '^$' -fuzz "^$target\$" -fuzztime "$time" "$package"
		targets=$((targets + 1))
	done
done

# An empty list would mean that this script looks in the wrong way.
[ "$targets" -gt 0 ] || {
	echo "fuzz: there is no fuzz target" >&2
	exit 1
}
echo "fuzz: $targets targets, nothing found"
