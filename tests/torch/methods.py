# SPDX-License-Identifier: MIT
"""Each method of PyTorch's allocator interface that no other test calls, on PyTorch's own allocator and on xseg.

methods.py DRIVER [CASE...]; the cases are in method_cases.py.

methods.cpp calls methods that Python cannot call; it is compiled once, next to the driver.
"""
import hashlib
import json
import os
import pathlib
import shlex
import subprocess
import sys
import unittest

import backends

SOURCE = backends.HERE / "methods.cpp"
CASES = backends.HERE / "method_cases.py"
# Environment variables and cases of each configuration; () stands for all cases except NAMED_ONLY of method_cases.py.
CONFIGURATIONS = {
    "expandable": ({"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}, ()),
    "classic": ({"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:False"}, ()),
    "without_peers": ({"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", "XSEG_SIM_PEERS": "0"}, ("no_peers",)),
}
SIMULATOR = {"XSEG_SIM_DEVICES": "3", "XSEG_SIM_MEMORY_MB": "2048", "XSEG_SIM_BYTES": "1"}


def environment_output(*arguments):
    return subprocess.check_output([sys.executable, backends.ENVIRONMENT, "--offline", *arguments], text=True).strip()


def compile_library(driver):
    program = "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])"
    torch = pathlib.Path(subprocess.check_output([environment_output("python"), "-c", program], text=True).strip())
    command = [*shlex.split(os.environ.get("CXX", "c++")), "-std=c++20", "-fPIC", "-shared", "-w",
               "-isystem", str(torch / "include"), "-isystem", environment_output("include"), str(SOURCE),
               "-L", str(torch / "lib"), "-lc10", "-lc10_cuda"]
    digest = hashlib.sha256(repr((command, (torch / "lib/libc10_cuda.so").stat().st_mtime_ns)).encode() + SOURCE.read_bytes())
    path = driver.parent / f"torch-methods-{digest.hexdigest()[:16]}.so"
    if not path.exists():
        scratch = path.with_suffix(f".{os.getpid()}")
        subprocess.run([*command, "-o", scratch], check=True)
        os.replace(scratch, path)
    return path


class Methods(unittest.TestCase):
    maxDiff = None
    driver = library = None
    cases = ()

    def results(self, configuration):
        variables, cases = CONFIGURATIONS[configuration]
        outputs = backends.on_each(self.driver, CASES, self.library, *(self.cases or cases), **SIMULATOR, **variables)
        return {backend: {name: json.loads(result) for name, result in
                          (line.split(" ", 1) for line in text.splitlines() if line.endswith("}"))}
                for backend, text in outputs.items()}

    def compare(self, configuration):
        results = self.results(configuration)
        for name, native in results["native"].items():
            for backend, result in results.items():
                with self.subTest(case=name, backend=backend):
                    self.assertNotIn("failed", result[name], result[name].get("failed"))
                    self.assertEqual(native, result[name], "results of PyTorch's allocator and of xseg")

    def test_results_of_methods_equal_results_of_pytorch(self):
        for configuration in CONFIGURATIONS:
            with self.subTest(configuration):
                self.compare(configuration)


if __name__ == "__main__":
    backends.require(sys.argv[1])
    Methods.driver = pathlib.Path(sys.argv[1]).resolve()
    Methods.library = compile_library(Methods.driver)
    Methods.cases = tuple(sys.argv[2:])
    unittest.main(argv=sys.argv[:1])
