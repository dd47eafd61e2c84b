# SPDX-License-Identifier: MIT
"""Tests that XSEG_TORCH=1 imports xseg.torch right after torch: the .pth file and its module, with models of torch and xseg."""
import pathlib
import shutil
import tempfile
import unittest

import cases

TORCH_SOURCE = "order = ['torch']\nimport torch.part\norder.append('end of torch')\nSPEC = __spec__.loader\n"
HOOKED_SOURCE = "import torch\ntorch.order.append('xseg.torch')\n"
FAILING_SOURCE = "raise RuntimeError('xseg.torch: no C++ compiler; install g++')\n"
START = "import site, sys; site.addsitedir({folder!r}); "
PRINT_ORDER = START + "import torch; print(*torch.order, sep=', ')"


class Hook(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        for name in ("xseg_torch.pth", "_xseg_torch_hook.py"):
            shutil.copy(cases.ROOT / "src/adapters/python" / name, self.folder)
        self.write("torch/__init__.py", TORCH_SOURCE)
        self.write("torch/part.py", "from torch import order\norder.append('part')\n")
        self.write("xseg/__init__.py", "")
        self.write("xseg/torch.py", HOOKED_SOURCE)

    def write(self, name, text):
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def run_with_hook(self, program, *arguments, **variables):
        return cases.run_python(program.format(folder=str(self.folder)), *arguments, PYTHONPATH="",
                                **{"XSEG_TORCH": "1", **variables})

    def test_xseg_torch_is_imported_right_after_torch(self):
        self.assertEqual(self.run_with_hook(PRINT_ORDER), ("torch, part, end of torch, xseg.torch\n", ""))

    def test_empty_value_and_zero_disable_the_hook(self):
        for value in ("", "0"):
            with self.subTest(value):
                self.assertEqual(self.run_with_hook(PRINT_ORDER, XSEG_TORCH=value), ("torch, part, end of torch\n", ""))

    def test_unknown_value_is_reported_once_at_the_import_of_torch(self):
        for value in ("true", "11", " 1"):
            with self.subTest(value):
                self.assertEqual(self.run_with_hook(PRINT_ORDER + "; import torch.part, importlib; "
                                                                  "importlib.reload(torch)", XSEG_TORCH=value),
                                 ("torch, part, end of torch\n",
                                  f"XSEG_TORCH: unknown value, {value!r}; set 1 to run PyTorch on xseg, or 0\n"))
                self.assertEqual(self.run_with_hook(START + "import json; print('xseg' in sys.modules)", XSEG_TORCH=value),
                                 ("False\n", ""))

    def test_isolated_mode_disables_the_hook(self):
        self.assertEqual(self.run_with_hook(PRINT_ORDER, "-I"), ("torch, part, end of torch\n", ""))

    def test_without_the_variable_nothing_is_imported(self):
        program = START + "print({{'_xseg_torch_hook', 'xseg'}} & set(sys.modules), len(sys.meta_path))"
        self.assertEqual(self.run_with_hook(program, XSEG_TORCH=""), (f"set() {len(__import__('sys').meta_path)}\n", ""))

    def test_program_without_torch_does_not_import_xseg(self):
        program = START + "import json; print('torch' in sys.modules, 'xseg' in sys.modules)"
        self.assertEqual(self.run_with_hook(program), ("False False\n", ""))

    def test_program_without_torch_loads_no_further_modules(self):
        """Every Python process that inherits the variable imports the hook."""
        with_hook, without = (set(self.run_with_hook(START + "print(*sys.modules)", "-S", XSEG_TORCH=value)[0].split())
                              for value in "10")
        self.assertIn("_xseg_torch_hook", with_hook - without)
        self.assertLess(len(with_hook - without), 20, with_hook - without)

    def test_import_of_a_submodule_of_torch_triggers_the_hook(self):
        self.assertEqual(self.run_with_hook(START + "import torch.part; print(torch.order[-1])"), ("xseg.torch\n", ""))

    def test_torch_has_its_original_loader_and_the_finder_is_removed(self):
        program = START + ("import torch, _xseg_torch_hook as hook; print(torch.SPEC is torch.__loader__ is "
                           "torch.__spec__.loader, type(torch.__loader__).__name__, hook.FINDER in sys.meta_path)")
        self.assertEqual(self.run_with_hook(program), ("True SourceFileLoader False\n", ""))

    def test_finder_of_torch_keeps_its_loader(self):
        self.write("torch/data.txt", "data")
        program = START + """
import importlib.machinery, importlib.resources, importlib.util, inspect, pkgutil
loader = importlib.util.find_spec("torch").loader
print(type(loader) is importlib.machinery.SourceFileLoader, loader.is_package("torch"),
      loader.get_filename("torch") == loader.path, loader.get_source("torch")[:5], loader.get_code("torch") is not None,
      loader.get_data(loader.path)[:5])
spec = importlib.util.find_spec("torch")
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)  # a copy that is not in sys.modules does not trigger the hook
print(module.order, "xseg" in sys.modules)
import torch
print(importlib.resources.files("torch").joinpath("data.txt").read_text(), pkgutil.get_data("torch", "data.txt"),
      inspect.getsource(torch)[:5], torch.order[-1], vars(torch.__loader__).keys() == vars(loader).keys() - {{"exec_module"}})
importlib.reload(torch)
print(torch.order[-1])
"""
        self.write("torch/__init__.py", TORCH_SOURCE.replace("import torch.part\n", ""))
        self.assertEqual(self.run_with_hook(program), ("True True True order True b'order'\n['torch', 'end of torch'] False\n"
                                                       "data b'data' order xseg.torch True\nend of torch\n", ""))

    def test_failed_import_of_torch_can_be_repeated(self):
        self.write("torch/__init__.py", "import sys\nif not hasattr(sys, 'retried'):\n    sys.retried = True\n"
                                        "    raise ImportError('not yet')\n" + TORCH_SOURCE)
        program = START + "\ntry:\n    import torch\nexcept ImportError as failure:\n    print(failure)\n" \
                          "import torch; print(torch.order[-1])"
        self.assertEqual(self.run_with_hook(program), ("not yet\nxseg.torch\n", ""))

    def test_missing_torch_raises_the_standard_error(self):
        shutil.rmtree(self.folder / "torch")
        program = START + "\ntry:\n    import torch\nexcept ModuleNotFoundError as failure:\n    print(failure)"
        self.assertEqual(self.run_with_hook(program), ("No module named 'torch'\n", ""))

    def test_failure_is_a_message_and_pytorch_continues(self):
        self.write("xseg/torch.py", FAILING_SOURCE)
        output, error = self.run_with_hook(PRINT_ORDER)
        self.assertEqual(output, "torch, part, end of torch\n")
        self.assertEqual(error, "XSEG_TORCH=1: PyTorch keeps its own allocator: xseg.torch: no C++ compiler; install g++\n")

    def test_search_for_torch_does_not_import_it(self):
        program = START + "import importlib.util as util; print(util.find_spec('torch').name, 'torch' in sys.modules)"
        self.assertEqual(self.run_with_hook(program), ("torch False\n", ""))

    def test_hook_applies_to_a_torch_that_is_already_imported(self):
        program = "import sys; sys.path.insert(0, {folder!r}); import torch; import site; site.addsitedir({folder!r}); " \
                  "print(torch.order[-1])"
        self.assertEqual(self.run_with_hook(program), ("xseg.torch\n", ""))


if __name__ == "__main__":
    cases.main()
