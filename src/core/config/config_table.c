/* SPDX-License-Identifier: MIT */
#include "src/core/config/config_table.h"

#include <string.h>

#include "src/base/check.h"
#include "src/base/error.h"
#include "src/base/string_util.h"

#define MEMBER(name) offsetof(struct xseg_config, name)

#define ANY_BOOL "True or False"
#define ANY_MIB  "a whole number of MiB"
#define ANY_SIZE "a fraction of the device memory above 0, or a size in GiB such as 40G"

const struct xseg_config_row xseg_config_table[XSEG_CONFIG_KEYS] = {
    [XSEG_CONFIG_EXPANDABLE_SEGMENTS] =
        {
            .name = "expandable_segments",
            .type = XSEG_CONFIG_BOOL,
            .offset = MEMBER(expandable_segments),
            .default_value = 1,
            .accepted = ANY_BOOL,
            .description =
                "If True, a segment reserves a virtual address range and maps physical pages into "
                "it as it grows. If False, each segment is one allocation by `cuMemAlloc`. The "
                "default is False in a `PYTORCH_*` variable that does not name the key.",
        },
    [XSEG_CONFIG_LARGE_SEGMENT_SIZE] =
        {
            .name = "large_segment_size_mb",
            .type = XSEG_CONFIG_MIB,
            .offset = MEMBER(large_segment_bytes),
            .default_value = 20,
            .min = 11,
            .max = 1048576,
            .accepted =
                ANY_MIB " from 11 to 1048576 (an even number if expandable_segments is True)",
            .description =
                "Size of the physical pages of expandable segments for blocks above 1 MiB, and of "
                "classic segments for blocks above 1 MiB and below 10 MiB.",
        },
    [XSEG_CONFIG_MAX_SPLIT_SIZE] =
        {
            .name = "max_split_size_mb",
            .allows_minus_one = true,
            .type = XSEG_CONFIG_MIB,
            .offset = MEMBER(max_split_bytes),
            .default_value = XSEG_CONFIG_UNSET,
            .is_at_least_large = true,
            .accepted = "-1 (unlimited), or " ANY_MIB " that is at least large_segment_size_mb",
            .unset_name = "unlimited",
            .description =
                "Blocks of this size or larger are not split, and serve only requests of at least "
                "this size.",
        },
    [XSEG_CONFIG_MAX_NON_SPLIT_ROUNDING] =
        {
            .name = "max_non_split_rounding_mb",
            .type = XSEG_CONFIG_MIB,
            .offset = MEMBER(max_non_split_rounding_bytes),
            .default_value = 20,
            .is_at_least_large = true,
            .accepted = ANY_MIB " that is at least large_segment_size_mb",
            .description =
                "A request of max_split_size_mb or more is served only by a cached block that "
                "exceeds it by less than this size. If a string names large_segment_size_mb and "
                "not this key, both have that value.",
        },
    [XSEG_CONFIG_ROUNDUP_DIVISIONS] =
        {
            .name = "roundup_power2_divisions",
            .type = XSEG_CONFIG_DIVISIONS,
            .offset = MEMBER(roundup_divisions),
            .accepted = "a power of two up to 2147483648, or a list such as [256:1,512:2,>:4]",
            .description =
                "Requests are rounded up to one of this number of equal steps between two powers "
                "of two, or with 0 or 1 to a multiple of 512 bytes. A list has a number for each "
                "interval; intervals begin at powers of two of MiB.",
        },
    [XSEG_CONFIG_MEMORY_FRACTION] =
        {
            .name = "per_process_memory_fraction",
            .type = XSEG_CONFIG_REAL,
            .offset = MEMBER(memory_fraction),
            .default_value = 1,
            .real_max = 1,
            .accepted = "a number from 0 to 1",
            .description =
                "Maximum physical memory of the allocator on a device, as a fraction of the "
                "device memory. A request beyond it is served from idle memory, or fails. With 1 "
                "there is no limit.",
        },
    [XSEG_CONFIG_GARBAGE_COLLECTION] =
        {
            .name = "garbage_collection_threshold",
            .type = XSEG_CONFIG_REAL,
            .offset = MEMBER(garbage_collection_threshold),
            .real_max = 1,
            .excludes_ends = true,
            .accepted = "a number above 0 and below 1, or off",
            .unset_name = "off",
            .description =
                "While physical memory exceeds this fraction of its limit, a request that needs "
                "memory from the driver first releases old cached large blocks. The key has no "
                "effect unless per_process_memory_fraction is below 1.",
        },
    [XSEG_CONFIG_CAPTURE_REUSE] =
        {
            .name = "graph_capture_record_stream_reuse",
            .type = XSEG_CONFIG_BOOL,
            .offset = MEMBER(graph_capture_record_stream_reuse),
            .accepted = ANY_BOOL,
            .description =
                "If True, a capture can reuse a block that other streams used, once the graph "
                "orders all uses before later work of the block's stream. If False, such a block "
                "is pending until the end of the capture.",
        },
    [XSEG_CONFIG_THROW_ON_OOM] =
        {
            .name = "throw_on_cudamalloc_oom",
            .type = XSEG_CONFIG_BOOL,
            .offset = MEMBER(throw_on_cudamalloc_oom),
            .accepted = ANY_BOOL,
            .description =
                "If True, a request beyond the device memory, or beyond rejection_fraction of "
                "xseg_limits_set(), fails immediately, and cached memory is kept. Other limits "
                "are not affected.",
        },
    [XSEG_CONFIG_RESERVE] =
        {
            .name = "expandable_segments_reserve",
            .type = XSEG_CONFIG_SIZE,
            .offset = MEMBER(expandable_segments_reserve),
            .needs_expandable = true,
            .accepted = ANY_SIZE,
            .unset_name = "9/8 of the device",
            .description =
                "Virtual address space that each segment of a stream and pool reserves. A larger "
                "request reserves more.",
        },
    [XSEG_CONFIG_PAGE] =
        {
            .name = "page_size",
            .type = XSEG_CONFIG_CHOICE,
            .offset = MEMBER(page_sizes),
            .needs_expandable = true,
            .choice = {"fixed", "auto", "small"},
            .accepted = "fixed, auto or small",
            .description =
                "Pages of large segments. With `fixed`, their size is large_segment_size_mb, "
                "except "
                "under memory pressure. With `auto`, large growths have larger pages: fewer driver "
                "calls, but released only as a whole. Small growths near the memory limit have "
                "pages of 2 MiB; see [measurements](measurements.md). With `small`, all pages have "
                "2 MiB: more driver calls, least fragmentation; see [out of "
                "memory](out-of-memory.md).",
        },
    [XSEG_CONFIG_DEBUG_FILL] =
        {
            .name = "debug_fill",
            .type = XSEG_CONFIG_BOOL,
            .offset = MEMBER(debug_fill),
            .accepted = ANY_BOOL,
            .description =
                "If True, freed memory is filled with a pattern, which is checked when the memory "
                "is allocated again. So writes after a free are detected; see "
                "[debugging](debugging.md).",
        },
    [XSEG_CONFIG_UNMAP_ON_FREE] =
        {
            .name = "unmap_on_free",
            .type = XSEG_CONFIG_BOOL,
            .offset = MEMBER(unmap_on_free),
            .needs_expandable = true,
            .accepted = ANY_BOOL,
            .description =
                "If True, each block of the default pool has its own pages, which are unmapped by "
                "the free, so that a later access faults. The key needs expandable segments.",
        },
    [XSEG_CONFIG_GUARD_PAGE] =
        {
            .name = "guard_page",
            .type = XSEG_CONFIG_BOOL,
            .offset = MEMBER(guard_page),
            .needs_expandable = true,
            .accepted = ANY_BOOL,
            .description =
                "If True, blocks are allocated as with unmap_on_free and end at an unmapped page, "
                "so that an access past the end faults as well. The key needs expandable segments.",
        },
    [XSEG_CONFIG_BLOCK_USER] =
        {
            .name = "block_user",
            .type = XSEG_CONFIG_BOOL,
            .offset = MEMBER(block_user),
            .accepted = ANY_BOOL,
            .description =
                "If True, the user value of a request (`user` of struct xseg_request) is recorded "
                "with its block, for xseg_block_query() and the history; see "
                "[history](history.md).",
        },
    [XSEG_CONFIG_HISTORY] =
        {
            .name = "history",
            .type = XSEG_CONFIG_CHOICE,
            .offset = MEMBER(history),
            .choice = {"nothing", "state", "all"},
            .accepted = "nothing, state or all",
            .description =
                "With `state`, the time and label of the allocation are recorded for each "
                "allocated block. With `all`, the last events of each stream are recorded as "
                "well. See [history](history.md).",
        },
    [XSEG_CONFIG_HISTORY_STACKS] =
        {
            .name = "history_stacks",
            .type = XSEG_CONFIG_CHOICE,
            .offset = MEMBER(history_stacks),
            .choice = {"none", "state", "alloc", "all"},
            .accepted = "none, state, alloc or all",
            .description =
                "Call stacks to record: of allocated blocks (`state`), also of events that "
                "allocate memory (`alloc`), or of allocated blocks and all events (`all`). The "
                "key has no effect with history:nothing.",
        },
    [XSEG_CONFIG_HISTORY_EVENTS] =
        {
            .name = "history_events",
            .type = XSEG_CONFIG_NUMBER,
            .offset = MEMBER(history_events),
            .default_value = 65536,
            .min = 16,
            .max = 16777216,
            .accepted = "a whole number from 16 to 16777216",
            .description =
                "Number of events that the history keeps for each stream of a pool, separately "
                "for small and large blocks. An event takes 64 bytes of host memory, and 8 more "
                "with block_user.",
        },
    [XSEG_CONFIG_HISTORY_SKIP] =
        {
            .name = "history_skip",
            .type = XSEG_CONFIG_ACTIONS,
            .offset = MEMBER(history_skip),
            .accepted = "a list of actions such as [free_completed,segment_map]",
            .description = "Actions whose events are not recorded.",
        },
    [XSEG_CONFIG_IDLE] =
        {
            .name = "idle_ms",
            .type = XSEG_CONFIG_PERIOD,
            .offset = MEMBER(idle_ms),
            .default_value = XSEG_CONFIG_UNSET,
            .max = 1209600000,
            .accepted = "a whole number of milliseconds from 0 to 1209600000, or -1 (never)",
            .description = "Idle memory is released gradually from a quarter of this age on, and "
                           "completely at this age. See [services](services.md).",
        },
    [XSEG_CONFIG_KEEP] =
        {
            .name = "keep_mb",
            .type = XSEG_CONFIG_MIB,
            .offset = MEMBER(keep_bytes),
            .accepted = ANY_MIB ", at most soft_limit_mb and hard_limit_mb",
            .description = "Decay by idle_ms keeps this much memory of a device reserved.",
        },
    [XSEG_CONFIG_KEEP_WINDOW] =
        {
            .name = "keep_window_s",
            .type = XSEG_CONFIG_NUMBER,
            .offset = MEMBER(keep_window_s),
            .max = 1209600,
            .accepted = "a whole number of seconds from 0 to 1209600",
            .description =
                "Decay by idle_ms keeps the peak of the memory in use within this time reserved. "
                "0 disables the window.",
        },
    [XSEG_CONFIG_RECLAIM_TIME] =
        {
            .name = "reclaim_us_per_s",
            .type = XSEG_CONFIG_NUMBER,
            .offset = MEMBER(reclaim_us_per_s),
            .default_value = 10000,
            .min = 1,
            .max = 1000000,
            .accepted = "a whole number of microseconds from 1 to 1000000",
            .description = "Maximum time per second and device that decay spends in driver calls.",
        },
    [XSEG_CONFIG_SOFT_LIMIT] =
        {
            .name = "soft_limit_mb",
            .type = XSEG_CONFIG_MIB,
            .offset = MEMBER(soft_limit_bytes),
            .default_value = XSEG_CONFIG_UNSET,
            .accepted = ANY_MIB ", at least keep_mb and at most hard_limit_mb",
            .unset_name = "none",
            .description =
                "While the physical memory on a device exceeds this size, idle memory of any age "
                "is released. No request fails because of this limit.",
        },
    [XSEG_CONFIG_HARD_LIMIT] =
        {
            .name = "hard_limit_mb",
            .type = XSEG_CONFIG_MIB,
            .offset = MEMBER(hard_limit_bytes),
            .default_value = XSEG_CONFIG_UNSET,
            .accepted = ANY_MIB ", at least soft_limit_mb and keep_mb",
            .unset_name = "none",
            .description =
                "Maximum physical memory of the allocator on a device. A request beyond it is "
                "served from idle memory, or fails.",
        },
    [XSEG_CONFIG_DEVICE_FREE_MIN] =
        {
            .name = "device_free_min_mb",
            .type = XSEG_CONFIG_MIB,
            .offset = MEMBER(device_free_min_bytes),
            .default_value = XSEG_CONFIG_UNSET,
            .accepts_unset = true,
            .accepted = "auto, or " ANY_MIB,
            .unset_name = "auto",
            .description =
                "This much memory of a device remains free for other users of the GPU. A request "
                "that would leave less is served from idle memory, or fails. While others leave "
                "less, idle memory of any age is released. With 0, the free memory is not "
                "queried. With auto, the minimum is 0, but on integrated devices, which use the "
                "memory of the host, it is a sixteenth of the memory, at least 512 MiB, and idle "
                "memory is released only if another key enables decay.",
        },
    [XSEG_CONFIG_BACKGROUND_THREAD] =
        {
            .name = "background_thread",
            .type = XSEG_CONFIG_BOOL,
            .offset = MEMBER(background_thread),
            .accepted = ANY_BOOL,
            .description =
                "If True, a thread of the library releases idle memory, also while the program "
                "makes no calls. If False, allocations and frees release it in small steps.",
        },
    [XSEG_CONFIG_PAGE_CACHE] =
        {
            .name = "page_cache_mb",
            .type = XSEG_CONFIG_MIB,
            .offset = MEMBER(page_cache_bytes),
            .needs_expandable = true,
            .accepted = ANY_MIB,
            .description =
                "Maximum memory per device that stays allocated as unmapped pages after decay, a "
                "decommit, or a free with unmap_on_free or guard_page. The next growth of any "
                "stream and pool maps these pages first.",
        },
    [XSEG_CONFIG_EXPORTABLE] =
        {
            .name = "exportable",
            .type = XSEG_CONFIG_BOOL,
            .offset = MEMBER(exportable),
            .needs_expandable = true,
            .accepted = ANY_BOOL,
            .description =
                "If True, other processes can map the memory of xseg. The key applies to the "
                "default pools of devices that are opened later, and to later pools without "
                "memory functions. If the driver does not support this, a log line has the reason.",
        },
    [XSEG_CONFIG_RDMA] =
        {
            .name = "rdma",
            .type = XSEG_CONFIG_BOOL,
            .offset = MEMBER(rdma),
            .needs_expandable = true,
            .accepted = ANY_BOOL,
            .description =
                "If True, network adapters can access the memory of xseg (GPUDirect RDMA). The "
                "key applies to the same pools as exportable. If the driver does not support "
                "this, a log line has the reason.",
        },
    [XSEG_CONFIG_OOM_SNAPSHOT] =
        {
            .name = "oom_snapshot",
            .type = XSEG_CONFIG_PATH,
            .offset = MEMBER(oom_snapshot),
            .accepted = "none, or the path of a directory, at most 255 characters without blanks, "
                        "commas, colons and brackets",
            .unset_name = "unset",
            .description =
                "Directory for a snapshot of each request that fails for lack of memory or "
                "because of a limit, at most 3 per allocator; see [history](history.md). If the "
                "key is unset, the variable `XSEG_OOM_SNAPSHOT` specifies the directory. `none` "
                "disables the variable as well.",
        },
    [XSEG_CONFIG_OOM_SNAPSHOT_MS] =
        {
            .name = "oom_snapshot_ms",
            .type = XSEG_CONFIG_NUMBER,
            .offset = MEMBER(oom_snapshot_ms),
            .default_value = 2000,
            .min = 1,
            .max = 3600000,
            .accepted = "a whole number of milliseconds from 1 to 3600000",
            .description =
                "Maximum time of writing a snapshot of oom_snapshot. The oldest events are "
                "omitted to meet it; blocks are always written.",
        },
    [XSEG_CONFIG_OOM_SNAPSHOT_MB] =
        {
            .name = "oom_snapshot_mb",
            .type = XSEG_CONFIG_MIB,
            .offset = MEMBER(oom_snapshot_bytes),
            .default_value = 512,
            .accepted = ANY_MIB,
            .description =
                "Maximum size of a snapshot of oom_snapshot. The oldest events are omitted to "
                "meet it; blocks are always written, about 30 bytes each.",
        },
    [XSEG_CONFIG_PUBLISH] =
        {
            .name = "publish",
            .type = XSEG_CONFIG_BOOL,
            .offset = MEMBER(publish),
            .accepted = ANY_BOOL,
            .description =
                "If True, statistics of devices and pools are published in shared memory for "
                "`xseg top` of the same user; see [top](top.md).",
        },
    [XSEG_CONFIG_BUDGET_FILE] =
        {
            .name = "budget_file",
            .type = XSEG_CONFIG_PATH,
            .offset = MEMBER(budget_file),
            .accepted =
                "none, a name of at most 64 letters, digits, '-', '_' and '.', or the path of a "
                "file, at most 255 characters without blanks, commas, colons and brackets",
            .unset_name = "none",
            .description =
                "Processes with the same file divide their devices, and release idle memory on "
                "demand; see [sharing](sharing.md). A name selects the file "
                "`/dev/shm/xseg-UID-NAME`. The key implies background_thread:True.",
        },
    [XSEG_CONFIG_BUDGET_SHARE] =
        {
            .name = "budget_share",
            .type = XSEG_CONFIG_REAL,
            .offset = MEMBER(budget_share),
            .real_max = 1,
            .real_min_nonzero = 1e-6,
            .accepted = "0, or a number from 0.000001 to 1",
            .description =
                "Share of the process, as a fraction of each device. Processes with 0 divide the "
                "rest of the device equally.",
        },
    [XSEG_CONFIG_BUDGET_MIN] =
        {
            .name = "budget_min_mb",
            .type = XSEG_CONFIG_MIB,
            .offset = MEMBER(budget_min_bytes),
            .accepted = ANY_MIB,
            .description =
                "With budget_file, the process releases idle memory on demand only above this "
                "much physical memory of a device.",
        },
    [XSEG_CONFIG_BUDGET_WAIT] =
        {
            .name = "budget_wait_ms",
            .type = XSEG_CONFIG_NUMBER,
            .offset = MEMBER(budget_wait_ms),
            .default_value = 200,
            .min = 8,
            .max = 60000,
            .accepted = "a whole number of milliseconds from 8 to 60000",
            .description =
                "With budget_file, maximum time that a request waits for idle memory of other "
                "processes.",
        },
};

const char *const xseg_config_ignored[XSEG_CONFIG_IGNORED] = {
    "backend",
    "expandable_segments_reserve_by_class",
    "pinned_free_catch_all",
    "pinned_max_cached_size_mb",
    "pinned_max_round_threshold_mb",
    "pinned_num_register_threads",
    "pinned_reserve_segment_size_mb",
    "pinned_use_background_threads",
    "pinned_use_cuda_host_register",
    "release_lock_on_cudamalloc",
    "release_lock_on_hipmalloc",
};

const char *const xseg_config_actions[XSEG_HISTORY_ACTIONS] = {
    [XSEG_HISTORY_ALLOC] = "alloc",
    [XSEG_HISTORY_FREE_REQUESTED] = "free_requested",
    [XSEG_HISTORY_FREE_COMPLETED] = "free_completed",
    [XSEG_HISTORY_SEGMENT_ALLOC] = "segment_alloc",
    [XSEG_HISTORY_SEGMENT_FREE] = "segment_free",
    [XSEG_HISTORY_SEGMENT_MAP] = "segment_map",
    [XSEG_HISTORY_SEGMENT_UNMAP] = "segment_unmap",
    [XSEG_HISTORY_OOM] = "oom",
    [XSEG_HISTORY_REMAP] = "remap",
    [XSEG_HISTORY_DECAY] = "decay",
    [XSEG_HISTORY_TRIM] = "trim",
    [XSEG_HISTORY_PAUSE] = "pause",
    [XSEG_HISTORY_RESUME] = "resume",
    [XSEG_HISTORY_ANNOTATION] = "annotation",
    [XSEG_HISTORY_BUDGET_REQUEST] = "budget_request",
    [XSEG_HISTORY_BUDGET_RELEASE] = "budget_release",
};

static bool name_equals(const char *name, const char *key, size_t length)
{
    return strlen(name) == length && memcmp(name, key, length) == 0;
}

const struct xseg_config_row *xseg_config_find_key(const char *name, size_t length)
{
    XSEG_ASSERT(name != NULL);
    for (unsigned key = 0; key < XSEG_CONFIG_KEYS; key++)
        if (name_equals(xseg_config_table[key].name, name, length))
            return &xseg_config_table[key];
    return NULL;
}

unsigned xseg_config_find_ignored(const char *name, size_t length)
{
    unsigned i = 0;

    XSEG_ASSERT(name != NULL);
    while (i < XSEG_CONFIG_IGNORED && !name_equals(xseg_config_ignored[i], name, length))
        i++;
    return i;
}

const char *xseg_config_ignored_value(const struct xseg_config *config, const char *name)
{
    const unsigned i = xseg_config_find_ignored(name, strlen(name));

    XSEG_ASSERT(i < XSEG_CONFIG_IGNORED);
    return config->ignored[i][0] != '\0' ? config->ignored[i] : NULL;
}

void xseg_config_suggest_key(const char *name, size_t length)
{
    struct xseg_closest_match closest;

    XSEG_ASSERT(name != NULL && length != 0);
    xseg_closest_match_init(&closest, name, length);
    for (unsigned key = 0; key < XSEG_CONFIG_KEYS; key++) {
        XSEG_ASSERT(xseg_config_table[key].name != NULL);
        xseg_closest_match_consider(&closest, xseg_config_table[key].name);
    }
    for (unsigned i = 0; i < XSEG_CONFIG_IGNORED; i++)
        xseg_closest_match_consider(&closest, xseg_config_ignored[i]);
    if (closest.name != NULL)
        xseg_fail_append("; did you mean %s?", closest.name);
    else
        xseg_fail_append("; run `xseg config --keys` for a list");
}
