/* SPDX-License-Identifier: MIT */
/*
 * Modules: the programme and the libraries that are loaded, and those that were.
 *
 * Terms:
 *   module     a file that was loaded: its path, its build id and the shape of its segments.  Another file
 *              that comes to the same path later is another module.
 *   placement  a module at a load address.  It is loaded or not; if the module comes to the same address
 *              again, it is loaded again.
 *   held       while the loader is held, no module comes or goes
 *
 * Only modules of the namespace that this library is loaded in are seen, not those of dlmopen().
 *
 * Invariants:
 *   MODULES-1  the placements in `loaded` rise and do not overlap, and all that are loaded are there.
 *   MODULES-2  no two modules are of the same path, build id and shape; no two placements are of the
 *              same module and address.
 *
 * Locking: the owner's lock covers every call.  Modules and placements are never moved and are valid as long as their
 * memory.  Only `is_loaded` changes in them, so they are read without the lock.
 */
#ifndef XSEG_BASE_MODULES_H
#define XSEG_BASE_MODULES_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "src/base/check.h"
#include "src/base/intern.h"

struct xseg_module {
    struct xseg_module *next;
    const char *name;     /* as the loader has it */
    const char *path;     /* absolute where that could be found out */
    const char *build_id; /* in hexadecimal digits; NULL if it has none */
    uint64_t shape;       /* a hash of its segments */
};

struct xseg_module_mapping {
    struct xseg_module_mapping *next;
    struct xseg_module *module;
    uintptr_t base;       /* what is added to addresses of the file */
    uintptr_t start, end; /* the addresses it takes */
    atomic_bool is_loaded;
    bool was_seen; /* by the look that is under way */
};

struct xseg_modules {
    struct xseg_bump *memory;
    struct xseg_module *modules;
    struct xseg_module_mapping *placements;
    const struct xseg_module_mapping **loaded; /* by address */
    uint32_t loaded_count, loaded_room;
    bool is_known;                 /* nothing has been loaded or unloaded since the last look */
    unsigned long long adds, subs; /* of the loader, at the last look */
    uint64_t changes;              /* how often a placement was found loaded or unloaded */
};

/* Everything lies in `memory`, and ends with it. */
void xseg_modules_init(struct xseg_modules *modules, struct xseg_bump *memory);

/*
 * Hold the loader, look at what is loaded if that has changed, and call a function.
 *
 * run: must not load, unload, or ask for host memory
 *
 * Cost: some 50 ns if nothing was loaded or unloaded, else some 200 ns a module.
 */
void xseg_modules_call_locked(struct xseg_modules *modules, void (*run)(void *context),
                              void *context);

/* The loaded placement that takes an address, as of the last look; or NULL. */
const struct xseg_module_mapping *xseg_modules_find(const struct xseg_modules *modules,
                                                    uintptr_t address);

bool xseg_modules_audit(const struct xseg_modules *modules, struct xseg_violation *violation);

/*
 * Frames: where return addresses lie, each recorded when it is first seen.
 *
 * Terms:
 *   frame    a return address on a placement of a module (modules.h), or on none.  The same address on two
 *            placements is two frames.  The call before the address is what is looked up, since a call may
 *            be a function's last instruction.
 *   source   the function, file and line of a frame, once symbolizer.h has looked them up
 *
 * Invariants:
 *   FRAMES-1  each frame is found by its address and placement; no two are of the same.
 *   FRAMES-2  a frame on no placement has no source.
 *
 * Locking: the owner's lock covers xseg_frames_add() and xseg_frames_set_source(); reading takes none.  Records
 * end with their memory.
 */

struct xseg_frames {
    struct xseg_bump *memory;
    struct xseg_intern_table frames;
    struct xseg_intern_table texts; /* names of functions and of files, each once */
};

/* A frame's record.  Names are handles of texts; 0: unknown. */
struct xseg_frame {
    const void *pc;
    const struct xseg_module_mapping *placement; /* NULL: on none */
    uint64_t symbol_offset;                      /* of the frame from the function */
    uint32_t symbol, file, line;
    atomic_bool was_asked; /* written after the source, which does not change then */
};

/* What is known of a frame.  Texts belong to the table. */
struct xseg_stack_frame {
    const void *pc;
    const char *path;       /* of the module; NULL if the frame lies in none */
    const char *build_id;   /* of the module, in hexadecimal digits; NULL if it has none */
    uint64_t offset;        /* of the frame in the module, as tools that read its file count */
    bool was_asked;         /* the source was looked up; what follows is 0 before */
    const char *symbol;     /* the function; NULL if unknown */
    uint64_t symbol_offset; /* of the frame from the function */
    const char *file;       /* NULL if unknown */
    uint32_t line;
};

/* What somebody has found out about a frame. */
struct xseg_stack_source {
    const char *symbol;     /* NULL if unknown */
    uint64_t symbol_offset; /* of the frame from it */
    const char *file;       /* NULL if unknown */
    uint32_t line;
};

/* The address by which a frame is looked up. */
static inline uintptr_t xseg_frames_call(const void *pc)
{
    return (uintptr_t)pc - 1;
}

/* Returns: false if the memory has no room */
bool xseg_frames_init(struct xseg_frames *frames, struct xseg_bump *memory);

/* The frame of an address on a placement, NULL: on none.  Returns: NULL if there is none */
const struct xseg_frame *xseg_frames_find(const struct xseg_frames *frames, const void *pc,
                                          const struct xseg_module_mapping *placement);

/* Add the frame of an address on a placement, unless there is one.  Returns: false if the memory is full */
bool xseg_frames_add(struct xseg_frames *frames, const void *pc,
                     const struct xseg_module_mapping *placement);

/*
 * Record the source of a frame on a placement.  Strings are copied; one for which the memory has no room stays unknown.
 * Does nothing if a source has been recorded before.
 */
void xseg_frames_set_source(struct xseg_frames *frames, const struct xseg_frame *frame,
                            const struct xseg_stack_source *source);

/* What is known of a frame. */
void xseg_frames_read(const struct xseg_frames *frames, const struct xseg_frame *frame,
                      struct xseg_stack_frame *out);

bool xseg_frames_audit(const struct xseg_frames *frames, struct xseg_violation *violation);

#endif
