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

# Run a function in a separate process group, and exit with its status.  Ctrl-C, SIGTERM and SIGHUP terminate the group;
# then the status is 130.  Its programs receive SIGTERM only, so those in Python print no traceback.
run_interruptible() {
    local group interrupted='' status=0
    set -m
    "$@" </dev/null &
    group=$!
    set +m
    trap 'interrupted=1; kill -TERM -- "-$group" 2>/dev/null || true' INT TERM HUP
    wait "$group" || status=$?
    if [ -n "$interrupted" ]; then
        wait "$group" 2>/dev/null || true
        say "interrupted"
        exit 130
    fi
    exit "$status"
}
