# SPDX-License-Identifier: MIT
"""Computes the results of docs/measurements.md: traces under memory pressure, on xseg and on PyTorch's allocator.

shortage.py TOOL [TRACE...]          smallest device, and driver time on PyTorch's smallest device
shortage.py TOOL --bounds            lower and upper bound of the smallest device with pages of 2 MiB
shortage.py TOOL --stranded          stranded memory at the first out-of-memory error, the cost of smaller pages before it,
                                     and the minimum driver time
shortage.py TOOL --fresh MAKER [N]   N (200) new random traces, on which xseg must serve what PyTorch serves; run manually

TOOL is the tool of a release build.  MAKER creates tapes, as for tests/support/compare_with_pytorch.py.
"""
import collections
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

import stranded

TRACES = pathlib.Path(__file__).parent / "traces"
MIB = 1 << 20
MODES = (("expandable", "expandable_segments:True"),
         ("page_size:small", "expandable_segments:True,page_size:small"),
         ("page_size:auto", "expandable_segments:True,page_size:auto"),
         ("classic", "expandable_segments:False"))
# Targets: smallest device / peak of requested bytes, and driver time / PyTorch's driver time.
TARGETS = {"decode_graphs": (None, 0.5), "gpt2_train": (1.005, 1), "llama_finetune": (1.008, 0.5),
        "llama_serve": (1.012, 1), "moe_train": (1.015, 1), "prefetch_train": (1.012, 0.5),
        "resnet_multiscale": (1.005, 1), "rl_ppo": (1.005, 1), "sd_unet": (1.005, 0.5)}
# Microseconds of the preset a100 (vmm/sim/cost.c).  Create and access depend on the page size in MiB.
COSTS = {"reserve": 2, "address_free": 1, "create_2": 7.3, "create_20": 10, "map": 2,
         "access_2": 38.6, "access_20": 62, "unmap": 34, "release": 23, "event_create": 1,
         "event_record": 0.3, "event_query": 0.2, "synchronize": 5}
# Random traces under memory pressure: kind, device memory in MiB, configuration.
FRESH = (("m", 950, ""), ("mx", 1350, ""),
         ("bx", 81920, "per_process_memory_fraction:0.1,garbage_collection_threshold:0.3,"
                       "max_split_size_mb:100"),
         ("m", 940, "expandable_segments:True"), ("mx", 900, "expandable_segments:True"),
         ("mx", 81920, "expandable_segments:True,per_process_memory_fraction:0.011"),
         ("b", 14000, "expandable_segments:True"), ("mgx", 2000, "expandable_segments:True"))


def replay(tool, name, config, *options):
    """Replay a trace; returns the JSON of the tool."""
    result = subprocess.run([tool, "replay", "--json", "--config", config, *options,
                             TRACES / f"{name}.xtrace.zst"], stdout=subprocess.PIPE, check=False)
    if not result.stdout:
        sys.exit(f"shortage.py: replay failed, status {result.returncode}: {name}, {config}")
    return json.loads(result.stdout)


def mark(value, target):
    """A value, with a star if it misses its target."""
    return f"{value:.4f}" + ("*" if target is not None and value > target + 0.00005 else " ")


def print_smallest(tool, reference):
    """Print the smallest devices of all modes, relative to the peak of requested bytes."""
    print("smallest device / peak requested (found by replays; * misses the target)\n"
          f"{'trace':18}{'target':>8}" + "".join(f"{mode:>14}{'PyTorch':>9}" for mode, _ in MODES))
    missed = []
    for name in sorted(reference):
        cells = ""
        for mode, config in MODES:
            run = replay(tool, name, config, "--min-device")
            pytorch = reference[name]["classic" if mode == "classic" else "expandable"]
            target = TARGETS[name][0] if mode != "classic" else None
            xseg = run["min_device"] / run["peak_requested"]
            if mode == MODES[0][0] and target is not None and xseg > target + 0.00005:
                missed.append((name, run["peak_requested"]))
            cells += f"{mark(xseg, target or pytorch['min_device_mib'] * MIB / run['peak_requested']):>14}"
            cells += f"{pytorch['min_device_mib'] * MIB / pytorch['peak_requested']:>9.4f}"
        print(f"{name:18}{TARGETS[name][0] or '':>8}{cells}", flush=True)
    print_failures(tool, missed)


def print_failures(tool, missed):
    """Print why the traces fail on a device of the target size, from the error message."""
    print("\nout-of-memory errors on the target device, for traces that miss the target")
    for name, peak in missed:
        device = target_device(name, peak)
        message = subprocess.run([tool, "replay", "--config", MODES[0][1], "--device-memory",
                                  f"{device}MiB", TRACES / f"{name}.xtrace.zst"], check=False, text=True,
                                 stdout=subprocess.DEVNULL, stderr=subprocess.PIPE).stderr
        matches = [re.search("([0-9.]+ MiB)" + words, message) for words in
                   (" requested", " of [0-9.]+ MiB free", " fragmented")]
        requested, free, fragmented = (match[1] if match else "nothing" for match in matches)
        print(f"{name:18}{device:>7} MiB: {requested} requested, {free} free, {fragmented} fragmented",
              flush=True)


def driver_time(calls):
    """The modeled time of PyTorch's driver calls in microseconds."""
    return sum(COSTS[call] * count for call, count in calls.items() if call in COSTS)


def target_device(name, peak):
    """The memory of the target device in MiB."""
    return int(TARGETS[name][0] * peak) // (2 * MIB) * 2


def print_driver_time(tool, reference, tight):
    """Print the driver time on PyTorch's smallest device, and on a large device."""
    print("\ndriver time on PyTorch's smallest expandable device, ms (MODELED for both: preset a100)\n"
          f"{'trace':18}{'device MiB':>11}{'PyTorch':>9}{'xseg':>8}{'ratio':>9}{'target':>7}"
          f"{'small pages':>13}{'large device':>13}{'of it: queries, growth':>29}")
    for name in sorted(reference):
        pytorch = driver_time(tight[name])
        device = tight[name]["device_mib"]
        xseg = replay(tool, name, MODES[0][1], "--device-memory", f"{device}MiB")
        small = replay(tool, name, MODES[1][1], "--device-memory", f"{device}MiB")
        large = replay(tool, name, MODES[0][1])
        queries = large["driver_calls"].get("cuEventQuery", 0) * COSTS["event_query"]
        released = large["driver_calls"].get("cuMemRelease", 0) * (34 + 23)
        if xseg["oom_at"] >= 0:
            sys.exit(f"shortage.py: {name} runs out of memory on {device} MiB")
        print(f"{name:18}{device:>11}{pytorch / 1000:>9.1f}{xseg['driver_us'] / 1000:>8.1f}"
              f"{mark(xseg['driver_us'] / pytorch, TARGETS[name][1]):>9}{TARGETS[name][1]:>6}"
              f"{small['driver_us'] / 1000:>13.1f}{large['driver_us'] / 1000:>13.1f}"
              f"{queries / 1000:>14.1f}{(large['driver_us'] - queries - released) / 1000:>15.1f}",
              flush=True)


def lines_of(name):
    """The lines of a trace."""
    return subprocess.run(["zstd", "-dc", TRACES / f"{name}.xtrace.zst"], stdout=subprocess.PIPE,
                          check=True).stdout.decode().splitlines()


def allocation_sizes(name):
    """The sizes of allocations of a trace, and the negative sizes of frees."""
    blocks = {}
    for line in lines_of(name):
        if line.startswith("a "):
            fields = line.split()
            blocks[fields[1]] = int(fields[2])
            yield int(fields[2])
        elif line.startswith("f "):
            yield -blocks.pop(line.split()[1])


def print_bounds(reference):
    """Print bounds of the smallest device.  Lower bound: allocated bytes in units of 512 bytes, small blocks on separate pages.
    Upper bound: no two blocks share a page."""
    print(f"{'trace':18}{'lower':>9}{'no page shared':>16}   (relative to the peak of requested bytes)")
    for name in sorted(reference):
        small = large = unshared = 0
        lower = upper = requested = peak = 0
        for change in allocation_sizes(name):
            size, sign = abs(change), 1 if change > 0 else -1
            rounded = -(-size // 512) * 512
            requested += change
            peak = max(peak, requested)
            if rounded <= MIB:
                small += sign * rounded
            else:
                large += sign * rounded
                unshared += sign * (-(-rounded // (2 * MIB)) * 2 * MIB)
            pages = -(-small // (2 * MIB)) * 2 * MIB
            lower = max(lower, -(-(small + large) // (2 * MIB)) * 2 * MIB)
            upper = max(upper, pages + unshared)
        print(f"{name:18}{lower / peak:>9.4f}{upper / peak:>16.4f}", flush=True)


def cheapest_page_size(model, missing):
    """The size of smaller pages that save the missing bytes with the least additional driver time, if random pages are smaller;
    returns milliseconds and MiB."""
    def extra_us(mib):
        return 20 / mib * (7 + 0.15 * mib + COSTS["map"] + 36 + 1.3 * mib) - 74

    options = [(extra_us(mib) * model.created[model.page] * missing / reusable / 1000, mib)
               for mib in (10, 4, 2) if (reusable := model.reusable_bytes(mib * MIB)) >= missing]
    return min(options) if options else (float("inf"), 2)


def print_stranded(tool, reference, tight):
    """Print the pages at the first out-of-memory error on the target device, for traces that miss the target."""
    print("at the first out-of-memory error on the target device; up to it, the placement is PyTorch's\n"
          f"{'trace':16}{'event':>8}{'last miss':>11}{'stranded MiB':>14}{'pages':>7}{'by hits':>9}"
          f"{'idle at a miss':>16}{'used when mapped':>19}{'needs MiB':>11}{'has':>7}"
          f"{'smaller pages':>23}{'left':>9}")
    for name in ("gpt2_train", "llama_finetune", "moe_train", "rl_ppo"):
        device = target_device(name, reference[name]["expandable"]["peak_requested"])
        model = stranded.Model(device * MIB)
        remaining = model.play(lines_of(name))
        granules_by_page = model.stranded(model.large_blocks().values())
        mib = {page: len(granules) * 2 for page, granules in granules_by_page.items()}
        hits = sum(mib[page] for page in mib if model.pages.first_use_was_hit[page])
        idle = sum(mib[page] for page in mib if model.pages.max_use_while_idle.get(page, 0) > 0.5)
        used = statistics.median(model.pages.used_when_mapped[page] for page in mib)
        needs = max(device * MIB + model.missing_bytes(), model.min_remaining_peak(remaining)) / MIB
        cost, size = cheapest_page_size(model, (needs - device) * MIB) if needs > device else (0, 0)
        xseg = replay(tool, name, MODES[0][1], "--device-memory", f"{tight[name]['device_mib']}MiB")
        margin_ms = (TARGETS[name][1] * driver_time(tight[name]) - xseg["driver_us"]) / 1000
        print(f"{name:16}{model.events:>8}{model.last_miss:>11}{sum(mib.values()):>14}{len(mib):>7}"
              f"{hits:>9}{idle:>16}{used:>19.0%}{needs:>11.0f}{device:>7}"
              f"{f'{cost:.0f} ms, {size} MiB' if cost else '':>23}{margin_ms:>6.1f} ms", flush=True)
    print("idle at a miss: while more than half of the device was in use.  needs: minimum of all placements after "
          "the error.\nsmaller pages: mean additional driver time if random pages are smaller, so that "
          "the memory is sufficient.\nleft: driver time on PyTorch's smallest device up to the target")


def print_min_driver_time(reference, tight):
    """Print the minimum driver time of PyTorch's reserved bytes on its smallest device up to the first out-of-memory error."""
    print("\nminimum driver time of the reserved bytes up to the first out-of-memory error, on PyTorch's smallest device, ms\n"
          f"{'trace':18}{'PyTorch':>9}{'minimum':>9}{'ratio':>8}{'target':>7}{'pages of 20 MiB':>17}"
          f"{'of 2 MiB':>10}{'released':>12}")
    for name in sorted(set(reference) - {"prefetch_train"}):  # the model does not support uses on other streams
        model = stranded.Model(tight[name]["device_mib"] * MIB)
        model.play(lines_of(name))
        minimum, pytorch = model.min_driver_time(COSTS), driver_time(tight[name])
        print(f"{name:18}{pytorch / 1000:>9.1f}{minimum / 1000:>9.1f}{minimum / pytorch:>8.3f}"
              f"{TARGETS[name][1]:>6}{model.created[20 * MIB]:>17}{model.created[2 * MIB]:>10}"
              f"{sum(model.released.values()):>12}", flush=True)


def check_fresh(tool, maker, count):
    """Replay new random traces under memory pressure, and print requests that fail although PyTorch served them."""
    failed, first = collections.Counter(), 0
    denied = served = 0
    with tempfile.TemporaryDirectory() as folder:
        for i in range(count):
            kind, mib, config = FRESH[i % len(FRESH)]
            seed = 1000 * (i // len(FRESH) + 1) + i % len(FRESH) + 1
            tape = pathlib.Path(folder, "fresh.tape")
            environment = dict(os.environ, FAKECUDA_MEM_MB=str(mib),
                               PYTORCH_CUDA_ALLOC_CONF=config)
            tape.write_bytes(subprocess.run([maker, "tape", str(seed), "3000", kind], env=environment, check=True,
                                            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout)
            replayed = subprocess.run([tool, "replay", "--check=success", tape], check=False,
                                      stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            if replayed.returncode != 0:
                failed[kind, mib, config] += 1
                print(f"seed {seed}, {kind}, {mib} MiB, '{config}': "
                      f"{replayed.stderr.decode().strip()[:400]}", flush=True)
            elif b"the first request that succeeds only in xseg" in replayed.stdout:
                first += 1
            if match := re.search(rb"served here +([0-9,]+) of ([0-9,]+)", replayed.stdout):
                served += int(match[1].replace(b",", b""))
                denied += int(match[2].replace(b",", b""))
    print(f"{count - sum(failed.values())} of {count} traces: xseg serves all requests that PyTorch serves; "
          f"in {first} traces also requests that PyTorch denies\n"
          f"{served} of {denied} requests that PyTorch denies are served")
    for (kind, mib, config), number in failed.items():
        print(f"{number} failures: {kind}, {mib} MiB, '{config}'")


def main(arguments):
    reference = json.loads((TRACES / "reference.json").read_text())
    tight = json.loads((TRACES / "tight.json").read_text())
    tool = arguments[0]
    if arguments[1:2] == ["--bounds"]:
        print_bounds(reference)
    elif arguments[1:2] == ["--stranded"]:
        print_stranded(tool, reference, tight)
        print_min_driver_time(reference, tight)
    elif arguments[1:2] == ["--fresh"]:
        check_fresh(tool, arguments[2], int(arguments[3]) if len(arguments) > 3 else 200)
    else:
        selected = {name: reference[name] for name in arguments[1:] or reference}
        print_smallest(tool, selected)
        print_driver_time(tool, selected, tight)


if __name__ == "__main__":
    main(sys.argv[1:])
