/* SPDX-License-Identifier: MIT */
/* Symbols of loaded modules: what dladdr() says, with room for an order and without. */
#include <dlfcn.h>
#include <link.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "src/base/symbols.h"

/* A module of this process, as the test reads it. */
struct module {
    const char *part_of_name;
    uintptr_t base, start, end;
    uintptr_t code, code_end;
    const ElfW(Dyn) * dynamic;
};

static int note_module(struct dl_phdr_info *info, size_t bytes, void *context)
{
    struct module *module = context;

    (void)bytes;
    if (strstr(info->dlpi_name, module->part_of_name) == NULL)
        return 0;
    module->base = info->dlpi_addr;
    module->start = UINTPTR_MAX;
    for (unsigned i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[i];
        const uintptr_t start = module->base + part->p_vaddr, end = start + part->p_memsz;

        if (part->p_type == PT_DYNAMIC)
            module->dynamic = (const ElfW(Dyn) *)start;
        if (part->p_type != PT_LOAD)
            continue;
        module->start = start < module->start ? start : module->start;
        module->end = end > module->end ? end : module->end;
        if ((part->p_flags & PF_X) != 0) {
            module->code = start;
            module->code_end = end;
        }
    }
    return 1;
}

static void find_module(struct module *module, const char *part_of_name)
{
    memset(module, 0, sizeof(*module));
    module->part_of_name = part_of_name;
    assert_int_equal(dl_iterate_phdr(note_module, module), 1);
}

/* Compare with dladdr() throughout a module's code; how many addresses had a symbol.  Of several names of one
 * address it may say another.  Where the linker lays constants beside the code, it names those as well, and we do not. */
static unsigned compare(const struct module *module, const struct xseg_symbol_table *table,
                        struct xseg_symbol_order *order, struct xseg_bump *memory, size_t step)
{
    unsigned found = 0;

    for (uintptr_t address = module->code; address < module->code_end; address += step) {
        struct xseg_symbol symbol;
        ElfW(Sym) *said = NULL;
        Dl_info info;

        assert_int_not_equal(dladdr1((void *)address, &info, (void **)&said, RTLD_DL_SYMENT), 0);
        if (said != NULL && (said->st_info & 0xf) == STT_OBJECT)
            continue;
        const bool has = xseg_symbols_find(table, order, memory, address - module->base, &symbol);
        if (has != (info.dli_sname != NULL))
            fail_msg("%s+%#zx: dladdr() says %s, we %s", module->part_of_name,
                     (size_t)(address - module->base),
                     info.dli_sname != NULL ? info.dli_sname : "nothing",
                     has ? symbol.name : "nothing");
        if (!has)
            continue;
        found++;
        assert_int_equal(symbol.offset + module->base, (uintptr_t)info.dli_saddr);
        assert_int_equal(symbol.name_bytes, strlen(symbol.name));
    }
    return found;
}

static void they_are_what_dladdr_says(void **state)
{
    static const char *const name[] = {"libc.so", "libcmocka", "libm.so"};

    (void)state;
    assert_non_null(dlopen("libm.so.6", RTLD_NOW | RTLD_LOCAL));
    for (size_t i = 0; i < sizeof(name) / sizeof(name[0]); i++) {
        struct xseg_symbol_order order = {0};
        struct xseg_symbol_table table;
        struct xseg_bump memory;
        struct module module;

        assert_true(xseg_bump_init(&memory, (size_t)4 << 20));
        find_module(&module, name[i]);
        xseg_symbols_read(&table, module.base, module.dynamic, module.start, module.end);
        assert_true(table.count > 10);
        assert_true(compare(&module, &table, &order, &memory, 61) > 100);
        assert_non_null(order.number);
        assert_true(order.count <= table.count);
        xseg_bump_fini(&memory);
    }
}

static void without_room_they_are_the_same(void **state)
{
    struct xseg_symbol_order order = {0};
    struct xseg_symbol_table table;
    struct xseg_bump memory;
    struct module module;

    (void)state;
    assert_true(xseg_bump_init(&memory, 1));
    find_module(&module, "libc.so");
    xseg_symbols_read(&table, module.base, module.dynamic, module.start, module.end);
    assert_true(compare(&module, &table, &order, &memory, 4099) > 10);
    assert_null(order.number);
    assert_false(memory.was_full);
    xseg_bump_fini(&memory);
}

/* What lies outside the module is not read, whatever its dynamic section says. */
static void a_damaged_module_has_none(void **state)
{
    ElfW(Dyn) dynamic[64] = {0};
    struct xseg_symbol_table table;
    struct module module;
    unsigned count = 0;

    (void)state;
    find_module(&module, "libcmocka");
    while (count < 63 && module.dynamic[count].d_tag != DT_NULL)
        count++;
    memcpy(dynamic, module.dynamic, count * sizeof(*dynamic));
    xseg_symbols_read(&table, module.base, dynamic, module.start, module.end);
    assert_non_null(table.symbols);
    for (unsigned i = 0; i < count; i++) {
        const ElfW(Dyn) kept = dynamic[i];

        if (kept.d_tag != DT_SYMTAB && kept.d_tag != DT_STRTAB && kept.d_tag != DT_STRSZ &&
            kept.d_tag != DT_GNU_HASH)
            continue;
        dynamic[i].d_un.d_ptr = kept.d_tag == DT_STRSZ ? SIZE_MAX : module.end + 4096;
        xseg_symbols_read(&table, module.base, dynamic, module.start, module.end);
        assert_null(table.symbols);
        assert_int_equal(table.count, 0);
        dynamic[i] = kept;
    }
    xseg_symbols_read(&table, module.base, NULL, module.start, module.end);
    assert_null(table.symbols);
}

/* A table by hand: aliases, a symbol in a symbol, one without a size, and what is no function. */
static void names_of_one_address_lead_to_the_first(void **state)
{
    static const char names[] = "\0outer\0inner\0alias\0label\0datum\0far";
    const ElfW(Sym) symbols[] = {
        {0},
        {.st_name = 1, .st_info = STT_FUNC, .st_shndx = 1, .st_value = 100, .st_size = 100},
        {.st_name = 7, .st_info = STT_FUNC, .st_shndx = 1, .st_value = 120, .st_size = 10},
        {.st_name = 13, .st_info = STT_FUNC, .st_shndx = 1, .st_value = 120, .st_size = 10},
        {.st_name = 13, .st_info = STT_FUNC, .st_shndx = 1, .st_value = 120, .st_size = 10},
        {.st_name = 13, .st_info = STT_FUNC, .st_shndx = 1, .st_value = 120, .st_size = 10},
        {.st_name = 13, .st_info = STT_FUNC, .st_shndx = 1, .st_value = 120, .st_size = 10},
        {.st_name = 19, .st_info = STT_NOTYPE, .st_shndx = 1, .st_value = 150},
        {.st_name = 25, .st_info = STT_OBJECT, .st_shndx = 1, .st_value = 160, .st_size = 8},
        {.st_name = 31, .st_info = STT_FUNC, .st_shndx = SHN_UNDEF, .st_value = 170, .st_size = 8},
        {.st_name = 99, .st_info = STT_FUNC, .st_shndx = 1, .st_value = 180, .st_size = 8},
    };
    static const struct {
        uint64_t offset;
        const char *name;
    } row[] = {
        {99, NULL},     {100, "outer"}, {119, "outer"}, {120, "inner"}, {129, "inner"},
        {130, "outer"}, {150, "label"}, {151, "outer"}, {160, "outer"}, {170, "outer"},
        {180, "outer"}, {199, "outer"}, {200, NULL},
    };
    const struct xseg_symbol_table table = {symbols, 11, names, sizeof(names)};

    (void)state;
    for (unsigned has_room = 0; has_room < 2; has_room++) {
        struct xseg_symbol_order order = {0};
        struct xseg_bump memory;

        assert_true(xseg_bump_init(&memory, 4096));
        if (!has_room)
            assert_non_null(xseg_bump_take(&memory, xseg_bump_left(&memory)));
        for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
            struct xseg_symbol symbol = {0};

            assert_int_equal(xseg_symbols_find(&table, &order, &memory, row[i].offset, &symbol),
                             row[i].name != NULL);
            if (row[i].name != NULL)
                assert_string_equal(symbol.name, row[i].name);
            else
                assert_null(symbol.name);
        }
        assert_int_equal(order.count, has_room ? 7 : 0);
        xseg_bump_fini(&memory);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(they_are_what_dladdr_says),
        cmocka_unit_test(without_room_they_are_the_same),
        cmocka_unit_test(a_damaged_module_has_none),
        cmocka_unit_test(names_of_one_address_lead_to_the_first),
    };

    return cmocka_run_group_tests_name("symbols", tests, NULL, NULL);
}
