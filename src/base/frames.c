/* SPDX-License-Identifier: MIT */
#include "src/base/frames.h"

#include <inttypes.h>
#include <string.h>

#include "src/base/align.h"
#include "src/base/hash.h"

/* The longest text that is kept: names of C++ can be longer than anybody reads. */
#define TEXT_BYTES 4095u

bool xseg_frames_init(struct xseg_frames *frames, struct xseg_bump *memory)
{
    frames->memory = memory;
    return xseg_handle_table_init(&frames->frames, memory) &&
           xseg_handle_table_init(&frames->texts, memory);
}

static uint32_t hash_of_pc(const void *pc)
{
    return (uint32_t)xseg_hash_word((uintptr_t)pc, 0);
}

const struct xseg_frame *xseg_frames_find(const struct xseg_frames *frames, const void *pc,
                                          const struct xseg_module_placement *placement)
{
    struct xseg_handle_search search = xseg_handle_table_search(&frames->frames, hash_of_pc(pc));

    for (uint32_t handle = xseg_handle_table_next(&search); handle != 0;
         handle = xseg_handle_table_next(&search)) {
        const struct xseg_frame *frame = xseg_bump_at(frames->memory, handle);

        if (frame->pc == pc && frame->placement == placement)
            return frame;
    }
    return NULL;
}

/* --- Adding. --- */

/* The handle of a text, which is added if it is new; 0 without room. */
static uint32_t keep_text(struct xseg_frames *frames, const char *text, size_t length)
{
    uint32_t hash = (uint32_t)length;

    length = xseg_min(length, TEXT_BYTES);
    for (size_t i = 0; i < length; i++)
        hash = (hash ^ (unsigned char)text[i]) * 16777619u;
    struct xseg_handle_search search = xseg_handle_table_search(&frames->texts, hash);
    for (uint32_t handle = xseg_handle_table_next(&search); handle != 0;
         handle = xseg_handle_table_next(&search)) {
        const char *kept = xseg_bump_at(frames->memory, handle);

        if (strncmp(kept, text, length) == 0 && kept[length] == '\0')
            return handle;
    }
    char *kept = xseg_bump_alloc(frames->memory, length + 1);
    if (kept == NULL)
        return 0;
    memcpy(kept, text, length);
    const uint32_t handle = xseg_bump_handle(frames->memory, kept);
    return xseg_handle_table_add(&frames->texts, frames->memory, hash, handle) ? handle : 0;
}

bool xseg_frames_keep(struct xseg_frames *frames, const void *pc,
                      const struct xseg_module_placement *placement)
{
    if (xseg_frames_find(frames, pc, placement) != NULL)
        return true;
    struct xseg_frame *frame = xseg_bump_alloc(frames->memory, sizeof(*frame));
    if (frame == NULL)
        return false;
    frame->pc = pc;
    frame->placement = placement;
    return xseg_handle_table_add(&frames->frames, frames->memory, hash_of_pc(pc),
                                 xseg_bump_handle(frames->memory, frame));
}

void xseg_frames_record(struct xseg_frames *frames, const struct xseg_frame *frame,
                        const struct xseg_stack_source *source)
{
    struct xseg_frame *record =
        xseg_bump_at(frames->memory, xseg_bump_handle(frames->memory, frame));

    XSEG_ASSERT(frame->placement != NULL);
    if (atomic_load_explicit(&record->was_asked, memory_order_relaxed))
        return;
    if (source->symbol != NULL)
        record->symbol = keep_text(frames, source->symbol, strlen(source->symbol));
    record->symbol_offset = record->symbol != 0 ? source->symbol_offset : 0;
    if (source->file != NULL)
        record->file = keep_text(frames, source->file, strlen(source->file));
    record->line = record->file != 0 ? source->line : 0;
    atomic_store_explicit(&record->was_asked, true, memory_order_release);
}

/* --- Reading. --- */

void xseg_frames_read(const struct xseg_frames *frames, const struct xseg_frame *frame,
                      struct xseg_stack_frame *out)
{
    memset(out, 0, sizeof(*out));
    out->pc = frame->pc;
    if (frame->placement == NULL)
        return;
    out->path = frame->placement->module->path;
    out->build_id = frame->placement->module->build_id;
    out->offset = (uintptr_t)frame->pc - frame->placement->base;
    out->was_asked = atomic_load_explicit(&frame->was_asked, memory_order_acquire);
    if (out->was_asked) {
        out->symbol = frame->symbol != 0 ? xseg_bump_at(frames->memory, frame->symbol) : NULL;
        out->symbol_offset = frame->symbol_offset;
        out->file = frame->file != 0 ? xseg_bump_at(frames->memory, frame->file) : NULL;
        out->line = frame->line;
    }
}

/* --- The audit. --- */

struct look {
    const struct xseg_frames *frames;
    const char *broken; /* tag of an invariant; NULL: none */
    const void *pc;
};

static void look_at_frame(void *context, uint32_t handle)
{
    struct look *look = context;
    const struct xseg_frame *frame = xseg_bump_at(look->frames->memory, handle);

    if (xseg_frames_find(look->frames, frame->pc, frame->placement) != frame)
        look->broken = "FRAMES-1";
    else if (frame->placement == NULL &&
             atomic_load_explicit(&frame->was_asked, memory_order_relaxed))
        look->broken = "FRAMES-2";
    else
        return;
    look->pc = frame->pc;
}

bool xseg_frames_audit(const struct xseg_frames *frames, struct xseg_finding *finding)
{
    struct look look = {frames, NULL, NULL};

    if (!xseg_handle_table_audit(&frames->frames, finding) ||
        !xseg_handle_table_audit(&frames->texts, finding))
        return false;
    xseg_handle_table_visit(&frames->frames, look_at_frame, &look);
    XSEG_HOLDS(finding, look.broken, look.broken == NULL, "the frame %p", look.pc);
    return true;
}
