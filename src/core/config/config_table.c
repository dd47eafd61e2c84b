/* SPDX-License-Identifier: MIT */
#include "src/core/config/config_table.h"

#define MEMBER(name) offsetof(struct xseg_config, name)

#define ANY_BOOL "True or False"
#define ANY_MIB  "a whole number of MiB"
#define ANY_SPAN "a fraction of the device memory above 0, or a size in GiB such as 40G"

const struct xseg_config_row xseg_config_table[XSEG_CONFIG_KEYS] = {
    [XSEG_CONFIG_EXPANDABLE_SEGMENTS] =
        {
            .name = "expandable_segments",
            .source = "PyTorch",
            .type = XSEG_CONFIG_BOOL,
            .offset = MEMBER(expandable_segments),
            .start = 1,
            .accepts = ANY_BOOL,
            .sentence = "Segments reserve addresses and map pages into them as they grow. "
                        "False: every segment is one allocation of the driver. False is also the "
                        "default of a `PYTORCH_*` variable that does not name the key.",
        },
    [XSEG_CONFIG_LARGE_SEGMENT_SIZE] =
        {
            .name = "large_segment_size_mb",
            .source = "PyTorch",
            .type = XSEG_CONFIG_MIB,
            .offset = MEMBER(large_segment_bytes),
            .start = 20,
            .least = 11,
            .most = 1048576,
            .accepts =
                ANY_MIB " from 11 to 1048576 (an even number if expandable_segments is True)",
            .sentence = "Page size of large expandable segments, and size of a classic segment "
                        "for requests between 1 and 10 MiB.",
        },
    [XSEG_CONFIG_MAX_SPLIT_SIZE] =
        {
            .name = "max_split_size_mb",
            .source = "PyTorch",
            .takes_minus_one = true,
            .type = XSEG_CONFIG_MIB,
            .offset = MEMBER(max_split_bytes),
            .start = XSEG_CONFIG_UNSET,
            .is_above_large = true,
            .accepts = "-1 (unlimited), or " ANY_MIB " that is at least large_segment_size_mb",
            .unset = "unlimited",
            .sentence = "Blocks of this size or more are not split, and serve no smaller request.",
        },
    [XSEG_CONFIG_MAX_NON_SPLIT_ROUNDING] =
        {
            .name = "max_non_split_rounding_mb",
            .source = "PyTorch",
            .type = XSEG_CONFIG_MIB,
            .offset = MEMBER(max_non_split_rounding_bytes),
            .start = 20,
            .is_above_large = true,
            .accepts = ANY_MIB " that is at least large_segment_size_mb",
            .sentence = "How much larger than a request of max_split_size_mb or more its block may "
                        "be. A string that names large_segment_size_mb alone sets this one, too.",
        },
    [XSEG_CONFIG_ROUNDUP_DIVISIONS] =
        {
            .name = "roundup_power2_divisions",
            .source = "PyTorch",
            .type = XSEG_CONFIG_DIVISIONS,
            .offset = MEMBER(roundup_divisions),
            .accepts = "a power of two up to 2147483648, or a list such as [256:1,512:2,>:4]",
            .sentence = "Round requests up to one of this many equal steps between two powers of "
                        "two; 0 and 1 round to 512 bytes.",
        },
    [XSEG_CONFIG_MEMORY_FRACTION] =
        {
            .name = "per_process_memory_fraction",
            .source = "PyTorch",
            .type = XSEG_CONFIG_REAL,
            .offset = MEMBER(memory_fraction),
            .start = 1,
            .high = 1,
            .accepts = "a number from 0 to 1",
            .sentence = "How much of a device's memory may be taken from the driver.",
        },
    [XSEG_CONFIG_GARBAGE_COLLECTION] =
        {
            .name = "garbage_collection_threshold",
            .source = "PyTorch",
            .type = XSEG_CONFIG_REAL,
            .offset = MEMBER(garbage_collection_threshold),
            .high = 1,
            .is_open = true,
            .accepts = "a number above 0 and below 1, or off",
            .unset = "off",
            .sentence = "Fraction of the limit (per_process_memory_fraction below 1) above which "
                        "an allocation "
                        "that grows first gives old cached memory of the large pool back. "
                        "Without such a limit it has no effect.",
        },
    [XSEG_CONFIG_CAPTURE_REUSE] =
        {
            .name = "graph_capture_record_stream_reuse",
            .source = "PyTorch",
            .type = XSEG_CONFIG_BOOL,
            .offset = MEMBER(graph_capture_record_stream_reuse),
            .accepts = ANY_BOOL,
            .sentence =
                "A block that other streams used, freed during a capture, comes back within "
                "it, once the graph orders what follows behind those uses.",
        },
    [XSEG_CONFIG_THROW_ON_OOM] =
        {
            .name = "throw_on_cudamalloc_oom",
            .source = "PyTorch",
            .type = XSEG_CONFIG_BOOL,
            .offset = MEMBER(throw_on_cudamalloc_oom),
            .accepts = ANY_BOOL,
            .sentence =
                "Refuse a growth past per_process_memory_fraction of the device's memory at "
                "once, without giving back cached memory first, where no limit refuses it.",
        },
    [XSEG_CONFIG_RESERVE] =
        {
            .name = "expandable_segments_reserve",
            .source = "PyTorch",
            .type = XSEG_CONFIG_SPAN,
            .offset = MEMBER(expandable_segments_reserve),
            .is_expandable = true,
            .accepts = ANY_SPAN,
            .unset = "9/8 of the device",
            .sentence =
                "Virtual addresses that one expandable segment reserves. A request that needs "
                "more reserves more.",
        },
    [XSEG_CONFIG_PAGE] =
        {
            .name = "page_size",
            .source = "pytorch/pytorch#172056, #96995",
            .type = XSEG_CONFIG_CHOICE,
            .offset = MEMBER(page_sizes),
            .is_expandable = true,
            .choice = {"fixed", "auto", "small"},
            .accepts = "fixed, auto or small",
            .sentence =
                "auto: large growth is mapped with longer pages, which take fewer driver calls and "
                "go back in one piece, and the end of memory with pages of 2 MiB; see "
                "[performance](performance.md). small: all pages are 2 MiB, which takes more "
                "driver "
                "calls and wastes least; see [out of memory](out-of-memory.md).",
        },
    [XSEG_CONFIG_DEBUG_FILL] =
        {
            .name = "debug_fill",
            .source = "pytorch/pytorch#58385",
            .type = XSEG_CONFIG_BOOL,
            .offset = MEMBER(debug_fill),
            .accepts = ANY_BOOL,
            .sentence = "Overwrite what is freed with a pattern, and check it when it is handed "
                        "out again; see [debugging](debugging.md).",
        },
    [XSEG_CONFIG_UNMAP_ON_FREE] =
        {
            .name = "unmap_on_free",
            .source = "pytorch/pytorch#58385",
            .type = XSEG_CONFIG_BOOL,
            .offset = MEMBER(unmap_on_free),
            .is_expandable = true,
            .accepts = ANY_BOOL,
            .sentence = "Give each block pages of its own, and take them away when it is freed, so "
                        "that a late access faults; with expandable segments only.",
        },
    [XSEG_CONFIG_GUARD_PAGE] =
        {
            .name = "guard_page",
            .source = "rapidsai/rmm#1899, ROCm/MIOpen#3666",
            .type = XSEG_CONFIG_BOOL,
            .offset = MEMBER(guard_page),
            .is_expandable = true,
            .accepts = ANY_BOOL,
            .sentence = "The same, with the block at the end of its pages, so that an access past "
                        "its end faults.",
        },
    [XSEG_CONFIG_BLOCK_USER] =
        {
            .name = "block_user",
            .source = "PyTorch (adapter: contexts of snapshots)",
            .type = XSEG_CONFIG_BOOL,
            .offset = MEMBER(block_user),
            .accepts = ANY_BOOL,
            .sentence = "Keep the word that a request gives its block (`user` of struct "
                        "xseg_request), for xseg_block_query() and the [history](history.md).",
        },
    [XSEG_CONFIG_HISTORY] =
        {
            .name = "history",
            .source = "PyTorch (`_record_memory_history()`)",
            .type = XSEG_CONFIG_CHOICE,
            .offset = MEMBER(history),
            .choice = {"nothing", "state", "all"},
            .accepts = "nothing, state or all",
            .sentence = "What is kept of what happened: of each live block when and where it was "
                        "allocated (state), and the last events as well (all); see "
                        "[history](history.md).",
        },
    [XSEG_CONFIG_HISTORY_STACKS] =
        {
            .name = "history_stacks",
            .source = "PyTorch (`_record_memory_history()`)",
            .type = XSEG_CONFIG_CHOICE,
            .offset = MEMBER(history_stacks),
            .choice = {"none", "state", "alloc", "all"},
            .accepts = "none, state, alloc or all",
            .sentence = "Which call stacks the history has: of live blocks (state), of events that "
                        "take memory as well (alloc), or of all events (all).",
        },
    [XSEG_CONFIG_HISTORY_EVENTS] =
        {
            .name = "history_events",
            .source = "PyTorch (`_record_memory_history()`)",
            .type = XSEG_CONFIG_NUMBER,
            .offset = MEMBER(history_events),
            .start = 65536,
            .least = 16,
            .most = 16777216,
            .accepts = "a whole number from 16 to 16777216",
            .sentence = "How many events the history keeps for each stream of a pool, of small and "
                        "of large blocks each; 64 bytes an event, and 8 more with block_user.",
        },
    [XSEG_CONFIG_HISTORY_SKIP] =
        {
            .name = "history_skip",
            .source = "PyTorch (`_record_memory_history()`)",
            .type = XSEG_CONFIG_ACTIONS,
            .offset = MEMBER(history_skip),
            .accepts = "a list of actions such as [free_completed,segment_map]",
            .sentence = "Actions that the history leaves out.",
        },
    [XSEG_CONFIG_IDLE] =
        {
            .name = "idle_ms",
            .source = "vllm-project/vllm#15287, triton-inference-server/server#2659",
            .type = XSEG_CONFIG_PERIOD,
            .offset = MEMBER(idle_ms),
            .start = XSEG_CONFIG_UNSET,
            .most = 1209600000,
            .accepts = "a whole number of milliseconds up to 1209600000, or -1 for never",
            .sentence = "How long memory may be idle before it goes back to the driver; it goes "
                        "bit by bit on the way there. See [services](services.md).",
        },
    [XSEG_CONFIG_KEEP] =
        {
            .name = "keep_mb",
            .source = "microsoft/onnxruntime#7284",
            .type = XSEG_CONFIG_MIB,
            .offset = MEMBER(keep_bytes),
            .accepts = ANY_MIB ", at most soft_limit_mb and hard_limit_mb",
            .sentence = "Idle memory stays as long as no more than this is reserved on a device.",
        },
    [XSEG_CONFIG_KEEP_WINDOW] =
        {
            .name = "keep_window_s",
            .source = "JuliaGPU/CuArrays.jl#83",
            .type = XSEG_CONFIG_NUMBER,
            .offset = MEMBER(keep_window_s),
            .most = 1209600,
            .accepts = "a whole number of seconds from 0 to 1209600",
            .sentence = "Idle memory stays as long as no more is reserved than was in use at some "
                        "time of the last so many seconds.",
        },
    [XSEG_CONFIG_RECLAIM_BUDGET] =
        {
            .name = "reclaim_us_per_s",
            .source = "microsoft/onnxruntime#13464",
            .type = XSEG_CONFIG_NUMBER,
            .offset = MEMBER(reclaim_us_per_s),
            .start = 10000,
            .least = 1,
            .most = 1000000,
            .accepts = "a whole number of microseconds from 1 to 1000000",
            .sentence = "How much of each second idle memory may take up in the driver on its way "
                        "back.",
        },
    [XSEG_CONFIG_SOFT_LIMIT] =
        {
            .name = "soft_limit_mb",
            .source = "JuliaGPU/CUDA.jl#718, #2040",
            .type = XSEG_CONFIG_MIB,
            .offset = MEMBER(soft_limit_bytes),
            .start = XSEG_CONFIG_UNSET,
            .accepts = ANY_MIB ", at least keep_mb and at most hard_limit_mb",
            .unset = "none",
            .sentence = "While the process has more than this of a device, idle memory is released "
                        "regardless of its age. No request fails because of this limit.",
        },
    [XSEG_CONFIG_HARD_LIMIT] =
        {
            .name = "hard_limit_mb",
            .source = "JuliaGPU/CUDA.jl#718, pytorch/pytorch#58466",
            .type = XSEG_CONFIG_MIB,
            .offset = MEMBER(hard_limit_bytes),
            .start = XSEG_CONFIG_UNSET,
            .accepts = ANY_MIB ", at least soft_limit_mb and keep_mb",
            .unset = "none",
            .sentence =
                "Maximum memory that the process has of a device. A request that needs more "
                "is served from idle memory, or rejected.",
        },
    [XSEG_CONFIG_DEVICE_FREE_MIN] =
        {
            .name = "device_free_min_mb",
            .source = "radixark/miles#137",
            .type = XSEG_CONFIG_MIB,
            .offset = MEMBER(device_free_min_bytes),
            .accepts = ANY_MIB,
            .sentence = "While a device has less free memory than this, whoever took it, idle "
                        "memory goes back whatever its age.",
        },
    [XSEG_CONFIG_BACKGROUND_THREAD] =
        {
            .name = "background_thread",
            .source = "JuliaGPU/CUDA.jl#2190, microsoft/onnxruntime#13464",
            .type = XSEG_CONFIG_BOOL,
            .offset = MEMBER(background_thread),
            .accepts = ANY_BOOL,
            .sentence = "A thread of the library gives idle memory back, instead of the calls that "
                        "are made anyway; also in a lull.",
        },
    [XSEG_CONFIG_PAGE_CACHE] =
        {
            .name = "page_cache_mb",
            .source = "pytorch/pytorch#166116",
            .type = XSEG_CONFIG_MIB,
            .offset = MEMBER(page_cache_bytes),
            .is_expandable = true,
            .accepts = ANY_MIB,
            .sentence = "How much of what goes back by itself is kept of a device, unmapped, for "
                        "the next growth of any stream and pool.",
        },
    [XSEG_CONFIG_EXPORTABLE] =
        {
            .name = "exportable",
            .source = "PyTorch (adapter: IPC), pytorch/pytorch#130330",
            .type = XSEG_CONFIG_BOOL,
            .offset = MEMBER(exportable),
            .is_expandable = true,
            .accepts = ANY_BOOL,
            .sentence = "Memory can be exported to other processes: that of the default pool of "
                        "each device that is opened from then on, and of each pool that is made "
                        "from then on without functions of its own. Where the driver refuses such "
                        "memory, a line of the log says why, and it is as other memory.",
        },
    [XSEG_CONFIG_RDMA] =
        {
            .name = "rdma",
            .source = "PyTorch (adapter), vllm-project/vllm#29569",
            .type = XSEG_CONFIG_BOOL,
            .offset = MEMBER(rdma),
            .is_expandable = true,
            .accepts = ANY_BOOL,
            .sentence = "Pages are made so that network cards may reach them (GPUDirect RDMA): "
                        "those of the default pool of each device that is opened from then on, and "
                        "of each pool that is made from then on without functions of its own. "
                        "Where the driver refuses such pages, a line of the log says why, and they "
                        "are as others.",
        },
    [XSEG_CONFIG_OOM_SNAPSHOT] =
        {
            .name = "oom_snapshot",
            .source = "pytorch/pytorch#32101, Lightning-AI/pytorch-lightning#16901",
            .type = XSEG_CONFIG_PATH,
            .offset = MEMBER(oom_snapshot),
            .accepts = "none, or the path of a directory of up to 255 characters without blanks, "
                       "commas, colons and brackets",
            .unset = "unset",
            .sentence =
                "Folder into which a snapshot is written when a request fails for lack of memory, "
                "before the call returns; at most 3 of an allocator; see "
                "[snapshots](snapshots.md). "
                "Without the key the variable `XSEG_OOM_SNAPSHOT` names the folder. none: no "
                "snapshot, whatever the variable contains.",
        },
    [XSEG_CONFIG_OOM_SNAPSHOT_MS] =
        {
            .name = "oom_snapshot_ms",
            .source = "pytorch/pytorch#172672",
            .type = XSEG_CONFIG_NUMBER,
            .offset = MEMBER(oom_snapshot_ms),
            .start = 2000,
            .least = 1,
            .most = 3600000,
            .accepts = "a whole number of milliseconds from 1 to 3600000",
            .sentence = "Time limit of such a snapshot, which omits the oldest events to keep it. "
                        "All allocated and cached blocks are always written.",
        },
    [XSEG_CONFIG_OOM_SNAPSHOT_MB] =
        {
            .name = "oom_snapshot_mb",
            .source = "pytorch/pytorch#176290",
            .type = XSEG_CONFIG_MIB,
            .offset = MEMBER(oom_snapshot_bytes),
            .start = 512,
            .accepts = ANY_MIB,
            .sentence =
                "Size limit of such a snapshot, which omits the oldest events to keep it. All "
                "allocated and cached blocks are always written, about 30 bytes each.",
        },
    [XSEG_CONFIG_PUBLISH] =
        {
            .name = "publish",
            .source = "roboflow/inference#2657, vllm-project/vllm#26850",
            .type = XSEG_CONFIG_BOOL,
            .offset = MEMBER(publish),
            .accepts = ANY_BOOL,
            .sentence = "Put the figures of devices and pools where [`xseg top`](top.md) of the "
                        "same user finds them, in memory that goes with the process.",
        },
    [XSEG_CONFIG_SHARE_BUDGET] =
        {
            .name = "budget_file",
            .source = "ovg-project/kvcached#87, #221",
            .type = XSEG_CONFIG_PATH,
            .offset = MEMBER(budget_file),
            .accepts = "none, a name of up to 64 letters, digits, '-', '_' and '.', or the path of "
                       "a file of up to 255 characters without blanks, commas, colons and brackets",
            .unset = "none",
            .sentence =
                "Shared budget file of the processes that share devices: a name means the file "
                "`/dev/shm/xseg-UID-NAME`. Idle memory is lent and asked back; see "
                "[processes](processes.md). Implies background_thread.",
        },
    [XSEG_CONFIG_BUDGET_SHARE] =
        {
            .name = "budget_share",
            .source = "ovg-project/kvcached#87",
            .type = XSEG_CONFIG_REAL,
            .offset = MEMBER(budget_share),
            .high = 1,
            .smallest = 1e-6,
            .accepts = "0, or a number from 0.000001 to 1",
            .sentence =
                "With budget_file: part of each device that is this process's own. Those that "
                "name 0 have equal parts of what the others leave.",
        },
    [XSEG_CONFIG_BUDGET_MIN] =
        {
            .name = "budget_min_mb",
            .source = "ovg-project/kvcached#221",
            .type = XSEG_CONFIG_MIB,
            .offset = MEMBER(budget_min_bytes),
            .accepts = ANY_MIB,
            .sentence = "With budget_file: idle memory is not lent as long as no more than this is "
                        "taken of a device.",
        },
    [XSEG_CONFIG_BUDGET_RETURN] =
        {
            .name = "budget_wait_ms",
            .source = "ovg-project/kvcached#221",
            .type = XSEG_CONFIG_NUMBER,
            .offset = MEMBER(budget_wait_ms),
            .start = 200,
            .least = 8,
            .most = 60000,
            .accepts = "a whole number of milliseconds from 8 to 60000",
            .sentence =
                "With budget_file: how long a request waits at the most for memory that "
                "others leave idle. Eight times in it each process looks for what others want.",
        },
};
