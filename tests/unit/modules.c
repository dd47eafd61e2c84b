/* SPDX-License-Identifier: MIT */
/* The table of modules that are or were loaded, and records of their frames. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
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

/* The mapping at an address of a library that was just loaded. */
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
    const struct xseg_module_mapping *program = find(&table, (const void *)(uintptr_t)&count_run);
    const ssize_t length = readlink("/proc/self/exe", self, sizeof(self) - 1);
    assert_true(length > 0);
    self[length] = '\0';
    assert_non_null(program);
    assert_string_equal(program->module->path, self);
    assert_int_not_equal(dladdr(in_libc, &info), 0);
    const struct xseg_module_mapping *libc = find(&table, in_libc);
    assert_non_null(libc);
    assert_ptr_not_equal(libc, program);
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
    assert_null(find(&table, plugin.base)); /* not scanned yet */
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

/* A hundred loads at the same or other addresses: one module, and no more mappings than addresses. */
TEST(the_same_file_is_the_same_module)
{
    struct plugin plugin;
    struct table table;

    begin(&table);
    plugin_open(&plugin, "plugin-one");
    const struct xseg_module_mapping *first = find_plugin(&table, &plugin);
    plugin_close(&plugin);
    look(&table);
    /* Occupy its addresses, unless a sanitizer has already done so, so that the library is loaded elsewhere. */
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

/* Builds at one path, as during development; some have no build ID. */
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

/* The modules that fit are complete. */
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

/* Loaded code may be read while the loader lock is held. */
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

/* --- Frames: one record for each address and mapping, with its source. --- */

/* A module that is not loaded, at two addresses. */
struct fixture {
    struct xseg_bump memory;
    struct xseg_frames frames;
    struct xseg_module module;
    struct xseg_module_mapping mapping[2];
};

static void begin_frames(struct fixture *f)
{
    memset(f, 0, sizeof(*f));
    assert_true(xseg_bump_init(&f->memory, 1 << 20));
    assert_true(xseg_frames_init(&f->frames, &f->memory));
    f->module.name = f->module.path = "/lib/made-up.so";
    for (unsigned i = 0; i < 2; i++) {
        f->mapping[i].module = &f->module;
        f->mapping[i].base = f->mapping[i].start = (i + 1) * 65536;
        f->mapping[i].end = f->mapping[i].start + 65536;
        f->mapping[i].is_loaded = true;
    }
}

static void end_frames(struct fixture *f)
{
    struct xseg_violation violation = {0};

    if (!xseg_frames_audit(&f->frames, &violation))
        fail_msg("%s: %s", violation.tag, violation.text);
    xseg_bump_fini(&f->memory);
}

static const struct xseg_frame *keep(struct fixture *f, uintptr_t pc,
                                     const struct xseg_module_mapping *mapping)
{
    assert_true(xseg_frames_add(&f->frames, (const void *)pc, mapping));
    const struct xseg_frame *frame = xseg_frames_find(&f->frames, (const void *)pc, mapping);
    assert_non_null(frame);
    return frame;
}

TEST(an_address_has_one_frame_per_mapping)
{
    struct fixture f;

    begin_frames(&f);
    assert_null(xseg_frames_find(&f.frames, (const void *)70000, &f.mapping[0]));
    const struct xseg_frame *frame = keep(&f, 70000, &f.mapping[0]);
    assert_ptr_equal(keep(&f, 70000, &f.mapping[0]), frame);
    assert_ptr_not_equal(keep(&f, 70001, &f.mapping[0]), frame);
    assert_ptr_not_equal(keep(&f, 70000, &f.mapping[1]), frame);
    assert_ptr_not_equal(keep(&f, 70000, NULL), frame);
    assert_int_equal(f.frames.frames.used, 4);
    end_frames(&f);
}

TEST(recorded_frames_remain_valid)
{
    const struct xseg_stack_source first = {"function", 5, "made-up.c", 17};
    const struct xseg_stack_source second = {"other", 6, "other.c", 18};
    struct xseg_stack_frame out;
    struct fixture f;

    begin_frames(&f);
    const struct xseg_frame *frame = keep(&f, 65536 + 100, &f.mapping[0]);
    xseg_frames_read(&f.frames, frame, &out);
    assert_int_equal(out.offset, 100);
    assert_string_equal(out.path, "/lib/made-up.so");
    assert_null(out.build_id);
    assert_false(out.is_resolved);
    assert_null(out.symbol);
    assert_null(out.file);
    xseg_frames_set_source(&f.frames, frame, &first);
    xseg_frames_set_source(&f.frames, frame, &second);
    xseg_frames_read(&f.frames, frame, &out);
    assert_true(out.is_resolved);
    assert_string_equal(out.symbol, "function");
    assert_int_equal(out.symbol_offset, 5);
    assert_string_equal(out.file, "made-up.c");
    assert_int_equal(out.line, 17);
    end_frames(&f);
}

/* The failed lookup is recorded as well. */
TEST(frame_may_have_no_source)
{
    const struct xseg_stack_source nothing = {NULL, 0, NULL, 9};
    const struct xseg_stack_source something = {"function", 5, "made-up.c", 17};
    struct xseg_stack_frame out;
    struct fixture f;

    begin_frames(&f);
    const struct xseg_frame *frame = keep(&f, 65536 + 100, &f.mapping[0]);
    xseg_frames_set_source(&f.frames, frame, &nothing);
    xseg_frames_set_source(&f.frames, frame, &something);
    xseg_frames_read(&f.frames, frame, &out);
    assert_true(out.is_resolved);
    assert_null(out.symbol);
    assert_null(out.file);
    assert_int_equal(out.line, 0);
    end_frames(&f);
}

/* Frames of one function and file share one record of each string. */
TEST(texts_are_kept_once)
{
    struct xseg_stack_frame out, before;
    struct fixture f;

    begin_frames(&f);
    memset(&before, 0, sizeof(before));
    for (uint32_t i = 1; i < 50; i++) {
        const struct xseg_stack_source source = {"function", i, "made-up.c", i};
        const struct xseg_frame *frame = keep(&f, 65536 + 100 + i, &f.mapping[0]);

        xseg_frames_set_source(&f.frames, frame, &source);
        xseg_frames_read(&f.frames, frame, &out);
        assert_int_equal(out.line, i);
        assert_int_equal(out.symbol_offset, i);
        if (i > 1) {
            assert_ptr_equal(out.symbol, before.symbol);
            assert_ptr_equal(out.file, before.file);
        }
        before = out;
    }
    /* A string that is a prefix of another one. */
    const struct xseg_stack_source shorter = {NULL, 0, "made-up", 1};
    const struct xseg_frame *frame = keep(&f, 65536 + 100, &f.mapping[0]);
    xseg_frames_set_source(&f.frames, frame, &shorter);
    xseg_frames_read(&f.frames, frame, &out);
    assert_string_equal(out.file, "made-up");
    end_frames(&f);
}

/* Functions at the same offset of two modules have separate names. */
TEST(names_belong_to_modules)
{
    const struct xseg_stack_source source[] = {{"one", 0, NULL, 0}, {"other", 0, NULL, 0}};
    struct xseg_module other = {.name = "/lib/other.so", .path = "/lib/other.so"};
    struct xseg_stack_frame out;
    struct fixture f;

    begin_frames(&f);
    f.mapping[1].module = &other;
    for (unsigned i = 0; i < 2; i++) {
        const struct xseg_frame *frame = keep(&f, f.mapping[i].base + 100, &f.mapping[i]);

        xseg_frames_set_source(&f.frames, frame, &source[i]);
        xseg_frames_read(&f.frames, frame, &out);
        assert_string_equal(out.symbol, source[i].symbol);
    }
    end_frames(&f);
}

TEST(host_allocation_failure_loses_details_only)
{
    const struct xseg_stack_source source = {"function", 5, "made-up.c", 17};

    for (size_t left = 0; left < 256; left += 8) {
        struct xseg_stack_frame out;
        struct fixture f;

        begin_frames(&f);
        const struct xseg_frame *frame = keep(&f, 65536 + 100, &f.mapping[0]);
        const size_t used = xseg_bump_remaining(&f.memory) - left;
        assert_non_null(xseg_bump_alloc(&f.memory, used));
        xseg_frames_set_source(&f.frames, frame, &source);
        xseg_frames_read(&f.frames, frame, &out);
        assert_true(out.symbol == NULL || strcmp(out.symbol, "function") == 0);
        assert_true(out.file == NULL || strcmp(out.file, "made-up.c") == 0);
        assert_int_equal(out.line, out.file != NULL ? 17 : 0);
        assert_true(left < 128 || out.file != NULL);
        if (xseg_frames_add(&f.frames, (const void *)(uintptr_t)70000, NULL))
            assert_non_null(xseg_frames_find(&f.frames, (const void *)(uintptr_t)70000, NULL));
        end_frames(&f);
    }
}

TEST(frame_audit_names_the_broken_invariant)
{
    const struct xseg_stack_source source = {"function", 5, "made-up.c", 17};
    struct xseg_violation violation = {0};
    struct fixture f;

    begin_frames(&f);
    struct xseg_frame *frame =
        xseg_bump_at(&f.memory, xseg_bump_handle(&f.memory, keep(&f, 65536 + 100, f.mapping)));
    xseg_frames_set_source(&f.frames, frame, &source);
    frame->pc = (const void *)(uintptr_t)7;
    assert_false(xseg_frames_audit(&f.frames, &violation));
    assert_string_equal(violation.tag, "FRAMES-1");
    frame->pc = (const void *)(uintptr_t)(65536 + 100);
    struct xseg_frame *nowhere =
        xseg_bump_at(&f.memory, xseg_bump_handle(&f.memory, keep(&f, 65536 + 100, NULL)));
    atomic_store(&nowhere->is_resolved, true);
    assert_false(xseg_frames_audit(&f.frames, &violation));
    assert_string_equal(violation.tag, "FRAMES-2");
    atomic_store(&nowhere->is_resolved, false);
    end_frames(&f);
}
