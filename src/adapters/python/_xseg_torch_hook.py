# SPDX-License-Identifier: MIT
"""Imports xseg.torch right after torch, regardless of the importing module, and loads libxseg-ipc.so right before.

xseg_torch.pth imports this module if XSEG_TORCH is set to anything but 0 or an empty string, and Python is not isolated (-I).  If the
import of xseg.torch fails, the error is written to standard error, PyTorch keeps its own allocator, and the program continues, because
child processes inherit the variable even if they do not need xseg.
"""
import contextlib
import importlib.util  # importlib.abc would load 40 more modules in every Python process
import os
import sys


#: Message of the error that install() has written; "": none.
error = ""  # pylint: disable=invalid-name


def load_ipc():
    """Load libxseg-ipc.so before torch loads the CUDA runtime.  install() reports errors, because it requires the same files."""
    if os.environ.get("XSEG_TORCH", "1") == "1":
        with contextlib.suppress(ImportError, OSError):
            from xseg import _library  # pylint: disable=import-outside-toplevel
            _library.load_ipc()


def install():
    """Import xseg.torch, or write the error to standard error."""
    value = os.environ.get("XSEG_TORCH", "1")  # unset: the program has imported this module
    if value != "1":
        print(f"XSEG_TORCH: unknown value, {value!r}; set 1 to run PyTorch on xseg, or 0", file=sys.stderr)
        return
    try:
        import xseg.torch  # noqa: F401 pylint: disable=import-outside-toplevel,unused-import
        sys.meta_path.insert(0, SaverFinder())
    except Exception as failure:  # pylint: disable=broad-exception-caught
        global error  # pylint: disable=global-statement
        error = str(failure)
        print(f"XSEG_TORCH=1: PyTorch keeps its own allocator: {error}", file=sys.stderr)


class SaverFinder:
    """Finds xseg's implementation of torch_memory_saver by the name of that package, which intercepts cudaMalloc() and so
    releases no memory of xseg."""

    def find_spec(self, fullname, path=None, target=None):
        """Get the spec of torch_memory_saver; None for other modules."""
        if fullname != "torch_memory_saver":
            return None
        found = os.path.join(os.path.dirname(os.path.abspath(__file__)), "xseg/engines/torch_memory_saver.py")
        return importlib.util.spec_from_file_location(fullname, found)


def wrap_loader(loader):
    """Make a loader call load_ipc() before it executes torch, and install() afterwards.

    After that, the loader has its previous type and attributes again.
    """

    def exec_module(module):
        del loader.exec_module
        is_import = sys.modules.get(module.__name__) is module
        if is_import:
            load_ipc()
        loader.exec_module(module)
        if is_import and sys.modules.get(module.__name__) is module:
            if FINDER in sys.meta_path:
                sys.meta_path.remove(FINDER)
            install()

    try:
        loader.exec_module = exec_module
    except AttributeError:
        print("XSEG_TORCH=1: PyTorch keeps its own allocator: the import loader of torch is not supported; import xseg.torch right "
              "after torch", file=sys.stderr)


class Finder:
    """Finds torch by the other finders, and wraps its loader."""

    def find_spec(self, fullname, path=None, target=None):
        """Get the spec of torch; None for other modules."""
        if fullname != "torch":
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec = find(fullname, path, target) if find and finder is not self else None
            if spec is not None:
                if spec.loader is not None and hasattr(spec.loader, "exec_module"):
                    wrap_loader(spec.loader)
                return spec
        return None


FINDER = Finder()
if "torch" in sys.modules:
    install()
else:
    sys.meta_path.insert(0, FINDER)
