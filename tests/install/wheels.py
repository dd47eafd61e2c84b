# SPDX-License-Identifier: MIT
"""The wheels of src/package/wheels: their contents, and their use in fresh roots of old and new distributions.

wheels.py [--made FOLDER]: existing wheels; by default, new ones.
wheels.py --sample BUILD: the wheel of xseg for this architecture and one version of PyTorch, built with an empty cache from BUILD.

Takes twenty minutes, a sample less than one, and requires a network.  `tests/campaign wheels` runs this test.  The exit
status is 77, with a message, if a requirement is missing.
"""
import argparse
import json
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile

from fresh_root import Fresh, expect, missing, run

ROOT = pathlib.Path(__file__).resolve().parents[2]
NEEDED = ("debootstrap", "chroot", "unshare", "qemu-aarch64-static", "readelf")
PROCESSORS = {"x86_64": "X86-64", "aarch64": "AArch64"}
MOST = {"the wheel": 12 << 20, "libxseg.so.0": 700 << 10}
NEWEST = {"GLIBC": (2, 28), "GLIBCXX": (3, 4, 24), "CXXABI": (1, 3, 11)}  # what manylinux_2_28 has
TAPE = "tests/data/tapes/expandable-mixed.tape.zst"
OLD = """
import xseg_sim, xseg
with xseg.open() as allocator, allocator.allocate(1 << 20) as block:
    print(allocator.statistics().allocated_bytes.all.current)
"""
TRAIN = """
import time, torch
import xseg.torch
layer = torch.nn.Linear(64, 64).cuda()
print(torch.cuda.get_allocator_backend(), torch.cuda.memory_allocated() > 0, xseg.torch.info()["adapter"].rsplit("/", 1)[1])
"""
# A root into which PyTorch is mounted as this machine has it, and in which nothing can be written.
READ_ONLY = """
mount --bind "$0" "$0" && mount --bind /proc "$0/proc" && mount --bind /dev "$0/dev"
for folder in $2; do mkdir -p "$0$folder" && mount --bind "$folder" "$0$folder" && mount -o remount,bind,ro "$0$folder"; done
mount -o remount,bind,ro "$0"
exec chroot "$0" sh -ec "$1"
"""


def versions(path):
    """The newest version of each kind that a library asks for."""
    found = {}
    for kind, number in re.findall(r"Name: (\w+)_([\d.]+) ", run("readelf", "-W", "-V", path)):
        found[kind] = max(found.get(kind, ()), tuple(map(int, number.split("."))))
    return found


def expect_old_system(path):
    """A library or program asks for nothing that manylinux_2_28 lacks."""
    asked = versions(path)
    for kind, number in NEWEST.items():
        expect(asked.get(kind, number) <= number, f"{path.name} asks for {kind} {asked.get(kind)}")


def is_made_right(wheel, processor, folder):
    """Names, sizes, processors, and what the libraries ask of the system."""
    expect(wheel.name.endswith(f"-py3-none-manylinux_2_28_{processor}.whl"), wheel.name)
    expect(wheel.stat().st_size <= MOST["the wheel"], f"{wheel.name} has {wheel.stat().st_size} bytes")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    known = json.loads((ROOT / "src/adapters/python/manylinux/torch.json").read_text(encoding="utf-8"))
    adapters = {f"torch-{'.'.join(each['version'].split('.')[:2])}-abi{int(each['is_cxx11'])}.so" for each in known}
    found = {path.name for path in folder.glob("xseg/torch/compiled/*.so")}
    expect(adapters == found, f"adapters {sorted(adapters ^ found)}")
    size = (folder / "xseg/lib/libxseg.so.0").stat().st_size
    expect(size <= MOST["libxseg.so.0"], f"libxseg.so.0 has {size} bytes")
    libraries = [folder / "xseg/bin/xseg", *folder.rglob("*.so"), *folder.rglob("*.so.0")]
    for path in libraries:
        expect(PROCESSORS[processor] in run("readelf", "-h", path), f"{path.name} is for another processor")
        expect_old_system(path)
    print(f"ok - {wheel.name}: {wheel.stat().st_size} bytes, libxseg.so.0 {size}, {len(found)} adapters", flush=True)


def comes_of_the_sdist(made, scratch):
    """The same wheel, bit for bit, from the source distribution in another folder."""
    with tarfile.open(next(made.glob("*.tar.gz"))) as archive:
        archive.extractall(scratch / "sdist")
    tree, = (scratch / "sdist").iterdir()
    run(sys.executable, "-m", "pip", "wheel", "--no-deps", "--config-settings", "manylinux=x86_64", "-w", scratch / "again", tree)
    again, = (scratch / "again").iterdir()
    expect(again.read_bytes() == (made / again.name).read_bytes(), f"{again.name} of the source distribution differs")
    print("ok - from the source distribution", flush=True)


def works_on_aarch64(folder):
    """The tool replays a tape, emulated."""
    if not pathlib.Path("/usr/aarch64-linux-gnu/lib").exists():
        print("the compiler for aarch64 is not installed; run .ci/setup g++-aarch64-linux-gnu")
        return
    (folder / "xseg/bin/xseg").chmod(0o755)
    said = run("qemu-aarch64-static", "-L", "/usr/aarch64-linux-gnu", folder / "xseg/bin/xseg", "replay", "--check", ROOT / TAPE)
    expect(re.search(r"(\d+) of \1 recorded results agree", said), said)
    print("ok - on aarch64, emulated", flush=True)


def works_in_an_old_root(made, scratch):
    """Debian 11: glibc 2.31, Python 3.9."""
    root = Fresh(scratch / "old")
    root.make("bullseye", "python3", "python3-pip")
    root.bring(made)
    shutil.copy(ROOT / TAPE, root.folder / "packages/tape.zst")
    (root.folder / "packages/old.py").write_text(OLD, encoding="utf-8")
    root.do("pip3 install -q --no-index packages/xseg-*x86_64.whl packages/xseg_sim-*x86_64.whl")
    expect(root.do("python3 packages/old.py") == f"{1 << 20}\n", "the package in Debian 11")
    expect("recorded results agree" in root.do("python3 -m xseg replay --check packages/tape.zst"), "the tool in Debian 11")
    print("ok - in Debian 11", flush=True)


def works_for_a_new_user(made, scratch):
    """Debian 12 with Python and nothing else, PyTorch beside it, read-only: the variable is all."""
    root = Fresh(scratch / "new")
    root.make("bookworm", "python3")
    site = root.folder / "usr/lib/python3/dist-packages"
    for wheel in made.glob("xseg*x86_64.whl"):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(site)
    environment = (sys.executable, ROOT / "tests/support/torch_environment.py")
    simulator = site / "xseg/lib/libxseg-sim.so.0"
    python = pathlib.Path(run(*environment, "python").strip())
    if not (python.parent.parent / "lib/python3.11").exists():
        print("skipped - PyTorch here is of another Python than Debian's")
        return
    (site / "pytorch.pth").write_text(str(python.parent.parent / "lib/python3.11/site-packages") + "\n", encoding="utf-8")
    (root.folder / "train.py").write_text(TRAIN, encoding="utf-8")
    variables = re.findall(r"^export (\w+)='(.*)'$", run(*environment, "--driver", simulator, "print"), re.MULTILINE)
    mounts = {str(python.parent.parent), *(path for name, paths in variables if name == "LD_LIBRARY_PATH" for path in paths.split(":"))}
    driver = pathlib.Path(dict(variables)["LD_LIBRARY_PATH"].split(":")[0], "libcuda.so.1")
    (root.folder / str(simulator).lstrip("/")).parent.mkdir(parents=True, exist_ok=True)  # where libcuda.so.1 leads to
    shutil.copy(driver, root.folder / str(simulator).lstrip("/"))
    words = " ".join(f"{name}='{value}'" for name, value in variables if name != "CUDA_HOME")
    said = run("unshare", "--mount", "sh", "-ec", READ_ONLY, root.folder,
               f"! command -v cc && ! touch /file 2>/dev/null && HOME=/nonexistent XSEG_TORCH=1 {words} python3 /train.py",
               " ".join(sorted(mounts)), env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"})
    expect(re.search(r"^xseg True torch-\d+\.\d+-abi1\.so$", said, re.MULTILINE), said)
    print("ok - for a new user, without a compiler, in a read-only root", flush=True)


def stand_in(folder, version, include):
    """A wheel with the headers of PyTorch alone, which pip prefers to PyTorch's own, of up to 900 MB, for its build tag."""
    tag = "cp311-cp311-manylinux_2_28_x86_64"  # of which the headers are fetched for each processor
    about = f"torch-{version}.dist-info"
    with zipfile.ZipFile(folder / f"torch-{version}-1-{tag}.whl", "w") as archive:
        for path in sorted(path for path in include.rglob("*") if path.is_file()):
            archive.write(path, f"torch/include/{path.relative_to(include)}")
        archive.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n")
        archive.writestr(f"{about}/WHEEL", f"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: {tag}\n")
        archive.writestr(f"{about}/RECORD", "")


def is_made_from_an_empty_cache(build, scratch):
    """As on a fresh machine, except for pip's cache, PyTorch's wheel, and what a build folder has compiled for this system."""
    processor, version = platform.machine(), "2.9.1"
    sys.path.insert(0, str(ROOT / "src/adapters/python"))
    from manylinux import torch_headers  # pylint: disable=import-outside-toplevel
    try:
        headers = torch_headers.folder_of(version, offline=True)
    except torch_headers.Absent as why:
        print(f"{why}: python3 src/adapters/python/manylinux/torch_headers.py {version} fetches them")
        return 77
    for name in ("cache", "links"):
        (scratch / name).mkdir()
    stand_in(scratch / "links", version, headers / "include")
    pip_cache = run(sys.executable, "-m", "pip", "cache", "dir").strip()
    minor = ".".join(version.split(".")[:2])
    try:
        settings = [f"manylinux={processor}", f"torch={minor}", f"builddir={build.resolve()}", "tag=linux"]
        run(sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps",
            *(f"--config-settings={each}" for each in settings), "-w", scratch / "made", ROOT / "src/adapters/python", env={
            **os.environ, "XDG_CACHE_HOME": str(scratch / "cache"), "PIP_CACHE_DIR": pip_cache, "PIP_FIND_LINKS": str(scratch / "links")})
    except SystemExit as failure:
        if not re.search(r"No matching distribution|Could not find a version|Temporary failure|Connection|timed out", str(failure)):
            raise
        print("pip cannot fetch what a build needs")
        return 77
    expect((scratch / f"cache/xseg/torch-headers-{version}/complete").exists(), "the headers came from elsewhere")
    wheel, = (scratch / "made").glob(f"xseg-*{processor}.whl")
    with zipfile.ZipFile(wheel) as archive:
        found = [name for name in archive.namelist() if name.startswith("xseg/torch/compiled/") and name.endswith(".so")]
        expect(found == [f"xseg/torch/compiled/torch-{minor}-abi1.so"], f"adapters {found}")
        expect_old_system(pathlib.Path(archive.extract(found[0], scratch)))
    print("ok - from an empty cache", flush=True)
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--made", type=pathlib.Path)
    parser.add_argument("--sample", type=pathlib.Path, metavar="BUILD")
    options = parser.parse_args()
    if options.sample:
        with tempfile.TemporaryDirectory(prefix="xseg-wheels-") as folder:
            return is_made_from_an_empty_cache(options.sample, pathlib.Path(folder))
    why = missing(NEEDED)
    if why:
        print(why)
        return 77
    with tempfile.TemporaryDirectory(prefix="xseg-wheels-") as folder:
        scratch = pathlib.Path(folder)
        made = options.made or scratch / "made"
        if not options.made:
            subprocess.run([ROOT / "src/package/wheels", made], check=True, stdin=subprocess.DEVNULL)
        for processor in PROCESSORS:
            wheel, = made.glob(f"xseg-*{processor}.whl")
            is_made_right(wheel, processor, scratch / processor)
        works_on_aarch64(scratch / "aarch64")
        works_in_an_old_root(made, scratch)
        works_for_a_new_user(made, scratch)
        comes_of_the_sdist(made, scratch)
    return 0


if __name__ == "__main__":
    os.environ.pop("SOURCE_DATE_EPOCH", None)
    sys.exit(main())
