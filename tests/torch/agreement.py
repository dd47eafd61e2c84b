# SPDX-License-Identifier: MIT
"""Settings, limits, error messages and profiler events are equal on xseg and on PyTorch's allocator.

agreement.py DRIVER; each test runs a program of agreement_cases.py in separate processes, and compares their output.
"""
import pathlib
import sys
import unittest

import backends

CASES = backends.HERE / "agreement_cases.py"
DRIVER = sys.argv[1]


def reports(output):
    return [line for line in output.splitlines() if line.startswith("report ")]


class Agreement(unittest.TestCase):
    maxDiff = 4000

    def run_on(self, backend, name, **variables):
        return backends.finish(backends.start(DRIVER, backend, CASES, name, **variables), backend)

    def compare(self, name, settings, **variables):
        native, xseg = map(reports, backends.on_each(DRIVER, CASES, name, PYTORCH_CUDA_ALLOC_CONF=settings,
                                                     **variables).values())
        self.assertGreater(len(native), 1)
        self.assertEqual(native, xseg)

    def test_settings_limits_and_messages_equal_those_of_pytorch(self):
        classic, expandable = "expandable_segments:False", "expandable_segments:True"
        device_of_4_gib = {"XSEG_SIM_MEMORY_MB": "4096"}
        for name, settings, variables in (
                ("fraction", classic + ",per_process_memory_fraction:0.25,garbage_collection_threshold:0.5",
                 device_of_4_gib),
                ("reported_sizes", classic, {}), ("reported_sizes", expandable, {}),
                ("messages", classic, device_of_4_gib), ("messages", expandable, device_of_4_gib),
                ("resets", classic, device_of_4_gib), ("profiled", classic, {}), ("profiled", expandable, {}),
                ("traced", expandable, {}), ("traced", expandable, {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"})):
            with self.subTest(name, settings=settings):
                self.compare(name, settings, **variables)

    def test_library_advises_expandable_segments_only_if_they_help(self):
        xseg = self.run_on("xseg", "advice", PYTORCH_CUDA_ALLOC_CONF="expandable_segments:False")
        for line in ("report not fragmented True\n", "advised False\n", "report fragmented True True\n", "advised True\n"):
            self.assertIn(line, xseg)
        native = self.run_on("native", "advice", PYTORCH_CUDA_ALLOC_CONF="expandable_segments:False")
        self.assertEqual(reports(native), reports(xseg))

    def test_failures_of_the_driver_are_logged(self):
        messages = ("memory allocation failed with OOM on device 0 while trying to allocate 3670016000 bytes",
                    "memory allocation failed with OOM on device 0 while trying to allocate 5242880000 bytes")
        for level, is_logged in (("WARNING", False), ("INFO", True)):
            for backend in ("native", "xseg"):
                with self.subTest(backend=backend, level=level):
                    output = self.run_on(backend, "driver_failures", PYTORCH_CUDA_ALLOC_CONF="expandable_segments:False",
                                         XSEG_SIM_MEMORY_MB="4096", TORCH_CPP_LOG_LEVEL=level)
                    self.assertIn("report True False 1", output)
                    for message in messages:
                        self.assertEqual(message in output, is_logged)

    def test_unlimited_sizes_are_accepted(self):
        self.compare("unlimited", "expandable_segments:True,pinned_num_register_threads:2")
        self.assertNotIn("no effect", self.run_on("xseg", "unlimited", PYTORCH_CUDA_ALLOC_CONF="pinned_num_register_threads:2"))
        output = self.run_on("xseg", "one_allocation",
                             PYTORCH_CUDA_ALLOC_CONF="pinned_num_register_threads:2,release_lock_on_cudamalloc:True")
        self.assertIn("keys have no effect, release_lock_on_cudamalloc\n", output)

    def test_rejected_strings_change_nothing(self):
        for is_expandable in (False, True):
            with self.subTest(is_expandable=is_expandable):
                output = self.run_on("xseg", "rejected_strings", PYTORCH_CUDA_ALLOC_CONF=f"expandable_segments:{is_expandable}")
                self.assertEqual(reports(output), ["report True"] * 3 + ["report True True"], output)

    def test_segments_that_become_expandable_are_shared(self):
        output = self.run_on("xseg", "expandable_later", PYTORCH_CUDA_ALLOC_CONF="expandable_segments:False")
        self.assertEqual(reports(output), ["report shared x"])
        self.assertNotIn("no effect", output)
        output = self.run_on("xseg", "expandable_later", XSEG_ALLOC_CONF="expandable_segments:False,exportable:False")
        self.assertEqual(reports(output), ["report rejected exportable"])
        # The library reports a device without shareable memory only if the settings request exportable memory.
        output = self.run_on("xseg", "one_allocation", XSEG_SIM_VMM="0", PYTORCH_CUDA_ALLOC_CONF="expandable_segments:False")
        self.assertNotIn("no effect", output)
        settings = "expandable_segments:True,exportable:True"
        output = self.run_on("xseg", "one_allocation", XSEG_SIM_VMM="0", XSEG_ALLOC_CONF=settings)
        self.assertIn("exportable has no effect", output)

    def test_explicit_defaults_equal_unset_keys(self):
        output = self.run_on("xseg", "named_defaults",
                             XSEG_ALLOC_CONF="garbage_collection_threshold:off,max_split_size_mb:17592186044416")
        self.assertEqual(reports(output), ["report 0.0 -1"])

    def test_plug_in_assigns_captured_blocks_to_the_graph(self):
        library = pathlib.Path(DRIVER).parent / "src/adapters/torch/libxseg-torch.so"
        process = backends.start(DRIVER, "native", CASES, "plug_in", str(library))
        self.assertEqual(reports(backends.finish(process, "native")), ["report True True"])

    def test_import_is_closed_after_a_capture(self):
        self.run_on("xseg", "import_ends_in_capture")


if __name__ == "__main__":
    backends.require(DRIVER, needs_adapter=True)
    unittest.main(argv=sys.argv[:1])
