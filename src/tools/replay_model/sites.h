/* SPDX-License-Identifier: MIT */
/*
 * Call sites of a recording: the attribution of a block to source code, as one line of a report.
 *
 * A site is one frame of the call stack with some of its callers, a whole stack, or a label: that of the user, the compiled
 * region, the step or the stage of the allocation (annotations.h).  The frame is the first
 * of these that the stack has:
 *
 *   1. the innermost Python frame outside of PyTorch and of Python's own library
 *   2. the innermost Python frame
 *   3. the innermost apply() of a node of PyTorch's backward graph, which runs in threads without a Python frame
 *   4. the innermost frame with source outside of libraries that allocate for their callers (PyTorch, CUDA, libc, xseg)
 *   5. the innermost frame outside of such libraries
 *   6. the outermost named function of such a library
 *
 * Frames that start threads, interpret Python, schedule the backward graph or capture the stack are never sites, nor
 * callers.  A stack without any other frame counts as no stack.  Callers of a Python frame are Python frames; callers
 * of a frame of kind 1 are of kind 1.  C++ functions are recognized by their qualified name, without return type and
 * parameters.  All calls within one function of a library are one site.
 *
 * Locking: none; sites do not change after sites_init().
 */
#ifndef TOOLS_SITES_H
#define TOOLS_SITES_H

#include "src/tools/replay_model/replay_model.h"

/* The kinds of labels are in the order of the words of --label. */
enum sites_by {
    SITES_BY_FRAME,
    SITES_BY_STACK,
    SITES_BY_LABEL,
    SITES_BY_REGION,
    SITES_BY_STEP,
    SITES_BY_STAGE
};

#define SITES_KINDS (SITES_BY_STAGE + 1)

#define SITES_UNKNOWN 0u /* the file has no stack or label of it */
#define SITES_OLDER   1u /* allocated before the first event, without a stack or label */

struct site {
    uint32_t first, count; /* in sites.frames; the innermost comes first */
    uint32_t label;        /* text; by label */
};

struct sites {
    const struct recording *recording;
    enum sites_by by;
    struct site *sites;
    uint32_t *frames;   /* of the recording */
    uint32_t *of_stack; /* [recording.stack_count] */
    uint32_t *of_label; /* [recording.text_count], by text of a label */
    uint32_t count;
    size_t frame_count;
};

/*
 * Find all sites.
 *
 * @param depth  SITES_BY_FRAME: number of frames of a site, at least 1
 *
 * Returns: false if out of host memory; there is nothing to free then
 */
bool sites_init(struct sites *sites, const struct recording *recording, enum sites_by by,
                uint32_t depth);
void sites_fini(struct sites *sites);

/* Get whether sites are labels of any kind. */
static inline bool sites_are_labels(enum sites_by by)
{
    return by >= SITES_BY_LABEL;
}

/* Get the noun of a site, as the heading of a column: "site", "label", "compiled region". */
const char *sites_noun(enum sites_by by);

/* Get the label of a context that is its site; 0: none. */
uint32_t sites_label(const struct recording_context *context, enum sites_by by);

/* Get the site of a block; `sites` is a struct sites. */
uint32_t sites_of(const void *sites, const struct replay_model_block *block);

/*
 * Name a site: "model.py:212 forward", "backward pass: MmBackward0"; frames are joined by " < ".  The caller frees the
 * name; NULL if out of host memory.
 */
char *sites_name(const struct sites *sites, uint32_t number);

/* Get whether the file of a frame is a module, such as a shared library, and its line an offset in that module. */
bool sites_is_module(const struct recording *recording, uint32_t frame);

/* Name a frame: "model.py:212 forward", "decode (libdecode.so+0x200)".  The caller frees the name; NULL if out of host
 * memory. */
char *sites_frame_name(const struct recording *recording, uint32_t frame);

#endif
