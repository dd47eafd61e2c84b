# SPDX-License-Identifier: MIT
"""Tests of help and usage messages of the tool, of their colors, and of errors of standard output.

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
    defaults = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.run([TOOL, *arguments], check=False, text=True, **{**defaults, **settings})


def read_output(*arguments, **settings):
    completed = run(*arguments, **settings)
    assert (completed.returncode, completed.stderr) == (0, ""), completed
    return completed.stdout


def commands():
    return re.findall(r"^  (\w+) ", re.search(r"\nCommands:\n((?:  .*\n)+)", read_output("help"))[1], re.MULTILINE)


def options(command):
    match = re.search(r"\nOptions:\n((?:  .*\n)+)", read_output("help", command))[1]
    return re.findall(r"^  (?:-\w, |    )--([\w-]+)", match, re.MULTILINE)


class Help(unittest.TestCase):
    def test_every_command_has_complete_help(self):
        self.assertIn("replay", commands())
        self.assertEqual(commands(), sorted(commands()))
        for command in commands():
            with self.subTest(command):
                text = read_output("help", command)
                self.assertTrue(text.startswith(f"usage: xseg {command} "), text)
                for heading in ("Options:", "Examples:", "Exit status:"):
                    self.assertIn(f"\n{heading}\n  ", text)
                self.assertEqual(read_output(command, "--help"), text)
                self.assertEqual(read_output(command, "-h"), text)

    def test_help_has_at_most_80_columns(self):
        for text in (read_output("help"), *(read_output("help", command) for command in commands())):
            self.assertLessEqual(max(map(len, text.splitlines())), 80)
            self.assertNotIn("`" + "`", text)

    def test_tool_without_command_prints_help_and_version(self):
        self.assertEqual(read_output("--help"), read_output("help"))
        self.assertEqual(read_output("-h"), read_output("help"))
        self.assertEqual(read_output("-V"), read_output("--version"))
        self.assertRegex(read_output("-V"), r"\Axseg \d+\.\d+\.\d+")
        completed = run()
        self.assertEqual((completed.returncode, completed.stdout, completed.stderr), (2, "", read_output("help")))

    def test_examples_use_existing_commands_and_options(self):
        for command in (None, *commands()):
            examples = re.findall(r"^  ((?:.*\| )?xseg .*)\n      ", read_output("help", *filter(None, [command])), re.MULTILINE)
            self.assertTrue(examples, command)
            for example in examples:
                _, name, *arguments_of_example = shlex.split(example.split("| jq")[0].split("| ")[-1])
                self.assertIn(name, commands())
                options_of_example = {word[2:].split("=")[0] for word in arguments_of_example if word.startswith("--")}
                self.assertLessEqual(options_of_example, set(options(name)), example)

    def test_unknown_names_are_rejected(self):
        for arguments in (("fly",), ("help", "fly")):
            completed = run(*arguments)
            self.assertEqual((completed.returncode, completed.stdout), (2, ""))
            self.assertRegex(completed.stderr, r"\Axseg(?: help)?: unknown command 'fly'; `xseg help` lists the commands\n\Z")
        completed = run("--fly")
        self.assertEqual((completed.returncode, completed.stdout), (2, ""))
        self.assertRegex(completed.stderr, r"\Axseg: unrecognized option '--fly'\n`xseg --help` lists the options\n\Z")

    def test_surplus_argument_is_reported_with_the_usage(self):
        for arguments, limit, usage in (
                (("help", "probe", "x"), "at most 1", "[COMMAND]"), (("view", "a", "b", "x"), "at most 2", "FILE [FILE] -o OUT"),
                (("compare", "a", "b", "x"), "at most 2", "FILE FILE | FOLDER [FOLDER]"),
                (("config", "a", "x"), "at most 1", "[STRING]"), (("blame", "a", "x", "y"), "at most 1", "FILE | FOLDER"),
                (("advise", "a", "x"), "at most 1", "FILE | FOLDER"),
                (("export", "a", "x"), "at most 1", "--perfetto FILE -o OUT"), (("top", "x"), "none", ""),
                (("probe", "x"), "none", "")):
            completed = run(*arguments)
            self.assertEqual((completed.returncode, completed.stdout), (2, ""))
            self.assertEqual(completed.stderr, f"xseg {arguments[0]}: too many arguments, 'x'; the command takes {limit}; "
                                               f"usage: xseg {arguments[0]} [OPTION]... {usage}".rstrip() + "\n")

    def test_misspelled_word_is_answered_with_the_closest_match(self):
        for arguments, name in ((("repaly",), "replay"), (("help", "veiw"), "view"), (("BLAME",), "blame"), (("conf",), "config"),
                                (("replay", "--min_device"), "--min-device"), (("replay", "--min-devcie=4"), "--min-device"),
                                (("top", "--intervall", "3"), "--interval"), (("--versoin",), "--version"),
                                (("probe", "--costs", "consumr"), "consumer"), (("top", "--sort", "reservd"), "reserved"),
                                (("replay", "--driver", "cudaa", "x"), "cuda")):
            completed = run(*arguments)
            self.assertEqual((completed.returncode, completed.stdout), (2, ""), arguments)
            self.assertIn(f"; did you mean {name}?\n", completed.stderr)
        # Options of other commands are no candidates, and a word without a similar candidate has no suggestion.
        for arguments in (("probe", "--min-devic"), ("zzz",), ("replay", "--frobnicate"), ("top", "--sort", "xyz"), ("x" * 200,),
                          ("",)):
            completed = run(*arguments)
            self.assertEqual((completed.returncode, completed.stdout), (2, ""), arguments)
            self.assertNotIn("did you mean", completed.stderr)

    def test_option_of_another_command_is_rejected(self):
        completed = run("probe", "--min-device")
        self.assertEqual(completed.returncode, 2)
        self.assertIn("xseg probe: unrecognized option '--min-device'", completed.stderr)


class Colors(ToolCase):
    ESCAPE = "\033["

    def terminal_output(self, *arguments, **environment):
        return self.on_terminal(*arguments, stream="stdout", environment={"TERM": "xterm", **environment}).decode()

    def test_help_is_colored_only_on_a_terminal(self):
        self.assertIn(self.ESCAPE, self.terminal_output("help", "replay"))
        self.assertNotIn(self.ESCAPE, read_output("help", "replay"))

    def test_colored_text_equals_the_plain_text(self):
        plain = re.sub(r"\033\[[\d;]*m", "", self.terminal_output("help", "replay"))
        self.assertEqual(plain.replace("\r\n", "\n"), read_output("help", "replay"))

    def test_reports_are_colored_except_json(self):
        for command in (["replay", "--compare", "", str(self.file(TRACE))], ["config", "idle_ms:5"],
                        ["config", "--keys"], ["probe"]):
            self.assertIn(self.ESCAPE, self.terminal_output(*command), command)
            self.assertNotIn(self.ESCAPE, run(*command).stdout, command)
            self.assertNotIn(self.ESCAPE, self.terminal_output(*command, "--json"), command)

    def test_environment_and_option_disable_colors(self):
        self.assertNotIn(self.ESCAPE, self.terminal_output("help", NO_COLOR="1"))
        self.assertIn(self.ESCAPE, self.terminal_output("help", NO_COLOR=""))
        self.assertNotIn(self.ESCAPE, self.terminal_output("help", TERM="dumb"))
        self.assertNotIn(self.ESCAPE, self.terminal_output("help", "--color=never"))

    def test_option_forces_colors(self):
        self.assertIn(self.ESCAPE, read_output("help", "--color=always"))
        self.assertIn(self.ESCAPE, self.terminal_output("help", "--color", "always", NO_COLOR="1"))
        completed = run("help", "--color=green")
        self.assertEqual(completed.returncode, 2)
        self.assertIn("--color takes auto, always or never", completed.stderr)


class Output(FolderCase):
    def setUp(self):
        super().setUp()
        self.trace = self.folder / "trace"
        self.trace.write_text(TRACE)

    def commands_with_output(self):
        yield from (["help"], ["--help"], ["--version"], ["-V"], ["probe"], ["probe", "--json"])
        yield from (["config", *options_list] for options_list in ([], ["-v"], ["--keys"], ["--json"]))
        yield from ([command, "--help"] for command in commands())
        for options_list in ([], ["--json"], ["-v", "--compare", ""], ["--explain"], ["--timeline", "-"]):
            yield ["replay", *options_list, str(self.trace)]

    def expect_write_error(self, arguments, **settings):
        completed = run(*arguments, **settings)
        self.assertEqual(completed.returncode, 2, completed)
        self.assertRegex(completed.stderr, r"could? ?not be written|cannot be written")

    def test_full_device_is_reported(self):
        for arguments in self.commands_with_output():
            with self.subTest(arguments), open("/dev/full", "w", encoding="utf-8") as full:
                self.expect_write_error(arguments, stdout=full)

    def test_closed_output_is_reported(self):
        for arguments in self.commands_with_output():
            with self.subTest(arguments):
                self.expect_write_error(arguments, preexec_fn=lambda: os.close(1))

    def test_file_does_not_receive_the_output_of_a_closed_descriptor(self):
        timeline = self.folder / "timeline"
        self.expect_write_error(["replay", "--timeline", str(timeline), str(self.trace)], preexec_fn=lambda: os.close(1))
        self.assertEqual(timeline.read_text().splitlines()[0], "# event\trequested\tallocated\treserved")
        self.assertEqual(len(timeline.read_text().splitlines()), 3)

    def test_full_device_of_the_timeline_is_reported(self):
        self.expect_write_error(["replay", "--timeline", "/dev/full", str(self.trace)])

    def test_other_errors_precede_those_of_the_output(self):
        with open("/dev/full", "w", encoding="utf-8") as full:
            completed = run("replay", str(self.folder / "nowhere"), stdout=full)
        self.assertEqual(completed.returncode, 2)
        self.assertEqual(len(completed.stderr.splitlines()), 1)

    def test_closed_input_is_reported(self):
        completed = run("replay", "-", stdin=None, preexec_fn=lambda: os.close(0))
        self.assertEqual((completed.returncode, completed.stdout), (2, ""))
        self.assertRegex(completed.stderr, r"\Astandard input:1: cannot be read")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
