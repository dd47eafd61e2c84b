/* SPDX-License-Identifier: MIT */
/*
 * File kinds: the kind of a file that cannot be read as a memory snapshot or a trace, by its first bytes, and a remedy.
 *
 * A kind only explains an error.  Whether a file is read does not depend on it, so a wrong kind cannot reject a valid
 * file.
 *
 * Locking: none.
 */
#ifndef TOOLS_FILE_KIND_H
#define TOOLS_FILE_KIND_H

#include "src/tools/reading/input.h"

/* The kinds of files that the tool reads, for messages about other files. */
#define FILE_KIND_READ \
    "xseg reads memory snapshots (pickles), and `xseg replay` and `xseg advise` read traces"

/* The functions that write a snapshot. */
#define FILE_KIND_SNAPSHOT "torch.cuda.memory._dump_snapshot() or xseg_snapshot()"

/*
 * Describe a file that is no pickle of protocol 2 or later: "unsupported file, a gzip file; ...".
 *
 * Returns: false, with `out` unchanged, if it may be such a pickle, or cannot be read (input_error())
 */
bool file_kind_describe(struct input *input, char *out, size_t capacity);

#endif
