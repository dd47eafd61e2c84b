/* SPDX-License-Identifier: MIT */
#include "src/core/stream/streams.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/check.h"
#include "src/base/error.h"
#include "src/base/host_memory.h"

/* Handles of default streams: CU_STREAM_LEGACY and CU_STREAM_PER_THREAD of the driver. */
#define LEGACY_HANDLE     ((uintptr_t)1)
#define PER_THREAD_HANDLE ((uintptr_t)2)

/* Mean number of entries per bucket above which the table doubles. */
#define MAX_IN_BUCKET 2u

_Static_assert((XSEG_STREAMS_BUCKETS & (XSEG_STREAMS_BUCKETS - 1)) == 0,
               "a bucket is the upper bits of a hash");

static size_t buckets_of(const struct xseg_streams_table *table)
{
    XSEG_ASSERT(table->shift > 0 && table->shift < 64);
    return (size_t)1 << (64 - table->shift);
}

void xseg_streams_init(struct xseg_streams *streams, struct xseg_context *context,
                       struct xseg_mutex *table_lock)
{
    XSEG_ASSERT(table_lock->rank == XSEG_RANK_TABLE);
    memset(streams, 0, sizeof(*streams));
    streams->context = context;
    streams->table_lock = table_lock;
    streams->first.bucket = streams->first_bucket;
    streams->first.shift = 64 - (unsigned)__builtin_ctz(XSEG_STREAMS_BUCKETS);
    atomic_init(&streams->table, &streams->first);
    xseg_list_init(&streams->pending_unmaps);
    for (unsigned i = 0; i < XSEG_COUNT_OF(streams->gone); i++)
        xseg_list_init(&streams->gone[i]);
}

void xseg_streams_fini(struct xseg_streams *streams)
{
    struct xseg_known_stream *stream = atomic_load(&streams->last_made), *before;
    struct xseg_streams_table *table = atomic_load(&streams->table), *smaller;

    for (; stream != NULL; stream = before) {
        before = stream->made_before;
        free(stream);
    }
    for (; table != &streams->first; table = smaller) {
        smaller = table->smaller;
        free(table->bucket);
        free(table);
    }
}

bool xseg_streams_is_per_thread(xseg_stream handle)
{
    return (uintptr_t)handle == PER_THREAD_HANDLE;
}

bool xseg_streams_is_default(xseg_stream handle)
{
    return (uintptr_t)handle <= PER_THREAD_HANDLE;
}

/* --- The table. --- */

/* The key of an entry.  Per-thread streams share a handle, so their number is the key. */
static uint64_t key_of(xseg_stream handle, uint64_t number)
{
    return xseg_streams_is_per_thread(handle) ? number : (uintptr_t)handle;
}

static _Atomic(struct xseg_known_stream *) *bucket_of(const struct xseg_streams_table *table,
                                                      const struct xseg_known_stream *stream)
{
    const uint64_t key = key_of(stream->handle, stream->number);

    return &table->bucket[key * UINT64_C(0x9E3779B97F4A7C15) >> table->shift];
}

static struct xseg_known_stream *find(const struct xseg_streams *streams, xseg_stream handle,
                                      uint64_t number)
{
    struct xseg_known_stream *stream = xseg_streams_first(streams, key_of(handle, number));

    while (stream != NULL && (!xseg_stream_is_of(stream, handle) ||
                              (xseg_streams_is_per_thread(handle) && stream->number != number)))
        stream = atomic_load_explicit(&stream->next, memory_order_acquire);
    return stream;
}

static void link_in(const struct xseg_streams_table *table, struct xseg_known_stream *stream)
{
    _Atomic(struct xseg_known_stream *) *bucket = bucket_of(table, stream);

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_TABLE));
    atomic_store(&stream->next, atomic_load_explicit(bucket, memory_order_relaxed));
    atomic_store_explicit(bucket, stream, memory_order_release);
}

static void link_out(const struct xseg_streams_table *table, const struct xseg_known_stream *stream)
{
    _Atomic(struct xseg_known_stream *) *place = bucket_of(table, stream);

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_TABLE));
    for (; atomic_load(place) != stream; place = &atomic_load(place)->next)
        ;
    atomic_store_explicit(place, atomic_load(&stream->next), memory_order_release);
}

/* Double the table.  Without host memory buckets get longer. */
static void grow(struct xseg_streams *streams)
{
    struct xseg_streams_table *before = atomic_load(&streams->table);
    struct xseg_streams_table *table = malloc(sizeof(*table));

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_TABLE));
    if (table == NULL)
        return;
    table->smaller = before;
    table->shift = before->shift - 1;
    table->bucket = calloc(buckets_of(table), sizeof(*table->bucket));
    if (table->bucket == NULL) {
        free(table);
        return;
    }
    for (struct xseg_known_stream *stream = atomic_load(&streams->last_made); stream != NULL;
         stream = stream->made_before)
        link_in(table, stream);
    atomic_store_explicit(&streams->table, table, memory_order_release);
}

/* --- Entries. --- */

/* Take the entry of a stream that is gone, for a new stream; entries with arenas come first.
 * NULL: there is none. */
static struct xseg_known_stream *take_gone(struct xseg_streams *streams)
{
    struct xseg_list *gone =
        xseg_list_is_empty(&streams->gone[1]) ? &streams->gone[0] : &streams->gone[1];

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_TABLE));
    if (xseg_list_is_empty(gone))
        return NULL;
    struct xseg_known_stream *stream = XSEG_LIST_FIRST(gone, struct xseg_known_stream, going);
    XSEG_ASSERT(atomic_load(&stream->state) == XSEG_STREAM_RETIRED);
    xseg_list_remove(&stream->going);
    link_out(atomic_load(&streams->table), stream);
    return stream;
}

static struct xseg_known_stream *make(struct xseg_streams *streams)
{
    struct xseg_known_stream *stream = calloc(1, sizeof(*stream));

    if (stream == NULL)
        return NULL;
    stream->ordinal = streams->context->ordinal;
    xseg_list_init(&stream->uses);
    xseg_list_init(&stream->waiting);
    xseg_list_init(&stream->batches);
    xseg_list_init(&stream->leaves);
    xseg_list_init(&stream->going);
    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_TABLE));
    if (atomic_load(&streams->count) >=
        MAX_IN_BUCKET * (uint64_t)buckets_of(atomic_load(&streams->table)))
        grow(streams);
    atomic_fetch_add(&streams->count, 1);
    stream->made_before = atomic_load(&streams->last_made);
    atomic_store_explicit(&streams->last_made, stream, memory_order_release);
    return stream;
}

static xseg_status add(struct xseg_streams *streams, xseg_stream handle, uint64_t number,
                       struct xseg_known_stream **out)
{
    struct xseg_known_stream *stream = take_gone(streams);

    if (stream == NULL)
        stream = make(streams);
    if (stream == NULL)
        return xseg_fail(XSEG_ERR_HOST_MEMORY, "out of host memory, stream entry");
    XSEG_ASSERT(xseg_list_is_empty(&stream->going));
    XSEG_ASSERT(stream->last == NULL);
    /* A thread that found the entry as that of the last stream may take it for this one as soon as the handle is
     * there. */
    stream->number = number;
    atomic_store(&stream->thread, NULL);
    atomic_store_explicit(&stream->handle, handle, memory_order_release);
    link_in(atomic_load(&streams->table), stream);
    atomic_store_explicit(&stream->state, XSEG_STREAM_KNOWN, memory_order_release);
    *out = stream;
    return XSEG_OK;
}

void xseg_streams_mark_retiring(struct xseg_streams *streams, struct xseg_known_stream *stream)
{
    XSEG_ASSERT(xseg_stream_is_known(stream) && xseg_list_is_empty(&stream->going));
    xseg_list_insert(&streams->pending_unmaps, &stream->going);
    atomic_fetch_add(&streams->leaving_count, 1);
    atomic_store_explicit(&stream->state, XSEG_STREAM_RETIRING, memory_order_release);
}

void xseg_streams_mark_retired(struct xseg_streams *streams, struct xseg_known_stream *stream)
{
    XSEG_ASSERT(atomic_load(&stream->state) != XSEG_STREAM_RETIRED);
    XSEG_ASSERT(stream->last == NULL);
    if (atomic_load(&stream->state) == XSEG_STREAM_RETIRING)
        atomic_fetch_sub(&streams->leaving_count, 1);
    xseg_mutex_lock(streams->table_lock);
    xseg_list_remove(&stream->going);
    atomic_store_explicit(&stream->state, XSEG_STREAM_RETIRED, memory_order_release);
    xseg_list_insert(&streams->gone[atomic_load(&stream->has_arenas)], &stream->going);
    xseg_mutex_unlock(streams->table_lock);
}

uint64_t xseg_streams_host_bytes(const struct xseg_streams *streams)
{
    const struct xseg_streams_table *table = atomic_load(&streams->table);
    uint64_t bytes = atomic_load(&streams->count) * sizeof(struct xseg_known_stream);

    for (; table != &streams->first; table = table->smaller)
        bytes += sizeof(*table) + buckets_of(table) * sizeof(*table->bucket);
    return bytes;
}

static xseg_status get_slowly(struct xseg_streams *streams, xseg_stream handle,
                              struct xseg_known_stream **out)
{
    const bool is_per_thread = xseg_streams_is_per_thread(handle);
    xseg_status status = XSEG_OK;
    uint64_t number = 0;

    xseg_mutex_lock(streams->table_lock);
    struct xseg_known_stream *known = is_per_thread ? NULL : find(streams, handle, 0);
    if (known == NULL)
        status = xseg_driver_stream_id(streams->context, handle, &number);
    if (status != XSEG_OK)
        xseg_fail_append("; pass an existing stream of device %d instead of %p",
                         streams->context->ordinal, (void *)handle);
    else if (is_per_thread)
        known = find(streams, handle, number);
    if (known != NULL)
        *out = known;
    else if (status == XSEG_OK)
        status = add(streams, handle, number, out);
    xseg_mutex_unlock(streams->table_lock);
    return status;
}

struct xseg_known_stream *xseg_streams_find(struct xseg_streams *streams, xseg_stream handle)
{
    struct xseg_known_stream *stream;

    XSEG_ASSERT(!xseg_streams_is_per_thread(handle));
    handle = (uintptr_t)handle == LEGACY_HANDLE ? NULL : handle;
    stream = find(streams, handle, 0);
    if (__builtin_expect(stream != NULL, 1))
        return stream;
    xseg_mutex_lock(streams->table_lock);
    stream = find(streams, handle, 0);
    xseg_mutex_unlock(streams->table_lock);
    return stream;
}

void xseg_streams_visit(struct xseg_streams *streams,
                        void (*visit)(void *self, struct xseg_known_stream *stream), void *self)
{
    struct xseg_known_stream *stream =
        atomic_load_explicit(&streams->last_made, memory_order_acquire);

    for (; stream != NULL; stream = stream->made_before)
        visit(self, stream);
}

xseg_status xseg_streams_get(struct xseg_streams *streams, xseg_stream handle,
                             struct xseg_known_stream **out)
{
    if ((uintptr_t)handle == LEGACY_HANDLE)
        handle = NULL;
    if (__builtin_expect(!xseg_streams_is_per_thread(handle), 1)) {
        struct xseg_known_stream *stream = find(streams, handle, 0);

        if (__builtin_expect(stream != NULL, 1)) {
            *out = stream;
            return XSEG_OK;
        }
    }
    return get_slowly(streams, handle, out);
}

/* --- What threads may do with them. --- */

/* A variable whose address identifies the thread. */
static _Thread_local char this_thread;

void xseg_streams_claim(struct xseg_known_stream *stream)
{
    atomic_store_explicit(&stream->thread, &this_thread, memory_order_relaxed);
}

bool xseg_streams_is_claimed(const struct xseg_known_stream *stream)
{
    return atomic_load_explicit(&stream->thread, memory_order_relaxed) == &this_thread;
}

bool xseg_streams_is_open(struct xseg_context *context, const struct xseg_known_stream *stream)
{
    struct xseg_capture_info info;
    bool can_name = false;

    return xseg_stream_is_known(stream) &&
           xseg_streams_can_name(context, stream, &can_name) == XSEG_OK && can_name &&
           xseg_driver_capture_info(context, stream->handle, &info) == XSEG_OK && info.id == 0 &&
           !info.is_invalid;
}

xseg_status xseg_streams_can_name(struct xseg_context *context,
                                  const struct xseg_known_stream *stream, bool *can)
{
    uint64_t number = stream->number;
    xseg_status status = XSEG_OK;

    if (xseg_streams_is_per_thread(stream->handle))
        status = xseg_driver_stream_id(context, stream->handle, &number);
    *can = number == stream->number;
    return status;
}

/* --- Shortcuts. --- */

#define SHORTCUTS_BYTES (XSEG_STREAM_CACHE_ENTRIES * sizeof(_Atomic(struct xseg_known_stream *)))

bool xseg_stream_cache_init(struct xseg_stream_cache *stream_cache, struct xseg_mutex *lock)
{
    XSEG_ASSERT(lock != NULL && lock->rank == XSEG_RANK_TABLE);
    stream_cache->lock = lock;
    stream_cache->stream = xseg_wipe_on_fork_alloc(SHORTCUTS_BYTES, &stream_cache->are_wiped);
    return stream_cache->stream != NULL;
}

void xseg_stream_cache_fini(struct xseg_stream_cache *stream_cache)
{
    xseg_wipe_on_fork_free(stream_cache->stream, SHORTCUTS_BYTES);
    stream_cache->stream = NULL;
}

void xseg_stream_cache_add(struct xseg_stream_cache *stream_cache, struct xseg_known_stream *stream)
{
    _Atomic(struct xseg_known_stream *) *place =
        &stream_cache->stream[xseg_stream_cache_index(stream->ordinal, stream->handle)];

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_TABLE));
    XSEG_ASSERT(stream->ordinal >= 0 && stream_cache->stream != NULL);
    if (xseg_stream_cache_has_space(stream_cache, stream->ordinal, stream->handle))
        atomic_store_explicit(place, stream, memory_order_release);
}

void xseg_stream_cache_drop(struct xseg_stream_cache *stream_cache,
                            const struct xseg_known_stream *stream)
{
    _Atomic(struct xseg_known_stream *) *place =
        &stream_cache->stream[xseg_stream_cache_index(stream->ordinal, stream->handle)];

    xseg_mutex_lock(stream_cache->lock);
    if (atomic_load_explicit(place, memory_order_relaxed) == stream)
        atomic_store_explicit(place, NULL, memory_order_release);
    xseg_mutex_unlock(stream_cache->lock);
}

void xseg_stream_cache_drop_all(struct xseg_stream_cache *stream_cache, int ordinal)
{
    xseg_mutex_lock(stream_cache->lock);
    for (unsigned i = 0; i < XSEG_STREAM_CACHE_ENTRIES; i++) {
        const struct xseg_known_stream *stream =
            atomic_load_explicit(&stream_cache->stream[i], memory_order_relaxed);

        if (stream != NULL && (ordinal < 0 || stream->ordinal == ordinal))
            atomic_store_explicit(&stream_cache->stream[i], NULL, memory_order_release);
    }
    xseg_mutex_unlock(stream_cache->lock);
}
