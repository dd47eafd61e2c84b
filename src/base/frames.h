/* SPDX-License-Identifier: MIT */
/*
 * Frames: where return addresses lie, each recorded when it is first seen.
 *
 * Terms:
 *   frame    a return address on a placement of a module (modules.h), or on none.  The same address on two
 *            placements is two frames.  The call before the address is what is looked up, since a call may
 *            be a function's last instruction.
 *   source   the function, file and line of a frame, once stack_name.h has looked them up
 *
 * Invariants:
 *   FRAMES-1  each frame is found by its address and placement; no two are of the same.
 *   FRAMES-2  a frame on no placement has no source.
 *
 * Locking: the owner's lock covers xseg_frames_keep() and xseg_frames_record(); reading takes none.  Records
 * end with their memory.
 */
#ifndef XSEG_BASE_FRAMES_H
#define XSEG_BASE_FRAMES_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "src/base/bump.h"
#include "src/base/check.h"
#include "src/base/handle_table.h"
#include "src/base/modules.h"

struct xseg_frames {
    struct xseg_bump *memory;
    struct xseg_handle_table frames;
    struct xseg_handle_table texts; /* names of functions and of files, each once */
};

/* A frame's record.  Names are handles of texts; 0: unknown. */
struct xseg_frame {
    const void *pc;
    const struct xseg_module_placement *placement; /* NULL: on none */
    uint64_t symbol_offset;                        /* of the frame from the function */
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
                                          const struct xseg_module_placement *placement);

/* Add the frame of an address on a placement, unless there is one.  Returns: false if the memory is full */
bool xseg_frames_keep(struct xseg_frames *frames, const void *pc,
                      const struct xseg_module_placement *placement);

/*
 * Record the source of a frame on a placement.  Strings are copied; one for which the memory has no room stays unknown.
 * Does nothing if a source has been recorded before.
 */
void xseg_frames_record(struct xseg_frames *frames, const struct xseg_frame *frame,
                        const struct xseg_stack_source *source);

/* What is known of a frame. */
void xseg_frames_read(const struct xseg_frames *frames, const struct xseg_frame *frame,
                      struct xseg_stack_frame *out);

bool xseg_frames_audit(const struct xseg_frames *frames, struct xseg_finding *finding);

#endif
