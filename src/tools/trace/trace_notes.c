/* SPDX-License-Identifier: MIT */
#include "src/tools/trace/trace_notes.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "src/tools/output/amount.h"
#include "src/tools/output/output.h"
#include "src/tools/output/text.h"

#define MIB          ((uint64_t)1 << 20)
#define SIGNIFICANCE 100 /* missing data of less than 1/100 of the file changes no conclusion */
#define RECORD_FULL \
    "record all entries from the start of the program (_record_memory_history(), history:all)"

static void add_note(struct trace_notes *notes, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static void add_note(struct trace_notes *notes, const char *format, ...)
{
    va_list arguments;

    if (notes->count == TRACE_NOTES_MAX)
        return;
    va_start(arguments, format);
    (void)vsnprintf(notes->text[notes->count++], sizeof(notes->text[0]), format, arguments);
    va_end(arguments);
}

static uint64_t compute_tolerance(uint64_t bytes)
{
    return bytes / SIGNIFICANCE > 2 * MIB ? bytes / SIGNIFICANCE : 2 * MIB;
}

/* --- Reserved memory. --- */

static void find_missing_memory(struct trace_notes *notes, const struct xtrace *trace,
                                uint64_t end_reserved)
{
    const struct xtrace_end *end = &trace->end;
    const uint64_t in_blocks =
        end->bytes_before < end->reserved_before ? end->bytes_before : end->reserved_before;

    /* A history that contains every growth is complete; a replay may then end with less, because xseg needs less. */
    if (end->reserved_before - in_blocks <= compute_tolerance(end->reserved))
        return;
    if (end_reserved == TRACE_NOTES_UNKNOWN) {
        add_note(notes,
                 "history: %s were reserved before its first entry, of which the replay has %s in "
                 "allocated blocks: peaks may be too low, and the effect of a configuration is not "
                 "known; " RECORD_FULL,
                 amount_bytes(end->reserved_before).text, amount_bytes(in_blocks).text);
    } else if (end->reserved > end_reserved &&
               end->reserved - end_reserved > compute_tolerance(end->reserved)) {
        add_note(
            notes,
            "history: %s of the %s that are reserved at its end are missing, since a replay "
            "with the file's configuration ends with %s: peaks are too low, and the effect of a "
            "configuration is not known; " RECORD_FULL,
            amount_bytes(end->reserved - end_reserved).text, amount_bytes(end->reserved).text,
            amount_bytes(end_reserved).text);
    } else {
        return;
    }
    notes->is_certain = false;
}

/* --- Blocks. --- */

static void find_missing_events(struct trace_notes *notes, const struct xtrace *trace)
{
    const struct xtrace_end *end = &trace->end;

    if (end->unfreed > 0)
        add_note(notes,
                 "history: its end has %s that no segment of the file contains: their frees are "
                 "missing, and peaks may be too high",
                 amount_of(end->unfreed, "allocated block").text);
    if (end->inserted_frees > 0)
        add_note(
            notes,
            "history: %s %s missing: the replay frees a block when its address is allocated again, "
            "and peaks may be too high",
            amount_of(end->inserted_frees, "free").text, end->inserted_frees == 1 ? "is" : "are");
    if (end->unknown > 0)
        add_note(
            notes,
            "history: no allocation of %s (%s) in the segments of the file: peaks may be too low",
            amount_of(end->unknown, "block").text, amount_bytes(end->unknown_bytes).text);
    if ((end->unfreed + end->inserted_frees + end->unknown) * SIGNIFICANCE > trace->events)
        notes->is_certain = false;
}

/* --- The configuration. --- */

static void find_inferred(struct trace_notes *notes, const struct xtrace *trace)
{
    const char *kind = strstr(trace->config, "expandable_segments:True") ? "True" : "False";

    if (trace->end.inferred == XTRACE_SEGMENTS_SHOWN)
        add_note(notes,
                 "configuration: the file has no setting expandable_segments; inferred from its "
                 "segments: expandable_segments:%s",
                 kind);
    if (trace->end.inferred == XTRACE_SEGMENTS_ASSUMED)
        add_note(notes,
                 "configuration: the file has neither a setting expandable_segments nor segments; "
                 "PyTorch's default is assumed, expandable_segments:False");
    if (!trace->end.contradicts)
        return;
    add_note(
        notes,
        "configuration: the settings of the file mean expandable_segments:%s, and all its segments "
        "are %s, so replays differ from what was recorded; --config of `xseg replay` sets the kind",
        kind, kind[0] == 'T' ? "classic" : "expandable");
    notes->is_certain = false;
}

/* Get the number of a key in a configuration; `default_number` without the key. */
static double get_key_number(const char *config, const char *key, double default_number)
{
    const char *at = xtrace_names_key(config, key) ? strstr(config, key) : NULL;

    at = at ? strchr(at, ':') : NULL;
    return at ? strtod(at + 1, NULL) : default_number;
}

static void find_collection(struct trace_notes *notes, const char *config)
{
    if (get_key_number(config, "garbage_collection_threshold", 0) > 0 &&
        get_key_number(config, "per_process_memory_fraction", 1) >= 1)
        add_note(notes,
                 "configuration: garbage_collection_threshold has no effect in a replay without "
                 "per_process_memory_fraction below 1; a fraction that the program set by a call "
                 "is not in the file");
}

void trace_notes_find(struct trace_notes *notes, const struct xtrace *trace, const char *config,
                      bool is_own, uint64_t end_reserved)
{
    *notes = (struct trace_notes){.is_certain = true};
    find_collection(notes, config);
    if (!trace->is_snapshot)
        return;
    if (is_own && trace->config)
        find_inferred(notes, trace);
    if (!trace->has_history) {
        add_note(
            notes,
            "history: the file has none, and the replay allocates only the blocks that are "
            "allocated at its end, %s of the %s that are reserved: peaks may be too low, and the "
            "effect of a configuration is not known; " RECORD_FULL,
            amount_bytes(trace->end.bytes_before).text, amount_bytes(trace->end.reserved).text);
        notes->is_certain = false;
        return;
    }
    find_missing_memory(notes, trace, end_reserved);
    find_missing_events(notes, trace);
}

json_t *trace_notes_json(const struct trace_notes *notes)
{
    json_t *list = json_array();

    for (unsigned i = 0; i < notes->count; i++)
        output_json_add(&list, text_json(notes->text[i]));
    return list;
}
