/* SPDX-License-Identifier: MIT */
#include "src/base/symbolizer.h"

#include <dlfcn.h>
#include <elf.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/clock.h"

/* The number of functions below an address that are tested for the one that contains the address. */
#define MAX_STEPS_BACK 16u

/* The functions of libdw (elfutils/libdwfl.h) that are used, with opaque types. */
struct session;
struct module;
struct module_line; /* Dwfl_Line */
struct unit;        /* Dwarf_Die of a compilation unit */
struct line;        /* Dwarf_Line */

struct callbacks {
    int (*find_elf)(void);
    void (*find_debuginfo)(void);
    int (*section_address)(void);
    char **debuginfo_path;
};

struct xseg_libdw {
    struct callbacks callbacks;
    struct session *(*begin)(const struct callbacks *callbacks);
    void (*end)(struct session *session);
    void (*report_begin_add)(struct session *session);
    struct module *(*report_elf)(struct session *session, const char *name, const char *file,
                                 int descriptor, uint64_t base, bool adds_address);
    int (*report_end)(struct session *session, void *removed, void *argument);
    void *(*module_getelf)(struct module *module, uint64_t *bias);
    int (*module_build_id)(struct module *module, const unsigned char **bits, uint64_t *address);
    struct module_line *(*module_getsrc)(struct module *module, uint64_t address);
    const char *(*lineinfo)(struct module_line *line, uint64_t *address, int *number, int *column,
                            uint64_t *time, uint64_t *length);
    int (*module_getsymtab)(struct module *module);
    const char *(*module_getsym)(struct module *module, int number, Elf64_Sym *symbol,
                                 uint32_t *section);
    struct unit *(*module_nextcu)(struct module *module, struct unit *previous, uint64_t *bias);
    int (*haspc)(struct unit *unit, uint64_t address);
    struct line *(*getsrc_die)(struct unit *unit, uint64_t address);
    const char *(*linesrc)(struct line *line, uint64_t *time, uint64_t *length);
    int (*lineno)(struct line *line, int *number);
};

#define OFFSET(member) offsetof(struct xseg_libdw, member)

static const struct {
    const char *name;
    size_t offset; /* of the pointer in struct xseg_libdw */
} libdw_functions[] = {
    {"dwfl_build_id_find_debuginfo", OFFSET(callbacks.find_debuginfo)},
    {"dwfl_begin", OFFSET(begin)},
    {"dwfl_end", OFFSET(end)},
    {"dwfl_report_begin_add", OFFSET(report_begin_add)},
    {"dwfl_report_elf", OFFSET(report_elf)},
    {"dwfl_report_end", OFFSET(report_end)},
    {"dwfl_module_getelf", OFFSET(module_getelf)},
    {"dwfl_module_build_id", OFFSET(module_build_id)},
    {"dwfl_module_getsrc", OFFSET(module_getsrc)},
    {"dwfl_lineinfo", OFFSET(lineinfo)},
    {"dwfl_module_getsymtab", OFFSET(module_getsymtab)},
    {"dwfl_module_getsym", OFFSET(module_getsym)},
    {"dwfl_module_nextcu", OFFSET(module_nextcu)},
    {"dwarf_haspc", OFFSET(haspc)},
    {"dwarf_getsrc_die", OFFSET(getsrc_die)},
    {"dwarf_linesrc", OFFSET(linesrc)},
    {"dwarf_lineno", OFFSET(lineno)},
};

/* A function of a file. */
struct function {
    uint64_t start, bytes;
    int symbol_index;
    uint8_t binding; /* STB_LOCAL, STB_GLOBAL or STB_WEAK */
};

/* The file of a module; `module` is NULL if the file cannot be read or has another build ID. */
struct xseg_symbolizer_file {
    struct xseg_symbolizer_file *next;
    const char *path; /* of the depot's module */
    struct session *session;
    struct module *module;
    struct function *functions; /* [function_count], by address */
    size_t function_count;
};

/* --- The library. --- */

static _Atomic(struct xseg_libdw *) loaded_libdw;

/* Files are opened by path, so libdw never needs this callback. */
static int reject_callback(void)
{
    return -1;
}

static bool load_functions(void *library, struct xseg_libdw *libdw)
{
    for (size_t i = 0; i < sizeof(libdw_functions) / sizeof(libdw_functions[0]); i++) {
        void *symbol = dlsym(library, libdw_functions[i].name);

        if (symbol == NULL)
            return false;
        memcpy((char *)libdw + libdw_functions[i].offset, &symbol, sizeof(symbol));
    }
    libdw->callbacks.find_elf = reject_callback;
    libdw->callbacks.section_address = reject_callback;
    return true;
}

/* As in stack.c no lock is used: if two threads call this function first, one of them closes the library again. */
bool xseg_symbolizer_prepare(void)
{
    struct xseg_libdw *expected = NULL;

    if (atomic_load_explicit(&loaded_libdw, memory_order_acquire) != NULL)
        return true;
    void *library = dlopen("libdw.so.1", RTLD_NOW | RTLD_LOCAL);
    struct xseg_libdw *libdw = calloc(1, sizeof(*libdw));
    if (library != NULL && libdw != NULL && load_functions(library, libdw) &&
        atomic_compare_exchange_strong(&loaded_libdw, &expected, libdw))
        return true;
    free(libdw);
    if (library != NULL)
        (void)dlclose(library);
    return expected != NULL;
}

bool xseg_symbolizer_init(struct xseg_symbolizer *symbolizer, struct xseg_stack_depot *depot)
{
    const bool is_loaded = xseg_symbolizer_prepare();

    symbolizer->libdw = atomic_load_explicit(&loaded_libdw, memory_order_acquire);
    symbolizer->depot = depot;
    symbolizer->files = NULL;
    return is_loaded;
}

void xseg_symbolizer_fini(struct xseg_symbolizer *symbolizer)
{
    struct xseg_symbolizer_file *file = symbolizer->files;

    while (file != NULL) {
        struct xseg_symbolizer_file *next = file->next;

        if (file->session != NULL)
            symbolizer->libdw->end(file->session);
        free(file->functions);
        free(file);
        file = next;
    }
    symbolizer->files = NULL;
}

/* --- Files. --- */

/* Whether a file has a build ID, a string of hexadecimal digits. */
static bool has_build_id(const struct xseg_libdw *libdw, struct module *module,
                         const char *build_id)
{
    const unsigned char *bits = NULL;
    uint64_t address = 0;
    const int count = libdw->module_build_id(module, &bits, &address);
    char digits[3];

    for (int i = 0; i < count && build_id[0] != '\0'; i++, build_id += 2) {
        (void)snprintf(digits, sizeof(digits), "%02x", bits[i]);
        if (strncmp(digits, build_id, 2) != 0)
            return false;
    }
    return count > 0 && build_id[0] == '\0';
}

static bool is_function(const Elf64_Sym *symbol, const char *name)
{
    const unsigned type = ELF64_ST_TYPE(symbol->st_info);

    return name != NULL && name[0] != '\0' && symbol->st_value != 0 &&
           symbol->st_shndx != SHN_UNDEF && symbol->st_shndx != SHN_ABS &&
           (type == STT_FUNC || type == STT_GNU_IFUNC ||
            (type == STT_NOTYPE && symbol->st_size != 0));
}

/* Compare by address.  find_function() returns the last of several functions at one address, so that is the first global
 * symbol. */
static int compare_functions(const void *first, const void *second)
{
    const struct function *a = first, *b = second;

    if (a->start != b->start)
        return a->start < b->start ? -1 : 1;
    if ((a->binding == STB_GLOBAL) != (b->binding == STB_GLOBAL))
        return a->binding == STB_GLOBAL ? 1 : -1;
    return a->symbol_index < b->symbol_index ? 1 : -1;
}

/* Sort the functions of a file's symbol tables by address; libdw would search all symbols for each frame. */
static void list_functions(const struct xseg_libdw *libdw, struct xseg_symbolizer_file *file)
{
    const int count = libdw->module_getsymtab(file->module);
    Elf64_Sym symbol;

    if (count <= 0)
        return;
    file->functions = calloc((size_t)count, sizeof(*file->functions));
    for (int i = 0; file->functions != NULL && i < count; i++) {
        const char *name = libdw->module_getsym(file->module, i, &symbol, NULL);

        if (is_function(&symbol, name))
            file->functions[file->function_count++] = (struct function){
                symbol.st_value, symbol.st_size, i, ELF64_ST_BIND(symbol.st_info)};
    }
    if (file->functions != NULL)
        qsort(file->functions, file->function_count, sizeof(*file->functions), compare_functions);
}

/* Open the file of a frame's module at base address 0, so that addresses are those of the file. */
static void open_elf(const struct xseg_libdw *libdw, struct xseg_symbolizer_file *file,
                     const struct xseg_stack_frame *frame)
{
    uint64_t bias = 0;

    if (frame->path[0] != '/')
        return; /* the vDSO, or a module without a known path */
    file->session = libdw->begin(&libdw->callbacks);
    if (file->session == NULL)
        return;
    libdw->report_begin_add(file->session);
    struct module *module = libdw->report_elf(file->session, frame->path, frame->path, -1, 0, true);
    if (libdw->report_end(file->session, NULL, NULL) != 0 || module == NULL ||
        libdw->module_getelf(module, &bias) == NULL)
        return;
    if (frame->build_id != NULL && !has_build_id(libdw, module, frame->build_id))
        return;
    file->module = module;
    list_functions(libdw, file);
}

/* Find or open the file of a frame's module; NULL if it cannot be used. */
static const struct xseg_symbolizer_file *open_module_file(struct xseg_symbolizer *symbolizer,
                                                           const struct xseg_stack_frame *frame)
{
    struct xseg_symbolizer_file *file = symbolizer->files;

    while (file != NULL && file->path != frame->path)
        file = file->next;
    if (file == NULL) {
        file = calloc(1, sizeof(*file));
        if (file == NULL)
            return NULL;
        file->path = frame->path;
        file->next = symbolizer->files;
        symbolizer->files = file;
        open_elf(symbolizer->libdw, file, frame);
    }
    return file->module != NULL ? file : NULL;
}

/* --- Frames. --- */

/* Search all compilation units: libdw uses .debug_aranges, which clang does not emit. */
static void find_line_in_units(const struct xseg_libdw *libdw, struct module *module,
                               uint64_t address, const char **file, int *line_number)
{
    uint64_t bias = 0;
    struct unit *unit = libdw->module_nextcu(module, NULL, &bias);

    while (unit != NULL && libdw->haspc(unit, address - bias) != 1)
        unit = libdw->module_nextcu(module, unit, &bias);
    struct line *line = unit != NULL ? libdw->getsrc_die(unit, address - bias) : NULL;
    if (line == NULL)
        return;
    *file = libdw->linesrc(line, NULL, NULL);
    (void)libdw->lineno(line, line_number);
}

/* The function that contains an address; a function without a size contains its first byte. */
static const struct function *find_function(const struct xseg_symbolizer_file *file,
                                            uint64_t address)
{
    size_t low = 0, high = file->function_count;

    while (low < high) {
        const size_t middle = low + (high - low) / 2;

        if (file->functions[middle].start <= address)
            low = middle + 1;
        else
            high = middle;
    }
    for (size_t i = low; i > 0 && low - i < MAX_STEPS_BACK; i--) {
        const struct function *function = &file->functions[i - 1];

        if (function->bytes != 0 ? address - function->start < function->bytes
                                 : address == function->start)
            return function;
    }
    return NULL;
}

static void resolve_frame(const struct xseg_libdw *libdw, const struct xseg_symbolizer_file *file,
                          const struct xseg_stack_frame *frame, struct xseg_stack_source *source)
{
    const uint64_t address = frame->offset - 1; /* of the call */
    const struct function *function = find_function(file, address);
    struct module_line *line = libdw->module_getsrc(file->module, address);
    Elf64_Sym symbol;
    int line_number = 0;

    if (line != NULL)
        source->file = libdw->lineinfo(line, NULL, &line_number, NULL, NULL, NULL);
    else
        find_line_in_units(libdw, file->module, address, &source->file, &line_number);
    source->line = line_number > 0 ? (uint32_t)line_number : 0;
    if (function == NULL)
        return;
    source->symbol = libdw->module_getsym(file->module, function->symbol_index, &symbol, NULL);
    source->symbol_offset = frame->offset - function->start;
}

void xseg_symbolizer_resolve(struct xseg_symbolizer *symbolizer, uint32_t id)
{
    struct xseg_stack_frame frame;

    for (uint32_t i = 0; xseg_stack_depot_frame(symbolizer->depot, id, i, &frame); i++) {
        struct xseg_stack_source source = {0};

        if (frame.path == NULL || frame.is_resolved)
            continue;
        const struct xseg_symbolizer_file *file = open_module_file(symbolizer, &frame);
        if (file != NULL)
            resolve_frame(symbolizer->libdw, file, &frame, &source);
        xseg_stack_depot_set_source(symbolizer->depot, id, i, &source);
    }
}

bool xseg_symbolizer_resolve_all(struct xseg_stack_depot *depot, uint64_t deadline_ns)
{
    const uint32_t count = xseg_stack_depot_count(depot);
    struct xseg_symbolizer symbolizer;

    if (!xseg_symbolizer_init(&symbolizer, depot))
        return false;
    uint32_t id = atomic_load_explicit(&depot->resolved_count, memory_order_relaxed);
    while (id < count && (deadline_ns == UINT64_MAX || xseg_clock_system() < deadline_ns))
        xseg_symbolizer_resolve(&symbolizer, ++id);
    atomic_store_explicit(&depot->resolved_count, id, memory_order_relaxed);
    xseg_symbolizer_fini(&symbolizer);
    return true;
}
