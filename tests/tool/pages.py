# SPDX-License-Identifier: MIT
"""Manual pages and completion of shells, as src/tools/manual makes them: pages.py TOOL SOURCE_ROOT."""
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
    done = subprocess.run(list(map(str, command)), stdin=subprocess.DEVNULL, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, **settings)
    assert done.returncode == 0, (command, done.returncode, done.stdout)
    return done.stdout


def needs(program):
    return unittest.skipUnless(shutil.which(program),
                               f"{program} is not installed; run .ci/setup {'man-db' if program == 'man' else program}")


class PagesTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        cls.tool, *cls.commands = json.loads(run(TOOL, "help", "--json"))["commands"]
        for what, where in (("man", ""), ("bash", "xseg.bash"), ("zsh", "_xseg"), ("fish", "xseg.fish")):
            assert run(sys.executable, MAKER, TOOL, what, cls.folder / where) == ""

    def options(self, command):
        return sorted(["--" + one["name"] for one in command["options"]] +
                      ["-" + one["letter"] for one in command["options"] if one["letter"]])


class Manual(PagesTest):
    def pages(self):
        return [(self.folder / "xseg.1", self.tool),
                *((self.folder / f"xseg-{one['name']}.1", one) for one in self.commands)]

    def test_there_is_one_for_each_command(self):
        self.assertEqual(sorted(self.folder.glob("*.1")), sorted(path for path, _ in self.pages()))

    @needs("groff")
    def test_tools_report_no_warnings(self):
        for path, _ in self.pages():
            self.assertEqual(run("groff", "-man", "-ww", "-Tutf8", "-z", path), "")

    @needs("man")
    def test_man_shows_them(self):
        for path, _ in self.pages():
            self.assertNotIn("warning", run("man", "--warnings", "-E", "UTF-8", "-l", path))

    @needs("mandoc")
    def test_mandoc_finds_nothing(self):
        # There is no date: a page is of a version.
        for path, _ in self.pages():
            done = subprocess.run(["mandoc", "-Tlint", "-W", "warning", path], text=True,
                                  capture_output=True, check=False)
            said = [line for line in (done.stdout + done.stderr).splitlines() if "missing date" not in line]
            self.assertEqual(said, [])

    @needs("groff")
    def test_everything_of_the_tables_is_there(self):
        for path, command in self.pages():
            text = run("groff", "-man", "-Tascii", "-P-cbou", "-rHY=0", "-rLL=500n", path)
            words = " ".join(text.split())
            self.assertNotIn(".PP", words)
            for option in command["options"]:
                self.assertRegex(text, rf"(?m)^ +(-\w, )?--{option['name']}\b")
                self.assertIn(option["meaning"].replace("`", ""), words)
            for line, does in command["examples"]:
                self.assertIn(line, words)
                self.assertIn(does.replace("`", ""), words)
            for status, meaning in command["exits"]:
                self.assertIn(f"{status} {meaning}", words)
            for other in self.commands:
                self.assertIn("xseg-" + other["name"], words)

    @needs("groff")
    def test_the_keys_of_the_configuration_are_there(self):
        keys = json.loads(run(TOOL, "config", "--keys", "--json"))["keys"]
        words = " ".join(run("groff", "-man", "-Tascii", "-P-cbou", "-rHY=0", "-rLL=5000n",
                             self.folder / "xseg-config.1").split())
        self.assertGreater(len(keys), 30)
        for key in keys:
            self.assertIn(f"{key['name']} Takes {key['accepts']}; default {key['default']}.", words)
            self.assertIn(key["meaning"].replace("`", ""), words)

    def test_line_starts_are_no_roff_requests(self):
        known = (".TH ", ".SH ", ".TP", ".PP")
        for path, _ in self.pages():
            for line in path.read_text(encoding="utf-8").splitlines():
                if line.startswith((".", "'")):
                    self.assertTrue(line.startswith(known), line)


@needs("bash")
class Bash(PagesTest):
    SCRIPT = """source "$1"; shift
        COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
        _xseg; ((${#COMPREPLY[@]} == 0)) || printf '%s\\n' "${COMPREPLY[@]}" """

    def complete(self, *words):
        return sorted(run("bash", "--norc", "-c", self.SCRIPT, "bash", self.folder / "xseg.bash",
                          "xseg", *words, cwd=self.folder).splitlines())

    def test_commands(self):
        names = sorted(one["name"] for one in self.commands)
        self.assertEqual(self.complete(""), names)
        self.assertEqual(self.complete("re"), ["replay"])
        self.assertEqual(self.complete("help", ""), names)
        self.assertEqual(self.complete("help", "p"), ["probe"])
        self.assertEqual(self.complete("fly", ""), [])

    def test_options(self):
        self.assertEqual(self.complete("-"), self.options(self.tool))
        for command in self.commands:
            self.assertEqual(self.complete(command["name"], "-"), self.options(command))
        self.assertEqual(self.complete("replay", "--json", "--min"), ["--min-device"])
        self.assertEqual(self.complete("probe", "--min"), [])

    def test_values(self):
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

    def test_files(self):
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

    def test_programs(self):
        self.assertIn("bash", self.complete("run", "bas"))
        self.assertEqual(self.complete("run", "xseg.b"), ["xseg.bash"])

    def test_completion_is_for_the_tool(self):
        self.assertEqual(run("bash", "--norc", "-c", 'source "$1"; complete -p xseg', "bash",
                             self.folder / "xseg.bash"), "complete -F _xseg xseg\n")


@needs("fish")
class Fish(PagesTest):
    def complete(self, line):
        done = run("fish", "--no-config", "-c", "source $argv[1]; complete -C $argv[2]",
                   self.folder / "xseg.fish", line, cwd=self.folder)
        return sorted(row.split("\t")[0] for row in done.splitlines())

    def test_syntax(self):
        self.assertEqual(run("fish", "-n", self.folder / "xseg.fish"), "")

    def test_completion_offers_the_candidates(self):
        self.assertEqual(self.complete("xseg "), sorted(one["name"] for one in self.commands))
        self.assertEqual(self.complete("xseg help pr"), ["probe"])
        for command in self.commands:
            offered = sorted({one.rstrip("=") for one in self.complete(f"xseg {command['name']} --")})
            self.assertEqual(offered, [one for one in self.options(command) if one.startswith("--")])
        self.assertEqual(self.complete("xseg replay --driver "), ["cuda", "sim"])
        self.assertEqual(self.complete("xseg replay --check=f"), ["--check=floor"])
        self.assertEqual(self.complete("xseg replay --driver xseg.b"), ["xseg.bash"])
        self.assertEqual(self.complete("xseg replay xseg.b"), ["xseg.bash"])
        self.assertEqual(self.complete("xseg replay --timeline xseg.b"), ["xseg.bash"])
        self.assertEqual(self.complete("xseg probe xseg.b"), [])
        self.assertIn("fish", self.complete("xseg run fis"))


@needs("zsh")
class Zsh(PagesTest):
    def test_syntax(self):
        self.assertEqual(run("zsh", "-n", self.folder / "_xseg"), "")

    def wait_for(self, terminal, pattern):
        """Read from a terminal until something stands there; returns all that was read."""
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
            self.skipTest(f"no terminal can be opened here: {error}")
        if child == 0:
            os.chdir(self.folder)
            os.execvpe("zsh", ["zsh", "-f", "-i"], {**os.environ, "TERM": "dumb", "PS1": "> "})
        try:
            os.write(terminal, b"unsetopt zle_bracketed_paste; fpath=($PWD $fpath); "
                               b"autoload -Uz compinit; compinit -u -D; echo rea''dy\n")
            self.wait_for(terminal, r"ready\r")
            for typed, completed in (("xseg repl", "xseg replay"),
                                     ("xseg replay --min", "xseg replay --min-device"),
                                     ("xseg replay --driver cu", "xseg replay --driver cuda"),
                                     ("xseg replay --driver xseg.ba", "xseg replay --driver xseg.bash"),
                                     ("xseg replay --check=fl", "xseg replay --check=floor"),
                                     ("xseg probe --costs=con", "xseg probe --costs=consumer"),
                                     ("xseg help pro", "xseg help probe"),
                                     ("xseg replay xseg.ba", "xseg replay xseg.bash")):
                # The line is not run but printed: 'print' is put before it when it is complete.
                os.write(terminal, typed.encode() + b"\t\x01print -r -- '[\x05]'\n")
                self.wait_for(terminal, rf"\n\[{re.escape(completed)} ?\]")
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            os.close(terminal)


class Tables(PagesTest):
    def test_the_documents_have_them(self):
        """The same as a lint test: what `table` prints is of this tool."""
        for command in self.commands:
            text = run(sys.executable, MAKER, TOOL, "table", command["name"])
            self.assertEqual(text.count("\n| `"), len(command["options"]))


if __name__ == "__main__":
    TOOL, MAKER = sys.argv[1], pathlib.Path(sys.argv[2], "src/tools/manual/pages.py")
    unittest.main(argv=sys.argv[:1])
