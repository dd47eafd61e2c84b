# SPDX-License-Identifier: MIT
"""Names of functions, macros and keys in documents occur in the source."""
import re

import tree

# Names of the library anywhere, and C identifiers in code spans.
OWN = re.compile(r"\b(?:xseg|XSEG)_\w+\b")
CODE = re.compile(r"`([a-z]\w*_\w+)(?:\(\))?`")
WORD = re.compile(r"\w+")
# Names of other projects.
FOREIGN = {
    "max_entries",  # PyTorch: an argument of memory snapshots
    "test_basic_cumem", "test_workspace_scratch_discarded_on_sleep",  # vLLM: tests
    "multi_device", "cpu_backup",  # torch_memory_saver: examples
    "nvidia_peermem",  # a kernel module
    # Functions and protocols that register memory: PyTorch, verbs, libfabric, UCX, NVSHMEM.
    "register_mem_pool", "ibv_reg_mr", "ibv_reg_dmabuf_mr", "fi_read", "fi_write", "cuda_ipc",
    "nvshmemx_buffer_register", "nvshmemx_buffer_register_symmetric",
}


def check(root):
    documents, words = [], set(FOREIGN)
    for name, text in tree.text_files(root):
        if name.endswith(".md"):
            documents.append((name, text))
        else:
            words.update(WORD.findall(text))
    errors = []
    for name, text in documents:
        for number, line in enumerate(text.splitlines(), 1):
            unknown = sorted(set(OWN.findall(line) + CODE.findall(line)) - words)
            errors += [f"{name}:{number}: name does not exist, {word}" for word in unknown if not word.endswith("_")]
    return errors


if __name__ == "__main__":
    tree.finish(check)
