# shellcheck shell=bash
# SPDX-License-Identifier: MIT
#
# For steps that replay a trace on the driver and on the simulator, and compare: to be sourced.
#
# Both go through libgpu-timed.so, which times the driver's calls and lets queued work end at once, and both have
# the same limit: four fifths of the memory that was free when the run began.  What comes out:
#
#   $GPU_OUT/detail/NAME.SIDE.json, .log    of the tool; SIDE is driver or simulator
#   $GPU_OUT/detail/NAME.SIDE.tsv           of libgpu-timed.so
#   $GPU_OUT/detail/NAME.SIDE.figures       the former as lines of key, tab, value
#   $GPU_OUT/detail/differs.md              what differs, a line each

detail=$GPU_OUT/detail
began=$SECONDS
limit_mib=$((GPU_FREE_MIB * 4 / 5))
mkdir -p "$detail"
: >"$detail/differs.md"

# The simulated device has as much memory as the card, in whole granules.
card_mib=$(sed -n 's/^total_mib	//p' "$GPU_OUT/../card.tsv" 2>/dev/null | head -n 1)
card_mib=$((${card_mib:-$GPU_FREE_MIB} / 2 * 2))

# What the model's times are: the card's own costs, if the step that measures them has been here.
costs=$(compgen -G "$GPU_OUT/../costs/*.costs" | head -n 1)
model="modelled by the preset a100"
[ -z "$costs" ] || model="modelled by ${costs##*/}"

[ "$limit_mib" -ge 64 ] || {
    echo "no memory to replay in: $GPU_FREE_MIB MiB are free on the device, if there is one"
    exit 77
}

# Seconds that are left, if the step is to take three quarters of its time.
seconds_left() { echo $((GPU_SECONDS * 3 / 4 - (SECONDS - began))); }

# replay SIDE NAME CONFIG FILE: the tool's exit status; 124 if its time was over
replay() {
    local out=$detail/$2.$1 variable status
    (
        export GPU_TIMED_DRIVER=$XSEG_DRIVER GPU_TIMED_OUT=$out.tsv GPU_TIMED_AT_ONCE=1
        if [ "$1" = simulator ]; then
            for variable in $(compgen -e XSEG_SIM_); do
                unset "$variable"
            done
            export GPU_TIMED_DRIVER=$GPU_SIMULATOR XSEG_SIM_MEMORY_MB=$card_mib
            [ -z "$costs" ] || export XSEG_SIM_COSTS=$costs
        fi
        timeout -k 2 $((GPU_SECONDS * 9 / 10 + 1 - (SECONDS - began))) "$GPU_ROOT/bin/xseg" replay --json \
            --driver "$GPU_ROOT/lib/libgpu-timed.so" --config "$3" "$4" >"$out.json" 2>"$out.log"
    )
    status=$?
    # One key a line, as the tool prints them.
    sed -n 's/^ *"\([A-Za-z0-9_]*\)": \([^{]*[^{,]\),\{0,1\}$/\1	\2/p' "$out.json" >"$out.figures"
    return "$status"
}

# figure SIDE NAME KEY
figure() { sed -n "s/^$3	//p" "$detail/$2.$1.figures" | head -n 1; }

# The last line that the tool said, without what every build with self-checks says.
said() { grep -v 'self-checks: ' "$detail/$2.$1.log" | tail -n 1 | grep . || echo "nothing was said"; }

differ() { echo "- $*" >>"$detail/differs.md"; }

# Whether a key's values are the same on both sides; if not, that is a difference.  same NAME KEY WORDS
same() {
    local here there
    here=$(figure driver "$1" "$2") there=$(figure simulator "$1" "$2")
    [ "$here" = "$there" ] || differ "$1: $3 $here on the driver, $there on the simulator"
}

same_memory() {
    same "$1" oom_at "memory runs out at event (-1: never)"
    same "$1" events "events that were replayed:"
    same "$1" peak_requested "peak of the requested bytes"
    same "$1" peak_allocated "peak of the allocated bytes"
    same "$1" peak_active "peak of the active bytes"
    same "$1" peak_reserved "peak of the reserved bytes"
}

# Driver calls by name, where they are not as many: NAME, call, on the driver, on the simulator.
calls_that_differ() {
    awk -v OFS='\t' -v name="$1" '
        !/^cu/ { next }
        FNR == NR { here[$1] = $2; next }
        here[$1] != $2 { print name, $1, here[$1], $2 }' \
        "$detail/$1.driver.figures" "$detail/$1.simulator.figures"
}

# Milliseconds in the driver, start and end of the process and waits aside.  driver_ms SIDE NAME COLUMN
driver_ms() {
    awk -F'\t' -v column="$3" '
        $2 == "all" && $1 !~ /^(cuInit|cuDevice|cuStreamCreate|cuStreamDestroy)|Synchronize$/ { sum += $column }
        END { printf "%.1f", sum / 1e6 }' "$detail/$2.$1.tsv"
}

# Whether the driver that is asked has a virtual clock: then what was measured is a simulator's own time.
is_simulated() {
    awk -F'\t' '$2 == "all" && $8 != "-" { found = 1 } END { exit !found }' "$detail/$1.driver.tsv"
}

# A table of the driver's calls: measured on the driver, modelled on the simulator.  calls_table NAME...
calls_table() {
    local name files=()
    for name; do
        files+=("$detail/$name.driver.tsv" "$detail/$name.simulator.tsv")
    done
    echo "| call | calls | measured, ms | a call, us | median, us | 99 of 100, us | $model, ms | measured / modelled |"
    echo "|---|---|---|---|---|---|---|---|"
    # Median and p99 are those of the replay that made the call most often.
    awk -F'\t' '
        FNR == 1 { is_driver = FILENAME ~ /\.driver\.tsv$/; next }
        $2 != "all" { next }
        !($1 in seen) { seen[$1] = 1; order[++count] = $1 }
        is_driver {
            calls[$1] += $3; total[$1] += $4
            if ($3 > most[$1]) { most[$1] = $3; median[$1] = $5; high[$1] = $6 }
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

# The same by size, raw: call, bytes, calls, measured and modelled nanoseconds.  sizes_table NAME...
sizes_table() {
    local name files=()
    for name; do
        files+=("$detail/$name.driver.tsv" "$detail/$name.simulator.tsv")
    done
    printf 'call\tbytes\tcalls\tmeasured_ns\tmodelled_ns\n'
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
