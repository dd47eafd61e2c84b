/* SPDX-License-Identifier: MIT */
#include "src/tools/commands/export/export_lives.h"

#include <stdlib.h>

bool export_lives_init(struct export_lives *lives, size_t max)
{
    *lives = (struct export_lives){.max = max};
    lives->lives = malloc((max + 1) * sizeof(*lives->lives));
    return lives->lives;
}

void export_lives_fini(struct export_lives *lives)
{
    free(lives->lives);
    heap_fini(&lives->smallest);
    *lives = (struct export_lives){0};
}

bool export_lives_add(struct export_lives *lives, const struct export_life *life)
{
    const double weight = (double)life->bytes * (double)(life->ended_us - life->began_us + 1);
    uint32_t number;

    if (lives->count < lives->max) {
        lives->lives[lives->count] = *life;
        return heap_add(&lives->smallest, weight, (uint32_t)lives->count++);
    }
    lives->omitted++;
    if (lives->max == 0 || lives->smallest.items[0].key >= weight)
        return true;
    number = lives->smallest.items[0].number;
    lives->lives[number] = *life;
    heap_replace(&lives->smallest, weight, number);
    return true;
}

static int compare_begins(const void *first, const void *second)
{
    const struct export_life *a = first, *b = second;

    if (a->began_us != b->began_us)
        return a->began_us < b->began_us ? -1 : 1;
    return (a->address > b->address) - (a->address < b->address);
}

void export_lives_sort(struct export_lives *lives)
{
    if (lives->count > 0)
        qsort(lives->lives, lives->count, sizeof(*lives->lives), compare_begins);
}

/* The tracks of the slices. */
struct lanes {
    struct perfetto *trace;
    uint64_t *tracks; /* [count] */
    uint32_t *unused; /* [unused_count]: tracks without an open slice */
    struct heap open; /* tracks, by the end of their slice */
    uint32_t count, unused_count;
};

/* End the slices whose end is not after a time. */
static void end_slices(struct lanes *lanes, double until_us)
{
    while (lanes->open.count > 0 && lanes->open.items[0].key <= until_us) {
        const struct heap_item slice = heap_take(&lanes->open);

        perfetto_event_begin(lanes->trace, PERFETTO_SLICE_END, (uint64_t)slice.key,
                             lanes->tracks[slice.number], 0);
        perfetto_event_end(lanes->trace);
        lanes->unused[lanes->unused_count++] = slice.number;
    }
}

static uint32_t find_or_add_lane(struct lanes *lanes, const struct perfetto_track *track)
{
    if (lanes->unused_count > 0)
        return lanes->unused[--lanes->unused_count];
    lanes->tracks[lanes->count] = perfetto_track(lanes->trace, track);
    return lanes->count++;
}

bool export_lives_write(
    const struct export_lives *lives, struct perfetto *trace, const struct perfetto_track *track,
    bool (*begin)(void *context, const struct export_life *life, uint64_t track), void *context)
{
    struct lanes lanes = {.trace = trace};
    bool success;

    lanes.tracks = malloc((lives->count + 1) * sizeof(*lanes.tracks));
    lanes.unused = malloc((lives->count + 1) * sizeof(*lanes.unused));
    success = lanes.tracks && lanes.unused;
    for (size_t i = 0; success && i < lives->count; i++) {
        const struct export_life *life = &lives->lives[i];
        uint32_t lane;

        end_slices(&lanes, (double)life->began_us);
        lane = find_or_add_lane(&lanes, track);
        success = begin(context, life, lanes.tracks[lane]) &&
                  (!life->is_freed || heap_add(&lanes.open, (double)life->ended_us, lane));
    }
    if (success)
        end_slices(&lanes, (double)UINT64_MAX);
    heap_fini(&lanes.open);
    free(lanes.tracks);
    free(lanes.unused);
    return success;
}
