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

/* The longest build ID that is stored, in bytes of the ID. */
#define BUILD_ID_BYTES 64u

void xseg_modules_init(struct xseg_modules *modules, struct xseg_bump *memory)
{
    memset(modules, 0, sizeof(*modules));
    modules->memory = memory;
}

/* --- One module, as the loader reports it. --- */

struct loader_entry {
    const char *name;
    uint64_t headers_hash;
    uintptr_t base, start, end;
    char build_id[2 * BUILD_ID_BYTES + 1]; /* empty if there is none */
};

static void *pointer_to(uintptr_t address)
{
    return (void *)address; /* NOLINT(performance-no-int-to-ptr) */
}

/* Search one segment of notes for the build ID. */
static void find_build_id(struct loader_entry *entry, const unsigned char *notes, size_t bytes,
                          size_t align)
{
    ElfW(Nhdr) header;

    align = align == 8 ? 8 : 4;
    while (bytes >= sizeof(header)) {
        memcpy(&header, notes, sizeof(header));
        const size_t id_offset = sizeof(header) + xseg_round_up(header.n_namesz, align);
        const size_t note_bytes = id_offset + xseg_round_up(header.n_descsz, align);

        if (note_bytes > bytes)
            return;
        if (header.n_type == NT_GNU_BUILD_ID && header.n_namesz == sizeof(ELF_NOTE_GNU) &&
            memcmp(notes + sizeof(header), ELF_NOTE_GNU, sizeof(ELF_NOTE_GNU)) == 0) {
            for (size_t i = 0; i < header.n_descsz && i < BUILD_ID_BYTES; i++)
                (void)snprintf(entry->build_id + 2 * i, 3, "%02x", notes[id_offset + i]);
            return;
        }
        notes += note_bytes;
        bytes -= note_bytes;
    }
}

/* Whether a range of the file is in a loaded segment; other ranges are not in memory. */
static bool is_in_loaded_segment(const struct dl_phdr_info *info, const ElfW(Phdr) * header)
{
    for (unsigned i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *segment = &info->dlpi_phdr[i];

        if (segment->p_type == PT_LOAD && header->p_vaddr - segment->p_vaddr < segment->p_filesz &&
            header->p_filesz <= segment->p_filesz - (header->p_vaddr - segment->p_vaddr))
            return true;
    }
    return false;
}

/* Returns false for a module without addresses. */
static bool read_loader_entry(const struct dl_phdr_info *info, struct loader_entry *entry)
{
    memset(entry, 0, sizeof(*entry));
    entry->name = info->dlpi_name != NULL ? info->dlpi_name : "";
    entry->base = info->dlpi_addr;
    entry->start = UINTPTR_MAX;
    entry->headers_hash =
        xseg_hash_words(info->dlpi_phdr, info->dlpi_phnum * (sizeof(*info->dlpi_phdr) / 8), 0);
    for (unsigned i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *header = &info->dlpi_phdr[i];
        const uintptr_t start = info->dlpi_addr + header->p_vaddr;

        if (header->p_type == PT_LOAD) {
            entry->start = xseg_min(entry->start, start);
            entry->end = xseg_max(entry->end, start + header->p_memsz);
        } else if (header->p_type == PT_NOTE && entry->build_id[0] == '\0' &&
                   is_in_loaded_segment(info, header)) {
            find_build_id(entry, pointer_to(start), header->p_filesz, header->p_align);
        }
    }
    return entry->start < entry->end;
}

/* --- Records of modules and mappings. --- */

static const char *copy_string(struct xseg_modules *modules, const char *string)
{
    const size_t bytes = strlen(string) + 1;
    char *copy = xseg_bump_alloc(modules->memory, bytes);

    if (copy != NULL)
        memcpy(copy, string, bytes);
    return copy;
}

/* The path of a module's file.  The loader has an empty name for the program, and the names of libraries as they were
 * passed to dlopen(). */
static const char *copy_path(struct xseg_modules *modules, const char *name)
{
    char path[PATH_MAX], directory[PATH_MAX];

    if (name[0] == '\0') {
        const ssize_t length = readlink("/proc/self/exe", path, sizeof(path) - 1);

        path[length > 0 ? length : 0] = '\0';
        return copy_string(modules, path);
    }
    if (name[0] != '/' && strchr(name, '/') != NULL &&
        getcwd(directory, sizeof(directory)) != NULL &&
        (size_t)snprintf(path, sizeof(path), "%s/%s", directory, name) < sizeof(path))
        return copy_string(modules, path);
    return copy_string(modules, name);
}

static bool matches_module(const struct xseg_module *module, const struct loader_entry *entry)
{
    return module->headers_hash == entry->headers_hash && strcmp(module->name, entry->name) == 0 &&
           strcmp(module->build_id != NULL ? module->build_id : "", entry->build_id) == 0;
}

/* Find or add the module of a loader entry; NULL if the memory is full. */
static struct xseg_module *intern_module(struct xseg_modules *modules,
                                         const struct loader_entry *entry)
{
    struct xseg_module *module = modules->modules;

    while (module != NULL && !matches_module(module, entry))
        module = module->next;
    if (module != NULL)
        return module;
    module = xseg_bump_alloc(modules->memory, sizeof(*module));
    if (module == NULL)
        return NULL;
    module->name = copy_string(modules, entry->name);
    module->path = copy_path(modules, entry->name);
    module->headers_hash = entry->headers_hash;
    if (entry->build_id[0] != '\0')
        module->build_id = copy_string(modules, entry->build_id);
    if (module->name == NULL || module->path == NULL ||
        (entry->build_id[0] != '\0' && module->build_id == NULL))
        return NULL;
    module->next = modules->modules;
    modules->modules = module;
    return module;
}

static struct xseg_module_mapping *intern_mapping(struct xseg_modules *modules,
                                                  const struct loader_entry *entry)
{
    struct xseg_module_mapping *mapping = modules->mappings;

    while (mapping != NULL &&
           (mapping->base != entry->base || !matches_module(mapping->module, entry)))
        mapping = mapping->next;
    if (mapping != NULL)
        return mapping;
    struct xseg_module *module = intern_module(modules, entry);
    if (module == NULL)
        return NULL;
    mapping = xseg_bump_alloc(modules->memory, sizeof(*mapping));
    if (mapping == NULL)
        return NULL;
    mapping->module = module;
    mapping->base = entry->base;
    mapping->start = entry->start;
    mapping->end = entry->end;
    mapping->next = modules->mappings;
    modules->mappings = mapping;
    return mapping;
}

/* --- Refreshing the mappings. --- */

static int record_loader_entry(struct dl_phdr_info *info, size_t bytes, void *context)
{
    struct xseg_modules *modules = context;
    struct xseg_module_mapping *mapping = NULL;
    struct loader_entry entry;

    (void)bytes;
    if (!read_loader_entry(info, &entry))
        return 0;
    mapping = intern_mapping(modules, &entry);
    if (mapping == NULL)
        modules->is_current = false; /* the memory is full; retry at the next call */
    else
        mapping->is_reported = true;
    return 0;
}

/* Insert a mapping into `loaded`, in the order of addresses. */
static void insert_loaded(struct xseg_modules *modules, const struct xseg_module_mapping *mapping)
{
    uint32_t i = modules->loaded_count++;

    for (; i > 0 && modules->loaded[i - 1]->start > mapping->start; i--)
        modules->loaded[i] = modules->loaded[i - 1];
    modules->loaded[i] = mapping;
}

/* Reserve capacity in `loaded` for all reported mappings; false if the memory is full. */
static bool reserve_loaded(struct xseg_modules *modules)
{
    uint32_t count = 0;

    for (const struct xseg_module_mapping *mapping = modules->mappings; mapping != NULL;
         mapping = mapping->next)
        count += mapping->is_reported;
    if (count <= modules->loaded_capacity)
        return true;
    const struct xseg_module_mapping **loaded =
        xseg_bump_alloc(modules->memory, 2 * (size_t)count * sizeof(struct xseg_module_mapping *));
    if (loaded == NULL)
        return false;
    modules->loaded = loaded;
    modules->loaded_capacity = 2 * count;
    return true;
}

static void refresh_mappings(struct xseg_modules *modules)
{
    for (struct xseg_module_mapping *mapping = modules->mappings; mapping != NULL;
         mapping = mapping->next)
        mapping->is_reported = false;
    modules->is_current = true;
    (void)dl_iterate_phdr(record_loader_entry, modules);
    modules->loaded_count = 0;
    const bool fits = reserve_loaded(modules);
    for (struct xseg_module_mapping *mapping = modules->mappings; mapping != NULL;
         mapping = mapping->next) {
        const bool is_loaded = mapping->is_reported && fits;

        if (is_loaded)
            insert_loaded(modules, mapping);
        if (atomic_load_explicit(&mapping->is_loaded, memory_order_relaxed) != is_loaded) {
            atomic_store_explicit(&mapping->is_loaded, is_loaded, memory_order_relaxed);
            modules->changes++;
        }
    }
    modules->is_current = modules->is_current && fits;
}

struct locked_call {
    struct xseg_modules *modules;
    void (*function)(void *context);
    void *context;
    bool was_called;
};

/* The loader calls this for the first module, under its recursive lock. */
static int refresh_and_call(struct dl_phdr_info *info, size_t bytes, void *context)
{
    struct locked_call *call = context;
    struct xseg_modules *modules = call->modules;
    const bool has_counts =
        bytes >= offsetof(struct dl_phdr_info, dlpi_subs) + sizeof(info->dlpi_subs);

    if (!modules->is_current || !has_counts || modules->adds != info->dlpi_adds ||
        modules->subs != info->dlpi_subs) {
        refresh_mappings(modules);
        modules->adds = has_counts ? info->dlpi_adds : 0;
        modules->subs = has_counts ? info->dlpi_subs : 0;
        XSEG_AUDIT(xseg_modules_audit, modules);
    }
    call->function(call->context);
    call->was_called = true;
    return 1;
}

void xseg_modules_call_locked(struct xseg_modules *modules, void (*function)(void *context),
                              void *context)
{
    struct locked_call call = {modules, function, context, false};

    (void)dl_iterate_phdr(refresh_and_call, &call);
    XSEG_ASSERT(call.was_called);
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

static bool audit_uniqueness(const struct xseg_modules *modules, struct xseg_violation *violation)
{
    for (const struct xseg_module *a = modules->modules; a != NULL; a = a->next)
        for (const struct xseg_module *b = a->next; b != NULL; b = b->next)
            XSEG_INVARIANT(violation, "MODULES-2",
                           a->headers_hash != b->headers_hash || strcmp(a->name, b->name) != 0 ||
                               strcmp(a->build_id != NULL ? a->build_id : "",
                                      b->build_id != NULL ? b->build_id : "") != 0,
                           "module %.120s exists twice", a->name);
    for (const struct xseg_module_mapping *a = modules->mappings; a != NULL; a = a->next)
        for (const struct xseg_module_mapping *b = a->next; b != NULL; b = b->next)
            XSEG_INVARIANT(violation, "MODULES-2", a->module != b->module || a->base != b->base,
                           "module %.100s is mapped twice at %#" PRIxPTR, a->module->name, a->base);
    return true;
}

bool xseg_modules_audit(const struct xseg_modules *modules, struct xseg_violation *violation)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < modules->loaded_count; i++) {
        const struct xseg_module_mapping *mapping = modules->loaded[i];

        XSEG_INVARIANT(violation, "MODULES-1",
                       atomic_load_explicit(&mapping->is_loaded, memory_order_relaxed) &&
                           (i == 0 || modules->loaded[i - 1]->end <= mapping->start),
                       "%.80s at %#" PRIxPTR, mapping->module->name, mapping->start);
    }
    for (const struct xseg_module_mapping *mapping = modules->mappings; mapping != NULL;
         mapping = mapping->next)
        count += atomic_load_explicit(&mapping->is_loaded, memory_order_relaxed);
    XSEG_INVARIANT(violation, "MODULES-1", count == modules->loaded_count,
                   "%" PRIu32 " mappings are loaded, the array has %" PRIu32, count,
                   modules->loaded_count);
    return audit_uniqueness(modules, violation);
}

/* The longest name that is stored; C++ names can be longer than is useful. */
#define MAX_STRING 4095u

bool xseg_frames_init(struct xseg_frames *frames, struct xseg_bump *memory)
{
    frames->memory = memory;
    return xseg_intern_table_init(&frames->frames, memory) &&
           xseg_intern_table_init(&frames->strings, memory);
}

static uint32_t hash_pc(const void *pc)
{
    return (uint32_t)xseg_hash_word((uintptr_t)pc, 0);
}

const struct xseg_frame *xseg_frames_find(const struct xseg_frames *frames, const void *pc,
                                          const struct xseg_module_mapping *mapping)
{
    struct xseg_intern_search search = xseg_intern_table_search(&frames->frames, hash_pc(pc));

    for (uint32_t handle = xseg_intern_table_next(&search); handle != 0;
         handle = xseg_intern_table_next(&search)) {
        const struct xseg_frame *frame = xseg_bump_at(frames->memory, handle);

        if (frame->pc == pc && frame->mapping == mapping)
            return frame;
    }
    return NULL;
}

/* --- Adding. --- */

/* The handle of a string, truncated to MAX_STRING bytes; 0 if it is NULL or the memory is full. */
static uint32_t intern_name(struct xseg_frames *frames, const char *name)
{
    return name == NULL ? 0
                        : xseg_intern_string(&frames->strings, frames->memory, name,
                                             strnlen(name, MAX_STRING));
}

bool xseg_frames_add(struct xseg_frames *frames, const void *pc,
                     const struct xseg_module_mapping *mapping)
{
    if (xseg_frames_find(frames, pc, mapping) != NULL)
        return true;
    struct xseg_frame *frame = xseg_bump_alloc(frames->memory, sizeof(*frame));
    if (frame == NULL)
        return false;
    frame->pc = pc;
    frame->mapping = mapping;
    return xseg_intern_table_add(&frames->frames, frames->memory, hash_pc(pc),
                                 xseg_bump_handle(frames->memory, frame));
}

void xseg_frames_set_source(struct xseg_frames *frames, const struct xseg_frame *frame,
                            const struct xseg_stack_source *source)
{
    struct xseg_frame *record =
        xseg_bump_at(frames->memory, xseg_bump_handle(frames->memory, frame));

    XSEG_ASSERT(frame->mapping != NULL);
    if (atomic_load_explicit(&record->is_resolved, memory_order_relaxed))
        return;
    record->symbol = intern_name(frames, source->symbol);
    record->symbol_offset = record->symbol != 0 ? source->symbol_offset : 0;
    record->file = intern_name(frames, source->file);
    record->line = record->file != 0 ? source->line : 0;
    atomic_store_explicit(&record->is_resolved, true, memory_order_release);
}

/* --- Reading. --- */

void xseg_frames_read(const struct xseg_frames *frames, const struct xseg_frame *frame,
                      struct xseg_stack_frame *out)
{
    memset(out, 0, sizeof(*out));
    out->pc = frame->pc;
    if (frame->mapping == NULL)
        return;
    out->path = frame->mapping->module->path;
    out->build_id = frame->mapping->module->build_id;
    out->offset = (uintptr_t)frame->pc - frame->mapping->base;
    out->is_resolved = atomic_load_explicit(&frame->is_resolved, memory_order_acquire);
    if (out->is_resolved) {
        out->symbol = frame->symbol != 0 ? xseg_bump_at(frames->memory, frame->symbol) : NULL;
        out->symbol_offset = frame->symbol_offset;
        out->file = frame->file != 0 ? xseg_bump_at(frames->memory, frame->file) : NULL;
        out->line = frame->line;
    }
}

/* --- The audit of frames. --- */

struct frame_audit {
    const struct xseg_frames *frames;
    const char *violated; /* tag of an invariant; NULL: none */
    const void *pc;
};

static void audit_frame(void *context, uint32_t handle)
{
    struct frame_audit *audit = context;
    const struct xseg_frame *frame = xseg_bump_at(audit->frames->memory, handle);

    if (xseg_frames_find(audit->frames, frame->pc, frame->mapping) != frame)
        audit->violated = "FRAMES-1";
    else if (frame->mapping == NULL &&
             atomic_load_explicit(&frame->is_resolved, memory_order_relaxed))
        audit->violated = "FRAMES-2";
    else
        return;
    audit->pc = frame->pc;
}

bool xseg_frames_audit(const struct xseg_frames *frames, struct xseg_violation *violation)
{
    struct frame_audit audit = {frames, NULL, NULL};

    if (!xseg_intern_table_audit(&frames->frames, violation) ||
        !xseg_intern_table_audit(&frames->strings, violation))
        return false;
    xseg_intern_table_for_each(&frames->frames, audit_frame, &audit);
    XSEG_INVARIANT(violation, audit.violated, audit.violated == NULL, "frame %p", audit.pc);
    return true;
}
