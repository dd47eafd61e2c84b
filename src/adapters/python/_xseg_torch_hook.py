# SPDX-License-Identifier: MIT
"""Imports xseg.torch right after torch, whoever imports that.

xseg_torch.pth imports this module if the environment contains XSEG_TORCH=1.  If the import of xseg.torch fails, the error is
written to standard error and PyTorch keeps its own allocator: child processes inherit the variable, whether they use it or not.
"""
import importlib.abc
import sys


def switch():
    """Import xseg.torch, or write the error to standard error."""
    try:
        import xseg.torch  # noqa: F401 pylint: disable=import-outside-toplevel,unused-import
    except Exception as refusal:  # pylint: disable=broad-exception-caught
        print(f"XSEG_TORCH=1: PyTorch keeps its own allocator: {refusal}", file=sys.stderr)


def follow(loader):
    """Let the loader of torch, which stays what it is, switch behind the module that it executes."""

    def exec_module(module):
        del loader.exec_module
        loader.exec_module(module)
        if sys.modules.get(module.__name__) is module:
            if FINDER in sys.meta_path:
                sys.meta_path.remove(FINDER)
            switch()

    try:
        loader.exec_module = exec_module
    except AttributeError:
        print("XSEG_TORCH=1: PyTorch keeps its own allocator: the import loader of torch is not supported; import xseg.torch right "
              "after torch", file=sys.stderr)


class Finder(importlib.abc.MetaPathFinder):
    """Finds torch as the other finders do, and follows its loader."""

    def find_spec(self, fullname, path=None, target=None):
        """None for every other module."""
        if fullname != "torch":
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec = find(fullname, path, target) if find and finder is not self else None
            if spec is not None:
                if spec.loader is not None and hasattr(spec.loader, "exec_module"):
                    follow(spec.loader)
                return spec
        return None


FINDER = Finder()
if "torch" in sys.modules:
    switch()
else:
    sys.meta_path.insert(0, FINDER)
