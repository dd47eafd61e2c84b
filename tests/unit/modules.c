/* SPDX-License-Identifier: MIT */
/* Which modules are loaded and which were, while libraries come and go. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "src/base/modules.h"
#include "tests/support/emulator.h"
#include "tests/support/plugin.h"
#include "tests/support/test.h"

struct table {
    struct xseg_bump memory;
    struct xseg_modules modules;
};

static void assert_audit(const struct xseg_modules *modules)
{
    struct xseg_violation violation = {0};

    if (!xseg_modules_audit(modules, &violation))
        fail_msg("%s: %s", violation.tag, violation.text);
}

static void count_run(void *context)
{
    ++*(unsigned *)context;
}

static void look(struct table *table)
{
    unsigned runs = 0;

    xseg_modules_call_locked(&table->modules, count_run, &runs);
    assert_int_equal(runs, 1);
    assert_audit(&table->modules);
}

static void begin(struct table *table)
{
    assert_true(xseg_bump_init(&table->memory, 1 << 20));
    xseg_modules_init(&table->modules, &table->memory);
    look(table);
}

static void end(struct table *table)
{
    xseg_bump_fini(&table->memory);
}

static const struct xseg_module_mapping *find(const struct table *table, const void *address)
{
    return xseg_modules_find(&table->modules, (uintptr_t)address);
}

/* What is at an address of a library that was just loaded. */
static const struct xseg_module_mapping *find_plugin(struct table *table,
                                                     const struct plugin *plugin)
{
    look(table);
    const struct xseg_module_mapping *mapping = find(table, plugin->base);
    assert_non_null(mapping);
    assert_true(mapping->is_loaded);
    assert_ptr_equal((const void *)mapping->start, plugin->base);
    return mapping;
}

TEST(program_and_its_libraries_are_found)
{
    void *in_libc = dlsym(RTLD_DEFAULT, "gnu_get_libc_version");
    struct table table;
    char self[1024];
    Dl_info info;

    begin(&table);
    assert_null(find(&table, self)); /* the stack is in no module */
    const struct xseg_module_mapping *programme = find(&table, (const void *)(uintptr_t)&count_run);
    const ssize_t length = readlink("/proc/self/exe", self, sizeof(self) - 1);
    assert_true(length > 0);
    self[length] = '\0';
    assert_non_null(programme);
    assert_string_equal(programme->module->path, self);
    assert_int_not_equal(dladdr(in_libc, &info), 0);
    const struct xseg_module_mapping *libc = find(&table, in_libc);
    assert_non_null(libc);
    assert_ptr_not_equal(libc, programme);
    assert_string_equal(libc->module->path, info.dli_fname);
    assert_ptr_equal((const void *)libc->start, info.dli_fbase);
    assert_null(find(&table, NULL));
    assert_null(find(&table, (const void *)UINTPTR_MAX));
    end(&table);
}

TEST(a_library_that_is_unloaded_stays_in_the_table)
{
    struct plugin plugin;
    struct table table;

    begin(&table);
    const uint64_t before = table.modules.changes;
    plugin_open(&plugin, "plugin-one");
    assert_null(find(&table, plugin.base)); /* nobody has looked */
    const struct xseg_module_mapping *mapping = find_plugin(&table, &plugin);
    assert_string_equal(mapping->module->path, plugin.path);
    assert_string_equal(mapping->module->build_id, PLUGIN_ONE_ID);
    assert_ptr_equal(find(&table, (const char *)mapping->end - 1), mapping);
    assert_ptr_not_equal(find(&table, (const char *)mapping->end), mapping);
    assert_int_equal(table.modules.changes, before + 1);
    plugin_close(&plugin);
    look(&table);
    assert_int_equal(table.modules.changes, before + 2);
    assert_false(mapping->is_loaded);
    assert_null(find(&table, plugin.base));
    assert_string_equal(mapping->module->path, plugin.path);
    end(&table);
}

/* A hundred times at the same place or at others: one module, and no more mappings than places. */
TEST(the_same_file_is_the_same_module)
{
    struct plugin plugin;
    struct table table;

    begin(&table);
    plugin_open(&plugin, "plugin-one");
    const struct xseg_module_mapping *first = find_plugin(&table, &plugin);
    plugin_close(&plugin);
    look(&table);
    /* Something else comes to its addresses, unless a sanitizer has been there first: it has to go elsewhere. */
    void *stone = mmap((void *)first->start, first->end - first->start, PROT_NONE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    plugin_open(&plugin, "plugin-one");
    const struct xseg_module_mapping *second = find_plugin(&table, &plugin);
    assert_ptr_not_equal(second, first);
    assert_ptr_equal(second->module, first->module);
    assert_false(first->is_loaded);
    plugin_close(&plugin);
    if (stone != MAP_FAILED)
        assert_int_equal(munmap(stone, first->end - first->start), 0);
    const size_t used = table.memory.used;
    for (unsigned i = 0; i < 100; i++) {
        plugin_open(&plugin, "plugin-one");
        const struct xseg_module_mapping *again = find_plugin(&table, &plugin);
        assert_ptr_equal(again->module, first->module);
        assert_int_equal(again == first, plugin.base == (const char *)first->start);
        plugin_close(&plugin);
        look(&table);
    }
    /* An emulator may choose other addresses each time. */
    assert_true(is_emulated() || table.memory.used - used < 100 * sizeof(*first) / 2);
    end(&table);
}

/* Builds under one path, as while somebody develops; some have no build id. */
TEST(another_file_at_the_same_path_is_another_module)
{
    static const char *const name[] = {"plugin-one", "plugin-rebuilt", "plugin-two",
                                       "plugin-stripped", "plugin-one"};
    enum { FILES = sizeof(name) / sizeof(name[0]) };
    const struct xseg_module_mapping *mapping[FILES];
    char path[1024], from[1024];
    struct plugin plugin;
    struct table table;

    const char *folder = getenv("TMPDIR");
    (void)snprintf(path, sizeof(path), "%s/xseg-modules-XXXXXX",
                   folder != NULL ? folder : P_tmpdir);
    const int file = mkstemp(path);
    assert_true(file >= 0);
    assert_int_equal(close(file), 0);
    begin(&table);
    for (unsigned i = 0; i < FILES; i++) {
        plugin_path(name[i], from, sizeof(from));
        plugin_copy(from, path);
        plugin_open_path(&plugin, path);
        mapping[i] = find_plugin(&table, &plugin);
        assert_string_equal(mapping[i]->module->path, path);
        assert_int_equal(mapping[i]->module->build_id != NULL, i != 2 && i != 3);
        plugin_close(&plugin);
        assert_int_equal(unlink(path), 0);
        for (unsigned j = 0; j < i; j++)
            assert_int_equal(mapping[i]->module == mapping[j]->module, i == FILES - 1 && j == 0);
    }
    look(&table);
    end(&table);
}

TEST(a_relative_path_is_made_absolute)
{
    char folder[1024], was[1024], path[1100];
    struct plugin plugin;
    struct table table;

    begin(&table);
    plugin_path("plugin-one", folder, sizeof(folder));
    *strrchr(folder, '/') = '\0';
    assert_non_null(getcwd(was, sizeof(was)));
    assert_int_equal(chdir(folder), 0);
    plugin_open_path(&plugin, "./libplugin-one.so");
    const struct xseg_module_mapping *mapping = find_plugin(&table, &plugin);
    (void)snprintf(path, sizeof(path), "%s/./libplugin-one.so", folder);
    assert_string_equal(mapping->module->path, path);
    plugin_close(&plugin);
    assert_int_equal(chdir(was), 0);
    end(&table);
}

/* The modules that fit are there, and nothing is broken. */
TEST(full_table_omits_modules)
{
    for (size_t left = 0; left < 8192; left += 56) {
        struct table table;

        assert_true(xseg_bump_init(&table.memory, 16384));
        assert_non_null(
            xseg_bump_alloc(&table.memory, xseg_bump_remaining(&table.memory) - left - 8));
        xseg_modules_init(&table.modules, &table.memory);
        look(&table);
        look(&table);
        assert_true(table.memory.was_full || table.modules.loaded_count > 2);
        end(&table);
    }
}

static atomic_bool is_over, has_failed;

static void *open_and_close(void *self)
{
    const char *name = self;
    char path[1024];

    plugin_path(name, path, sizeof(path));
    while (!atomic_load(&is_over)) {
        void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);

        if (handle == NULL || dlclose(handle) != 0) {
            atomic_store(&has_failed, true);
            break;
        }
    }
    return NULL;
}

/* What is loaded may be read while the loader is held. */
static void read_first_bytes(void *context)
{
    struct table *table = context;

    for (uint32_t i = 0; i < table->modules.loaded_count; i++)
        assert_memory_equal((const void *)table->modules.loaded[i]->start, "\177ELF", 4);
}

TEST(libraries_may_be_loaded_and_unloaded_concurrently)
{
    static char one[] = "plugin-one", two[] = "plugin-two";
    pthread_t thread[2];
    struct table table;

    begin(&table);
    atomic_store(&is_over, false);
    assert_int_equal(pthread_create(&thread[0], NULL, open_and_close, one), 0);
    assert_int_equal(pthread_create(&thread[1], NULL, open_and_close, two), 0);
    const uint64_t changes = table.modules.changes;
    for (unsigned i = 0; (i < 300 || table.modules.changes == changes) && !has_failed; i++) {
        xseg_modules_call_locked(&table.modules, read_first_bytes, &table);
        assert_audit(&table.modules);
    }
    atomic_store(&is_over, true);
    for (unsigned i = 0; i < 2; i++)
        assert_int_equal(pthread_join(thread[i], NULL), 0);
    assert_false(has_failed);
    end(&table);
}

TEST(the_audit_names_the_broken_invariant)
{
    struct xseg_violation violation = {0};
    struct table table;

    begin(&table);
    assert_true(table.modules.loaded_count > 2);
    const struct xseg_module_mapping *kept = table.modules.loaded[0];
    table.modules.loaded[0] = table.modules.loaded[1];
    assert_false(xseg_modules_audit(&table.modules, &violation));
    assert_string_equal(violation.tag, "MODULES-1");
    table.modules.loaded[0] = kept;
    table.modules.loaded_count--;
    assert_false(xseg_modules_audit(&table.modules, &violation));
    assert_string_equal(violation.tag, "MODULES-1");
    table.modules.loaded_count++;
    assert_audit(&table.modules);
    struct xseg_module *one = table.modules.modules, *other = one->next;
    const struct xseg_module before = *other;
    other->name = one->name;
    other->shape = one->shape;
    other->build_id = one->build_id;
    assert_false(xseg_modules_audit(&table.modules, &violation));
    assert_string_equal(violation.tag, "MODULES-2");
    *other = before;
    assert_audit(&table.modules);
    end(&table);
}
