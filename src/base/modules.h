/* SPDX-License-Identifier: MIT */
/*
 * Modules and frames: where the return addresses of call stacks are located.
 *
 * A stack is recorded as return addresses and may be read long after a library was unloaded, so the location of each
 * address is recorded when the address is first seen.
 *
 *   module   a file that was loaded: its path, its build ID and a hash of its program headers.  A different file that is
 *            loaded later from the same path is another module.
 *   mapping  a module at a load address.  A mapping is loaded or not; if the module is loaded again at the same address,
 *            the mapping is loaded again.
 *   frame    a return address in a mapping, or in none.  The same address in two mappings is two frames.  Frames are looked
 *            up by the address of the call, one byte below, because a call can be the last instruction of a function.
 *   source   the function, file and line of a frame, after the symbolizer has resolved it (symbolizer.h).
 *
 * The list of mappings is refreshed by dl_iterate_phdr() when the loader's counters of loads and unloads have changed.  Its
 * callback runs under the loader's lock, so no module is loaded or unloaded while the callback uses the list.
 * Only modules of the namespace in which this library is loaded are known, not those of dlmopen().
 *
 * All records are in the owner's memory (intern.h), never move, and remain valid as long as that memory.
 *
 * Invariants:
 *   MODULES-1  `loaded` contains exactly the loaded mappings, in ascending order, and they do not overlap.
 *   MODULES-2  modules differ in name, build ID or hash; mappings differ in module or address.
 *   FRAMES-1   each frame is found by its address and mapping, which identify it.
 *   FRAMES-2   a frame in no mapping has no source.
 *
 * Locking: the owner's lock covers all functions of modules, xseg_frames_add() and xseg_frames_set_source().  Reads of
 * frames, modules and mappings (except `is_reported`) are lock-free; of their members, only `is_loaded` and the source of a
 * frame change.
 */
#ifndef XSEG_BASE_MODULES_H
#define XSEG_BASE_MODULES_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "src/base/check.h"
#include "src/base/intern.h"

/* --- Modules. --- */

struct xseg_module {
    struct xseg_module *next;
    const char *name;      /* of the loader */
    const char *path;      /* absolute if it could be determined */
    const char *build_id;  /* in hexadecimal digits; NULL if there is none */
    uint64_t headers_hash; /* hash of the program headers */
};

struct xseg_module_mapping {
    struct xseg_module_mapping *next;
    struct xseg_module *module;
    uintptr_t base;       /* added to addresses of the file */
    uintptr_t start, end; /* the range of addresses */
    atomic_bool is_loaded;
    bool is_reported; /* by the loader, in the refresh in progress */
};

struct xseg_modules {
    struct xseg_bump *memory;
    struct xseg_module *modules;
    struct xseg_module_mapping *mappings;
    const struct xseg_module_mapping **loaded; /* by address */
    uint32_t loaded_count, loaded_capacity;
    bool is_current;               /* the last refresh was complete */
    unsigned long long adds, subs; /* the loader's counters at the last refresh */
    uint64_t changes;              /* mappings that a refresh found loaded or unloaded */
};

/* All records are allocated from `memory`. */
void xseg_modules_init(struct xseg_modules *modules, struct xseg_bump *memory);

/*
 * Call a function under the loader's lock, after a refresh of the mappings if modules were loaded or unloaded.
 *
 * function: must not load or unload modules, and must not allocate from the heap
 *
 * Cost: about 50 ns, and about 200 ns per module for a refresh.
 */
void xseg_modules_call_locked(struct xseg_modules *modules, void (*function)(void *context),
                              void *context);

/* Find the loaded mapping that contains an address, as of the last refresh; NULL if there is none. */
const struct xseg_module_mapping *xseg_modules_find(const struct xseg_modules *modules,
                                                    uintptr_t address);

bool xseg_modules_audit(const struct xseg_modules *modules, struct xseg_violation *violation);

/* --- Frames. --- */

struct xseg_frames {
    struct xseg_bump *memory;
    struct xseg_intern_table frames;
    struct xseg_intern_table strings; /* names of functions and files */
};

/* The record of a frame.  Names are handles of strings; 0: unknown. */
struct xseg_frame {
    const void *pc;
    const struct xseg_module_mapping *mapping; /* NULL: none */
    uint64_t symbol_offset;                    /* of the frame from the function */
    uint32_t symbol, file, line;
    atomic_bool is_resolved; /* stored after the source, which never changes afterwards */
};

/* The location and the source of a frame.  Strings belong to the table. */
struct xseg_stack_frame {
    const void *pc;
    const char *path;       /* of the module; NULL: the frame is in no module */
    const char *build_id;   /* of the module, in hexadecimal digits; NULL if there is none */
    uint64_t offset;        /* of the frame in the module's address space, as symbolizers use it */
    bool is_resolved;       /* a source was recorded; the members below are 0 before */
    const char *symbol;     /* the function; NULL if unknown */
    uint64_t symbol_offset; /* of the frame from the function */
    const char *file;       /* NULL if unknown */
    uint32_t line;
};

/* The source of a frame. */
struct xseg_stack_source {
    const char *symbol;     /* NULL if unknown */
    uint64_t symbol_offset; /* of the frame from the function */
    const char *file;       /* NULL if unknown */
    uint32_t line;
};

/* The address of the call, by which a frame is looked up. */
static inline uintptr_t xseg_frames_call_address(const void *pc)
{
    return (uintptr_t)pc - 1;
}

/* Returns false if the memory is full. */
bool xseg_frames_init(struct xseg_frames *frames, struct xseg_bump *memory);

/* Find the frame of an address in a mapping (NULL: in none); NULL if there is none. */
const struct xseg_frame *xseg_frames_find(const struct xseg_frames *frames, const void *pc,
                                          const struct xseg_module_mapping *mapping);

/* Add the frame of an address in a mapping, unless it exists.  Returns false if the memory is full. */
bool xseg_frames_add(struct xseg_frames *frames, const void *pc,
                     const struct xseg_module_mapping *mapping);

/*
 * Record the source of a frame in a mapping.  Strings are copied; a string for which the memory is full remains unknown.
 * No effect if a source has been recorded already.
 */
void xseg_frames_set_source(struct xseg_frames *frames, const struct xseg_frame *frame,
                            const struct xseg_stack_source *source);

void xseg_frames_read(const struct xseg_frames *frames, const struct xseg_frame *frame,
                      struct xseg_stack_frame *out);

bool xseg_frames_audit(const struct xseg_frames *frames, struct xseg_violation *violation);

#endif
