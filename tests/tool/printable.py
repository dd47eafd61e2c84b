# SPDX-License-Identifier: MIT
"""Bytes of untrusted text that are not printable ASCII are escaped as \\xNN: printable.py TOOL.

Such text comes from arguments, file names, traces, snapshots and the environment.
"""
import json
import os
import pathlib
import pickle
import subprocess
import sys
import unittest

from folder_case import FolderCase

ESCAPE = b"a\x1b[31m\n\x7f\xc3\xa9\r\tb"
SHOWN = rb"a\x1b[31m\x0a\x7f\xc3\xa9\x0d\x09b"
TRACE = b"xtrace 1\na 0 512 0\nf 0\n"


class Printable(FolderCase):
    def file(self, contents, name=b"t"):
        path = os.path.join(os.fsencode(self.folder), name)
        pathlib.Path(os.fsdecode(path)).write_bytes(contents)
        return path

    def run_tool(self, *arguments, status, stdin_data=b"", **variables):
        """What it prints on both streams, of which every byte but the ends of lines can be printed."""
        done = subprocess.run([TOOL, *arguments], capture_output=True, input=stdin_data,
                              check=False, env={**os.environ, **variables})
        self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        for stream in (done.stdout, done.stderr):
            self.assertTrue(all(32 <= byte < 127 or byte == 10 for byte in stream), stream)
        return done.stdout, done.stderr

    def complained(self, words, *arguments, status=2, stdin_data=b"", **variables):
        _, error = self.run_tool(*arguments, status=status, stdin_data=stdin_data, **variables)
        self.assertTrue(any(words in line for line in error.split(b"\n")), error)
        return error


class Names(Printable):
    def test_of_a_file_that_is_not_there(self):
        self.complained(SHOWN + b": cannot be opened: No such file", "replay",
                        os.path.join(os.fsencode(self.folder), ESCAPE))

    def test_of_a_bad_trace(self):
        self.complained(SHOWN + b":2: unknown operation, 'x'", "replay", self.file(b"xtrace 1\nx\n", ESCAPE))

    def test_of_a_trace_in_the_report(self):
        said, error = self.run_tool("replay", self.file(TRACE, ESCAPE), status=0)
        self.assertTrue(said.split(b"\n")[0].endswith(b"/" + SHOWN), said)
        self.assertNotIn(SHOWN, error)

    def test_of_a_tape_that_does_not_agree(self):
        tape = b"xtrace 1\nc \na 0 512 0\n= 1 2 3 4 5 6 7 8 9\n"
        self.complained(SHOWN + b":4: allocated_bytes is 512, expected 1", "replay", "--check", self.file(tape, ESCAPE),
                        status=1)
        self.complained(SHOWN + b": --check requires a tape", "replay", "--check", self.file(TRACE, ESCAPE))

    def test_of_options_that_do_not_fit_a_file(self):
        path = self.file(TRACE, ESCAPE)
        self.complained(SHOWN + b": --device selects", "replay", "--device", "0", path)
        self.complained(SHOWN + b": no allocator can be opened with the configuration '" + SHOWN,
                        "replay", "--config", ESCAPE, path)

    def test_of_a_timeline(self):
        nowhere = os.path.join(os.fsencode(self.folder), b"no", ESCAPE)
        self.complained(SHOWN + b" cannot be written: ", "replay", "--timeline", nowhere, self.file(TRACE))

    def test_of_a_folder(self):
        folder = os.path.join(os.fsencode(self.folder), ESCAPE)
        os.mkdir(folder)
        self.complained(SHOWN + b": it is a folder; ", "replay", folder)

    def test_of_a_snapshot(self):
        path = self.file(pickle.dumps({"segments": [], "device_traces": [[]]}), ESCAPE)
        self.complained(SHOWN + b": nothing to replay, device 0", "replay", path)


class Contents(Printable):
    def test_of_a_bad_line(self):
        for line, words in ((b"\x1b[2J 1", rb"unknown operation, '\x1b[2J'"),
                            (b"a \x1b 512 0", rb"'\x1b' is not a decimal number"),
                            (b"a 0 512 0\n! \x1b", rb"not by '\x1b'"),
                            (b"s \xff 1", rb"unknown statistic, '\xff'")):
            with self.subTest(line):
                self.complained(words, "replay", self.file(b"xtrace 1\n" + line + b"\n"))
        self.complained(rb"unsupported version of the format, '\x1b'", "replay", self.file(b"xtrace \x1b\n"))

    def test_of_a_long_word(self):
        self.complained(rb"unknown operation, '" + 32 * rb"\x1b" + b"...'", "replay",
                        self.file(b"xtrace 1\n" + 100 * b"\x1b" + b"\n"))

    def test_of_a_configuration(self):
        self.complained(b"not printable", "replay", self.file(b"xtrace 1\nc \x1b\n"))

    def test_of_a_mark(self):
        out = self.folder / "timeline"
        self.run_tool("replay", "--timeline", out, self.file(
            b"xtrace 1\na 0 512 0\nm \x1b[2J\xc3\xa9\nf 0\n"), status=0)
        self.assertIn(b"# mark\t1\t" + rb"\x1b[2J\xc3\xa9" + b"\n", out.read_bytes())

    def test_of_a_damaged_snapshot(self):
        for contents in (b"\x80\x04\x95\x1b", b"\x80\x04\x8c\x01\x1b.", b"\x80\x02}q\x00\x1b\xff"):
            with self.subTest(contents):
                self.complained(b": ", "replay", self.file(contents))


class Arguments(Printable):
    def test_commands(self):
        for arguments in ((ESCAPE,), ("help", ESCAPE)):
            self.complained(b"unknown command '" + SHOWN + b"'", *arguments)

    def test_options(self):
        for arguments, words in (
                ((b"--" + ESCAPE,), b"unrecognized option '--" + SHOWN + b"'"),
                ((b"--help" + ESCAPE,), b"unrecognized option '--help" + SHOWN + b"'"),
                ((b"-\x1b",), rb"invalid option -- '\x1b'"),
                ((b"--help=" + ESCAPE,), b"option '--help' doesn't allow an argument"),
                ((b"--co=" + ESCAPE,), b"option '--co' is ambiguous"),
                (("--config",), b"option '--config' requires an argument"),
                (("--tick", ESCAPE, "t"), b"--tick takes ")):
            with self.subTest(arguments):
                self.complained(words, "replay", *arguments)
        self.complained(b"unrecognized option '--" + SHOWN + b"'", b"--" + ESCAPE)
        self.complained(b"too many arguments, '" + SHOWN + b"'", "config", "", ESCAPE)

    def test_costs(self):
        self.complained(b"xseg probe: ", "probe", "--costs", ESCAPE)


class Environment(Printable):
    def test_configurations(self):
        self.complained(b"(source: XSEG_ALLOC_CONF)", "config", XSEG_ALLOC_CONF=os.fsdecode(ESCAPE))
        self.complained(b"(source: argument)", "config", ESCAPE)

    def test_values_of_keys(self):
        key, value = b"oom_snapshot:", b"/" + 200 * b"\xff"
        said, _ = self.run_tool("config", key + value, status=0)
        self.assertEqual(said.count(rb"\xff"), 400)
        said, _ = self.run_tool("config", "--keys", key + value, status=0)
        self.assertEqual(said.count(rb"\xff"), 200)
        # A string is shown whole, whatever its length.
        said, _ = self.run_tool("config", b",".join(30 * [key + value]), status=0)
        self.assertEqual(said.count(rb"\xff"), 31 * 200)

    def test_json_stays_json(self):
        said, _ = self.run_tool("replay", "--json", self.file(TRACE, b"\xff"), status=0)
        self.assertTrue(json.loads(said)["trace"].endswith(r"/\xff"))

    def test_the_simulator(self):
        for variable in ("XSEG_SIM_COSTS", "XSEG_SIM_DEVICES"):
            self.run_tool("probe", status=2, **{variable: os.fsdecode(ESCAPE)})


if __name__ == "__main__":
    TOOL = sys.argv[1]
    unittest.main(argv=sys.argv[:1])
