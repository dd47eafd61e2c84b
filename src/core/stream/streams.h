/* SPDX-License-Identifier: MIT */
/*
 * Streams: the hash table of the streams of a device, and the lookup cache of an allocator.
 *
 * The table maps a stream handle to an entry, which has the arenas of the stream in the default
 * pool and the queues of blocks that wait for the stream.  Lookups are lock-free and call no driver
 * function.  The legacy default stream has two handles, NULL and 1.  The handle 2 of the per-thread
 * default stream is a different stream in each thread, so each lookup of it queries the stream's ID
 * (cuStreamGetId), which is then the key.
 *
 * The driver may reuse the handle of a destroyed stream for a new one, so the application announces
 * the end of a stream.  From then on the entry is *retiring* and no longer found; when all work of
 * the stream has completed, it is *retired*.  Entries are never freed, because blocks and arenas
 * point to them.  The next new stream reuses a retired entry, with any handle, together with the
 * arenas and their cached memory.  So the creation and the end of a stream move no memory, and the
 * number of entries is the maximum number of streams that existed at the same time.
 *
 * The table doubles when the chains become long.  Smaller tables remain allocated until the device
 * closes, for concurrent lookups; together they are no larger than the current table.  While
 * entries move to a larger table, a lookup may miss an entry, so a caller that requires an exact
 * result repeats a failed lookup under the lock.
 *
 * The *stream lookup cache* is a direct-mapped cache from (device, handle) to the entry, for the
 * fast path of allocations.  An entry is in the cache only while a request on its stream needs no
 * further check: the configuration has fast allocations, the device is open, the stream is known,
 * and no route or capture redirects the request.  These conditions change rarely.  Code that ends
 * one of them first changes the condition and then drops the entry from the cache, before its call
 * returns.  A request on the slow path adds the entry again (hit.c).
 *
 * The kernel clears the cache in a forked child, so the fast path need not check for a fork.  On
 * kernels without this feature the cache remains empty.
 *
 * Invariants, except for changes by a call that has not returned:
 *   STREAMS-1  The stream of a cached entry is known, its device is open and has no route, the
 *            current configuration has fast allocations, and `fast_path_mode` is the mode of that
 *            configuration.
 *
 * Locking: the table lock of the device (rank TABLE) guards the table, the lists of entries, and
 * changes of handles and IDs; the table lock of the allocator guards changes of the cache.  The
 * lock of pending blocks (rank PENDING) guards the list of retiring streams.
 */
#ifndef XSEG_CORE_STREAMS_H
#define XSEG_CORE_STREAMS_H

#include <stdatomic.h>

#include "src/base/hash_table.h"
#include "src/base/list.h"
#include "src/base/mutex.h"
#include "vmm/driver.h"

#define XSEG_STREAMS_BUCKETS 64u /* of the first table; a power of two */

struct xseg_arena;

enum xseg_stream_state {
    XSEG_STREAM_KNOWN,
    XSEG_STREAM_RETIRING, /* its end was announced, and work is pending */
    XSEG_STREAM_RETIRED   /* its end was announced, and all work has completed */
};

/* The mode of the fast path for requests on a cached stream. */
enum xseg_fast_path_mode {
    XSEG_FAST_PATH_BY_CONFIG,  /* read the configuration, which may record blocks */
    XSEG_FAST_PATH_CLASSIC,    /* from classic segments, no max_split_size_mb */
    XSEG_FAST_PATH_EXPANDABLE, /* from expandable segments, no max_split_size_mb */
};

/* The entry of a stream. */
struct xseg_known_stream {
    _Atomic(struct xseg_known_stream *) next; /* in the chain of the table */
    struct xseg_known_stream *older;          /* the entry that was created before this one */
    _Atomic(xseg_stream) handle;
    int ordinal; /* of the device */
    /* Valid while the stream is in the cache; written under TABLE. */
    _Atomic(enum xseg_fast_path_mode) fast_path_mode;
    atomic_uint_fast64_t id; /* of the driver, unique in the process */
    _Atomic(enum xseg_stream_state) state;
    /* Identifies the thread that last used the stream in a capture; see xseg_streams_claim(). */
    _Atomic(const void *) thread;
    bool is_queried;         /* scratch: query whether the stream is idle; device memory lock */
    atomic_bool has_arenas;  /* the entry has ever had an arena */
    xseg_event retire_event; /* recorded after all work of a retiring stream; PENDING */
    struct xseg_list retire_link;          /* in the list of retiring or of retired streams */
    _Atomic(struct xseg_arena *) arena[2]; /* of the default pool: small, large; or NULL */
    /* Freed blocks that wait for the stream, oldest first, and the link in the list of streams with
     * such blocks, which is sorted by rank; guarded by PENDING. */
    struct xseg_list uses, waiting;
    uint64_t rank;
    /* Batches of pending unmaps that wait for the stream, oldest first, and the link in the list of
     * streams with such batches; guarded by the device memory lock. */
    struct xseg_list batches, batch_link;
};

/* A hash table, and the smaller one that it has replaced. */
struct xseg_streams_table {
    struct xseg_streams_table *smaller;
    unsigned shift; /* a hash shifted right by this is the index of a bucket */
    _Atomic(struct xseg_known_stream *) *bucket;
};

struct xseg_streams {
    struct xseg_context *context;
    struct xseg_mutex *table_lock; /* TABLE */
    _Atomic(struct xseg_streams_table *) table;
    struct xseg_streams_table first;
    _Atomic(struct xseg_known_stream *) first_bucket[XSEG_STREAMS_BUCKETS];
    _Atomic(struct xseg_known_stream *) newest; /* head of the list of all entries */
    atomic_uint_fast64_t count;                 /* of entries */
    atomic_uint retiring_count;
    struct xseg_list retiring;   /* in the order in which their events are queried */
    struct xseg_list retired[2]; /* entries without arenas; entries with arenas */
};

static inline bool xseg_stream_is_known(const struct xseg_known_stream *stream)
{
    return __builtin_expect(
        atomic_load_explicit(&stream->state, memory_order_acquire) == XSEG_STREAM_KNOWN, 1);
}

void xseg_streams_init(struct xseg_streams *streams, struct xseg_context *context,
                       struct xseg_mutex *table_lock);
void xseg_streams_fini(struct xseg_streams *streams);

/*
 * Find the entry of a handle, or add one.
 *
 * @return XSEG_OK, XSEG_ERR_DRIVER (no such stream) or XSEG_ERR_HOST_MEMORY
 *
 * Cost: cuStreamGetId for a new stream and for the per-thread default stream
 */
xseg_status xseg_streams_find_or_add(struct xseg_streams *streams, xseg_stream handle,
                                     struct xseg_known_stream **out);

/* The entry of a known stream other than the per-thread default stream, or NULL.  If the first
 * lookup misses, it is repeated under TABLE. */
struct xseg_known_stream *xseg_streams_find(struct xseg_streams *streams, xseg_stream handle);

/* The head of the chain for a handle, or for the ID of a per-thread stream; or NULL. */
static inline struct xseg_known_stream *xseg_streams_chain(const struct xseg_streams *streams,
                                                           uint64_t key)
{
    const struct xseg_streams_table *table =
        atomic_load_explicit(&streams->table, memory_order_acquire);

    return atomic_load_explicit(&table->bucket[key * UINT64_C(0x9E3779B97F4A7C15) >> table->shift],
                                memory_order_acquire);
}

/* Whether an entry belongs to a known stream with this handle.  The state is loaded first: if a
 * retired entry is known again, its handle is that of the new stream.  The load of the handle is an
 * acquire load, so the ID, which was stored earlier, is visible. */
static inline bool xseg_stream_matches(const struct xseg_known_stream *stream, xseg_stream handle)
{
    return xseg_stream_is_known(stream) &&
           atomic_load_explicit(&stream->handle, memory_order_acquire) == handle;
}

/* The entry of a known stream, by one lookup without the lock; or NULL, also for handles that need
 * a conversion or a query. */
static inline struct xseg_known_stream *xseg_streams_find_fast(struct xseg_streams *streams,
                                                               xseg_stream handle)
{
    struct xseg_known_stream *stream = xseg_streams_chain(streams, (uintptr_t)handle);

    /* The handles 1 and 2 of the default streams. */
    if ((uintptr_t)handle - 1 < 2)
        return NULL;
    while (stream != NULL && !xseg_stream_matches(stream, handle))
        stream = atomic_load_explicit(&stream->next, memory_order_acquire);
    return stream;
}

/* Mark a stream as retiring.  The caller holds PENDING. */
void xseg_streams_mark_retiring(struct xseg_streams *streams, struct xseg_known_stream *stream);

/* Mark a retiring stream as retired, so that a new stream can reuse its entry.  On a lost device
 * known streams are retired as well.  The caller holds PENDING. */
void xseg_streams_mark_retired(struct xseg_streams *streams, struct xseg_known_stream *stream);

uint64_t xseg_streams_host_bytes(const struct xseg_streams *streams);

/* Visit all entries, including retired ones. */
void xseg_streams_for_each(struct xseg_streams *streams,
                           void (*visit)(void *self, struct xseg_known_stream *stream), void *self);

/* Whether a handle is that of the per-thread default stream; of any default stream. */
bool xseg_streams_is_per_thread(xseg_stream handle);
bool xseg_streams_is_default(xseg_stream handle);

/*
 * Claim a stream for the calling thread, which uses it during a capture.  The driver returns the
 * dependencies of the next node in an internal array, which its next call replaces.  So only the
 * thread that has claimed a captured stream may query them.
 */
void xseg_streams_claim(struct xseg_known_stream *stream);
bool xseg_streams_is_claimed(const struct xseg_known_stream *stream);

/* Whether the calling thread can queue work on a stream: the stream is known, the thread can use
 * its handle, and the stream is not being captured. */
bool xseg_streams_accepts_work(struct xseg_context *context,
                               const struct xseg_known_stream *stream);

/* Query whether the handle of an entry denotes its stream in the calling thread.  The result is
 * false for per-thread default streams of other threads. */
xseg_status xseg_streams_can_use(struct xseg_context *context,
                                 const struct xseg_known_stream *stream, bool *can_use);

/* --- Stream lookup cache. --- */

/* Entries of the cache: one page.  If two streams have the same index, the first one remains. */
#define XSEG_STREAM_CACHE_ENTRIES 512u
_Static_assert(XSEG_STREAM_CACHE_ENTRIES == 1u << (64 - 55),
               "xseg_stream_cache_index() keeps the upper nine bits");

struct xseg_stream_cache {
    struct xseg_mutex *lock;                     /* TABLE */
    _Atomic(struct xseg_known_stream *) *stream; /* [XSEG_STREAM_CACHE_ENTRIES] */
    bool is_wiped_on_fork;                       /* else the cache remains empty */
};

/* Returns false on host allocation failure. */
bool xseg_stream_cache_init(struct xseg_stream_cache *stream_cache, struct xseg_mutex *lock);
/* Destroy a cache, also one that is all zeros or whose initialization failed. */
void xseg_stream_cache_fini(struct xseg_stream_cache *stream_cache);

static inline unsigned xseg_stream_cache_index(int ordinal, xseg_stream handle)
{
    return (unsigned)(((uintptr_t)handle + (unsigned)ordinal) * UINT64_C(0x9E3779B97F4A7C15) >> 55);
}

/* The cached stream of a device and a handle, or NULL. */
static inline struct xseg_known_stream *
xseg_stream_cache_find(const struct xseg_stream_cache *stream_cache, int ordinal,
                       xseg_stream handle)
{
    struct xseg_known_stream *stream = atomic_load_explicit(
        &stream_cache->stream[xseg_stream_cache_index(ordinal, handle)], memory_order_acquire);

    return stream != NULL &&
                   atomic_load_explicit(&stream->handle, memory_order_relaxed) == handle &&
                   stream->ordinal == ordinal
               ? stream
               : NULL;
}

/* Whether a stream with this handle can be added. */
static inline bool xseg_stream_cache_has_space(const struct xseg_stream_cache *stream_cache,
                                               int ordinal, xseg_stream handle)
{
    return stream_cache->is_wiped_on_fork &&
           atomic_load_explicit(&stream_cache->stream[xseg_stream_cache_index(ordinal, handle)],
                                memory_order_relaxed) == NULL;
}

/* Add a stream, unless its entry is occupied.  The caller holds TABLE of the allocator. */
void xseg_stream_cache_add(struct xseg_stream_cache *stream_cache,
                           struct xseg_known_stream *stream);

/* Remove a stream; remove all streams of a device, or of all devices if `ordinal` is negative.
 * Both functions acquire TABLE of the allocator. */
void xseg_stream_cache_drop(struct xseg_stream_cache *stream_cache,
                            const struct xseg_known_stream *stream);
void xseg_stream_cache_drop_all(struct xseg_stream_cache *stream_cache, int ordinal);

/* --- Topology of captures. --- */

/*
 * Capture topology: which nodes of a graph under capture precede all further work of a stream.
 *
 * A block that other streams used, and that was freed during a capture, can be reused on its own
 * stream in the same capture once the graph orders all these uses before the next node of the
 * stream.
 *
 *     a --> b --> c       b: terminal of the stream, its last node so far
 *           ^             a, b, d precede all further work of the stream
 *     d ----+
 *
 * A *view* is one stream in one capture.  It has the set of nodes that precede the stream.  When
 * the terminals of the stream change, the view walks the graph backward from the new terminals.  It
 * stops at nodes that are in the set already, so each node is visited once: O(new nodes and
 * edges).
 *
 * A *waiter* is a block with the terminals, at its free, of all streams that used the block.  It is
 * ready when all these nodes precede the stream.  Each node has a list of its waiters, so ready
 * waiters are found without a search.
 *
 * A node that cannot be visited, because of a host allocation failure or a driver error, does not
 * enter the set.  Then a waiter waits longer, until the end of the capture at most.
 *
 * Locking: the caller holds the lock of pending blocks (rank PENDING).
 */

struct xseg_topology_view {
    struct xseg_list link;
    uint64_t capture; /* ID of the capture */
    const struct xseg_known_stream *stream;
    struct xseg_hash_table nodes; /* that precede the stream, or have waiters */
    struct xseg_list ready;       /* waiters that are ready */
};

/* A node for which a waiter waits. */
struct xseg_topology_mark {
    xseg_node node;
    struct xseg_topology_waiter *waiter;
    struct xseg_topology_mark *next; /* of this node */
};

struct xseg_topology_waiter {
    struct xseg_list link; /* in the ready list of the view, or in none */
    size_t missing;        /* number of marks whose nodes do not precede the stream yet */
};

/* The views of a device. */
struct xseg_topology {
    struct xseg_list views;
};

void xseg_topology_init(struct xseg_topology *topology);

/* Destroy all views.  There are no waiters. */
void xseg_topology_fini(struct xseg_topology *topology);

/* Find or add the view of a stream in a capture.  Returns NULL on host allocation failure. */
struct xseg_topology_view *xseg_topology_get(struct xseg_topology *topology, uint64_t capture,
                                             const struct xseg_known_stream *stream);

/* Advance a view to the current terminals of its stream.  Waiters may become ready. */
void xseg_topology_advance(struct xseg_topology_view *view, struct xseg_context *context,
                           const xseg_node *terminals, size_t count);

/* Wait for the nodes of all marks, at least one.  The waiter may be ready immediately.  On host
 * allocation failure nothing waits, and the result is false. */
bool xseg_topology_wait(struct xseg_topology_view *view, struct xseg_topology_waiter *waiter,
                        struct xseg_topology_mark *marks, size_t count);

#endif
