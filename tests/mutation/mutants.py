"""The mutants of tests/mutation/*.toml: small faults that tests have to see.

A mutant is a file, a text that stands in it once, and what stands there instead.  Each file of
mutants is a group, with the suites that its mutants are run on; a mutant may name others.
"""

import dataclasses
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
        )
        for entry in table["mutant"]
    ]


def load(root: pathlib.Path) -> list[Mutant]:
    """All mutants of a tree, group by group."""
    paths = sorted((root / "tests/mutation").glob("*.toml"))
    return [mutant for path in paths for mutant in group(path)]
