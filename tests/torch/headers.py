# SPDX-License-Identifier: MIT
"""The adapter compiles against the headers of the oldest PyTorch it supports, of an intermediate version, and of the newest.

headers.py DRIVER [ROOT]

The methods of the adapter are compared with the interface of each version.  Only warnings in PyTorch's headers are ignored.
The test downloads nothing: without the headers, it prints how to download them and is skipped.
"""
import contextlib
import importlib.util
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

import backends

FETCHED = backends.ROOT / "src/adapters/python/manylinux/torch_headers.py"
# Each with the C++ ABI of its wheels; 2.6 has both.
VERSIONS = (("2.6.0", False), ("2.6.0", True), ("2.9.1", True), ("installed", True))
WARNINGS = ("-Wall", "-Wextra", "-Werror", "-Wno-deprecated-declarations", "-Wno-missing-field-initializers")


def output_of(script, *arguments):
    process = subprocess.run([sys.executable, script, "--offline", *arguments], check=False, capture_output=True, text=True)
    if process.returncode == backends.SKIPPED:
        print(process.stderr.strip())
        sys.exit(backends.SKIPPED)
    if process.returncode != 0:
        sys.exit(f"{script} {' '.join(arguments)}: exit status {process.returncode}: {process.stderr}")
    return process.stdout.strip()


def adapter_build(root):
    sys.path.insert(0, str(root / "src/adapters/python"))
    spec = importlib.util.spec_from_file_location("adapter_build", root / "src/adapters/python/xseg/torch/_build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Compiles(unittest.TestCase):
    root = backends.ROOT
    library = ""

    @classmethod
    def setUpClass(cls):
        cls.stack = contextlib.ExitStack()
        cls.folder = pathlib.Path(cls.stack.enter_context(tempfile.TemporaryDirectory()))
        cls.build = adapter_build(cls.root)
        os.environ["XSEG_LIBRARY"] = cls.library
        # One version of the CUDA runtime's headers suffices: PyTorch's headers include only the oldest declarations.
        (cls.folder / "cuda").mkdir()
        (cls.folder / "cuda/include").symlink_to(output_of(backends.ENVIRONMENT, "include"))
        os.environ["CUDA_HOME"] = str(cls.folder / "cuda")
        python = output_of(backends.ENVIRONMENT, "python")
        code = "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])"
        cls.folders = {"installed": pathlib.Path(subprocess.check_output([python, "-c", code], text=True).strip())}
        for version, _ in VERSIONS:
            if version != "installed":
                cls.folders[version] = pathlib.Path(output_of(FETCHED, version))

    @classmethod
    def tearDownClass(cls):
        cls.stack.close()

    def compiler(self, version, is_cxx11, source=""):
        scratch = self.folder / f"{version}-{is_cxx11}"
        shutil.rmtree(scratch, ignore_errors=True)
        shutil.copytree(self.root / "src/adapters/torch", scratch / "src/adapters/torch")
        with (scratch / "src/adapters/torch/all.cpp").open("a", encoding="utf-8") as file:
            file.write(source)
        command = self.build.command(scratch, self.folders[version], is_cxx11)
        command = [word for word in command[:command.index("-o")] if word not in ("-w", "-shared", "-O2")]
        return subprocess.run([*command, *WARNINGS, "-fsyntax-only"], check=False, capture_output=True, text=True)

    def test_each_version_compiles(self):
        """The C++ ABI is that of the wheels of the version."""
        for version, is_cxx11 in VERSIONS:
            with self.subTest(version=version, is_cxx11=is_cxx11):
                process = self.compiler(version, is_cxx11)
                self.assertEqual(process.returncode, 0, process.stderr[:4000])

    def test_warnings_of_the_adapter_are_errors(self):
        process = self.compiler("2.9.1", True, "\nint without_value() {}\n")
        self.assertNotEqual(process.returncode, 0)
        self.assertIn("without_value", process.stderr)

    def test_different_headers_change_the_digest(self):
        """The digest also differs for headers of equal size and version, such as those of another nightly build."""
        with tempfile.TemporaryDirectory() as folder:
            copy = pathlib.Path(folder)
            shutil.copytree(self.folders["installed"] / "include/c10", copy / "include/c10")
            before = self.build.digest(copy)
            self.assertEqual(before, self.build.digest(self.folders["installed"]))
            file = copy / "include/c10/cuda/CUDACachingAllocator.h"
            file.write_text(file.read_text(encoding="utf-8").replace("virtual void enable(", "virtual long enable("), encoding="utf-8")
            self.assertNotEqual(before, self.build.digest(copy))

    def copy_headers(self, folder, lines):
        """Copies PyTorch's headers, and adds these lines to the interface of the allocator."""
        copy = pathlib.Path(folder, "torch")
        shutil.copytree(self.folders["installed"] / "include/c10", copy / "include/c10")
        file = copy / "include/c10/cuda/CUDACachingAllocator.h"
        text, anchor = file.read_text(encoding="utf-8"), "  virtual std::string name() = 0;\n"
        self.assertEqual(text.count(anchor), 1)
        file.write_text(text.replace(anchor, anchor + lines), encoding="utf-8")
        return copy

    def test_unknown_pure_virtual_methods_prevent_the_build(self):
        """The build fails with a message before the compilation, for each form of declaration."""
        for line in ("virtual void newMethod() = 0;", "virtual void newMethod(std::vector<int> all = {}) = 0;",
                     "virtual void newMethod(MempoolId_t id = {1, 2}, std::string text = \"a;)\") const noexcept = 0;",
                     "virtual std::function<bool(std::pair<int, int>)> newMethod(\n    int (*)(char) = nullptr) =\n 0;",
                     "[[nodiscard]] virtual auto newMethod(/* ; */ char mark = '}') -> decltype(1) = 0; // = {}",
                     "C10_DEPRECATED_MESSAGE(\"no\")\n virtual DEPRECATED(1) std::map<int, std::map<int, std::vector<int>>> newMethod()=0;"):
            with self.subTest(line=line), tempfile.TemporaryDirectory() as folder:
                with unittest.mock.patch.dict(os.environ, XDG_CACHE_HOME=folder), self.assertRaises(self.build.LoadError) as error:
                    self.build.load(self.copy_headers(folder, f"  {line}\n"), "99.0", True)
                self.assertIn("does not implement allocator methods of this version of PyTorch, newMethod; install a newer xseg",
                              str(error.exception))
                self.assertEqual(list(pathlib.Path(folder, "xseg").iterdir()), [])

    def test_unknown_virtual_methods_with_a_body_are_listed(self):
        """info() lists virtual methods with a body in this header or elsewhere, and no other functions."""
        with tempfile.TemporaryDirectory() as folder:
            include = self.copy_headers(folder, """
  virtual void elsewhere(int);
  virtual void braces(std::vector<int> all = {}) {}
  virtual int within(int a = f({0, {1}})) const { if (a) { return 0; } return sizeof(";"); }
  virtual void removed() = delete;
  // virtual void comment();
  /* virtual void comments(); */
  struct Inner { virtual void inner() = 0; };
  int member = {1};
  void plain(int = 0) {}
  int name() override;
#define virtual_macro virtual void macro(); \\
  virtual void of_two_lines() = 0;
""") / "include"
            self.assertEqual(self.build.uncovered(include), ["braces", "elsewhere", "removed", "within"])

    def test_lint_reports_unlisted_functions_and_fields(self):
        """Functions that only call a covered method are not reported."""
        sys.path.insert(0, str(backends.ROOT / "tests/lint"))
        import methods as lint  # pylint: disable=import-outside-toplevel
        with tempfile.TemporaryDirectory() as folder:
            header = self.copy_headers(folder, "") / "include/c10/cuda/CUDACachingAllocator.h"
            before = list(lint.errors_in_header(self.build, header, {"BlockInfo"}, {"active"}))
            with header.open("a", encoding="utf-8") as file:
                file.write("""
namespace c10::cuda::CUDACachingAllocator {
C10_CUDA_API std::map<int, std::function<bool(int)>> exported(int a = f({0}));
inline bool forwards(std::vector<int> all = {}) { if (all.empty()) { return false; } return get()->isEnabled(); }
inline bool uncovered() { return get()->unknownMethod(); }
class Type final : public Other { int member; };
using Alias = std::function<void(int)>;
struct BlockInfo { std::pair<int, int> added = {0, 0}; bool active{}; int method() const { return gc_counter; } };
}
""")
            after = lint.errors_in_header(self.build, header, {"BlockInfo"}, {"active"})
            self.assertEqual([text.rpartition(", ")[2] for text in after if text not in before],
                             ["exported", "uncovered", "Type", "BlockInfo.added"])

    def test_headers_of_the_pytorch_installation_are_first(self):
        """The CUDA version of the environment's toolkit may differ from PyTorch's."""
        with tempfile.TemporaryDirectory() as folder:
            torch_folder, nvidia = pathlib.Path(folder, "torch"), pathlib.Path(folder, "nvidia/cu13/include")
            for file in (torch_folder / "include/c10/cuda/CUDACachingAllocator.h", nvidia / "cuda_runtime_api.h"):
                file.parent.mkdir(parents=True)
                file.touch()
            self.assertEqual(self.build.headers(torch_folder)[1], nvidia)
            shutil.rmtree(nvidia)
            self.assertEqual(self.build.headers(torch_folder)[1], self.folder / "cuda/include")

    def test_all_methods_are_covered(self):
        for version in self.folders:
            with self.subTest(version=version):
                include = self.folders[version] / "include"
                self.assertGreater(len(self.build.methods(include)), 30)
                self.assertEqual(self.build.uncovered(include), [])


def main():
    Compiles.library = str(pathlib.Path(sys.argv[1]).parent / "libxseg.so")
    if len(sys.argv) > 2:
        Compiles.root = pathlib.Path(sys.argv[2])
    if not (Compiles.root / "src/adapters/torch/all.cpp").exists():
        print("headers.py: there is no adapter in src/adapters/torch")
        sys.exit(backends.SKIPPED)
    unittest.main(argv=sys.argv[:1])


if __name__ == "__main__":
    main()
