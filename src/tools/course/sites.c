/* SPDX-License-Identifier: MIT */
#include "src/tools/course/sites.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/tools/containers/index.h"

/* --- Which frame of a stack. --- */

static bool begins(const char *text, const char *with)
{
    return strncmp(text, with, strlen(with)) == 0;
}

static bool ends(const char *text, const char *with)
{
    const size_t length = strlen(text), tail = strlen(with);

    return length >= tail && strcmp(text + length - tail, with) == 0;
}

static bool begins_with_any(const char *text, const char *const *words)
{
    for (; *words; words++)
        if (begins(text, *words))
            return true;
    return false;
}

static bool has_any(const char *text, const char *const *words)
{
    for (; *words; words++)
        if (strstr(text, *words))
            return true;
    return false;
}

static bool is_python(const char *file)
{
    return ends(file, ".py") || file[0] == '<';
}

/* Whether Python's own library or a package that allocates for others has a file. */
static bool is_python_library(const char *file)
{
    static const char *const packages[] = {"-packages/torch/", "-packages/xseg/", "<frozen ", NULL};

    return begins(file, "torch/") || has_any(file, packages) ||
           (strstr(file, "/lib/python") && !strstr(file, "-packages/"));
}

static bool is_library(const char *module, const char *file, const char *name)
{
    static const char *const modules[] = {
        "libtorch", "libc10", "libxseg",   "libcuda",  "libnvidia", "libnccl", "libpython",
        "libc.",    "libc-",  "libstdc++", "ld-linux", "libunwind", NULL};
    static const char *const folders[] = {"/c10/", "/aten/src/", "/torch/csrc/", NULL};
    static const char *const names[] = {"c10::", "at::", "torch::", "xseg_", "cuMem", "cudaMalloc",
                                        "std::", "_Py",  "Py",      "THP",   NULL};
    const char *base = strrchr(module, '/');

    return begins_with_any(base ? base + 1 : module, modules) || has_any(file, folders) ||
           begins_with_any(name, names);
}

/* How well a frame tells who it was: Python's before others, with a source before without. */
static int worth(const struct recording *recording, uint32_t number)
{
    const struct recording_frame *frame = &recording->frames[number];
    const char *file = recording_text(recording, frame->file);

    if (is_python(file))
        return is_python_library(file) ? 3 : 4;
    if (is_library(frame->module ? recording_text(recording, frame->module) : file, file,
                   recording_text(recording, frame->name)))
        return 0;
    return sites_is_module(recording, number) ? 1 : 2;
}

static uint32_t place_of_site(const struct recording *recording,
                              const struct recording_stack *stack, const int8_t *worths)
{
    const uint32_t *frames = recording->stack_frames + stack->first;
    uint32_t best = 0;

    for (uint32_t i = 1; i < stack->count; i++)
        if (worths[frames[i]] > worths[frames[best]])
            best = i;
    return best;
}

/* --- Sites by their frames. --- */

static bool is_site(const void *owner, uint32_t number, const void *frames, size_t bytes)
{
    const struct sites *sites = owner;
    const struct site *site = &sites->sites[number];

    return site->count * sizeof(*sites->frames) == bytes &&
           memcmp(sites->frames + site->first, frames, bytes) == 0;
}

static bool get_site(struct sites *sites, struct index *index, const uint32_t *frames,
                     uint32_t count, uint32_t *out)
{
    const size_t bytes = count * sizeof(*frames);
    const uint64_t sum = index_sum(frames, bytes);

    *out = index_find(index, sum, frames, bytes, is_site, sites);
    if (*out != INDEX_NONE)
        return true;
    memcpy(sites->frames + sites->frame_count, frames, bytes);
    sites->sites[sites->count] =
        (struct site){.first = (uint32_t)sites->frame_count, .count = count};
    sites->frame_count += count;
    *out = sites->count++;
    return index_add(index, sum, *out);
}

static bool find_sites(struct sites *sites, struct index *index, const int8_t *worths,
                       uint32_t depth)
{
    const struct recording *recording = sites->recording;

    for (size_t i = 0; i < recording->stack_count; i++) {
        const struct recording_stack *stack = &recording->stacks[i];
        const bool is_whole = sites->by == SITES_BY_STACK;
        const uint32_t first = is_whole ? 0 : place_of_site(recording, stack, worths);
        uint32_t count = stack->count - first;

        if (stack->count == 0)
            continue;
        if (!is_whole && count > depth)
            count = depth;
        if (!get_site(sites, index, recording->stack_frames + stack->first + first, count,
                      &sites->of_stack[i]))
            return false;
    }
    return true;
}

static bool make_stack_sites(struct sites *sites, uint32_t depth)
{
    const struct recording *recording = sites->recording;
    struct index index = {0};
    int8_t *worths = malloc(recording->frame_count + 1);
    size_t frames = 0;
    bool fine;

    for (size_t i = 0; i < recording->stack_count; i++)
        frames += recording->stacks[i].count;
    sites->frames = malloc((frames + 1) * sizeof(*sites->frames));
    sites->sites = calloc(recording->stack_count + 2, sizeof(*sites->sites));
    sites->of_stack = calloc(recording->stack_count + 1, sizeof(*sites->of_stack));
    fine = worths && sites->frames && sites->sites && sites->of_stack;
    if (fine) {
        for (size_t i = 0; i < recording->frame_count; i++)
            worths[i] = (int8_t)worth(recording, (uint32_t)i);
        fine = find_sites(sites, &index, worths, depth);
    }
    index_fini(&index);
    free(worths);
    return fine;
}

/* --- Sites by label. --- */

static bool make_label_sites(struct sites *sites)
{
    const struct recording *recording = sites->recording;

    sites->of_label = calloc(recording->text_count + 1, sizeof(*sites->of_label));
    sites->sites = calloc(recording->text_count + 2, sizeof(*sites->sites));
    if (!sites->of_label || !sites->sites)
        return false;
    for (size_t i = 0; i < recording->device_count; i++)
        for (size_t at = 0; at < recording->devices[i].event_count; at++) {
            const uint32_t label = recording->devices[i].events[at].label;

            if (label == 0 || sites->of_label[label] != 0)
                continue;
            sites->of_label[label] = sites->count;
            sites->sites[sites->count++] = (struct site){.label = label};
        }
    return true;
}

bool sites_init(struct sites *sites, const struct recording *recording, enum sites_by by,
                uint32_t depth)
{
    memset(sites, 0, sizeof(*sites));
    sites->recording = recording;
    sites->by = by;
    sites->count = 2;
    if (by == SITES_BY_LABEL ? make_label_sites(sites) : make_stack_sites(sites, depth))
        return true;
    sites_fini(sites);
    return false;
}

void sites_fini(struct sites *sites)
{
    free(sites->sites);
    free(sites->frames);
    free(sites->of_stack);
    free(sites->of_label);
    memset(sites, 0, sizeof(*sites));
}

uint32_t sites_of(const void *self, const struct course_block *block)
{
    const struct sites *sites = self;
    const uint32_t site =
        sites->by == SITES_BY_LABEL ? sites->of_label[block->label] : sites->of_stack[block->stack];

    return site == SITES_UNKNOWN && block->is_older ? SITES_OLDER : site;
}

/* --- Names. --- */

bool sites_is_module(const struct recording *recording, uint32_t number)
{
    const struct recording_frame *frame = &recording->frames[number];

    return frame->build_id != 0 || strstr(recording_text(recording, frame->file), ".so") != NULL;
}

char *sites_frame_name(const struct recording *recording, uint32_t number)
{
    const struct recording_frame *frame = &recording->frames[number];
    const char *name = recording_text(recording, frame->name);
    const char *file = recording_text(recording, frame->file);
    char *text = NULL;
    int length;

    if (sites_is_module(recording, number))
        length = asprintf(&text, "%s (%s+0x%" PRIx64 ")", name, file, frame->line);
    else if (file[0] == '\0')
        length = asprintf(&text, "%s", name[0] ? name : "??");
    else
        length = asprintf(&text, "%s:%" PRIu64 "%s%s", file, frame->line, name[0] ? " " : "", name);
    return length < 0 ? NULL : text;
}

static char *frames_name(const struct sites *sites, const struct site *site)
{
    char *whole = NULL;

    for (uint32_t i = 0; i < site->count; i++) {
        char *frame = sites_frame_name(sites->recording, sites->frames[site->first + i]);
        char *longer = NULL;

        if (!frame ||
            asprintf(&longer, "%s%s%s", whole ? whole : "", whole ? " < " : "", frame) < 0)
            longer = NULL;
        free(frame);
        free(whole);
        if (!longer)
            return NULL;
        whole = longer;
    }
    return whole;
}

char *sites_name(const struct sites *sites, uint32_t number)
{
    const struct site *site = &sites->sites[number];

    if (number == SITES_OLDER)
        return strdup("(allocated before the recording began)");
    if (number == SITES_UNKNOWN)
        return strdup(sites->by == SITES_BY_LABEL ? "(no label)" : "(no stack)");
    if (sites->by == SITES_BY_LABEL)
        return strdup(recording_text(sites->recording, site->label));
    return frames_name(sites, site);
}
