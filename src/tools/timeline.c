/* SPDX-License-Identifier: MIT */
#include "src/tools/timeline.h"

#include <inttypes.h>
#include <string.h>

void timeline_init(struct timeline *timeline, FILE *file, uint64_t events)
{
    *timeline =
        (struct timeline){.file = file, .run = (events + TIMELINE_ROWS - 1) / TIMELINE_ROWS};
    if (file)
        (void)fprintf(file, "# event\trequested\tallocated\treserved\n");
}

static void write_row(struct timeline *timeline)
{
    (void)fprintf(timeline->file, "%" PRIu64 "\t%" PRIu64 "\t%" PRIu64 "\t%" PRIu64 "\n",
                  timeline->event, timeline->high[0], timeline->high[1], timeline->high[2]);
    memset(timeline->high, 0, sizeof(timeline->high));
    timeline->count = 0;
}

void timeline_add(struct timeline *timeline, uint64_t requested, uint64_t allocated,
                  uint64_t reserved)
{
    const uint64_t values[3] = {requested, allocated, reserved};

    timeline->event++;
    timeline->count++;
    for (int i = 0; i < 3; i++)
        if (values[i] > timeline->high[i])
            timeline->high[i] = values[i];
    if (timeline->count == timeline->run)
        write_row(timeline);
}

void timeline_mark(struct timeline *timeline, const char *label)
{
    (void)fprintf(timeline->file, "# mark\t%" PRIu64 "\t%s\n", timeline->event, label);
}

bool timeline_fini(struct timeline *timeline)
{
    if (!timeline->file)
        return true;
    if (timeline->count > 0)
        write_row(timeline);
    return fflush(timeline->file) == 0 && !ferror(timeline->file);
}
