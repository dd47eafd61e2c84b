/* SPDX-License-Identifier: MIT */
/*
 * The symbolizer: resolves frames of a stack depot to function, file and line.
 *
 * Frames are resolved when a snapshot is written, not when a stack is recorded, because reading debug information takes up
 * to seconds and much host memory.  Results are stored in the depot, so each frame is resolved once.
 *
 * libdw reads symbol tables and debug information.  It is loaded at run time and never linked; if it cannot be loaded, frames
 * remain module and offset.  Files are read from the paths of the modules, also after the modules were unloaded; debug
 * information is found in these files, or by build ID in the system's directory.  Nothing is fetched from a network.  A file
 * whose build ID differs from the module's is not used.
 *
 * Locking: one thread uses a symbolizer at a time, and holds no lock of the library.
 */
#ifndef XSEG_BASE_SYMBOLIZER_H
#define XSEG_BASE_SYMBOLIZER_H

#include <stdbool.h>
#include <stdint.h>

#include "src/base/stack_depot.h"

struct xseg_libdw;
struct xseg_symbolizer_file;

/* A depot, and the open files of its modules. */
struct xseg_symbolizer {
    struct xseg_stack_depot *depot;
    const struct xseg_libdw *libdw;
    struct xseg_symbolizer_file *files;
};

/*
 * Load libdw, which remains loaded.  Later libdw only return the result.
 *
 * Threads: any; no lock of the library may be held, because loading a library runs its constructors.
 *
 * Returns: whether libdw was loaded and has all required functions
 */
bool xseg_symbolizer_prepare(void);

/* Initialize a symbolizer for a depot that outlives it, and load libdw.  Returns false without libdw. */
bool xseg_symbolizer_init(struct xseg_symbolizer *symbolizer, struct xseg_stack_depot *depot);

/* Close all files. */
void xseg_symbolizer_fini(struct xseg_symbolizer *symbolizer);

/*
 * Resolve all frames of a stack that are not resolved.  No effect for an unknown ID.
 *
 * Cost: some microseconds per frame.  The first frame of a module opens its file and sorts its functions; the first frame of
 * each compilation unit reads its line table.
 */
void xseg_symbolizer_resolve(struct xseg_symbolizer *symbolizer, uint32_t id);

/*
 * Resolve all stacks of a depot that are not resolved.  Threads: any.
 *
 * deadline_ns: time of CLOCK_MONOTONIC after which no further stack is resolved; UINT64_MAX: none
 *
 * Returns: false without libdw
 */
bool xseg_symbolizer_resolve_all(struct xseg_stack_depot *depot, uint64_t deadline_ns);

#endif
