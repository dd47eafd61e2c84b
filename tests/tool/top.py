# SPDX-License-Identifier: MIT
"""`xseg top` as a user runs it: top.py TOOL PUBLISHER.

PUBLISHER is a process that publishes (publisher.c); the live screen is read through a pseudo-terminal.
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


def top(*arguments, **more):
    return subprocess.run([TOOL, "top", *map(str, arguments)], capture_output=True, text=True, check=False,
                          stdin=subprocess.DEVNULL, **more)


def look(pid):
    """What is published by a process: a list with an entry for each allocator."""
    done = top("--once", "--json", "--pid", pid)
    if done.returncode == 1:
        return []
    assert done.returncode == 0 and done.stderr == "", done
    return json.loads(done.stdout)["publishers"]


class Publisher:
    def __init__(self, *steps, config="publish:True", devices=1, within=(), program=None):
        self.process = subprocess.Popen([*within, program or PUBLISHER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                        stderr=subprocess.DEVNULL, env={**os.environ, "XSEG_SIM_DEVICES": str(devices)})
        self.pid = self.process.pid
        for step in (f"open {config}", *steps):
            self.do(step)

    def do(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline().split(None, 1)
        assert answer and int(answer[0]) >= 0, (line, answer)
        return int(answer[0])

    def end(self, number=None):
        if number is not None:
            self.process.send_signal(number)
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


class Case(FolderCase):
    def publisher(self, *arguments, **more):
        one = Publisher(*arguments, **more)
        self.addCleanup(lambda: one.process.returncode is None and one.end(signal.SIGKILL))
        return one

    def ledger(self):
        return self.folder / "ledger"


class Once(Case):
    def test_devices_and_pools(self):
        one = self.publisher("alloc 0 40", "alloc 1 6", "pool kv 3", "refuse 0", devices=2)
        (found,) = look(one.pid)
        self.assertEqual((found["pid"], found["command"]), (one.pid, "test-publisher"))
        first, second = found["devices"]
        self.assertEqual([first["device"], second["device"]], [0, 1])
        self.assertEqual([first["allocated"], first["reserved"], first["cached"]], [43 * MIB, 60 * MIB, 17 * MIB])
        self.assertEqual([first["ooms"], second["ooms"]], [1, 0])
        self.assertEqual([first["rejections"], second["rejections"]], [0, 0])
        self.assertEqual(first["limit"], None)
        self.assertEqual(second["allocated"], 6 * MIB)
        self.assertEqual({pool["label"]: pool["allocated"] for pool in first["pools"]}, {"default": 40 * MIB, '"kv"': 3 * MIB})
        self.assertLess(found["age_s"], 60)

    def test_text(self):
        one = self.publisher("alloc 0 40", "pool kv 3")
        done = top("--once", "--pid", one.pid)
        self.assertEqual(done.returncode, 0)
        lines = done.stdout.splitlines()
        self.assertEqual(lines[0], "1 process, 1 device")
        self.assertEqual(lines[2].split(), ["PID", "COMMAND", "DEVICE", "POOL", "ALLOCATED", "PENDING", "CACHED", "RESERVED", "PEAK",
                                            "REGISTERED", "OOMS", "REJECTED", "AGE"])
        self.assertRegex(lines[3], rf"^ *{one.pid}  test-publisher +0  all +43\.00 MiB +0 bytes +17\.00 MiB +60\.00 MiB +"
                                   r"60\.00 MiB +0 bytes +0 +0 +\d+\.\d s$")
        self.assertEqual([line.split()[0] for line in lines[4:]], ["default", '"kv"'])
        self.assertEqual({len(line) for line in lines[2:4]}, {len(lines[2])})

    def test_registered(self):
        one = self.publisher("alloc 0 40", "register 0 20", "register 1 30", devices=2)
        found = look(one.pid)[0]["devices"]
        self.assertEqual([(device["registered"], device["pools"][0]["registered"]) for device in found],
                         [(20 * MIB, 20 * MIB), (30 * MIB, 30 * MIB)])
        lines = top("--once", "--sort", "registered", "--pid", one.pid).stdout.splitlines()
        self.assertEqual([line.split()[2] for line in lines[3:]], ["1", "0"])
        at = lines[2].index("REGISTERED") + len("REGISTERED")
        self.assertEqual([line[:at].rsplit("  ", 1)[1] for line in lines[3:]], ["30.00 MiB", "20.00 MiB"])

    def test_rejections(self):
        one = self.publisher("alloc 0 40", "alloc 1 40", config="publish:True,throw_on_cudamalloc_oom:True", devices=2)
        for device in (1, 1, 0):
            one.do(f"refuse {device}")
        found = look(one.pid)[0]["devices"]
        self.assertEqual([(device["ooms"], device["rejections"]) for device in found], [(0, 1), (0, 2)])
        lines = top("--once", "--sort", "rejected", "--pid", one.pid).stdout.splitlines()
        self.assertRegex(lines[3], rf"^ *{one.pid}  test-publisher +1  all .* +0 +2 +\d+\.\d s$")
        self.assertRegex(lines[4], rf"^ *{one.pid}  test-publisher +0  all .* +0 +1 +\d+\.\d s$")

    def test_all_processes_are_found(self):
        ones = [self.publisher() for _ in range(3)]
        for size, one in enumerate(ones):
            one.do(f"alloc 0 {20 * (size + 1)}")
        found = json.loads(top("--once", "--json").stdout)
        pids = [entry["pid"] for entry in found["publishers"]]
        self.assertLessEqual({one.pid for one in ones}, set(pids))
        self.assertEqual(pids, sorted(pids))
        text = top("--once", "--sort", "allocated").stdout
        places = [text.index(f"{one.pid}  test-publisher") for one in ones]
        self.assertEqual(places, sorted(places, reverse=True))
        text = top("--once", "--sort", "pid").stdout
        places = [text.index(f"{one.pid}  test-publisher") for one in sorted(ones, key=lambda one: one.pid)]
        self.assertEqual(places, sorted(places))

    def test_several_allocators_of_a_process(self):
        one = self.publisher("alloc 0 40", "open publish:True", "alloc 0 2")
        self.assertEqual(sorted(entry["devices"][0]["allocated"] for entry in look(one.pid)), [2 * MIB, 40 * MIB])

    def test_a_process_that_does_not_publish(self):
        one = self.publisher("alloc 0 40", config="publish:False")
        done = top("--once", "--pid", one.pid)
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertIn("publish:True", done.stderr)

    def test_nothing_is_left_of_a_process_that_ended(self):
        for number in (None, signal.SIGKILL):
            one = self.publisher("alloc 0 40")
            self.assertEqual(len(look(one.pid)), 1)
            one.end(number)
            self.assertEqual(look(one.pid), [])

    def test_a_stopped_process_is_shown(self):
        one = self.publisher("alloc 0 40", config="publish:True,background_thread:True,idle_ms:10")
        os.kill(one.pid, signal.SIGSTOP)
        self.addCleanup(os.kill, one.pid, signal.SIGCONT)
        (before,) = look(one.pid)
        time.sleep(0.2)
        (after,) = look(one.pid)
        self.assertGreaterEqual(after["age_s"], before["age_s"] + 0.2)
        self.assertEqual(after["devices"], before["devices"])

    def test_process_of_another_namespace_has_its_local_pid(self):
        within = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
        if not shutil.which("unshare") or subprocess.run([*within, "true"], check=False, capture_output=True).returncode != 0:
            self.skipTest("unshare (Debian: util-linux) cannot make a namespace of processes here")
        one = self.publisher("alloc 0 40", within=within)
        number = int(pathlib.Path(f"/proc/{one.pid}/task/{one.pid}/children").read_text())
        (found,) = look(number)
        self.assertEqual((found["pid"], found["devices"][0]["allocated"]), (number, 40 * MIB))

    def test_child_does_not_inherit_statistics(self):
        one = self.publisher("alloc 0 40")
        child = one.do("fork")
        self.addCleanup(os.kill, child, signal.SIGKILL)
        self.assertEqual(look(child), [])
        self.assertEqual(len(look(one.pid)), 1)
        # Not even when the parent is gone, and its file is held by the child alone.
        one.end(signal.SIGKILL)
        held = [os.readlink(path) for path in pathlib.Path(f"/proc/{child}/fd").iterdir()]
        self.assertIn("/memfd:xseg-top (deleted)", held)
        self.assertEqual(look(child), [])


class Budget(Case):
    def rows(self, ledger, wanted):
        """The rows, once they are as wanted: figures are written by a turn of each process."""
        end, rows = time.monotonic() + 20, None
        while time.monotonic() < end and (rows is None or not wanted(rows)):
            rows = json.loads(top("--once", "--json", "--budget", ledger).stdout)["budget"]
        return rows

    def test_all_that_share_are_shown(self):
        ledger = self.ledger()
        one = self.publisher(config=f"budget_file:{ledger},budget_share:0.7,budget_min_mb:5")
        two = self.publisher(config=f"publish:True,budget_file:{ledger}", devices=2)
        one.do("alloc 0 40")
        two.do("alloc 1 20")
        first, second = self.rows(ledger, lambda rows: [row["physical"] for row in rows] == [40 * MIB, 20 * MIB])
        self.assertEqual([first["slot"], second["slot"]], [0, 1])
        self.assertEqual([first["pid"], second["pid"]], [one.pid, two.pid])
        self.assertEqual([first["command"], first["share"], first["min_bytes"]], ["test-publisher", 0.7, 5 * MIB])
        self.assertEqual([second["share"], second["idle"], second["demand"], second["released"]], [0, 0, 0, 0])
        self.assertRegex(first["uuid"], r"^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")
        self.assertNotEqual(first["uuid"], second["uuid"])
        self.assertNotIn("budget", json.loads(top("--once", "--json").stdout))
        lines = top("--once", "--budget", ledger).stdout.splitlines()
        self.assertEqual(lines[-3].split(), ["PID", "COMMAND", "UUID", "PHYSICAL", "IDLE", "DEMAND", "SHARE", "RELEASED"])
        self.assertRegex(lines[-2], rf"^ *{one.pid}  test-publisher +{first['uuid'][:8]} +40\.00 MiB +0 bytes +0 bytes +70 % +0 bytes$")
        self.assertRegex(lines[-1], rf"^ *{two.pid}  .* rest +0 bytes$")
        self.assertEqual({len(line) for line in lines[-3:]}, {len(lines[-1])})

    def test_the_page_has_the_columns(self):
        shown = re.search(r"^\$ xseg top --once --budget rack7\n\.\.\.\n(.*?)^```$", PAGE.read_text(encoding="utf-8"),
                          re.MULTILINE | re.DOTALL)[1].splitlines()
        ledger = self.ledger()
        self.publisher(config=f"budget_file:{ledger}").do("alloc 0 40")
        printed = top("--once", "--budget", ledger).stdout.splitlines()[-2:]
        self.assertEqual(shown[0], printed[0])
        self.assertEqual({len(line) for line in shown}, {len(line) for line in printed})

    def test_a_process_without_a_device(self):
        ledger = self.ledger()
        one = self.publisher(config=f"budget_file:{ledger}")
        self.assertRegex(top("--once", "--budget", ledger).stdout, rf"(?m)^ *{one.pid}  test-publisher +no device is open$")
        one.end(signal.SIGKILL)
        self.assertIn("no process has this budget file open\n", top("--once", "--budget", ledger).stdout)

    def test_budget_file_without_a_free_slot_is_reported(self):
        ledger = self.ledger()
        self.publisher(config=f"budget_file:{ledger}")
        self.assertNotIn("slots", top("--once", "--budget", ledger).stdout)
        # This process takes the locks of the other slots: of their places from byte 64 on, of their records from 128 on.
        file = os.open(ledger, os.O_RDWR | os.O_CLOEXEC)
        self.addCleanup(os.close, file)
        for base in (64, 128):
            lock = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, base + 1, 63, 0)
            fcntl.fcntl(file, fcntl.F_OFD_SETLK, lock)
        self.assertIn("\nall 64 slots of the budget file are in use: no other process can join\n",
                      top("--once", "--budget", ledger).stdout)

    def test_file_that_is_no_budget_file_is_rejected(self):
        ledger = self.ledger()
        for name, status in ((ledger, 1), ("a b", 2)):
            done = top("--once", "--budget", name)
            self.assertEqual((done.returncode, done.stdout), (status, ""))
            self.assertIn(str(name), done.stderr)
        self.assertFalse(ledger.exists())


class Hostile(Case):
    """This process has files that are named as published ones are."""

    def setUp(self):
        super().setUp()
        fields = pathlib.Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()
        self.start = int(fields[22 - 3])

    def file(self, data):
        number = os.memfd_create("xseg-top")
        self.addCleanup(os.close, number)
        os.write(number, data)
        return number

    def content(self, pid=None, start=None, devices=1, **more):
        now = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        rows = DEVICE.pack(0, 0, 5 * MIB, 0, 1 * MIB, 6 * MIB, *[0] * 5, 2**64 - 1, 80 << 30, 0, 0, 0, 0)
        frame = FRAME.pack(now, devices, 0) + rows
        head = HEAD.pack(more.get("magic", b"xseg-top"), more.get("version", 3), os.getpid() if pid is None else pid,
                         self.start if start is None else start, SIZE, 2)
        return (head + frame).ljust(SIZE, b"\0")

    def test_a_file_is_of_the_process_that_wrote_it(self):
        self.file(self.content(pid=os.getpid() + 1))
        self.file(self.content(start=self.start + 1))
        self.file(self.content(start=0))
        self.assertEqual(look(os.getpid()), [])
        number = self.file(self.content())
        (found,) = look(os.getpid())
        self.assertEqual(found["devices"][0]["allocated"], 5 * MIB)
        self.addCleanup(os.close, os.dup(number))  # one file, however many descriptors lead to it
        self.assertEqual(len(look(os.getpid())), 1)

    def test_unreadable_files_are_reported(self):
        for data, said in ((b"", "too short"), (b"xseg-top", "too short"), (bytes(SIZE), "xseg did not write the file"),
                           (self.content(version=9), "another version"), (self.content(devices=33), "more devices"),
                           (self.content()[:SIZE // 2], "too short")):
            number = os.memfd_create("xseg-top")
            os.write(number, data)
            (found,) = look(os.getpid())
            self.assertIn(said, found["problem"])
            self.assertIn(found["problem"], top("--once", "--pid", os.getpid()).stdout)
            os.close(number)

    def test_the_page_has_the_keys(self):
        one = self.publisher("alloc 0 40")
        self.file(b"")
        outputs = [json.loads(top("--once", "--json", "--pid", pid).stdout) for pid in (one.pid, os.getpid())]
        ledger = self.ledger()
        self.publisher(config=f"budget_file:{ledger}").do("alloc 0 40")
        outputs.append(json.loads(top("--once", "--json", "--budget", ledger).stdout))
        self.assertEqual(json_keys.paths(outputs), json_keys.documented(PAGE, "JSON of top"))

    def test_any_bytes_do_no_harm(self):
        good = self.content()
        for seed in range(60):
            data = bytearray(good)
            for at in range(8, len(data) if seed % 3 else 200, 1 + seed % 7):
                data[at] = (at * 2654435761 + seed * 40503) >> 7 & 255
            number = os.memfd_create("xseg-top")
            os.write(number, data)
            self.assertLessEqual(len(look(os.getpid())), 1)
            os.close(number)

    def test_many_files_of_one_process(self):
        for _ in range(300):
            self.file(b"")
        self.assertEqual(len(look(os.getpid())), 64)

    def test_a_file_that_changes_all_the_time(self):
        number = self.file(self.content())
        writer = subprocess.Popen([sys.executable, "-c", f"""
import os
n = 0
while True:
    n += 1
    os.pwrite({number}, n.to_bytes(8, "little"), {HEAD.size - 8})
    if n % 64 == 0:
        os.ftruncate({number}, n % 7 * 1000)
        os.ftruncate({number}, {SIZE})
"""], pass_fds=[number])
        try:
            for _ in range(20):
                self.assertLessEqual(len(look(os.getpid())), 1)
        finally:
            writer.kill()
            writer.wait()


class Arguments(Case):
    def test_conflicting_options_are_rejected(self):
        for arguments, said in ((["--json"], "--json requires --once"), (["--once", "--interval", "2"], "--interval cannot"),
                                (["--sort", "age"], "--sort"), (["--interval", "0"], "--interval"), (["--pid", "0"], "--pid"),
                                ([], "must be a terminal; use --once"), (["file"], "file")):
            done = top(*arguments)
            self.assertEqual((done.returncode, done.stdout), (2, ""), arguments)
            self.assertIn(said, done.stderr)

    def test_output_that_cannot_be_written(self):
        with open("/dev/full", "w", encoding="ascii") as full:
            done = subprocess.run([TOOL, "top", "--once"], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
        self.assertEqual(done.returncode, 2)
        self.assertIn("No space left", done.stderr)

    def test_processes_of_others_are_counted(self):
        one = self.publisher("alloc 0 40")
        more = {}
        if os.geteuid() == 0:
            more = {"user": 65534, "group": 65534, "extra_groups": []}
        elif os.stat("/proc/1").st_uid == os.geteuid():
            self.skipTest("there is no process of another user")
        try:
            done = top("--once", "--json", **more)
        except PermissionError:
            self.skipTest("the tool lies where no other user may run it")
        if done.returncode != 0:
            self.skipTest(f"the tool cannot be run by another user: {done.stderr}")
        found = json.loads(done.stdout)
        self.assertGreater(found["hidden"], 0)
        if more:
            self.assertNotIn(one.pid, [entry["pid"] for entry in found["publishers"]])
            self.assertRegex(top("--once", **more).stdout, r"^\d+ process(es)?, \d+ devices?; \d+ process(es)? cannot be read \(permission denied\)")


class Screen:
    """As much of a terminal as ncurses uses of xterm's."""

    CONTROL = re.compile(rb"\x1b\[([?>]?)([\d;]*)([a-zA-Z@`])|\x1b[()][B0]|\x1b[=>78M]|\x1b\][^\x07]*\x07")

    def __init__(self):
        self.pending, self.is_open, self.last = b"", None, " "

    def resize(self, rows, columns):
        self.rows, self.columns, self.row, self.column = rows, columns, 0, 0
        self.cells = [[" "] * columns for _ in range(rows)]
        self.region = (0, rows - 1)

    def scroll(self, top, count):
        """Rows of the region from one on move up, or down where the count is below 0."""
        empty = [[" "] * self.columns for _ in range(abs(count))]
        part = self.cells[top:self.region[1] + 1]
        part = (part + empty)[count:] if count > 0 else (empty + part)[:len(part)]
        self.cells[top:self.region[1] + 1] = part

    def line_feed(self):
        if self.row == self.region[1]:
            self.scroll(self.region[0], 1)
        else:
            self.row += 1

    def put(self, letter):
        if self.column < self.columns and self.row < self.rows:
            self.cells[self.row][self.column] = letter
        self.column, self.last = self.column + 1, letter

    def control(self, mark, numbers, letter):
        number = [int(one or 0) for one in numbers.split(";")]
        count = max(number[0], 1)
        if mark:
            if number[0] == 1049:
                self.is_open = letter == "h"
        elif letter in "Hf":
            self.row, self.column = count - 1, (number[1] if len(number) > 1 else 1) - 1
        elif letter == "d":
            self.row = count - 1
        elif letter in "G`":
            self.column = count - 1
        elif letter in "ABCD":
            self.row += {"A": -count, "B": count}.get(letter, 0)
            self.column += {"C": count, "D": -count}.get(letter, 0)
        elif letter == "J":
            first = self.row + 1 if number[0] == 0 else 0
            for row in range(first, self.rows):
                self.cells[row] = [" "] * self.columns
            if number[0] == 0:
                self.cells[self.row][self.column:] = [" "] * (self.columns - self.column)
        elif letter == "K":
            first, last = (0, self.column + 1) if number[0] == 1 else (self.column, self.columns)
            self.cells[self.row][first:last] = [" "] * (last - first)
        elif letter == "X":
            self.cells[self.row][self.column:self.column + count] = [" "] * min(count, self.columns - self.column)
        elif letter == "P":
            self.cells[self.row] = (self.cells[self.row][:self.column] + self.cells[self.row][self.column + count:]
                                    + [" "] * count)[:self.columns]
        elif letter == "@":
            self.cells[self.row] = (self.cells[self.row][:self.column] + [" "] * count
                                    + self.cells[self.row][self.column:])[:self.columns]
        elif letter == "r":
            last = number[1] if len(number) > 1 else self.rows
            self.region = (min(count, self.rows) - 1, min(last, self.rows) - 1)
            self.row = self.column = 0
        elif letter in "ST":
            self.scroll(self.region[0], count if letter == "S" else -count)
        elif letter in "LM":
            self.scroll(self.row, count if letter == "M" else -count)
        elif letter == "b":
            for _ in range(count):
                self.put(self.last)
        elif letter not in "mhlt":
            raise AssertionError(f"ESC [ {numbers} {letter} is not known to this test")
        # What is drawn for a size that is over stays on the screen.
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
    """The third column of each line; a screen may be looked at while it is drawn."""
    return [(line.split() + [""] * 3)[2] for line in lines if line]


class Live(Case):
    def start(self, *arguments, rows=24, columns=150, term="xterm"):
        try:
            pid, self.terminal = pty.fork()
        except OSError as error:
            self.skipTest(f"no terminal can be opened here: {error}")
        if pid == 0:
            time.sleep(0.1)  # until the terminal has its size
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

    def until(self, condition, seconds=20):
        end = time.monotonic() + seconds
        while not condition(self.screen.lines()):
            if time.monotonic() > end or not self.read(0.1):
                self.fail("not on the screen:\n" + "\n".join(self.screen.lines()))

    def type(self, keys):
        os.write(self.terminal, keys)

    def quit(self, keys=b"q"):
        self.type(keys)
        self.expect_end(0)

    def read_while(self, condition=lambda: True):
        end = time.monotonic() + 20
        while condition() and time.monotonic() < end and self.read(0.1):
            pass

    def expect_end(self, status):
        self.read_while()
        _, state = os.waitpid(self.pid, 0)
        self.status = os.waitstatus_to_exitcode(state)
        self.assertEqual(self.status, status)

    def begin(self, *arguments, **more):
        self.start(*arguments, **more)
        self.until(lambda lines: any("xseg top" in line or "ncurses" in line for line in lines))
        if any("without ncurses" in line for line in self.screen.lines()):
            self.skipTest("xseg was built without ncurses (Debian: libncurses-dev)")

    def test_process_starts_changes_and_exits(self):
        one = self.publisher("alloc 0 40")
        self.begin("--pid", one.pid)
        self.until(lambda lines: lines[0] == "xseg top - 1 process, 1 device" and str(one.pid) in lines[3]
                   and "40.00 MiB" in lines[3] and lines[23].startswith("q quit"))
        self.assertTrue(self.screen.is_open)
        one.do("alloc 0 60")
        self.until(lambda lines: "100.00 MiB" in lines[3])
        one.do("pool kv 3")
        self.until(lambda lines: '"kv"' in lines[5])
        self.type(b"p")
        self.until(lambda lines: lines[4] == "")
        one.end(signal.SIGKILL)
        self.until(lambda lines: lines[0] == "xseg top - 0 processes, 0 devices" and "no process publishes" in lines[3])
        self.quit()
        self.assertFalse(self.screen.is_open)

    def test_the_page_shows_the_screen(self):
        shown = re.search(r"^```\n\$ xseg top\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)[1]
        service = self.folder / "service"
        service.symlink_to(pathlib.Path(PUBLISHER).resolve())
        one = self.publisher("alloc 0 3000", "pool kv_cache 1200", "refuse 0", "alloc 1 700", devices=2, program=service)
        wanted = shown.replace("   15164", f"{one.pid:8}").splitlines()
        self.begin("--pid", one.pid, columns=80)
        self.until(lambda lines: lines[:len(wanted)] == wanted)
        self.type(b"q")
        self.expect_end(0)

    def test_members_of_a_budget_file_are_listed_below(self):
        ledger = self.ledger()
        one = self.publisher("alloc 0 40", config=f"publish:True,budget_file:{ledger}")
        self.begin("--pid", one.pid, "--budget", ledger)
        self.until(lambda lines: lines[21].split()[:3] == ["PID", "COMMAND", "UUID"] and str(one.pid) in lines[22]
                   and "40.00 MiB" in lines[22] and lines[23].startswith("q quit"))
        one.end(signal.SIGKILL)
        self.until(lambda lines: lines[22] == "no process has this budget file open")
        ledger.unlink()
        self.until(lambda lines: "cannot be opened" in lines[22])
        self.quit()

    def test_keys_order_rows(self):
        one = self.publisher(devices=2)
        one.do("alloc 0 3")   # reserved 20 MiB
        one.do("alloc 1 18")  # reserved 20 MiB
        one.do("alloc 0 18")  # now 40 MiB, of which 21 are allocated
        one.do("alloc 1 19")  # 40 MiB, 37 allocated
        self.begin("--pid", one.pid, "--sort", "cached")

        def order(lines):
            return devices(lines[3:5])

        self.until(lambda lines: order(lines) == ["0", "1"])
        self.type(b"<<")  # to ALLOCATED
        self.until(lambda lines: order(lines) == ["1", "0"])
        self.type(b">>")  # CACHED again
        self.until(lambda lines: order(lines) == ["0", "1"])
        self.quit(b"xyz ?q")  # what is no key does nothing

    def test_the_terminal_is_resized_and_rows_scroll(self):
        one = self.publisher(devices=12)
        for device in range(12):
            one.do(f"alloc {device} {100 - device}")
        self.begin("--pid", one.pid)

        def shown(lines):
            return devices(lines[3:-1])

        self.until(lambda lines: shown(lines) == [str(i) for i in range(12)])
        self.size(9, 80)
        self.until(lambda lines: shown(lines) == ["0", "1", "2", "3", "4"] and lines[8].startswith("q quit"))
        self.type(b"\x1bOB\x1bOB")  # down
        self.until(lambda lines: shown(lines) == ["2", "3", "4", "5", "6"])
        self.type(b"\x1b[6~")  # page down
        self.until(lambda lines: shown(lines) == ["7", "8", "9", "10", "11"])
        self.type(b"\x1b[6~\x1b[6~\x1bOA")  # no further than the end, and up
        self.until(lambda lines: shown(lines) == ["6", "7", "8", "9", "10"])
        for rows, columns in ((2, 10), (1, 1), (4, 30)):
            self.size(rows, columns)
            time.sleep(0.2)
            self.read(0.2)
        self.size(30, 150)
        self.until(lambda lines: shown(lines) == [str(i) for i in range(12)])
        self.quit()

    def test_a_terminal_of_80_columns_shows_the_columns_in_the_order_of_their_priority(self):
        one = self.publisher("alloc 0 40", "pool kv 3", devices=20)
        for device in range(1, 20):
            one.do(f"alloc {device} {100 - device}")
        self.begin("--pid", one.pid, columns=80)
        fixed, pages = ["PID", "COMMAND", "DEVICE"], [["ALLOCATED", "CACHED", "RESERVED", "OOMS"], ["PENDING", "PEAK", "REGISTERED", "AGE"], ["REJECTED"]]
        for number, page in enumerate(pages, 1):
            self.until(lambda lines, page=page, number=number: lines[2].split() == fixed + page
                       and lines[1] == f"rows 1 to 20 of 22; column page {number} of 3"
                       and devices(lines[3:23]) == [str(i) for i in range(1, 20)] + ["0"])
            self.assertLessEqual(max(map(len, self.screen.lines())), 80)
            self.type(b"\x1bOC")  # right; the last page stays
        self.type(b"\x1bOF")  # end
        self.until(lambda lines: lines[1].startswith("rows 3 to 22 of 22")
                   and [line.split()[:1] for line in lines[21:23]] == [["default"], ['"kv"']])
        self.type(b"\x1bOD\x1bOD\x1bOD\x1bOH")  # left; home
        self.until(lambda lines: lines[1] == "rows 1 to 20 of 22; column page 1 of 3")
        self.type(b">>>")  # from RESERVED to CACHED, which then has the highest priority
        self.until(lambda lines: lines[2].split() == fixed + ["ALLOCATED", "CACHED", "RESERVED", "OOMS"])
        self.type(b">>")  # REGISTERED
        self.until(lambda lines: lines[2].split() == fixed + ["ALLOCATED", "RESERVED", "REGISTERED"])
        self.quit()

    def test_a_terminal_of_40_columns_shows_one_column_at_a_time(self):
        ledger = self.ledger()
        one = self.publisher("alloc 0 40", config=f"publish:True,budget_file:{ledger}")
        self.begin("--pid", one.pid, "--budget", ledger, rows=10, columns=40)
        self.until(lambda lines: lines[2].split() == ["PID", "COMMAND", "DEVICE", "RESERVED"]
                   and lines[1].startswith("column page 1 of ") and lines[3].split()[1:] == ["test-pub", "0", "40.00", "MiB"]
                   and lines[7].split() == ["PID", "COMMAND", "PHYSICAL"] and lines[8].endswith("40.00 MiB")
                   and lines[9] == "q quit  < > sort  p pools  arrows scroll")
        for column in ("ALLOCATED", "CACHED", "OOMS", "PEAK"):
            self.type(b"\x1bOC")
            self.until(lambda lines, column=column: column in lines[2].split())
            self.assertLessEqual(max(map(len, self.screen.lines())), 40)
        self.quit()

    def test_a_signal_gives_the_terminal_back(self):
        self.begin()
        os.kill(self.pid, signal.SIGTERM)
        self.read_while(lambda: self.screen.is_open)
        self.assertFalse(self.screen.is_open)
        os.waitpid(self.pid, 0)
        self.status = 0

    def test_it_ends_with_its_terminal(self):
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # what runs under nohup or `trap '' HUP` has inherited
        self.addCleanup(signal.signal, signal.SIGHUP, signal.SIG_DFL)
        self.begin("--interval", 3600)
        with open("/dev/null", "rb") as nothing:
            os.dup2(nothing.fileno(), self.terminal)
        end = time.monotonic() + 20
        while time.monotonic() < end and self.status is None:
            pid, state = os.waitpid(self.pid, os.WNOHANG)
            self.status = os.waitstatus_to_exitcode(state) if pid else None
            time.sleep(0.05)
        self.assertIsNotNone(self.status)

    def test_a_terminal_that_is_not_known(self):
        self.begin()
        self.quit()
        self.start(term="no-such-terminal")
        self.until(lambda lines: any("use --once" in line for line in lines))
        self.expect_end(2)


if __name__ == "__main__":
    TOOL, PUBLISHER = sys.argv[1:3]
    unittest.main(argv=sys.argv[:1], verbosity=2)
