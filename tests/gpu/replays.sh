# shellcheck shell=bash
# SPDX-License-Identifier: MIT
#
# Functions for steps that replay a trace on the driver and on the simulator, and compare the results.
#
# Both replays use libgpu-timed.so, which times the driver calls and completes queued work immediately.  Both have the same
# limit: four fifths of the memory that was free at the start of the run.  Output files:
#
#   $GPU_OUT/detail/NAME.SIDE.json, .log    output of the tool; SIDE is driver or simulator
#   $GPU_OUT/detail/NAME.SIDE.tsv           output of libgpu-timed.so
#   $GPU_OUT/detail/NAME.SIDE.statistics    the JSON object as lines of key, tab, value
#   $GPU_OUT/detail/differs.md              differences, one line each

detail=$GPU_OUT/detail
start=$SECONDS
limit_mib=$((GPU_FREE_MIB * 4 / 5))
mkdir -p "$detail"
: >"$detail/differs.md"

# The simulated device has as much memory as the GPU, in whole granules.
device_mib=$(sed -n 's/^total_mib	//p' "$GPU_OUT/../info.tsv" 2>/dev/null | head -n 1)
device_mib=$((${device_mib:-$GPU_FREE_MIB} / 2 * 2))

# The cost model of the simulator: the costs of this GPU if the step `costs` has measured them, or else the default preset.
costs=$(compgen -G "$GPU_OUT/../costs/*.costs" | head -n 1)
model="modeled by the preset a100"
[ -z "$costs" ] || model="modeled by ${costs##*/}"

[ "$limit_mib" -ge 64 ] || {
    echo "low device memory, $GPU_FREE_MIB MiB free; replays require 80 MiB"
    exit 77
}

# Remaining seconds of three quarters of the time limit.
seconds_left() { echo $((GPU_SECONDS * 3 / 4 - (SECONDS - start))); }

# replay SIDE NAME CONFIG FILE: returns the tool's exit status; 124 after a timeout
replay() {
    local out=$detail/$2.$1 variable status
    (
        export GPU_TIMED_DRIVER=$XSEG_DRIVER GPU_TIMED_OUT=$out.tsv GPU_TIMED_AT_ONCE=1
        if [ "$1" = simulator ]; then
            for variable in $(compgen -e XSEG_SIM_); do
                unset "$variable"
            done
            export GPU_TIMED_DRIVER=$GPU_SIMULATOR XSEG_SIM_MEMORY_MB=$device_mib
            [ -z "$costs" ] || export XSEG_SIM_COSTS=$costs
        fi
        timeout -k 2 $((GPU_SECONDS * 9 / 10 + 1 - (SECONDS - start))) "$GPU_ROOT/bin/xseg" replay --json \
            --driver "$GPU_ROOT/lib/libgpu-timed.so" --config "$3" "$4" >"$out.json" 2>"$out.log"
    )
    status=$?
    # The tool prints one key in each line.
    sed -n 's/^ *"\([A-Za-z0-9_]*\)": \([^{]*[^{,]\),\{0,1\}$/\1	\2/p' "$out.json" >"$out.statistics"
    return "$status"
}

# statistic SIDE NAME KEY
statistic() { sed -n "s/^$3	//p" "$detail/$2.$1.statistics" | head -n 1; }

# The last line of the tool's log, without the message of builds with self-checks.  last_message SIDE NAME
last_message() { grep -v 'self-checks: ' "$detail/$2.$1.log" | tail -n 1 | grep . || echo "no message"; }

report_difference() { echo "- $*" >>"$detail/differs.md"; }

# Report a difference if the values of a key are not equal on both sides.  compare_statistic NAME KEY WORDS
compare_statistic() {
    local driver simulator
    driver=$(statistic driver "$1" "$2") simulator=$(statistic simulator "$1" "$2")
    [ "$driver" = "$simulator" ] || report_difference "$1: $3 $driver on the driver, $simulator on the simulator"
}

compare_memory() {
    compare_statistic "$1" oom_at "memory runs out at event (-1: never)"
    compare_statistic "$1" events "replayed events:"
    compare_statistic "$1" peak_requested "peak of the requested bytes"
    compare_statistic "$1" peak_allocated "peak of the allocated bytes"
    compare_statistic "$1" peak_active "peak of the active bytes"
    compare_statistic "$1" peak_reserved "peak of the reserved bytes"
}

# Prints the driver calls whose counts differ: NAME, call, count on the driver, count on the simulator.
calls_that_differ() {
    awk -v OFS='\t' -v name="$1" '
        !/^cu/ { next }
        FNR == NR { driver[$1] = $2; next }
        driver[$1] != $2 { print name, $1, driver[$1], $2 }' \
        "$detail/$1.driver.statistics" "$detail/$1.simulator.statistics"
}

# Milliseconds in the driver, without the start and the end of the process, and without waits.  driver_ms SIDE NAME COLUMN
driver_ms() {
    awk -F'\t' -v column="$3" '
        $2 == "all" && $1 !~ /^(cuInit|cuDevice|cuStreamCreate|cuStreamDestroy)|Synchronize$/ { sum += $column }
        END { printf "%.1f", sum / 1e6 }' "$detail/$2.$1.tsv"
}

# Whether the driver has a virtual clock, so that the measured times are those of a simulator.
is_simulated() {
    awk -F'\t' '$2 == "all" && $8 != "-" { found = 1 } END { exit !found }' "$detail/$1.driver.tsv"
}

# A table of the driver's calls: measured on the driver, modeled on the simulator.  calls_table NAME...
calls_table() {
    local name files=()
    for name; do
        files+=("$detail/$name.driver.tsv" "$detail/$name.simulator.tsv")
    done
    echo "| call | calls | measured, ms | per call, us | median, us | p99, us | $model, ms | measured / modeled |"
    echo "|---|---|---|---|---|---|---|---|"
    # Median and p99 are those of the replay with the most calls.
    awk -F'\t' '
        FNR == 1 { is_driver = FILENAME ~ /\.driver\.tsv$/; next }
        $2 != "all" { next }
        !($1 in seen) { seen[$1] = 1; order[++count] = $1 }
        is_driver {
            calls[$1] += $3; total[$1] += $4
            if ($3 > max[$1]) { max[$1] = $3; median[$1] = $5; high[$1] = $6 }
        }
        !is_driver { model[$1] += $8 }
        END {
            for (i = 1; i <= count; i++) {
                name = order[i]
                if (calls[name] == 0 && model[name] == 0) continue
                printf "| `%s` | %.0f | %.2f | %.2f | %.2f | %.2f | %.2f | %s |\n", name, calls[name],
                    total[name] / 1e6, calls[name] ? total[name] / calls[name] / 1e3 : 0, median[name] / 1e3,
                    high[name] / 1e3, model[name] / 1e6,
                    model[name] ? sprintf("%.2f", total[name] / model[name]) : "-"
            }
        }' "${files[@]}"
}

# The table by size as raw data: call, bytes, calls, measured and modeled nanoseconds.  sizes_table NAME...
sizes_table() {
    local name files=()
    for name; do
        files+=("$detail/$name.driver.tsv" "$detail/$name.simulator.tsv")
    done
    printf 'call\tbytes\tcalls\tmeasured_ns\tmodeled_ns\n'
    awk -F'\t' '
        FNR == 1 { is_driver = FILENAME ~ /\.driver\.tsv$/; next }
        { key = $1 "\t" $2 }
        !(key in seen) { seen[key] = 1; order[++count] = key }
        is_driver { calls[key] += $3; total[key] += $4 }
        !is_driver { model[key] += $8 }
        END {
            for (i = 1; i <= count; i++)
                printf "%s\t%.0f\t%.0f\t%.0f\n", order[i], calls[order[i]], total[order[i]], model[order[i]]
        }' "${files[@]}"
}

# Bytes as GiB.
gib() { awk -v bytes="$1" 'BEGIN { printf "%.3f", bytes / 1073741824 }'; }
