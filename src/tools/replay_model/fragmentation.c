/* SPDX-License-Identifier: MIT */
#include "src/tools/replay_model/fragmentation.h"

#include <stdlib.h>
#include <string.h>

#include "src/tools/replay_model/replay_model.h"

#define CLASSIC (UINT64_C(1) << 63) /* in the key of a page */

/* A page on which a block begins or ends.  Pages between these are full and have no cached memory. */
struct fragmentation_page {
    uint64_t bytes;                      /* of its address range; pages do not overlap */
    uint64_t mapped, allocated, pending; /* bytes on it */
    uint32_t allocated_count, pending_count;
    uint64_t since_us;       /* time until which the page is accounted for */
    fragmentation_sum share; /* of each block that has been allocated all the time */
    uint64_t remainder;      /* remainder of the division: byte-microseconds, fewer than blocks */
};

/* The pages of a block, and their shares when it was allocated. */
struct fragmentation_block {
    uint32_t page[2]; /* slots of its first and last page; ORDERED_NONE: no second page */
    uint32_t site;
    uint64_t since_us;
    fragmentation_sum share[2];
};

/* --- Pages. --- */

static uint64_t get_cached_bytes(const struct fragmentation_page *page)
{
    return page->mapped - page->allocated - page->pending;
}

/* Divide the cached memory of a page since the last call. */
static void account_page(struct fragmentation *fragmentation, struct fragmentation_page *page)
{
    const uint64_t elapsed_us = fragmentation->since_us - page->since_us;
    const fragmentation_sum sum = (fragmentation_sum)get_cached_bytes(page) * elapsed_us;

    page->since_us = fragmentation->since_us;
    if (sum == 0)
        return;
    if (page->allocated_count > 0) {
        const fragmentation_sum dividend = sum + page->remainder;

        fragmentation->fragmented += sum;
        page->share += dividend / page->allocated_count;
        page->remainder = (uint64_t)(dividend % page->allocated_count);
    } else if (page->pending_count > 0) {
        fragmentation->near_pending += sum;
    }
}

static uint64_t get_page_start(const struct fragmentation *fragmentation, uint32_t slot)
{
    return ordered_key(&fragmentation->pages, slot) << 1;
}

static bool is_classic(const struct fragmentation *fragmentation, uint32_t slot)
{
    return (ordered_key(&fragmentation->pages, slot) & CLASSIC) != 0;
}

static void update_mapped(struct fragmentation *fragmentation, uint32_t slot)
{
    struct fragmentation_page *page = &fragmentation->page[slot];
    const uint64_t start = get_page_start(fragmentation, slot);

    page->mapped =
        is_classic(fragmentation, slot)
            ? page->bytes
            : replay_model_expandable_bytes(fragmentation->model, start, start + page->bytes);
}

/* Create a page.  Returns ORDERED_NONE if out of host memory. */
static uint32_t create_page(struct fragmentation *fragmentation, uint64_t key, uint64_t bytes)
{
    const uint32_t slot = ordered_add(&fragmentation->pages, key);

    if (slot == ORDERED_NONE ||
        !ordered_resize(&fragmentation->pages, (void **)&fragmentation->page,
                        &fragmentation->page_capacity, sizeof(*fragmentation->page))) {
        fragmentation->out_of_memory = true;
        return ORDERED_NONE;
    }
    fragmentation->page[slot] =
        (struct fragmentation_page){.bytes = bytes, .since_us = fragmentation->since_us};
    update_mapped(fragmentation, slot);
    return slot;
}

/* Find the page of expandable memory that contains an address; ORDERED_NONE: none. */
static uint32_t find_page(const struct fragmentation *fragmentation, uint64_t address)
{
    const uint32_t slot = ordered_up_to(&fragmentation->pages, address / 2);

    return slot != ORDERED_NONE &&
                   address - get_page_start(fragmentation, slot) < fragmentation->page[slot].bytes
               ? slot
               : ORDERED_NONE;
}

/* Get the page of expandable memory that contains an address, created if it does not exist.  A page with blocks does not
 * change if adjacent memory is mapped again with another page size, so a new page may be smaller. */
static uint32_t get_page(struct fragmentation *fragmentation,
                         const struct replay_model_range *range, uint64_t address)
{
    uint64_t start = address - (address - range->start) % range->page;
    uint64_t end = range->end - start < range->page ? range->end : start + range->page;
    uint32_t slot = find_page(fragmentation, address);

    if (slot != ORDERED_NONE)
        return slot;
    slot = ordered_up_to(&fragmentation->pages, address / 2);
    if (slot != ORDERED_NONE &&
        get_page_start(fragmentation, slot) + fragmentation->page[slot].bytes > start)
        start = get_page_start(fragmentation, slot) + fragmentation->page[slot].bytes;
    slot = ordered_from(&fragmentation->pages, address / 2 + 1);
    if (slot != ORDERED_NONE && !is_classic(fragmentation, slot) &&
        get_page_start(fragmentation, slot) < end)
        end = get_page_start(fragmentation, slot);
    return create_page(fragmentation, start / 2, end - start);
}

static uint32_t get_classic(struct fragmentation *fragmentation,
                            const struct replay_model_range *range)
{
    const uint64_t key = range->start / 2 | CLASSIC;
    const uint32_t slot = ordered_find(&fragmentation->pages, key);

    return slot != ORDERED_NONE ? slot : create_page(fragmentation, key, range->end - range->start);
}

static void remove_page_if_empty(struct fragmentation *fragmentation, uint32_t slot)
{
    const struct fragmentation_page *page = &fragmentation->page[slot];

    if (page->allocated_count == 0 && page->pending_count == 0)
        ordered_remove(&fragmentation->pages, ordered_key(&fragmentation->pages, slot));
}

/* Get the bytes of a block on one of its pages. */
static uint64_t get_bytes_on_page(const struct fragmentation *fragmentation, uint32_t slot,
                                  const struct replay_model_block *block)
{
    const uint64_t page = get_page_start(fragmentation, slot);
    uint64_t start = block->address, end = start + block->bytes;

    if (start < page)
        start = page;
    if (end - page > fragmentation->page[slot].bytes)
        end = page + fragmentation->page[slot].bytes;
    return end - start;
}

/* --- Blocks. --- */

/* Get the site of a block, before its allocated bytes change. */
static struct fragmentation_site *change_site(struct fragmentation *fragmentation, uint32_t number)
{
    struct fragmentation_site *site = &fragmentation->sites[number];

    if (site->peak_version != fragmentation->peak.version) {
        site->peak_bytes = site->allocated_bytes;
        site->peak_version = fragmentation->peak.version;
    }
    return site;
}

static void find_pages(struct fragmentation *fragmentation, struct fragmentation_block *record,
                       const struct replay_model_block *block)
{
    const struct replay_model_range *range =
        replay_model_range_at(fragmentation->model, block->address);
    const uint64_t last = block->address + block->bytes - 1;

    record->page[1] = ORDERED_NONE;
    if (!range->is_expandable) {
        record->page[0] = get_classic(fragmentation, range);
        return;
    }
    record->page[0] = get_page(fragmentation, range, block->address);
    if (fragmentation->out_of_memory || find_page(fragmentation, last) == record->page[0])
        return;
    record->page[1] =
        get_page(fragmentation, replay_model_range_at(fragmentation->model, last), last);
}

/* Add an allocated block. */
static void begin_allocated(struct fragmentation *fragmentation, struct fragmentation_block *record,
                            const struct replay_model_block *block)
{
    struct fragmentation_site *site = change_site(fragmentation, record->site);

    site->allocated_bytes += block->bytes;
    site->blocks++;
    record->since_us = fragmentation->since_us;
    for (unsigned i = 0; i < 2 && record->page[i] != ORDERED_NONE; i++) {
        struct fragmentation_page *page = &fragmentation->page[record->page[i]];

        account_page(fragmentation, page);
        page->allocated += get_bytes_on_page(fragmentation, record->page[i], block);
        page->allocated_count++;
        record->share[i] = page->share;
    }
}

/* Remove an allocated block, and attribute its shares to its site. */
static void end_allocated(struct fragmentation *fragmentation,
                          const struct fragmentation_block *record,
                          const struct replay_model_block *block)
{
    struct fragmentation_site *site = change_site(fragmentation, record->site);

    site->allocated_bytes -= block->bytes;
    site->allocated +=
        (fragmentation_sum)block->bytes * (fragmentation->since_us - record->since_us);
    site->lived_us += fragmentation->since_us - record->since_us;
    for (unsigned i = 0; i < 2 && record->page[i] != ORDERED_NONE; i++) {
        struct fragmentation_page *page = &fragmentation->page[record->page[i]];

        account_page(fragmentation, page);
        site->fragmented += page->share - record->share[i];
        page->allocated -= get_bytes_on_page(fragmentation, record->page[i], block);
        if (--page->allocated_count == 0) {
            site->fragmented += page->remainder;
            page->remainder = 0;
        }
    }
}

/* Add or remove a pending block. */
static void count_pending(struct fragmentation *fragmentation,
                          const struct fragmentation_block *record,
                          const struct replay_model_block *block, bool is_added)
{
    for (unsigned i = 0; i < 2 && record->page[i] != ORDERED_NONE; i++) {
        struct fragmentation_page *page = &fragmentation->page[record->page[i]];
        const uint64_t bytes = get_bytes_on_page(fragmentation, record->page[i], block);

        account_page(fragmentation, page);
        page->pending += is_added ? bytes : -bytes;
        page->pending_count += is_added ? 1 : -1u;
    }
}

/* --- Callbacks of the model. --- */

static void block_added(void *self, uint32_t slot, const struct replay_model_block *block)
{
    struct fragmentation *fragmentation = self;
    struct fragmentation_block *record;

    if (fragmentation->out_of_memory ||
        !ordered_resize(&fragmentation->model->blocks, (void **)&fragmentation->block,
                        &fragmentation->block_capacity, sizeof(*fragmentation->block))) {
        fragmentation->out_of_memory = true;
        return;
    }
    record = &fragmentation->block[slot];
    *record =
        (struct fragmentation_block){.site = fragmentation->site_of(fragmentation->context, block)};
    find_pages(fragmentation, record, block);
    if (fragmentation->out_of_memory)
        return;
    if (block->is_pending)
        count_pending(fragmentation, record, block, true);
    else
        begin_allocated(fragmentation, record, block);
}

static void block_freed(void *self, uint32_t slot, const struct replay_model_block *block)
{
    struct fragmentation *fragmentation = self;

    if (fragmentation->out_of_memory)
        return;
    end_allocated(fragmentation, &fragmentation->block[slot], block);
    count_pending(fragmentation, &fragmentation->block[slot], block, true);
}

static void block_removed(void *self, uint32_t slot, const struct replay_model_block *block)
{
    struct fragmentation *fragmentation = self;
    const struct fragmentation_block *record;

    if (fragmentation->out_of_memory)
        return;
    record = &fragmentation->block[slot];
    if (block->is_pending)
        count_pending(fragmentation, record, block, false);
    else
        end_allocated(fragmentation, record, block);
    for (unsigned i = 0; i < 2 && record->page[i] != ORDERED_NONE; i++)
        remove_page_if_empty(fragmentation, record->page[i]);
}

/* Update the mapped bytes of a page.  In a valid file, pages are mapped as a whole; in other files, a part of a page may be
 * mapped. */
static void update_mapped_at(struct fragmentation *fragmentation, uint64_t address)
{
    const uint32_t slot = find_page(fragmentation, address);

    if (slot == ORDERED_NONE)
        return;
    account_page(fragmentation, &fragmentation->page[slot]);
    update_mapped(fragmentation, slot);
}

static void range_changed(void *self, const struct replay_model_range *range)
{
    struct fragmentation *fragmentation = self;

    if (fragmentation->out_of_memory || !range->is_expandable)
        return;
    update_mapped_at(fragmentation, range->start);
    update_mapped_at(fragmentation, range->end - 1);
}

/* --- Over time. --- */

static void advance_time(struct fragmentation *fragmentation, uint64_t now_us)
{
    const uint64_t elapsed_us = now_us - fragmentation->since_us;

    fragmentation->reserved += (fragmentation_sum)fragmentation->model->reserved * elapsed_us;
    fragmentation->allocated += (fragmentation_sum)fragmentation->model->allocated * elapsed_us;
    fragmentation->pending += (fragmentation_sum)fragmentation->model->pending * elapsed_us;
    fragmentation->since_us = now_us;
}

static void update_peak(struct fragmentation *fragmentation)
{
    const struct replay_model *model = fragmentation->model;

    if (fragmentation->peak.version > 0 && (model->reserved < fragmentation->peak.reserved ||
                                            (model->reserved == fragmentation->peak.reserved &&
                                             model->allocated <= fragmentation->peak.allocated)))
        return;
    fragmentation->peak.reserved = model->reserved;
    fragmentation->peak.allocated = model->allocated;
    fragmentation->peak.time_us = model->now_us;
    fragmentation->peak.event = model->at;
    fragmentation->peak.version++;
}

bool fragmentation_init(struct fragmentation *fragmentation, struct replay_model *model,
                        size_t site_count, fragmentation_site_of *site_of, const void *context)
{
    const struct replay_model_observer observer = {fragmentation, block_added,   block_freed,
                                                   block_removed, range_changed, range_changed};

    memset(fragmentation, 0, sizeof(*fragmentation));
    fragmentation->model = model;
    fragmentation->site_count = site_count;
    fragmentation->site_of = site_of;
    fragmentation->context = context;
    fragmentation->began_us = fragmentation->since_us = model->now_us;
    ordered_init(&fragmentation->pages);
    fragmentation->sites = calloc(site_count + 1, sizeof(*fragmentation->sites));
    fragmentation->out_of_memory = !fragmentation->sites;
    if (!fragmentation->out_of_memory)
        replay_model_observe(model, &observer);
    if (fragmentation->out_of_memory) {
        fragmentation_fini(fragmentation);
        return false;
    }
    update_peak(fragmentation);
    return true;
}

void fragmentation_fini(struct fragmentation *fragmentation)
{
    ordered_fini(&fragmentation->pages);
    free(fragmentation->sites);
    free(fragmentation->page);
    free(fragmentation->block);
    fragmentation->sites = NULL;
    fragmentation->page = NULL;
    fragmentation->block = NULL;
}

bool fragmentation_step(struct fragmentation *fragmentation)
{
    advance_time(fragmentation, replay_model_next_us(fragmentation->model));
    if (!replay_model_step(fragmentation->model) || fragmentation->out_of_memory)
        return false;
    update_peak(fragmentation);
    return true;
}

void fragmentation_finish(struct fragmentation *fragmentation, uint64_t now_us)
{
    const struct replay_model *model = fragmentation->model;
    const struct replay_model_observer none = {0};

    if (now_us > fragmentation->since_us)
        advance_time(fragmentation, now_us);
    for (uint32_t slot = ordered_from(&model->blocks, 0); slot != ORDERED_NONE;
         slot = ordered_from(&model->blocks, model->block[slot].address + 1)) {
        const struct replay_model_block block = model->block[slot];

        if (!fragmentation->out_of_memory)
            block_removed(fragmentation, slot, &block);
    }
    for (size_t i = 0; i < fragmentation->site_count; i++)
        (void)change_site(fragmentation, (uint32_t)i);
    fragmentation->idle = fragmentation->reserved - fragmentation->allocated -
                          fragmentation->pending - fragmentation->near_pending -
                          fragmentation->fragmented;
    replay_model_observe(fragmentation->model, &none);
}

bool fragmentation_play(struct fragmentation *fragmentation, struct replay_model *model,
                        size_t site_count, fragmentation_site_of *site_of, const void *context)
{
    uint64_t end_us;

    if (!fragmentation_init(fragmentation, model, site_count, site_of, context))
        return false;
    while (fragmentation_step(fragmentation))
        ;
    end_us = model->has_times ? model->now_us : model->ticks;
    fragmentation->is_instant = end_us == fragmentation->began_us;
    fragmentation->duration_us = fragmentation->is_instant ? 1 : end_us - fragmentation->began_us;
    fragmentation_finish(fragmentation, fragmentation->began_us + fragmentation->duration_us);
    if (!model->out_of_memory && !fragmentation->out_of_memory)
        return true;
    fragmentation_fini(fragmentation);
    return false;
}
