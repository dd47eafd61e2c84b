# SPDX-License-Identifier: MIT
"""The adapter covers PyTorch's allocator interface: methods, other functions and types, and fields of structures.

Each method that the adapter implements has a test.  Each other function or type of the interface's two headers is in a table
with its effect on xseg, and with a test or a page.  The adapter assigns each field of the structures that it fills.  The
tables are compared with the headers of the versions of PyTorch that are installed or cached (manylinux/torch_headers.py).
"""
import importlib.util
import os
import pathlib
import re
import sys

import named_tests
import tree

BUILD = "src/adapters/python/xseg/torch/_build.py"
ADAPTER = "src/adapters/torch"
HEADERS = ("c10/core/CachingDeviceAllocator.h", "c10/cuda/CUDACachingAllocator.h")
# Methods, and the tests that call them, with the names of their cases.
TESTS = """
allocate: `torch/steps`, `torch/adapter` no_caching, `torch/agreement` profiled
raw_alloc raw_alloc_with_stream raw_delete raw_deleter: `torch/methods` raw_pointers
init initialized: `torch/adapter` train_step, `torch/runtime` forked
enable isEnabled: `torch/adapter` no_caching
emptyCache: `torch/steps`, `torch/adapter` mempool
recordStream: `torch/steps`, `torch/alike` streams
cacheInfo: `torch/methods` cache_info
getBaseAllocation: `torch/methods` base_allocation
getDeviceStats resetAccumulatedStats resetPeakStats: `torch/steps`, `torch/tables`, `torch/alike` pool_statistics
getExpandableSegmentSizes: `torch/methods` expandable_segment_sizes
getMemoryFraction setMemoryFraction: `torch/adapter` fraction, `torch/agreement` fraction
snapshot: `torch/adapter` snapshot, `torch/alike` segment_frames
recordHistory isHistoryEnabled: `torch/adapter` snapshot, `torch/alike` max_entries
getContextForPointer: `torch/methods` context_for_pointer
setUserMetadata getUserMetadata supportsUserMetadata: `torch/adapter` snapshot many_metadata_strings, `torch/alike` metadata
pushCompileContext popCompileContext: `torch/methods` compile_context
recordAnnotation: `torch/methods` annotation, `torch/alike` annotations
annotateMemory: `torch/methods` annotate_memory, `torch/alike` annotations
beginAllocateToPool endAllocateToPool: `torch/tables`, `torch/adapter` graph mempool
markCaptureBegin markCaptureEnd: `torch/tables`, `torch/older`
ensureExistsAndIncrefPool: `torch/adapter` mempool pool_destroyed_by_decay, `torch/alike` pool_ids, `torch/threads`
createOrIncrefPool: `torch/methods` own_allocator own_allocator_out_of_memory
releasePool getPoolUseCount: `torch/adapter` mempool, `torch/alike` children
setUseOnOOM setNoSplit: `torch/methods` use_on_oom no_split
checkPoolLiveAllocations: `torch/adapter` checkpoint, `torch/alike` pool_ids
getCheckpointState setCheckpointPoolState: `torch/adapter` checkpoint
allocateWithAddress: `torch/methods` allocate_with_address, `torch/alike` addresses
shareIpcHandle getIpcDevPtr: `torch/adapter` share, `torch/agreement` expandable_later import_ends_in_capture
attachOutOfMemoryObserver attachOomRejectionObserver: `torch/adapter` out_of_memory, `torch/methods` out_of_memory_observer rejection, `torch/agreement` reported_sizes
attachAllocatorTraceTracker: `torch/methods` trace_tracker tracker_account
enablePeerAccess: `torch/methods` peers no_peers
memcpyAsync: `torch/methods` copies no_peers
copy_data: `torch/methods` copies
getMemoryInfo: `torch/methods` memory_info
is_simple_data_ptr: `torch/methods` simple_pointer
name: `torch/tables`
"""
# Other functions, variables and types: their effect on xseg, and the tests that verify or the pages that describe the effect.
# Functions that only call a method are not listed.
#   supported       works as on PyTorch's own allocator
#   no effect       can be called, and changes nothing on xseg
#   not applicable  does not depend on the allocator
OTHER_DECLARATIONS = """
allocator get: supported: `torch/tables`, `torch/adapter` train_step
getDeviceAllocator: supported: `torch/methods` accelerator
FreeMemoryCallback FreeCudaMemoryCallbacksRegistry: supported: `torch/methods` free_memory_callback
AllocatorState CheckpointDelta: supported: `torch/adapter` checkpoint
AllocatorConfigInfo: supported: `torch/adapter` settings
AnnotationEntry: supported: `torch/methods` annotation
BlockInfo SegmentInfo SnapshotInfo: supported: `torch/adapter` snapshot
DeviceStats: supported: `torch/steps`
RecordContext TraceEntry trace_time_: supported: `torch/adapter` snapshot, `torch/methods` trace_tracker
ShareableHandle: supported: `torch/adapter` share
StreamSegmentSize: supported: `torch/methods` expandable_segment_sizes
MemPool: supported: `torch/adapter` mempool
MemPoolContext: no effect: docs/pytorch.md
getExpandableSegmentsReservedBytes getExpandableSegmentsCount: no effect: `torch/methods` address_gauges, docs/pytorch.md
setExpandableSegmentReserveClassForStream setDefaultExpandableSegmentReserveFractionForClass: no effect: `torch/methods` reserve_class, docs/pytorch.md
getExpandableSegmentReserveClassForStream: supported: `torch/methods` reserve_class
HostSegmentInfo: not applicable: `torch/methods` host_memory
parseTraceEntryAction: not applicable: `torch/methods` annotate_memory
kLargeBuffer: not applicable: docs/options.md
Stat StatType: supported: `torch/steps`
for_each_selected_stat_type format_size: not applicable: `torch/steps`
"""
KINDS = ("supported", "no effect", "not applicable")
# Structures that the adapter fills, with the fields that it does not assign: a function of PyTorch or a constructor assigns
# these fields, or PyTorch does not read them.
FIELDS = """
AllocatorConfigInfo:
AnnotationEntry: metadata_
BlockInfo: gc_counter
CheckpointDelta:
DeviceStats:
SegmentInfo:
SnapshotInfo: host_segments host_traces
TraceEntry: stream_ size_ mempool_
"""


def rows(table):
    """The rows of a table: the names before the first colon, and the text after it."""
    for row in table.strip().splitlines():
        names, _, text = row.partition(":")
        yield names.split(), text.strip()


def adapter_build(root):
    """The module xseg.torch._build, without its package, which requires PyTorch."""
    sys.path.insert(0, str(root / "src/adapters/python"))
    spec = importlib.util.spec_from_file_location("adapter_build", root / BUILD)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def include_folders():
    """The include folders of installed and cached versions of PyTorch."""
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache", "xseg")
    reference = os.environ.get("XSEG_REFERENCE")
    environments = [pathlib.Path(reference), pathlib.Path(reference, "v")] if reference else cache.glob("torch-[0-9]*/")
    yield from (folder / "include" for folder in sorted(cache.glob("torch-headers-*/")) if (folder / "complete").exists())
    for environment in environments:
        yield from environment.glob("lib/python3*/site-packages/torch/include")


def declarations(text):
    """The declarations of the text's first scope, each as the text outside and inside of its braces and parentheses."""
    outside, inside, depth = "", "", 0
    for character in text:
        depth -= character in ")}"
        if depth < 0:
            return
        if depth > 0:
            inside += character
        elif character not in "{}":
            outside += character
        if depth == 0 and character in ";}" and not outside.rstrip().endswith("="):
            yield " ".join(outside.split()), inside
            outside = inside = ""
        depth += character in "({"


def without_templates(text):
    """The text without template arguments, which may contain names and parentheses."""
    for _ in range(text.count("<")):
        text = re.sub(r"<[^<>]*>", "", text)
    return text


def fields(body):
    """The names of the data members of a class body."""
    for outside, _ in declarations(body):
        member = re.search(r"(\w+) ?(?:=.*)?;?$", without_templates(outside))
        if member and not re.search(r"\b(?:enum|struct|using|friend|static)\b|\(|:$", outside):
            yield member[1]


def declared(build, header):
    """The declarations of a header in its namespaces: kind, name, and the text inside of braces and parentheses."""
    text = build.bare(header.read_text(encoding="utf-8"))
    for namespace in re.finditer(r"^namespace\b[^{;=]*{", text, re.MULTILINE):
        for outside, inside in declarations(text[namespace.end():]):
            declaration = without_templates(outside)
            if registry := re.match(r"C10_DECLARE_REGISTRY\(", declaration):
                yield "registry", inside.split(",")[0].strip(), inside
            elif type_name := re.match(r"(?:class|struct|union|enum)\b[^:(;]*?(\w+)(?: final)? ?(?::|$)", declaration):
                yield "type", type_name[1], inside
            elif function := re.search(r"(\w+) ?\(\)", declaration):
                if not re.match(r"(?:using|typedef)\b", declaration):
                    yield "function", function[1], inside
            elif variable := re.search(r"\bextern\b.*?(\w+);$", declaration):
                yield "variable", variable[1], inside


def errors_in_header(build, header, listed, assigned):
    """Functions, types and fields of a header that the tables do not list."""
    unassigned = {names[0]: set(text.split()) for names, text in rows(FIELDS)}
    for kind, name, inside in declared(build, header):
        called = re.search(r"\bget\(\)->\s*(\w+)\s*\(", inside)
        if name in ("CUDAAllocator", "DeviceAllocator") or (called and called[1] in build.COVERED):
            continue
        if name not in listed:
            yield f"{header}: {kind} is not listed in tests/lint/methods.py, {name}"
        elif name in unassigned:
            yield from (f"{header}: the adapter does not assign a field, {name}.{field}"
                        for field in fields(inside) if field not in assigned | unassigned[name])


def errors_in_row(root, names, text):
    """Errors in a row of OTHER_DECLARATIONS."""
    kind, _, references = text.partition(": ")
    if kind not in KINDS:
        yield f"unknown kind, {kind}"
    pages = re.findall(r"docs/\S+\.md", references)
    if "`" in references or not pages:
        yield from named_tests.errors_in(root, references)
    for page in pages:
        text = (root / page).read_text(encoding="utf-8")
        yield from (f"{page} does not describe {name}" for name in names if kind == "no effect" and name not in text)


def check(root):
    build, errors = adapter_build(root), []
    tested = {name for names, _ in rows(TESTS) for name in names}
    for names, tests in rows(TESTS):
        errors += [f"tests/lint/methods.py: {' '.join(names)}: {error}" for error in named_tests.errors_in(root, tests)]
    errors += [f"tests/lint/methods.py: no test of the method, {name}" for name in sorted(build.COVERED - tested)]
    errors += [f"{BUILD}: the adapter has no method {name}" for name in sorted(tested - build.COVERED)]
    listed = {name for names, _ in rows(OTHER_DECLARATIONS) for name in names}
    for names, text in rows(OTHER_DECLARATIONS):
        errors += [f"tests/lint/methods.py: {' '.join(names)}: {error}" for error in errors_in_row(root, names, text)]
    assigned = set(re.findall(r"\.(\w+)", "".join(file.read_text(encoding="utf-8") for file in (root / ADAPTER).glob("*.cpp"))))
    for include in include_folders():
        for header in filter(pathlib.Path.exists, (include / name for name in HEADERS)):
            errors += errors_in_header(build, header, listed, assigned)
    return errors


if __name__ == "__main__":
    tree.finish(check)
