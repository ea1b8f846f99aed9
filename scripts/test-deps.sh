#!/bin/sh
# Makes sure that the tests have what Go cannot fetch: a C compiler (for the race
# detector) and a MariaDB server that they can start themselves. Says nothing
# when all is there. On Debian and Ubuntu, as root, it installs what is missing;
# elsewhere it names it and exits 1.
#
#   scripts/test-deps.sh          what the tests need
#   scripts/test-deps.sh bench    also what the comparisons of make bench need
set -eu

purpose=${1:-test}

# Only the server's core package: it has the programs and no service, so
# nothing starts by itself, now or at the next boot.
DEBIAN_COMPILER='gcc libc6-dev'
DEBIAN_MARIADB='mariadb-server-core mariadb-client-core'
DEBIAN_FLOCK='util-linux'

PATH=$PATH:/usr/local/sbin:/usr/sbin
export PATH

command -v go >/dev/null 2>&1 || {
	echo "test-deps: go is missing: see https://go.dev/doc/install" >&2
	exit 1
}

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# A compiler without the C library's headers is not enough, so it is tried.
has_compiler() {
	cc=$(go env CC)
	printf '#include <stdlib.h>\nint main(void) { return 0; }\n' >"$scratch/try.c"
	# CC may carry options.
	# shellcheck disable=SC2086
	$cc -o "$scratch/try" "$scratch/try.c" 2>/dev/null
}

# mariadb-install-db calls my_print_defaults, which Debian keeps in the
# client's package.
has_mariadb() {
	for program in mariadbd mariadb-install-db my_print_defaults; do
		command -v "$program" >/dev/null 2>&1 || return 1
	done
}

# The client is in the package that has my_print_defaults, where that is not the
# server's.
has_client() { command -v mariadb >/dev/null 2>&1; }

has_flock() { command -v flock >/dev/null 2>&1; }

check() {
	packages=
	missing=
	if ! has_compiler; then
		packages="$packages $DEBIAN_COMPILER"
		missing="$missing
  a C compiler with the C library's headers, which go test -race needs
    Debian, Ubuntu: apt-get install $DEBIAN_COMPILER
    Fedora:         dnf install gcc
    Alpine:         apk add gcc musl-dev
    macOS:          xcode-select --install"
	fi
	if ! has_mariadb; then
		packages="$packages $DEBIAN_MARIADB"
		missing="$missing
  a MariaDB server (mariadbd, mariadb-install-db), which the tests start themselves
    Debian, Ubuntu: apt-get install $DEBIAN_MARIADB
    Fedora:         dnf install mariadb-server
    Alpine:         apk add mariadb mariadb-client
    macOS:          brew install mariadb"
	fi
	if [ "$purpose" = bench ] && ! has_client; then
		packages="$packages $DEBIAN_MARIADB"
		missing="$missing
  the MariaDB client (mariadb), which make bench compares with
    Debian, Ubuntu: apt-get install $DEBIAN_MARIADB
    Fedora:         dnf install mariadb
    Alpine:         apk add mariadb-client
    macOS:          brew install mariadb"
	fi
	if [ "$purpose" = bench ] && ! has_flock; then
		packages="$packages $DEBIAN_FLOCK"
		missing="$missing
  flock of util-linux, which make bench compares with
    Debian, Ubuntu: apt-get install $DEBIAN_FLOCK
    Fedora:         dnf install util-linux-core
    Alpine:         apk add flock
    macOS:          brew install flock"
	fi
	[ -z "$missing" ]
}

check && exit 0

if [ "$(id -u)" = 0 ] && [ -e /etc/debian_version ] && command -v apt-get >/dev/null 2>&1; then
	echo "test-deps: installing$packages"
	export DEBIAN_FRONTEND=noninteractive
	log=$scratch/apt.log
	# The list of packages is split on purpose.
	# shellcheck disable=SC2086
	if ! { apt-get update && apt-get install -y --no-install-recommends $packages; } >"$log" 2>&1 </dev/null; then
		cat "$log" >&2
		echo "test-deps: apt-get could not install$packages" >&2
		exit 1
	fi
	check && exit 0
fi

echo "test-deps: the tests need what this machine does not have:$missing" >&2
exit 1
