# SPDX-License-Identifier: MIT
"""Every command that reads snapshots, on each that PyTorch has written, as a pickle and as JSON: forms.py TOOL SOURCE_ROOT."""
import json
import os
import pathlib
import pickle
import re
import subprocess
import sys
import tempfile
import unittest

TOOL, ROOT = sys.argv[1], pathlib.Path(sys.argv[2])
SNAPSHOTS = sorted((ROOT / "tests/data/snapshots").glob("*.pickle.zst"))
# What a build with self-checks says first.
CHECKED = re.compile(r"^xseg: this libxseg checks itself [^\n]*\n", re.MULTILINE)
READERS = {"view": ("-o", "out"), "blame": (), "compare": ("file",), "export": ("--perfetto", "-o", "out"), "advise": (),
           "replay": ("--json",)}
SLOW = ("classic", "expandable")  # advice on these is in advise.py


def as_json(snapshot):
    """As xseg_snapshot() writes it: a stack is its place in `xseg.stacks`."""
    stacks = []

    def place(frames):
        if not frames:
            return -1
        if frames not in stacks:
            stacks.append(frames)
        return stacks.index(frames)

    def turned(value):
        if isinstance(value, dict):
            return {key: place(inner) if key == "frames" else turned(inner) for key, inner in value.items()}
        return [turned(inner) for inner in value] if isinstance(value, (list, tuple)) else value

    said = turned(snapshot)
    return {**said, "xseg": {**said.get("xseg", {}), "stacks": stacks}}


def unpacked(path):
    """The snapshot in a file that is compressed, with the key that makes it xseg's."""
    said = pickle.loads(subprocess.run(["zstd", "-dcq", path], capture_output=True, check=True).stdout)
    return {**said, "xseg": {"format": 1, "devices": []}}


class Forms(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()  # pylint: disable=consider-using-with
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def run_tool(self, command, contents, status=0):
        """What a command writes and says of a file with these bytes."""
        (self.folder / "file").write_bytes(contents)
        (self.folder / "out").unlink(missing_ok=True)
        done = subprocess.run([TOOL, command, *READERS[command], "file"], cwd=self.folder, capture_output=True, check=False,
                              timeout=300)
        said = CHECKED.sub("", done.stderr.decode())
        self.assertEqual(done.returncode, status, f"{command}: {said}{done.stdout.decode()}")
        out = (self.folder / "out").read_bytes() if (self.folder / "out").exists() else b""
        return re.sub(rb'("ns_per_event": )[0-9.]+', rb"\g<1>0", done.stdout), said, out

    def refused(self, commands, contents, words):
        for command in commands:
            stdout, said, out = self.run_tool(command, contents, status=2)
            self.assertEqual((stdout, out), (b"", b""))
            self.assertRegex(said, rf"\A[^\n]*{words}[^\n]*\n\Z", command)


class FromPyTorch(Forms):
    def test_each_file_meets_each_command_in_both_forms(self):
        self.assertGreaterEqual(len(SNAPSHOTS), 8)
        for path in SNAPSHOTS:
            name = path.name.split(".")[0]
            snapshot = unpacked(path)
            forms = pickle.dumps(snapshot, 4), json.dumps(as_json(snapshot)).encode()
            for command in READERS:
                if command == "advise" and name in SLOW:
                    continue
                with self.subTest(name=name, command=command):
                    first = self.run_tool(command, forms[0])
                    self.assertTrue(first[0] or first[2])
                    if command != "advise" or name == "ring":
                        self.assertEqual(self.run_tool(command, forms[1]), first)
                    if command == "compare":
                        self.assertIn(b"rows that do not differ", first[0])
                        self.assertNotRegex(first[0], rb"(?m)^ +[+-]\d")

    def test_without_a_history(self):
        for path in SNAPSHOTS:
            snapshot = {**unpacked(path), "device_traces": []}
            for form in (pickle.dumps(snapshot, 4), json.dumps(as_json(snapshot)).encode()):
                self.refused(("export",), form, "there is no history")
                said = self.run_tool("advise", form, status=2)[1]
                self.assertRegex(said, r"\nfile: there is no history in this snapshot, .* record one with [^\n]*\n\Z")
                for command in ("view", "blame", "compare"):
                    self.run_tool(command, form)


class Texts(Forms):
    """JSON of all kinds, as a snapshot of one block; what is wrong has its line and column."""

    BLOCK = {"device": 0, "address": 1 << 40, "total_size": 512, "stream": 0, "segment_pool_id": [0, 0],
             "blocks": [{"size": 512, "requested_size": 500, "state": "active_allocated", "frames": []}]}

    def live(self, text):
        return json.loads(self.run_tool("replay", text.encode())[0])["peak_requested"]

    def test_what_json_may_have(self):
        block = json.dumps(self.BLOCK)
        more = r'{"a\u00e9\"": [true, false, null, -1, 1.5e3, 9223372036854775807, {}, [], "\ud83d\ude00 é"]}'
        escaped = block.replace("frames", r"fram\u0065s")
        for text in (f'{{"segments": [{block}]}}', f'{{ "m" : {more},\n\t"segments":[ {block} ] }}\n', f'{{"x": {more}, "segments": [{block}]}}',
                     f'{{"segments": [{escaped}]}}'):
            self.assertEqual(self.live(text), 500)
        many = ",".join([json.dumps({**self.BLOCK, "address": (1 << 40) + (at << 20)}) for at in range(2500)])
        self.assertEqual(self.live(f'{{"segments": [{many}]}}'), 2500 * 500)

    def test_a_compressed_one(self):
        text = f'{{"segments": [{json.dumps(self.BLOCK)}]}}'.encode()
        packed = subprocess.run(["zstd", "-cq"], input=text, capture_output=True, check=True).stdout
        self.assertEqual(self.run_tool("blame", packed), self.run_tool("blame", text))

    def test_bad_json(self):
        for text, words in (('{"segments": [}', r"line 1, column 15: .*"), ('{"segments":\n [1 2]}', "line 2, column 5: a `,` or `\\]` is missing"),
                            ('{"a" 1}', "line 1, column 6: a `:` is missing behind a key"), ("{1: 2}", "line 1, column 2: a key is no text"),
                            ('{"a": 1, }', "line 1, column 10: a key is no text"), ('{"a": 01}', "line 1, column 7: .*"),
                            ('{"a": 99999999999999999999}', "line 1, column 7: too big integer"), ('{"a": nul}', "line 1, column 7: .*nul"),
                            ('{"a": "\\q"}', "line 1, column 7: invalid escape"), ('{"a": "\x01"}', "line 1, column 7: control character"),
                            ('{"segments": []} x', "line 1, column 18: something stands behind the end of the JSON"),
                            ('{"a": 1 "b": 2}', "line 1, column 9: a `,` or `}` is missing"),
                            ('{"a": ' + 70 * "[", "line 1, column 71: values lie more than 64 deep in each other"),
                            ('{"frames": 1, "xseg": {"stacks": [[]]}}', "line 1, column 12: there is no stack 1 in `xseg.stacks`"),
                            ('{"frames": -2}', "line 1, column 12: there is no stack -2 in `xseg.stacks`"),
                            ('{"a": 1}', "there are no `segments`")):
            self.refused(("replay", "blame"), text.encode(), words)
        whole = json.dumps({"segments": [self.BLOCK], "xseg": {"stacks": [[{"name": "a"}]]}})
        for cut in range(1, len(whole)):
            self.refused(("replay",), whole[:cut].encode(), "line 1, column [0-9]+: .*")
        self.refused(("view", "compare", "export", "advise"), b"{", "line 1, column 2: the file was cut")
        self.refused(("blame",), b'{"a": "\xff"}', "line 1, column 7: unable to decode byte 0xff")

    def test_none_of_the_forms(self):
        self.refused(("replay", "advise"), b"hello\n", "`xtrace 1`; what is read are traces, tapes, and memory snapshots as pickle or JSON")
        self.refused(("view", "blame", "compare", "export"), b"hello\n", "this is no pickle .* and no JSON; what is read is a snapshot as one of these")


if __name__ == "__main__":
    del sys.argv[1:]
    os.environ.pop("NO_COLOR", None)
    unittest.main()
