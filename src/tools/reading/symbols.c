/* SPDX-License-Identifier: MIT */
#include "src/tools/reading/symbols.h"

#include <stdlib.h>
#include <string.h>

#ifdef TOOLS_LIBDW

#include <elfutils/libdw.h>
#include <elfutils/libdwfl.h>
#include <stdio.h>
#include <sys/stat.h>

/* A file that was queried. */
struct file {
    struct file *next;
    char *path, *build_id; /* as queried; build_id may be NULL */
    Dwfl *reader;          /* NULL: the file cannot be read, or has another build ID */
    Dwfl_Module *module;
    Dwarf_Addr shift; /* from addresses of the file to libdw's */
};

struct symbols {
    struct file *files;
};

bool symbols_available(void)
{
    return true;
}

struct symbols *symbols_open(void)
{
    return calloc(1, sizeof(struct symbols));
}

static void close_file(struct file *file)
{
    if (file->reader)
        dwfl_end(file->reader);
    free(file->path);
    free(file->build_id);
    free(file);
}

void symbols_close(struct symbols *symbols)
{
    struct file *file = symbols ? symbols->files : NULL, *next;

    for (; file; file = next) {
        next = file->next;
        close_file(file);
    }
    free(symbols);
}

/* Get whether an open file has this build ID; NULL: none. */
static bool has_build_id(Dwfl_Module *module, const char *build_id)
{
    const unsigned char *bytes;
    GElf_Addr address;
    const int count = dwfl_module_build_id(module, &bytes, &address);

    if (count <= 0 || !build_id)
        return count <= 0 && !build_id;
    if (strlen(build_id) != 2 * (size_t)count)
        return false;
    for (int i = 0; i < count; i++) {
        char digits[3];

        (void)snprintf(digits, sizeof(digits), "%02x", bytes[i]);
        if (strncmp(digits, build_id + 2 * (size_t)i, 2) != 0)
            return false;
    }
    return true;
}

static bool is_regular(const char *path)
{
    struct stat status;

    return stat(path, &status) == 0 && S_ISREG(status.st_mode);
}

/* Read the symbols of a file; on failure there is no reader. */
static void read_symbols(struct file *file)
{
    static const Dwfl_Callbacks callbacks = {
        .find_elf = dwfl_build_id_find_elf,
        .find_debuginfo = dwfl_build_id_find_debuginfo,
        .section_address = dwfl_offline_section_address,
    };

    /* A recording may contain any path, such as that of a pipe. */
    file->reader = is_regular(file->path) ? dwfl_begin(&callbacks) : NULL;
    if (!file->reader)
        return;
    file->module = dwfl_report_offline(file->reader, "", file->path, -1);
    if (dwfl_report_end(file->reader, NULL, NULL) == 0 && file->module &&
        dwfl_module_getelf(file->module, &file->shift) &&
        has_build_id(file->module, file->build_id))
        return;
    dwfl_end(file->reader);
    file->reader = NULL;
}

static bool is_equal(const char *first, const char *second)
{
    return first == second || (first && second && strcmp(first, second) == 0);
}

/* Find or read a file by its recorded path and build ID; NULL if out of host memory. */
static struct file *find_file(struct symbols *symbols, const char *path, const char *build_id)
{
    struct file *file = symbols->files;

    while (file && !(is_equal(file->path, path) && is_equal(file->build_id, build_id)))
        file = file->next;
    if (file)
        return file;
    file = calloc(1, sizeof(*file));
    if (!file)
        return NULL;
    file->path = strdup(path);
    file->build_id = build_id ? strdup(build_id) : NULL;
    if (!file->path || (build_id && !file->build_id)) {
        close_file(file);
        return NULL;
    }
    read_symbols(file);
    file->next = symbols->files;
    symbols->files = file;
    return file;
}

/* Search for the line in each compilation unit: not all compilers write the table of address ranges. */
static void search_units(Dwfl_Module *module, Dwarf_Addr call, struct symbol *out)
{
    Dwarf_Addr shift = 0;
    Dwarf_Die *unit = dwfl_module_nextcu(module, NULL, &shift);

    while (unit && dwarf_haspc(unit, call - shift) != 1)
        unit = dwfl_module_nextcu(module, unit, &shift);
    Dwarf_Line *line = unit ? dwarf_getsrc_die(unit, call - shift) : NULL;
    out->file = line ? dwarf_linesrc(line, NULL, NULL) : NULL;
    if (out->file)
        (void)dwarf_lineno(line, &out->line);
}

bool symbols_find(struct symbols *symbols, const char *path, const char *build_id, uint64_t offset,
                  struct symbol *out)
{
    struct file *file = offset > 0 ? find_file(symbols, path, build_id) : NULL;
    struct symbol name = {.function = NULL};
    GElf_Off into = 0;
    GElf_Sym symbol;

    if (!file || !file->reader)
        return false;
    /* The return address may belong to the next line or function, so search the address before it. */
    const Dwarf_Addr call = offset - 1 + file->shift;
    name.function = dwfl_module_addrinfo(file->module, call, &into, &symbol, NULL, NULL, NULL);
    name.function_offset = into + 1;
    Dwfl_Line *line = dwfl_module_getsrc(file->module, call);
    if (line)
        name.file = dwfl_lineinfo(line, NULL, &name.line, NULL, NULL, NULL);
    else
        search_units(file->module, call, &name);
    if (!name.function && !name.file)
        return false;
    *out = name;
    return true;
}

#else

struct symbols {
    char nothing;
};

bool symbols_available(void)
{
    return false;
}

struct symbols *symbols_open(void)
{
    return calloc(1, sizeof(struct symbols));
}

void symbols_close(struct symbols *symbols)
{
    free(symbols);
}

bool symbols_find(struct symbols *symbols, const char *path, const char *build_id, uint64_t offset,
                  struct symbol *out)
{
    (void)symbols;
    (void)path;
    (void)build_id;
    (void)offset;
    (void)out;
    return false;
}

#endif
