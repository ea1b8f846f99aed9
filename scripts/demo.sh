#!/bin/sh
# Three contenders for one lock, on a SQLite file that is thrown away:
# A gets the lock and runs, B skips, C waits and runs after A.
#
#   scripts/demo.sh [BINARY]
#
# Exits 0 only if it really went that way.
set -eu

lockgate=${1:-bin/lockgate}
started=$(date +%s)

# Whoever runs the demo may have settings of their own.
for name in $(env | sed -n 's/^\(LOCKGATE_[A-Z0-9_]*\)=.*/\1/p'); do
	unset "$name"
done

tmp=$(mktemp -d)
contenders=
readers=
finish() {
	for pid in $contenders $readers; do
		kill "$pid" 2>/dev/null || :
	done
	wait
	rm -rf "$tmp"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

say() { printf '\n--- %s\n' "$*"; }

fail() {
	printf '\ndemo: %s\n' "$*" >&2
	exit 1
}

# until_true CONDITION… - waits for it, and gives up after a minute. That is a
# limit for what goes wrong, not a measure of what goes right.
until_true() {
	tries=600
	until "$@"; do
		tries=$((tries - 1))
		[ "$tries" -gt 0 ] || return 1
		sleep 0.1
	done
}

# names_a X - X has said that A has the lock. An owner is host/user/pid/…
names_a() { grep -q "/$pid_a/" "$tmp/$1.said" 2>/dev/null; }

# True also when A or C ended without; the checks at the end find that out.
a_has_begun() { [ -e "$tmp/A.begun" ] || ! kill -0 "$pid_a" 2>/dev/null; }
c_waits() { names_a C || ! kill -0 "$pid_c" 2>/dev/null; }

# contend X ON_BUSY - starts contender X in the background; its process id is
# then in $!. All it says is shown behind its name, and kept in X.said.
contend() {
	mkfifo "$tmp/$1.pipe"
	while IFS= read -r line; do
		printf '[%s] %s\n' "$1" "$line"
		printf '%s\n' "$line" >>"$tmp/$1.said"
	done <"$tmp/$1.pipe" &
	readers="$readers $!"
	LOCKGATE_NAME=nightly-report \
		LOCKGATE_DB_URL="sqlite://$tmp/locks.db" \
		LOCKGATE_ON_BUSY="$2" \
		LOCKGATE_POLL_EVERY=200ms \
		LOCKGATE_WAIT_TIMEOUT=1m \
		LOCKGATE_LOG_FORMAT=text \
		"$lockgate" run -- sh "$tmp/job" "$tmp" "$1" >"$tmp/$1.pipe" 2>&1 &
	contenders="$contenders $!"
}

# The job that must never run twice at once. It notes its begin and its end, and
# says so with a file that others can wait for. A's is long enough for the two
# others to find the lock taken: it ends when it is told.
cat >"$tmp/job" <<'JOB'
dir=$1 me=$2
echo "begin $me" >>"$dir/ran"
echo "job: writing the report, with fencing token $LOCKGATE_TOKEN"
: >"$dir/$me.begun"
sleep 2
tries=600
while [ "$me" = A ] && [ -d "$dir" ] && [ ! -e "$dir/A.may-end" ] && [ "$tries" -gt 0 ]; do
	tries=$((tries - 1))
	sleep 0.1
done
echo "job: the report is written"
echo "end $me" >>"$dir/ran"
JOB

say "A starts the job. Nobody has the lock, so the job runs at once."
contend A skip
pid_a=$!
until_true a_has_begun || fail "A did not start its job"
[ -e "$tmp/A.begun" ] || fail "A ended without having run its job"

say "B starts the same job somewhere else. The lock is taken: B says by whom and for"
echo "    how long still, does not run the job, and exits 0, as LOCKGATE_ON_BUSY=skip asks."
contend B skip
code_b=0
wait $! || code_b=$?

say "C starts it too, with LOCKGATE_ON_BUSY=wait. It waits for A."
contend C wait
pid_c=$!
until_true c_waits || fail "C does not say that it waits for A"
: >"$tmp/A.may-end"

code_a=0
wait "$pid_a" || code_a=$?
code_c=0
wait "$pid_c" || code_c=$?
contenders=
for pid in $readers; do
	wait "$pid" || :
done
readers=

say "What ran, in this order:"
sed 's/^/    /' "$tmp/ran"
printf '    exit codes: A %s, B %s, C %s\n' "$code_a" "$code_b" "$code_c"

[ "$code_a $code_b $code_c" = "0 0 0" ] || fail "every exit code should be 0"
[ "$(cat "$tmp/ran")" = "begin A
end A
begin C
end C" ] || fail "the job should have run for A, then for C, and never for B"
for name in B C; do
	names_a "$name" || fail "$name should have said that A, process $pid_a, has the lock"
done

say "One at a time: A ran, B skipped, C ran after A. ($(($(date +%s) - started)) s)"
