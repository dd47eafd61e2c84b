# SPDX-License-Identifier: MIT
"""The binary interface of libxseg.so, read by abidw, equals the recorded libxseg.abi, by abidiff: abi.py ROOT LIBRARY [--write]; --write
updates the record.  Compatibility with a release is checked from 1.0 on."""
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
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, command))}: {done.stdout}{done.stderr}")
    return done.stdout


def defined(root):
    """The structs that the public headers define; of others users have pointers only."""
    headers = (root / "include/xseg").glob("*.h")
    return {name for header in headers
            for name in re.findall(r"^struct (\w+) \{", header.read_text(), re.M)}


def references(element):
    """The types that an element names, its parts included."""
    for part in element.iter():
        for key in ("type-id", "naming-typedef-id", "method-class-id"):
            if key in part.attrib:
                yield part.attrib[key]


def describe(library, root):
    """The interface as XML: the exported functions and what can be reached from them.

    abidw tells a public type from another by the base name of its header, of which floors may have
    the same.  So it writes all types, and those that are private are closed here.
    """
    corpus = xml.fromstring(run(*ABIDW, library))
    public, types, functions = defined(root), {}, []
    for element in (one for unit in corpus.findall("abi-instr") for one in unit):
        if element.tag == "class-decl" and element.get("name") not in public:
            del element[:]
            element.attrib.pop("size-in-bits", None)
            element.set("is-declaration-only", "yes")
        if element.tag == "function-decl" and "elf-symbol-id" in element.attrib:
            functions.append(element)
        elif "id" in element.attrib:
            types.setdefault(element.get("id"), element)
    kept, todo = set(), [name for one in functions for name in references(one)]
    while todo:
        name = todo.pop()
        if name in types and name not in kept:
            kept.add(name)
            todo += references(types[name])
    for unit in corpus.findall("abi-instr"):
        corpus.remove(unit)
    unit = xml.SubElement(corpus, "abi-instr", {"address-size": "64", "language": "LANG_C11"})
    unit.extend(types[name] for name in sorted(kept, key=lambda id: describe_order(types[id])))
    unit.extend(sorted(functions, key=lambda one: one.get("name")))
    for parameter in unit.iter("parameter"):
        parameter.attrib.pop("name", None)
    xml.indent(corpus)
    return xml.tostring(corpus, encoding="unicode") + "\n"


def describe_order(element):
    """Types by kind and name, so that a change of the interface is a small change of the file."""
    return element.tag, element.get("name", ""), element.get("id")


def compare(old, new):
    """The report of abidiff on the difference of two interfaces; empty if they are equal."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [pathlib.Path(folder, f"{name}.abi") for name in ("old", "new")]
        for path, text in zip(paths, (old, new)):
            path.write_text(text)
        done = subprocess.run(["abidiff", "--no-show-locs", *paths], check=False,
                              capture_output=True, text=True)
    if done.returncode & 3 or done.returncode < 0:
        raise RuntimeError(f"abidiff failed: {done.stdout}{done.stderr}")
    return done.stdout if done.returncode else ""


def absent(library):
    """Why nothing can be compared here, or None."""
    if not shutil.which("abidw") or not shutil.which("abidiff"):
        return "abidw and abidiff are not installed; run .ci/setup abigail-tools"
    if platform.machine() != "x86_64":
        return "libxseg.abi is that of x86_64"
    if ".debug_info" not in run("readelf", "--sections", "--wide", library):
        return "the library was built without debug information"
    return None


def main(root, library, option=None):
    root, record = pathlib.Path(root), HERE / "libxseg.abi"
    why = absent(library)
    if why:
        print(f"1..0 # SKIP {why}")
        return 0
    built = describe(library, root)
    if option == "--write":
        record.write_text(built)
        return 0
    found = compare(record.read_text(), built)
    print("1..1")
    print(f"{'not ok' if found else 'ok'} 1 - the interface of libxseg.so equals libxseg.abi")
    for line in found.splitlines():
        print(f"# {line}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
