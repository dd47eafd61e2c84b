/* SPDX-License-Identifier: MIT */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/stress/exercise/world.h"
#include "tests/support/driver.h"
#include "xseg/sim.h"

/* --- Allocation functions of pools. --- */

static void *custom_alloc(void *context, size_t bytes, int device, xseg_stream stream)
{
    struct world *world = context;
    void *ptr = driver_alloc(device, bytes);

    (void)stream;
    if (ptr != NULL)
        atomic_fetch_add(&world->own_bytes[device], bytes);
    return ptr;
}

static void custom_free(void *context, void *ptr, size_t bytes, int device, xseg_stream stream)
{
    struct world *world = context;

    (void)stream;
    driver_free(device, ptr);
    atomic_fetch_sub(&world->own_bytes[device], bytes);
}

/* --- Creation and release. --- */

static uint64_t draw_options(struct worker *worker, struct xseg_pool_options *options)
{
    struct world *world = worker->world;
    uint64_t features = 0;

    if (chance(worker, 4)) {
        options->limit_bytes = (1 + below(worker, 200)) * MIB;
        features |= FEATURE(POOL_LIMIT);
    }
    if (chance(worker, 4)) {
        options->no_split = true;
        features |= FEATURE(NO_SPLIT);
    }
    if (chance(worker, 4)) {
        options->use_on_oom = true;
        features |= FEATURE(LEND);
    }
    if (chance(worker, 6)) {
        options->memory = (struct xseg_pool_memory){custom_alloc, custom_free, world};
        features |= FEATURE(OWN);
    } else if (chance(worker, 3)) {
        options->exportable = true;
        features |= FEATURE(EXPORTABLE);
    }
    if (options->memory.alloc == NULL) {
        options->rdma = chance(worker, 3);
        options->single_page = chance(worker, 3);
    }
    return features;
}

void step_tag(struct worker *worker)
{
    struct world *world = worker->world;
    struct xseg_pool_options options = {sizeof(options)};
    unsigned at = 0;

    while (at < WORLD_TAGS && worker->tag[at] != NULL)
        at++;
    if (at == WORLD_TAGS || world->tags > WORLD_TAGS_MOST - 2 * WORLD_WORKERS)
        return;
    struct tag *tag = calloc(1, sizeof(*tag));
    CHECK(tag != NULL);
    tag->device = any_device(worker);
    tag->features = draw_options(worker, &options);
    tag->holders = 1;
    (void)pthread_rwlock_init(&tag->contents, NULL);
    const uint64_t epoch = fault_epoch();
    const xseg_status status =
        CALL(xseg_pool_create, world->allocator, tag->device,
             chance(worker, 8) && tag->features == 0 ? NULL : &options, &tag->pool);
    failure_note(worker->number,
                 "pool on device %d, limit %llu, no_split %d, use_on_oom %d, own %d, "
                 "exportable %d, rdma %d, single_page %d: %d, %p",
                 tag->device, (unsigned long long)options.limit_bytes, options.no_split,
                 options.use_on_oom, options.memory.alloc != NULL, options.exportable, options.rdma,
                 options.single_page, status, (void *)tag->pool);
    CHECK(status == XSEG_OK || !fault_was_none(epoch) ||
          (status == XSEG_ERR_UNSUPPORTED && options.exportable));
    if (status != XSEG_OK) {
        (void)pthread_rwlock_destroy(&tag->contents);
        free(tag);
        return;
    }
    atomic_store_explicit(&worker->tag[at], tag, memory_order_release);
    /* The slot is written before the count, so that a reader of the count finds the slot. */
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    (void)pthread_mutex_lock(&lock);
    atomic_store_explicit(&world->tag[world->tags], tag, memory_order_release);
    atomic_fetch_add_explicit(&world->tags, 1, memory_order_release);
    (void)pthread_mutex_unlock(&lock);
}

void step_retain(struct worker *worker)
{
    struct tag *own = any_own_tag(worker);

    if (own != NULL && own->holders < 4) {
        CHECK_OK(CALL(xseg_pool_retain, own->pool));
        own->holders++;
    }
    if (own != NULL) {
        const enum xseg_pool_setting setting =
            chance(worker, 2) ? XSEG_POOL_NO_SPLIT : XSEG_POOL_USE_ON_OOM;

        CHECK_OK(CALL(xseg_pool_set, own->pool, setting, chance(worker, 2)));
        atomic_fetch_or(&own->features,
                        setting == XSEG_POOL_NO_SPLIT ? FEATURE(NO_SPLIT) : FEATURE(LEND));
    }
}

static void end_checkpoint(struct tag *tag)
{
    CALL_PLAIN(xseg_checkpoint_destroy, tag->checkpoint);
    tag->checkpoint = NULL;
    free(tag->saved);
    tag->saved = NULL;
    atomic_fetch_and(&tag->features, ~FEATURE(CHECKPOINT));
}

static void end_route(struct tag *tag)
{
    CHECK_OK(CALL(xseg_route_end, tag->pool));
    tag->is_routed = false;
    atomic_fetch_and(&tag->features, ~FEATURE(ROUTE));
}

void end_left_routes(struct worker *worker)
{
    if (worker->left_routed != NULL && worker->left_routed->is_routed)
        end_route(worker->left_routed);
    worker->left_routed = NULL;
}

void release_tag(struct worker *worker, unsigned at)
{
    struct tag *tag = worker->tag[at];

    /* The library retains the pool during a capture or a route. */
    if (tag->is_capturing && chance(worker, 2))
        end_capture(worker);
    /* It is impossible to wait for the graph that runs there. */
    if (tag->replayed_on != NULL && tag->replayed_on->is_captured)
        return;
    if (tag->is_routed && worker->left_routed == NULL && chance(worker, 2))
        worker->left_routed = tag;
    else if (tag->is_routed)
        end_route(tag);
    if (tag->holders == 1) {
        /* The graph is destroyed first. */
        if (tag->replayed_on != NULL)
            driver_finish(tag->device, tag->replayed_on->handle);
        tag->replayed_on = NULL;
        end_checkpoint(tag);
        atomic_fetch_or(&tag->features, FEATURE(RELEASED));
    }
    CHECK_OK(CALL(xseg_pool_release, tag->pool));
    failure_note(worker->number, "release pool %p, held %u times", (void *)tag->pool, tag->holders);
    note_features(worker->world, FEATURE(RELEASED), tag->device, tag, NULL, true);
    if (--tag->holders == 0)
        worker->tag[at] = NULL;
}

void step_release(struct worker *worker)
{
    const unsigned at = (unsigned)below(worker, WORLD_TAGS);

    if (worker->tag[at] != NULL)
        release_tag(worker, at);
}

/* A block is allocated, freed, and requested at its address, where another thread may have been faster. */
void step_place(struct worker *worker)
{
    struct xseg_allocator *allocator = worker->world->allocator;
    struct xseg_request request = {sizeof(request)};
    struct tag *tag = any_own_tag(worker);
    void *ptr = NULL, *again = NULL;

    if (tag == NULL)
        return;
    request.pool = tag->pool;
    request.bytes = any_size(worker);
    request.stream = any_stream(worker, tag->device)->handle;
    if (CALL(xseg_alloc_with, allocator, &request, &ptr) != XSEG_OK || ptr == NULL)
        return;
    while (CALL(xseg_free, allocator, ptr) != XSEG_OK)
        ;
    const uint64_t epoch = fault_epoch();
    const xseg_status status =
        CALL(xseg_alloc_at, tag->pool, request.bytes, request.stream, ptr, &again);
    failure_note(worker->number, "alloc %zu bytes of pool %p at %p: %d", request.bytes,
                 (void *)tag->pool, ptr, status);
    CHECK(status == XSEG_OK || status == XSEG_ERR_BUSY || status == XSEG_ERR_PAUSED ||
          !fault_was_none(epoch));
    CHECK(again == (status == XSEG_OK ? ptr : NULL));
    while (status == XSEG_OK && CALL(xseg_free, allocator, again) != XSEG_OK)
        ;
}

/* --- Routes. --- */

static bool accepts(void *context, xseg_stream stream)
{
    const struct world *world = context;

    /* Accept some streams, and other streams in another program. */
    return ((uintptr_t)stream / 16 + world->options.seed) % 3 != 0;
}

void step_route(struct worker *worker)
{
    struct tag *tag = any_own_tag(worker);
    const uint64_t epoch = fault_epoch();

    if (tag == NULL)
        return;
    const xseg_status status = chance(worker, 2)
                                   ? CALL(xseg_route_begin, tag->pool, accepts, worker->world)
                                   : CALL(xseg_route_begin, tag->pool, NULL, NULL);
    failure_note(worker->number, "route to pool %p: %d", (void *)tag->pool, status);
    note_features(worker->world, FEATURE(ROUTE), tag->device, tag, NULL, status == XSEG_OK);
    CHECK(status == XSEG_OK || !fault_was_none(epoch) ||
          (status == XSEG_ERR_BUSY && (tag->is_routed || tag->is_capturing)));
    if (status == XSEG_OK) {
        tag->is_routed = true;
        atomic_fetch_or(&tag->features, FEATURE(ROUTE));
    }
}

void step_route_end(struct worker *worker)
{
    struct tag *tag = any_own_tag(worker);

    end_left_routes(worker);
    if (tag == NULL)
        return;
    CHECK(CALL(xseg_route_end, tag->pool) == (tag->is_routed ? XSEG_OK : XSEG_ERR_ARGUMENT));
    failure_note(worker->number, "end of the route to pool %p", (void *)tag->pool);
    tag->is_routed = false;
    atomic_fetch_and(&tag->features, ~FEATURE(ROUTE));
}

/* --- Marks. --- */

/* This thread does not use a marked device for a few calls; other threads continue. */
void step_mark(struct worker *worker)
{
    struct xseg_allocator *allocator = worker->world->allocator;
    const int device = any_device(worker);
    const uint64_t epoch = fault_epoch();
    const xseg_status status = CALL(xseg_capture_mark, allocator, device);

    failure_note(worker->number, "mark of device %d: %d", device, status);
    CHECK(status == XSEG_OK || !fault_was_none(epoch));
    if (status != XSEG_OK)
        return;
    step_route(worker);
    step_alloc(worker);
    step_free(worker);
    step_route_end(worker);
    CHECK_OK(CALL(xseg_capture_unmark, allocator, device));
    failure_note(worker->number, "mark of device %d is taken back", device);
}

/* --- Pauses. --- */

/* The caller holds tag->contents. */
static void pause_here(struct worker *worker, struct tag *tag)
{
    static const struct {
        enum xseg_keep keep;
        uint64_t feature;
        const char *name;
    } ways[] = {{XSEG_KEEP_NOTHING, FEATURE(AWAY_NOTHING), "nothing"},
                {XSEG_KEEP_HOST, FEATURE(AWAY_HOST), "on the host"},
                {XSEG_KEEP_FILE, FEATURE(AWAY_FILE), "in a file"}};
    static atomic_uint files;
    const uint64_t epoch = fault_epoch(), way = below(worker, COUNT_OF(ways));
    const uint64_t feature = ways[way].feature;
    const char *folder = getenv("TMPDIR");
    char file[256];

    (void)snprintf(file, sizeof(file), "%s/xseg-exercise-%d-%u", folder != NULL ? folder : P_tmpdir,
                   (int)getpid(), atomic_fetch_add(&files, 1));
    const xseg_status status = CALL(xseg_pool_pause, tag->pool, ways[way].keep,
                                    ways[way].keep == XSEG_KEEP_FILE ? file : NULL);
    failure_note(worker->number, "pause pool %p, keeping %s: %d", (void *)tag->pool, ways[way].name,
                 status);
    feature_combine(feature | (features_of(worker->world, tag->device, tag, NULL) & ~FEATURES_AWAY),
                    status == XSEG_OK);
    CHECK(status == XSEG_OK || status == XSEG_ERR_BUSY || status == XSEG_ERR_UNSUPPORTED ||
          !fault_was_none(epoch) || (status == XSEG_ERR_PAUSED && tag->is_evicted));
    if (status == XSEG_ERR_PAUSED || (status != XSEG_OK && fault_was_none(epoch)))
        return;
    /* If the rollback failed as well, the pool is paused, and resume restores everything. */
    tag->is_evicted = true;
    tag->may_be_paused = status != XSEG_OK;
    if (feature == FEATURE(AWAY_NOTHING) && status == XSEG_OK)
        atomic_fetch_add(&tag->epoch, 1);
    atomic_fetch_and(&tag->features, ~FEATURES_AWAY);
    atomic_fetch_or(&tag->features, feature);
}

void step_pause(struct worker *worker)
{
    struct tag *tag = any_own_tag(worker);

    if (tag == NULL || pthread_rwlock_trywrlock(&tag->contents) != 0)
        return;
    if (!chance(worker, 4))
        finish_streams(worker);
    pause_here(worker, tag);
    (void)pthread_rwlock_unlock(&tag->contents);
}

void step_resume(struct worker *worker)
{
    struct tag *tag = any_own_tag(worker);

    if (tag == NULL || pthread_rwlock_trywrlock(&tag->contents) != 0)
        return;
    const uint64_t epoch = fault_epoch();
    const xseg_status status = CALL(xseg_pool_resume, tag->pool);
    failure_note(worker->number, "resume pool %p: %d", (void *)tag->pool, status);
    note_features(worker->world, 0, tag->device, tag, NULL, status == XSEG_OK);
    if (!tag->is_evicted)
        CHECK(status == XSEG_ERR_ARGUMENT);
    else
        CHECK(status == XSEG_OK || status == XSEG_ERR_NO_MEMORY || status == XSEG_ERR_LIMIT ||
              status == XSEG_ERR_BUSY || !fault_was_none(epoch) ||
              (status == XSEG_ERR_ARGUMENT && tag->may_be_paused));
    if (status == XSEG_OK || status == XSEG_ERR_ARGUMENT) {
        tag->is_evicted = tag->may_be_paused = false;
        atomic_fetch_and(&tag->features, ~FEATURES_AWAY);
    }
    (void)pthread_rwlock_unlock(&tag->contents);
}

/* --- Checkpoints.  The caller holds world->lock for writing, because blocks of all workers are accessed. --- */

/* The allocated blocks of a pool; ownership passes to the caller. */
static struct saved *live_blocks(struct world *world, const struct tag *tag, unsigned *count)
{
    struct saved *saved = calloc(world->options.threads * WORLD_BLOCKS, sizeof(*saved));

    CHECK(saved != NULL);
    *count = 0;
    for (unsigned k = 0; k < world->options.threads; k++)
        for (unsigned i = 0; i < WORLD_BLOCKS; i++) {
            const struct block *block = &world->worker[k].block[i];

            if (block->ptr != NULL && block->tag == tag)
                saved[(*count)++] = (struct saved){block->ptr, block->bytes};
        }
    return saved;
}

void step_checkpoint(struct worker *worker)
{
    struct tag *tag = any_own_tag(worker);
    const uint64_t epoch = fault_epoch();

    if (tag == NULL)
        return;
    if (tag->checkpoint != NULL)
        end_checkpoint(tag);
    finish_streams(worker);
    const xseg_status status = CALL(xseg_pool_checkpoint, tag->pool, &tag->checkpoint);
    failure_note(worker->number, "checkpoint of pool %p: %d", (void *)tag->pool, status);
    note_features(worker->world, FEATURE(CHECKPOINT), tag->device, tag, NULL, status == XSEG_OK);
    CHECK(status == XSEG_OK || status == XSEG_ERR_BUSY || !fault_was_none(epoch));
    if (status != XSEG_OK)
        return;
    atomic_fetch_or(&tag->features, FEATURE(CHECKPOINT));
    tag->saved = live_blocks(worker->world, tag, &tag->saved_count);
}

struct restoring {
    struct worker *worker;
    struct tag *tag;
    unsigned freed, live;
};

static void remove_block(struct restoring *restoring, const void *ptr)
{
    struct world *world = restoring->worker->world;

    for (unsigned k = 0; k < world->options.threads; k++)
        for (unsigned i = 0; i < WORLD_BLOCKS; i++) {
            struct block *block = &world->worker[k].block[i];

            if (block->ptr == ptr) {
                CHECK(block->tag == restoring->tag);
                block->ptr = NULL;
                restoring->freed++;
                return;
            }
        }
    failure("restore frees %p, which no worker has", ptr);
}

static void add_block(struct restoring *restoring, char *ptr)
{
    const struct tag *tag = restoring->tag;
    struct block *block = free_block(restoring->worker);

    for (unsigned i = 0; i < tag->saved_count; i++) {
        if (tag->saved[i].ptr != ptr)
            continue;
        restoring->live++;
        if (block == NULL) {
            CHECK_OK(CALL(xseg_free, restoring->worker->world->allocator, ptr));
            return;
        }
        struct xseg_block_info info = {sizeof(info)};

        CHECK_OK(CALL(xseg_block_query, restoring->worker->world->allocator, ptr, &info));
        *block = (struct block){.ptr = ptr,
                                .bytes = tag->saved[i].bytes,
                                .device = tag->device,
                                .tag = restoring->tag,
                                .home = find_stream(restoring->worker, tag->device, info.stream),
                                .features = FEATURE(RESTORE)};
        block->last = block->home;
        block->is_out_of_reach = block->home == NULL;
        return;
    }
    failure("restore allocates %p, which is not in the checkpoint", (void *)ptr);
}

static void moved(void *context, void *ptr, bool freed)
{
    if (freed)
        remove_block(context, ptr);
    else
        add_block(context, ptr);
}

void step_restore(struct worker *worker)
{
    struct tag *tag = any_own_tag(worker);
    struct restoring restoring = {worker, tag, 0, 0};
    const uint64_t epoch = fault_epoch();

    if (tag == NULL || tag->checkpoint == NULL)
        return;
    finish_streams(worker);
    unsigned before = 0;
    free(live_blocks(worker->world, tag, &before));
    const xseg_status status =
        CALL(xseg_pool_restore, tag->pool, tag->checkpoint, moved, &restoring);
    failure_note(worker->number, "restore pool %p: %d", (void *)tag->pool, status);
    note_features(worker->world, FEATURE(RESTORE), tag->device, tag, NULL, status == XSEG_OK);
    CHECK(status == XSEG_OK || status == XSEG_ERR_BUSY || !fault_was_none(epoch) ||
          (status == XSEG_ERR_PAUSED && tag->is_evicted));
    CHECK(restoring.freed == (status == XSEG_OK ? before : 0));
    CHECK(restoring.live == (status == XSEG_OK ? tag->saved_count : 0));
}

void step_holds(struct worker *worker)
{
    struct world *world = worker->world;
    struct tag *tag = any_own_tag(worker);
    void *ptrs[WORLD_WORKERS * WORLD_BLOCKS];
    bool exactly = false;

    if (tag == NULL)
        return;
    unsigned count = 0;
    struct saved *saved = live_blocks(world, tag, &count);
    for (unsigned i = 0; i < count; i++)
        ptrs[i] = saved[i].ptr;
    free(saved);
    CHECK_OK(CALL(xseg_pool_check_live, tag->pool, ptrs, count, &exactly));
    CHECK(exactly);
    if (count == 0)
        return;
    CHECK_OK(CALL(xseg_pool_check_live, tag->pool, ptrs, count - 1, &exactly));
    CHECK(!exactly);
}
