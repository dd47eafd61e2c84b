# SPDX-License-Identifier: MIT
"""Every command that reads snapshots, with snapshots of several versions of PyTorch, and with files of other kinds: forms.py
TOOL SOURCE_ROOT.
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
READERS = {"view": ("-o", "out"), "blame": (), "compare": ("file",), "export": ("--perfetto", "-o", "out"), "advise": (),
           "replay": ("--json",)}
SLOW = ("classic", "expandable")  # both ask for 4 TiB; advice on the first is in advise.py


def unpacked(path):
    """The snapshot in a file that is compressed, with the key that makes it xseg's."""
    said = pickle.loads(subprocess.run(["zstd", "-dcq", path], capture_output=True, check=True).stdout)
    return {**said, "xseg": {"format": 1, "devices": []}}


class Forms(ToolCase):
    def run_tool(self, command, contents, status=0):
        (self.folder / "file").write_bytes(contents)
        (self.folder / "out").unlink(missing_ok=True)
        done = self.tool(command, *READERS[command], "file", cwd=self.folder, status=status, text=False)
        out = (self.folder / "out").read_bytes() if (self.folder / "out").exists() else b""
        return re.sub(rb'("ns_per_event": )[0-9.]+', rb"\g<1>0", done.stdout), done.stderr, out

    def refused(self, commands, contents, words):
        for command in commands:
            stdout, said, out = self.run_tool(command, contents, status=2)
            self.assertEqual((stdout, out), (b"", b""))
            self.assertRegex(said, rf"\A[^\n]*{words}[^\n]*\n\Z", command)


class FromPyTorch(Forms):
    def test_each_command_reads_each_file(self):
        self.assertGreaterEqual(len(SNAPSHOTS), 8)
        for path in SNAPSHOTS:
            name = path.name.split(".")[0]
            contents = pickle.dumps(unpacked(path), 4)
            for command in READERS:
                if command == "advise" and name in SLOW:
                    continue
                with self.subTest(name=name, command=command):
                    printed, _, written = self.run_tool(command, contents)
                    self.assertTrue(printed or written)
                    if command == "compare":
                        self.assertIn(b"rows that do not differ", printed)
                        self.assertNotRegex(printed, rb"(?m)^ +[+-]\d")

    def test_without_a_history(self):
        for path in SNAPSHOTS:
            contents = pickle.dumps({**unpacked(path), "device_traces": []}, 4)
            self.refused(("export",), contents, "no history was recorded")
            said = self.run_tool("advise", contents, status=2)[1]
            self.assertRegex(said, r"\nfile: no history was recorded, .* record one with [^\n]*\n\Z")
            for command in ("view", "blame", "compare"):
                self.run_tool(command, contents)


class Others(Forms):
    """Files that no command, or another one, reads: the message says what the file is, and what to do."""

    JSON = "file: it is a JSON file; a memory snapshot is a pickle, which torch.cuda.memory._dump_snapshot.. or xseg_snapshot.. writes"
    SNAPSHOTS = r"xseg reads memory snapshots \(pickles\), and `xseg replay` and `xseg advise` read traces"

    def every(self, contents, words):
        self.refused(READERS, contents, words)

    def test_compressed_files_and_archives_name_the_program_that_unpacks_them(self):
        for contents, program in ((gzip.compress(b"x"), "gzip"), (bz2.compress(b"x"), "bzip2"), (lzma.compress(b"x"), "xz")):
            for command in READERS:
                self.refused((command,), contents, f"file: it is an? {program} file; decompress it first: `{program} -dc FILE [|] xseg {command} -`")
        tar, archive = io.BytesIO(), io.BytesIO()
        with tarfile.open(fileobj=tar, mode="w") as file:
            file.addfile(tarfile.TarInfo("a"))
        with zipfile.ZipFile(archive, "w") as file:
            file.writestr("job.pickle", b"x")
        self.every(tar.getvalue(), "file: it is a tar archive; unpack it")
        self.every(archive.getvalue(), "file: it is a zip archive; unpack it")

    def test_checkpoints_and_tensors_are_named(self):
        checkpoint = io.BytesIO()
        with zipfile.ZipFile(checkpoint, "w") as file:
            file.writestr("model/data.pkl", b"x")
        self.every(checkpoint.getvalue(), "file: it is a checkpoint that torch.save.. wrote, .*; " + self.SNAPSHOTS)
        self.every(pickle.dumps(0x1950a86a20f9469cfc6c, 2) + pickle.dumps(1001, 2), "file: it is a checkpoint that torch.save.. of an old release wrote")
        self.every(b"\x40" + 7 * b"\0" + b'{"a":{}}' + 64 * b"\0", "file: it is a file of tensors .safetensors.")

    def test_traces_and_lists_of_a_profiler_are_named(self):
        for trace in ({"schemaVersion": 1, "traceEvents": []}, {"deviceProperties": [{"segments": []}], "traceEvents": [{"ph": "X"}]},
                      [{"ph": "X", "ts": 1, "name": "a"}]):
            whole = json.dumps(trace).encode()
            for contents in (whole, whole[:-1], subprocess.run(["zstd", "-cq"], input=whole, capture_output=True, check=True).stdout):
                self.every(contents, "file: it is a trace of torch.profiler .*, which ui.perfetto.dev opens; a memory snapshot is what torch.cuda.memory")
        self.every(b"[[1, 2], [[3], [4]]]", "file: it is a JSON list of lists, as export_memory_timeline.. of torch.profiler writes; " + self.SNAPSHOTS)

    def test_json_and_pickles_of_other_values_are_named(self):
        for contents in (b"[]", b"[1, 2]", b' [{"a": 1}]'):
            self.every(contents, self.JSON)
        self.every(b'{"a": 1}', self.JSON)
        self.every(b'\n{}', self.JSON)
        for value, kind in (({"a": 1}, "a dictionary"), ([1, 2], "a list"), ([{"a": 1}], "a list"), (None, "None"), (5, "a number"), ("a", "a string"),
                            ((), "a tuple")):
            self.every(pickle.dumps(value, 4), f"file: it is no memory snapshot: a pickle of {kind} without `?segments`?; torch")
        for protocol in (0, 1):
            for value in ({"a": 1}, []):
                self.every(pickle.dumps(value, protocol), "file: it is a pickle of protocol 0 or 1; pickle.dump.value, file, 4. writes one|"
                                                          "file: it is a text file")

    def test_a_snapshot_as_json_names_its_conversion(self):
        snapshot = {**unpacked(SNAPSHOTS[0]), "xseg": None}
        contents = json.dumps(snapshot).encode()
        self.every(contents, "file: it is a memory snapshot as JSON; xseg reads pickles, and pickle.dump.json.load.file., out, 4. of Python converts it")
        converted = pickle.dumps(json.loads(contents), 4)
        for command in ("blame", "view"):
            self.assertEqual(self.run_tool(command, converted), self.run_tool(command, pickle.dumps(snapshot, 4)))

    def test_everything_else_is_named(self):
        for contents, words in ((b"", "file: the file is empty; " + self.SNAPSHOTS), (b"hello\n", "file: it is a text file that begins with 'hello'; " + self.SNAPSHOTS),
                                (b"\x7fELF\2\1\1" + 64 * b"\0", "it is a program or library"), (bytes(range(256)), "it is binary data of no known format; " + self.SNAPSHOTS),
                                (b"<!DOCTYPE html>\n<html>", "it is a page of HTML"), (b"# HELP a b\n", "it is a dump of metrics"),
                                (b"\xef\xbb\xbfxtrace 1\n", "it is UTF-8 text with a byte order mark"), ("xtrace".encode("utf-16"), "it is UTF-16 text"),
                                (b"%PDF-1.7\n", "it is a PDF document")):
            self.every(contents, words)

    def test_files_of_the_tool_are_named(self):
        snapshot = SNAPSHOTS[0].read_bytes()
        for command, words in (("view", "a page that `xseg view` wrote, which a browser opens"), ("export", "a trace of Perfetto")):
            self.every(self.run_tool(command, snapshot)[2], "file: it is " + words)
        for option, words in (("--timeline", "a timeline that `xseg replay --timeline` wrote"), ("--history", "a history that `xseg replay --history` wrote")):
            self.every(self.tool("replay", option, "-", "--json", SNAPSHOTS[0], text=False).stdout,
                       "file: it is " + words)

    def test_a_trace_names_the_commands_that_read_it(self):
        self.refused(("view", "blame", "compare", "export"), b"xtrace 1\na 1 512 0\n", "file: it is a trace, which `xseg replay` and `xseg advise` read; "
                                                                                     "other commands read memory snapshots")

    def test_a_folder_names_the_commands_that_read_it(self):
        for arguments in (("view", ".", "-o", "out"), ("export", "--perfetto", ".", "-o", "out"), ("replay", ".")):
            self.assertEqual(self.tool(*arguments, status=2, cwd=self.folder).stderr,
                             ".: it is a folder; `xseg compare`, `xseg blame` and `xseg advise` read folders with a "
                             "snapshot of each rank\n")
            self.assertFalse((self.folder / "out").exists())

    def test_a_file_that_is_no_command_or_string_is_named(self):
        (self.folder / "job.pickle").touch()
        for arguments, words in ((("job.pickle",), "xseg: no command before the file 'job.pickle'"),
                                 (("config", "job.pickle"), "xseg config: 'job.pickle' is a file; the command takes a configuration string"),
                                 (("compare", "absent"), "absent: cannot be opened: No such file")):
            self.assertIn(words, self.tool(*arguments, status=2, cwd=self.folder).stderr)


if __name__ == "__main__":
    del sys.argv[1:]
    os.environ.pop("NO_COLOR", None)
    unittest.main()
