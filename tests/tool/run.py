# SPDX-License-Identifier: MIT
"""`xseg run` starts a program in an environment with xseg, and `xseg doctor` starts Python: run.py TOOL LIBRARY SANITIZER.

LIBRARY is libxseg-ipc.so.
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
    clean = {name: value for name, value in os.environ.items() if name not in (*VARIABLES, "XSEG_ALLOC_CONF")}
    return subprocess.run([TOOL, "run", *arguments], check=False, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, env={**clean, **variables})


def environment(*options, **variables):
    """The variables that a program finds."""
    done = run(*options, "env", **variables)
    assert (done.returncode, done.stderr) == (0, ""), done
    found = dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)
    return {name: found[name] for name in VARIABLES if name in found}


@unittest.skipIf(SANITIZER != "none", "a library with a sanitizer cannot be preloaded into other programs")
class Started(FolderCase):
    def test_the_environment(self):
        usual = {"LD_PRELOAD": LIBRARY, "XSEG_TORCH": "1"}
        self.assertEqual(environment(), usual)
        self.assertEqual(environment(XSEG_TORCH="0"), usual)
        self.assertEqual(environment("--keep-expandable"), {**usual, "XSEG_TORCH_KEEP_EXPANDABLE": "1"})

    def test_preloaded_libraries_follow(self):
        other = str(self.folder / "other.so")
        shutil.copy(LIBRARY, other)
        self.assertEqual(environment(LD_PRELOAD=other)["LD_PRELOAD"], f"{LIBRARY}:{other}")
        self.assertEqual(environment(LD_PRELOAD=f"{other} {LIBRARY}")["LD_PRELOAD"], f"{LIBRARY}:{other} {LIBRARY}")
        for front in (LIBRARY, f"{LIBRARY}:{other}", f"{LIBRARY} {other}"):
            self.assertEqual(environment(LD_PRELOAD=front)["LD_PRELOAD"], front)
        self.assertEqual(environment(TOOL, "run")["LD_PRELOAD"], LIBRARY)

    def test_declared_segments_are_those_in_effect(self):
        for given, declared in (
                ({}, ["expandable_segments:True"] * 2),
                ({"PYTORCH_ALLOC_CONF": "max_split_size_mb:99"}, ["expandable_segments:False,max_split_size_mb:99"] * 2),
                ({"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:False"}, ["expandable_segments:False"] * 2),
                ({"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True,max_split_size_mb:99", "PYTORCH_ALLOC_CONF": ""},
                 ["expandable_segments:True,max_split_size_mb:99"] * 2),
                ({"PYTORCH_ALLOC_CONF": "expandable_segments : True"}, ["expandable_segments : True"] * 2),
                ({"XSEG_ALLOC_CONF": "expandable_segments:False"}, ["expandable_segments:False"] * 2),
                ({"XSEG_ALLOC_CONF": "idle_ms:20", "PYTORCH_ALLOC_CONF": "max_split_size_mb:99"},
                 ["expandable_segments:True,max_split_size_mb:99"] * 2)):
            found = environment("--declare-expandable", **given)
            self.assertEqual([found["PYTORCH_ALLOC_CONF"], found["PYTORCH_CUDA_ALLOC_CONF"]], declared, given)
        done = run("--declare-expandable", "true", XSEG_ALLOC_CONF="expandable_segment:True")
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertIn("xseg run: ", done.stderr)
        self.assertIn("did you mean expandable_segments?", done.stderr)

    def test_the_program_has_its_arguments_and_status(self):
        done = run("sh", "-c", 'echo "$@"; exit 7', "sh", "--help", "--color", "a b")
        self.assertEqual((done.returncode, done.stdout, done.stderr), (7, "--help --color a b\n", ""))
        self.assertEqual(run("--", "sh", "-c", "kill -9 $$").returncode, -9)

    def test_signals_are_those_of_the_caller(self):
        script = r"grep -E '^Sig(Ign|Blk)' /proc/self/status"
        alone = subprocess.run(["sh", "-c", script], check=True, capture_output=True, text=True).stdout
        self.assertEqual(run("sh", "-c", script).stdout, alone)


class Doctor(FolderCase):
    """The checks are those of torch/doctor; here, Python has no PyTorch."""

    def doctor(self, *arguments, **variables):
        clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", *VARIABLES)}
        return subprocess.run([TOOL, "doctor", *arguments], check=False, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, env={**clean, "PYTHONDONTWRITEBYTECODE": "1", **variables}, cwd=self.folder)

    def test_without_the_package(self):
        done = self.doctor()
        self.assertEqual((done.returncode, done.stdout), (2, ""), done.stderr)
        self.assertRegex(done.stderr, r"\Axseg doctor: \S+ cannot import xseg: No module named 'xseg'; install the wheel")

    def test_without_python(self):
        done = self.doctor(PATH=str(self.folder))
        self.assertEqual((done.returncode, done.stdout), (2, ""), done.stderr)
        self.assertIn("xseg doctor: cannot start python3: No such file or directory; activate", done.stderr)

    def test_with_the_package(self):
        for variable, status, level in (("0", 0, "note"), ("1", 1, "fail")):
            done = self.doctor(PYTHONPATH=str(ROOT / "src/adapters/python"), XSEG_TORCH=variable)
            self.assertEqual(done.returncode, status, done.stderr)
            self.assertRegex(done.stdout, rf"\A{level} +allocator +PyTorch cannot be imported by \S+; run this command with the Python")
        done = self.doctor("--jsn")
        self.assertIn("unrecognized option '--jsn'", done.stderr)


class Errors(FolderCase):
    def expect_error(self, words, *arguments, **variables):
        done = run(*arguments, **variables)
        self.assertEqual((done.returncode, done.stdout), (2, ""), done.stderr)
        self.assertIn(words, done.stderr)
        self.assertTrue(done.stderr.startswith("xseg run: "), done.stderr)

    def test_programs_that_cannot_be_started(self):
        self.expect_error("cannot start the program 'no-such-program': No such file or directory; check the name, or PATH",
                          "no-such-program")
        self.expect_error("cannot start the program '/': Permission denied; check that the file is executable", "/")
        self.expect_error("needs a program", "--keep-expandable")
        self.expect_error("unrecognized option '--keep-expandible'; did you mean --keep-expandable?", "--keep-expandible", "true")

    @unittest.skipIf(SANITIZER != "none", "the copy of the library needs that of the sanitizer")
    def test_the_library_is_next_to_the_allocator(self):
        folder = self.folder / "two words"
        folder.mkdir()
        library = pathlib.Path(TOOL).parent / "libxseg.so.0"
        shutil.copy(library, folder)
        self.expect_error("libxseg-ipc.so not found next to libxseg.so; install", "true", LD_LIBRARY_PATH=str(folder))
        shutil.copy(LIBRARY, folder)
        self.expect_error("cannot preload a path with a space or a colon, '", "true", LD_LIBRARY_PATH=str(folder))
        folder = folder.rename(self.folder / "word")
        done = run("sh", "-c", "echo $LD_PRELOAD", LD_LIBRARY_PATH=str(folder))
        self.assertEqual(done.stdout, f"{folder}/libxseg-ipc.so\n", done.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
