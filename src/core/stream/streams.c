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

/* The table doubles at this mean length of its chains. */
#define MAX_CHAIN_LENGTH 2u

_Static_assert((XSEG_STREAMS_BUCKETS & (XSEG_STREAMS_BUCKETS - 1)) == 0,
               "the index of a bucket is the upper bits of a hash");

static size_t count_buckets(const struct xseg_streams_table *table)
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
    xseg_list_init(&streams->retiring);
    for (unsigned i = 0; i < XSEG_COUNT_OF(streams->retired); i++)
        xseg_list_init(&streams->retired[i]);
}

void xseg_streams_fini(struct xseg_streams *streams)
{
    struct xseg_known_stream *stream = atomic_load(&streams->newest), *older;
    struct xseg_streams_table *table = atomic_load(&streams->table), *smaller;

    for (; stream != NULL; stream = older) {
        older = stream->older;
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

/* --- Hash table. --- */

/* The key of a stream.  Per-thread default streams share a handle, so their ID is the key. */
static uint64_t key_of_stream(xseg_stream handle, uint64_t id)
{
    return (uintptr_t)handle == PER_THREAD_HANDLE ? id : (uintptr_t)handle;
}

static _Atomic(struct xseg_known_stream *) *bucket_of(const struct xseg_streams_table *table,
                                                      const struct xseg_known_stream *stream)
{
    const uint64_t key = key_of_stream(stream->handle, stream->id);

    return &table->bucket[key * UINT64_C(0x9E3779B97F4A7C15) >> table->shift];
}

static struct xseg_known_stream *find_entry(const struct xseg_streams *streams, xseg_stream handle,
                                            uint64_t id)
{
    struct xseg_known_stream *stream = xseg_streams_chain(streams, key_of_stream(handle, id));

    while (stream != NULL && (!xseg_stream_matches(stream, handle) ||
                              ((uintptr_t)handle == PER_THREAD_HANDLE && stream->id != id)))
        stream = atomic_load_explicit(&stream->next, memory_order_acquire);
    return stream;
}

static void insert_into_bucket(const struct xseg_streams_table *table,
                               struct xseg_known_stream *stream)
{
    _Atomic(struct xseg_known_stream *) *bucket = bucket_of(table, stream);

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_TABLE));
    atomic_store(&stream->next, atomic_load_explicit(bucket, memory_order_relaxed));
    atomic_store_explicit(bucket, stream, memory_order_release);
}

static void remove_from_bucket(const struct xseg_streams_table *table,
                               const struct xseg_known_stream *stream)
{
    _Atomic(struct xseg_known_stream *) *link = bucket_of(table, stream);

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_TABLE));
    while (atomic_load(link) != stream)
        link = &atomic_load(link)->next;
    atomic_store_explicit(link, atomic_load(&stream->next), memory_order_release);
}

/* Double the table.  On host allocation failure chains become longer instead. */
static void grow_table(struct xseg_streams *streams)
{
    struct xseg_streams_table *smaller = atomic_load(&streams->table);
    struct xseg_streams_table *table = malloc(sizeof(*table));

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_TABLE));
    if (table == NULL)
        return;
    table->smaller = smaller;
    table->shift = smaller->shift - 1;
    table->bucket = calloc(count_buckets(table), sizeof(*table->bucket));
    if (table->bucket == NULL) {
        free(table);
        return;
    }
    for (struct xseg_known_stream *stream = atomic_load(&streams->newest); stream != NULL;
         stream = stream->older)
        insert_into_bucket(table, stream);
    atomic_store_explicit(&streams->table, table, memory_order_release);
}

/* --- Entries. --- */

/* Remove a retired entry, or return NULL.  Entries with arenas are reused first. */
static struct xseg_known_stream *pop_retired_entry(struct xseg_streams *streams)
{
    struct xseg_list *retired =
        xseg_list_is_empty(&streams->retired[1]) ? &streams->retired[0] : &streams->retired[1];

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_TABLE));
    if (xseg_list_is_empty(retired))
        return NULL;
    struct xseg_known_stream *stream =
        XSEG_LIST_FIRST(retired, struct xseg_known_stream, retire_link);
    XSEG_ASSERT(atomic_load(&stream->state) == XSEG_STREAM_RETIRED);
    xseg_list_remove(&stream->retire_link);
    remove_from_bucket(atomic_load(&streams->table), stream);
    return stream;
}

static struct xseg_known_stream *create_entry(struct xseg_streams *streams)
{
    struct xseg_known_stream *stream = calloc(1, sizeof(*stream));

    if (stream == NULL)
        return NULL;
    stream->ordinal = streams->context->ordinal;
    xseg_list_init(&stream->uses);
    xseg_list_init(&stream->waiting);
    xseg_list_init(&stream->batches);
    xseg_list_init(&stream->batch_link);
    xseg_list_init(&stream->retire_link);
    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_TABLE));
    if (atomic_load(&streams->count) >=
        MAX_CHAIN_LENGTH * (uint64_t)count_buckets(atomic_load(&streams->table)))
        grow_table(streams);
    atomic_fetch_add(&streams->count, 1);
    stream->older = atomic_load(&streams->newest);
    atomic_store_explicit(&streams->newest, stream, memory_order_release);
    return stream;
}

static xseg_status add_stream(struct xseg_streams *streams, xseg_stream handle, uint64_t id,
                              struct xseg_known_stream **out)
{
    struct xseg_known_stream *stream = pop_retired_entry(streams);

    if (stream == NULL)
        stream = create_entry(streams);
    if (stream == NULL)
        return xseg_fail(XSEG_ERR_HOST_MEMORY, "out of host memory, stream entry");
    XSEG_ASSERT(xseg_list_is_empty(&stream->retire_link));
    XSEG_ASSERT(stream->retire_event == NULL);
    /* A concurrent lookup may return the entry as soon as the handle is stored, so all other
     * members except the state are stored first. */
    stream->id = id;
    atomic_store(&stream->thread, NULL);
    atomic_store_explicit(&stream->handle, handle, memory_order_release);
    insert_into_bucket(atomic_load(&streams->table), stream);
    atomic_store_explicit(&stream->state, XSEG_STREAM_KNOWN, memory_order_release);
    *out = stream;
    return XSEG_OK;
}

void xseg_streams_mark_retiring(struct xseg_streams *streams, struct xseg_known_stream *stream)
{
    XSEG_ASSERT(xseg_stream_is_known(stream) && xseg_list_is_empty(&stream->retire_link));
    xseg_list_insert(&streams->retiring, &stream->retire_link);
    atomic_fetch_add(&streams->retiring_count, 1);
    atomic_store_explicit(&stream->state, XSEG_STREAM_RETIRING, memory_order_release);
}

void xseg_streams_mark_retired(struct xseg_streams *streams, struct xseg_known_stream *stream)
{
    XSEG_ASSERT(atomic_load(&stream->state) != XSEG_STREAM_RETIRED);
    XSEG_ASSERT(stream->retire_event == NULL);
    if (atomic_load(&stream->state) == XSEG_STREAM_RETIRING)
        atomic_fetch_sub(&streams->retiring_count, 1);
    xseg_mutex_lock(streams->table_lock);
    xseg_list_remove(&stream->retire_link);
    atomic_store_explicit(&stream->state, XSEG_STREAM_RETIRED, memory_order_release);
    xseg_list_insert(&streams->retired[atomic_load(&stream->has_arenas)], &stream->retire_link);
    xseg_mutex_unlock(streams->table_lock);
}

uint64_t xseg_streams_host_bytes(const struct xseg_streams *streams)
{
    const struct xseg_streams_table *table = atomic_load(&streams->table);
    uint64_t bytes = atomic_load(&streams->count) * sizeof(struct xseg_known_stream);

    for (; table != &streams->first; table = table->smaller)
        bytes += sizeof(*table) + count_buckets(table) * sizeof(*table->bucket);
    return bytes;
}

static xseg_status find_or_add_locked(struct xseg_streams *streams, xseg_stream handle,
                                      struct xseg_known_stream **out)
{
    const bool is_per_thread = (uintptr_t)handle == PER_THREAD_HANDLE;
    xseg_status status = XSEG_OK;
    uint64_t id = 0;

    xseg_mutex_lock(streams->table_lock);
    struct xseg_known_stream *stream = is_per_thread ? NULL : find_entry(streams, handle, 0);
    if (stream == NULL)
        status = xseg_driver_stream_id(streams->context, handle, &id);
    if (status != XSEG_OK)
        xseg_fail_append("; pass an existing stream of device %d instead of %p",
                         streams->context->ordinal, (void *)handle);
    else if (is_per_thread)
        stream = find_entry(streams, handle, id);
    if (stream != NULL)
        *out = stream;
    else if (status == XSEG_OK)
        status = add_stream(streams, handle, id, out);
    xseg_mutex_unlock(streams->table_lock);
    return status;
}

struct xseg_known_stream *xseg_streams_find(struct xseg_streams *streams, xseg_stream handle)
{
    struct xseg_known_stream *stream;

    XSEG_ASSERT((uintptr_t)handle != PER_THREAD_HANDLE);
    handle = (uintptr_t)handle == LEGACY_HANDLE ? NULL : handle;
    stream = find_entry(streams, handle, 0);
    if (__builtin_expect(stream != NULL, 1))
        return stream;
    xseg_mutex_lock(streams->table_lock);
    stream = find_entry(streams, handle, 0);
    xseg_mutex_unlock(streams->table_lock);
    return stream;
}

void xseg_streams_for_each(struct xseg_streams *streams,
                           void (*visit)(void *self, struct xseg_known_stream *stream), void *self)
{
    struct xseg_known_stream *stream = atomic_load_explicit(&streams->newest, memory_order_acquire);

    for (; stream != NULL; stream = stream->older)
        visit(self, stream);
}

xseg_status xseg_streams_find_or_add(struct xseg_streams *streams, xseg_stream handle,
                                     struct xseg_known_stream **out)
{
    if ((uintptr_t)handle == LEGACY_HANDLE)
        handle = NULL;
    if (__builtin_expect((uintptr_t)handle != PER_THREAD_HANDLE, 1)) {
        struct xseg_known_stream *stream = find_entry(streams, handle, 0);

        if (__builtin_expect(stream != NULL, 1)) {
            *out = stream;
            return XSEG_OK;
        }
    }
    return find_or_add_locked(streams, handle, out);
}

/* --- Use by threads. --- */

/* The address of this variable identifies a thread. */
static _Thread_local char this_thread;

void xseg_streams_claim(struct xseg_known_stream *stream)
{
    atomic_store_explicit(&stream->thread, &this_thread, memory_order_relaxed);
}

bool xseg_streams_is_claimed(const struct xseg_known_stream *stream)
{
    return atomic_load_explicit(&stream->thread, memory_order_relaxed) == &this_thread;
}

bool xseg_streams_accepts_work(struct xseg_context *context, const struct xseg_known_stream *stream)
{
    struct xseg_capture_info info;
    bool can_use = false;

    return xseg_stream_is_known(stream) &&
           xseg_streams_can_use(context, stream, &can_use) == XSEG_OK && can_use &&
           xseg_driver_capture_info(context, stream->handle, &info) == XSEG_OK && info.id == 0 &&
           !info.is_invalid;
}

xseg_status xseg_streams_can_use(struct xseg_context *context,
                                 const struct xseg_known_stream *stream, bool *can_use)
{
    uint64_t id = stream->id;
    xseg_status status = XSEG_OK;

    if ((uintptr_t)stream->handle == PER_THREAD_HANDLE)
        status = xseg_driver_stream_id(context, stream->handle, &id);
    *can_use = id == stream->id;
    return status;
}

/* --- Stream lookup cache. --- */

#define CACHE_BYTES (XSEG_STREAM_CACHE_ENTRIES * sizeof(_Atomic(struct xseg_known_stream *)))

bool xseg_stream_cache_init(struct xseg_stream_cache *stream_cache, struct xseg_mutex *lock)
{
    XSEG_ASSERT(lock != NULL && lock->rank == XSEG_RANK_TABLE);
    stream_cache->lock = lock;
    stream_cache->stream = xseg_wipe_on_fork_alloc(CACHE_BYTES, &stream_cache->is_wiped_on_fork);
    return stream_cache->stream != NULL;
}

void xseg_stream_cache_fini(struct xseg_stream_cache *stream_cache)
{
    xseg_wipe_on_fork_free(stream_cache->stream, CACHE_BYTES);
    stream_cache->stream = NULL;
}

void xseg_stream_cache_add(struct xseg_stream_cache *stream_cache, struct xseg_known_stream *stream)
{
    _Atomic(struct xseg_known_stream *) *entry =
        &stream_cache->stream[xseg_stream_cache_index(stream->ordinal, stream->handle)];

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_TABLE));
    XSEG_ASSERT(stream->ordinal >= 0 && stream_cache->stream != NULL);
    if (xseg_stream_cache_has_space(stream_cache, stream->ordinal, stream->handle))
        atomic_store_explicit(entry, stream, memory_order_release);
}

void xseg_stream_cache_drop(struct xseg_stream_cache *stream_cache,
                            const struct xseg_known_stream *stream)
{
    _Atomic(struct xseg_known_stream *) *entry =
        &stream_cache->stream[xseg_stream_cache_index(stream->ordinal, stream->handle)];

    xseg_mutex_lock(stream_cache->lock);
    if (atomic_load_explicit(entry, memory_order_relaxed) == stream)
        atomic_store_explicit(entry, NULL, memory_order_release);
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

/* --- Topology of captures. --- */

/* The state of a node, in the table of a view. */
struct node_state {
    uint64_t node;                    /* key: the address of the node */
    bool precedes;                    /* the node precedes all further work of the stream */
    struct xseg_topology_mark *marks; /* of the waiters of this node */
};

/* A stack of nodes whose dependencies will be visited. */
struct node_stack {
    xseg_node *node;
    size_t count, capacity;
};

void xseg_topology_init(struct xseg_topology *topology)
{
    xseg_list_init(&topology->views);
}

void xseg_topology_fini(struct xseg_topology *topology)
{
    XSEG_LIST_FOR_SAFE(node, &topology->views)
    {
        struct xseg_topology_view *view = XSEG_CONTAINER(node, struct xseg_topology_view, link);

        xseg_list_remove(&view->link);
        xseg_hash_table_fini(&view->nodes);
        free(view);
    }
}

struct xseg_topology_view *xseg_topology_get(struct xseg_topology *topology, uint64_t capture,
                                             const struct xseg_known_stream *stream)
{
    XSEG_ASSERT(capture != 0 && stream != NULL);
    XSEG_LIST_FOR(node, &topology->views)
    {
        struct xseg_topology_view *view = XSEG_CONTAINER(node, struct xseg_topology_view, link);

        if (view->capture == capture && view->stream == stream)
            return view;
    }
    struct xseg_topology_view *view = calloc(1, sizeof(*view));
    if (view == NULL)
        return NULL;
    view->capture = capture;
    view->stream = stream;
    xseg_hash_table_init(&view->nodes, sizeof(struct node_state));
    xseg_list_init(&view->ready);
    xseg_list_insert(&topology->views, &view->link);
    return view;
}

/* --- Graph walk. --- */

static bool push_node(struct node_stack *stack, xseg_node node)
{
    if (stack->count == stack->capacity) {
        const size_t capacity = stack->capacity == 0 ? 64 : stack->capacity * 2;
        xseg_node *grown = realloc(stack->node, capacity * sizeof(xseg_node));

        if (grown == NULL)
            return false;
        stack->node = grown;
        stack->capacity = capacity;
    }
    XSEG_ASSERT(stack->count < stack->capacity);
    stack->node[stack->count++] = node;
    return true;
}

/* Record that a node precedes the stream, and push it to visit its dependencies. */
static void add_preceding_node(struct xseg_topology_view *view, struct node_stack *stack,
                               xseg_node node)
{
    struct node_state *state = xseg_hash_table_find_or_add(&view->nodes, (uintptr_t)node);

    if (state == NULL || state->precedes || !push_node(stack, node))
        return;
    state->precedes = true;
    for (struct xseg_topology_mark *mark = state->marks; mark != NULL; mark = mark->next) {
        XSEG_ASSERT(mark->waiter->missing != 0);
        if (--mark->waiter->missing == 0)
            xseg_list_insert(&view->ready, &mark->waiter->link);
    }
    state->marks = NULL;
}

/* Record that the dependencies of a node precede the stream. */
static void visit_dependencies(struct xseg_topology_view *view, struct node_stack *stack,
                               struct xseg_context *context, xseg_node node)
{
    xseg_node inline_nodes[16], *dependencies = inline_nodes;
    size_t count = sizeof(inline_nodes) / sizeof(inline_nodes[0]);

    if (xseg_driver_node_dependencies(context, node, inline_nodes, &count) != XSEG_OK)
        return;
    if (count >= sizeof(inline_nodes) / sizeof(inline_nodes[0])) {
        /* The array may be too small. */
        if (xseg_driver_node_dependencies(context, node, NULL, &count) != XSEG_OK)
            return;
        dependencies = calloc(count, sizeof(xseg_node));
        if (dependencies == NULL ||
            xseg_driver_node_dependencies(context, node, dependencies, &count) != XSEG_OK)
            count = 0;
    }
    for (size_t i = 0; i < count; i++)
        add_preceding_node(view, stack, dependencies[i]);
    if (dependencies != inline_nodes)
        free(dependencies);
}

void xseg_topology_advance(struct xseg_topology_view *view, struct xseg_context *context,
                           const xseg_node *terminals, size_t count)
{
    struct node_stack stack = {NULL, 0, 0};

    XSEG_ASSERT(count == 0 || terminals != NULL);
    /* The driver owns the array, and the next query replaces it, so it is read first. */
    for (size_t i = 0; i < count; i++)
        add_preceding_node(view, &stack, terminals[i]);
    while (stack.count > 0)
        visit_dependencies(view, &stack, context, stack.node[--stack.count]);
    free(stack.node);
}

bool xseg_topology_wait(struct xseg_topology_view *view, struct xseg_topology_waiter *waiter,
                        struct xseg_topology_mark *marks, size_t count)
{
    XSEG_ASSERT(count != 0 && marks != NULL);
    xseg_list_init(&waiter->link);
    waiter->missing = 0;
    for (size_t i = 0; i < count; i++)
        if (xseg_hash_table_find_or_add(&view->nodes, (uintptr_t)marks[i].node) == NULL)
            return false;
    for (size_t i = 0; i < count; i++) {
        struct node_state *state = xseg_hash_table_find(&view->nodes, (uintptr_t)marks[i].node);

        if (state->precedes)
            continue;
        marks[i].waiter = waiter;
        marks[i].next = state->marks;
        state->marks = &marks[i];
        waiter->missing++;
    }
    XSEG_ASSERT(waiter->missing <= count);
    if (waiter->missing == 0)
        xseg_list_insert(&view->ready, &waiter->link);
    return true;
}
