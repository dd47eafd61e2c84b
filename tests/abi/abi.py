# SPDX-License-Identifier: MIT
"""The binary interface of libxseg.so, read by abidw, equals the recorded libxseg.abi according to abidiff.

abi.py ROOT LIBRARY [--write]; --write updates the record.  Compatibility with releases is checked from version 1.0 on.
"""
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as xml

ABIDW = ("abidw", "--no-show-locs", "--no-corpus-path", "--no-comp-dir-path", "--no-elf-needed",
         "--short-locs", "--type-id-style", "hash")
HERE = pathlib.Path(__file__).resolve().parent


def run(*command):
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, command))}: {result.stdout}{result.stderr}")
    return result.stdout


def defined(root):
    """The structures that the public headers define; programs have only pointers to other structures."""
    headers = (root / "include/xseg").glob("*.h")
    return {name for header in headers for name in re.findall(r"^struct (\w+) \{", header.read_text(), re.M)}


def references(element):
    """The types that an element or one of its children refers to."""
    for part in element.iter():
        for key in ("type-id", "naming-typedef-id", "method-class-id"):
            if key in part.attrib:
                yield part.attrib[key]


def describe(library, root):
    """The interface as XML: the exported functions, and the types that are reachable from them.

    abidw distinguishes public types by the base names of their headers, which are not unique in the tree.  Therefore abidw
    writes all types, and this function removes the definitions of private types.
    """
    corpus = xml.fromstring(run(*ABIDW, library))
    public, types, functions = defined(root), {}, []
    for element in (child for unit in corpus.findall("abi-instr") for child in unit):
        if element.tag == "class-decl" and element.get("name") not in public:
            del element[:]
            element.attrib.pop("size-in-bits", None)
            element.set("is-declaration-only", "yes")
        if element.tag == "function-decl" and "elf-symbol-id" in element.attrib:
            functions.append(element)
        elif "id" in element.attrib:
            types.setdefault(element.get("id"), element)
    reachable, pending = set(), [name for function in functions for name in references(function)]
    while pending:
        name = pending.pop()
        if name in types and name not in reachable:
            reachable.add(name)
            pending += references(types[name])
    for unit in corpus.findall("abi-instr"):
        corpus.remove(unit)
    unit = xml.SubElement(corpus, "abi-instr", {"address-size": "64", "language": "LANG_C11"})
    unit.extend(types[name] for name in sorted(reachable, key=lambda id: sort_key(types[id])))
    unit.extend(sorted(functions, key=lambda function: function.get("name")))
    for parameter in unit.iter("parameter"):
        parameter.attrib.pop("name", None)
    xml.indent(corpus)
    return xml.tostring(corpus, encoding="unicode") + "\n"


def sort_key(element):
    """Types are sorted by kind and name, so that a small change of the interface is a small change of the file."""
    return element.tag, element.get("name", ""), element.get("id")


def compare(old, new):
    """The report of abidiff on the difference of two interfaces; empty if they are equal."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [pathlib.Path(folder, f"{name}.abi") for name in ("old", "new")]
        for path, text in zip(paths, (old, new)):
            path.write_text(text)
        result = subprocess.run(["abidiff", "--no-show-locs", *paths], check=False, capture_output=True, text=True)
    if result.returncode & 3 or result.returncode < 0:
        raise RuntimeError(f"abidiff failed: {result.stdout}{result.stderr}")
    return result.stdout if result.returncode else ""


def skip_reason(library):
    """The reason why the interfaces cannot be compared, or None."""
    if not shutil.which("abidw") or not shutil.which("abidiff"):
        return "abidw and abidiff are not installed; run .ci/setup abigail-tools"
    if platform.machine() != "x86_64":
        return "libxseg.abi describes the interface on x86_64"
    if ".debug_info" not in run("readelf", "--sections", "--wide", library):
        return "the library was built without debug information"
    return None


def main(root, library, option=None):
    root, record = pathlib.Path(root), HERE / "libxseg.abi"
    if reason := skip_reason(library):
        print(f"1..0 # SKIP {reason}")
        return 0
    interface = describe(library, root)
    if option == "--write":
        record.write_text(interface)
        return 0
    report = compare(record.read_text(), interface)
    print("1..1")
    print(f"{'not ok' if report else 'ok'} 1 - the interface of libxseg.so equals libxseg.abi")
    for line in report.splitlines():
        print(f"# {line}")
    return 1 if report else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
