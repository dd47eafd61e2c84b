# SPDX-License-Identifier: MIT
"""Help and usage messages of the tool, their colors, and errors of standard output.

help.py TOOL SOURCE_ROOT"""
import os
import re
import shlex
import subprocess
import sys
import unittest

from folder_case import TOOL, FolderCase, ToolCase

TRACE = "xtrace 1\na 0 30000000 0\nf 0\n"


def run(*arguments, **settings):
    usual = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.run([TOOL, *arguments], check=False, text=True, **{**usual, **settings})


def said(*arguments, **settings):
    done = run(*arguments, **settings)
    assert (done.returncode, done.stderr) == (0, ""), done
    return done.stdout


def commands():
    return re.findall(r"^  (\w+) ", re.search(r"\nCommands:\n((?:  .*\n)+)", said("help"))[1], re.MULTILINE)


def options(command):
    listed = re.search(r"\nOptions:\n((?:  .*\n)+)", said("help", command))[1]
    return re.findall(r"^  (?:-\w, |    )--([\w-]+)", listed, re.MULTILINE)


class Help(unittest.TestCase):
    def test_every_command_is_explained(self):
        self.assertIn("replay", commands())
        self.assertEqual(commands(), sorted(commands()))
        for command in commands():
            with self.subTest(command):
                text = said("help", command)
                self.assertTrue(text.startswith(f"usage: xseg {command} "), text)
                for heading in ("Options:", "Examples:", "Exit status:"):
                    self.assertIn(f"\n{heading}\n  ", text)
                self.assertEqual(said(command, "--help"), text)
                self.assertEqual(said(command, "-h"), text)

    def test_no_line_is_long(self):
        for text in (said("help"), *(said("help", command) for command in commands())):
            self.assertLessEqual(max(map(len, text.splitlines())), 80)
            self.assertNotIn("`" + "`", text)

    def test_the_tool_itself(self):
        self.assertEqual(said("--help"), said("help"))
        self.assertEqual(said("-h"), said("help"))
        self.assertEqual(said("-V"), said("--version"))
        self.assertRegex(said("-V"), r"\Axseg \d+\.\d+\.\d+")
        done = run()
        self.assertEqual((done.returncode, done.stdout, done.stderr), (2, "", said("help")))

    def test_examples_use_what_there_is(self):
        for command in (None, *commands()):
            text = said("help", *filter(None, [command]))
            examples = re.findall(r"^  ((?:.*\| )?xseg .*)\n      ", text, re.MULTILINE)
            self.assertTrue(examples, command)
            for example in examples:
                _, name, *words = shlex.split(example.split("| jq")[0].split("| ")[-1])
                self.assertIn(name, commands())
                given = {word[2:].split("=")[0] for word in words if word.startswith("--")}
                self.assertLessEqual(given, set(options(name)), example)

    def test_unknown_names_are_rejected(self):
        for arguments in (("fly",), ("help", "fly")):
            done = run(*arguments)
            self.assertEqual((done.returncode, done.stdout), (2, ""))
            self.assertRegex(done.stderr, r"\Axseg(?: help)?: unknown command 'fly'; `xseg help` lists the commands\n\Z")
        done = run("--fly")
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertRegex(done.stderr, r"\Axseg: unrecognized option '--fly'\n`xseg --help` lists the options\n\Z")

    def test_the_first_argument_too_many_is_named_with_the_usage(self):
        for arguments, most, usage in ((("help", "probe", "x"), "at most 1", "[COMMAND]"), (("view", "a", "b", "x"), "at most 2", "FILE [FILE] -o OUT"),
                                       (("compare", "a", "b", "x"), "at most 2", "FILE FILE | FOLDER [FOLDER]"), (("config", "a", "x"), "at most 1", "[STRING]"),
                                       (("blame", "a", "x", "y"), "at most 1", "FILE | FOLDER"), (("advise", "a", "x"), "at most 1", "FILE | FOLDER"),
                                       (("export", "a", "x"), "at most 1", "--perfetto FILE -o OUT"), (("top", "x"), "none", ""), (("probe", "x"), "none", "")):
            done = run(*arguments)
            self.assertEqual((done.returncode, done.stdout), (2, ""))
            self.assertEqual(done.stderr, f"xseg {arguments[0]}: too many arguments, 'x'; the command takes {most}; "
                                          f"usage: xseg {arguments[0]} [OPTION]... {usage}".rstrip() + "\n")

    def test_a_misspelled_word_gets_the_closest_match(self):
        for arguments, name in ((("repaly",), "replay"), (("help", "veiw"), "view"), (("BLAME",), "blame"), (("conf",), "config"),
                                (("replay", "--min_device"), "--min-device"), (("replay", "--min-devcie=4"), "--min-device"),
                                (("top", "--intervall", "3"), "--interval"), (("--versoin",), "--version"),
                                (("probe", "--costs", "consumr"), "consumer"), (("top", "--sort", "reservd"), "reserved"),
                                (("replay", "--driver", "cudaa", "x"), "cuda")):
            done = run(*arguments)
            self.assertEqual((done.returncode, done.stdout), (2, ""), arguments)
            self.assertIn(f"; did you mean {name}?\n", done.stderr)
        # Only options of the command, and nothing for a word that resembles none.
        for arguments in (("probe", "--min-devic"), ("zzz",), ("replay", "--frobnicate"), ("top", "--sort", "xyz"), ("x" * 200,), ("",)):
            done = run(*arguments)
            self.assertEqual((done.returncode, done.stdout), (2, ""), arguments)
            self.assertNotIn("did you mean", done.stderr)

    def test_options_of_a_command_stay_with_it(self):
        done = run("probe", "--min-device")
        self.assertEqual(done.returncode, 2)
        self.assertIn("xseg probe: unrecognized option '--min-device'", done.stderr)


class Colors(ToolCase):
    ESCAPE = "\033["

    def shown(self, *arguments, **environment):
        return self.on_terminal(*arguments, stream="stdout", environment={"TERM": "xterm", **environment}).decode()

    def test_on_a_terminal_only(self):
        self.assertIn(self.ESCAPE, self.shown("help", "replay"))
        self.assertNotIn(self.ESCAPE, said("help", "replay"))

    def test_colors_change_nothing_else(self):
        plain = re.sub(r"\033\[[\d;]*m", "", self.shown("help", "replay"))
        self.assertEqual(plain.replace("\r\n", "\n"), said("help", "replay"))

    def test_reports_have_colors(self):
        for command in (["replay", "--compare", "", str(self.file(TRACE))], ["config", "idle_ms:5"],
                        ["config", "--keys"], ["probe"]):
            self.assertIn(self.ESCAPE, self.shown(*command), command)
            self.assertNotIn(self.ESCAPE, run(*command).stdout, command)
            self.assertNotIn(self.ESCAPE, self.shown(*command, "--json"), command)

    def test_colors_can_be_disabled(self):
        self.assertNotIn(self.ESCAPE, self.shown("help", NO_COLOR="1"))
        self.assertIn(self.ESCAPE, self.shown("help", NO_COLOR=""))
        self.assertNotIn(self.ESCAPE, self.shown("help", TERM="dumb"))
        self.assertNotIn(self.ESCAPE, self.shown("help", "--color=never"))

    def test_colors_can_be_forced(self):
        self.assertIn(self.ESCAPE, said("help", "--color=always"))
        self.assertIn(self.ESCAPE, self.shown("help", "--color", "always", NO_COLOR="1"))
        done = run("help", "--color=green")
        self.assertEqual(done.returncode, 2)
        self.assertIn("--color takes auto, always or never", done.stderr)


class Output(FolderCase):
    def setUp(self):
        super().setUp()
        self.trace = self.folder / "trace"
        self.trace.write_text(TRACE)

    def ways(self):
        yield from (["help"], ["--help"], ["--version"], ["-V"], ["probe"], ["probe", "--json"])
        yield from (["config", *options_] for options_ in ([], ["-v"], ["--keys"], ["--json"]))
        yield from ([command, "--help"] for command in commands())
        for options_ in ([], ["--json"], ["-v", "--compare", ""], ["--explain"], ["--timeline", "-"]):
            yield ["replay", *options_, str(self.trace)]

    def refused(self, arguments, **settings):
        done = run(*arguments, **settings)
        self.assertEqual(done.returncode, 2, done)
        self.assertRegex(done.stderr, r"could? ?not be written|cannot be written")

    def test_a_full_device(self):
        for arguments in self.ways():
            with self.subTest(arguments), open("/dev/full", "w", encoding="utf-8") as full:
                self.refused(arguments, stdout=full)

    def test_a_closed_output(self):
        for arguments in self.ways():
            with self.subTest(arguments):
                self.refused(arguments, preexec_fn=lambda: os.close(1))

    def test_a_file_does_not_become_the_output(self):
        out = self.folder / "timeline"
        self.refused(["replay", "--timeline", str(out), str(self.trace)], preexec_fn=lambda: os.close(1))
        self.assertEqual(out.read_text().splitlines()[0], "# event\trequested\tallocated\treserved")
        self.assertEqual(len(out.read_text().splitlines()), 3)

    def test_a_full_timeline(self):
        self.refused(["replay", "--timeline", "/dev/full", str(self.trace)])

    def test_other_failures_keep_their_message(self):
        with open("/dev/full", "w", encoding="utf-8") as full:
            done = run("replay", str(self.folder / "nowhere"), stdout=full)
        self.assertEqual(done.returncode, 2)
        self.assertEqual(len(done.stderr.splitlines()), 1)

    def test_a_closed_input(self):
        done = run("replay", "-", stdin=None, preexec_fn=lambda: os.close(0))
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertRegex(done.stderr, r"\Astandard input:1: cannot be read")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
