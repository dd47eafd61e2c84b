/* SPDX-License-Identifier: MIT */
#include "src/core/pool/checkpoint.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/check.h"
#include "src/base/error.h"
#include "src/core/block/arena.h"
#include "src/core/block/block.h"
#include "src/core/block/recorder.h"
#include "src/core/config/config.h"
#include "src/core/device/device.h"
#include "src/core/pending/pending.h"
#include "src/core/pool/pause.h"

/* --- Blocks of a pool. --- */

struct block_list {
    struct xseg_checkpoint_block *block;  /* [capacity], allocated */
    struct xseg_checkpoint_block *cached; /* [cached_capacity] */
    uint64_t *users;                      /* [capacity], user words of `block`; NULL: not listed */
    size_t count, capacity, cached_count, cached_capacity;
    size_t pending; /* blocks that are pending free or claimed */
    size_t used;    /* allocated blocks that other streams use */
};

static void add_cached_block(struct block_list *list, struct xseg_arena *arena,
                             const struct xseg_block_view *view)
{
    if (list->cached_count < list->cached_capacity)
        list->cached[list->cached_count] =
            (struct xseg_checkpoint_block){arena, view->base, view->bytes, view->bytes};
    list->cached_count++;
}

static void add_block(struct block_list *list, struct xseg_arena *arena,
                      const struct xseg_block_view *view)
{
    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_ARENA));
    /* A block that the default pool uses is not a block of this pool. */
    if (view->is_fallback)
        return;
    list->pending += view->state == XSEG_BLOCK_PENDING_FREE || view->state == XSEG_BLOCK_CLAIMED;
    if (view->state == XSEG_BLOCK_CACHED)
        add_cached_block(list, arena, view);
    if (view->state != XSEG_BLOCK_ALLOCATED)
        return;
    list->used += view->has_uses;
    if (list->count < list->capacity) {
        list->block[list->count] =
            (struct xseg_checkpoint_block){arena, view->base, view->bytes, view->requested};
        if (list->users != NULL)
            list->users[list->count] = xseg_origins_user(view->extent, view->base);
    }
    list->count++;
}

static void walk_pool(struct xseg_pool *pool, struct block_list *list)
{
    struct xseg_arena *arena = atomic_load_explicit(&pool->arenas, memory_order_acquire);

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    list->count = list->cached_count = list->pending = list->used = 0;
    for (; arena != NULL; arena = atomic_load_explicit(&arena->next, memory_order_acquire)) {
        xseg_biased_lock_lock(&arena->lock);
        XSEG_LIST_FOR(node, &arena->extents)
        {
            const struct xseg_extent *extent = XSEG_CONTAINER(node, struct xseg_extent, link);

            /* Granules of ranges are not blocks: checkpoint_ranges.c lists them. */
            if (extent->elastic != NULL)
                continue;
            XSEG_EXTENT_FOR_EACH(view, extent)
            {
                add_block(list, arena, &view);
            }
        }
        xseg_biased_lock_unlock(&arena->lock);
    }
}

/* List the blocks of a pool in new memory: `header_bytes` for the caller, the allocated blocks, and
 * optionally the cached blocks and the user words.  Only hits of other threads can change the
 * blocks while the device memory lock is held; if the lists became too small, allocate again. */
static xseg_status list_blocks(struct xseg_pool *pool, size_t header_bytes, bool with_cached,
                               bool with_users, void **memory, struct block_list *list)
{
    const size_t entry_bytes = sizeof(*list->block) + (with_users ? sizeof(*list->users) : 0);

    XSEG_ASSERT(*memory == NULL);
    *list = (struct block_list){0};
    walk_pool(pool, list);
    do {
        free(*memory);
        list->capacity = list->count;
        list->cached_capacity = with_cached ? list->cached_count : 0;
        *memory = malloc(header_bytes + (list->capacity + 1) * entry_bytes +
                         list->cached_capacity * sizeof(*list->cached));
        if (*memory == NULL)
            return xseg_fail(XSEG_ERR_HOST_MEMORY, "out of host memory, list of %zu blocks",
                             list->count);
        list->block = (struct xseg_checkpoint_block *)(void *)((char *)*memory + header_bytes);
        list->cached = list->block + list->capacity + 1;
        if (with_users)
            list->users = (uint64_t *)(void *)(list->cached + list->cached_capacity);
        walk_pool(pool, list);
    } while (list->count > list->capacity ||
             (with_cached && list->cached_count > list->cached_capacity));
    XSEG_ASSERT(list->count <= list->capacity);
    return XSEG_OK;
}

/* Check that no capture is active and no block of the pool is pending free or claimed. */
static xseg_status check_idle(struct xseg_pool *pool, const struct block_list *list)
{
    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    if (xseg_pending_captures(pool->device->pending))
        return xseg_pending_fail_capture(pool->device->pending);
    if (list->pending > 0)
        return xseg_fail(
            XSEG_ERR_BUSY,
            "memory of pool %s is pending free, %zu block%s; synchronize the streams that "
            "use it first",
            xseg_pool_label(pool), list->pending, list->pending == 1 ? "" : "s");
    return XSEG_OK;
}

/* --- Take. --- */

xseg_status xseg_checkpoint_take(struct xseg_pool *pool, struct xseg_checkpoint **out)
{
    struct xseg_device *device = pool->device;
    const bool with_users =
        (xseg_history_store_settings(device->history.store) & XSEG_HISTORY_USERS) != 0;
    struct xseg_checkpoint_ranges *ranges = NULL;
    struct xseg_checkpoint *checkpoint = NULL;
    struct block_list list;
    void *memory = NULL;

    xseg_pending_poll(device->pending);
    xseg_mutex_lock(&device->memory_lock);
    xseg_status status = list_blocks(pool, sizeof(*checkpoint), true, with_users, &memory, &list);
    if (status == XSEG_OK)
        status = check_idle(pool, &list);
    if (status == XSEG_OK)
        status = xseg_checkpoint_ranges_take(pool, &ranges);
    xseg_mutex_unlock(&device->memory_lock);
    if (status != XSEG_OK) {
        free(memory);
        return status;
    }
    XSEG_ASSERT(memory != NULL && list.pending == 0);
    checkpoint = memory;
    checkpoint->pool = pool;
    checkpoint->serial = pool->serial;
    memcpy(checkpoint->label, pool->label, sizeof(checkpoint->label));
    checkpoint->count = list.count;
    checkpoint->users = list.users;
    checkpoint->cached = list.cached;
    checkpoint->cached_count = list.cached_count;
    checkpoint->ranges = ranges;
    *out = checkpoint;
    return XSEG_OK;
}

void xseg_checkpoint_free(struct xseg_checkpoint *checkpoint)
{
    if (checkpoint != NULL)
        xseg_checkpoint_ranges_free(checkpoint->ranges);
    free(checkpoint);
}

/* --- Restore. --- */

static struct xseg_extent *find_pool_extent(const struct xseg_pool *pool, uint64_t address)
{
    struct xseg_extent *extent = xseg_page_map_find(pool->device->page_map, address);

    return extent != NULL && address >= extent->segment.base &&
                   address - extent->segment.base < extent->segment.bytes
               ? extent
               : NULL;
}

/* Whether all bytes of a block of the checkpoint are still mapped memory of its arena.
 * fallback: set to an overlapping block that the default pool uses, if there is one */
static bool is_still_mapped(const struct xseg_pool *pool, const struct xseg_checkpoint_block *saved,
                            struct xseg_block_view *fallback)
{
    struct xseg_extent *extent = find_pool_extent(pool, saved->base);
    const uint64_t end = saved->base + saved->bytes;
    /* A range of the same arena may have reserved the addresses of a destroyed segment. */
    bool mapped = extent != NULL && extent->arena == saved->arena && extent->elastic == NULL;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    if (!mapped)
        return false;
    xseg_biased_lock_lock(&saved->arena->lock);
    struct xseg_block_view view = xseg_extent_view_at(extent, saved->base);
    for (; mapped && view.extent != NULL && view.base < end; view = xseg_extent_next_view(&view)) {
        /* A claimed block may be unmapped by its thread. */
        mapped = view.state != XSEG_BLOCK_UNMAPPED && view.state != XSEG_BLOCK_CLAIMED;
        if (view.is_fallback)
            *fallback = view;
    }
    mapped = mapped && end <= extent->segment.base + extent->segment.bytes;
    xseg_biased_lock_unlock(&saved->arena->lock);
    return mapped;
}

static xseg_status check_saved_block(const struct xseg_pool *pool,
                                     const struct xseg_checkpoint_block *saved)
{
    struct xseg_block_view fallback = {0};
    const bool mapped = is_still_mapped(pool, saved, &fallback);

    if (fallback.extent != NULL)
        return xseg_pause_fail_fallback(pool, fallback.base, fallback.bytes);
    return mapped ? XSEG_OK : xseg_checkpoint_fail_released(pool, saved->base);
}

/* Reserve block records in every arena of the checkpoint.  An allocation needs at most two, for the
 * remainders on both sides of the block. */
static xseg_status reserve_records(const struct xseg_checkpoint *checkpoint)
{
    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    for (size_t first = 0, end; first < checkpoint->count; first = end) {
        struct xseg_arena *arena = checkpoint->block[first].arena;

        for (end = first; end < checkpoint->count && checkpoint->block[end].arena == arena;)
            end++;
        xseg_biased_lock_lock(&arena->lock);
        const bool reserved =
            xseg_arena_reserve_records(arena, &arena->blocks, (uint32_t)(2 * (end - first) + 2));
        xseg_biased_lock_unlock(&arena->lock);
        if (!reserved)
            return xseg_fail(XSEG_ERR_HOST_MEMORY, "out of host memory, %zu block records",
                             2 * (end - first));
    }
    return XSEG_OK;
}

static void free_current_block(const struct xseg_checkpoint_block *current)
{
    struct xseg_arena *arena = current->arena;

    xseg_biased_lock_lock(&arena->lock);
    struct xseg_extent *extent = find_pool_extent(arena->pool, current->base);
    XSEG_ASSERT(extent != NULL && extent->arena == arena);
    struct xseg_block *block = xseg_extent_block_at(extent, current->base);
    if (xseg_recorder_is_enabled(arena))
        xseg_recorder_free(arena, &(struct xseg_recorded_block){current->base, current->bytes,
                                                                current->requested, false});
    if (block != NULL)
        xseg_arena_free(arena, block);
    xseg_biased_lock_unlock(&arena->lock);
}

/* Allocate a block of the checkpoint at its address, with its user word.  No allocated block
 * overlaps the address range. */
static void allocate_saved_block(const struct xseg_checkpoint_block *saved, uint64_t user,
                                 const struct xseg_config *config)
{
    struct xseg_arena *arena = saved->arena;
    struct xseg_extent *extent = find_pool_extent(arena->pool, saved->base);
    const struct xseg_alloc_params params = {.config = config,
                                             .requested = saved->requested,
                                             .bytes = saved->bytes,
                                             .alignment = XSEG_SIZE_UNIT,
                                             .span = saved->bytes,
                                             .is_small = arena->is_small,
                                             .expandable = true};

    xseg_history_set_user(arena->history->store, user);
    xseg_biased_lock_lock(&arena->lock);
    XSEG_ASSERT(extent != NULL && extent->arena == arena && saved->requested <= saved->bytes);
    (void)xseg_arena_allocate_at(arena, extent, saved->base, &params);
    xseg_biased_lock_unlock(&arena->lock);
}

/* Set the requested size of a cached block of the checkpoint, unless its memory was released. */
static void restore_requested_size(const struct xseg_checkpoint_block *saved)
{
    struct xseg_arena *arena = saved->arena;
    struct xseg_extent *extent = find_pool_extent(arena->pool, saved->base);

    if (extent == NULL || extent->arena != arena || extent->elastic != NULL)
        return;
    xseg_biased_lock_lock(&arena->lock);
    xseg_arena_set_requested(extent, saved->base, saved->requested);
    xseg_biased_lock_unlock(&arena->lock);
}

static xseg_status check_restore(const struct xseg_checkpoint *checkpoint,
                                 const struct block_list *list)
{
    xseg_status status = check_idle(checkpoint->pool, list);

    XSEG_ASSERT(checkpoint->count == 0 || checkpoint->block[0].arena != NULL);
    if (status == XSEG_OK && list->used > 0)
        status = xseg_fail(
            XSEG_ERR_BUSY,
            "memory of pool %s is used by other streams, %zu allocated block%s; free them "
            "first",
            xseg_pool_label(checkpoint->pool), list->used, list->used == 1 ? "" : "s");
    for (size_t i = 0; status == XSEG_OK && i < checkpoint->count; i++)
        status = check_saved_block(checkpoint->pool, &checkpoint->block[i]);
    return status == XSEG_OK ? reserve_records(checkpoint) : status;
}

static void report_moved_blocks(void (*moved)(void *self, void *pointer, bool freed), void *self,
                                const struct xseg_checkpoint_block *block, size_t count, bool freed)
{
    XSEG_ASSERT(!xseg_lock_rank_is_any_held());
    for (size_t i = 0; moved != NULL && i < count; i++)
        moved(self, (void *)(uintptr_t)block[i].base, /* NOLINT(performance-no-int-to-ptr) */
              freed);
}

xseg_status xseg_checkpoint_restore(const struct xseg_checkpoint *checkpoint,
                                    void (*moved)(void *self, void *pointer, bool freed),
                                    void *self)
{
    struct xseg_device *device = checkpoint->pool->device;
    const struct xseg_config *config = xseg_allocator_config(device->allocator);
    struct block_list current;
    void *memory = NULL;

    xseg_pending_poll(device->pending);
    xseg_mutex_lock(&device->memory_lock);
    xseg_status status = xseg_pool_check_running(checkpoint->pool);
    if (status == XSEG_OK)
        status = list_blocks(checkpoint->pool, 0, false, false, &memory, &current);
    if (status == XSEG_OK)
        status = check_restore(checkpoint, &current);
    if (status == XSEG_OK)
        status = xseg_checkpoint_ranges_begin(checkpoint->ranges, checkpoint->pool);
    for (size_t i = 0; status == XSEG_OK && i < current.count; i++)
        free_current_block(&current.block[i]);
    for (size_t i = 0; status == XSEG_OK && i < checkpoint->count; i++)
        allocate_saved_block(&checkpoint->block[i],
                             checkpoint->users == NULL ? 0 : checkpoint->users[i], config);
    xseg_history_set_user(device->history.store, 0);
    for (size_t i = 0; status == XSEG_OK && i < checkpoint->cached_count; i++)
        restore_requested_size(&checkpoint->cached[i]);
    if (status == XSEG_OK)
        xseg_checkpoint_ranges_finish(checkpoint->ranges, checkpoint->pool);
    xseg_mutex_unlock(&device->memory_lock);
    xseg_allocator_deliver(device->allocator);
    if (status == XSEG_OK) {
        report_moved_blocks(moved, self, current.block, current.count, true);
        report_moved_blocks(moved, self, checkpoint->block, checkpoint->count, false);
    }
    free(memory);
    return status;
}

/* --- Compare. --- */

static int compare_addresses(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return x < y ? -1 : x > y;
}

static int compare_bases(const void *a, const void *b)
{
    const struct xseg_checkpoint_block *x = a, *y = b;

    return compare_addresses(&x->base, &y->base);
}

/* Whether sorted addresses, which may contain duplicates, are the bases of sorted blocks. */
static bool is_base_list(const uint64_t *address, size_t count, const struct block_list *current)
{
    size_t next = 0;

    for (size_t i = 0; i < count; i++) {
        if (i > 0 && address[i] == address[i - 1])
            continue;
        XSEG_ASSERT(i == 0 || address[i] > address[i - 1]);
        if (next == current->count || current->block[next].base != address[i])
            return false;
        next++;
    }
    return next == current->count;
}

xseg_status xseg_checkpoint_compare(struct xseg_pool *pool, void *const *pointers, size_t count,
                                    bool *exactly)
{
    struct xseg_device *device = pool->device;
    uint64_t *address = calloc(count + 1, sizeof(*address));
    struct block_list current;
    void *memory = NULL;

    XSEG_ASSERT(count == 0 || pointers != NULL);
    if (address == NULL)
        return xseg_fail(XSEG_ERR_HOST_MEMORY, "out of host memory, list of %zu addresses", count);
    for (size_t i = 0; i < count; i++)
        address[i] = (uintptr_t)pointers[i];
    xseg_mutex_lock(&device->memory_lock);
    const xseg_status status = list_blocks(pool, 0, false, false, &memory, &current);
    xseg_mutex_unlock(&device->memory_lock);
    if (status == XSEG_OK) {
        qsort(address, count, sizeof(*address), compare_addresses);
        qsort(current.block, current.count, sizeof(*current.block), compare_bases);
        *exactly = is_base_list(address, count, &current);
    }
    free(address);
    free(memory);
    return status;
}
