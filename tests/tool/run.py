# SPDX-License-Identifier: MIT
"""Tests of `xseg run`, which starts a program with xseg, and of `xseg doctor`, which starts Python.

run.py TOOL LIBRARY SANITIZER; LIBRARY is libxseg-ipc.so.
"""
import os
import pathlib
import shutil
import subprocess
import sys
import unittest

from folder_case import ROOT, TOOL, FolderCase

LIBRARY, SANITIZER = sys.argv[2:4]
VARIABLES = ("LD_PRELOAD", "XSEG_TORCH", "XSEG_TORCH_KEEP_EXPANDABLE", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")


def run(*arguments, **variables):
    inherited = {name: value for name, value in os.environ.items() if name not in (*VARIABLES, "XSEG_ALLOC_CONF")}
    return subprocess.run([TOOL, "run", *arguments], check=False, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, env={**inherited, **variables})


def environment(*options, **variables):
    """Returns the variables in the environment of the program."""
    completed = run(*options, "env", **variables)
    assert (completed.returncode, completed.stderr) == (0, ""), completed
    program_environment = dict(line.split("=", 1) for line in completed.stdout.splitlines() if "=" in line)
    return {name: program_environment[name] for name in VARIABLES if name in program_environment}


@unittest.skipIf(SANITIZER != "none", "a library with a sanitizer cannot be preloaded into other programs")
class Run(FolderCase):
    def test_program_has_the_variables_of_the_integration(self):
        expected = {"LD_PRELOAD": LIBRARY, "XSEG_TORCH": "1"}
        self.assertEqual(environment(), expected)
        self.assertEqual(environment(XSEG_TORCH="0"), expected)
        self.assertEqual(environment("--keep-expandable"), {**expected, "XSEG_TORCH_KEEP_EXPANDABLE": "1"})

    def test_other_preloaded_libraries_follow_that_of_xseg(self):
        other_library = str(self.folder / "other.so")
        shutil.copy(LIBRARY, other_library)
        self.assertEqual(environment(LD_PRELOAD=other_library)["LD_PRELOAD"], f"{LIBRARY}:{other_library}")
        self.assertEqual(environment(LD_PRELOAD=f"{other_library} {LIBRARY}")["LD_PRELOAD"],
                         f"{LIBRARY}:{other_library} {LIBRARY}")
        for preloaded in (LIBRARY, f"{LIBRARY}:{other_library}", f"{LIBRARY} {other_library}"):
            self.assertEqual(environment(LD_PRELOAD=preloaded)["LD_PRELOAD"], preloaded)
        self.assertEqual(environment(TOOL, "run")["LD_PRELOAD"], LIBRARY)

    def test_declared_segments_are_those_in_effect(self):
        for variables, declared in (
                ({}, ["expandable_segments:True"] * 2),
                ({"PYTORCH_ALLOC_CONF": "max_split_size_mb:99"}, ["expandable_segments:False,max_split_size_mb:99"] * 2),
                ({"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:False"}, ["expandable_segments:False"] * 2),
                ({"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True,max_split_size_mb:99", "PYTORCH_ALLOC_CONF": ""},
                 ["expandable_segments:True,max_split_size_mb:99"] * 2),
                ({"PYTORCH_ALLOC_CONF": "expandable_segments : True"}, ["expandable_segments : True"] * 2),
                ({"XSEG_ALLOC_CONF": "expandable_segments:False"}, ["expandable_segments:False"] * 2),
                ({"XSEG_ALLOC_CONF": "idle_ms:20", "PYTORCH_ALLOC_CONF": "max_split_size_mb:99"},
                 ["expandable_segments:True,max_split_size_mb:99"] * 2)):
            result = environment("--declare-expandable", **variables)
            self.assertEqual([result["PYTORCH_ALLOC_CONF"], result["PYTORCH_CUDA_ALLOC_CONF"]], declared, variables)
        completed = run("--declare-expandable", "true", XSEG_ALLOC_CONF="expandable_segment:True")
        self.assertEqual((completed.returncode, completed.stdout), (2, ""))
        self.assertIn("xseg run: ", completed.stderr)
        self.assertIn("did you mean expandable_segments?", completed.stderr)

    def test_arguments_and_exit_status_are_passed_on(self):
        completed = run("sh", "-c", 'echo "$@"; exit 7', "sh", "--help", "--color", "a b")
        self.assertEqual((completed.returncode, completed.stdout, completed.stderr), (7, "--help --color a b\n", ""))
        self.assertEqual(run("--", "sh", "-c", "kill -9 $$").returncode, -9)

    def test_signal_actions_are_inherited_from_the_caller(self):
        script = r"grep -E '^Sig(Ign|Blk)' /proc/self/status"
        expected = subprocess.run(["sh", "-c", script], check=True, capture_output=True, text=True).stdout
        self.assertEqual(run("sh", "-c", script).stdout, expected)


class Doctor(FolderCase):
    """Tests without PyTorch; torch/doctor tests the checks."""

    def doctor(self, *arguments, **variables):
        inherited = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", *VARIABLES)}
        return subprocess.run([TOOL, "doctor", *arguments], check=False, text=True, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              env={**inherited, "PYTHONDONTWRITEBYTECODE": "1", **variables}, cwd=self.folder)

    def test_missing_package_is_reported(self):
        completed = self.doctor()
        self.assertEqual((completed.returncode, completed.stdout), (2, ""), completed.stderr)
        self.assertRegex(completed.stderr, r"\Axseg doctor: \S+ cannot import xseg: No module named 'xseg'; install the wheel")

    def test_missing_python_is_reported(self):
        completed = self.doctor(PATH=str(self.folder))
        self.assertEqual((completed.returncode, completed.stdout), (2, ""), completed.stderr)
        self.assertIn("xseg doctor: cannot start python3: No such file or directory; activate", completed.stderr)

    def test_report_and_status_follow_the_package(self):
        for variable, status, level in (("0", 0, "note"), ("1", 1, "fail")):
            completed = self.doctor(PYTHONPATH=str(ROOT / "src/adapters/python"), XSEG_TORCH=variable)
            self.assertEqual(completed.returncode, status, completed.stderr)
            self.assertRegex(completed.stdout, rf"\A{level} +allocator +PyTorch cannot be imported by \S+; run this command "
                                               rf"with the Python")
        self.assertIn("unrecognized option '--jsn'", self.doctor("--jsn").stderr)


class Errors(FolderCase):
    def expect_error(self, message, *arguments, **variables):
        completed = run(*arguments, **variables)
        self.assertEqual((completed.returncode, completed.stdout), (2, ""), completed.stderr)
        self.assertIn(message, completed.stderr)
        self.assertTrue(completed.stderr.startswith("xseg run: "), completed.stderr)

    def test_unstartable_program_is_reported(self):
        self.expect_error("cannot start the program 'no-such-program': No such file or directory; check the name, or PATH",
                          "no-such-program")
        self.expect_error("cannot start the program '/': Permission denied; check that the file is executable", "/")
        self.expect_error("needs a program", "--keep-expandable")
        self.expect_error("unrecognized option '--keep-expandible'; did you mean --keep-expandable?", "--keep-expandible", "true")

    @unittest.skipIf(SANITIZER != "none", "the copy of the library cannot find the library of the sanitizer")
    def test_library_must_be_next_to_the_allocator(self):
        folder = self.folder / "two words"
        folder.mkdir()
        library = pathlib.Path(TOOL).parent / "libxseg.so.0"
        shutil.copy(library, folder)
        self.expect_error("libxseg-ipc.so not found next to libxseg.so; install", "true", LD_LIBRARY_PATH=str(folder))
        shutil.copy(LIBRARY, folder)
        self.expect_error("cannot preload a path with a space or a colon, '", "true", LD_LIBRARY_PATH=str(folder))
        folder = folder.rename(self.folder / "word")
        completed = run("sh", "-c", "echo $LD_PRELOAD", LD_LIBRARY_PATH=str(folder))
        self.assertEqual(completed.stdout, f"{folder}/libxseg-ipc.so\n", completed.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
