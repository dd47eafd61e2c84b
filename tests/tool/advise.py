# SPDX-License-Identifier: MIT
"""`xseg advise` of a file as a user runs it: advise.py TOOL SOURCE_ROOT."""
import json
import os
import pathlib
import pickle
import re
import signal
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(sys.argv[2]) / "tests/support"))
from advise_case import BASE, IS_SANITIZED, AdviseTest, ends_short, entry  # pylint: disable=wrong-import-position
from folder_case import MIB, ROOT, SNAPSHOTS, TOOL  # pylint: disable=wrong-import-position

PYTORCH = {"expandable_segments", "large_segment_size_mb", "max_split_size_mb", "roundup_power2_divisions",
           "graph_capture_record_stream_reuse"}
CLASSIC = "c expandable_segments:False\n"


def trace(*lines):
    return "".join(" ".join(map(str, line)) + "\n" for line in lines)


def growing():
    """Batches that grow: a freed segment is always a little too small for the next."""
    lines, number = [], 0
    for step in range(12):
        for _ in range(3):
            number += 1
            lines.append(("a", number, (800 + 20 * step) * MIB, 0))
        lines += [("f", number - block) for block in range(3)]
    return CLASSIC + trace(*lines)


def uneven():
    """Blocks of almost one size, each of which leaves a hole between blocks that stay."""
    lines, number, live = [], 0, []
    for step in range(12):
        for place in range(8):
            if step > 0:
                lines.append(("f", live[place]))
            number += 2
            lines.append(("a", number - 1, 17 * MIB // 4 + step * 64 * 1024, 0))
            lines.append(("a", number, 6 * MIB, 0))
            live[place:place + 1] = [number - 1]
    return "c expandable_segments:True\n" + trace(*lines)


def phases():
    """20 s of work on one stream, then 20 s on another."""
    lines, number = [], 0
    for stream in (1, 2, 3):
        for moment in range(20):
            lines.append(("@", (stream * 20 + moment) * 1_000_000))
            number += 1
            lines.append(("a", number, 200 * MIB, stream))
            lines.append(("f", number))
    return "c expandable_segments:True\n" + trace(*lines)


def costly():
    """Pieces that only expandable segments put together, and a large block that is mapped anew again and again."""
    lines = [("a", number, 40 * MIB, 0) for number in range(1, 11)] + [("f", number) for number in range(1, 11)]
    lines += [("a", number, 24 * MIB, 0) for number in range(11, 21)]
    for number in range(21, 81):
        lines += [("a", number, 600 * MIB, 0), ("f", number), ("e",)]
    return CLASSIC + trace(*lines)


def full():
    return trace(*[("a", number, 40 * MIB, 0) for number in range(1, 31)])


def squeezed():
    """Expandable segments reserve more with room, where caches stay, and less on a small device, where these go back."""
    sizes = {2: 65, 7: 64, 10: 33, 11: 46, 12: 45, 13: 54, 15: 48, 16: 36, 17: 50, 19: 59, 22: 65}
    lines = [("a", number, size * MIB, int(number in (2, 10, 12, 13, 22))) for number, size in sizes.items()]
    for number, place in ((11, 9), (7, 2), (2, 1)):
        lines.insert(place, ("f", number))
    return "c expandable_segments:True\n" + trace(*lines)


def tape(name, count=None):
    """The first lines of a tape, up to a whole step."""
    path = ROOT / f"tests/data/tapes/{name}.tape.zst"
    lines = subprocess.run(["zstd", "-dcq", path], capture_output=True, check=True).stdout.splitlines(keepends=True)
    while count is not None and lines[count][:1] not in b"af":
        count += 1
    return b"".join(lines[:count])


def keys_of(config):
    return set(re.findall(r"(?:^|,)\s*([a-z_0-9]+)\s*:", re.sub(r"\[[^]]*\]", "", config)))


class Planted(AdviseTest):
    def test_expandable_segments_help_growing_blocks(self):
        found = self.advice(self.file(growing()))
        self.assertEqual(found["advised"]["config"], "expandable_segments:True")
        self.assertLess(found["advised"]["peak_reserved"], found["current"]["peak_reserved"] // 2)
        self.assertIn("segments that grow in place", found["why"])
        self.assertNotIn("expandable_segments:True", found["runner_up"]["config"])
        self.assertGreaterEqual(found["replayed"], 50)

    def test_rounding_helps_slightly_different_sizes(self):
        found = self.advice(self.file(uneven()))
        self.assertRegex(found["advised"]["config"], r"roundup_power2_divisions:\S+$")
        self.assertLess(found["advised"]["peak_reserved"], found["current"]["peak_reserved"] * 3 // 4)
        self.assertIn("requests of similar sizes are rounded to one size", found["why"])

    def test_idle_memory_that_another_stream_needs(self):
        found = self.advice(self.file(phases()))
        self.assertRegex(found["advised"]["config"], r"^expandable_segments:True,idle_ms:\d+$")
        self.assertIn("idle memory is released before another stream or pool grows", found["why"])
        self.assertTrue(found["why"].endswith("; the smallest device stays at 202.00 MiB"), found["why"])

    def test_value_with_a_cost_is_not_advised(self):
        config = "c garbage_collection_threshold:0.9 ,roundup_power2_divisions:[64:2,>:2] , expandable_segments:True\n"
        found = self.advice(self.file(config + full()))
        self.assertEqual(found["advised"]["config"], "garbage_collection_threshold:0.9,expandable_segments:True")
        self.assertIn("its current value prevents the reuse of memory", found["why"])

    def test_key_that_saves_time_only_is_no_reason(self):
        """Expandable segments alone take too much of the driver's time here, and another key helps that."""
        path = self.file(costly())
        found = self.advice(path)
        self.assertGreater(self.replayed(path, "expandable_segments:True")["driver_us"],
                           found["current"]["driver_us"] + 100_000)
        self.assertLess(found["advised"]["driver_us"], found["current"]["driver_us"] + 100_000)
        self.assertEqual(found["advised"]["changes"], 2)
        self.assertIn("mostly because of expandable_segments: segments that grow", found["why"])

    def test_nothing_helps(self):
        path = self.file(full())
        found = self.advice(path)
        self.assertIsNone(found["advised"])
        self.assertIsNone(found["runner_up"])
        self.assertIsNone(found["out_of_memory"])
        self.assertIn("at its peak, the program requests 1.17 GiB", found["why"])
        self.assertIn("\nno configuration helps\n", self.tool("advise", path).stdout)

    def test_a_lower_peak_that_needs_a_larger_device(self):
        path = self.file(squeezed())
        found = self.advice(path)
        self.assertIsNone(found["advised"])
        self.assertIn(" and without a larger device; ", found["why"])
        other = self.replayed(path, "expandable_segments:False", "--min-device")
        self.assertLess(other["peak_reserved"], 0.99 * found["current"]["peak_reserved"])
        self.assertGreater(other["min_device"], 1.01 * found["current"]["min_device"])

    @unittest.skipIf(IS_SANITIZED, "shown without sanitizers")
    def test_a_runner_up_that_needs_a_larger_device(self):
        path = self.file(tape("classic-maxsplit", 150))
        text = self.tool("advise", path).stdout
        self.assertIn("\nrunner-up      none: other strings lower the peak, but need a larger device\n", text)
        force = self.replayed(path, "expandable_segments:False,max_split_size_mb:24", "--min-device")
        other = self.replayed(path, "expandable_segments:True", "--min-device")
        self.assertLess(other["peak_reserved"], 0.99 * force["peak_reserved"])
        self.assertGreater(other["min_device"], 1.01 * force["min_device"])

    @unittest.skipIf(IS_SANITIZED, "shown without sanitizers")
    def test_caches_that_fill_the_device(self):
        """The peaks that are told are those on a device with room, by which strings are compared."""
        path = self.file(re.sub(rb"(?m)^d \d+$", b"d 80", tape("expandable-small")))
        text = self.tool("advise", path).stdout
        string = re.search(r"^set +(\S+)$", text, re.MULTILINE)[1]
        peaks = [self.replayed(path, config, "--device-memory=80GiB")["peak_reserved"] / MIB
                 for config in ("expandable_segments:True", string)]
        self.assertIn(f"on a device of 80.00 GiB, the peak falls from {peaks[0]:.2f} MiB to {peaks[1]:.2f} MiB, since ", text)

    def test_keys_unknown_to_pytorch_are_omitted_from_its_string(self):
        path = self.file("c history:state,page_size:small,max_split_size_mb:64\n" + full())
        found = self.advice(path, "--pytorch")
        self.assertEqual((found["omitted"], found["current"]["config"]),
                         ("history:state,page_size:small", "max_split_size_mb:64,expandable_segments:False"))
        self.assertRegex(self.tool("advise", "--pytorch", path).stdout, r"\nomitted +history:state,page_size:small\n")
        self.assertIsNone(self.advice(path)["omitted"])

    def test_only_keys_that_pytorch_knows(self):
        path = SNAPSHOTS / "ring.pickle.zst"
        found = self.advice(path)
        self.assertIn("page_size", keys_of(found["advised"]["config"]))
        found = self.advice(path, "--pytorch")
        for name in ("advised", "runner_up"):
            if found[name]:
                self.assertLessEqual(keys_of(found[name]["config"]), PYTORCH)


class OutOfMemory(AdviseTest):
    def test_completing_configuration_is_advised(self):
        path = self.file(ends_short(100 * MIB))
        found = self.advice(path)
        short = found["out_of_memory"]
        self.assertEqual((short["device_bytes"], short["failed"], short["completes"]), (450 * MIB, 1, True))
        self.assertEqual(short["least_change"], "expandable_segments:True")
        self.assertFalse(found["current"]["completes"])
        self.assertTrue(found["why"].startswith("the program completes on 450.00 MiB, "), found["why"])
        text = self.tool("advise", path).stdout
        self.assertIn("1 request failed in the file; the program completes on 450.00 MiB with the advised string\n", text)
        self.assertRegex(text, r"least change +the advised string; or, with the current string, "
                               r"a device of 50\d\.00 MiB \(5\d\.00 MiB more\)\n")

    def test_impossible_request_is_reported(self):
        path = self.file(ends_short(300 * MIB))
        found = self.advice(path)
        short = found["out_of_memory"]
        self.assertEqual((short["completes"], short["least_change"]), (False, None))
        self.assertLess(540 * MIB, found["advised"]["device_needed"] + 2 * MIB)
        self.assertLess(found["advised"]["device_needed"], found["current"]["device_needed"])
        text = self.tool("advise", path).stdout
        self.assertRegex(text, r"the program completes on 450\.00 MiB with none of \d+ configurations\n")
        self.assertRegex(text, r"least change +a device of 5\d\d\.00 MiB \(\d+\.00 MiB more\) with the advised string; with the "
                               r"current string, a device of 7\d\d\.00 MiB \(2\d\d\.00 MiB more\)\n")

    def test_a_smaller_device(self):
        path = self.file(growing())
        found = self.advice(path, "--device-memory=3100MiB")
        self.assertEqual((found["device_bytes"], found["out_of_memory"]), (80 << 30, None))
        found = self.advice(path, "--device-memory=2000MiB")
        short = found["out_of_memory"]
        self.assertEqual((short["device_bytes"], short["failed"], short["completes"]), (2000 * MIB, 0, False))
        found = self.advice(self.file(uneven(), "uneven"), "--device-memory=800MiB")
        self.assertFalse(found["current"]["completes"])
        self.assertTrue(found["out_of_memory"]["completes"])

    def test_a_larger_device(self):
        found = self.advice(self.file("a 1 96636764160 0\nf 1\n"), "--device-memory=100GiB")
        self.assertEqual((found["device_bytes"], found["out_of_memory"]), (100 << 30, None))
        self.assertEqual(found["current"]["peak_reserved"], 90 << 30)

    def test_a_tape_that_ran_short(self):
        """What it has as its device is what it is replayed on, and to complete on."""
        path = self.file(tape("tight-classic", 1200))
        found = json.loads(self.tool("advise", "--json", path).stdout)
        short = found["out_of_memory"]
        self.assertEqual((found["device_bytes"], short["device_bytes"]), (950 * MIB, 950 * MIB))
        self.assertEqual((short["failed"], short["completes"]), (1, True))
        self.holds(path, found["advised"])
        self.completes_as_told(path, found)

    def test_advise_writes_no_snapshot(self):
        path = self.file(ends_short(300 * MIB))
        folder = self.folder / "oom"
        folder.mkdir()
        self.tool("advise", path, environment={"XSEG_OOM_SNAPSHOT": str(folder)})
        self.assertEqual(list(folder.iterdir()), [])


class Report(AdviseTest):
    def test_text(self):
        path = self.file(growing())
        text = self.tool("advise", path).stdout
        lines = text.splitlines()
        self.assertEqual(lines[0], str(path))
        self.assertEqual(lines[1].split(), ["set", "expandable_segments:True"])
        columns = {line.split(None, 1)[0]: line.split(None, 1)[1] for line in lines[1:] if line and line[0] != " "}
        strings = [columns["current"], columns["set"], columns["runner-up"]]
        for at, string in enumerate(strings):
            replay = self.tool("replay", "--min-device", "--config", string, path).stdout
            for row in ("peak reserved", "smallest device", "driver time, modeled"):
                figure = re.search(rf"^  {row} +(.*)$", replay, re.MULTILINE)[1]
                told = re.search(rf"^  {row} +(.*)$", text, re.MULTILINE)[1]
                self.assertEqual(re.split(r"  +", told)[at], figure, (row, string))

    def test_headroom_is_in_text_and_json(self):
        """3 GiB are allocated at most and 1 GiB at the end, and the classic segment of 2 GiB stays."""
        path = self.file(CLASSIC + trace(("a", 1, 1024 * MIB, 0), ("a", 2, 2048 * MIB, 0), ("f", 2)))
        found = self.advice(path)
        self.assertEqual(found["current"]["headroom"], {"e": 0, "c": 2048 * MIB, "peak_e": 0, "peak_c": 0})
        self.assertEqual((found["transient_peak"], found["engine_margin"]), (2048 * MIB, 1536 * MIB))
        text = self.tool("advise", path).stdout
        for row, cell in (("headroom: e", "0.000"), ("headroom: c", "2.00 GiB"), ("peak headroom: e", "0.000"), ("peak headroom: c", "0 bytes")):
            self.assertRegex(text, rf"(?m)^  {row} +{cell}$")
        self.assertIn("\nengines keep   1.50 GiB today: 0.75 x the transient peak of 2.00 GiB, at least 1.00 GiB\n", text)
        small = self.advice(self.file(CLASSIC + trace(("a", 1, 4 * MIB, 0), ("f", 1)), "small"))
        self.assertEqual((small["transient_peak"], small["engine_margin"]), (4 * MIB, 1024 * MIB))

    def test_output_is_repeatable(self):
        path = self.file(growing())
        alone = self.tool("advise", path, preexec_fn=lambda: os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}))
        self.assertEqual(self.tool("advise", path).stdout, alone.stdout)

    def test_standard_input(self):
        done = self.tool("advise", "-", given=b"xtrace 1\n" + full().encode())
        self.assertTrue(done.stdout.startswith("standard input\nno configuration helps\n"), done.stdout)

    def test_progress_on_a_terminal(self):
        path = self.file(full())
        with open(self.folder / "out", "wb") as out:
            drawn = self.on_terminal("advise", path, stream="stderr", stdout=out)
        self.assertIn(b"no configuration helps", (self.folder / "out").read_bytes())
        self.assertRegex(drawn, rb"\r\[#* *\] \d+ configurations, ")
        self.assertTrue(drawn.endswith(b"\r\x1b[K"), drawn[-80:])

    def test_names_are_untrusted(self):
        path = self.file(full(), "a\x1b\n")
        for options in ((), ("--json",)):
            text = self.tool("advise", *options, path).stdout
            self.assertTrue(all(byte == "\n" or " " <= byte <= "~" for byte in text), text)


class Incomplete(AdviseTest):
    """Files that do not show what the program took: the advice says so, with the bytes, and is not certain."""

    def test_state_without_its_history_gives_no_advice(self):
        whole = ends_short(300 * MIB)
        state = {**whole, "device_traces": [[entry("free_completed", BASE + (1 << 40), 5 * MIB)]]}
        for segment in state["segments"]:
            segment["blocks"] = [{"address": segment["address"], "size": MIB, "requested_size": MIB, "state": "active_allocated", "frames": []},
                                 {"address": segment["address"] + MIB, "size": 39 * MIB, "requested_size": 0, "state": "inactive", "frames": []}]
        path = self.file(state)
        found = self.advice(path)
        self.assertFalse(found["certain"])
        self.assertRegex(found["notes"][0], r"^history: it does not show 370.00 MiB of the 400.00 MiB that are reserved at its end, since a replay "
                                            r"with the file's configuration ends with 30.00 MiB: peaks are too low, and the effect of a")
        self.assertRegex(found["why"], "^as far as the recording shows, ")
        text = self.tool("advise", path).stdout
        self.assertNotIn("no configuration helps", text)
        self.assertIn("\nthe file does not show whether a configuration helps\n" if found["advised"] is None else "\ntry            ", text)
        self.assertIn("\nnote           history: it does not show 370.00 MiB", text)
        self.assertIn("\nout of memory  as far as the recording shows, " if found["out_of_memory"] else "\ncurrent", text)

    def test_a_whole_history_is_certain(self):
        found = self.advice(self.file(ends_short(50 * MIB)))
        self.assertEqual((found["certain"], found["notes"]), (True, []))

    def test_the_kind_of_segments_is_inferred_where_the_settings_are_missing(self):
        whole = ends_short(50 * MIB)
        known = self.advice(self.file(whole))
        del whole["allocator_settings"]
        for segment in whole["segments"]:
            del segment["is_expandable"]
        found = self.advice(self.file(whole))
        self.assertEqual([found[name] for name in ("current", "advised", "runner_up")], [known[name] for name in ("current", "advised", "runner_up")])
        self.assertEqual(found["notes"], ["configuration: the file has no setting expandable_segments; inferred from its segments: "
                                          "expandable_segments:False"])
        self.assertTrue(found["certain"])


class BadInput(AdviseTest):
    def refused(self, words, *arguments, **more):
        done = self.tool("advise", *arguments, status=2, **more)
        self.assertEqual(done.stdout, "")
        self.assertIn(words, done.stderr)
        return done.stderr

    def test_files(self):
        data = pickle.dumps(ends_short(MIB), 4)
        self.refused("it is a text file that begins with 'no trace'", self.file(b"no trace\n"))
        self.refused("is truncated", self.file(data[:-100]))
        self.refused("a dictionary without `segments`", self.file({"a": 1}))
        self.refused("cannot be opened", self.folder / "absent")
        empty = self.folder / "empty"
        empty.mkdir()
        self.refused("no snapshot in this folder", empty)
        self.refused("needs a file")
        self.refused("--device selects a history", "--device", 0, self.file(full()))

    def test_no_history(self):
        said = self.refused("torch.cuda.memory._record_memory_history()", self.file(ends_short(MIB, history=False)))
        self.assertIn("no history was recorded", said)

    def test_a_configuration_with_an_error(self):
        self.refused("did you mean expandable_segments?", self.file("c expandable_segment:True\n" + full()))

    def test_output_that_cannot_be_written(self):
        with open("/dev/full", "wb") as disk:
            done = self.tool("advise", self.file(full()), status=2, stdout=disk)
        self.assertIn("No space left on device", done.stderr)


def child_of(process):
    """A child of a process that runs; None: it has ended."""
    while process.poll() is None:
        for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
            try:
                state, parent = path.read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()[:2]
            except OSError:  # ended meanwhile
                continue
            if int(parent) == process.pid and state != "Z":
                return int(path.parent.name)
    return None


class Ended(AdviseTest):
    def test_killed_process_is_reported(self):
        path = self.file("".join(f"a {i} 512 0\nf {i}\n" for i in range(300_000)))
        for _ in range(20):  # until a child is met before it is done
            with subprocess.Popen([TOOL, "advise", path], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as tool:
                child = child_of(tool)
                if child is not None:
                    os.kill(child, signal.SIGKILL)
                out, error = tool.communicate()
            if tool.returncode != 0:
                break
        self.assertEqual((tool.returncode, out), (2, b""))
        self.assertIn(b"was killed, for example because the host ran out of memory\n", error)


class Recorded(AdviseTest):
    @unittest.skipIf(IS_SANITIZED, "shown without sanitizers")
    def test_snapshots_that_pytorch_has_written(self):
        """tests/data/snapshots: `classic` asks once for 4 TiB, which no configuration serves on 80 GiB."""
        short = self.advice(SNAPSHOTS / "short.pickle.zst")
        large = json.loads(self.tool("advise", "--json", SNAPSHOTS / "classic.pickle.zst").stdout)
        for found, completes in ((short, True), (large, False)):
            self.assertLess(found["advised"]["peak_reserved"], found["current"]["peak_reserved"])
            self.assertEqual((found["out_of_memory"]["failed"], found["out_of_memory"]["completes"]), (1, completes))
        self.assertGreater(large["advised"]["device_needed"], 1 << 42)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
