/* SPDX-License-Identifier: MIT */
#include "src/base/frames.h"

#include <inttypes.h>
#include <string.h>

#include "src/base/align.h"
#include "src/base/hash.h"

/* The longest text that is kept: names of C++ can be longer than anybody reads. */
#define TEXT_BYTES 4095u

struct symbol {
    const struct xseg_module *module;
    uint64_t offset;
    char name[];
};

struct source {
    uint32_t line;
    uint32_t file; /* handle of a text; 0: unknown */
};

bool xseg_frames_init(struct xseg_frames *frames, struct xseg_bump *memory,
                      struct xseg_modules *modules)
{
    frames->memory = memory;
    frames->modules = modules;
    return xseg_handle_table_init(&frames->frames, memory) &&
           xseg_handle_table_init(&frames->symbols, memory) &&
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

/* The record of a symbol, which is added if it is new; 0 without room. */
static uint32_t keep_symbol(struct xseg_frames *frames, const struct xseg_module *module,
                            const struct xseg_symbol *found)
{
    const uint32_t hash = (uint32_t)xseg_hash_word(found->offset, 0);
    const size_t length = xseg_min(found->name_bytes, TEXT_BYTES);
    struct xseg_handle_search search = xseg_handle_table_search(&frames->symbols, hash);

    for (uint32_t handle = xseg_handle_table_next(&search); handle != 0;
         handle = xseg_handle_table_next(&search)) {
        const struct symbol *symbol = xseg_bump_at(frames->memory, handle);

        if (symbol->module == module && symbol->offset == found->offset)
            return handle;
    }
    struct symbol *symbol = xseg_bump_take(frames->memory, sizeof(*symbol) + length + 1);
    if (symbol == NULL)
        return 0;
    symbol->module = module;
    symbol->offset = found->offset;
    memcpy(symbol->name, found->name, length);
    const uint32_t handle = xseg_bump_handle(frames->memory, symbol);
    return xseg_handle_table_add(&frames->symbols, frames->memory, hash, handle) ? handle : 0;
}

bool xseg_frames_keep(struct xseg_frames *frames, const void *pc,
                      const struct xseg_module_placement *placement)
{
    struct xseg_symbol found;
    uint32_t symbol = 0;

    if (xseg_frames_find(frames, pc, placement) != NULL)
        return true;
    if (placement != NULL &&
        xseg_modules_symbol(frames->modules, placement, xseg_frames_call(pc), &found)) {
        symbol = keep_symbol(frames, placement->module, &found);
        if (symbol == 0)
            return false;
    }
    struct xseg_frame *frame = xseg_bump_take(frames->memory, sizeof(*frame));
    if (frame == NULL)
        return false;
    frame->pc = pc;
    frame->placement = placement;
    atomic_init(&frame->symbol, symbol);
    return xseg_handle_table_add(&frames->frames, frames->memory, hash_of_pc(pc),
                                 xseg_bump_handle(frames->memory, frame));
}

/* The record of a text, which is added if it is new; 0 without room. */
static uint32_t keep_text(struct xseg_frames *frames, const char *text)
{
    const size_t length = strnlen(text, TEXT_BYTES);
    uint32_t hash = (uint32_t)length;

    for (size_t i = 0; i < length; i++)
        hash = (hash ^ (unsigned char)text[i]) * 16777619u;
    struct xseg_handle_search search = xseg_handle_table_search(&frames->texts, hash);
    for (uint32_t handle = xseg_handle_table_next(&search); handle != 0;
         handle = xseg_handle_table_next(&search)) {
        const char *kept = xseg_bump_at(frames->memory, handle);

        if (strncmp(kept, text, length) == 0 && kept[length] == '\0')
            return handle;
    }
    char *kept = xseg_bump_take(frames->memory, length + 1);
    if (kept == NULL)
        return 0;
    memcpy(kept, text, length);
    const uint32_t handle = xseg_bump_handle(frames->memory, kept);
    return xseg_handle_table_add(&frames->texts, frames->memory, hash, handle) ? handle : 0;
}

void xseg_frames_note(struct xseg_frames *frames, const struct xseg_frame *frame,
                      const struct xseg_stack_source *source)
{
    struct xseg_frame *record =
        xseg_bump_at(frames->memory, xseg_bump_handle(frames->memory, frame));
    const struct xseg_module_placement *placement = frame->placement;

    XSEG_ASSERT(placement != NULL);
    if (atomic_load_explicit(&record->source, memory_order_relaxed) != 0)
        return;
    if (source->symbol != NULL &&
        atomic_load_explicit(&record->symbol, memory_order_relaxed) == 0) {
        const struct xseg_symbol found = {
            .name = source->symbol,
            .name_bytes = strlen(source->symbol),
            .offset = (uintptr_t)frame->pc - placement->base - source->symbol_offset,
        };
        atomic_store_explicit(&record->symbol, keep_symbol(frames, placement->module, &found),
                              memory_order_release);
    }
    struct source *kept = xseg_bump_take(frames->memory, sizeof(*kept));
    if (kept == NULL)
        return;
    if (source->file != NULL)
        kept->file = keep_text(frames, source->file);
    kept->line = kept->file != 0 ? source->line : 0;
    atomic_store_explicit(&record->source, xseg_bump_handle(frames->memory, kept),
                          memory_order_release);
}

/* --- Reading. --- */

void xseg_frames_read(const struct xseg_frames *frames, const struct xseg_frame *frame,
                      struct xseg_stack_frame *out)
{
    const uint32_t symbol_handle = atomic_load_explicit(&frame->symbol, memory_order_acquire);
    const uint32_t source_handle = atomic_load_explicit(&frame->source, memory_order_acquire);

    memset(out, 0, sizeof(*out));
    out->pc = frame->pc;
    if (frame->placement == NULL)
        return;
    out->path = frame->placement->module->path;
    out->build_id = frame->placement->module->build_id;
    out->offset = (uintptr_t)frame->pc - frame->placement->base;
    if (symbol_handle != 0) {
        const struct symbol *symbol = xseg_bump_at(frames->memory, symbol_handle);

        out->symbol = symbol->name;
        out->symbol_offset = out->offset - symbol->offset;
    }
    if (source_handle != 0) {
        const struct source *source = xseg_bump_at(frames->memory, source_handle);

        out->was_asked = true;
        out->file = source->file != 0 ? xseg_bump_at(frames->memory, source->file) : NULL;
        out->line = source->line;
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
    const uint32_t symbol_handle = atomic_load_explicit(&frame->symbol, memory_order_relaxed);
    const struct symbol *symbol = xseg_bump_at(look->frames->memory, symbol_handle);
    const bool has_any =
        symbol_handle != 0 || atomic_load_explicit(&frame->source, memory_order_relaxed) != 0;

    if (xseg_frames_find(look->frames, frame->pc, frame->placement) != frame)
        look->broken = "FRAMES-1";
    else if (frame->placement == NULL
                 ? has_any
                 : symbol_handle != 0 && symbol->module != frame->placement->module)
        look->broken = "FRAMES-2";
    else
        return;
    look->pc = frame->pc;
}

bool xseg_frames_audit(const struct xseg_frames *frames, struct xseg_finding *finding)
{
    struct look look = {frames, NULL, NULL};

    if (!xseg_handle_table_audit(&frames->frames, finding) ||
        !xseg_handle_table_audit(&frames->symbols, finding) ||
        !xseg_handle_table_audit(&frames->texts, finding))
        return false;
    xseg_handle_table_visit(&frames->frames, look_at_frame, &look);
    XSEG_HOLDS(finding, look.broken, look.broken == NULL, "the frame %p", look.pc);
    return true;
}
