# SPDX-License-Identifier: MIT
"""Tests of `xseg top`: top.py TOOL PUBLISHER.

PUBLISHER is publisher.c, which publishes its statistics; the live screen is read through a pseudo-terminal.
"""
import fcntl
import json
import os
import pathlib
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import termios
import time
import unittest

from folder_case import MIB, ROOT, FolderCase

sys.path.insert(0, str(ROOT / "tests/support"))
import json_keys  # pylint: disable=wrong-import-position

PAGE = ROOT / "docs/top.md"

# The layout of src/base/published.h.
HEAD = struct.Struct("=8sIiQQQ")
FRAME = struct.Struct("=QII")
DEVICE = struct.Struct("=iI15Q")
POOL = struct.Struct("=iIII7Q72s")
DEVICES, POOLS = 32, 128
SIZE = HEAD.size + 2 * (FRAME.size + DEVICES * DEVICE.size + POOLS * POOL.size)


def top(*arguments, **options):
    return subprocess.run([TOOL, "top", *map(str, arguments)], capture_output=True, text=True, check=False,
                          stdin=subprocess.DEVNULL, **options)


def read_published(pid):
    """Returns the published statistics of a process: one entry per allocator."""
    completed = top("--once", "--json", "--pid", pid)
    if completed.returncode == 1:
        return []
    assert completed.returncode == 0 and completed.stderr == "", completed
    return json.loads(completed.stdout)["publishers"]


class Publisher:
    def __init__(self, *commands, config="publish:True", devices=1, command_prefix=(), program=None):
        self.process = subprocess.Popen([*command_prefix, program or PUBLISHER], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.DEVNULL, text=True,
                                        env={**os.environ, "XSEG_SIM_DEVICES": str(devices)})
        self.pid = self.process.pid
        for command in (f"open {config}", *commands):
            self.send(command)

    def send(self, command):
        """Executes a command of publisher.c, and returns its result."""
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        result = self.process.stdout.readline().split(None, 1)
        assert result and int(result[0]) >= 0, (command, result)
        return int(result[0])

    def terminate(self, signal_number=None):
        if signal_number is not None:
            self.process.send_signal(signal_number)
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


class TopTest(FolderCase):
    def publisher(self, *arguments, **options):
        publisher = Publisher(*arguments, **options)
        self.addCleanup(lambda: publisher.process.returncode is None and publisher.terminate(signal.SIGKILL))
        return publisher

    def budget_file(self):
        return self.folder / "budget"


class Report(TopTest):
    def test_report_has_devices_and_pools(self):
        publisher = self.publisher("alloc 0 40", "alloc 1 6", "pool kv 3", "fail 0", devices=2)
        (report,) = read_published(publisher.pid)
        self.assertEqual((report["pid"], report["command"]), (publisher.pid, "test-publisher"))
        first, second = report["devices"]
        self.assertEqual([first["device"], second["device"]], [0, 1])
        self.assertEqual([first["allocated"], first["reserved"], first["cached"]], [43 * MIB, 60 * MIB, 17 * MIB])
        self.assertEqual([first["ooms"], second["ooms"]], [1, 0])
        self.assertEqual([first["rejections"], second["rejections"]], [0, 0])
        self.assertEqual(first["limit"], None)
        self.assertEqual(second["allocated"], 6 * MIB)
        self.assertEqual({pool["label"]: pool["allocated"] for pool in first["pools"]}, {"default": 40 * MIB, '"kv"': 3 * MIB})
        self.assertLess(report["age_s"], 60)

    def test_text_report_has_a_row_per_device_and_pool(self):
        publisher = self.publisher("alloc 0 40", "pool kv 3")
        completed = top("--once", "--pid", publisher.pid)
        self.assertEqual(completed.returncode, 0)
        lines = completed.stdout.splitlines()
        self.assertEqual(lines[0], "1 process, 1 device")
        self.assertEqual(lines[2].split(), ["PID", "COMMAND", "DEVICE", "POOL", "ALLOCATED", "PENDING", "CACHED", "RESERVED",
                                            "PEAK", "REGISTERED", "OOMS", "REJECTED", "AGE"])
        self.assertRegex(lines[3], rf"^ *{publisher.pid}  test-publisher +0  all +43\.00 MiB +0 bytes +17\.00 MiB +60\.00 MiB +"
                                   r"60\.00 MiB +0 bytes +0 +0 +\d+\.\d s$")
        self.assertEqual([line.split()[0] for line in lines[4:]], ["default", '"kv"'])
        self.assertEqual({len(line) for line in lines[2:4]}, {len(lines[2])})

    def test_registered_bytes_are_reported(self):
        publisher = self.publisher("alloc 0 40", "register 0 20", "register 1 30", devices=2)
        report = read_published(publisher.pid)[0]["devices"]
        self.assertEqual([(device["registered"], device["pools"][0]["registered"]) for device in report],
                         [(20 * MIB, 20 * MIB), (30 * MIB, 30 * MIB)])
        lines = top("--once", "--sort", "registered", "--pid", publisher.pid).stdout.splitlines()
        self.assertEqual([line.split()[2] for line in lines[3:]], ["1", "0"])
        column_end = lines[2].index("REGISTERED") + len("REGISTERED")
        self.assertEqual([line[:column_end].rsplit("  ", 1)[1] for line in lines[3:]], ["30.00 MiB", "20.00 MiB"])

    def test_rejections_are_counted(self):
        publisher = self.publisher("alloc 0 40", "alloc 1 40", config="publish:True,throw_on_cudamalloc_oom:True", devices=2)
        for device in (1, 1, 0):
            publisher.send(f"fail {device}")
        report = read_published(publisher.pid)[0]["devices"]
        self.assertEqual([(device["ooms"], device["rejections"]) for device in report], [(0, 1), (0, 2)])
        lines = top("--once", "--sort", "rejected", "--pid", publisher.pid).stdout.splitlines()
        self.assertRegex(lines[3], rf"^ *{publisher.pid}  test-publisher +1  all .* +0 +2 +\d+\.\d s$")
        self.assertRegex(lines[4], rf"^ *{publisher.pid}  test-publisher +0  all .* +0 +1 +\d+\.\d s$")

    def test_all_processes_are_found(self):
        publishers = [self.publisher() for _ in range(3)]
        for size, publisher in enumerate(publishers):
            publisher.send(f"alloc 0 {20 * (size + 1)}")
        report = json.loads(top("--once", "--json").stdout)
        pids = [entry["pid"] for entry in report["publishers"]]
        self.assertLessEqual({publisher.pid for publisher in publishers}, set(pids))
        self.assertEqual(pids, sorted(pids))
        text = top("--once", "--sort", "allocated").stdout
        positions = [text.index(f"{publisher.pid}  test-publisher") for publisher in publishers]
        self.assertEqual(positions, sorted(positions, reverse=True))
        text = top("--once", "--sort", "pid").stdout
        positions = [text.index(f"{publisher.pid}  test-publisher")
                     for publisher in sorted(publishers, key=lambda publisher: publisher.pid)]
        self.assertEqual(positions, sorted(positions))

    def test_each_allocator_of_a_process_is_reported(self):
        publisher = self.publisher("alloc 0 40", "open publish:True", "alloc 0 2")
        self.assertEqual(sorted(entry["devices"][0]["allocated"] for entry in read_published(publisher.pid)), [2 * MIB, 40 * MIB])

    def test_process_without_published_statistics_is_an_error(self):
        completed = top("--once", "--pid", self.publisher("alloc 0 40", config="publish:False").pid)
        self.assertEqual((completed.returncode, completed.stdout), (1, ""))
        self.assertIn("publish:True", completed.stderr)

    def test_terminated_process_is_not_reported(self):
        for signal_number in (None, signal.SIGKILL):
            publisher = self.publisher("alloc 0 40")
            self.assertEqual(len(read_published(publisher.pid)), 1)
            publisher.terminate(signal_number)
            self.assertEqual(read_published(publisher.pid), [])

    def test_stopped_process_is_reported_with_its_age(self):
        publisher = self.publisher("alloc 0 40", config="publish:True,background_thread:True,idle_ms:10")
        os.kill(publisher.pid, signal.SIGSTOP)
        self.addCleanup(os.kill, publisher.pid, signal.SIGCONT)
        (before,) = read_published(publisher.pid)
        time.sleep(0.2)
        (after,) = read_published(publisher.pid)
        self.assertGreaterEqual(after["age_s"], before["age_s"] + 0.2)
        self.assertEqual(after["devices"], before["devices"])

    def test_process_of_another_namespace_has_its_local_pid(self):
        command_prefix = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
        if not shutil.which("unshare") or subprocess.run([*command_prefix, "true"], check=False,
                                                         capture_output=True).returncode != 0:
            self.skipTest("unshare (Debian: util-linux) cannot create a PID namespace here")
        publisher = self.publisher("alloc 0 40", command_prefix=command_prefix)
        local_pid = int(pathlib.Path(f"/proc/{publisher.pid}/task/{publisher.pid}/children").read_text())
        (report,) = read_published(local_pid)
        self.assertEqual((report["pid"], report["devices"][0]["allocated"]), (local_pid, 40 * MIB))

    def test_child_does_not_inherit_statistics(self):
        publisher = self.publisher("alloc 0 40")
        child = publisher.send("fork")
        self.addCleanup(os.kill, child, signal.SIGKILL)
        self.assertEqual(read_published(child), [])
        self.assertEqual(len(read_published(publisher.pid)), 1)
        # The statistics are also absent after the exit of the parent, when only the child has the file of the parent open.
        publisher.terminate(signal.SIGKILL)
        self.assertIn("/memfd:xseg-top (deleted)", [os.readlink(path) for path in pathlib.Path(f"/proc/{child}/fd").iterdir()])
        self.assertEqual(read_published(child), [])


class Budget(TopTest):
    def rows(self, budget_file, condition):
        """Returns the rows when they meet the condition, since members update their values one after the other."""
        deadline, rows = time.monotonic() + 20, None
        while time.monotonic() < deadline and (rows is None or not condition(rows)):
            rows = json.loads(top("--once", "--json", "--budget", budget_file).stdout)["budget"]
        return rows

    def test_all_members_of_the_budget_file_are_reported(self):
        budget_file = self.budget_file()
        publisher = self.publisher(config=f"budget_file:{budget_file},budget_share:0.7,budget_min_mb:5")
        other_publisher = self.publisher(config=f"publish:True,budget_file:{budget_file}", devices=2)
        publisher.send("alloc 0 40")
        other_publisher.send("alloc 1 20")
        first, second = self.rows(budget_file, lambda rows: [row["physical"] for row in rows] == [40 * MIB, 20 * MIB])
        self.assertEqual([first["slot"], second["slot"]], [0, 1])
        self.assertEqual([first["pid"], second["pid"]], [publisher.pid, other_publisher.pid])
        self.assertEqual([first["command"], first["share"], first["min_bytes"]], ["test-publisher", 0.7, 5 * MIB])
        self.assertEqual([second["share"], second["idle"], second["demand"], second["released"]], [0, 0, 0, 0])
        self.assertRegex(first["uuid"], r"^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")
        self.assertNotEqual(first["uuid"], second["uuid"])
        self.assertNotIn("budget", json.loads(top("--once", "--json").stdout))
        lines = top("--once", "--budget", budget_file).stdout.splitlines()
        self.assertEqual(lines[-3].split(), ["PID", "COMMAND", "UUID", "PHYSICAL", "IDLE", "DEMAND", "SHARE", "RELEASED"])
        self.assertRegex(lines[-2], rf"^ *{publisher.pid}  test-publisher +{first['uuid'][:8]} +40\.00 MiB +0 bytes +0 "
                                    rf"bytes +70 % +0 bytes$")
        self.assertRegex(lines[-1], rf"^ *{other_publisher.pid}  .* rest +0 bytes$")
        self.assertEqual({len(line) for line in lines[-3:]}, {len(lines[-1])})

    def test_documentation_has_the_columns(self):
        documented = re.search(r"^\$ xseg top --once --budget rack7\n\.\.\.\n(.*?)^```$", PAGE.read_text(encoding="utf-8"),
                               re.MULTILINE | re.DOTALL)[1].splitlines()
        budget_file = self.budget_file()
        self.publisher(config=f"budget_file:{budget_file}").send("alloc 0 40")
        columns = top("--once", "--budget", budget_file).stdout.splitlines()[-2:]
        self.assertEqual(documented[0], columns[0])
        self.assertEqual({len(line) for line in documented}, {len(line) for line in columns})

    def test_member_without_a_device_is_reported(self):
        budget_file = self.budget_file()
        publisher = self.publisher(config=f"budget_file:{budget_file}")
        self.assertRegex(top("--once", "--budget", budget_file).stdout,
                         rf"(?m)^ *{publisher.pid}  test-publisher +no device is open$")
        publisher.terminate(signal.SIGKILL)
        self.assertIn("no process has this budget file open\n", top("--once", "--budget", budget_file).stdout)

    def test_budget_file_without_a_free_slot_is_reported(self):
        budget_file = self.budget_file()
        self.publisher(config=f"budget_file:{budget_file}")
        self.assertNotIn("slots", top("--once", "--budget", budget_file).stdout)
        # Lock the other slots: their occupancy bytes from byte 64 on, and their records from byte 128 on.
        file = os.open(budget_file, os.O_RDWR | os.O_CLOEXEC)
        self.addCleanup(os.close, file)
        for base in (64, 128):
            fcntl.fcntl(file, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, base + 1, 63, 0))
        self.assertIn("\nall 64 slots of the budget file are in use: no other process can join\n",
                      top("--once", "--budget", budget_file).stdout)

    def test_file_that_is_no_budget_file_is_rejected(self):
        budget_file = self.budget_file()
        for name, status in ((budget_file, 1), ("a b", 2)):
            completed = top("--once", "--budget", name)
            self.assertEqual((completed.returncode, completed.stdout), (status, ""))
            self.assertIn(str(name), completed.stderr)
        self.assertFalse(budget_file.exists())


class UntrustedFiles(TopTest):
    """Tests with files of this process that have the name of published statistics."""

    def setUp(self):
        super().setUp()
        self.start_time = int(pathlib.Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()[22 - 3])

    def file(self, data):
        descriptor = os.memfd_create("xseg-top")
        self.addCleanup(os.close, descriptor)
        os.write(descriptor, data)
        return descriptor

    def file_contents(self, pid=None, start_time=None, devices=1, **options):
        time_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        rows = DEVICE.pack(0, 0, 5 * MIB, 0, 1 * MIB, 6 * MIB, *[0] * 5, 2**64 - 1, 80 << 30, 0, 0, 0, 0)
        frame = FRAME.pack(time_ns, devices, 0) + rows
        head = HEAD.pack(options.get("magic", b"xseg-top"), options.get("version", 3), os.getpid() if pid is None else pid,
                         self.start_time if start_time is None else start_time, SIZE, 2)
        return (head + frame).ljust(SIZE, b"\0")

    def test_file_of_another_process_is_ignored(self):
        self.file(self.file_contents(pid=os.getpid() + 1))
        self.file(self.file_contents(start_time=self.start_time + 1))
        self.file(self.file_contents(start_time=0))
        self.assertEqual(read_published(os.getpid()), [])
        descriptor = self.file(self.file_contents())
        (report,) = read_published(os.getpid())
        self.assertEqual(report["devices"][0]["allocated"], 5 * MIB)
        self.addCleanup(os.close, os.dup(descriptor))  # two descriptors of one file
        self.assertEqual(len(read_published(os.getpid())), 1)

    def test_unreadable_files_are_reported(self):
        for data, message in ((b"", "too short"), (b"xseg-top", "too short"), (bytes(SIZE), "xseg did not write the file"),
                              (self.file_contents(version=9), "another version"),
                              (self.file_contents(devices=33), "more devices"), (self.file_contents()[:SIZE // 2], "too short")):
            descriptor = os.memfd_create("xseg-top")
            os.write(descriptor, data)
            (report,) = read_published(os.getpid())
            self.assertIn(message, report["error"])
            self.assertIn(report["error"], top("--once", "--pid", os.getpid()).stdout)
            os.close(descriptor)

    def test_documentation_lists_all_json_keys(self):
        publisher = self.publisher("alloc 0 40")
        self.file(b"")
        outputs = [json.loads(top("--once", "--json", "--pid", pid).stdout) for pid in (publisher.pid, os.getpid())]
        budget_file = self.budget_file()
        self.publisher(config=f"budget_file:{budget_file}").send("alloc 0 40")
        outputs.append(json.loads(top("--once", "--json", "--budget", budget_file).stdout))
        self.assertEqual(json_keys.paths(outputs), json_keys.documented(PAGE, "JSON of top"))

    def test_random_contents_are_handled(self):
        valid = self.file_contents()
        for seed in range(60):
            data = bytearray(valid)
            for offset in range(8, len(data) if seed % 3 else 200, 1 + seed % 7):
                data[offset] = (offset * 2654435761 + seed * 40503) >> 7 & 255
            descriptor = os.memfd_create("xseg-top")
            os.write(descriptor, data)
            self.assertLessEqual(len(read_published(os.getpid())), 1)
            os.close(descriptor)

    def test_number_of_files_per_process_is_limited(self):
        for _ in range(300):
            self.file(b"")
        self.assertEqual(len(read_published(os.getpid())), 64)

    def test_concurrently_modified_file_is_handled(self):
        descriptor = self.file(self.file_contents())
        writer = subprocess.Popen([sys.executable, "-c", f"""
import os
count = 0
while True:
    count += 1
    os.pwrite({descriptor}, count.to_bytes(8, "little"), {HEAD.size - 8})
    if count % 64 == 0:
        os.ftruncate({descriptor}, count % 7 * 1000)
        os.ftruncate({descriptor}, {SIZE})
"""], pass_fds=[descriptor])
        try:
            for _ in range(20):
                self.assertLessEqual(len(read_published(os.getpid())), 1)
        finally:
            writer.kill()
            writer.wait()


class Arguments(TopTest):
    def test_conflicting_options_are_rejected(self):
        for arguments, message in ((["--json"], "--json requires --once"), (["--once", "--interval", "2"], "--interval cannot"),
                                   (["--sort", "age"], "--sort"), (["--interval", "0"], "--interval"), (["--pid", "0"], "--pid"),
                                   ([], "must be a terminal; use --once"), (["file"], "file")):
            completed = top(*arguments)
            self.assertEqual((completed.returncode, completed.stdout), (2, ""), arguments)
            self.assertIn(message, completed.stderr)

    def test_unwritable_output_is_reported(self):
        with open("/dev/full", "w", encoding="ascii") as full_device:
            completed = subprocess.run([TOOL, "top", "--once"], stdout=full_device, stderr=subprocess.PIPE, text=True,
                                       check=False)
        self.assertEqual(completed.returncode, 2)
        self.assertIn("No space left", completed.stderr)

    def test_unreadable_processes_are_counted(self):
        publisher, options = self.publisher("alloc 0 40"), {}
        if os.geteuid() == 0:
            options = {"user": 65534, "group": 65534, "extra_groups": []}
        elif os.stat("/proc/1").st_uid == os.geteuid():
            self.skipTest("there is no process of another user")
        try:
            completed = top("--once", "--json", **options)
        except PermissionError:
            self.skipTest("other users cannot run the tool in its folder")
        if completed.returncode != 0:
            self.skipTest(f"the tool cannot be run by another user: {completed.stderr}")
        report = json.loads(completed.stdout)
        self.assertGreater(report["hidden"], 0)
        if options:
            self.assertNotIn(publisher.pid, [entry["pid"] for entry in report["publishers"]])
            self.assertRegex(top("--once", **options).stdout, r"^\d+ process(es)?, \d+ devices?; \d+ process(es)? cannot be "
                                                              r"read \(permission denied\)")


class Screen:
    """Emulates the part of xterm that ncurses uses."""

    CONTROL = re.compile(rb"\x1b\[([?>]?)([\d;]*)([a-zA-Z@`])|\x1b[()][B0]|\x1b[=>78M]|\x1b\][^\x07]*\x07")

    def __init__(self):
        self.pending, self.is_open, self.last = b"", None, " "

    def resize(self, rows, columns):
        self.rows, self.columns, self.row, self.column = rows, columns, 0, 0
        self.cells = [[" "] * columns for _ in range(rows)]
        self.region = (0, rows - 1)

    def scroll(self, first_row, count):
        """Scrolls the region from `first_row` on up by `count` rows, or down if `count` is negative."""
        empty_rows = [[" "] * self.columns for _ in range(abs(count))]
        rows_of_region = self.cells[first_row:self.region[1] + 1]
        moved = (rows_of_region + empty_rows)[count:] if count > 0 else (empty_rows + rows_of_region)[:len(rows_of_region)]
        self.cells[first_row:self.region[1] + 1] = moved

    def line_feed(self):
        if self.row == self.region[1]:
            self.scroll(self.region[0], 1)
        else:
            self.row += 1

    def put(self, character):
        if self.column < self.columns and self.row < self.rows:
            self.cells[self.row][self.column] = character
        self.column, self.last = self.column + 1, character

    def control(self, prefix, parameters, character):
        values = [int(value or 0) for value in parameters.split(";")]
        count = max(values[0], 1)
        if prefix:
            if values[0] == 1049:
                self.is_open = character == "h"
        elif character in "Hf":
            self.row, self.column = count - 1, (values[1] if len(values) > 1 else 1) - 1
        elif character == "d":
            self.row = count - 1
        elif character in "G`":
            self.column = count - 1
        elif character in "ABCD":
            self.row += {"A": -count, "B": count}.get(character, 0)
            self.column += {"C": count, "D": -count}.get(character, 0)
        elif character == "J":
            first = self.row + 1 if values[0] == 0 else 0
            for row in range(first, self.rows):
                self.cells[row] = [" "] * self.columns
            if values[0] == 0:
                self.cells[self.row][self.column:] = [" "] * (self.columns - self.column)
        elif character == "K":
            first, last = (0, self.column + 1) if values[0] == 1 else (self.column, self.columns)
            self.cells[self.row][first:last] = [" "] * (last - first)
        elif character == "X":
            self.cells[self.row][self.column:self.column + count] = [" "] * min(count, self.columns - self.column)
        elif character == "P":
            self.cells[self.row] = (self.cells[self.row][:self.column] + self.cells[self.row][self.column + count:]
                                    + [" "] * count)[:self.columns]
        elif character == "@":
            self.cells[self.row] = (self.cells[self.row][:self.column] + [" "] * count
                                    + self.cells[self.row][self.column:])[:self.columns]
        elif character == "r":
            last = values[1] if len(values) > 1 else self.rows
            self.region = (min(count, self.rows) - 1, min(last, self.rows) - 1)
            self.row = self.column = 0
        elif character in "ST":
            self.scroll(self.region[0], count if character == "S" else -count)
        elif character in "LM":
            self.scroll(self.row, count if character == "M" else -count)
        elif character == "b":
            for _ in range(count):
                self.put(self.last)
        elif character not in "mhlt":
            raise AssertionError(f"ESC [ {parameters} {character} is not supported by this test")
        # Output for a previous size may exceed the screen.
        self.row, self.column = min(max(self.row, 0), self.rows - 1), min(max(self.column, 0), self.columns - 1)

    def feed(self, data):
        data, at = self.pending + data, 0
        while at < len(data):
            byte = data[at:at + 1]
            match = self.CONTROL.match(data, at) if byte == b"\x1b" else None
            if byte == b"\x1b" and not match:
                break
            if match and match[0] == b"\x1bM":
                if self.row == self.region[0]:
                    self.scroll(self.region[0], -1)
                else:
                    self.row -= 1
            elif match and match[3]:
                self.control(match[1].decode(), match[2].decode(), match[3].decode())
            elif byte == b"\r":
                self.column = 0
            elif byte == b"\n":
                self.line_feed()
            elif byte == b"\b":
                self.column -= 1
            elif byte >= b" " and not match:
                self.put(byte.decode())
            at = match.end() if match else at + 1
        self.pending = data[at:]

    def lines(self):
        return ["".join(row).rstrip() for row in self.cells]


def devices(lines):
    """Returns the third column of each line; lines may be incomplete while the screen is drawn."""
    return [(line.split() + [""] * 3)[2] for line in lines if line]


class LiveScreen(TopTest):
    def start(self, *arguments, rows=24, columns=150, term="xterm"):
        try:
            pid, self.terminal = pty.fork()
        except OSError as error:
            self.skipTest(f"no terminal can be opened: {error}")
        if pid == 0:
            time.sleep(0.1)  # until size() has set the size of the terminal
            os.environ["TERM"] = term
            os.execv(TOOL, ["xseg", "top", *map(str, arguments)])
        self.pid, self.screen, self.status = pid, Screen(), None
        self.size(rows, columns)
        self.addCleanup(os.close, self.terminal)
        self.addCleanup(self.stop)

    def stop(self):
        if self.status is None:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)

    def size(self, rows, columns):
        self.screen.resize(rows, columns)
        fcntl.ioctl(self.terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def read(self, seconds):
        if select.select([self.terminal], [], [], seconds)[0]:
            try:
                data = os.read(self.terminal, 65536)
            except OSError:
                return False
            self.screen.feed(data)
            return bool(data)
        return True

    def wait_until(self, condition, seconds=20):
        deadline = time.monotonic() + seconds
        while not condition(self.screen.lines()):
            if time.monotonic() > deadline or not self.read(0.1):
                self.fail("not on the screen:\n" + "\n".join(self.screen.lines()))

    def send_keys(self, keys):
        os.write(self.terminal, keys)

    def quit(self, keys=b"q"):
        self.send_keys(keys)
        self.expect_end(0)

    def read_while(self, condition=lambda: True):
        deadline = time.monotonic() + 20
        while condition() and time.monotonic() < deadline and self.read(0.1):
            pass

    def expect_end(self, status):
        self.read_while()
        _, state = os.waitpid(self.pid, 0)
        self.status = os.waitstatus_to_exitcode(state)
        self.assertEqual(self.status, status)

    def start_and_wait(self, *arguments, **options):
        self.start(*arguments, **options)
        self.wait_until(lambda lines: any("xseg top" in line or "ncurses" in line for line in lines))
        if any("without ncurses" in line for line in self.screen.lines()):
            self.skipTest("xseg was built without ncurses (Debian: libncurses-dev)")

    def test_screen_follows_a_process(self):
        publisher = self.publisher("alloc 0 40")
        self.start_and_wait("--pid", publisher.pid)
        self.wait_until(lambda lines: lines[0] == "xseg top - 1 process, 1 device" and str(publisher.pid) in lines[3]
                        and "40.00 MiB" in lines[3] and lines[23].startswith("q quit"))
        self.assertTrue(self.screen.is_open)
        publisher.send("alloc 0 60")
        self.wait_until(lambda lines: "100.00 MiB" in lines[3])
        publisher.send("pool kv 3")
        self.wait_until(lambda lines: '"kv"' in lines[5])
        self.send_keys(b"p")
        self.wait_until(lambda lines: lines[4] == "")
        publisher.terminate(signal.SIGKILL)
        self.wait_until(lambda lines: lines[0] == "xseg top - 0 processes, 0 devices" and "no process publishes" in lines[3])
        self.quit()
        self.assertFalse(self.screen.is_open)

    def test_documentation_shows_the_screen(self):
        documented = re.search(r"^```\n\$ xseg top\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)[1]
        service = self.folder / "service"
        service.symlink_to(pathlib.Path(PUBLISHER).resolve())
        publisher = self.publisher("alloc 0 3000", "pool kv_cache 1200", "fail 0", "alloc 1 700", devices=2, program=service)
        expected = documented.replace("   15164", f"{publisher.pid:8}").splitlines()
        self.start_and_wait("--pid", publisher.pid, columns=80)
        self.wait_until(lambda lines: lines[:len(expected)] == expected)
        self.send_keys(b"q")
        self.expect_end(0)

    def test_screen_lists_members_of_a_budget_file(self):
        budget_file = self.budget_file()
        publisher = self.publisher("alloc 0 40", config=f"publish:True,budget_file:{budget_file}")
        self.start_and_wait("--pid", publisher.pid, "--budget", budget_file)
        self.wait_until(lambda lines: lines[21].split()[:3] == ["PID", "COMMAND", "UUID"] and str(publisher.pid) in lines[22]
                        and "40.00 MiB" in lines[22] and lines[23].startswith("q quit"))
        publisher.terminate(signal.SIGKILL)
        self.wait_until(lambda lines: lines[22] == "no process has this budget file open")
        budget_file.unlink()
        self.wait_until(lambda lines: "cannot be opened" in lines[22])
        self.quit()

    def test_keys_select_the_sort_order(self):
        publisher = self.publisher(devices=2)
        publisher.send("alloc 0 3")   # reserved 20 MiB
        publisher.send("alloc 1 18")  # reserved 20 MiB
        publisher.send("alloc 0 18")  # now 40 MiB, of which 21 are allocated
        publisher.send("alloc 1 19")  # 40 MiB, 37 allocated
        self.start_and_wait("--pid", publisher.pid, "--sort", "cached")

        def order(lines):
            return devices(lines[3:5])

        self.wait_until(lambda lines: order(lines) == ["0", "1"])
        self.send_keys(b"<<")  # to ALLOCATED
        self.wait_until(lambda lines: order(lines) == ["1", "0"])
        self.send_keys(b">>")  # CACHED again
        self.wait_until(lambda lines: order(lines) == ["0", "1"])
        self.quit(b"xyz ?q")  # other keys have no effect

    def test_rows_scroll_after_a_resize(self):
        publisher = self.publisher(devices=12)
        for device in range(12):
            publisher.send(f"alloc {device} {100 - device}")
        self.start_and_wait("--pid", publisher.pid)

        def shown_devices(lines):
            return devices(lines[3:-1])

        self.wait_until(lambda lines: shown_devices(lines) == [str(i) for i in range(12)])
        self.size(9, 80)
        self.wait_until(lambda lines: shown_devices(lines) == ["0", "1", "2", "3", "4"] and lines[8].startswith("q quit"))
        self.send_keys(b"\x1bOB\x1bOB")  # down
        self.wait_until(lambda lines: shown_devices(lines) == ["2", "3", "4", "5", "6"])
        self.send_keys(b"\x1b[6~")  # page down
        self.wait_until(lambda lines: shown_devices(lines) == ["7", "8", "9", "10", "11"])
        self.send_keys(b"\x1b[6~\x1b[6~\x1bOA")  # at most to the end; then up
        self.wait_until(lambda lines: shown_devices(lines) == ["6", "7", "8", "9", "10"])
        for rows, columns in ((2, 10), (1, 1), (4, 30)):
            self.size(rows, columns)
            time.sleep(0.2)
            self.read(0.2)
        self.size(30, 150)
        self.wait_until(lambda lines: shown_devices(lines) == [str(i) for i in range(12)])
        self.quit()

    def test_terminal_of_80_columns_has_pages_of_columns_by_priority(self):
        publisher = self.publisher("alloc 0 40", "pool kv 3", devices=20)
        for device in range(1, 20):
            publisher.send(f"alloc {device} {100 - device}")
        self.start_and_wait("--pid", publisher.pid, columns=80)
        first_columns, pages = ["PID", "COMMAND", "DEVICE"], [["ALLOCATED", "CACHED", "RESERVED", "OOMS"],
                                                              ["PENDING", "PEAK", "REGISTERED", "AGE"], ["REJECTED"]]
        for page_number, page in enumerate(pages, 1):
            self.wait_until(lambda lines, page=page, page_number=page_number: lines[2].split() == first_columns + page
                            and lines[1] == f"rows 1 to 20 of 22; column page {page_number} of 3"
                            and devices(lines[3:23]) == [str(i) for i in range(1, 20)] + ["0"])
            self.assertLessEqual(max(map(len, self.screen.lines())), 80)
            self.send_keys(b"\x1bOC")  # right, up to the last page
        self.send_keys(b"\x1bOF")  # end
        self.wait_until(lambda lines: lines[1].startswith("rows 3 to 22 of 22")
                        and [line.split()[:1] for line in lines[21:23]] == [["default"], ['"kv"']])
        self.send_keys(b"\x1bOD\x1bOD\x1bOD\x1bOH")  # left; home
        self.wait_until(lambda lines: lines[1] == "rows 1 to 20 of 22; column page 1 of 3")
        self.send_keys(b">>>")  # from RESERVED to CACHED, which then has the highest priority
        self.wait_until(lambda lines: lines[2].split() == first_columns + ["ALLOCATED", "CACHED", "RESERVED", "OOMS"])
        self.send_keys(b">>")  # REGISTERED
        self.wait_until(lambda lines: lines[2].split() == first_columns + ["ALLOCATED", "RESERVED", "REGISTERED"])
        self.quit()

    def test_terminal_of_40_columns_shows_one_value_column(self):
        budget_file = self.budget_file()
        publisher = self.publisher("alloc 0 40", config=f"publish:True,budget_file:{budget_file}")
        self.start_and_wait("--pid", publisher.pid, "--budget", budget_file, rows=10, columns=40)
        self.wait_until(lambda lines: lines[2].split() == ["PID", "COMMAND", "DEVICE", "RESERVED"]
                        and lines[1].startswith("column page 1 of ") and lines[3].split()[1:] == ["test-pub", "0", "40.00", "MiB"]
                        and lines[7].split() == ["PID", "COMMAND", "PHYSICAL"] and lines[8].endswith("40.00 MiB")
                        and lines[9] == "q quit  < > sort  p pools  arrows scroll")
        for column in ("ALLOCATED", "CACHED", "OOMS", "PEAK"):
            self.send_keys(b"\x1bOC")
            self.wait_until(lambda lines, column=column: column in lines[2].split())
            self.assertLessEqual(max(map(len, self.screen.lines())), 40)
        self.quit()

    def test_signal_restores_the_terminal(self):
        self.start_and_wait()
        os.kill(self.pid, signal.SIGTERM)
        self.read_while(lambda: self.screen.is_open)
        self.assertFalse(self.screen.is_open)
        os.waitpid(self.pid, 0)
        self.status = 0

    def test_tool_exits_with_its_terminal(self):
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as with nohup or `trap '' HUP`
        self.addCleanup(signal.signal, signal.SIGHUP, signal.SIG_DFL)
        self.start_and_wait("--interval", 3600)
        with open("/dev/null", "rb") as null_device:
            os.dup2(null_device.fileno(), self.terminal)
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline and self.status is None:
            pid, state = os.waitpid(self.pid, os.WNOHANG)
            self.status = os.waitstatus_to_exitcode(state) if pid else None
            time.sleep(0.05)
        self.assertIsNotNone(self.status)

    def test_unknown_terminal_is_an_error(self):
        self.start_and_wait()
        self.quit()
        self.start(term="no-such-terminal")
        self.wait_until(lambda lines: any("use --once" in line for line in lines))
        self.expect_end(2)


if __name__ == "__main__":
    TOOL, PUBLISHER = sys.argv[1:3]
    unittest.main(argv=sys.argv[:1], verbosity=2)
