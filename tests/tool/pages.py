# SPDX-License-Identifier: MIT
"""Tests of manual pages and shell completion, which src/tools/manual generates: pages.py TOOL SOURCE_ROOT."""
import json
import os
import pathlib
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest


def run(*command, **settings):
    completed = subprocess.run(list(map(str, command)), stdin=subprocess.DEVNULL, text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, **settings)
    assert completed.returncode == 0, (command, completed.returncode, completed.stdout)
    return completed.stdout


def requires(program):
    return unittest.skipUnless(shutil.which(program),
                               f"{program} is not installed; run .ci/setup {'man-db' if program == 'man' else program}")


class ManualTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        cls.tool, *cls.commands = json.loads(run(TOOL, "help", "--json"))["commands"]
        for kind, file_name in (("man", ""), ("bash", "xseg.bash"), ("zsh", "_xseg"), ("fish", "xseg.fish")):
            assert run(sys.executable, GENERATOR, TOOL, kind, cls.folder / file_name) == ""

    def options(self, command):
        return sorted(["--" + option["name"] for option in command["options"]] +
                      ["-" + option["letter"] for option in command["options"] if option["letter"]])


class Manual(ManualTest):
    def pages(self):
        return [(self.folder / "xseg.1", self.tool),
                *((self.folder / f"xseg-{command['name']}.1", command) for command in self.commands)]

    def test_each_command_has_a_page(self):
        self.assertEqual(sorted(self.folder.glob("*.1")), sorted(path for path, _ in self.pages()))

    @requires("groff")
    def test_tools_report_no_warnings(self):
        for path, _ in self.pages():
            self.assertEqual(run("groff", "-man", "-ww", "-Tutf8", "-z", path), "")

    @requires("man")
    def test_man_shows_pages_without_warnings(self):
        for path, _ in self.pages():
            self.assertNotRegex(run("man", "--warnings", "-E", "UTF-8", "-l", path), r": warning:")

    @requires("mandoc")
    def test_mandoc_reports_no_warnings(self):
        # Pages have a version and no date.
        for path, _ in self.pages():
            completed = subprocess.run(["mandoc", "-Tlint", "-W", "warning", path], text=True, capture_output=True, check=False)
            warnings = [line for line in (completed.stdout + completed.stderr).splitlines() if "missing date" not in line]
            self.assertEqual(warnings, [])

    @requires("groff")
    def test_pages_contain_options_examples_and_exit_statuses(self):
        for path, command in self.pages():
            text = run("groff", "-man", "-Tascii", "-P-cbou", "-rHY=0", "-rLL=500n", path)
            text_on_one_line = " ".join(text.split())
            self.assertNotIn(".PP", text_on_one_line)
            for option in command["options"]:
                self.assertRegex(text, rf"(?m)^ +(-\w, )?--{option['name']}\b")
                self.assertIn(option["meaning"].replace("`", ""), text_on_one_line)
            for line, description in command["examples"]:
                self.assertIn(line, text_on_one_line)
                self.assertIn(description.replace("`", ""), text_on_one_line)
            for status, meaning in command["exits"]:
                self.assertIn(f"{status} {meaning}", text_on_one_line)
            for other_command in self.commands:
                self.assertIn("xseg-" + other_command["name"], text_on_one_line)

    @requires("groff")
    def test_page_of_config_contains_all_keys(self):
        keys = json.loads(run(TOOL, "config", "--keys", "--json"))["keys"]
        text_on_one_line = " ".join(run("groff", "-man", "-Tascii", "-P-cbou", "-rHY=0", "-rLL=5000n",
                                        self.folder / "xseg-config.1").split())
        self.assertGreater(len(keys), 30)
        for key in keys:
            self.assertIn(f"{key['name']} Takes {key['accepted_values']}; default {key['default']}.", text_on_one_line)
            self.assertIn(key["meaning"].replace("`", ""), text_on_one_line)

    def test_line_starts_are_no_roff_requests(self):
        known = (".TH ", ".SH ", ".TP", ".PP")
        for path, _ in self.pages():
            for line in path.read_text(encoding="utf-8").splitlines():
                if line.startswith((".", "'")):
                    self.assertTrue(line.startswith(known), line)


@requires("bash")
class Bash(ManualTest):
    SCRIPT = """source "$1"; shift
        COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
        _xseg; ((${#COMPREPLY[@]} == 0)) || printf '%s\\n' "${COMPREPLY[@]}" """

    def complete(self, *words):
        return sorted(run("bash", "--norc", "-c", self.SCRIPT, "bash", self.folder / "xseg.bash",
                          "xseg", *words, cwd=self.folder).splitlines())

    def test_commands_are_completed(self):
        names = sorted(command["name"] for command in self.commands)
        self.assertEqual(self.complete(""), names)
        self.assertEqual(self.complete("re"), ["replay"])
        self.assertEqual(self.complete("help", ""), names)
        self.assertEqual(self.complete("help", "p"), ["probe"])
        self.assertEqual(self.complete("fly", ""), [])

    def test_options_are_completed(self):
        self.assertEqual(self.complete("-"), self.options(self.tool))
        for command in self.commands:
            self.assertEqual(self.complete(command["name"], "-"), self.options(command))
        self.assertEqual(self.complete("replay", "--json", "--min"), ["--min-device"])
        self.assertEqual(self.complete("probe", "--min"), [])

    def test_values_of_options_are_completed(self):
        for command in self.commands:
            for option in command["options"]:
                words, name = sorted(option["words"]), "--" + option["name"]
                if not words:
                    continue
                self.assertEqual(self.complete(command["name"], name, "=", ""), words)
                self.assertEqual(self.complete(command["name"], name, "="), words)
                self.assertEqual(self.complete(command["name"], name + "="), [f"{name}={word}" for word in words])
                if not option["optional_argument"]:
                    self.assertEqual(self.complete(command["name"], name, ""), words)
        self.assertEqual(self.complete("replay", "--costs", "a100_"), ["a100_cold"])
        self.assertEqual(self.complete("replay", "--costs", "=", "a100_"), ["a100_cold"])
        self.assertEqual(self.complete("replay", "--costs=a100_"), ["--costs=a100_cold"])
        self.assertEqual(self.complete("replay", "--tick", ""), [])
        self.assertEqual(self.complete("probe", ""), [])

    def test_file_names_are_completed(self):
        files = sorted(os.listdir(self.folder))
        self.assertEqual(self.complete("replay", ""), files)
        self.assertEqual(self.complete("replay", "--check", ""), files)
        self.assertEqual(self.complete("replay", "--timeline", "xseg.b"), ["xseg.bash"])
        self.assertEqual(self.complete("replay", "--timeline=xseg.b"), ["--timeline=xseg.bash"])
        self.assertEqual(self.complete("replay", "--driver", "xseg.b"), ["xseg.bash"])
        self.assertEqual(self.complete("replay", "--driver", "=", "./xseg.b"), ["./xseg.bash"])
        self.assertEqual(self.complete("replay", "--driver=xseg.b"), ["--driver=xseg.bash"])
        self.assertEqual(self.complete("replay", "--driver", "xseg"), [])
        (self.folder / "two words").touch()
        self.addCleanup((self.folder / "two words").unlink)
        self.assertEqual(self.complete("replay", "tw"), ["two words"])

    def test_programs_of_run_are_completed(self):
        self.assertIn("bash", self.complete("run", "bas"))
        self.assertEqual(self.complete("run", "xseg.b"), ["xseg.bash"])

    def test_completion_is_registered_for_the_tool(self):
        self.assertEqual(run("bash", "--norc", "-c", 'source "$1"; complete -p xseg', "bash",
                             self.folder / "xseg.bash"), "complete -F _xseg xseg\n")


@requires("fish")
class Fish(ManualTest):
    def complete(self, line):
        completed = run("fish", "--no-config", "-c", "source $argv[1]; complete -C $argv[2]",
                        self.folder / "xseg.fish", line, cwd=self.folder)
        return sorted(row.split("\t")[0] for row in completed.splitlines())

    def test_syntax_is_valid(self):
        self.assertEqual(run("fish", "-n", self.folder / "xseg.fish"), "")

    def test_completion_offers_the_candidates(self):
        self.assertEqual(self.complete("xseg "), sorted(command["name"] for command in self.commands))
        self.assertEqual(self.complete("xseg help pr"), ["probe"])
        for command in self.commands:
            candidates = sorted({candidate.rstrip("=") for candidate in self.complete(f"xseg {command['name']} --")})
            self.assertEqual(candidates, [option for option in self.options(command) if option.startswith("--")])
        self.assertEqual(self.complete("xseg replay --driver "), ["cuda", "sim"])
        self.assertEqual(self.complete("xseg replay --check=s"), ["--check=success"])
        self.assertEqual(self.complete("xseg replay --driver xseg.b"), ["xseg.bash"])
        self.assertEqual(self.complete("xseg replay xseg.b"), ["xseg.bash"])
        self.assertEqual(self.complete("xseg replay --timeline xseg.b"), ["xseg.bash"])
        self.assertEqual(self.complete("xseg probe xseg.b"), [])
        self.assertIn("fish", self.complete("xseg run fis"))


@requires("zsh")
class Zsh(ManualTest):
    def test_syntax_is_valid(self):
        self.assertEqual(run("zsh", "-n", self.folder / "_xseg"), "")

    def wait_for(self, terminal, pattern):
        """Reads from a terminal until the text matches, and returns the text."""
        text, deadline = "", time.monotonic() + 60
        while not re.search(pattern, text):
            self.assertLess(time.monotonic(), deadline, text)
            if select.select([terminal], [], [], 1)[0]:
                text += os.read(terminal, 65536).decode(errors="replace")
        return text

    def test_completion_inserts_the_match(self):
        try:
            child, terminal = pty.fork()
        except OSError as error:
            self.skipTest(f"no terminal can be opened: {error}")
        if child == 0:
            os.chdir(self.folder)
            os.execvpe("zsh", ["zsh", "-f", "-i"], {**os.environ, "TERM": "dumb", "PS1": "> "})
        try:
            os.write(terminal, b"unsetopt zle_bracketed_paste; fpath=($PWD $fpath); "
                               b"autoload -Uz compinit; compinit -u -D; echo rea''dy\n")
            self.wait_for(terminal, r"ready\r")
            for input_line, completed_line in (("xseg repl", "xseg replay"), ("xseg replay --min", "xseg replay --min-device"),
                                               ("xseg replay --driver cu", "xseg replay --driver cuda"),
                                               ("xseg replay --driver xseg.ba", "xseg replay --driver xseg.bash"),
                                               ("xseg replay --check=su", "xseg replay --check=success"),
                                               ("xseg probe --costs=con", "xseg probe --costs=consumer"),
                                               ("xseg help pro", "xseg help probe"),
                                               ("xseg replay xseg.ba", "xseg replay xseg.bash")):
                # Print the completed line instead of executing it: insert 'print' before it.
                os.write(terminal, input_line.encode() + b"\t\x01print -r -- '[\x05]'\n")
                self.wait_for(terminal, rf"\n\[{re.escape(completed_line)} ?\]")
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            os.close(terminal)


if __name__ == "__main__":
    TOOL, GENERATOR = sys.argv[1], pathlib.Path(sys.argv[2], "src/tools/manual/pages.py")
    unittest.main(argv=sys.argv[:1])
