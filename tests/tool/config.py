# SPDX-License-Identifier: MIT
"""Tests of `xseg config`: config.py TOOL SOURCE_ROOT."""
import ctypes
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import textwrap
import unittest

VARIABLES = ("XSEG_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")


def run(*arguments, **variables):
    environment = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    return subprocess.run([TOOL, "config", *arguments], capture_output=True, check=False, text=True, stdin=subprocess.DEVNULL,
                          errors="surrogateescape", env={**environment, **variables})


class ConfigTest(unittest.TestCase):
    def read_output(self, *arguments, **variables):
        completed = run(*arguments, **variables)
        self.assertEqual((completed.returncode, completed.stderr), (0, ""))
        return completed.stdout

    def rows(self, *arguments, **variables):
        lines = self.read_output(*arguments, **variables).splitlines()
        return {line.split()[0]: re.split(r" {1,}", line.strip(), maxsplit=3)[1:]
                for line in lines if line.startswith("  ") and not line.startswith("  key")}

    def keys(self, *arguments, **variables):
        report = json.loads(self.read_output("--json", *arguments, **variables))
        return report, {key["name"]: key for key in report["keys"]}

    def expect_error(self, message, *arguments, **variables):
        completed = run(*arguments, **variables)
        self.assertEqual((completed.returncode, completed.stdout), (2, ""))
        self.assertIn(message, completed.stderr)
        self.assertEqual(len(completed.stderr.splitlines()), 1)


class Report(ConfigTest):
    def test_default_configuration_has_no_rows(self):
        self.assertRegex(self.read_output(), r"^source    default\nstacks    call stacks are captured by .*\n\nall ")

    def test_keys_are_printed_with_their_source(self):
        self.assertEqual(self.rows(XSEG_ALLOC_CONF="idle_ms:50,page_size:fixed,expandable_segments:False,backend:native"),
                         {"idle_ms": ["50", "-1", "XSEG_ALLOC_CONF"], "expandable_segments": ["False", "True", "XSEG_ALLOC_CONF"],
                          "page_size": ["fixed", "fixed", "XSEG_ALLOC_CONF, no effect with this configuration"]})
        self.assertEqual(self.rows(PYTORCH_ALLOC_CONF="large_segment_size_mb:40"),
                         {"expandable_segments": ["False", "True", "implied by PYTORCH_ALLOC_CONF"],
                          "large_segment_size_mb": ["40", "20", "PYTORCH_ALLOC_CONF"],
                          "max_non_split_rounding_mb": ["40", "20", "implied by PYTORCH_ALLOC_CONF"]})

    def test_threshold_without_memory_fraction_has_no_effect(self):
        self.assertEqual(self.rows("garbage_collection_threshold:0.8"),
                         {"garbage_collection_threshold": ["0.8", "off", "argument, no effect without a memory fraction"]})
        self.assertFalse(self.keys("garbage_collection_threshold:0.8")[1]["garbage_collection_threshold"]["has_effect"])
        rows = self.rows("garbage_collection_threshold:0.8,per_process_memory_fraction:0.5")
        self.assertEqual(rows["garbage_collection_threshold"], ["0.8", "off", "argument"])

    def test_example_of_the_documentation_is_current(self):
        page = (ROOT / "docs/top.md").read_text(encoding="utf-8")
        example = self.read_output(PYTORCH_ALLOC_CONF="large_segment_size_mb:40") + "$ xseg config expandable_segment:True\n"
        example = re.sub(r"the other \d+ keys", "the other N keys", example)  # independent of the number of keys
        example = re.sub("\nstacks    .*\n", "\nstacks    call stacks are captured by libunwind\n", example)
        self.assertIn(f"```\n$ PYTORCH_ALLOC_CONF=large_segment_size_mb:40 xseg config\n{example}"
                      f"{textwrap.fill(run('expandable_segment:True').stderr, 100)}\n```\n", page)

    def test_unwinder_is_named(self):
        try:
            ctypes.CDLL("libunwind.so.8")
            self.assertIn("\nstacks    call stacks are captured by libunwind\n", self.read_output())
            self.assertEqual(self.keys()[0]["stacks"], "libunwind")
        except OSError:
            pass
        with tempfile.TemporaryDirectory() as folder:
            # The first file of this name is used, and this empty file cannot be loaded.
            pathlib.Path(folder, "libunwind.so.8").touch()
            self.assertIn("\nstacks    call stacks are captured by backtrace() of the C library; libunwind",
                          self.read_output(LD_LIBRARY_PATH=folder))
            self.assertEqual(self.keys(LD_LIBRARY_PATH=folder)[0]["stacks"], "backtrace")

    def test_source_of_highest_precedence_is_used(self):
        text = self.read_output(XSEG_ALLOC_CONF="", PYTORCH_ALLOC_CONF="nonsense")
        self.assertIn("source    XSEG_ALLOC_CONF\nstring    \n", text)
        self.assertIn("ignored   PYTORCH_ALLOC_CONF: ", text)
        self.assertIn("source    argument\nstring    idle_ms:5\nignored   XSEG_ALLOC_CONF: ",
                      self.read_output("idle_ms:5", XSEG_ALLOC_CONF="idle_ms:6"))

    def test_names_of_sources_are_no_environment_variables(self):
        for name in ("default", "argument"):
            self.assertEqual(self.read_output(**{name: "idle_ms:7"}), self.read_output())

    def test_verbose_output_has_all_keys(self):
        named_rows, all_rows = self.rows("idle_ms:5"), self.rows("-v", "idle_ms:5")
        self.assertEqual(list(named_rows), ["idle_ms"])
        self.assertEqual((all_rows["idle_ms"], all_rows["keep_mb"]), (named_rows["idle_ms"], ["0", "0", "default"]))
        omitted = int(re.search(r"the other (\d+) keys", self.read_output("idle_ms:5"))[1])
        self.assertEqual(len(all_rows), omitted + 1)

    def test_json_describes_each_key(self):
        report, keys = self.keys("idle_ms:5")
        self.assertEqual((report["source"], report["string"]), ("argument", "idle_ms:5"))
        self.assertIn("Idle memory", keys["idle_ms"].pop("meaning"))
        self.assertEqual(keys["idle_ms"], {
            "name": "idle_ms", "value": "5", "default": "-1", "is_set": True, "source": "argument",
            "has_effect": True, "accepted_values": "a whole number of milliseconds from 0 to 1209600000, or -1 (never)"})
        self.assertIsNone(self.keys()[0]["string"])

    def test_unprintable_bytes_are_escaped(self):
        string = b"oom_snapshot:/a\xff"
        self.assertIn(r"/a\xff  ", self.read_output(string) + " ")
        self.assertEqual(self.keys(string)[0]["string"], r"oom_snapshot:/a\xff")


class InvalidArguments(ConfigTest):
    def test_invalid_string_is_explained(self):
        for string, message in (
                ("expandable_segment:True", "did you mean expandable_segments? (source: argument)"),
                ("idle_ms=4", "syntax error after idle_ms, '=' at column 8; expected ':' between key and value"),
                ("colour:blue", "unknown key, 'colour' at column 1; run `xseg config --keys` for a list"),
                ("idle_ms:soon", "invalid value of idle_ms, 'soon' at column 9; expected a whole number")):
            self.expect_error("xseg config: ", string)
            self.expect_error(message, string)

    def test_invalid_environment_is_explained(self):
        for name in VARIABLES:
            self.expect_error(f"(source: {name})", **{name: "idle_ms"})

    def test_surplus_argument_is_rejected(self):
        self.expect_error("too many arguments, 'backend:native'; the command takes at most 1", "idle_ms:5", "backend:native")


class Keys(ConfigTest):
    def test_every_documented_key_is_listed_with_its_meaning(self):
        text = self.read_output("--keys")
        names = re.findall(r"^- \*\*`(\w+)`\*\* \(default", (ROOT / "docs/options.md").read_text(), re.MULTILINE)
        self.assertGreater(len(names), 30)
        self.assertEqual(re.findall(r"^(\w+) \(default .*\)$", text, re.MULTILINE), names)
        self.assertIn("\nidle_ms (default -1)\n    a whole number of milliseconds", text)
        self.assertIn("See docs/services.md.", text)
        self.assertLessEqual(max(map(len, text.splitlines())), 80)

    def test_invalid_environment_does_not_prevent_the_list(self):
        self.assertEqual(self.read_output("--keys", XSEG_ALLOC_CONF="nonsense"), self.read_output("--keys"))

    def test_string_changes_the_values(self):
        text = self.read_output("--keys", "idle_ms:5,expandable_segments:False")
        self.assertIn("idle_ms (default -1; here 5, argument)\n", text)
        self.assertIn("page_size (default fixed; no effect)\n", text)


if __name__ == "__main__":
    TOOL, ROOT = sys.argv[1], pathlib.Path(sys.argv[2])
    unittest.main(argv=sys.argv[:1])
