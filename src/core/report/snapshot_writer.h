/* SPDX-License-Identifier: MIT */
/*
 * Snapshot writer: the values of a memory snapshot in the pickle format of PyTorch
 * (docs/history.md).
 *
 * snapshot.c copies the state of the devices and selects the contents of the file.  The writer has
 * two parts.  snapshot_writer.c writes state (segments with their blocks, settings, the reasons of
 * pages) and the values that occur everywhere (strings, pool IDs, times, call stacks).
 * snapshot_trace.c writes the events of a device as trace entries.
 *
 * Interned strings are indexes into one table and appear once in the file.  Each call stack and
 * each frame is written once as well; later uses refer to its memo.  A rollback of the pickle to a
 * savepoint discards the memos after the savepoint.
 *
 * Locking: none; a writer belongs to one thread.  HISTORY is locked for the ID of a pool.  The
 * user's hook, which names the frames of an interpreter, is called without locks.
 */
#ifndef XSEG_CORE_SNAPSHOT_WRITER_H
#define XSEG_CORE_SNAPSHOT_WRITER_H

#include "src/base/hash_table.h"
#include "src/base/pickle_writer.h"
#include "src/core/history/history.h"
#include "src/core/report/heap_copy.h"

/* --- Values. --- */

/* clang-format off */
#define XSEG_SNAPSHOT_STRINGS(X) \
    /* Keys of PyTorch. */ \
    X(SEGMENTS, "segments") X(DEVICE_TRACES, "device_traces") \
    X(ALLOCATOR_SETTINGS, "allocator_settings") X(EXTERNAL_ANNOTATIONS, "external_annotations") \
    X(HOST_SEGMENTS, "host_segments") X(HOST_TRACES, "host_traces") X(DEVICE, "device") \
    X(ADDRESS, "address") X(TOTAL_SIZE, "total_size") X(ALLOCATED_SIZE, "allocated_size") \
    X(ACTIVE_SIZE, "active_size") X(REQUESTED_SIZE, "requested_size") X(STREAM, "stream") \
    X(SEGMENT_TYPE, "segment_type") X(SEGMENT_POOL_ID, "segment_pool_id") \
    X(IS_EXPANDABLE, "is_expandable") X(FRAMES, "frames") X(BLOCKS, "blocks") X(SIZE, "size") \
    X(STATE, "state") X(NAME, "name") X(FILENAME, "filename") X(LINE, "line") \
    X(ACTION, "action") X(ADDR, "addr") X(TIME_US, "time_us") X(POOL_ID, "pool_id") \
    X(USER_METADATA, "user_metadata") X(COMPILE_CONTEXT, "compile_context") \
    X(DEVICE_FREE, "device_free") X(STAGE, "stage") \
    X(PYTORCH_CUDA_ALLOC_CONF, "PYTORCH_CUDA_ALLOC_CONF") X(MAX_SPLIT_SIZE, "max_split_size") \
    X(GARBAGE_COLLECTION, "garbage_collection_threshold") \
    X(EXPANDABLE_SEGMENTS, "expandable_segments") X(RELEASE_LOCK, "release_lock_on_cudamalloc") \
    X(CAPTURE_REUSE, "graph_capture_record_stream_reuse") \
    X(ROUNDUP_DIVISIONS, "roundup_power2_divisions") \
    /* Sizes in MiB, adjacent and ascending. */ \
    X(MIB_1, "1") X(MIB_2, "2") X(MIB_4, "4") X(MIB_8, "8") X(MIB_16, "16") X(MIB_32, "32") \
    X(MIB_64, "64") X(MIB_128, "128") X(MIB_256, "256") X(MIB_512, "512") X(MIB_1024, "1024") \
    X(MIB_2048, "2048") X(MIB_4096, "4096") X(MIB_8192, "8192") X(MIB_16384, "16384") \
    X(MIB_32768, "32768") \
    /* Values of PyTorch. */ \
    X(EMPTY, "") X(NOT_COMPILED, "N/A") X(SMALL, "small") X(LARGE, "large") \
    X(ACTIVE_ALLOCATED, "active_allocated") X(ACTIVE_PENDING_FREE, "active_pending_free") \
    X(INACTIVE, "inactive") X(START, "START") X(END, "END") X(ALLOC, "alloc") \
    X(FREE_REQUESTED, "free_requested") X(FREE_COMPLETED, "free_completed") \
    X(SEGMENT_ALLOC, "segment_alloc") X(SEGMENT_FREE, "segment_free") \
    X(SEGMENT_MAP, "segment_map") X(SEGMENT_UNMAP, "segment_unmap") X(OOM, "oom") \
    /* Keys and values of xseg. */ \
    X(XSEG, "xseg") X(FORMAT, "format") X(MAX_ROUND_THRESHOLD, "max_round_threshold") \
    X(MAX_CACHED_SIZE, "max_cached_size") \
    X(PINNED_HOST_REGISTER, "pinned_use_cuda_host_register") \
    X(PINNED_REGISTER_THREADS, "pinned_num_register_threads") X(VERSION, "version") \
    X(CONFIGURATION, "configuration") X(CONFIGURATION_SOURCE, "configuration_source") \
    X(DEVICES, "devices") X(RESERVED, "reserved") X(PAGE_CACHE, "page_cache") \
    X(UNRELEASED, "unreleased") X(LOST, "lost") X(LEFT_OUT, "left_out") X(CAUSES, "causes") \
    X(PAGES, "pages") X(PAUSED, "paused") X(ALLOCATED, "allocated") \
    X(BUILD_ID, "build_id") X(REMAP, "remap") X(DECAY, "decay") X(TRIM, "trim") \
    X(PAUSE, "pause") X(RESUME, "resume") X(PENDING, "pending") X(CLAIMED, "claimed") \
    X(POOL, "pool") X(PINNED, "pinned") X(CAPTURE, "capture") X(KEEP, "keep") \
    X(POLICY, "policy") X(EXPORTED, "exported") X(REGISTERED, "registered") \
    X(SINGLE_PAGE_PADDING, "single_page_padding") X(ABOVE_SHARE, "above_share") \
    X(BUDGET_RELEASE, "budget_release")
/* clang-format on */

#define XSEG_SNAPSHOT_STRING_INDEX(name, text) XSEG_SNAPSHOT_##name,
enum xseg_snapshot_string {
    XSEG_SNAPSHOT_STRINGS(XSEG_SNAPSHOT_STRING_INDEX) XSEG_SNAPSHOT_STRING_COUNT
};
#undef XSEG_SNAPSHOT_STRING_INDEX

extern const char *const xseg_snapshot_strings[XSEG_SNAPSHOT_STRING_COUNT];

/* Size of the direct-mapped cache of pool IDs. */
#define XSEG_SNAPSHOT_POOLS 64u

/* Size of the text in which the user's hook names frames. */
#define XSEG_SNAPSHOT_FRAMES_BYTES 16384u

struct xseg_snapshot_writer {
    struct xseg_pickle_writer pickle;
    struct xseg_history_store *store;
    int64_t epoch_ns; /* offset of the realtime clock from event times; 0 with the user's clock */
    struct xseg_pool_id pools[XSEG_SNAPSHOT_POOLS]; /* by ID modulo the size; ID 0: none */
    struct xseg_hash_table stacks;                  /* memos of call stacks */
    struct xseg_hash_table frames;                  /* memos of frames */
    char frame_text[XSEG_SNAPSHOT_FRAMES_BYTES];
};

void xseg_snapshot_writer_init(struct xseg_snapshot_writer *writer,
                               struct xseg_history_store *store);
void xseg_snapshot_writer_fini(struct xseg_snapshot_writer *writer);

/* Return to a savepoint.  Returns false if the file cannot be truncated. */
bool xseg_snapshot_writer_rollback(struct xseg_snapshot_writer *writer,
                                   const struct xseg_pickle_savepoint *savepoint);

/* The two numbers that PyTorch uses as the ID of a pool: the ID that the user assigned, else (0,
 * ID).  (0, 0) is the default pool. */
const uint64_t *xseg_snapshot_pool_id(struct xseg_snapshot_writer *writer, uint32_t pool);

/* The time of an event in microseconds since 1970. */
uint64_t xseg_snapshot_time_us(const struct xseg_snapshot_writer *writer,
                               const struct xseg_history_moment *moment, uint64_t ticks);

/* Write a call stack as a list: the frames that the hook of the user names, then the frames of the
 * process.  0, 0 is an empty list. */
void xseg_snapshot_write_stack(struct xseg_snapshot_writer *writer, uint32_t stack,
                               uint32_t frames);

/* Write a key with a number. */
void xseg_snapshot_write_number(struct xseg_snapshot_writer *writer, unsigned key, uint64_t number);

/* --- State. --- */

/* Write the ranges of a device as items of a list: the evicted ranges, or all others. */
void xseg_snapshot_write_segments(struct xseg_snapshot_writer *writer,
                                  const struct xseg_heap_copy *heap, int device, bool is_evicted);

/* Write the configuration as PyTorch's `allocator_settings`.  Its configuration string contains the
 * keys that differ from their defaults and affect allocation, and ignored keys as written; keys
 * that only configure recording are omitted. */
void xseg_snapshot_write_settings(struct xseg_snapshot_writer *writer,
                                  const struct xseg_config *config);

/* Write the reasons of a device as a list of [address, bytes, reason, allocated bytes, cached
 * bytes, registered bytes]. */
void xseg_snapshot_write_pages(struct xseg_snapshot_writer *writer,
                               const struct xseg_reason_list *reasons);

/* --- Trace (snapshot_trace.c). --- */

#define XSEG_EVICTED_TO_END UINT64_MAX

/* Addresses whose pages are evicted from one event to another, by the numbers of the events. */
struct xseg_evicted_range {
    uint64_t base, end;
    uint64_t from; /* the eviction; 0: before the first event */
    uint64_t to;   /* the event that maps pages again; XSEG_EVICTED_TO_END: none */
    bool is_open;  /* during the search: `to` was not found yet */
};

/* A block in an evicted range; members that the events do not contain are 0. */
struct xseg_tracked_block {
    uint64_t base, requested, stream;
    uint32_t pool, stack, frames, label;
    uint8_t initial_state; /* before the first event */
    uint8_t state;         /* current: XSEG_BLOCK_ALLOCATED or _PENDING_FREE; _CACHED: no block */
};

/* The filter that selects the events that a trace shows. */
struct xseg_eviction_filter {
    struct xseg_evicted_range *ranges; /* [count] */
    size_t count, capacity;
    struct xseg_hash_table blocks; /* struct xseg_tracked_block, by address */
    uint64_t next;                 /* number of the next event */
};

/* Find the evicted ranges and their blocks in the events of a merge and in the state after the last
 * event.  Returns false on host allocation failure. */
bool xseg_eviction_filter_init(struct xseg_eviction_filter *filter,
                               struct xseg_history_merge *merge, const struct xseg_heap_copy *heap);
void xseg_eviction_filter_fini(struct xseg_eviction_filter *filter);

/* Return to the first event. */
void xseg_eviction_filter_restart(struct xseg_eviction_filter *filter);

/* Apply the next event to the tracked blocks.  Returns whether the trace shows the event. */
bool xseg_eviction_filter_apply(struct xseg_eviction_filter *filter,
                                const struct xseg_history_event *event);

/* Visit the allocated and pending blocks that start in a range. */
void xseg_eviction_filter_visit(const struct xseg_eviction_filter *filter, uint64_t base,
                                uint64_t bytes,
                                void (*visit)(void *self, const struct xseg_tracked_block *block),
                                void *self);

/* The reason for which a trace entry maps or unmaps memory. */
struct xseg_snapshot_cause {
    uint64_t entry; /* index of the entry */
    uint8_t action; /* enum xseg_history_action */
};

struct xseg_snapshot_trace {
    struct xseg_snapshot_writer *writer;
    struct xseg_history_moment moment;
    struct xseg_eviction_filter filter;
    uint64_t events;                    /* number of events so far, also those without an entry */
    uint64_t entries;                   /* number of entries so far */
    struct xseg_snapshot_cause *causes; /* [cause_count] */
    size_t cause_count, cause_capacity;
    uint8_t cause; /* of the next unmap at cause_base; XSEG_HISTORY_ACTIONS: unknown */
    uint64_t cause_base;
};

void xseg_snapshot_trace_init(struct xseg_snapshot_trace *trace,
                              struct xseg_snapshot_writer *writer);
void xseg_snapshot_trace_fini(struct xseg_snapshot_trace *trace);

/* Return to the first event and discard all entries. */
void xseg_snapshot_trace_restart(struct xseg_snapshot_trace *trace);

/* Write the entries of the next event.  skip: apply the event without writing entries */
void xseg_snapshot_trace_write(struct xseg_snapshot_trace *trace,
                               const struct xseg_history_event *event, bool skip);

/* Write the causes as a list of [index of the entry, cause]. */
void xseg_snapshot_trace_write_causes(const struct xseg_snapshot_trace *trace);

#endif
