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


class Loader(importlib.abc.Loader):
    """The loader of torch, and what comes behind it."""

    def __init__(self, loader):
        self.loader = loader

    def create_module(self, spec):
        """As the loader does."""
        return self.loader.create_module(spec)

    def exec_module(self, module):
        """Run torch under its own loader's name, then switch."""
        module.__spec__.loader = module.__loader__ = self.loader
        self.loader.exec_module(module)
        if FINDER in sys.meta_path:
            sys.meta_path.remove(FINDER)
        switch()


class Finder(importlib.abc.MetaPathFinder):
    """Finds torch as the other finders do, and puts the loader around theirs."""

    def find_spec(self, fullname, path=None, target=None):
        """None for every other module."""
        if fullname != "torch":
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec = find(fullname, path, target) if find and finder is not self else None
            if spec is not None:
                if spec.loader is not None and hasattr(spec.loader, "exec_module"):
                    spec.loader = Loader(spec.loader)
                return spec
        return None


FINDER = Finder()
if "torch" in sys.modules:
    switch()
else:
    sys.meta_path.insert(0, FINDER)
