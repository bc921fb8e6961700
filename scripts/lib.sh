# shellcheck shell=bash
# What scripts/run and scripts/run-consul have in common: programs that are started and watched, and stopped at the end. To be
# sourced from the root of the tree.

# shellcheck disable=SC2034 # used by those who source this
node=demo xds=127.0.0.1:15010 admin=127.0.0.1:15014 envoy_admin=127.0.0.1:15000

# fail MESSAGE: what is said is by the target of make.
fail() {
	echo "make $(basename "$0"): $1" >&2
	exit 1
}

# need PROGRAM...: fails if one is missing. A package is named as its program is.
need() {
	local program
	for program in "$@"; do
		command -v "$program" >/dev/null || fail "needs $program (Debian: apt-get install $program)"
	done
}

# build makes meshd; $RUN_MESHD is one that is made already.
build() {
	meshd=${RUN_MESHD:-bin/meshd}
	[ -n "${RUN_MESHD:-}" ] || make --no-print-directory -s build
}

# require_free HOST:PORT...: fails if somebody listens there. Ports are looked at before anything starts: Envoy would say of its
# own only that a listener was rejected.
require_free() {
	local address
	for address in "$@"; do
		if (exec 3<>"/dev/tcp/${address%:*}/${address##*:}") 2>/dev/null; then
			fail "something else listens on $address; stop it first (ss -ltnp says what it is)"
		fi
	done
}

# begin makes the folder $tmp, and sees to it that it goes at the end with all that was started.
begin() {
	tmp=$(mktemp -d "${TMPDIR:-/tmp}/meshd-run.XXXXXX")
	started=()
	declare -gA names # by process
	trap cleanup EXIT
	trap 'echo; exit 0' INT TERM
}

cleanup() {
	trap - EXIT
	kill "${started[@]}" 2>/dev/null || true
	wait
	rm -rf "$tmp"
}

# start NAME COMMAND...: what it writes goes to a file that is shown if it fails.
start() {
	local name=$1
	shift
	"$@" >>"$tmp/$name.log" 2>&1 &
	started+=($!)
	names[$!]=$name
}

# alive fails with the log of what has ended.
alive() {
	local pid
	for pid in "${started[@]}"; do
		kill -0 "$pid" 2>/dev/null && continue
		echo "make $(basename "$0"): ${names[$pid]} has ended by itself. The end of what it wrote:" >&2
		tail -n 20 "$tmp/${names[$pid]}.log" >&2
		exit 1
	done
}

# await WHAT COMMAND...: waits until the command succeeds.
await() {
	local what=$1 tries
	shift
	for ((tries = 0; tries < 300; tries++)); do
		if "$@" >"$tmp/await" 2>&1; then return; fi
		alive
		sleep 0.1
	done
	echo "make $(basename "$0"): $what: not within 30 s" >&2
	cat "$tmp/await" >&2
	exit 1
}
