# SPDX-License-Identifier: MIT
"""The wheel, installed in a virtual environment with PyTorch, as by a user: wheel.py DRIVER.

The start of README.md: XSEG_TORCH=1 in the environment, and the import.  Then with a prebuilt adapter, as the wheels of a
release have one for each version of PyTorch, without a compiler and with a read-only file system.
"""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import backends

sys.path[:0] = [str(backends.ROOT / "src/adapters/python"), str(backends.ROOT / "tests/install")]
import pages  # noqa: E402 pylint: disable=wrong-import-position
from manylinux import adapters, toolchain  # noqa: E402 pylint: disable=wrong-import-position

BUILD = pathlib.Path(sys.argv[1]).parent
VARIABLE = """
import torch
print(torch.empty(1 << 20, dtype=torch.uint8, device="cuda").numel(), torch.cuda.get_allocator_backend())
print(torch.cuda.memory_allocated(), __import__("xseg.torch").torch.info()["library"])
"""
IMPORT = "import torch, xseg.torch\nprint(torch.cuda.get_allocator_backend())"
VERSION = ("2.15",)
# Neither a compiler nor a place to write to.
BARE = "import os\nos.environ.update(PATH='/nonexistent', HOME='/nonexistent', XDG_CACHE_HOME='', CXX='')\n"
FITS = "import torch, xseg.torch\nprint(torch.cuda.get_allocator_backend(), xseg.torch.info()['adapter'])"
OTHER = """
import torch
{before}
try:
    import xseg.torch
except ImportError as refusal:
    print(refusal)
print(torch.cuda.get_allocator_backend())
"""
SERVED = "import torch, xseg.torch\ntorch.cuda.init()\nprint(xseg.torch.doctor(), xseg.torch._ADAPTER.xseg_torch_serves_ipc())"
NEITHER = "import sys, torch\nprint(torch.cuda.get_allocator_backend(), 'xseg' in sys.modules)"


def called(*command, **variables):
    """What a command prints, without what a developer has set; its complaints are raised."""
    clean = backends.without("PYTORCH_", "XSEG_", "PYTHON", "MESON", "LD_LIBRARY_PATH")
    clean |= {name: value for name, value in os.environ.items() if name.startswith("XSEG_REFERENCE")}
    ran = subprocess.run([str(part) for part in command], env={**clean, **variables}, capture_output=True, text=True, check=False)
    if ran.returncode != 0:
        raise AssertionError(f"{command}: status {ran.returncode}\n{ran.stdout}{ran.stderr}")
    return ran.stdout


def installed(folder):
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


def with_compiled(folder, python, run):
    """The adapter that fits is taken; one that does not is none, and without a compiler a sentence says so."""
    torch = pathlib.Path(called(python, "-c", "import importlib.util as u; print(u.find_spec('torch').origin)").strip()).parent
    include = pathlib.Path(called(sys.executable, backends.ENVIRONMENT, "--offline", "include").strip())
    package = pathlib.Path(called(python, "-c", "import xseg; print(xseg.__file__)").strip()).parent
    made = package / "torch/compiled"
    adapters.build_all(toolchain.NATIVE, package / "lib/libxseg.so.0", made, VERSION, lambda _: (torch / "include", include))
    adapter, = made.glob("*.so")
    said = called(*run, BARE + FITS)
    print(said)
    good = said == f"xseg {adapter}\n"
    newer = called(*run, BARE + OTHER.format(before="torch.__version__ = '2.99.0'"))
    about = json.loads(adapter.with_suffix(".json").read_text(encoding="utf-8"))
    about["methods"][2], about["methods"][4] = about["methods"][4], about["methods"][2]
    adapter.with_suffix(".json").write_text(json.dumps(about), encoding="utf-8")
    for said in (newer, called(*run, BARE + OTHER.format(before=""))):
        print(said)
        good &= "no C++ compiler to build the adapter" in said and said.endswith("\nnative\n")
    return good


def run_page_commands(folder, *shell):
    """The commands of the pages that start a PyTorch program; docs/train.py is that program."""
    program = (backends.ROOT / "docs/train.py").read_text(encoding="utf-8")
    commands = [command.rstrip(" &") for page in pages.pages(backends.ROOT) for block in pages.shell_blocks(page) for command in block
                if re.match(r"XSEG_TORCH=1 .*\bpython \w+\.py", command)]
    for name in re.findall(r"(\w+\.py)", "\n".join(commands)):
        (folder / name).write_text(program, encoding="utf-8")
    script = "\n".join([f"cd {folder}", *(f"({command}) &" for command in commands), "wait"])
    output = called(*shell, script, PATH=f"{folder}/venv/bin:{os.environ['PATH']}", XDG_RUNTIME_DIR=str(folder))
    return len(commands) > 5 and output.count("xseg: 580 MiB reserved for a peak of 576 MiB\n") == len(commands)


def main():
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
        said = called(*run, SERVED, XSEG_TORCH="1")
        print(said)
        good &= said.endswith("\nTrue True\n") and str(folder / "venv") in said
        good &= called(*run, NEITHER) == "native False\n"
        good &= run_page_commands(folder, *run[:-2], "bash", "-ec")
        good &= with_compiled(folder, python, run)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
