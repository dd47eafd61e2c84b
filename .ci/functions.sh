# SPDX-License-Identifier: MIT
# shellcheck shell=bash
#
# Functions of tests/run and benchmarks/run.  Both define say(), which prints a message.

# Configure a build folder: configure FOLDER MESON_ARGUMENT...
# An existing folder gets the options, and detects packages that were installed since its last configuration.
configure() {
    local folder=$1
    shift
    if [ ! -e "$folder/meson-private/coredata.dat" ]; then
        meson setup "$folder" "$@"
    elif [ ! -e "$folder/build.ninja" ] || [ /var/lib/dpkg/status -nt "$folder/build.ninja" ] ||
        ! meson configure "$folder" "$@" >/dev/null 2>&1; then
        meson setup --reconfigure "$folder" "$@"
    fi
}

# Run a function in a separate process group, and exit with its status.  Ctrl-C, SIGTERM and SIGHUP end the group; then the
# status is 130.  The group receives SIGTERM for each of them: a program in Python would print a traceback after SIGINT.
run_interruptible() {
    local group='' interrupted='' status=0
    # The trap is set first, so that no signal is lost.  A signal that arrives before `group` is set ends the group below.
    trap interrupt INT TERM HUP
    set -m
    "$@" </dev/null &
    group=$!
    set +m
    [ -z "$interrupted" ] || interrupt
    wait "$group" || status=$?
    [ -n "$interrupted" ] || exit "$status"
    # Another signal interrupts `wait`.
    while kill -0 "$group" 2>/dev/null; do
        wait "$group" 2>/dev/null || sleep 0.1
    done
    # Programs of the function may outlive it; a zombie that is never reaped belongs to the group, so the time is limited.
    for _ in {1..100}; do
        kill -0 -- "-$group" 2>/dev/null || break
        sleep 0.1
    done
    exit 130
}

# The function may print a tally as its last line, so the message precedes the signal.
interrupt() {
    [ -n "$interrupted" ] || say "interrupted"
    interrupted=1
    [ -z "$group" ] || kill -TERM -- "-$group" 2>/dev/null || true
}
