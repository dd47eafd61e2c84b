# SPDX-License-Identifier: MIT
"""The wheel, installed in a virtual environment beside PyTorch, as a user has it: wheel.py DRIVER.

README's first screen: XSEG_TORCH=1 in the environment, and the import.
"""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import backends

BUILD = pathlib.Path(sys.argv[1]).parent
VARIABLE = """
import torch
print(torch.empty(1 << 20, dtype=torch.uint8, device="cuda").numel(), torch.cuda.get_allocator_backend())
print(torch.cuda.memory_allocated(), __import__("xseg.torch").torch.info()["library"])
"""
IMPORT = "import torch, xseg.torch\nprint(torch.cuda.get_allocator_backend())"
NEITHER = "import sys, torch\nprint(torch.cuda.get_allocator_backend(), 'xseg' in sys.modules)"


def called(*command, **variables):
    """What a command prints, without what a developer has set; its complaints are raised."""
    clean = {name: value for name, value in os.environ.items()
             if not name.startswith(("PYTORCH_", "XSEG_", "PYTHON", "MESON", "LD_LIBRARY_PATH")) or name.startswith("XSEG_REFERENCE")}
    ran = subprocess.run([str(part) for part in command], env={**clean, **variables}, capture_output=True, text=True, check=False)
    if ran.returncode != 0:
        raise AssertionError(f"{command}: status {ran.returncode}\n{ran.stdout}{ran.stderr}")
    return ran.stdout


def installed(folder):
    """The Python of a virtual environment in which the wheel is, and PyTorch can be found."""
    torch = called(sys.executable, backends.ENVIRONMENT, "--offline", "python").strip()
    site = called(torch, "-c", "import importlib.util as u, pathlib; print(pathlib.Path(u.find_spec('torch').origin).parent.parent)")
    python = folder / "venv/bin/python"
    called(torch, "-m", "venv", "--without-pip", folder / "venv")
    own = pathlib.Path(called(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    (own / "pytorch.pth").write_text(site, encoding="utf-8")
    called(sys.executable, "-m", "pip", "wheel", "--disable-pip-version-check", "--no-deps", "--no-build-isolation", "--no-index",
           "--config-settings", f"builddir={BUILD}", "--config-settings", "tag=linux", "-w", folder, backends.ADAPTER)
    called(sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python, "install", "--no-deps", "--no-index",
           *folder.glob("*.whl"))
    return python


def main():
    """The variable, the import, and neither."""
    backends.require(sys.argv[1])
    if "xseg" not in backends.BACKENDS or shutil.which("c++") is None:
        print("the adapter is not in this tree, or there is no C++ compiler")
        return backends.SKIPPED
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        python = installed(folder)
        run = (sys.executable, backends.ENVIRONMENT, "--offline", "--driver", sys.argv[1], "run", python, "-c")
        said = called(*run, VARIABLE, XSEG_TORCH="1")
        print(said)
        library = said.split()[-1]
        good = said.split()[:3] == [str(1 << 20), "xseg", "0"] and library.startswith(str(folder / "venv"))
        good &= called(*run, IMPORT) == "xseg\n"
        good &= called(*run, NEITHER) == "native False\n"
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
