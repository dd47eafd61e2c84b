/* SPDX-License-Identifier: MIT */
/*
 * Sources: where in the source the frames of a recording stand that it has only as a module and an offset in it.
 *
 * A frame is looked for once.  Where its module does not tell (names.h), it stays as it was recorded.
 *
 * Locking: none; it belongs to one thread.
 */
#ifndef TOOLS_SOURCES_H
#define TOOLS_SOURCES_H

#include "src/tools/containers/index.h"
#include "src/tools/reading/names.h"
#include "src/tools/reading/recording_names.h"

struct sources {
    struct names *names;  /* NULL: no module is looked into */
    struct source *found; /* [count] */
    struct index index;   /* of what was found */
    size_t count;
};

/* names: borrowed, or NULL */
void sources_init(struct sources *sources, struct names *names);
void sources_fini(struct sources *sources);

/*
 * The number of a frame, by its source if that is known.
 *
 * frame:   as it was recorded, with texts of `into`
 * Returns: false without host memory
 */
bool sources_frame(struct sources *sources, struct recording_names *into,
                   const struct recording_frame *frame, uint32_t *out);

#endif
