/* SPDX-License-Identifier: MIT */
/*
 * Interning while a recording is read: each string, frame, stack, pool and context gets one index in the recording.  Frames
 * that are a module and an offset are symbolized (symbols.h), once per frame; without symbols a frame remains as
 * recorded.
 *
 * Locking: none; one thread uses them.
 */
#ifndef TOOLS_RECORDING_NAMES_H
#define TOOLS_RECORDING_NAMES_H

#include "src/tools/containers/containers.h"
#include "src/tools/reading/recording.h"
#include "src/tools/reading/symbols.h"

struct recording_names {
    struct recording *out;
    size_t text_bytes, stack_frame_count;
    struct index texts, frames, stacks, pools, contexts;
};

/* Each function returns false if out of host memory. */
bool recording_names_init(struct recording_names *names, struct recording *out);
void recording_names_fini(struct recording_names *names);

bool recording_names_text(struct recording_names *names, const char *text, uint32_t *out);
bool recording_names_frame(struct recording_names *names, const struct recording_frame *frame,
                           uint32_t *out);
bool recording_names_pool(struct recording_names *names, const uint64_t id[2], uint32_t *out);
bool recording_names_context(struct recording_names *names, const struct recording_context *context,
                             uint32_t *out);
bool recording_names_stack(struct recording_names *names, const uint32_t *frames, size_t count,
                           uint32_t *out);

struct recording_symbols {
    struct symbols *symbols;        /* NULL: frames are not symbolized */
    struct recording_symbol *found; /* [count] */
    struct index index;             /* of `found` */
    size_t count;
};

/* source: must outlive `symbols`; NULL: frames are not symbolized */
void recording_symbols_init(struct recording_symbols *symbols, struct symbols *source);
void recording_symbols_fini(struct recording_symbols *symbols);

/*
 * Get the index of a frame, symbolized if possible.
 *
 * frame:   as recorded, with strings of `names`.
 * Returns: false if out of host memory.
 */
bool recording_symbols_frame(struct recording_symbols *symbols, struct recording_names *names,
                             const struct recording_frame *frame, uint32_t *out);

#endif
