# SPDX-License-Identifier: MIT
"""Names of functions, macros and keys in documents are names of the tree."""
import re

import tree

# The library's own names anywhere, and what is set as code and looks like a name of C.
OWN = re.compile(r"\b(?:xseg|XSEG)_\w+\b")
CODE = re.compile(r"`([a-z]\w*_\w+)(?:\(\))?`")
WORD = re.compile(r"\w+")
# Names of others.
FOREIGN = {
    "max_entries",  # PyTorch's, of a memory snapshot
    "nvidia_peermem",  # a module of the kernel
    # What registers memory: PyTorch, verbs, libfabric, UCX, NVSHMEM.
    "register_mem_pool", "ibv_reg_mr", "ibv_reg_dmabuf_mr", "fi_read", "fi_write", "cuda_ipc",
    "nvshmemx_buffer_register", "nvshmemx_buffer_register_symmetric",
}


def check(root):
    documents, words = [], set(FOREIGN)
    for name, text in tree.text_files(root):
        if name == "docs/changelog.md":  # lint/renamed checks old names
            text = text.partition("## Names that changed")[0]
        if name.endswith(".md"):
            documents.append((name, text))
        else:
            words.update(WORD.findall(text))
    found = []
    for name, text in documents:
        for number, line in enumerate(text.splitlines(), 1):
            named = OWN.findall(line) + CODE.findall(line)
            found += [f"{name}:{number}: nothing is called {word}"
                      for word in sorted(set(named) - words) if not word.endswith("_")]
    return found


if __name__ == "__main__":
    tree.finish(check)
