# SPDX-License-Identifier: MIT
"""The binary interface of libxseg.so is the one in libxseg.abi, and serves programmes of the last release.

abi.py ROOT LIBRARY            compare; prints TAP
abi.py ROOT LIBRARY --write    write libxseg.abi anew
abi.py ROOT --release          libxseg.abi becomes the record of the release that meson.build names

abidw of libabigail reads the interface from the library's debug information, abidiff compares.  libxseg.abi changes with
the interface.  release-VERSION.abi stays until the next release: against it additions are fine.
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
# Enumerators that say how many others there are: they grow with these, and programmes take care of numbers that they do not know.
COUNTS = {"XSEG_HISTORY_ACTIONS"}
HERE = pathlib.Path(__file__).resolve().parent


def run(*command):
    """What a command prints; complains with it if the command fails."""
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


def compare(old, new, *options):
    """What abidiff says about the difference of two interfaces; empty if there is none."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [pathlib.Path(folder, f"{name}.abi") for name in ("old", "new")]
        for path, text in zip(paths, (old, new)):
            path.write_text(text)
        done = subprocess.run(["abidiff", "--no-show-locs", *options, *paths], check=False,
                              capture_output=True, text=True)
    if done.returncode & 3 or done.returncode < 0:
        raise RuntimeError(f"abidiff failed: {done.stdout}{done.stderr}")
    return done.stdout if done.returncode else ""


def structures(corpus):
    """The structures of an interface that programmes see inside, by name."""
    return {each.get("name"): each for each in corpus.iter("class-decl") if "size-in-bits" in each.attrib}


def break_release(old, new):
    """Why a programme that was built with the interface `old` would break on `new`; empty if it would not.

    Structures with struct_bytes are shortened to what they were.  Members that lie in what was padding stay, and are
    found: an older programme has any value there, and its struct_bytes does not tell.
    """
    corpus, before = xml.fromstring(new), structures(xml.fromstring(old))
    counts = {each.get("name"): each.get("value") for each in xml.fromstring(old).iter("enumerator") if each.get("name") in COUNTS}
    for each in corpus.iter("enumerator"):
        each.set("value", counts.get(each.get("name"), each.get("value")))
    for name, each in structures(corpus).items():
        members = each.findall("data-member")
        if name in before and members[0].find("var-decl").get("name") == "struct_bytes":
            size = before[name].get("size-in-bits")
            if int(size) < int(each.get("size-in-bits")):
                each.set("size-in-bits", size)
            for member in members:
                if int(member.get("layout-offset-in-bits")) >= int(size):
                    each.remove(member)
    return compare(old, xml.tostring(corpus, encoding="unicode"), "--no-added-syms")


def record():
    """The record of the last release, and its version."""
    path, = HERE.glob("release-*.abi")
    return path, path.stem.partition("-")[2]


def release(root):
    """Make the record of a release."""
    version = re.search(r"^  version: '(.*)',$", (root / "meson.build").read_text(), re.MULTILINE)[1]
    for path in HERE.glob("release-*.abi"):
        path.unlink()
    shutil.copy(HERE / "libxseg.abi", HERE / f"release-{version}.abi")
    return 0


def absent(library):
    """Why nothing can be compared here, or None."""
    if not shutil.which("abidw") or not shutil.which("abidiff"):
        return "abidw and abidiff are not installed (Debian: abigail-tools)"
    if platform.machine() != "x86_64":
        return "libxseg.abi is that of x86_64"
    if ".debug_info" not in run("readelf", "--sections", "--wide", library):
        return "the library was built without debug information"
    return None


def answer(number, name, found, is_good):
    """One line of TAP, and the difference if there is one."""
    print(f"{'ok' if is_good else 'not ok'} {number} - {name}")
    if not is_good:
        print("\n".join(f"# {line}" for line in found.splitlines()))
    return 0 if is_good else 1


def main(root, library, option=None):
    """Print TAP; returns the exit status."""
    root, baseline = pathlib.Path(root), HERE / "libxseg.abi"
    if library == "--release":
        return release(root)
    why = absent(library)
    if why:
        print(f"1..0 # SKIP {why}")
        return 0
    built = describe(library, root)
    if option == "--write":
        baseline.write_text(built)
        return 0
    print("1..2")
    found = compare(baseline.read_text(), built)
    failed = answer(1, "libxseg.so is as its baseline says", found, not found)
    path, version = record()
    found = break_release(path.read_text(), built)
    failed += answer(2, f"programmes of release {version} run on it", found, not found)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
