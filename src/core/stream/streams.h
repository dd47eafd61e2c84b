/* SPDX-License-Identifier: MIT */
/*
 * Streams: the table of all streams that a device has met, and shortcuts of an allocator into these tables.
 *
 * A stream is known by its handle, which leads to its entry through a table that is read without a
 * lock, so that a hit asks the driver nothing.  The legacy default stream has two handles, NULL and 1.
 * The handle of the per-thread default stream, 2, means another stream in each thread, so the driver is
 * asked for its number each time.
 *
 * A stream that is *gone* is not found any more, since another stream may get its handle.  Its entry
 * stays, because blocks and arenas point to it.  Once all work of the stream has passed, the entry
 * becomes that of the next stream that the device meets, whatever its handle: with the entry that stream
 * gets the arenas and their cached memory.  So there are never more entries than streams were known at
 * one time, and memory is neither moved nor searched when streams come and go.
 *
 * The table doubles as entries become many.  Smaller tables stay until the device closes, for threads
 * that are reading them; together they are no larger than the last table.  While entries move, a reader
 * may miss an entry; a caller that has to be sure looks again under TABLE.
 *
 * A *shortcut* leads from the handle of a stream to its entry, for plain requests.  A request is plain if its
 * configuration has plain hits, its device is open, its stream is known, and no route or capture could send it
 * elsewhere.  These facts change rarely, so they are checked in advance: a stream has a shortcut only while all of
 * them hold.  A call that makes one of them false drops the shortcut before it returns.  A plain request that took the
 * longer way (hit_stream.c) makes the shortcut again.
 *
 * The kernel wipes the shortcuts in a forked child, so a hit need not check for a fork.  Where the kernel cannot do
 * that, there are no shortcuts.
 *
 * Invariants, but for changes by a call that has not returned:
 *   SHORT-1  a stream with a shortcut is there, and its device is open and has no route; the
 *            configuration in force has plain hits, and the stream's `way`
 *            is the way that this configuration asks for.
 *
 * Locking: TABLE of the device guards the table, the lists, and changes of handles and numbers, TABLE of the allocator
 * guards changes of the shortcuts; finding needs no lock.  PENDING guards the list of leaving streams.  Entries stay
 * until the device closes.
 */
#ifndef XSEG_CORE_STREAMS_H
#define XSEG_CORE_STREAMS_H

#include <stdatomic.h>

#include "src/base/list.h"
#include "src/base/mutex.h"
#include "vmm/driver.h"

#define XSEG_STREAMS_BUCKETS 64u /* of the first table; a power of two */

struct xseg_arena;

enum xseg_stream_state {
    XSEG_STREAM_KNOWN,
    XSEG_STREAM_RETIRING, /* the stream is gone, but its work has not finished */
    XSEG_STREAM_RETIRED   /* the stream is gone, and its work has finished */
};

/* How plain requests of a stream are served, as far as a shortcut says. */
enum xseg_fast_path_mode {
    XSEG_FAST_PATH_BY_CONFIG,  /* ask the configuration, which may want notes */
    XSEG_FAST_PATH_CLASSIC,    /* from classic segments, no max_split_size_mb */
    XSEG_FAST_PATH_EXPANDABLE, /* from expandable segments, no max_split_size_mb */
};

struct xseg_known_stream {
    _Atomic(struct xseg_known_stream *) next; /* next entry in the bucket */
    struct xseg_known_stream *made_before;    /* the entry that was made before this one */
    _Atomic(xseg_stream) handle;
    int ordinal; /* of its device */
    _Atomic(enum xseg_fast_path_mode)
        fast_path_mode;          /* valid with a shortcut; written under TABLE */
    atomic_uint_fast64_t number; /* never used for another stream */
    _Atomic(enum xseg_stream_state) state;
    /* The thread that named the stream last during a capture; see xseg_streams_claim(). */
    _Atomic(const void *) thread;
    bool
        is_queried; /* the driver is to be asked whether the stream is idle; guarded by the device memory lock */
    atomic_bool has_arenas; /* the stream has had an arena */
    xseg_event last; /* of a LEAVING stream: an event behind all its work; guarded by PENDING */
    struct xseg_list going; /* in the list of streams that leave, or are gone */
    /* The default pool's arenas: small, large.  Made when first needed. */
    _Atomic(struct xseg_arena *) arena[2];
    /* Freed blocks that wait for the stream, oldest first, and its place among the streams that
     * are waited for, by rank; guarded by PENDING. */
    struct xseg_list uses, waiting;
    uint64_t rank;
    /* Batches of leaving memory with an event of the stream, oldest first, and its place among the streams that have some;
     * guarded by the device memory lock. */
    struct xseg_list batches, leaves;
};

struct xseg_streams_table {
    struct xseg_streams_table *smaller; /* the table before this one; NULL: none */
    unsigned shift; /* right shift of a hash that leaves the index of a bucket */
    _Atomic(struct xseg_known_stream *) *bucket;
};

struct xseg_streams {
    struct xseg_context *context;
    struct xseg_mutex *table_lock; /* TABLE */
    _Atomic(struct xseg_streams_table *) table;
    struct xseg_streams_table first;
    _Atomic(struct xseg_known_stream *) first_bucket[XSEG_STREAMS_BUCKETS];
    _Atomic(struct xseg_known_stream *) last_made; /* last entry made; leads to all others */
    atomic_uint_fast64_t count;                    /* of entries */
    atomic_uint leaving_count;
    struct xseg_list pending_unmaps; /* in the order in which the driver is asked about them */
    struct xseg_list gone[2];        /* streams that never had an arena; streams that had */
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
 * The entry of a handle, made if the device meets it for the first time.
 *
 * Returns: XSEG_OK, XSEG_ERR_DRIVER (no such stream), XSEG_ERR_HOST_MEMORY
 * Cost:    none for a stream that is known; else cuStreamGetId.  Always cuStreamGetId for the
 *          per-thread default stream.
 */
xseg_status xseg_streams_get(struct xseg_streams *streams, xseg_stream handle,
                             struct xseg_known_stream **out);

/* The entry of a handle whose stream is known; else NULL.  Not for the per-thread default stream.  TABLE
 * is taken where the table does not have it at once. */
struct xseg_known_stream *xseg_streams_find(struct xseg_streams *streams, xseg_stream handle);

/* The first entry of the bucket of a handle, or of the number of a per-thread stream, or NULL. */
static inline struct xseg_known_stream *xseg_streams_first(const struct xseg_streams *streams,
                                                           uint64_t key)
{
    const struct xseg_streams_table *table =
        atomic_load_explicit(&streams->table, memory_order_acquire);

    return atomic_load_explicit(&table->bucket[key * UINT64_C(0x9E3779B97F4A7C15) >> table->shift],
                                memory_order_acquire);
}

/* Whether an entry is that of a handle whose stream is there.  The state is read first: an entry
 * that is there for the next stream has the handle of that stream.  Who reads a handle sees the number
 * that was written before it. */
static inline bool xseg_stream_is_of(const struct xseg_known_stream *stream, xseg_stream handle)
{
    return xseg_stream_is_known(stream) &&
           atomic_load_explicit(&stream->handle, memory_order_acquire) == handle;
}

/* The entry of a known stream, without asking the driver; else NULL, also for handles that need
 * a question. */
static inline struct xseg_known_stream *xseg_streams_find_uncaptured(struct xseg_streams *streams,
                                                                     xseg_stream handle)
{
    struct xseg_known_stream *stream = xseg_streams_first(streams, (uintptr_t)handle);

    /* The default streams' other handles. */
    if ((uintptr_t)handle - 1 < 2)
        return NULL;
    while (stream != NULL && !xseg_stream_is_of(stream, handle))
        stream = atomic_load_explicit(&stream->next, memory_order_acquire);
    return stream;
}

/* Note that a stream leaves.  PENDING is held. */
void xseg_streams_mark_retiring(struct xseg_streams *streams, struct xseg_known_stream *stream);

/* Note that a stream is gone and its work has passed: its entry serves the next new stream.  On
 * a lost device, streams that never left are noted here as well.  PENDING is held. */
void xseg_streams_mark_retired(struct xseg_streams *streams, struct xseg_known_stream *stream);

/* Host bytes of entries and tables. */
uint64_t xseg_streams_host_bytes(const struct xseg_streams *streams);

/* Visit every entry, including those of streams that are gone. */
void xseg_streams_visit(struct xseg_streams *streams,
                        void (*visit)(void *self, struct xseg_known_stream *stream), void *self);

/* Whether a handle means another stream in each thread; whether it means a default stream. */
bool xseg_streams_is_per_thread(xseg_stream handle);
bool xseg_streams_is_default(xseg_stream handle);

/*
 * Claim a stream for the calling thread, which has named it during a capture.  The driver answers
 * what the stream's next node depends on with its own array, so only one thread may ask while the
 * stream is captured: the one that claimed it.
 */
void xseg_streams_claim(struct xseg_known_stream *stream);
bool xseg_streams_is_claimed(const struct xseg_known_stream *stream);

/*
 * Whether the calling thread can queue work on a stream that outlives the call: the stream is there,
 * the thread can name it, and it is not being captured.
 */
bool xseg_streams_is_open(struct xseg_context *context, const struct xseg_known_stream *stream);

/* Whether the calling thread can name this stream; it cannot name per-thread streams of others. */
xseg_status xseg_streams_can_name(struct xseg_context *context,
                                  const struct xseg_known_stream *stream, bool *can);

/* --- Shortcuts. --- */

/* Places in the table, one page.  Of streams that share a place, the first one keeps it. */
#define XSEG_STREAM_CACHE_ENTRIES 512u
_Static_assert(XSEG_STREAM_CACHE_ENTRIES == 1u << (64 - 55),
               "xseg_stream_cache_index() keeps the upper nine bits");

struct xseg_stream_cache {
    struct xseg_mutex *lock;                     /* TABLE */
    _Atomic(struct xseg_known_stream *) *stream; /* [XSEG_STREAM_CACHE_ENTRIES] */
    bool are_wiped;                              /* whether a forked child gets the table wiped */
};

/* Returns false without host memory. */
bool xseg_stream_cache_init(struct xseg_stream_cache *stream_cache, struct xseg_mutex *lock);
/* End the table.  The structure may also be all zeros, or one whose init found no host memory. */
void xseg_stream_cache_fini(struct xseg_stream_cache *stream_cache);

static inline unsigned xseg_stream_cache_index(int ordinal, xseg_stream handle)
{
    return (unsigned)(((uintptr_t)handle + (unsigned)ordinal) * UINT64_C(0x9E3779B97F4A7C15) >> 55);
}

/* The stream of a device and a handle, if it has a shortcut; else NULL. */
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

/* Whether a handle's place is empty. */
static inline bool xseg_stream_cache_has_space(const struct xseg_stream_cache *stream_cache,
                                               int ordinal, xseg_stream handle)
{
    return stream_cache->are_wiped &&
           atomic_load_explicit(&stream_cache->stream[xseg_stream_cache_index(ordinal, handle)],
                                memory_order_relaxed) == NULL;
}

/* Add a shortcut to a stream, if its place is empty.  TABLE of the allocator is held. */
void xseg_stream_cache_add(struct xseg_stream_cache *stream_cache,
                           struct xseg_known_stream *stream);

/* Drop the shortcut of a stream; of all streams of a device, or of all devices if `ordinal` is
 * negative.  Takes TABLE of the allocator. */
void xseg_stream_cache_drop(struct xseg_stream_cache *stream_cache,
                            const struct xseg_known_stream *stream);
void xseg_stream_cache_drop_all(struct xseg_stream_cache *stream_cache, int ordinal);

#endif
