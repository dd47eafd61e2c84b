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

sys.path[:0] = [str(backends.ROOT / "src/adapters/python"), str(backends.ROOT / "tests/support")]
from page_blocks import pages, shell_blocks  # noqa: E402 pylint: disable=wrong-import-position
from manylinux import adapters, toolchain  # noqa: E402 pylint: disable=wrong-import-position

BUILD = pathlib.Path(sys.argv[1]).parent
VARIABLE = """
import torch
print(torch.empty(1 << 20, dtype=torch.uint8, device="cuda").numel(), torch.cuda.get_allocator_backend())
print(torch.cuda.memory_allocated(), __import__("xseg.torch").torch.info()["library"])
"""
IMPORT = "import torch, xseg.torch\nprint(torch.cuda.get_allocator_backend())"
VERSION = ("2.15",)
# Without a compiler and a writable folder.
RESTRICTED = "import os\nos.environ.update(PATH='/nonexistent', HOME='/nonexistent', XDG_CACHE_HOME='', CXX='')\n"
ADAPTER = "import torch, xseg.torch\nprint(torch.cuda.get_allocator_backend(), xseg.torch.info()['adapter'])"
NO_ADAPTER = """
import torch
{before}
try:
    import xseg.torch
except ImportError as error:
    print(error)
print(torch.cuda.get_allocator_backend())
"""
DOCTOR = "import torch, xseg.torch\ntorch.cuda.init()\nprint(xseg.torch.doctor(), xseg.torch._ADAPTER.xseg_torch_serves_ipc())"
NATIVE = "import sys, torch\nprint(torch.cuda.get_allocator_backend(), 'xseg' in sys.modules)"


def output_of(*command, **variables):
    """Returns the output of a command that runs without the developer's variables; raises an error if the command fails."""
    clean = backends.environment_without("PYTORCH_", "XSEG_", "PYTHON", "MESON", "LD_LIBRARY_PATH")
    clean |= {name: value for name, value in os.environ.items() if name.startswith("XSEG_REFERENCE")}
    completed = subprocess.run([str(argument) for argument in command], env={**clean, **variables}, capture_output=True,
                               text=True, check=False)
    if completed.returncode != 0:
        raise AssertionError(f"{command}: status {completed.returncode}\n{completed.stdout}{completed.stderr}")
    return completed.stdout


def install_wheel(folder):
    """Builds the wheel, and installs it with PyTorch in a virtual environment; returns the Python of the environment."""
    torch = output_of(sys.executable, backends.ENVIRONMENT, "--offline", "python").strip()
    site = output_of(torch, "-c",
                     "import importlib.util as u, pathlib; print(pathlib.Path(u.find_spec('torch').origin).parent.parent)")
    python = folder / "venv/bin/python"
    output_of(torch, "-m", "venv", "--without-pip", folder / "venv")
    packages = pathlib.Path(output_of(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    (packages / "pytorch.pth").write_text(site, encoding="utf-8")
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    output_of(*pip, "wheel", "--no-deps", "--no-build-isolation", "--no-index", "--config-settings", f"builddir={BUILD}",
              "--config-settings", "tag=linux", "-w", folder, backends.ADAPTER)
    output_of(*pip, "--python", python, "install", "--no-deps", "--no-index", *folder.glob("*.whl"))
    return python


def check_compiled_adapter(python, run):
    """The adapter that matches PyTorch is loaded; without a match and without a compiler, the import fails with a message."""
    torch = pathlib.Path(output_of(python, "-c", "import importlib.util as u; print(u.find_spec('torch').origin)").strip()).parent
    include = pathlib.Path(output_of(sys.executable, backends.ENVIRONMENT, "--offline", "include").strip())
    package = pathlib.Path(output_of(python, "-c", "import xseg; print(xseg.__file__)").strip()).parent
    compiled = package / "torch/compiled"
    adapters.build_all(toolchain.NATIVE, package / "lib/libxseg.so.0", compiled, VERSION, lambda _: (torch / "include", include))
    adapter, = compiled.glob("*.so")
    output = output_of(*run, RESTRICTED + ADAPTER)
    print(output)
    is_correct = output == f"xseg {adapter}\n"
    other_version = output_of(*run, RESTRICTED + NO_ADAPTER.format(before="torch.__version__ = '2.99.0'"))
    description = json.loads(adapter.with_suffix(".json").read_text(encoding="utf-8"))
    description["methods"][2], description["methods"][4] = description["methods"][4], description["methods"][2]
    adapter.with_suffix(".json").write_text(json.dumps(description), encoding="utf-8")
    for output in (other_version, output_of(*run, RESTRICTED + NO_ADAPTER.format(before=""))):
        print(output)
        is_correct &= "no C++ compiler to build the adapter" in output and output.endswith("\nnative\n")
    return is_correct


def run_page_commands(folder, *shell):
    """The commands of the pages that start a PyTorch program; docs/train.py is that program."""
    program = (backends.ROOT / "docs/train.py").read_text(encoding="utf-8")
    commands = [command.rstrip(" &") for page in pages(backends.ROOT) for block in shell_blocks(page) for command in block
                if re.match(r"XSEG_TORCH=1 .*\bpython \w+\.py", command)]
    for name in re.findall(r"(\w+\.py)", "\n".join(commands)):
        (folder / name).write_text(program, encoding="utf-8")
    script = "\n".join([f"cd {folder}", *(f"({command}) &" for command in commands), "wait"])
    output = output_of(*shell, script, PATH=f"{folder}/venv/bin:{os.environ['PATH']}", XDG_RUNTIME_DIR=str(folder))
    return len(commands) > 5 and output.count("xseg: 580 MiB reserved for a peak of 576 MiB\n") == len(commands)


def is_documented(report):
    """Whether a report of the doctor has the lines of docs/engines.md, except that of vLLM, up to a path or an omission."""
    page = (backends.ROOT / "docs/engines.md").read_text(encoding="utf-8")
    lines = re.search(r"^\$ xseg run python -m xseg doctor\n(.*?)^```", page, re.DOTALL | re.MULTILINE)[1].splitlines()
    starts = [re.split(r"/|\.\.\.", line)[0] for line in lines if " vLLM " not in line]
    missing = [start for start in starts if re.sub(r"2\.15\.0\S+", "", start) not in re.sub(r"PyTorch \S+ ", "PyTorch  ", report)]
    print("\n".join(f"not in the report: {start}" for start in missing))
    return len(lines) > 5 and not missing


def main():
    backends.require(sys.argv[1])
    if "xseg" not in backends.BACKENDS or shutil.which("c++") is None:
        print("skipped: the adapter is not in this tree, or no C++ compiler was found")
        return backends.SKIPPED
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        python = install_wheel(folder)
        run = (sys.executable, backends.ENVIRONMENT, "--offline", "--driver", sys.argv[1], "run", python, "-c")
        output = output_of(*run, VARIABLE, XSEG_TORCH="1")
        print(output)
        library = output.split()[-1]
        is_correct = output.split()[:3] == [str(1 << 20), "xseg", "0"] and library.startswith(str(folder / "venv"))
        is_correct &= output_of(*run, IMPORT) == "xseg\n"
        output = output_of(*run, DOCTOR, XSEG_TORCH="1")
        print(output)
        is_correct &= output.endswith("\nTrue True\n") and str(folder / "venv") in output and is_documented(output)
        is_correct &= output_of(*run, NATIVE) == "native False\n"
        is_correct &= run_page_commands(folder, *run[:-2], "bash", "-ec")
        is_correct &= check_compiled_adapter(python, run)
    return 0 if is_correct else 1


if __name__ == "__main__":
    sys.exit(main())
