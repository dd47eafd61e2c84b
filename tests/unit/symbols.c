/* SPDX-License-Identifier: MIT */
/* Source positions by libdw: this program resolves its own code. */
#include <limits.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/tools/reading/symbols.h"
#include "tests/support/test.h"

/* This program as the library records a module. */
static struct {
    char path[PATH_MAX], build_id[2 * 64 + 1];
    uintptr_t base;
} self;

static void read_build_id(const struct dl_phdr_info *info, const ElfW(Phdr) * header)
{
    const char *at = (const char *)(info->dlpi_addr + header->p_vaddr), *end = at + header->p_memsz;

    while (at + sizeof(ElfW(Nhdr)) <= end) {
        const ElfW(Nhdr) *note = (const void *)at;
        const char *name = at + sizeof(*note);
        const unsigned char *description =
            (const unsigned char *)name + (note->n_namesz + 3) / 4 * 4;

        if (note->n_type == NT_GNU_BUILD_ID && strcmp(name, "GNU") == 0 && note->n_descsz <= 64)
            for (size_t i = 0; i < note->n_descsz; i++)
                (void)sprintf(self.build_id + 2 * i, "%02x", description[i]);
        at = (const char *)description + (note->n_descsz + 3) / 4 * 4;
    }
}

static int find_self(struct dl_phdr_info *info, size_t bytes, void *unused)
{
    (void)bytes, (void)unused;
    for (int i = 0; i < info->dlpi_phnum; i++)
        if (info->dlpi_phdr[i].p_type == PT_NOTE)
            read_build_id(info, &info->dlpi_phdr[i]);
    self.base = info->dlpi_addr;
    return 1; /* the first object is the program */
}

static int set_up(void **state)
{
    struct symbols *symbols = symbols_open();

    assert_non_null(realpath("/proc/self/exe", self.path));
    (void)dl_iterate_phdr(find_self, NULL);
    *state = symbols;
    return symbols == NULL;
}

static int tear_down(void **state)
{
    symbols_close(*state);
    return 0;
}

static const char *own_build_id(void)
{
    return self.build_id[0] ? self.build_id : NULL;
}

static __attribute__((noinline)) uint64_t return_offset(void)
{
    return (uint64_t)((uintptr_t)__builtin_return_address(0) - self.base);
}

/* A call whose line is known. */
static __attribute__((noinline)) uint64_t call_here(int *line)
{
    *line = __LINE__ + 1;
    const uint64_t offset = return_offset();
    __asm__ volatile(""); /* prevents a tail call */
    return offset;
}

TEST_WITH(a_call_has_its_function_and_line, set_up, tear_down)
{
    struct symbol symbol = {NULL, 0, NULL, 0};
    int line = 0;
    const uint64_t offset = call_here(&line);

    assert_true(symbols_find(*state, self.path, own_build_id(), offset, &symbol));
    assert_string_equal(symbol.function, "call_here");
    assert_in_range(symbol.function_offset, 1, 1000);
    assert_non_null(symbol.file);
    assert_non_null(strstr(symbol.file, "symbols.c"));
    assert_int_equal(symbol.line, line);
}

TEST_WITH(names_are_valid_until_close, set_up, tear_down)
{
    struct symbol first = {NULL, 0, NULL, 0}, second = {NULL, 0, NULL, 0};
    int line = 0;
    const uint64_t offset = call_here(&line);

    assert_true(symbols_find(*state, self.path, own_build_id(), offset, &first));
    for (uint64_t at = 1; at < 100; at++)
        (void)symbols_find(*state, self.path, own_build_id(), offset + at, &second);
    assert_true(symbols_find(*state, self.path, own_build_id(), offset, &second));
    assert_string_equal(first.function, second.function);
    assert_string_equal(first.file, second.file);
}

TEST_WITH(another_file_has_no_names, set_up, tear_down)
{
    static const char other_id[] = "0123456789abcdef0123456789abcdef01234567";
    struct symbol symbol = {NULL, 0, NULL, 7};
    int line = 0;

    assert_non_null(own_build_id());
    const uint64_t offset = call_here(&line);
    assert_false(symbols_find(*state, self.path, other_id, offset, &symbol));
    assert_false(symbols_find(*state, self.path, "01", offset, &symbol));
    assert_false(symbols_find(*state, self.path, "", offset, &symbol));
    assert_false(symbols_find(*state, self.path, NULL, offset, &symbol));
    assert_int_equal(symbol.line, 7);
    assert_true(symbols_find(*state, self.path, own_build_id(), offset, &symbol));
}

TEST_WITH(paths_and_offsets_without_code_have_no_names, set_up, tear_down)
{
    static const char *const path[] = {"/nowhere/to/be/found.so", "/", "/dev/null", ""};
    static const uint64_t offset[] = {0, UINT64_C(1) << 40, UINT64_MAX};
    struct symbol symbol = {NULL, 0, NULL, 7};

    for (size_t i = 0; i < COUNT_OF(path); i++)
        assert_false(symbols_find(*state, path[i], NULL, 64, &symbol));
    for (size_t i = 0; i < COUNT_OF(offset); i++)
        assert_false(symbols_find(*state, self.path, own_build_id(), offset[i], &symbol));
    assert_int_equal(symbol.line, 7);
}

TEST_WITH(without_libdw_addresses_have_no_names, set_up, tear_down)
{
    struct symbol symbol = {NULL, 0, NULL, 7};
    int line = 0;

    assert_false(symbols_find(*state, self.path, own_build_id(), call_here(&line), &symbol));
    assert_int_equal(symbol.line, 7);
    symbols_close(NULL);
}

int main(void)
{
    static const char pattern[] = "without_libdw_*";

    if (symbols_available())
        cmocka_set_skip_filter(pattern);
    else
        test_select(pattern);
    return test_run();
}
