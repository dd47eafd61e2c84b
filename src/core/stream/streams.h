/* SPDX-License-Identifier: MIT */
/*
 * The streams that a device has met.
 *
 * A stream is known by its handle, which leads to its entry through a table that is read without a
 * lock, so that a hit asks the driver nothing.  The legacy default stream has two handles, NULL and 1.
 * The handle of the per-thread default stream, 2, means another stream in each thread, so the driver is
 * asked for its number each time.
 *
 * A stream that is *gone* is found no more, since its handle may come again for another one.  Its entry
 * stays, because blocks and arenas lead to it.  Once the stream has passed, the entry becomes that of the
 * next stream that the device meets, whatever its handle: with the entry that stream gets the arenas, and
 * what is cached in them.  So there are never more entries than streams were known at one time, and
 * nothing is moved or searched when streams come and go.
 *
 * The table doubles as entries become many.  Smaller tables stay until the device closes, for those who
 * are reading them; all of them together are no larger than the last.  While entries move, a reader may
 * miss one that is there: whoever must know looks again under TABLE.
 *
 * Locking: TABLE guards the table, the lists, and changes of handles and numbers; finding needs no lock.
 * PENDING guards the list of those that leave.  Entries stay until the device closes.
 */
#ifndef XSEG_CORE_STREAMS_H
#define XSEG_CORE_STREAMS_H

#include <stdatomic.h>

#include "src/base/list.h"
#include "src/base/lock.h"
#include "vmm/driver.h"

#define XSEG_STREAMS_BUCKETS 64u /* of the first table; a power of two */

struct xseg_arena;

enum xseg_stream_state {
    XSEG_STREAM_THERE,
    XSEG_STREAM_LEAVING, /* gone, but its work has not finished */
    XSEG_STREAM_GONE     /* gone, and its work has finished */
};

/* How plain requests of a stream are served, as far as that is known beforehand. */
enum xseg_stream_way {
    XSEG_WAY_ASK,        /* the configuration */
    XSEG_WAY_CLASSIC,    /* from classic segments, no max_split_size_mb */
    XSEG_WAY_EXPANDABLE, /* the same, expandable */
};

struct xseg_known_stream {
    _Atomic(struct xseg_known_stream *) next; /* in its bucket */
    struct xseg_known_stream *made_before;    /* the entry */
    _Atomic(xseg_stream) handle;
    int ordinal;                       /* of its device */
    _Atomic(enum xseg_stream_way) way; /* with a shortcut; written under TABLE */
    atomic_uint_fast64_t number;       /* never used for another stream */
    _Atomic(enum xseg_stream_state) state;
    /* The thread that named it last during a capture; see xseg_streams_claim(). */
    _Atomic(const void *) thread;
    bool is_asked;          /* is to be asked whether it is idle; guarded by GROWTH */
    atomic_bool has_arenas; /* it has had one */
    xseg_event last;        /* LEAVING: behind all its work; guarded by PENDING */
    struct xseg_list going; /* its place among those that leave, or are gone */
    /* The default pool's arenas: small, large.  Made when first needed. */
    _Atomic(struct xseg_arena *) arena[2];
    /* Freed blocks that wait for it, oldest first, and its place among the streams that are waited
     * for, by rank; guarded by PENDING. */
    struct xseg_list uses, waiting;
    uint64_t rank;
};

struct xseg_streams_table {
    struct xseg_streams_table *smaller; /* the one before it; NULL: none */
    unsigned shift;                     /* of a hash: what is left is a bucket */
    _Atomic(struct xseg_known_stream *) *bucket;
};

struct xseg_streams {
    struct xseg_context *context;
    struct xseg_lock *table_lock; /* TABLE */
    _Atomic(struct xseg_streams_table *) table;
    struct xseg_streams_table first;
    _Atomic(struct xseg_known_stream *) first_bucket[XSEG_STREAMS_BUCKETS];
    _Atomic(struct xseg_known_stream *) last_made; /* entry; leads to all others */
    atomic_uint_fast64_t count;                    /* of entries */
    atomic_uint leaving_count;
    struct xseg_list leaving; /* in the order in which they are to be asked about */
    struct xseg_list gone[2]; /* those that never had an arena; those that had */
};

static inline bool xseg_stream_is_there(const struct xseg_known_stream *stream)
{
    return __builtin_expect(
        atomic_load_explicit(&stream->state, memory_order_acquire) == XSEG_STREAM_THERE, 1);
}

void xseg_streams_init(struct xseg_streams *streams, struct xseg_context *context,
                       struct xseg_lock *table_lock);
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

/* Whether an entry is that of a handle whose stream is there.  In this order: an entry that is there for
 * the next stream has the handle of that. */
static inline bool xseg_stream_is_of(const struct xseg_known_stream *stream, xseg_stream handle)
{
    return xseg_stream_is_there(stream) &&
           atomic_load_explicit(&stream->handle, memory_order_relaxed) == handle;
}

/* The entry of a stream that is there and was met before, without a question; else NULL, also for
 * handles that need one. */
static inline struct xseg_known_stream *xseg_streams_find_plain(struct xseg_streams *streams,
                                                                xseg_stream handle)
{
    struct xseg_known_stream *stream = xseg_streams_first(streams, (uintptr_t)handle);

    /* The default streams' other handles. */
    if ((uintptr_t)handle - 1 < 2)
        return NULL;
    while (stream != NULL && !xseg_stream_is_of(stream, handle))
        stream = atomic_load_explicit(&stream->next, memory_order_relaxed);
    return stream;
}

/* A stream leaves.  PENDING is held. */
void xseg_streams_note_leaving(struct xseg_streams *streams, struct xseg_known_stream *stream);

/* A stream is gone and its work has passed: its entry serves the next new stream.  Of a lost device, streams that
 * never left are told of here as well.  PENDING is held. */
void xseg_streams_note_gone(struct xseg_streams *streams, struct xseg_known_stream *stream);

/* Host bytes of entries and tables. */
uint64_t xseg_streams_host_bytes(const struct xseg_streams *streams);

/* Visit every entry, also of streams that are gone. */
void xseg_streams_visit(struct xseg_streams *streams,
                        void (*visit)(void *self, struct xseg_known_stream *stream), void *self);

/* Whether a handle means another stream in each thread; whether it is a default stream at all. */
bool xseg_streams_is_per_thread(xseg_stream handle);
bool xseg_streams_is_default(xseg_stream handle);

/*
 * What a stream's next node depends on can only be asked for while nobody else captures on the stream:
 * the driver's answer is its own array.  So whoever names a stream during a capture claims it for the
 * calling thread, and only that thread asks.
 */
void xseg_streams_claim(struct xseg_known_stream *stream);
bool xseg_streams_is_claimed(const struct xseg_known_stream *stream);

/*
 * Whether the calling thread can queue work on a stream that outlives the call: the stream is there,
 * the thread can name it, and it is not being captured.
 */
bool xseg_streams_is_open(struct xseg_context *context, const struct xseg_known_stream *stream);

/* Whether the calling thread can name this stream: others' per-thread streams it cannot. */
xseg_status xseg_streams_can_name(struct xseg_context *context,
                                  const struct xseg_known_stream *stream, bool *can);

#endif
