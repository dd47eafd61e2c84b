# SPDX-License-Identifier: MIT
"""The shell commands of README.md and docs run as printed, and the programs of a page print the output that the page shows.

The commands run on the simulated driver, with the installed files, in a folder that has the programs of the page.
ELSEWHERE lists commands that this test does not run, with the test that runs them or the reason why none can.
`tool/outputs` runs the commands of the tool, and `torch/wheel` those that start PyTorch.
"""
import os
import pathlib
import re
import shlex
import subprocess
import sys

from checks import FOREIGN, Absent, expect

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from page_blocks import pages, shell_blocks, wrapped  # noqa: E402 pylint: disable=wrong-import-position

# By the beginnings of commands.
ELSEWHERE = {
    ".ci/setup": "installs packages for the whole system",
    "apt-get install": "installs packages for the whole system",
    "src/package/deb": "`tests/campaign packages`, in a fresh system",
    "meson setup": "`install` configures and installs in folders of its own",
    "meson install": "`install` configures and installs in folders of its own",
    "ldconfig": "changes the whole system",
    "pip install": "`install/wheel`",
    "folder=$(python": "`install/wheel`",
    "XSEG_DRIVER=libxseg-sim.so python": "`install/wheel`",
    "XSEG_DRIVER=$folder": "`install/wheel`",
    "LD_PRELOAD=$folder": "`install/wheel`",
    "cc program.c -I$folder": "`install/wheel`",
    "XSEG_TORCH=1 ": "`torch/wheel`, except for programs that are not part of xseg",
    "NCCL_GRAPH_REGISTER=0 xseg run ": "`tool/run`; the engines are not part of xseg",
    "xseg run python -m xseg doctor": "`torch/wheel`",
    "xseg run ": "`tool/run` and `torch/engines`; the engines are not part of xseg",
    "xseg ": "`tool/outputs`",
    "python -m xseg replay": "`python/document`",
    "XSEG_SIM_BYTES=1 venv/bin/python": "`python/numba_memory`",
    "PYTORCH_ALLOC_CONF=large_segment_size_mb:40 xseg": "`tool/config`",
    "python3 tests/support/torch_environment.py": "`torch/documented` finds and runs PyTorch by this script",
    "python3 tests/": "writes files of the source tree",
    "python3 benchmarks/": "takes minutes",
    "benchmarks/run": "takes minutes",
    "tests/": "runs tests",
    ".ci/run": "runs tests",
    "meson test": "runs tests",
    "build-tests/tests/": "a campaign",
    "tests/gpu/run": "needs a GPU",
    "XSEG_DRIVER=libcuda.so.1": "needs a GPU",
    "node_exporter": "a program that is not part of xseg",
    "bpftrace": "a program that is not part of xseg; `tool/usdt` tests the probes",
    "mkdir -p /var/lib": "changes the whole system",
    "install -d": "changes the whole system",
}
# Commands that fail on purpose, and their status.
FAILS = {"XSEG_SIM_FAIL=:40:700 ./program": 1}
# `{sizeof(x)}` initializes the other members with zero; -Wextra warns about that idiom.
WARNINGS = ("-Wall", "-Wextra", "-Wpedantic", "-Wno-missing-field-initializers", "-Werror")


def complete_program(page):
    """The complete C program of a page, and its documented output or None; None and None for a page without one."""
    programs = re.findall(r"^```c\n(.*?)^```\n(?:\nIt prints:\n\n```\n(.*?)^```)?", page.read_text(encoding="utf-8"),
                          re.DOTALL | re.MULTILINE)
    return next(((text, output or None) for text, output in programs if "int main(" in text), (None, None))


def entry(command):
    """The entry of ELSEWHERE for a command: its longest beginning; None for a command that this test runs."""
    return max((start for start in ELSEWHERE if command.startswith(start)), key=len, default=None)


def commands_of_elsewhere_exist(root):
    """The scripts, options, suites and tests that the commands of ELSEWHERE name exist, and each entry has a command."""
    used = set()
    for page, command in [(page, command) for page in pages(root) for block in shell_blocks(page) for command in block]:
        if not entry(command):
            continue
        used.add(entry(command))
        command = command.partition(" && ")[0]
        scripts = [root / word for word in shlex.split(command, comments=True) if re.match(r"(\.ci|tests|benchmarks|src)/", word)]
        text = "".join(path.read_text(encoding="utf-8", errors="replace") for path in scripts if path.is_file())
        names = [path for path in scripts if not path.exists()]
        names += [option for option in re.findall(r"(?<!\S)--[a-z][\w-]*", command) if scripts and option not in text]
        names += [suite for suite in re.findall(r"--suite (\w+)", command) if not (root / "tests" / suite).is_dir()]
        names += [f"{suite}/{name}" for suite, name in re.findall(r"build-tests(?:/tests/test-| )(\w+)[-/](\w+)", command)
                  if not (root / f"tests/{suite}/{name}.c").exists()]
        expect(not names, f"{page.name}: {command}: {names} does not exist")
    expect(used == set(ELSEWHERE), f"no page has the commands {sorted(set(ELSEWHERE) - used)}")


class Shell:
    """A folder with the programs of a page, on a system with an installed xseg, whose CUDA driver is the simulated one."""

    def __init__(self, tree, root):
        self.folder = tree.scratch / "pages"
        commands, driver = self.folder / "bin", self.folder / "driver"
        for folder in (commands, driver):
            folder.mkdir(parents=True)
        (driver / "libcuda.so.1").symlink_to(tree.libdir / "libxseg-sim.so.0")
        (self.folder / "build").symlink_to(tree.libdir)
        (self.folder / ".deps").symlink_to(root / ".deps")
        # cuda.h has warnings of -Wpedantic.
        cuda = shlex.join(tree.cuda).replace("-I", "-isystem")
        (commands / "cc").write_text(f"""#!/bin/bash
PATH={shlex.quote(os.environ["PATH"])} # without this script
exec {shlex.join(tree.compilers["c"])} -std=c11 {shlex.join(WARNINGS)} "${{@/#-I*cuda*/-DCUDA}}" {cuda} -Wl,-rpath,{tree.libdir}
""")
        (commands / "python3").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
        for command in commands.iterdir():
            command.chmod(0o755)
        clean = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
        self.environment = {**clean, **tree.pkg_config_environment(), "PATH": f"{commands}:{tree.bindir}:{os.environ['PATH']}",
                            "LD_LIBRARY_PATH": f"{tree.libdir}:{driver}",
                            "PYTHONPATH": str(root / ".deps/bindings" / sys.implementation.cache_tag)}
        self.readme = complete_program(root / "README.md")[0]
        self.write("program.c", self.readme)
        self.run(["cc program.c $(pkg-config --cflags --libs xseg) -o program", "cp program service"])

    def write(self, name, text):
        (self.folder / name).write_text(text, encoding="utf-8")

    def start(self, commands, **variables):
        return subprocess.run(["bash", "-euo", "pipefail", "-c", "\n".join([*commands, "wait"])], cwd=self.folder, check=False,
                              capture_output=True, text=True, stdin=subprocess.DEVNULL, env={**self.environment, **variables})

    def run(self, commands):
        """The standard output of the commands of a block."""
        completed = self.start(commands)
        status = sum(FAILS.get(re.sub(" +#.*", "", command), 0) for command in commands)
        expect(completed.returncode == status,
               f"{commands}: status {completed.returncode}\n{completed.stdout}{completed.stderr}")
        return completed.stdout

    def run_page(self, page):
        """The commands of a page run, and its complete program prints the documented output, and a message without a driver."""
        text = page.read_text(encoding="utf-8")
        program, output = complete_program(page)
        python = re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
        for block in shell_blocks(page):
            commands = [command for command in block if not entry(command)]
            source = re.match(r"cc (\S+\.c)", "".join(commands[:1]))
            if source:
                self.write(source[1], program or self.readme)
            if python and any(command.startswith("python3 program.py") for command in commands):
                if not os.path.exists(self.environment["PYTHONPATH"]):
                    raise Absent("the package cuda-bindings is not installed; run .ci/setup --bindings")
                self.write("program.py", python[0])
            actual = wrapped(self.run(commands))
            if source and program:
                expect(output in (None, actual), f"{page.name}: {commands[-1]} prints\n{actual}")
                if "xseg_error_message" in program:
                    failed = self.start([re.search(r"\./\S+", commands[-1])[0]], XSEG_DRIVER="libno-such-driver.so")
                    expect(failed.returncode == 1 and "libno-such-driver.so" in failed.stderr,
                           f"{page.name}: no reason without a driver: {failed.stderr}")


def cases(tree, root):
    """Name and function of each case."""
    shells = []
    yield "commands of pages that run elsewhere exist", lambda: commands_of_elsewhere_exist(root)
    yield "the shell of pages is set up", lambda: shells.append(Shell(tree, root))
    for page in pages(root):
        if any(not entry(command) for block in shell_blocks(page) for command in block):
            yield f"commands of {page.name} run as printed", lambda page=page: shells[0].run_page(page)
