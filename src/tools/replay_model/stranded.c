/* SPDX-License-Identifier: MIT */
#include "src/tools/replay_model/stranded.h"

#include <stdlib.h>
#include <string.h>

#include "src/tools/replay_model/model_ranges.h"

#define CLASSIC (UINT64_C(1) << 63) /* in the key of a page */

/* A page on which a block begins or ends, or both.  What lies between these is full: it has nothing cached. */
struct stranded_page {
    uint64_t bytes;                 /* of addresses; pages do not overlap */
    uint64_t mapped, live, pending; /* bytes on it */
    uint32_t live_count, pending_count;
    uint64_t since_us;  /* accounted for until then */
    stranded_sum share; /* of each block that was live all the time */
    uint64_t left;      /* byte-microseconds that could not be shared, fewer than blocks */
};

/* Where a block lies, and what its pages' shares were when it came. */
struct stranded_block {
    uint32_t page[2]; /* slots; of its first and last page; ORDERED_NONE: there is no second */
    uint32_t site;
    uint64_t since_us;
    stranded_sum share[2];
};

/* --- Pages. --- */

static uint64_t cached_on(const struct stranded_page *page)
{
    return page->mapped - page->live - page->pending;
}

/* Share what was cached on a page since the last time. */
static void account(struct stranded *stranded, struct stranded_page *page)
{
    const uint64_t passed = stranded->since_us - page->since_us;
    const stranded_sum sum = (stranded_sum)cached_on(page) * passed;

    page->since_us = stranded->since_us;
    if (sum == 0)
        return;
    if (page->live_count > 0) {
        const stranded_sum whole = sum + page->left;

        stranded->stranded += sum;
        page->share += whole / page->live_count;
        page->left = (uint64_t)(whole % page->live_count);
    } else if (page->pending_count > 0) {
        stranded->beside += sum;
    }
}

static uint64_t start_of(const struct stranded *stranded, uint32_t slot)
{
    return ordered_key(&stranded->pages, slot) << 1;
}

static bool is_classic(const struct stranded *stranded, uint32_t slot)
{
    return (ordered_key(&stranded->pages, slot) & CLASSIC) != 0;
}

static void measure(struct stranded *stranded, uint32_t slot)
{
    struct stranded_page *page = &stranded->page[slot];
    const uint64_t start = start_of(stranded, slot);

    page->mapped = is_classic(stranded, slot)
                       ? page->bytes
                       : course_ranges_expandable(stranded->course, start, start + page->bytes);
}

/* Make a page.  Returns ORDERED_NONE without host memory. */
static uint32_t make_page(struct stranded *stranded, uint64_t key, uint64_t bytes)
{
    const uint32_t slot = ordered_add(&stranded->pages, key);

    if (slot == ORDERED_NONE || !ordered_follow(&stranded->pages, (void **)&stranded->page,
                                                &stranded->page_room, sizeof(*stranded->page))) {
        stranded->lacks_memory = true;
        return ORDERED_NONE;
    }
    stranded->page[slot] = (struct stranded_page){.bytes = bytes, .since_us = stranded->since_us};
    measure(stranded, slot);
    return slot;
}

/* The page of expandable memory that holds an address, of those that there are. */
static uint32_t page_at(const struct stranded *stranded, uint64_t address)
{
    const uint32_t slot = ordered_up_to(&stranded->pages, address / 2);

    return slot != ORDERED_NONE && address - start_of(stranded, slot) < stranded->page[slot].bytes
               ? slot
               : ORDERED_NONE;
}

/* The page of expandable memory that holds an address, made if it is new.  A page with blocks stays as it is, also where
 * the memory beside them is mapped anew with other pages; so a new one may be a part. */
static uint32_t get_page(struct stranded *stranded, const struct course_range *range,
                         uint64_t address)
{
    uint64_t start = address - (address - range->start) % range->page;
    uint64_t end = range->end - start < range->page ? range->end : start + range->page;
    uint32_t slot = page_at(stranded, address);

    if (slot != ORDERED_NONE)
        return slot;
    slot = ordered_up_to(&stranded->pages, address / 2);
    if (slot != ORDERED_NONE && start_of(stranded, slot) + stranded->page[slot].bytes > start)
        start = start_of(stranded, slot) + stranded->page[slot].bytes;
    slot = ordered_from(&stranded->pages, address / 2 + 1);
    if (slot != ORDERED_NONE && !is_classic(stranded, slot) && start_of(stranded, slot) < end)
        end = start_of(stranded, slot);
    return make_page(stranded, start / 2, end - start);
}

static uint32_t get_classic(struct stranded *stranded, const struct course_range *range)
{
    const uint64_t key = range->start / 2 | CLASSIC;
    const uint32_t slot = ordered_find(&stranded->pages, key);

    return slot != ORDERED_NONE ? slot : make_page(stranded, key, range->end - range->start);
}

static void drop_page_if_empty(struct stranded *stranded, uint32_t slot)
{
    const struct stranded_page *page = &stranded->page[slot];

    if (page->live_count == 0 && page->pending_count == 0)
        ordered_remove(&stranded->pages, ordered_key(&stranded->pages, slot));
}

/* The bytes of a block on one of its pages. */
static uint64_t bytes_on(const struct stranded *stranded, uint32_t slot,
                         const struct course_block *block)
{
    const uint64_t page = start_of(stranded, slot);
    uint64_t start = block->address, end = start + block->bytes;

    if (start < page)
        start = page;
    if (end - page > stranded->page[slot].bytes)
        end = page + stranded->page[slot].bytes;
    return end - start;
}

/* --- Blocks. --- */

/* The site of a block, whose live bytes are about to change. */
static struct stranded_site *change_site(struct stranded *stranded, uint32_t number)
{
    struct stranded_site *site = &stranded->sites[number];

    if (site->peak_version != stranded->peak.version) {
        site->peak_bytes = site->live_bytes;
        site->peak_version = stranded->peak.version;
    }
    return site;
}

static void find_pages(struct stranded *stranded, struct stranded_block *own,
                       const struct course_block *block)
{
    const struct course_range *range = course_ranges_at(stranded->course, block->address);
    const uint64_t last = block->address + block->bytes - 1;

    own->page[1] = ORDERED_NONE;
    if (!range->is_expandable) {
        own->page[0] = get_classic(stranded, range);
        return;
    }
    own->page[0] = get_page(stranded, range, block->address);
    if (stranded->lacks_memory || page_at(stranded, last) == own->page[0])
        return;
    own->page[1] = get_page(stranded, course_ranges_at(stranded->course, last), last);
}

/* A live block begins to count. */
static void begin_live(struct stranded *stranded, struct stranded_block *own,
                       const struct course_block *block)
{
    struct stranded_site *site = change_site(stranded, own->site);

    site->live_bytes += block->bytes;
    site->blocks++;
    own->since_us = stranded->since_us;
    for (unsigned i = 0; i < 2 && own->page[i] != ORDERED_NONE; i++) {
        struct stranded_page *page = &stranded->page[own->page[i]];

        account(stranded, page);
        page->live += bytes_on(stranded, own->page[i], block);
        page->live_count++;
        own->share[i] = page->share;
    }
}

/* A live block ends to count: its site gets what it has stranded. */
static void end_live(struct stranded *stranded, const struct stranded_block *own,
                     const struct course_block *block)
{
    struct stranded_site *site = change_site(stranded, own->site);

    site->live_bytes -= block->bytes;
    site->live += (stranded_sum)block->bytes * (stranded->since_us - own->since_us);
    site->lived_us += stranded->since_us - own->since_us;
    for (unsigned i = 0; i < 2 && own->page[i] != ORDERED_NONE; i++) {
        struct stranded_page *page = &stranded->page[own->page[i]];

        account(stranded, page);
        site->stranded += page->share - own->share[i];
        page->live -= bytes_on(stranded, own->page[i], block);
        if (--page->live_count == 0) {
            site->stranded += page->left;
            page->left = 0;
        }
    }
}

/* A pending block comes (up) or leaves. */
static void count_pending(struct stranded *stranded, const struct stranded_block *own,
                          const struct course_block *block, bool up)
{
    for (unsigned i = 0; i < 2 && own->page[i] != ORDERED_NONE; i++) {
        struct stranded_page *page = &stranded->page[own->page[i]];
        const uint64_t bytes = bytes_on(stranded, own->page[i], block);

        account(stranded, page);
        page->pending += up ? bytes : -bytes;
        page->pending_count += up ? 1 : -1u;
    }
}

/* --- What the course tells. --- */

static void block_comes(void *self, uint32_t slot, const struct course_block *block)
{
    struct stranded *stranded = self;
    struct stranded_block *own;

    if (stranded->lacks_memory ||
        !ordered_follow(&stranded->course->blocks, (void **)&stranded->block, &stranded->block_room,
                        sizeof(*stranded->block))) {
        stranded->lacks_memory = true;
        return;
    }
    own = &stranded->block[slot];
    *own = (struct stranded_block){.site = stranded->site_of(stranded->context, block)};
    find_pages(stranded, own, block);
    if (stranded->lacks_memory)
        return;
    if (block->is_pending)
        count_pending(stranded, own, block, true);
    else
        begin_live(stranded, own, block);
}

static void block_is_freed(void *self, uint32_t slot, const struct course_block *block)
{
    struct stranded *stranded = self;

    if (stranded->lacks_memory)
        return;
    end_live(stranded, &stranded->block[slot], block);
    count_pending(stranded, &stranded->block[slot], block, true);
}

static void block_leaves(void *self, uint32_t slot, const struct course_block *block)
{
    struct stranded *stranded = self;
    const struct stranded_block *own;

    if (stranded->lacks_memory)
        return;
    own = &stranded->block[slot];
    if (block->is_pending)
        count_pending(stranded, own, block, false);
    else
        end_live(stranded, own, block);
    for (unsigned i = 0; i < 2 && own->page[i] != ORDERED_NONE; i++)
        drop_page_if_empty(stranded, own->page[i]);
}

/* Pages are mapped whole; a file that says otherwise has some that are mapped in parts. */
static void measure_page(struct stranded *stranded, uint64_t address)
{
    const uint32_t slot = page_at(stranded, address);

    if (slot == ORDERED_NONE)
        return;
    account(stranded, &stranded->page[slot]);
    measure(stranded, slot);
}

static void range_changes(void *self, const struct course_range *range)
{
    struct stranded *stranded = self;

    if (stranded->lacks_memory || !range->is_expandable)
        return;
    measure_page(stranded, range->start);
    measure_page(stranded, range->end - 1);
}

/* --- Over time. --- */

static void advance(struct stranded *stranded, uint64_t now_us)
{
    const uint64_t passed = now_us - stranded->since_us;

    stranded->reserved += (stranded_sum)stranded->course->reserved * passed;
    stranded->live += (stranded_sum)stranded->course->live * passed;
    stranded->pending += (stranded_sum)stranded->course->pending * passed;
    stranded->since_us = now_us;
}

static void find_peak(struct stranded *stranded)
{
    const struct course *course = stranded->course;

    if (stranded->peak.version > 0 &&
        (course->reserved < stranded->peak.reserved ||
         (course->reserved == stranded->peak.reserved && course->live <= stranded->peak.live)))
        return;
    stranded->peak.reserved = course->reserved;
    stranded->peak.live = course->live;
    stranded->peak.time_us = course->now_us;
    stranded->peak.event = course->at;
    stranded->peak.version++;
}

bool stranded_init(struct stranded *stranded, struct course *course, size_t site_count,
                   stranded_site_of *site_of, const void *context)
{
    const struct course_watcher watcher = {stranded,     block_comes,   block_is_freed,
                                           block_leaves, range_changes, range_changes};

    memset(stranded, 0, sizeof(*stranded));
    stranded->course = course;
    stranded->site_count = site_count;
    stranded->site_of = site_of;
    stranded->context = context;
    stranded->began_us = stranded->since_us = course->now_us;
    ordered_init(&stranded->pages);
    stranded->sites = calloc(site_count + 1, sizeof(*stranded->sites));
    stranded->lacks_memory = !stranded->sites;
    if (!stranded->lacks_memory)
        course_watch(course, &watcher);
    if (stranded->lacks_memory) {
        stranded_fini(stranded);
        return false;
    }
    find_peak(stranded);
    return true;
}

void stranded_fini(struct stranded *stranded)
{
    ordered_fini(&stranded->pages);
    free(stranded->sites);
    free(stranded->page);
    free(stranded->block);
    stranded->sites = NULL;
    stranded->page = NULL;
    stranded->block = NULL;
}

bool stranded_step(struct stranded *stranded)
{
    advance(stranded, course_next_us(stranded->course));
    if (!course_step(stranded->course) || stranded->lacks_memory)
        return false;
    find_peak(stranded);
    return true;
}

void stranded_finish(struct stranded *stranded, uint64_t now_us)
{
    const struct course *course = stranded->course;
    const struct course_watcher nobody = {0};

    if (now_us > stranded->since_us)
        advance(stranded, now_us);
    for (uint32_t slot = ordered_from(&course->blocks, 0); slot != ORDERED_NONE;
         slot = ordered_from(&course->blocks, course->block[slot].address + 1)) {
        const struct course_block block = course->block[slot];

        if (!stranded->lacks_memory)
            block_leaves(stranded, slot, &block);
    }
    for (size_t i = 0; i < stranded->site_count; i++)
        (void)change_site(stranded, (uint32_t)i);
    stranded->idle = stranded->reserved - stranded->live - stranded->pending - stranded->beside -
                     stranded->stranded;
    course_watch(stranded->course, &nobody);
}

bool stranded_play(struct stranded *stranded, struct course *course, size_t site_count,
                   stranded_site_of *site_of, const void *context)
{
    uint64_t end_us;

    if (!stranded_init(stranded, course, site_count, site_of, context))
        return false;
    while (stranded_step(stranded))
        ;
    end_us = course->has_times ? course->now_us : course->ticks;
    stranded->is_moment = end_us == stranded->began_us;
    stranded->duration_us = stranded->is_moment ? 1 : end_us - stranded->began_us;
    stranded_finish(stranded, stranded->began_us + stranded->duration_us);
    if (!course->lacks_memory && !stranded->lacks_memory)
        return true;
    stranded_fini(stranded);
    return false;
}
