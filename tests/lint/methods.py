# SPDX-License-Identifier: MIT
"""Each method of PyTorch's allocator interface that the adapter implements is tested, and the tests exist."""
import re

import named_tests
import tree

# Names the methods that the adapter implements.
BUILD = "src/adapters/python/xseg/torch/_build.py"
COVERED = re.compile(r'COVERED = frozenset\("""(.*?)"""', re.DOTALL)
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
setUserMetadata getUserMetadata supportsUserMetadata: `torch/adapter` snapshot many_texts, `torch/alike` metadata
pushCompileContext popCompileContext: `torch/methods` compile_context
recordAnnotation: `torch/methods` annotation, `torch/alike` annotations
annotateMemory: `torch/methods` annotate_memory, `torch/alike` annotations
beginAllocateToPool endAllocateToPool: `torch/tables`, `torch/adapter` graph mempool
markCaptureBegin markCaptureEnd: `torch/tables`, `torch/older`
ensureExistsAndIncrefPool: `torch/adapter` mempool pool_gone_by_itself, `torch/alike` pool_ids, `torch/threads`
createOrIncrefPool: `torch/methods` own_allocator own_allocator_at_its_limits
releasePool getPoolUseCount: `torch/adapter` mempool, `torch/alike` children
setUseOnOOM setNoSplit: `torch/methods` use_on_oom no_split
checkPoolLiveAllocations: `torch/adapter` checkpoint, `torch/alike` pool_ids
getCheckpointState setCheckpointPoolState: `torch/adapter` checkpoint
allocateWithAddress: `torch/methods` allocate_with_address, `torch/alike` addresses
shareIpcHandle getIpcDevPtr: `torch/adapter` share, `torch/agreement` expandable_later imports
attachOutOfMemoryObserver attachOomRejectionObserver: `torch/adapter` out_of_memory, `torch/methods` out_of_memory_observer rejection, `torch/agreement` tried
attachAllocatorTraceTracker: `torch/methods` trace_tracker tracker_account
enablePeerAccess: `torch/methods` peers no_peers
memcpyAsync: `torch/methods` copies no_peers
copy_data: `torch/methods` copies
getMemoryInfo: `torch/methods` memory_info
is_simple_data_ptr: `torch/methods` simple_pointer
name: `torch/tables`
"""


def check(root):
    covered = set(COVERED.search((root / BUILD).read_text(encoding="utf-8"))[1].split())
    found, tested = [], set()
    for row in TESTS.strip().splitlines():
        names, _, tests = row.partition(": ")
        tested.update(names.split())
        found += [f"tests/lint/methods.py: {names}: {text}" for text in named_tests.complaints_about(root, tests)]
    found += [f"tests/lint/methods.py: no test of the method, {name}" for name in sorted(covered - tested)]
    return found + [f"{BUILD}: the adapter has no method {name}" for name in sorted(tested - covered)]


if __name__ == "__main__":
    tree.finish(check)
