# SPDX-License-Identifier: MIT
"""Extracts the virtual tables of PyTorch's allocator interface from its wheels to torch.json.

torch_tables.py VERSION...    updates the tables of these versions

Run it as `python3 -m manylinux.torch_tables` in src/adapters/python; it needs the Python package pyelftools.
"""
import bisect
import json
import pathlib
import struct
import sys
import tempfile
import zipfile

from manylinux.torch_headers import cache, fetch

RECORD = pathlib.Path(__file__).resolve().parent / "torch.json"
# An exported class of PyTorch that implements the interface; its table has the order of the interface.
CLASS = "N5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocator"


def virtual_methods(library):
    """Get the symbols in the virtual table of CLASS, in order; "" for a method without exported symbol.

    The dynamic loader fills the table, so its contents are in the relocations, one per word.
    """
    from elftools.elf.elffile import ELFFile  # pylint: disable=import-outside-toplevel
    with open(library, "rb") as file:
        elf = ELFFile(file)
        names = elf.get_section_by_name(".dynstr").data()
        symbols = list(struct.iter_unpack("<IBBHQQ", elf.get_section_by_name(".dynsym").data()))
        relocations = elf.get_section_by_name(".rela.dyn").data()

    def name(symbol):
        return names[symbol[0]:names.index(b"\0", symbol[0])].decode()

    table_name = ("_ZTV" + CLASS + "E").encode()
    name_offset = names.index(b"\0" + table_name + b"\0") + 1
    start, size = next((symbol[4], symbol[5]) for symbol in symbols if symbol[0] == name_offset)
    targets = {}
    for offset, kind, addend in struct.iter_unpack("<QQq", relocations):
        if start <= offset < start + size:
            symbol = symbols[kind >> 32]
            targets[(offset - start) // 8] = symbol[4] + addend if kind >> 32 == 0 else name(symbol)
    # Defined functions by address; a function can have several names.
    defined = sorted((symbol[4], name(symbol)) for symbol in symbols if symbol[4] in set(targets.values()))
    methods = []
    for word in range(2, size // 8):  # after offset to top and type
        target = targets.get(word, "")
        if not isinstance(target, str):
            index = bisect.bisect_left(defined, (target, ""))
            target = defined[index][1] if index < len(defined) and defined[index][0] == target else ""
        methods.append(target)
    return methods


def record(version):
    """Record the table of virtual methods of a version, and the C++ ABI of its wheel."""
    with tempfile.TemporaryDirectory(dir=cache(), prefix="wheel-") as scratch:
        with zipfile.ZipFile(fetch(version, scratch)) as archive:
            methods = virtual_methods(archive.extract("torch/lib/libtorch_cuda.so", scratch))
    known = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else []
    known = [each for each in known if each["version"] != version]
    known.append({"version": version, "is_cxx11": any("__cxx11" in name for name in methods),
                  "methods": methods})
    known.sort(key=lambda each: [int(part) for part in each["version"].split(".")])
    RECORD.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")


def main():
    """Execute the command line."""
    for version in sys.argv[1:]:
        record(version)


if __name__ == "__main__":
    main()
