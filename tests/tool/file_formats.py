# SPDX-License-Identifier: MIT
"""Tests of all commands that read snapshots, with snapshots of several versions of PyTorch and other files:
file_formats.py TOOL SOURCE_ROOT.
"""
import bz2
import gzip
import io
import json
import lzma
import os
import pickle
import re
import subprocess
import sys
import tarfile
import unittest
import zipfile

import folder_case
from folder_case import ToolCase

SNAPSHOTS = sorted(folder_case.SNAPSHOTS.glob("*.pickle.zst"))
COMMANDS = {"view": ("-o", "out"), "blame": (), "compare": ("file",), "export": ("--perfetto", "-o", "out"), "advise": (),
            "replay": ("--json",)}
SLOW = ("classic", "expandable")  # with a request of 4 TiB; advise.py tests the advice for `classic`


def load_snapshot(path):
    """Returns the snapshot in a compressed file, with a key `xseg` as in snapshots of the library."""
    snapshot = pickle.loads(subprocess.run(["zstd", "-dcq", path], capture_output=True, check=True).stdout)
    return {**snapshot, "xseg": {"format": 1, "devices": []}}


class FileFormatTest(ToolCase):
    def run_tool(self, command, contents, status=0):
        (self.folder / "file").write_bytes(contents)
        (self.folder / "out").unlink(missing_ok=True)
        completed = self.tool(command, *COMMANDS[command], "file", cwd=self.folder, status=status, text=False)
        output = (self.folder / "out").read_bytes() if (self.folder / "out").exists() else b""
        return re.sub(rb'("ns_per_event": )[0-9.]+', rb"\g<1>0", completed.stdout), completed.stderr, output

    def expect_error(self, commands, contents, message):
        for command in commands:
            stdout, error, output = self.run_tool(command, contents, status=2)
            self.assertEqual((stdout, output), (b"", b""))
            self.assertRegex(error, rf"\A[^\n]*{message}[^\n]*\n\Z", command)


class PyTorchFiles(FileFormatTest):
    def test_each_command_reads_each_snapshot(self):
        self.assertGreaterEqual(len(SNAPSHOTS), 8)
        for path in SNAPSHOTS:
            name, contents = path.name.split(".")[0], pickle.dumps(load_snapshot(path), 4)
            for command in COMMANDS:
                if command == "advise" and name in SLOW:
                    continue
                with self.subTest(name=name, command=command):
                    stdout, _, output_file = self.run_tool(command, contents)
                    self.assertTrue(stdout or output_file)
                    if command == "compare":
                        self.assertIn(b"rows that do not differ", stdout)
                        self.assertNotRegex(stdout, rb"(?m)^ +[+-]\d")

    def test_commands_require_history_or_use_the_final_state(self):
        for path in SNAPSHOTS:
            contents = pickle.dumps({**load_snapshot(path), "device_traces": []}, 4)
            self.expect_error(("export",), contents, "no history was recorded")
            error = self.run_tool("advise", contents, status=2)[1]
            self.assertRegex(error, r"\nfile: no history was recorded, .* record one with [^\n]*\n\Z")
            for command in ("view", "blame", "compare"):
                self.run_tool(command, contents)


class OtherFiles(FileFormatTest):
    """Files that a command cannot read: the message names the kind of file and the remedy."""

    JSON = ("file: unsupported file, a JSON file; a memory snapshot is a pickle, "
            "which torch.cuda.memory._dump_snapshot.. or xseg_snapshot.. writes")
    SUPPORTED = r"xseg reads memory snapshots \(pickles\), and `xseg replay` and `xseg advise` read traces"

    def expect_errors(self, contents, message):
        self.expect_error(COMMANDS, contents, message)

    def test_message_names_the_program_that_unpacks_an_archive(self):
        for contents, program in ((gzip.compress(b"x"), "gzip"), (bz2.compress(b"x"), "bzip2"), (lzma.compress(b"x"), "xz")):
            for command in COMMANDS:
                self.expect_error((command,), contents, f"file: unsupported file, an? {program} file; decompress it first: `{program} -dc "
                                                        f"FILE [|] xseg {command} -`")
        tar, archive = io.BytesIO(), io.BytesIO()
        with tarfile.open(fileobj=tar, mode="w") as file:
            file.addfile(tarfile.TarInfo("a"))
        with zipfile.ZipFile(archive, "w") as file:
            file.writestr("job.pickle", b"x")
        self.expect_errors(tar.getvalue(), "file: unsupported file, a tar archive; unpack it")
        self.expect_errors(archive.getvalue(), "file: unsupported file, a zip archive; unpack it")

    def test_checkpoints_and_tensors_are_named(self):
        checkpoint = io.BytesIO()
        with zipfile.ZipFile(checkpoint, "w") as file:
            file.writestr("model/data.pkl", b"x")
        self.expect_errors(checkpoint.getvalue(), "file: unsupported file, a checkpoint that torch.save.. wrote, .*; " + self.SUPPORTED)
        self.expect_errors(pickle.dumps(0x1950a86a20f9469cfc6c, 2) + pickle.dumps(1001, 2),
                           "file: unsupported file, a checkpoint that torch.save.. of an old release wrote")
        self.expect_errors(b"\x40" + 7 * b"\0" + b'{"a":{}}' + 64 * b"\0", "file: unsupported file, a file of tensors .safetensors.")

    def test_files_of_the_profiler_are_named(self):
        for trace in ({"schemaVersion": 1, "traceEvents": []},
                      {"deviceProperties": [{"segments": []}], "traceEvents": [{"ph": "X"}]},
                      [{"ph": "X", "ts": 1, "name": "a"}]):
            text = json.dumps(trace).encode()
            for contents in (text, text[:-1], subprocess.run(["zstd", "-cq"], input=text, capture_output=True,
                                                             check=True).stdout):
                self.expect_errors(contents, "file: unsupported file, a trace of torch.profiler .*, which ui.perfetto.dev opens; a memory "
                                             "snapshot is what torch.cuda.memory")
        self.expect_errors(b"[[1, 2], [[3], [4]]]", "file: unsupported file, a JSON list of lists, as export_memory_timeline.. of "
                                                    "torch.profiler writes; " + self.SUPPORTED)

    def test_json_and_pickles_of_other_values_are_named(self):
        for contents in (b"[]", b"[1, 2]", b' [{"a": 1}]'):
            self.expect_errors(contents, self.JSON)
        self.expect_errors(b'{"a": 1}', self.JSON)
        self.expect_errors(b'\n{}', self.JSON)
        for value, kind in (({"a": 1}, "a dictionary"), ([1, 2], "a list"), ([{"a": 1}], "a list"), (None, "None"),
                            (5, "a number"), ("a", "a string"), ((), "a tuple")):
            self.expect_errors(pickle.dumps(value, 4), f"file: no memory snapshot, a pickle of {kind} without "
                                                       f"`?segments`?; torch")
        for protocol in (0, 1):
            for value in ({"a": 1}, []):
                self.expect_errors(pickle.dumps(value, protocol), "file: unsupported file, a pickle of protocol 0 or 1; pickle.dump.value, "
                                                                  "file, 4. writes one|file: unsupported file, a text file")

    def test_snapshot_as_json_is_answered_with_its_conversion(self):
        snapshot = {**load_snapshot(SNAPSHOTS[0]), "xseg": None}
        contents = json.dumps(snapshot).encode()
        self.expect_errors(contents, "file: unsupported file, a memory snapshot as JSON; xseg reads pickles, and "
                                     "pickle.dump.json.load.file., out, 4. of Python converts it")
        converted = pickle.dumps(json.loads(contents), 4)
        for command in ("blame", "view"):
            self.assertEqual(self.run_tool(command, converted), self.run_tool(command, pickle.dumps(snapshot, 4)))

    def test_other_kinds_of_files_are_named(self):
        for contents, message in ((b"", "file: the file is empty; " + self.SUPPORTED),
                                  (b"hello\n", "file: unsupported file, a text file that begins with 'hello'; " + self.SUPPORTED),
                                  (b"\x7fELF\2\1\1" + 64 * b"\0", "unsupported file, a program or library"),
                                  (bytes(range(256)), "unsupported file, binary data of no known format; " + self.SUPPORTED),
                                  (b"<!DOCTYPE html>\n<html>", "unsupported file, a page of HTML"),
                                  (b"# HELP a b\n", "unsupported file, a dump of metrics"),
                                  (b"\xef\xbb\xbfxtrace 1\n", "unsupported file, UTF-8 text with a byte order mark"),
                                  ("xtrace".encode("utf-16"), "unsupported file, UTF-16 text"), (b"%PDF-1.7\n", "unsupported file, a PDF document")):
            self.expect_errors(contents, message)

    def test_files_of_the_tool_are_named(self):
        snapshot = SNAPSHOTS[0].read_bytes()
        for command, message in (("view", "a page that `xseg view` wrote, which a browser opens"),
                                 ("export", "a trace of Perfetto")):
            self.expect_errors(self.run_tool(command, snapshot)[2], "file: unsupported file, " + message)
        for option, message in (("--timeline", "a timeline that `xseg replay --timeline` wrote"),
                                ("--history", "a history that `xseg replay --history` wrote")):
            self.expect_errors(self.tool("replay", option, "-", "--json", SNAPSHOTS[0], text=False).stdout,
                               "file: unsupported file, " + message)

    def test_message_about_a_trace_names_its_commands(self):
        self.expect_error(("view", "blame", "compare", "export"), b"xtrace 1\na 1 512 0\n",
                          "file: unsupported file, a trace, which `xseg replay` and `xseg advise` read; other commands read memory snapshots")

    def test_message_about_a_folder_names_its_commands(self):
        for arguments in (("view", ".", "-o", "out"), ("export", "--perfetto", ".", "-o", "out"), ("replay", ".")):
            self.assertEqual(self.tool(*arguments, status=2, cwd=self.folder).stderr,
                             ".: unsupported file, a folder; `xseg compare`, `xseg blame` and `xseg advise` read folders with a "
                             "snapshot of each rank\n")
            self.assertFalse((self.folder / "out").exists())

    def test_file_in_place_of_a_command_or_string_is_named(self):
        (self.folder / "job.pickle").touch()
        for arguments, message in ((("job.pickle",), "xseg: no command before the file 'job.pickle'"),
                                   (("config", "job.pickle"), "xseg config: 'job.pickle' is a file; the command takes a "
                                                              "configuration string"),
                                   (("compare", "absent"), "absent: cannot be opened: No such file")):
            self.assertIn(message, self.tool(*arguments, status=2, cwd=self.folder).stderr)


if __name__ == "__main__":
    del sys.argv[1:]
    os.environ.pop("NO_COLOR", None)
    unittest.main()
