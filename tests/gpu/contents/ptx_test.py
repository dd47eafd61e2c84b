# SPDX-License-Identifier: MIT
"""The kernels of tests/gpu/kernels.ptx implement contents/pattern.h, and NVIDIA's assembler accepts them.

ptx_test.py SOURCE_ROOT Kernels | Assembled

Kernels: an interpreter executes the kernels.  It is an independent implementation of the instructions that they use, from
NVIDIA's "Parallel Thread Execution ISA".  It runs one thread after the other, which is valid for kernels without barriers.  The
expected results are computed in Python.

Assembled: NVIDIA's assembler in .deps/ptxas, if .ci/setup --ptxas has installed it, assembles the kernels."""
import itertools
import pathlib
import random
import re
import subprocess
import sys
import tempfile
import unittest

ARCHITECTURES = ("sm_70", "sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100")
LENGTHS = (1, 2, 7, 8, 9, 15, 16, 63, 64, 65, 511, 512, 515, 1000)
GRIDS = ((1, 1), (1, 7), (3, 5), (2, 64), (5, 32))  # blocks, threads of each
ADDRESS, DESTINATION, REPORT = 0x7F0000000200, 0x7F8000000000, 0x7F9000000000
NONE = (1 << 64) - 1  # the lowest differing index of a report without a difference
GUARD = b"\xa5" * 16
# The first outputs of splitmix64 for seed 1234567, from other implementations.
KNOWN = (6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821)

BITS = (1 << 64) - 1
SIZES = {"8": 1, "16": 2, "32": 4, "64": 8}
CONDITIONS = {"eq": lambda a, b: a == b, "ne": lambda a, b: a != b, "lt": lambda a, b: a < b,
              "le": lambda a, b: a <= b, "gt": lambda a, b: a > b, "ge": lambda a, b: a >= b}


class Fault(Exception):
    """An access that is not within a memory region, or not aligned to its size."""


class Memory:
    def __init__(self, ranges):
        self.ranges = ranges

    def _find(self, address, size):
        if address % size:
            raise Fault(f"{size} bytes at {address:#x} are not aligned")
        for base, data in self.ranges.items():
            if base <= address and address + size <= base + len(data):
                return data, address - base
        raise Fault(f"no memory at {address:#x}")

    def load(self, address, size):
        data, offset = self._find(address, size)
        return int.from_bytes(data[offset:offset + size], "little")

    def store(self, address, size, value):
        data, offset = self._find(address, size)
        data[offset:offset + size] = (value & ((1 << 8 * size) - 1)).to_bytes(size, "little")


def parse(text):
    """Kernels by name: names of their parameters, instructions as (guard, opcode, operands), labels."""
    text = re.sub(r"//.*", "", text)
    kernels = {}
    for name, parameters, body in re.findall(r"\.entry\s+(\w+)\s*\((.*?)\)\s*\{(.*?)\n\}", text, re.S):
        code, labels = [], {}
        for line in re.split(r";|(?<=:)\s*\n", body):
            line = " ".join(line.split())
            if not line or line.startswith(".reg"):
                continue
            if line.endswith(":"):
                labels[line[:-1]] = len(code)
                continue
            guard, opcode, operands = re.fullmatch(r"(?:@(%\w+) )?([\w.]+) ?(.*)", line).groups()
            code.append((guard, opcode, [operand.strip() for operand in operands.split(",")]))
        kernels[name] = (re.findall(r"\.param\s+\.u64\s+(\w+)", parameters), code, labels)
    return kernels


class Thread:
    def __init__(self, memory, arguments, special):
        self.memory, self.arguments, self.registers = memory, arguments, dict(special)

    def value(self, operand):
        if operand.startswith("%"):
            return self.registers[operand]
        return int(operand, 0) & BITS

    def address(self, operand):
        register, offset = re.fullmatch(r"\[(%\w+)(?:\+(\d+))?\]", operand).groups()
        return self.registers[register] + int(offset or 0)

    def run(self, code, labels, max_steps=1000000):
        pc = 0
        for steps in range(max_steps):
            guard, opcode, operands = code[pc]
            pc += 1
            if guard is not None and not self.registers[guard]:
                continue
            if opcode == "ret":
                return steps
            if opcode == "bra":
                pc = labels[operands[0]]
            else:
                self.step(opcode.split("."), operands)
        raise Fault("the kernel does not terminate")

    def step(self, opcode, operands):
        name, kind = opcode[0], opcode[-1]
        if name in ("st", "atom", "red"):
            self.access_memory(name, opcode, operands)
            return
        target, width = operands[0], int(kind[1:]) if kind[1:].isdigit() else 64
        if name == "ld":
            self.registers[target] = (self.arguments[operands[1].strip("[]")] if opcode[1] == "param"
                                      else self.memory.load(self.address(operands[1]), SIZES[kind[1:]]))
            return
        if name == "mov" and operands[1] == "%clock64":
            self.registers["%clock64"] += 10
        inputs = [self.value(operand) for operand in operands[1:]]
        if name == "setp":
            self.registers[target] = CONDITIONS[opcode[1]](*inputs)
            return
        if name == "mul" and opcode[1] == "wide":
            width *= 2
        self.registers[target] = self.compute(name, inputs, width) & ((1 << width) - 1)

    @staticmethod
    def compute(name, inputs, width):
        """The value of an instruction on unsigned integers, before truncation to its width."""
        if name in ("mov", "cvta"):
            return inputs[0]
        if name == "cvt":
            return inputs[0]
        if name in ("shl", "shr"):
            distance = min(inputs[1], width)
            return inputs[0] << distance if name == "shl" else inputs[0] >> distance
        return {"add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b,
                "and": lambda a, b: a & b, "or": lambda a, b: a | b, "xor": lambda a, b: a ^ b}[name](*inputs)

    def access_memory(self, name, opcode, operands):
        size = SIZES[opcode[-1][1:]]
        if name == "st":
            self.memory.store(self.address(operands[0]), size, self.value(operands[1]))
            return
        if name == "atom":
            target, operands = operands[0], operands[1:]
        address, value = self.address(operands[0]), self.value(operands[1])
        old = self.memory.load(address, size)
        new = {"add": old + value, "min": min(old, value)}[opcode[2]]
        self.memory.store(address, size, new)
        if name == "atom":
            self.registers[target] = old


def launch(kernel, memory, arguments, blocks, threads, order=lambda indices: indices):
    """Runs the grid of a kernel; `order` permutes the indices of its threads."""
    names, code, labels = kernel
    assert len(names) == len(arguments)
    for index in order(list(range(blocks * threads))):
        special = {"%tid.x": index % threads, "%ctaid.x": index // threads, "%ntid.x": threads,
                   "%nctaid.x": blocks, "%clock64": 12345}
        Thread(memory, dict(zip(names, arguments)), special).run(code, labels)


def splitmix64(seed, count):
    for _ in range(count):
        seed = (seed + 0x9E3779B97F4A7C15) % 2**64
        word = (seed ^ seed >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        word = (word ^ word >> 27) * 0x94D049BB133111EB % 2**64
        yield word ^ word >> 31


def pattern(seed, mask, size):
    return b"".join((word ^ mask).to_bytes(8, "little") for word in splitmix64(seed, (size + 7) // 8))[:size]


class Kernels(unittest.TestCase):
    SEED, MASK = 0xFEDCBA9876543210, 0x0123456789ABCDEF

    def setUp(self):
        self.kernels = parse((ROOT / "tests/gpu/kernels.ptx").read_text(encoding="utf-8"))

    def check(self, data, size, grid, order=lambda indices: indices):
        report = bytearray(b"".join(word.to_bytes(8, "little") for word in (0, NONE, 0, 0, 0)))
        launch(self.kernels["xseg_check"], Memory({ADDRESS: data, REPORT: report}),
                   (ADDRESS, size, self.SEED, self.MASK, REPORT), *grid, order)
        return [int.from_bytes(report[at:at + 8], "little") for at in range(0, 40, 8)]

    def test_write_has_known_outputs(self):
        self.assertEqual(tuple(splitmix64(1234567, 5)), KNOWN)
        data = bytearray(40)
        launch(self.kernels["xseg_write"], Memory({ADDRESS: data}), (ADDRESS, 40, 1234567, 0), 1, 3)
        self.assertEqual(bytes(data), b"".join(word.to_bytes(8, "little") for word in KNOWN))

    def test_write_stores_only_the_pattern(self):
        for size, grid in itertools.product(LENGTHS, GRIDS):
            with self.subTest(size=size, grid=grid):
                data = bytearray(size) + bytearray(GUARD)
                launch(self.kernels["xseg_write"], Memory({ADDRESS: data}),
                           (ADDRESS, size, self.SEED, self.MASK), *grid)
                self.assertEqual(bytes(data), pattern(self.SEED, self.MASK, size) + GUARD)

    def test_copy_applies_another_mask(self):
        for size, grid in itertools.product(LENGTHS, GRIDS):
            with self.subTest(size=size, grid=grid):
                data = bytearray(size) + bytearray(GUARD)
                memory = Memory({ADDRESS: bytearray(pattern(self.SEED, 0, size)), DESTINATION: data})
                launch(self.kernels["xseg_copy"], memory, (DESTINATION, ADDRESS, size, self.MASK), *grid)
                self.assertEqual(bytes(data), pattern(self.SEED, self.MASK, size) + GUARD)

    def test_check_of_correct_data_compares_every_word(self):
        for size, grid in itertools.product(LENGTHS, GRIDS):
            with self.subTest(size=size, grid=grid):
                data = bytearray(pattern(self.SEED, self.MASK, size))
                self.assertEqual(self.check(data, size, grid), [0, NONE, 0, 0, (size + 7) // 8])

    def test_check_detects_one_byte(self):
        for size, grid in itertools.product(LENGTHS, GRIDS):
            with self.subTest(size=size, grid=grid):
                for offset in {0, size // 2, size - 1}:
                    data = bytearray(pattern(self.SEED, self.MASK, size))
                    data[offset] ^= 0x40
                    word = offset // 8
                    actual = int.from_bytes(data[word * 8:word * 8 + 8], "little")
                    self.assertEqual(self.check(data, size, grid), [1, word, word, actual, (size + 7) // 8])

    def test_check_counts_differences_in_any_thread_order(self):
        rng = random.Random(1)
        for size, grid in itertools.product(LENGTHS, GRIDS):
            with self.subTest(size=size, grid=grid):
                data = bytearray(pattern(self.SEED, self.MASK, size))
                changed = sorted(rng.sample(range((size + 7) // 8), min(3, (size + 7) // 8)))
                for word in changed:
                    data[word * 8] ^= 1
                count, lowest, index, actual, compared = self.check(
                    data, size, grid, lambda indices: rng.sample(indices, len(indices)))
                self.assertEqual((count, lowest, compared), (len(changed), changed[0], (size + 7) // 8))
                self.assertIn(index, changed)
                self.assertEqual(actual, int.from_bytes(data[index * 8:index * 8 + 8], "little"))

    def test_spin_ends_after_its_cycles(self):
        _, code, labels = self.kernels["xseg_spin"]
        steps = [Thread(None, {"cycles": cycles}, {"%clock64": 2**63}).run(code, labels) for cycles in (0, 1000, 10000)]
        self.assertLess(steps[0], 10)
        self.assertAlmostEqual(steps[2] / steps[1], 10, delta=1)

    def test_interpreter_detects_an_access_outside_a_block(self):
        with self.assertRaises(Fault):
            launch(self.kernels["xseg_write"], Memory({ADDRESS: bytearray(16)}), (ADDRESS, 17, 1, 0), 1, 1)


class Assembled(unittest.TestCase):
    def setUp(self):
        self.ptxas = ROOT / ".deps/ptxas/ptxas"
        if not self.ptxas.is_file():
            self.skipTest("ptxas is not installed; run .ci/setup --ptxas")

    def assemble(self, text, architecture):
        with tempfile.TemporaryDirectory() as folder:
            source = pathlib.Path(folder, "kernels.ptx")
            source.write_text(text, encoding="utf-8")
            process = subprocess.run([self.ptxas, f"-arch={architecture}", "--warning-as-error", "-o",
                                      source.with_suffix(".cubin"), source], text=True, check=False,
                                     stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        return process.returncode, process.stdout

    def test_each_architecture(self):
        text = (ROOT / "tests/gpu/kernels.ptx").read_text(encoding="utf-8")
        for architecture in ARCHITECTURES:
            with self.subTest(architecture):
                self.assertEqual(self.assemble(text, architecture), (0, ""))

    def test_assembler_detects_an_error(self):
        text = (ROOT / "tests/gpu/kernels.ptx").read_text(encoding="utf-8")
        status, output = self.assemble(text.replace("add.u64", "add.u63", 1), "sm_70")
        self.assertNotEqual(status, 0, output)


if __name__ == "__main__":
    ROOT = pathlib.Path(sys.argv[1])
    result = unittest.main(argv=[sys.argv[0], *sys.argv[2:]], verbosity=1, exit=False).result
    if result.wasSuccessful() and result.skipped:
        print("skipped:", result.skipped[0][1])
        sys.exit(77)
    sys.exit(not result.wasSuccessful())
