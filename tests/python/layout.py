# SPDX-License-Identifier: MIT
"""Tests that structures and constants of the ctypes binding equal those that a C compiler reads from the headers."""
import ctypes
import pathlib
import re
import subprocess
import tempfile
import unittest

import cases
from xseg import _errors, _functions, _library, _records, _structs


def structures():
    return {name: structure for name, structure in vars(_structs).items()
            if isinstance(structure, type) and issubclass(structure, ctypes.Structure) and name.startswith("xseg_")}


def run_c_program(lines):
    """Runs a C program with these statements, and returns its output as a dictionary."""
    with tempfile.TemporaryDirectory() as folder:
        source, program = pathlib.Path(folder, "layout.c"), pathlib.Path(folder, "layout")
        includes = "".join(f'#include "xseg/{path.name}"\n' for path in sorted((cases.ROOT / "include/xseg").glob("*.h"))
                           if path.name != "sim.h")
        source.write_text(f"#include <stdio.h>\n{includes}int main(void)\n{{\n" + "\n".join(lines) + "\nreturn 0;\n}\n",
                          encoding="utf-8")
        subprocess.run([*cases.COMPILER, "-std=c11", f"-I{cases.ROOT / 'include'}", "-o", program, source], check=True)
        text = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    return {name: int(number) for name, number in (line.split(" ") for line in text.splitlines())}


class Layout(unittest.TestCase):
    def test_sizes_and_member_offsets_equal_those_of_the_headers(self):
        expected, lines = {}, []
        for name, structure in structures().items():
            expected[name] = ctypes.sizeof(structure)
            lines.append(f'printf("{name} %zu\\n", sizeof(struct {name}));')
            for member, _ in structure._fields_:
                expected[f"{name}.{member}"] = getattr(structure, member).offset
                expected[f"{name}.{member}:"] = getattr(structure, member).size
                lines.append(f'printf("{name}.{member} %zu\\n", offsetof(struct {name}, {member}));')
                lines.append(f'printf("{name}.{member}: %zu\\n", sizeof(((struct {name} *)0)->{member}));')
        self.assertGreater(len(expected), 400)
        self.assertEqual(expected, run_c_program(lines))

    def test_constants_equal_those_of_the_headers(self):
        constants = {name: value for name, value in vars(_structs).items() if name.startswith("XSEG_")}
        self.assertGreater(len(constants), 60)
        self.assertEqual(constants, run_c_program([f'printf("{name} %lld\\n", (long long){name});' for name in constants]))

    def test_nonzero_defaults_equal_those_of_the_headers(self):
        for name, structure in structures().items():
            macro = {"xseg_scope": "XSEG_SCOPE_ALL"}.get(name, name.upper() + "_INIT")
            if not re.search(rf"#define {macro}\b", "".join(
                    path.read_text() for path in (cases.ROOT / "include/xseg").glob("*.h"))):
                continue
            lines = [f"static const struct {name} start = {macro};", "const unsigned char *bytes = (const void *)&start;",
                     'for (size_t i = 0; i < sizeof(start); i++) printf("%zu %u\\n", i, bytes[i]);']
            with self.subTest(name):
                defaults = bytes(_records.structure(structure))
                if name == "xseg_block_info":  # an output structure without defaults
                    continue
                self.assertEqual({str(offset): value for offset, value in enumerate(defaults)}, run_c_program(lines))

    def test_library_exports_every_function(self):
        exported = set(re.findall(r"^  (xseg_\w+);", (cases.ROOT / "src/xseg.map").read_text(), re.MULTILINE))
        self.assertEqual(exported, set(_functions.FUNCTIONS))
        for name in exported:
            self.assertIsInstance(getattr(_library.load(), name), ctypes._CFuncPtr)

    def test_every_status_has_an_exception_class(self):
        statuses = {value: name for name, value in vars(_structs).items() if name.startswith("XSEG_ERR_")}
        self.assertEqual(set(statuses), set(_errors.ERRORS))
        for value, error_class in _errors.ERRORS.items():
            name_parts = re.findall(r"[A-Z][a-z]+", error_class.__name__.removesuffix("Error"))
            self.assertEqual("XSEG_ERR_" + "_".join(name_parts).upper(), statuses[value])

    def test_records_have_every_member_of_their_structure(self):
        for record, structure, structure_only in (
                (_records.Stat, _structs.xseg_stat, set()), (_records.TrimResult, _structs.xseg_trim_result, set()),
                (_records.Limits, _structs.xseg_limits, {"has_fraction", "has_rejection_fraction"}),
                (_records.ConfigKey, _structs.xseg_config_key, set()),
                (_records.Statistics, _structs.xseg_statistics, set()), (_records.Reason, _structs.xseg_reason, set()),
                (_records.ExplainResult, _structs.xseg_explain_result, {"reasons"}),
                (_records.BlockInfo, _structs.xseg_block_info, set()), (_records.DriverCall, _structs.xseg_driver_call, set()),
                (_records.DeviceStats, _structs.xseg_device_stats, set()), (_records.RangeInfo, _structs.xseg_range_info, set()),
                (_records.BudgetEntry, _structs.xseg_budget_entry, set())):
            members = {name for name, _ in structure._fields_} - {"struct_size"}
            self.assertEqual(set(record._fields) ^ members, structure_only)
        self.assertEqual([f"XSEG_REASON_{constant.name}" for constant in _records.ReasonKind],
                         [name for name in vars(_structs) if name.startswith("XSEG_REASON_")])
        self.assertEqual([f"XSEG_BLOCK_{constant.name}" for constant in _records.BlockState],
                         [name for name in vars(_structs) if name.startswith("XSEG_BLOCK_")])


if __name__ == "__main__":
    cases.main()
