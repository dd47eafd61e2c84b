# SPDX-License-Identifier: MIT
"""Tests that bytes of untrusted text that are not printable ASCII are escaped as \\xNN: printable.py TOOL.

Such text is in arguments, file names, traces, snapshots and the environment.
"""
import json
import os
import pathlib
import pickle
import subprocess
import sys
import unittest

from folder_case import FolderCase

UNTRUSTED = b"a\x1b[31m\n\x7f\xc3\xa9\r\tb"
ESCAPED = rb"a\x1b[31m\x0a\x7f\xc3\xa9\x0d\x09b"
TRACE = b"xtrace 1\na 0 512 0\nf 0\n"


class PrintableTest(FolderCase):
    def file(self, contents, name=b"t"):
        path = os.path.join(os.fsencode(self.folder), name)
        pathlib.Path(os.fsdecode(path)).write_bytes(contents)
        return path

    def run_tool(self, *arguments, status, stdin_data=b"", **variables):
        """Returns both outputs of the tool after a check that all bytes are printable or newlines."""
        completed = subprocess.run([TOOL, *arguments], capture_output=True, input=stdin_data,
                                   check=False, env={**os.environ, **variables})
        self.assertEqual(completed.returncode, status, completed.stdout + completed.stderr)
        for stream in (completed.stdout, completed.stderr):
            self.assertTrue(all(32 <= byte < 127 or byte == 10 for byte in stream), stream)
        return completed.stdout, completed.stderr

    def expect_message(self, message, *arguments, status=2, stdin_data=b"", **variables):
        _, error = self.run_tool(*arguments, status=status, stdin_data=stdin_data, **variables)
        self.assertTrue(any(message in line for line in error.split(b"\n")), error)
        return error


class Names(PrintableTest):
    def test_name_of_a_missing_file_is_escaped(self):
        self.expect_message(ESCAPED + b": cannot be opened: No such file", "replay",
                            os.path.join(os.fsencode(self.folder), UNTRUSTED))

    def test_name_of_a_bad_trace_is_escaped(self):
        self.expect_message(ESCAPED + b":2: unknown operation, 'x'", "replay", self.file(b"xtrace 1\nx\n", UNTRUSTED))

    def test_name_of_a_trace_is_escaped_in_the_report(self):
        output, error = self.run_tool("replay", self.file(TRACE, UNTRUSTED), status=0)
        self.assertTrue(output.split(b"\n")[0].endswith(b"/" + ESCAPED), output)
        self.assertNotIn(ESCAPED, error)

    def test_name_of_a_differing_tape_is_escaped(self):
        tape = b"xtrace 1\nc \na 0 512 0\n= 1 2 3 4 5 6 7 8 9\n"
        self.expect_message(ESCAPED + b":4: allocated_bytes is 512, expected 1", "replay", "--check", self.file(tape, UNTRUSTED),
                            status=1)
        self.expect_message(ESCAPED + b": --check requires a tape", "replay", "--check", self.file(TRACE, UNTRUSTED))

    def test_name_of_a_file_with_unsuitable_options_is_escaped(self):
        path = self.file(TRACE, UNTRUSTED)
        self.expect_message(ESCAPED + b": --device selects", "replay", "--device", "0", path)
        self.expect_message(ESCAPED + b": no allocator can be opened with the configuration '" + ESCAPED,
                            "replay", "--config", UNTRUSTED, path)

    def test_name_of_a_timeline_is_escaped(self):
        missing_path = os.path.join(os.fsencode(self.folder), b"no", UNTRUSTED)
        self.expect_message(ESCAPED + b" cannot be written: ", "replay", "--timeline", missing_path, self.file(TRACE))

    def test_name_of_a_folder_is_escaped(self):
        folder = os.path.join(os.fsencode(self.folder), UNTRUSTED)
        os.mkdir(folder)
        self.expect_message(ESCAPED + b": unsupported file, a folder; ", "replay", folder)

    def test_name_of_a_snapshot_is_escaped(self):
        path = self.file(pickle.dumps({"segments": [], "device_traces": [[]]}), UNTRUSTED)
        self.expect_message(ESCAPED + b": nothing to replay, device 0", "replay", path)


class Contents(PrintableTest):
    def test_invalid_line_of_a_trace_is_escaped(self):
        for line, message in ((b"\x1b[2J 1", rb"unknown operation, '\x1b[2J'"),
                              (b"a \x1b 512 0", rb"'\x1b' is not a decimal number"), (b"a 0 512 0\n! \x1b", rb"not by '\x1b'"),
                              (b"s \xff 1", rb"unknown statistic, '\xff'")):
            with self.subTest(line):
                self.expect_message(message, "replay", self.file(b"xtrace 1\n" + line + b"\n"))
        self.expect_message(rb"unsupported version of the format, '\x1b'", "replay", self.file(b"xtrace \x1b\n"))

    def test_long_word_is_escaped_and_truncated(self):
        self.expect_message(rb"unknown operation, '" + 32 * rb"\x1b" + b"...'", "replay",
                            self.file(b"xtrace 1\n" + 100 * b"\x1b" + b"\n"))

    def test_unprintable_configuration_is_rejected(self):
        self.expect_message(b"not printable", "replay", self.file(b"xtrace 1\nc \x1b\n"))

    def test_mark_is_escaped_in_the_timeline(self):
        timeline = self.folder / "timeline"
        self.run_tool("replay", "--timeline", timeline, self.file(b"xtrace 1\na 0 512 0\nm \x1b[2J\xc3\xa9\nf 0\n"), status=0)
        self.assertIn(b"# mark\t1\t" + rb"\x1b[2J\xc3\xa9" + b"\n", timeline.read_bytes())

    def test_contents_of_a_damaged_snapshot_are_escaped(self):
        for contents in (b"\x80\x04\x95\x1b", b"\x80\x04\x8c\x01\x1b.", b"\x80\x02}q\x00\x1b\xff"):
            with self.subTest(contents):
                self.expect_message(b": ", "replay", self.file(contents))


class Arguments(PrintableTest):
    def test_unknown_command_is_escaped(self):
        for arguments in ((UNTRUSTED,), ("help", UNTRUSTED)):
            self.expect_message(b"unknown command '" + ESCAPED + b"'", *arguments)

    def test_unknown_option_is_escaped(self):
        for arguments, message in (
                ((b"--" + UNTRUSTED,), b"unrecognized option '--" + ESCAPED + b"'"),
                ((b"--help" + UNTRUSTED,), b"unrecognized option '--help" + ESCAPED + b"'"),
                ((b"-\x1b",), rb"invalid option -- '\x1b'"),
                ((b"--help=" + UNTRUSTED,), b"option '--help' doesn't allow an argument"),
                ((b"--co=" + UNTRUSTED,), b"option '--co' is ambiguous"),
                (("--config",), b"option '--config' requires an argument"), (("--tick", UNTRUSTED, "t"), b"--tick takes ")):
            with self.subTest(arguments):
                self.expect_message(message, "replay", *arguments)
        self.expect_message(b"unrecognized option '--" + ESCAPED + b"'", b"--" + UNTRUSTED)
        self.expect_message(b"too many arguments, '" + ESCAPED + b"'", "config", "", UNTRUSTED)

    def test_unknown_costs_are_escaped(self):
        self.expect_message(b"xseg probe: ", "probe", "--costs", UNTRUSTED)


class Environment(PrintableTest):
    def test_invalid_configuration_is_escaped(self):
        self.expect_message(b"(source: XSEG_ALLOC_CONF)", "config", XSEG_ALLOC_CONF=os.fsdecode(UNTRUSTED))
        self.expect_message(b"(source: argument)", "config", UNTRUSTED)

    def test_values_of_keys_are_escaped(self):
        key, value = b"oom_snapshot:", b"/" + 200 * b"\xff"
        output, _ = self.run_tool("config", key + value, status=0)
        self.assertEqual(output.count(rb"\xff"), 400)
        output, _ = self.run_tool("config", "--keys", key + value, status=0)
        self.assertEqual(output.count(rb"\xff"), 200)
        # A string is not truncated.
        output, _ = self.run_tool("config", b",".join(30 * [key + value]), status=0)
        self.assertEqual(output.count(rb"\xff"), 31 * 200)

    def test_json_with_escaped_text_is_valid(self):
        output, _ = self.run_tool("replay", "--json", self.file(TRACE, b"\xff"), status=0)
        self.assertTrue(json.loads(output)["trace"].endswith(r"/\xff"))

    def test_settings_of_the_simulator_are_escaped(self):
        for variable in ("XSEG_SIM_COSTS", "XSEG_SIM_DEVICES"):
            self.run_tool("probe", status=2, **{variable: os.fsdecode(UNTRUSTED)})


if __name__ == "__main__":
    TOOL = sys.argv[1]
    unittest.main(argv=sys.argv[:1])
