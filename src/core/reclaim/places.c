/* SPDX-License-Identifier: MIT */
#include "src/core/reclaim/places.h"

#include <inttypes.h>

#include "src/base/error.h"
#include "src/base/zeroed.h"
#include "src/core/block/elastic.h"
#include "vmm/evicted.h"
#include "vmm/guest.h"

/* A granule of a range. */
struct place {
    struct xseg_extent *extent;
    uint32_t granule;
};

/* The number of a place on its device. */
static uint32_t number_of(const struct xseg_extent *extent, uint32_t granule)
{
    const struct xseg_segment *segment = &extent->segment;

    return (uint32_t)((segment->base + granule * segment->granule_bytes) /
                      segment->context->granularity);
}

/* The place of a number that a link has. */
static struct place place_of(const struct xseg_extent *near, uint32_t number)
{
    const struct xseg_device *device = xseg_device_of(near);
    const uint64_t address = number * device->context.granularity;
    struct xseg_extent *extent = xseg_page_map_find(device->page_map, address);

    XSEG_ASSERT(extent != NULL && extent->elastic != NULL);
    return (struct place){
        extent, (uint32_t)((address - extent->segment.base) / extent->segment.granule_bytes)};
}

static struct xseg_elastic_place *links_of(const struct xseg_extent *extent, uint32_t granule)
{
    return &extent->elastic->place[granule];
}

static bool is_live(const struct place *place)
{
    const struct xseg_elastic *elastic = place->extent->elastic;

    /* A new alias is claimed while observers run, and live afterwards. */
    return elastic->use[place->granule] == XSEG_ELASTIC_LIVE ||
           (elastic->use[place->granule] == XSEG_ELASTIC_CLAIMED &&
            elastic->batch[place->granule] == 0);
}

static bool is_owner(const struct place *place)
{
    return !xseg_segment_is_guest(&place->extent->segment, place->granule);
}

static struct place younger(const struct place *place)
{
    return place_of(place->extent, links_of(place->extent, place->granule)->younger);
}

bool xseg_places_prepare(struct xseg_extent *extent)
{
    struct xseg_elastic *elastic = extent->elastic;

    if (elastic->place == NULL)
        elastic->place = xseg_zeroed_take(extent->segment.granules * sizeof(*elastic->place));
    return elastic->place != NULL;
}

void xseg_places_add(struct xseg_extent *extent, uint32_t granule, struct xseg_extent *from,
                     uint32_t at)
{
    struct place owner = {from, at};

    XSEG_ASSERT(xseg_lock_is_held(XSEG_RANK_GROWTH) &&
                !xseg_elastic_is_shared(extent->elastic, granule));
    if (!xseg_elastic_is_shared(from->elastic, at))
        links_of(from, at)->older = links_of(from, at)->younger = number_of(from, at);
    while (!is_owner(&owner))
        owner = younger(&owner);
    struct xseg_elastic_place *last = links_of(owner.extent, owner.granule);
    const struct place before = place_of(from, last->older);
    *links_of(extent, granule) = (struct xseg_elastic_place){
        .older = last->older, .younger = number_of(owner.extent, owner.granule)};
    links_of(before.extent, before.granule)->younger = number_of(extent, granule);
    last->older = number_of(extent, granule);
}

uint64_t xseg_places_own(const struct xseg_extent *extent, uint32_t first, uint32_t count)
{
    const struct xseg_segment *segment = &extent->segment;
    uint64_t own = count;

    for (uint32_t at = first; segment->role != NULL && at < first + count; at++)
        own -= xseg_segment_is_guest(segment, at);
    return own * segment->granule_bytes;
}

/* --- Passing a page on. --- */

/* Change what is counted in the range of a place. */
static void change_own(const struct place *place, uint64_t more)
{
    struct xseg_elastic *elastic = place->extent->elastic;

    xseg_elastic_set_own(elastic, elastic->own + more, elastic->coming,
                         &xseg_device_of(place->extent)->promised);
}

/* Count the page of a place there no longer, or from now on, as its use says. */
static void uncount(const struct place *place, uint64_t bytes)
{
    struct xseg_arena *arena = place->extent->arena;

    xseg_arena_lock(arena);
    change_own(place, 0 - bytes);
    if (is_live(place))
        xseg_counts_end_use(&arena->counts, bytes);
    else
        xseg_counts_end_pending(&arena->counts, 0, bytes, bytes);
    xseg_arena_unlock(arena);
}

static void count(const struct place *place, uint64_t bytes)
{
    struct xseg_arena *arena = place->extent->arena;

    xseg_arena_lock(arena);
    change_own(place, bytes);
    xseg_counts_use(&arena->counts, bytes);
    if (!is_live(place))
        xseg_counts_pend(&arena->counts, 0, bytes);
    xseg_arena_unlock(arena);
}

/* Let a guest own the page of a place. */
static void pass(const struct place *from, const struct place *to)
{
    const uint64_t bytes = from->extent->segment.granule_bytes;

    XSEG_ASSERT(xseg_lock_is_held(XSEG_RANK_GROWTH));
    XSEG_ASSERT(from->extent->arena == to->extent->arena);
    xseg_guest_swap(&from->extent->segment, from->granule, &to->extent->segment, to->granule);
    uncount(from, bytes);
    count(to, bytes);
    /* What kept the page at its old place may have ended. */
    from->extent->elastic->let_go++;
}

/* A run of granules that go together: none of them is to have the page of another. */
struct run {
    const struct xseg_extent *extent;
    uint32_t first, count;
};

static bool has(const struct run *run, const struct place *place)
{
    return place->extent == run->extent && place->granule - run->first < run->count;
}

static void leave(const struct place *place, const struct run *run)
{
    if (!is_owner(place))
        return;
    for (struct place at = younger(place); !is_owner(&at); at = younger(&at))
        if (is_live(&at) && !has(run, &at)) {
            pass(place, &at);
            return;
        }
}

void xseg_places_leave(struct xseg_extent *extent, uint32_t first, uint32_t count)
{
    const struct run run = {extent, first, count};

    for (uint32_t at = first; extent->elastic->place != NULL && at < first + count; at++)
        if (xseg_elastic_is_shared(extent->elastic, at))
            leave(&(struct place){extent, at}, &run);
}

/* Let an evicted guest have the page of its owner. */
static xseg_status rejoin(const struct place *place)
{
    struct place owner = *place;

    while (!is_owner(&owner))
        owner = younger(&owner);
    const uint64_t handle = owner.extent->segment.handle[owner.granule];

    XSEG_ASSERT(handle != 0);
    return xseg_evicted_join(&place->extent->segment, place->granule, handle);
}

xseg_status xseg_places_rejoin(struct xseg_extent *extent)
{
    const struct xseg_segment *segment = &extent->segment;
    xseg_status status = XSEG_OK;

    for (uint32_t at = 0;
         segment->role != NULL && status == XSEG_OK && at < extent->segment.granules; at++)
        if (xseg_segment_is_guest(segment, at) && xseg_segment_is_evicted(segment, at))
            status = rejoin(&(struct place){extent, at});
    return status;
}

/* Where all places of a page go, the one that is unmapped last has it until then. */
static void pass_on(const struct place *place, const struct run *run)
{
    struct place last = *place;

    if (!is_owner(place))
        return;
    for (struct place at = younger(place); !is_owner(&at); at = younger(&at)) {
        if (!has(run, &at)) {
            pass(place, &at);
            return;
        }
        last = at.granule > last.granule ? at : last;
    }
    if (last.granule != place->granule)
        pass(place, &last);
}

void xseg_places_pass_on(struct xseg_extent *extent, uint32_t first, uint32_t count)
{
    const struct run run = {extent, first, count};

    for (uint32_t at = first; extent->elastic->place != NULL && at < first + count; at++)
        if (xseg_elastic_is_shared(extent->elastic, at))
            pass_on(&(struct place){extent, at}, &run);
}

static void forget(struct xseg_extent *extent, uint32_t granule)
{
    struct xseg_elastic_place *links = links_of(extent, granule);
    const struct place older = place_of(extent, links->older),
                       younger = place_of(extent, links->younger);
    const bool is_pair = links->older == links->younger;

    links_of(older.extent, older.granule)->younger = is_pair ? 0 : links->younger;
    links_of(younger.extent, younger.granule)->older = is_pair ? 0 : links->older;
    links->older = links->younger = 0;
}

void xseg_places_forget(struct xseg_extent *extent, uint32_t first, uint32_t count)
{
    for (uint32_t at = first; extent->elastic->place != NULL && at < first + count; at++)
        if (xseg_elastic_is_shared(extent->elastic, at))
            forget(extent, at);
}

/* --- The audit. --- */

static bool audit_ring(const struct xseg_extent *extent, uint32_t granule,
                       struct xseg_finding *finding)
{
    const struct place begin = {(struct xseg_extent *)(uintptr_t)extent, granule};
    const uint64_t handle = extent->segment.handle[granule];
    struct place at = begin;
    unsigned owners = 0, serving = 0, serving_owners = 0;

    do {
        const struct place next = younger(&at);

        XSEG_HOLDS(finding, "PLACE-1",
                   links_of(next.extent, next.granule)->older == number_of(at.extent, at.granule) &&
                       (at.extent->segment.handle[at.granule] == handle ||
                        xseg_segment_is_evicted(&at.extent->segment, at.granule)),
                   "granule %" PRIu32 " is not behind the place before it", next.granule);
        owners += is_owner(&at);
        serving += is_live(&at);
        serving_owners += is_owner(&at) && is_live(&at);
        at = next;
    } while (at.extent != begin.extent || at.granule != begin.granule);
    XSEG_HOLDS(finding, "PLACE-1", owners == 1, "%u owners", owners);
    XSEG_HOLDS(finding, "PLACE-2", serving == 0 || serving_owners == 1,
               "%u places that serve, and an owner that does not", serving);
    return true;
}

bool xseg_places_audit(const struct xseg_extent *extent, struct xseg_finding *finding)
{
    for (uint32_t at = 0; extent->elastic->place != NULL && at < extent->segment.granules; at++)
        if (xseg_elastic_is_shared(extent->elastic, at) &&
            !xseg_segment_is_guest(&extent->segment, at) && !audit_ring(extent, at, finding))
            return false;
    return true;
}
