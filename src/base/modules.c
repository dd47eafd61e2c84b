/* SPDX-License-Identifier: MIT */
#include "src/base/modules.h"

#include <inttypes.h>
#include <limits.h>
#include <link.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "src/base/align.h"
#include "src/base/hash_table.h"

/* The longest build id that is kept, in bytes of the id. */
#define BUILD_ID_BYTES 64u

void xseg_modules_init(struct xseg_modules *modules, struct xseg_bump *memory)
{
    memset(modules, 0, sizeof(*modules));
    modules->memory = memory;
}

/* --- What the loader says of one module. --- */

struct found {
    const char *name;
    uint64_t shape;
    uintptr_t base, start, end;
    char build_id[2 * BUILD_ID_BYTES + 1]; /* empty if there is none */
};

static void *at(uintptr_t address)
{
    return (void *)address; /* NOLINT(performance-no-int-to-ptr) */
}

/* Look for the build id in one segment of notes. */
static void read_notes(struct found *found, const unsigned char *notes, size_t bytes, size_t align)
{
    ElfW(Nhdr) head;

    align = align == 8 ? 8 : 4;
    while (bytes >= sizeof(head)) {
        memcpy(&head, notes, sizeof(head));
        const size_t id = sizeof(head) + xseg_round_up(head.n_namesz, align);
        const size_t next = id + xseg_round_up(head.n_descsz, align);

        if (next > bytes)
            return;
        if (head.n_type == NT_GNU_BUILD_ID && head.n_namesz == sizeof(ELF_NOTE_GNU) &&
            memcmp(notes + sizeof(head), ELF_NOTE_GNU, sizeof(ELF_NOTE_GNU)) == 0) {
            for (size_t i = 0; i < head.n_descsz && i < BUILD_ID_BYTES; i++)
                (void)snprintf(found->build_id + 2 * i, 3, "%02x", notes[id + i]);
            return;
        }
        notes += next;
        bytes -= next;
    }
}

/* Whether a part of the file is in memory: only what lies in a loaded segment is. */
static bool is_in_memory(const struct dl_phdr_info *info, const ElfW(Phdr) * part)
{
    for (unsigned i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *segment = &info->dlpi_phdr[i];

        if (segment->p_type == PT_LOAD && part->p_vaddr - segment->p_vaddr < segment->p_filesz &&
            part->p_filesz <= segment->p_filesz - (part->p_vaddr - segment->p_vaddr))
            return true;
    }
    return false;
}

/* Returns false for what takes no addresses. */
static bool read_module(const struct dl_phdr_info *info, struct found *found)
{
    memset(found, 0, sizeof(*found));
    found->name = info->dlpi_name != NULL ? info->dlpi_name : "";
    found->base = info->dlpi_addr;
    found->start = UINTPTR_MAX;
    found->shape =
        xseg_hash_words(info->dlpi_phdr, info->dlpi_phnum * (sizeof(*info->dlpi_phdr) / 8), 0);
    for (unsigned i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[i];
        const uintptr_t start = info->dlpi_addr + part->p_vaddr;

        if (part->p_type == PT_LOAD) {
            found->start = xseg_min(found->start, start);
            found->end = xseg_max(found->end, start + part->p_memsz);
        } else if (part->p_type == PT_NOTE && found->build_id[0] == '\0' &&
                   is_in_memory(info, part)) {
            read_notes(found, at(start), part->p_filesz, part->p_align);
        }
    }
    return found->start < found->end;
}

/* --- Modules and placements. --- */

static const char *copy_string(struct xseg_modules *modules, const char *text)
{
    const size_t bytes = strlen(text) + 1;
    char *kept = xseg_bump_alloc(modules->memory, bytes);

    if (kept != NULL)
        memcpy(kept, text, bytes);
    return kept;
}

/* Where the file of a module is.  The loader has no name for the programme, and others as they were given. */
static const char *keep_path(struct xseg_modules *modules, const char *name)
{
    char path[PATH_MAX], folder[PATH_MAX];

    if (name[0] == '\0') {
        const ssize_t length = readlink("/proc/self/exe", path, sizeof(path) - 1);

        path[length > 0 ? length : 0] = '\0';
        return copy_string(modules, path);
    }
    if (name[0] != '/' && strchr(name, '/') != NULL && getcwd(folder, sizeof(folder)) != NULL &&
        (size_t)snprintf(path, sizeof(path), "%s/%s", folder, name) < sizeof(path))
        return copy_string(modules, path);
    return copy_string(modules, name);
}

static bool is_module(const struct xseg_module *module, const struct found *found)
{
    return module->shape == found->shape && strcmp(module->name, found->name) == 0 &&
           strcmp(module->build_id != NULL ? module->build_id : "", found->build_id) == 0;
}

/* The module that the loader speaks of, which is added if it is new; NULL without room. */
static struct xseg_module *module_of(struct xseg_modules *modules, const struct found *found)
{
    struct xseg_module *module = modules->modules;

    while (module != NULL && !is_module(module, found))
        module = module->next;
    if (module != NULL)
        return module;
    module = xseg_bump_alloc(modules->memory, sizeof(*module));
    if (module == NULL)
        return NULL;
    module->name = copy_string(modules, found->name);
    module->path = keep_path(modules, found->name);
    module->shape = found->shape;
    if (found->build_id[0] != '\0')
        module->build_id = copy_string(modules, found->build_id);
    if (module->name == NULL || module->path == NULL ||
        (found->build_id[0] != '\0' && module->build_id == NULL))
        return NULL;
    module->next = modules->modules;
    modules->modules = module;
    return module;
}

static struct xseg_module_mapping *placement_of(struct xseg_modules *modules,
                                                const struct found *found)
{
    struct xseg_module_mapping *placement = modules->placements;

    while (placement != NULL &&
           (placement->base != found->base || !is_module(placement->module, found)))
        placement = placement->next;
    if (placement != NULL)
        return placement;
    struct xseg_module *module = module_of(modules, found);
    if (module == NULL)
        return NULL;
    placement = xseg_bump_alloc(modules->memory, sizeof(*placement));
    if (placement == NULL)
        return NULL;
    placement->module = module;
    placement->base = found->base;
    placement->start = found->start;
    placement->end = found->end;
    placement->next = modules->placements;
    modules->placements = placement;
    return placement;
}

/* --- A look at what is loaded. --- */

static int note_module(struct dl_phdr_info *info, size_t bytes, void *context)
{
    struct xseg_modules *modules = context;
    struct xseg_module_mapping *placement = NULL;
    struct found found;

    (void)bytes;
    if (!read_module(info, &found))
        return 0;
    placement = placement_of(modules, &found);
    if (placement == NULL)
        modules->is_known = false; /* no room: the next look may have some */
    else
        placement->was_seen = true;
    return 0;
}

/* Put a placement where it belongs by its address. */
static void insert(struct xseg_modules *modules, const struct xseg_module_mapping *placement)
{
    uint32_t i = modules->loaded_count++;

    for (; i > 0 && modules->loaded[i - 1]->start > placement->start; i--)
        modules->loaded[i] = modules->loaded[i - 1];
    modules->loaded[i] = placement;
}

/* Make room for all that was seen; false if the memory has none. */
static bool make_room(struct xseg_modules *modules)
{
    uint32_t count = 0;

    for (const struct xseg_module_mapping *placement = modules->placements; placement != NULL;
         placement = placement->next)
        count += placement->was_seen;
    if (count <= modules->loaded_room)
        return true;
    const struct xseg_module_mapping **loaded =
        xseg_bump_alloc(modules->memory, 2 * (size_t)count * sizeof(struct xseg_module_mapping *));
    if (loaded == NULL)
        return false;
    modules->loaded = loaded;
    modules->loaded_room = 2 * count;
    return true;
}

static void look(struct xseg_modules *modules)
{
    for (struct xseg_module_mapping *placement = modules->placements; placement != NULL;
         placement = placement->next)
        placement->was_seen = false;
    modules->is_known = true;
    (void)dl_iterate_phdr(note_module, modules);
    modules->loaded_count = 0;
    const bool has_room = make_room(modules);
    for (struct xseg_module_mapping *placement = modules->placements; placement != NULL;
         placement = placement->next) {
        const bool is_loaded = placement->was_seen && has_room;

        if (is_loaded)
            insert(modules, placement);
        if (atomic_load_explicit(&placement->is_loaded, memory_order_relaxed) != is_loaded) {
            atomic_store_explicit(&placement->is_loaded, is_loaded, memory_order_relaxed);
            modules->changes++;
        }
    }
    modules->is_known = modules->is_known && has_room;
}

struct hold {
    struct xseg_modules *modules;
    void (*run)(void *context);
    void *context;
    bool has_run;
};

/* The loader calls this for the first module, under its lock, which it may take again for a look. */
static int run_held(struct dl_phdr_info *info, size_t bytes, void *context)
{
    struct hold *hold = context;
    struct xseg_modules *modules = hold->modules;
    const bool has_counts =
        bytes >= offsetof(struct dl_phdr_info, dlpi_subs) + sizeof(info->dlpi_subs);

    if (!modules->is_known || !has_counts || modules->adds != info->dlpi_adds ||
        modules->subs != info->dlpi_subs) {
        look(modules);
        modules->adds = has_counts ? info->dlpi_adds : 0;
        modules->subs = has_counts ? info->dlpi_subs : 0;
        XSEG_AUDIT(xseg_modules_audit, modules);
    }
    hold->run(hold->context);
    hold->has_run = true;
    return 1;
}

void xseg_modules_call_locked(struct xseg_modules *modules, void (*run)(void *context),
                              void *context)
{
    struct hold hold = {modules, run, context, false};

    (void)dl_iterate_phdr(run_held, &hold);
    XSEG_ASSERT(hold.has_run);
}

const struct xseg_module_mapping *xseg_modules_find(const struct xseg_modules *modules,
                                                    uintptr_t address)
{
    uint32_t low = 0, high = modules->loaded_count;

    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;

        if (modules->loaded[middle]->start <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low > 0 && address < modules->loaded[low - 1]->end ? modules->loaded[low - 1] : NULL;
}

/* --- The audit. --- */

static bool audit_distinct(const struct xseg_modules *modules, struct xseg_violation *violation)
{
    for (const struct xseg_module *one = modules->modules; one != NULL; one = one->next)
        for (const struct xseg_module *other = one->next; other != NULL; other = other->next)
            XSEG_INVARIANT(violation, "MODULES-2",
                           one->shape != other->shape || strcmp(one->name, other->name) != 0 ||
                               strcmp(one->build_id != NULL ? one->build_id : "",
                                      other->build_id != NULL ? other->build_id : "") != 0,
                           "%.120s is there twice", one->name);
    for (const struct xseg_module_mapping *one = modules->placements; one != NULL; one = one->next)
        for (const struct xseg_module_mapping *other = one->next; other != NULL;
             other = other->next)
            XSEG_INVARIANT(violation, "MODULES-2",
                           one->module != other->module || one->base != other->base,
                           "%.100s is twice at %#" PRIxPTR, one->module->name, one->base);
    return true;
}

bool xseg_modules_audit(const struct xseg_modules *modules, struct xseg_violation *violation)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < modules->loaded_count; i++) {
        const struct xseg_module_mapping *placement = modules->loaded[i];

        XSEG_INVARIANT(violation, "MODULES-1",
                       atomic_load_explicit(&placement->is_loaded, memory_order_relaxed) &&
                           (i == 0 || modules->loaded[i - 1]->end <= placement->start),
                       "%.80s at %#" PRIxPTR, placement->module->name, placement->start);
    }
    for (const struct xseg_module_mapping *placement = modules->placements; placement != NULL;
         placement = placement->next)
        count += atomic_load_explicit(&placement->is_loaded, memory_order_relaxed);
    XSEG_INVARIANT(violation, "MODULES-1", count == modules->loaded_count,
                   "%" PRIu32 " are loaded, %" PRIu32 " are in order", count,
                   modules->loaded_count);
    return audit_distinct(modules, violation);
}

/* The longest text that is kept: names of C++ can be longer than anybody reads. */
#define TEXT_BYTES 4095u

bool xseg_frames_init(struct xseg_frames *frames, struct xseg_bump *memory)
{
    frames->memory = memory;
    return xseg_intern_table_init(&frames->frames, memory) &&
           xseg_intern_table_init(&frames->texts, memory);
}

static uint32_t hash_of_pc(const void *pc)
{
    return (uint32_t)xseg_hash_word((uintptr_t)pc, 0);
}

const struct xseg_frame *xseg_frames_find(const struct xseg_frames *frames, const void *pc,
                                          const struct xseg_module_mapping *placement)
{
    struct xseg_intern_search search = xseg_intern_table_search(&frames->frames, hash_of_pc(pc));

    for (uint32_t handle = xseg_intern_table_next(&search); handle != 0;
         handle = xseg_intern_table_next(&search)) {
        const struct xseg_frame *frame = xseg_bump_at(frames->memory, handle);

        if (frame->pc == pc && frame->placement == placement)
            return frame;
    }
    return NULL;
}

/* --- Adding. --- */

/* The handle of a text, which is added if it is new; 0 without room. */
static uint32_t intern_string(struct xseg_frames *frames, const char *text, size_t length)
{
    uint32_t hash = (uint32_t)length;

    length = xseg_min(length, TEXT_BYTES);
    for (size_t i = 0; i < length; i++)
        hash = (hash ^ (unsigned char)text[i]) * 16777619u;
    struct xseg_intern_search search = xseg_intern_table_search(&frames->texts, hash);
    for (uint32_t handle = xseg_intern_table_next(&search); handle != 0;
         handle = xseg_intern_table_next(&search)) {
        const char *kept = xseg_bump_at(frames->memory, handle);

        if (strncmp(kept, text, length) == 0 && kept[length] == '\0')
            return handle;
    }
    char *kept = xseg_bump_alloc(frames->memory, length + 1);
    if (kept == NULL)
        return 0;
    memcpy(kept, text, length);
    const uint32_t handle = xseg_bump_handle(frames->memory, kept);
    return xseg_intern_table_add(&frames->texts, frames->memory, hash, handle) ? handle : 0;
}

bool xseg_frames_add(struct xseg_frames *frames, const void *pc,
                     const struct xseg_module_mapping *placement)
{
    if (xseg_frames_find(frames, pc, placement) != NULL)
        return true;
    struct xseg_frame *frame = xseg_bump_alloc(frames->memory, sizeof(*frame));
    if (frame == NULL)
        return false;
    frame->pc = pc;
    frame->placement = placement;
    return xseg_intern_table_add(&frames->frames, frames->memory, hash_of_pc(pc),
                                 xseg_bump_handle(frames->memory, frame));
}

void xseg_frames_set_source(struct xseg_frames *frames, const struct xseg_frame *frame,
                            const struct xseg_stack_source *source)
{
    struct xseg_frame *record =
        xseg_bump_at(frames->memory, xseg_bump_handle(frames->memory, frame));

    XSEG_ASSERT(frame->placement != NULL);
    if (atomic_load_explicit(&record->was_asked, memory_order_relaxed))
        return;
    if (source->symbol != NULL)
        record->symbol = intern_string(frames, source->symbol, strlen(source->symbol));
    record->symbol_offset = record->symbol != 0 ? source->symbol_offset : 0;
    if (source->file != NULL)
        record->file = intern_string(frames, source->file, strlen(source->file));
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

bool xseg_frames_audit(const struct xseg_frames *frames, struct xseg_violation *violation)
{
    struct look look = {frames, NULL, NULL};

    if (!xseg_intern_table_audit(&frames->frames, violation) ||
        !xseg_intern_table_audit(&frames->texts, violation))
        return false;
    xseg_intern_table_for_each(&frames->frames, look_at_frame, &look);
    XSEG_INVARIANT(violation, look.broken, look.broken == NULL, "the frame %p", look.pc);
    return true;
}
