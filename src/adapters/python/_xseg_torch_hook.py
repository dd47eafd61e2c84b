# SPDX-License-Identifier: MIT
"""Imports xseg.torch right after torch, whoever imports that.

xseg_torch.pth imports this module where the environment says XSEG_TORCH=1.  Should xseg.torch refuse, a sentence goes to
standard error and PyTorch goes on with its own allocator: the variable comes down to children that nobody had in mind.
"""
import importlib.abc
import sys


def switch():
    """Import xseg.torch, or say why not."""
    try:
        import xseg.torch  # noqa: F401 pylint: disable=import-outside-toplevel,unused-import
    except Exception as refusal:  # pylint: disable=broad-exception-caught
        print(f"xseg: XSEG_TORCH=1, but xseg.torch cannot be imported: {refusal}; PyTorch goes on with its own "
              "allocator", file=sys.stderr)


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
        print("xseg: XSEG_TORCH=1, but the loader of torch cannot be followed: import xseg.torch right after torch; PyTorch goes "
              "on with its own allocator", file=sys.stderr)


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
