/* SPDX-License-Identifier: MIT */
#include "src/tools/commands/advise/advise_why.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/tools/output/amount.h"

/* How many programmes complete with a string. */
static size_t served_with(const struct advice *advice, const struct advise_string *string)
{
    size_t count = 0;

    for (size_t i = 0; i < advice->trials->count; i++)
        count += string->of[i].serves;
    return count;
}

/* "falls from 41.17 GiB to 17.26 GiB", "rises from ...", "stays at 17.26 GiB" */
static void put_change(FILE *out, uint64_t from, uint64_t to)
{
    if (amount_bytes_equal(from, to))
        (void)fprintf(out, "stays at %s", amount_bytes(to).text);
    else
        (void)fprintf(out, "%s from %s to %s", to < from ? "falls" : "rises",
                      amount_bytes(from).text, amount_bytes(to).text);
}

/* Where caches fill the device with either string, the peaks on one with room, by which strings are compared. */
static void put_peaks(FILE *out, const struct advice *advice)
{
    const struct trial_figures *before = &advice->in_force.figures;
    const struct trial_figures *after = &advice->advised.figures;
    const bool with_room =
        amount_bytes_equal(before->peak_reserved, after->peak_reserved) && before->room.completes &&
        after->room.completes &&
        !amount_bytes_equal(before->room.peak_reserved, after->room.peak_reserved);

    if (with_room)
        (void)fprintf(out, "with room, on %s, ",
                      amount_bytes(advice->trials->programmes[0].roomy_bytes).text);
    (void)fprintf(out, "the %s ",
                  advice_is_of_ranks(advice) ? "largest peak of these ranks" : "peak");
    put_change(out, with_room ? before->room.peak_reserved : before->peak_reserved,
               with_room ? after->room.peak_reserved : after->peak_reserved);
}

/* Where not all is played: of the first programme that gets further. */
static void put_lasting(FILE *out, const struct advice *advice)
{
    for (size_t i = 0; i < advice->trials->count; i++) {
        const int64_t before = advice->in_force.of[i].oom_at, after = advice->advised.of[i].oom_at;

        if (before < 0 || (after >= 0 && after <= before))
            continue;
        (void)fputs("memory ", out);
        if (advice_is_of_ranks(advice))
            (void)fprintf(out, "of %s ", advice->trials->programmes[i].name);
        if (after < 0)
            (void)fprintf(out, "lasts instead of running out at event %s",
                          amount_count((uint64_t)before).text);
        else
            (void)fprintf(out, "lasts up to event %s instead of %s",
                          amount_count((uint64_t)after).text, amount_count((uint64_t)before).text);
        return;
    }
    put_peaks(out, advice);
}

/* A lower peak need not let it run on less. */
static void put_smallest(FILE *out, const struct advice *advice)
{
    const struct trial_figures *before = &advice->in_force.figures;
    const struct trial_figures *after = &advice->advised.figures;

    if (!before->has_min_device || !after->has_min_device ||
        (after->min_device < before->min_device &&
         !amount_bytes_equal(before->min_device, after->min_device)))
        return;
    (void)fputs("; the smallest device ", out);
    put_change(out, before->min_device, after->min_device);
}

static void put_reason(FILE *out, const struct advice *advice)
{
    const struct advise_string *before = &advice->in_force, *after = &advice->advised;
    const size_t served = served_with(advice, after);
    const bool completes = served > served_with(advice, before);

    if (completes && advice_is_of_ranks(advice))
        (void)fprintf(out, "%s of these %s complete instead of %s", amount_count(served).text,
                      amount_of(advice->trials->count, "rank").text,
                      amount_count(served_with(advice, before)).text);
    else if (completes)
        (void)fprintf(out, "it completes on %s", amount_bytes(advice_target(advice)).text);
    if (completes && before->figures.completes)
        (void)fputs(", and ", out);
    if (before->figures.completes)
        put_peaks(out, advice);
    else if (!completes)
        put_lasting(out, advice);
    if (after->changes > 1)
        (void)fprintf(out, ", most of it by %s: %s", advice->key, advice->cause);
    else
        (void)fprintf(out, ", since %s", advice->cause);
    put_smallest(out, advice);
}

static void put_nothing(FILE *out, const struct advice *advice)
{
    const struct trial_figures *figures = &advice->in_force.figures;

    if (!figures->completes) {
        (void)fprintf(out, "of %s ", amount_of(advice->replayed, "configuration").text);
        if (advice_is_of_ranks(advice)) {
            (void)fputs("with none do more of these ranks complete", out);
            return;
        }
        (void)fprintf(out, "none completes on %s", amount_bytes(advice_target(advice)).text);
        return;
    }
    (void)fprintf(out,
                  "of %s none lowers the %s of %s by more than a hundredth within "
                  "%s more of the driver's time%s; %s of it are what the programme itself asks for "
                  "at a time",
                  amount_of(advice->replayed, "configuration").text,
                  advice_is_of_ranks(advice) ? "largest peak" : "peak",
                  amount_bytes(figures->peak_reserved).text,
                  amount_time((double)advice->driver_ns).text,
                  advice->needs_larger ? " without needing a larger device" : "",
                  amount_bytes(figures->peak_requested).text);
}

char *advise_why(const struct advice *advice)
{
    size_t bytes = 0;
    char *text = NULL;
    FILE *out = open_memstream(&text, &bytes);

    if (!out)
        return NULL;
    if (!advice->is_certain)
        (void)fputs("as far as the history shows, ", out);
    if (advice->advised.config)
        put_reason(out, advice);
    else
        put_nothing(out, advice);
    if (fclose(out) == 0)
        return text;
    free(text);
    return NULL;
}
