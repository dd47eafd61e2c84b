"""The mutants of tests/mutation/*.toml: small faults that tests have to see.

A mutant is a file, a text that stands in it once, and what stands there instead.  Each file of
mutants is a group, with the suites that its mutants are run on; a mutant may name others, and the
tests that are tried before them.
"""

import dataclasses
import json
import pathlib
import tomllib


@dataclasses.dataclass(frozen=True)
class Mutant:
    group: str
    name: str
    file: str
    old: str
    new: str
    suites: tuple[str, ...]
    tests: tuple[str, ...]  # "unit/labels", tried first

    def apply(self, text: str) -> str:
        """The file's text with the fault in it."""
        return text.replace(self.old, self.new, 1)

    def complaint(self, root: pathlib.Path) -> str | None:
        """Why the mutant cannot be planted, or None."""
        path = root / self.file
        if not path.is_file():
            return f"{self.file} does not exist"
        count = path.read_text().count(self.old)
        if count != 1:
            return f"its old text stands {count} times in {self.file}, instead of once"
        if self.old == self.new:
            return "it changes nothing"
        for test in self.tests:
            if not any((root / f"tests/{test}.{kind}").is_file() for kind in ("c", "py")):
                return f"there is no test {test}"
        return None


def group(path: pathlib.Path) -> list[Mutant]:
    """The mutants of one file, in its order."""
    table = tomllib.loads(path.read_text())
    return [
        Mutant(
            path.stem,
            entry["name"],
            entry["file"],
            entry["old"],
            entry["new"],
            tuple(entry.get("suites", table["suites"])),
            tuple(entry.get("tests", ())),
        )
        for entry in table["mutant"]
    ]


def load(root: pathlib.Path) -> list[Mutant]:
    """All mutants of a tree, group by group."""
    paths = sorted((root / "tests/mutation").glob("*.toml"))
    return [mutant for path in paths for mutant in group(path)]


def record(root: pathlib.Path, mutant: Mutant, test: str) -> None:
    """Write the test that sees a mutant into its file, behind its name."""
    path = root / "tests/mutation" / f"{mutant.group}.toml"
    lines = path.read_text().splitlines(keepends=True)
    behind = next(at for at, line in enumerate(lines) if line.startswith("name = ") and
                  tomllib.loads(line)["name"] == mutant.name) + 1
    end = behind + lines[behind].startswith("tests = ")
    lines[behind:end] = [f"tests = [{json.dumps(test)}]\n"]
    path.write_text("".join(lines))
