/* SPDX-License-Identifier: MIT */
/*
 * Reads any bytes as a pickle of a memory snapshot; the first opcode is fixed, so that no input is a trace.  Every value of
 * an accepted pickle is in range, its trace can be replayed, the fragmented bytes of its sites have the correct sum,
 * and its profile equals itself.  The same is true for pinned host memory, and for sites by each kind of label.  The
 * snapshot can be written as a trace and as an HTML page.
 */
#include "src/tools/commands/blame/blame.h"
#include "src/tools/commands/export/export_trace.h"
#include "src/tools/commands/view/view_model.h"
#include "src/tools/ranks/compare.h"
#include "src/tools/reading/pickle.h"
#include "src/tools/reading/recording.h"
#include "src/tools/replay_model/host_memory.h"
#include "tests/fuzz/replayable.h"

static void check_value(const struct pickle *pickle, const struct pickle_value *value)
{
    uint64_t number;

    HOLDS(value->kind <= PICKLE_DICT);
    HOLDS(pickle_count(value) <= value->count);
    HOLDS(value->kind != PICKLE_DICT || value->count % 2 == 0);
    for (size_t i = 0; i < pickle_count(value); i++)
        HOLDS(value->items[i] < pickle->count);
    if (value->kind == PICKLE_TEXT || value->kind == PICKLE_BYTES) {
        HOLDS(value->text + value->count < pickle->text_bytes);
        HOLDS(pickle->text[value->text + value->count] == '\0');
    }
    HOLDS(!pickle_number(value, &number) || value->kind == PICKLE_INT);
    (void)pickle_find(pickle, value, "segments");
}

static void read_pickle(const uint8_t *data, size_t size)
{
    FILE *file = fmemopen((void *)(uintptr_t)data, size, "rb");
    struct input *input = file == NULL ? NULL : input_open(file);
    struct pickle_fault fault = {0, ""};
    struct pickle pickle;

    if (input == NULL)
        abort();
    if (pickle_read(input, NULL, &pickle, &fault)) {
        HOLDS(pickle_top(&pickle) < pickle.values + pickle.count);
        HOLDS(pickle.memory_bytes <= PICKLE_MEMORY);
        for (size_t i = 0; i < pickle.count; i++)
            check_value(&pickle, &pickle.values[i]);
        pickle_fini(&pickle);
    } else {
        HOLDS(fault.text[0] != '\0');
        HOLDS(fault.byte <= size);
    }
    input_close(input);
    (void)fclose(file);
}

static void blame_device(const struct recording *recording, const struct recording_device *device,
                         enum sites_by by)
{
    struct blame blame;
    fragmentation_sum fragmented = 0;

    HOLDS(blame_init(&blame, recording, device, by, 1, BLAME_BY_FRAGMENTED));
    for (uint32_t i = 0; i < blame.sites.count; i++)
        fragmented += blame.sums.sites[i].fragmented;
    HOLDS(fragmented == blame.sums.fragmented);
    HOLDS(blame.sums.allocated <= blame.sums.reserved);
    HOLDS(blame.sums.pending + blame.sums.near_pending + fragmented <=
          blame.sums.reserved - blame.sums.allocated);
    HOLDS(blame.sums.peak.allocated <= blame.sums.peak.reserved);
    blame_fini(&blame);
}

/* The sums do not depend on the kind of sites. */
static void blame_by_all_kinds(const struct recording *recording,
                               const struct recording_device *device)
{
    for (int by = 0; by < SITES_KINDS; by++)
        blame_device(recording, device, (enum sites_by)by);
}

static void check_host(const struct recording *recording)
{
    struct host_memory host;

    HOLDS(host_memory_init(&host, recording));
    HOLDS(host.is_recorded == recording_has_host(recording));
    HOLDS(host.reserved <= host.peak_reserved && host.allocated <= host.peak_allocated);
    HOLDS(host.is_recorded || host.peak_reserved == 0);
    blame_by_all_kinds(recording, &recording->host);
}

static void check_profile(const struct profile *profile)
{
    uint64_t sums[PROFILE_FIGURES] = {0};
    bool is_bounded = true;

    for (int i = 0; i < PROFILE_FIGURES; i++) {
        sums[i] = profile->pending.of[i] + profile->idle.of[i];
        for (size_t k = 0; k < profile->site_count; k++) {
            is_bounded &= profile->sites[k].figures.of[i] < PROFILE_MAX >> 16;
            sums[i] += profile->sites[k].figures.of[i];
        }
        HOLDS(profile->total.of[i] <= PROFILE_MAX);
        HOLDS(!is_bounded || profile->total.of[i] == PROFILE_MAX ||
              profile->total.of[i] == sums[i]);
    }
}

/* Compare a profile with itself, and with the sum of two copies. */
static void compare_device(const struct recording *recording, const struct recording_device *device)
{
    const struct profile_rules rules = {.by = SITES_BY_FRAME, .depth = 1, .by_events = true};
    struct profile profile, sum = {0};
    struct compare compare;

    HOLDS(profile_init(&profile, recording, device, &rules));
    check_profile(&profile);
    HOLDS(compare_init(&compare, &profile, &profile, true));
    HOLDS(compare.row_count == profile.site_count + 2 && compare.differing == 0);
    HOLDS(compare_judge(&compare).result == COMPARE_EQUAL);
    compare_fini(&compare);
    HOLDS(profile_add(&sum, &profile) && profile_add(&sum, &profile));
    HOLDS(sum.site_count == profile.site_count);
    check_profile(&sum);
    HOLDS(compare_init(&compare, &profile, &sum, true));
    (void)compare_judge(&compare);
    compare_fini(&compare);
    profile_fini(&sum);
    profile_fini(&profile);
}

static void write_devices(const struct recording *recording)
{
    FILE *out = fopen("/dev/null", "w");
    struct replay_model_dropped dropped;
    size_t summed;

    if (out == NULL)
        abort();
    HOLDS(export_trace_write(out, recording, NULL, 3, &dropped));
    for (size_t i = 0; i < recording->device_count; i++)
        HOLDS(view_model_write(out, 0, recording, &recording->devices[i], 3, &summed, &dropped));
    (void)fclose(out);
}

static void read_recording(const uint8_t *data, size_t size)
{
    FILE *file = fmemopen((void *)(uintptr_t)data, size, "rb");
    struct input *input = file == NULL ? NULL : input_open(file);
    struct recording_fault fault = {""};
    struct recording recording;

    if (input == NULL)
        abort();
    if (recording_read(input, "fuzzed", NULL, &recording, &fault)) {
        for (size_t i = 0; i < recording.device_count; i++)
            blame_by_all_kinds(&recording, &recording.devices[i]);
        for (size_t i = 0; i < recording.device_count; i++)
            compare_device(&recording, &recording.devices[i]);
        check_host(&recording);
        write_devices(&recording);
        recording_fini(&recording);
    } else {
        HOLDS(fault.text[0] != '\0');
    }
    input_close(input);
    (void)fclose(file);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t *copy = size > 0 ? malloc(size) : NULL;

    if (copy == NULL)
        return 0;
    memcpy(copy, data, size);
    copy[0] = PICKLE_PROTO;
    read_pickle(copy, size);
    read_any(copy, size);
    read_recording(copy, size);
    free(copy);
    return 0;
}
