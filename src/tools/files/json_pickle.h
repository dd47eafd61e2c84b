/* SPDX-License-Identifier: MIT */
/*
 * Memory snapshots as JSON, which xseg_snapshot() writes with `as_json`: turned into the pickle that it would have
 * written, so that readers know pickles alone.
 *
 * `frames` that is a number is the place of a stack in `xseg.stacks`, or -1; the list of that stack is in its place
 * then.  The text is walked through twice, since the stacks come last, and no tree is made of it: jansson's would take
 * ten times the room of the text.
 *
 * Locking: none; what is read belongs to one thread.
 */
#ifndef TOOLS_JSON_PICKLE_H
#define TOOLS_JSON_PICKLE_H

#include "src/tools/files/input.h"
#include "src/tools/files/pickle.h"

#define JSON_FIRST '{' /* the first byte of every snapshot as JSON */

/* Whether a first byte is that of a snapshot, as a pickle or as JSON. */
static inline bool json_pickle_begins(int byte)
{
    return byte == PICKLE_PROTO || byte == JSON_FIRST;
}

/*
 * As pickle_read(), of JSON as well.
 *
 * problem: filled in on failure with a sentence that begins with where it is; empty where the taker has stopped
 */
bool json_pickle_read(struct input *input, const struct pickle_taker *taker, struct pickle *out,
                      char *problem, size_t room);

#endif
