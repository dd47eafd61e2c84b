/* SPDX-License-Identifier: MIT */
/*
 * Names of frames: function, file and line, from the symbol tables and the debug information of their modules.
 *
 * libdw reads them.  It is opened at run time and never linked; where it cannot be opened, frames are module and
 * offset.  Files are read from where modules were loaded from, also after the modules were unloaded.  Debug information
 * is found in them or in the system's folder for it, by build ID; nothing is fetched from a network.  A file with
 * another build ID is not used.
 *
 * Names are looked up when a snapshot is written, not when a stack is recorded:
 * reading debug information takes up to seconds and much host memory.  The result is recorded in the depot, so each frame
 * is looked up once.
 *
 * Locking: a namer is used by one thread at a time.  No lock of the library may be held.
 */
#ifndef XSEG_BASE_SYMBOLIZER_H
#define XSEG_BASE_SYMBOLIZER_H

#include <stdbool.h>
#include <stdint.h>

#include "src/base/stack_depot.h"

struct xseg_libdw;
struct xseg_symbolizer_file;

/* A namer: the files of a depot's modules that it has open. */
struct xseg_symbolizer {
    struct xseg_stack_depot *depot;
    const struct xseg_libdw *calls; /* of libdw */
    struct xseg_symbolizer_file *files;
};

/*
 * Open libdw.  It stays open; later calls only answer.
 *
 * Threads: any.  No lock of the library may be held: opening a library runs the code of others.
 *
 * Returns: whether it could be opened, and has what is needed
 */
bool xseg_symbolizer_prepare(void);

/* Begin to name stacks of a depot, which outlives the namer.  Prepares, too.  Returns: false without
 * libdw; there is nothing to end then */
bool xseg_symbolizer_init(struct xseg_symbolizer *name, struct xseg_stack_depot *depot);

/* Close the files.  What was noted stays in the depot. */
void xseg_symbolizer_fini(struct xseg_symbolizer *name);

/*
 * Note the sources of a stack's frames in its depot, of those for which nobody has asked before.
 * Nothing is done for an unknown id.
 *
 * Cost: for the first frame of a module, opening its file and sorting its functions; then some microseconds a frame.  The
 * first frame of each compilation unit reads its line table.
 */
void xseg_symbolizer_resolve(struct xseg_symbolizer *name, uint32_t id);

/*
 * Record the sources of all stacks of a depot for which no call has done that yet.  Threads: any.
 *
 * deadline_ns: of CLOCK_MONOTONIC: no stack is begun after it; UINT64_MAX: none
 *
 * Returns: false without libdw
 */
bool xseg_symbolizer_resolve_all(struct xseg_stack_depot *depot, uint64_t deadline_ns);

#endif
