# SPDX-License-Identifier: MIT
"""Every mutant of tests/mutation can be planted: its old text stands once in its file.

So a mutant moves with the code that it changes.
"""
import importlib.util
import pathlib

import tree

HERE = pathlib.Path(__file__).resolve().parent
spec = importlib.util.spec_from_file_location("mutation", HERE.parent / "mutation/mutants.py")
mutation = importlib.util.module_from_spec(spec)
spec.loader.exec_module(mutation)


def check(root):
    """All complaints about a tree."""
    complaints = []
    names = set()
    for mutant in mutation.load(root):
        what = mutant.complaint(root)
        if mutant.name in names:
            what = "another mutant has that name"
        names.add(mutant.name)
        if what:
            complaints.append(f"tests/mutation/{mutant.group}.toml: \"{mutant.name}\": {what}")
    return complaints


if __name__ == "__main__":
    tree.finish(check)
