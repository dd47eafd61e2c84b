# SPDX-License-Identifier: MIT
"""The wheels of src/package/wheels: their contents, and their use in fresh roots of old and new distributions.

wheels.py [--wheels FOLDER]: existing wheels; by default, the test builds the wheels.
wheels.py --sample BUILD: the wheel for this architecture and one version of PyTorch, built with an empty cache from BUILD.

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

from fresh_root import FreshRoot, expect, missing_requirement, run

ROOT = pathlib.Path(__file__).resolve().parents[2]
REQUIRED = ("debootstrap", "chroot", "unshare", "qemu-aarch64-static", "readelf")
MACHINES = {"x86_64": "X86-64", "aarch64": "AArch64"}
MAX_BYTES = {"wheel": 12 << 20, "libxseg.so.0": 700 << 10}
NEWEST = {"GLIBC": (2, 28), "GLIBCXX": (3, 4, 24), "CXXABI": (1, 3, 11)}  # the versions of manylinux_2_28
TAPE = "tests/data/tapes/expandable-mixed.tape.zst"
ALLOCATE = """
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
# Mounts the folders of the host's PyTorch into a root, and makes the root read-only.
READ_ONLY = """
mount --bind "$0" "$0" && mount --bind /proc "$0/proc" && mount --bind /dev "$0/dev"
for folder in $2; do mkdir -p "$0$folder" && mount --bind "$folder" "$0$folder" && mount -o remount,bind,ro "$0$folder"; done
mount -o remount,bind,ro "$0"
exec chroot "$0" sh -ec "$1"
"""


def required_versions(path):
    """The newest version of each kind of symbol that a library requires."""
    newest = {}
    for kind, number in re.findall(r"Name: (\w+)_([\d.]+) ", run("readelf", "-W", "-V", path)):
        newest[kind] = max(newest.get(kind, ()), tuple(map(int, number.split("."))))
    return newest


def expect_old_system(path):
    """A library or program requires no newer symbol versions than those of manylinux_2_28."""
    required = required_versions(path)
    for kind, number in NEWEST.items():
        expect(required.get(kind, number) <= number, f"{path.name} requires {kind} {required.get(kind)}")


def check_contents(wheel, machine, folder):
    """The names, sizes, architectures and required symbol versions of the wheel's files."""
    expect(wheel.name.endswith(f"-py3-none-manylinux_2_28_{machine}.whl"), wheel.name)
    expect(wheel.stat().st_size <= MAX_BYTES["wheel"], f"{wheel.name} has {wheel.stat().st_size} bytes")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    releases = json.loads((ROOT / "src/adapters/python/manylinux/torch.json").read_text(encoding="utf-8"))
    expected = {f"torch-{'.'.join(release['version'].split('.')[:2])}-abi{int(release['is_cxx11'])}.so" for release in releases}
    adapters = {path.name for path in folder.glob("xseg/torch/compiled/*.so")}
    expect(expected == adapters, f"missing or unexpected adapters {sorted(expected ^ adapters)}")
    size = (folder / "xseg/lib/libxseg.so.0").stat().st_size
    expect(size <= MAX_BYTES["libxseg.so.0"], f"libxseg.so.0 has {size} bytes")
    libraries = [folder / "xseg/bin/xseg", *folder.rglob("*.so"), *folder.rglob("*.so.0")]
    for path in libraries:
        expect(MACHINES[machine] in run("readelf", "-h", path), f"{path.name} is not for {machine}")
        expect_old_system(path)
    print(f"ok - {wheel.name}: {wheel.stat().st_size} bytes, libxseg.so.0 {size}, {len(adapters)} adapters", flush=True)


def check_source_distribution(wheels, scratch):
    """The source distribution builds the identical wheel in another folder."""
    with tarfile.open(next(wheels.glob("*.tar.gz"))) as archive:
        archive.extractall(scratch / "sdist")
    tree, = (scratch / "sdist").iterdir()
    run(sys.executable, "-m", "pip", "wheel", "--no-deps", "--config-settings", "manylinux=x86_64", "-w", scratch / "rebuilt",
        tree)
    rebuilt, = (scratch / "rebuilt").iterdir()
    expect(rebuilt.read_bytes() == (wheels / rebuilt.name).read_bytes(),
           f"the source distribution builds another {rebuilt.name}")
    print("ok - the source distribution builds the identical wheel", flush=True)


def check_aarch64(folder):
    """The tool for AArch64 replays a tape in an emulator."""
    if not pathlib.Path("/usr/aarch64-linux-gnu/lib").exists():
        print("the compiler for aarch64 is not installed; run .ci/setup g++-aarch64-linux-gnu")
        return
    tool = folder / "xseg/bin/xseg"
    tool.chmod(0o755)
    output = run("qemu-aarch64-static", "-L", "/usr/aarch64-linux-gnu", tool, "replay", "--check", ROOT / TAPE)
    expect(re.search(r"(\d+) of \1 recorded results agree", output), output)
    print("ok - the tool works on AArch64 in an emulator", flush=True)


def check_debian_11(wheels, scratch):
    """The wheels work with glibc 2.31 and Python 3.9."""
    root = FreshRoot(scratch / "old")
    root.create("bullseye", "python3", "python3-pip")
    root.copy_packages(wheels)
    shutil.copy(ROOT / TAPE, root.folder / "packages/tape.zst")
    (root.folder / "packages/allocate.py").write_text(ALLOCATE, encoding="utf-8")
    root.run("pip3 install -q --no-index packages/xseg-*x86_64.whl packages/xseg_sim-*x86_64.whl")
    expect(root.run("python3 packages/allocate.py") == f"{1 << 20}\n", "the package fails")
    expect("recorded results agree" in root.run("python3 -m xseg replay --check packages/tape.zst"), "the tool fails")
    print("ok - the wheels work in Debian 11", flush=True)


def check_minimal_root(wheels, scratch):
    """PyTorch uses xseg with XSEG_TORCH=1 alone in a read-only Debian 12 with Python and without a compiler."""
    root = FreshRoot(scratch / "new")
    root.create("bookworm", "python3")
    site = root.folder / "usr/lib/python3/dist-packages"
    for wheel in wheels.glob("xseg*x86_64.whl"):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(site)
    environment = (sys.executable, ROOT / "tests/support/torch_environment.py")
    simulator = site / "xseg/lib/libxseg-sim.so.0"
    python = pathlib.Path(run(*environment, "python").strip())
    if not (python.parent.parent / "lib/python3.11").exists():
        print("skipped - PyTorch is installed for another Python than Debian's")
        return
    (site / "pytorch.pth").write_text(str(python.parent.parent / "lib/python3.11/site-packages") + "\n", encoding="utf-8")
    (root.folder / "train.py").write_text(TRAIN, encoding="utf-8")
    variables = re.findall(r"^export (\w+)='(.*)'$", run(*environment, "--driver", simulator, "print"), re.MULTILINE)
    library_paths = dict(variables)["LD_LIBRARY_PATH"].split(":")
    mounts = {str(python.parent.parent), *library_paths}
    driver = pathlib.Path(library_paths[0], "libcuda.so.1")
    (root.folder / str(simulator).lstrip("/")).parent.mkdir(parents=True, exist_ok=True)  # target of the link libcuda.so.1
    shutil.copy(driver, root.folder / str(simulator).lstrip("/"))
    settings = " ".join(f"{name}='{value}'" for name, value in variables if name != "CUDA_HOME")
    output = run("unshare", "--mount", "sh", "-ec", READ_ONLY, root.folder,
                 f"! command -v cc && ! touch /file 2>/dev/null && HOME=/nonexistent XSEG_TORCH=1 {settings} python3 /train.py",
                 " ".join(sorted(mounts)), env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"})
    expect(re.search(r"^xseg True torch-\d+\.\d+-abi1\.so$", output, re.MULTILINE), output)
    print("ok - PyTorch uses xseg in a read-only root without a compiler", flush=True)


def write_headers_wheel(folder, version, include):
    """Write a wheel with only the headers of PyTorch.  Its build tag makes pip prefer it to PyTorch's wheel of up to 900 MB."""
    tag = "cp311-cp311-manylinux_2_28_x86_64"  # the headers for each architecture are fetched from this wheel
    metadata = f"torch-{version}.dist-info"
    with zipfile.ZipFile(folder / f"torch-{version}-1-{tag}.whl", "w") as archive:
        for path in sorted(path for path in include.rglob("*") if path.is_file()):
            archive.write(path, f"torch/include/{path.relative_to(include)}")
        archive.writestr(f"{metadata}/METADATA", f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n")
        archive.writestr(f"{metadata}/WHEEL", f"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: {tag}\n")
        archive.writestr(f"{metadata}/RECORD", "")


def check_empty_cache(build, scratch):
    """A wheel can be built without caches but pip's cache, PyTorch's headers and the objects of the build folder."""
    machine, version = platform.machine(), "2.9.1"
    sys.path.insert(0, str(ROOT / "src/adapters/python"))
    from manylinux import torch_headers  # pylint: disable=import-outside-toplevel
    try:
        headers = torch_headers.folder_of(version, offline=True)
    except torch_headers.NotInstalled as reason:
        print(f"{reason}: run python3 src/adapters/python/manylinux/torch_headers.py {version}")
        return 77
    for name in ("cache", "links"):
        (scratch / name).mkdir()
    write_headers_wheel(scratch / "links", version, headers / "include")
    pip_cache = run(sys.executable, "-m", "pip", "cache", "dir").strip()
    minor = ".".join(version.split(".")[:2])
    try:
        settings = [f"manylinux={machine}", f"torch={minor}", f"builddir={build.resolve()}", "tag=linux"]
        run(sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps",
            *(f"--config-settings={text}" for text in settings), "-w", scratch / "wheels", ROOT / "src/adapters/python", env={
            **os.environ, "XDG_CACHE_HOME": str(scratch / "cache"), "PIP_CACHE_DIR": pip_cache,
            "PIP_FIND_LINKS": str(scratch / "links")})
    except SystemExit as failure:
        if not re.search(r"No matching distribution|Could not find a version|Temporary failure|Connection|timed out",
                         str(failure)):
            raise
        print("pip cannot fetch the requirements of the build")
        return 77
    expect((scratch / f"cache/xseg/torch-headers-{version}/complete").exists(), "the build used other headers")
    wheel, = (scratch / "wheels").glob(f"xseg-*{machine}.whl")
    with zipfile.ZipFile(wheel) as archive:
        adapters = [name for name in archive.namelist() if name.startswith("xseg/torch/compiled/") and name.endswith(".so")]
        expect(adapters == [f"xseg/torch/compiled/torch-{minor}-abi1.so"], f"adapters {adapters}")
        expect_old_system(pathlib.Path(archive.extract(adapters[0], scratch)))
    print("ok - a wheel can be built with an empty cache", flush=True)
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--wheels", type=pathlib.Path)
    parser.add_argument("--sample", type=pathlib.Path, metavar="BUILD")
    options = parser.parse_args()
    if options.sample:
        with tempfile.TemporaryDirectory(prefix="xseg-wheels-") as folder:
            return check_empty_cache(options.sample, pathlib.Path(folder))
    if reason := missing_requirement(REQUIRED):
        print(reason)
        return 77
    with tempfile.TemporaryDirectory(prefix="xseg-wheels-") as folder:
        scratch = pathlib.Path(folder)
        wheels = options.wheels or scratch / "wheels"
        if not options.wheels:
            subprocess.run([ROOT / "src/package/wheels", wheels], check=True, stdin=subprocess.DEVNULL)
        for machine in MACHINES:
            wheel, = wheels.glob(f"xseg-*{machine}.whl")
            check_contents(wheel, machine, scratch / machine)
        check_aarch64(scratch / "aarch64")
        check_debian_11(wheels, scratch)
        check_minimal_root(wheels, scratch)
        check_source_distribution(wheels, scratch)
    return 0


if __name__ == "__main__":
    os.environ.pop("SOURCE_DATE_EPOCH", None)
    sys.exit(main())
