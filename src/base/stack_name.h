/* SPDX-License-Identifier: MIT */
/*
 * The source of frames, file and line, as the debug information of their modules has it.
 *
 * libdw finds it.  It is opened at run time and never linked; where it cannot be opened, frames keep
 * the names that the depot has.  Files are read from where modules were loaded from.  Debug
 * information is found in them or in the system's folder for it, by build id; nothing is fetched from
 * a network.  A file that has changed since is not believed, unless it never had a build id.
 *
 * It is for whoever asks for it: reading debug information takes up to seconds and much memory.  What
 * is found is noted in the depot, so each frame is asked for once.
 *
 * Locking: a namer is used by one thread at a time.  No lock of the library may be held.
 */
#ifndef XSEG_BASE_STACK_NAME_H
#define XSEG_BASE_STACK_NAME_H

#include <stdbool.h>
#include <stdint.h>

#include "src/base/stack_depot.h"

struct xseg_stack_name_calls;
struct xseg_stack_name_file;

/* A namer: the files of a depot's modules that it has open. */
struct xseg_stack_name {
    struct xseg_stack_depot *depot;
    const struct xseg_stack_name_calls *calls; /* of libdw */
    struct xseg_stack_name_file *files;
};

/*
 * Open libdw.  It stays open; later calls only answer.
 *
 * Threads: any.  No lock of the library may be held: opening a library runs the code of others.
 *
 * Returns: whether it could be opened, and has what is needed
 */
bool xseg_stack_name_prepare(void);

/* Begin to name stacks of a depot, which outlives the namer.  Prepares, too.  Returns: false without
 * libdw; there is nothing to end then */
bool xseg_stack_name_init(struct xseg_stack_name *name, struct xseg_stack_depot *depot);

/* Close the files.  What was noted stays in the depot. */
void xseg_stack_name_fini(struct xseg_stack_name *name);

/*
 * Note the sources of a stack's frames in its depot, of those for which nobody has asked before.
 * Nothing is done for an unknown id.
 *
 * Cost: for the first frame of a module as long as it takes to open its file, then some microseconds a
 * frame.  The first frame of each unit of compilation reads its table of lines.  A frame for which the
 * depot has no function takes up to some milliseconds in a module of many symbols.
 */
void xseg_stack_name_stack(struct xseg_stack_name *name, uint32_t id);

#endif
