/* SPDX-License-Identifier: MIT */
/* Observers: some free blocks under memory pressure, and one traces all blocks of the program. */
#include "tests/stress/exercise/world.h"
#include "tests/support/rng.h"

static void check_mapping(void *context, const struct xseg_mapping *mapping)
{
    const struct world *world = context;

    CHECK(mapping->bytes > 0 && mapping->base != NULL);
    CHECK(mapping->device >= 0 && mapping->device < (int)world->options.devices);
}

/* Free blocks of the calling worker, whose request needs memory. */
static bool free_blocks(void *context, const struct xseg_oom_info *oom)
{
    struct worker *worker = world_worker;

    (void)context;
    CHECK(oom->attempt < XSEG_LOW_MEMORY_CALLS_MAX);
    CHECK(oom->message != NULL);
    if (worker == NULL || chance(worker, 3))
        return false;
    for (unsigned i = 0; i < 4; i++) {
        struct block *block = any_block(worker);

        if (block != NULL)
            free_block(worker, block);
    }
    return true;
}

static void check_oom(void *context, const struct xseg_oom_info *oom)
{
    (void)context;
    CHECK(oom->status == XSEG_ERR_NO_MEMORY || oom->status == XSEG_ERR_LIMIT ||
          oom->status == XSEG_ERR_NO_ADDRESSES);
}

void step_observe(struct worker *worker)
{
    struct world *world = worker->world;
    struct xseg_observer observer = {sizeof(observer), .context = world};
    uint64_t *id = &worker->observer[below(worker, WORLD_OBSERVERS)];
    const uint64_t epoch = fault_epoch();

    if (*id != 0) {
        CHECK_OK(CALL(xseg_observer_remove, world->allocator, *id));
        failure_record(worker->number, "remove observer %llu", (unsigned long long)*id);
        *id = 0;
        return;
    }
    if (chance(worker, 2))
        observer.on_unmap = observer.on_map = check_mapping;
    if (chance(worker, 2))
        observer.on_out_of_memory = observer.on_rejected = check_oom;
    if (chance(worker, 2) || (observer.on_unmap == NULL && observer.on_out_of_memory == NULL))
        observer.on_low_memory = free_blocks;
    const xseg_status status = CALL(xseg_observer_add, world->allocator, &observer, id);
    failure_record(worker->number, "add observer: %d, %llu", status, (unsigned long long)*id);
    CHECK(status == XSEG_OK || !fault_was_none(epoch));
    for (unsigned i = 0; i < world->options.devices; i++)
        atomic_fetch_or(&world->device_features[i], FEATURE(OBSERVER));
}

/* --- The trace of all blocks. --- */

static void count_traced(void *context, const struct xseg_trace_entry *entry)
{
    struct world *world = context;

    if (entry->action == XSEG_TRACE_ALLOC) {
        atomic_fetch_add(&world->traced, 1);
        atomic_fetch_add(&world->traced_bytes, (int64_t)entry->bytes);
    } else if (entry->action == XSEG_TRACE_FREE_REQUESTED) {
        atomic_fetch_sub(&world->traced, 1);
        atomic_fetch_sub(&world->traced_bytes, (int64_t)entry->bytes);
    }
}

void world_add_tracer(struct world *world)
{
    const struct xseg_observer observer = {sizeof(observer), .context = world,
                                           .on_trace = count_traced};

    CHECK_OK(CALL(xseg_observer_add, world->allocator, &observer, &world->tracer));
}
