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
# Name of a machine: what the environment has to say for it, and the cases on it; () is all but those of the others.
MACHINES = {"expandable": ({"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}, ()),
    "classic": ({"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:False"}, ()),
    "without_peers": ({"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", "XSEG_SIM_PEERS": "0"}, ("no_peers",)),}
MACHINE = {"XSEG_SIM_DEVICES": "3", "XSEG_SIM_MEMORY_MB": "2048", "XSEG_SIM_BYTES": "1"}


def ask(*arguments):
    return subprocess.check_output([sys.executable, backends.ENVIRONMENT, "--offline", *arguments], text=True).strip()


def compiled(driver):
    where = "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])"
    torch = pathlib.Path(subprocess.check_output([ask("python"), "-c", where], text=True).strip())
    command = [*shlex.split(os.environ.get("CXX", "c++")), "-std=c++20", "-fPIC", "-shared", "-w",
               "-isystem", str(torch / "include"), "-isystem", ask("include"), str(SOURCE),
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

    def reports(self, machine):
        variables, cases = MACHINES[machine]
        outputs = backends.on_each(self.driver, CASES, self.library, *(self.cases or cases), **MACHINE, **variables)
        return {backend: {name: json.loads(report) for name, report in (
            line.split(" ", 1) for line in text.splitlines() if line.endswith("}"))} for backend,
            text in outputs.items()}

    def compare(self, machine):
        said = self.reports(machine)
        for name, own in said["native"].items():
            for backend, report in said.items():
                with self.subTest(case=name, backend=backend):
                    self.assertNotIn("failed", report[name], report[name].get("failed"))
                    self.assertEqual(own, report[name], "PyTorch's, xseg's")

    def test_each_method_does_what_pytorchs_does(self):
        for machine in MACHINES:
            with self.subTest(machine):
                self.compare(machine)


if __name__ == "__main__":
    backends.require(sys.argv[1])
    Methods.driver = pathlib.Path(sys.argv[1]).resolve()
    Methods.library = compiled(Methods.driver)
    Methods.cases = tuple(sys.argv[2:])
    unittest.main(argv=sys.argv[:1])
