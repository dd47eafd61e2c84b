/* SPDX-License-Identifier: MIT */
/*
 * The names of a recording that is being read: each text, frame, stack and pool gets one number.
 *
 * Locking: none; they belong to one thread.
 */
#ifndef TOOLS_RECORDING_NAMES_H
#define TOOLS_RECORDING_NAMES_H

#include "src/tools/containers/index.h"
#include "src/tools/reading/recording.h"

struct recording_names {
    struct recording *out;
    size_t text_bytes, stack_frame_count;
    struct index texts, frames, stacks, pools;
};

/* Each returns false without host memory. */
bool recording_names_init(struct recording_names *names, struct recording *out);
void recording_names_fini(struct recording_names *names);

bool recording_names_text(struct recording_names *names, const char *text, uint32_t *out);
bool recording_names_frame(struct recording_names *names, const struct recording_frame *frame,
                           uint32_t *out);
bool recording_names_pool(struct recording_names *names, const uint64_t id[2], uint32_t *out);

bool recording_names_stack(struct recording_names *names, const uint32_t *frames, size_t count,
                           uint32_t *out);

#endif
