/* SPDX-License-Identifier: MIT */
/* The table of modules that are or were loaded, and records of their frames. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "src/base/modules.h"
#include "tests/support/audit.h"
#include "tests/support/emulator.h"
#include "tests/support/plugin.h"

static struct xseg_bump memory;
static struct xseg_modules modules;

static void expect_modules_audit(const char *tag)
{
    expect_audit(xseg_modules_audit(&modules, &violation), tag);
}

static void count_call(void *context)
{
    ++*(unsigned *)context;
}

static void scan(void)
{
    unsigned calls = 0;

    xseg_modules_call_locked(&modules, count_call, &calls);
    assert_int_equal(calls, 1);
    expect_modules_audit(NULL);
}

FIXTURE(set_up)
{
    assert_true(xseg_bump_init(&memory, 1 << 20));
    xseg_modules_init(&modules, &memory);
    scan();
}

FIXTURE(tear_down)
{
    xseg_bump_fini(&memory);
}

static const struct xseg_module_mapping *find(const void *address)
{
    return xseg_modules_find(&modules, (uintptr_t)address);
}

/* The mapping at an address of a library that was just loaded. */
static const struct xseg_module_mapping *find_plugin(const struct plugin *plugin)
{
    scan();
    const struct xseg_module_mapping *mapping = find(plugin->base);
    assert_non_null(mapping);
    assert_true(mapping->is_loaded);
    assert_ptr_equal((const void *)mapping->start, plugin->base);
    return mapping;
}

TEST_WITH(program_and_its_libraries_are_found, set_up, tear_down)
{
    void *in_libc = dlsym(RTLD_DEFAULT, "gnu_get_libc_version");
    char self[1024];
    Dl_info info;

    assert_null(find(self)); /* the stack is in no module */
    const struct xseg_module_mapping *program = find((const void *)(uintptr_t)&count_call);
    const ssize_t length = readlink("/proc/self/exe", self, sizeof(self) - 1);
    assert_true(length > 0);
    self[length] = '\0';
    assert_non_null(program);
    assert_string_equal(program->module->path, self);
    assert_int_not_equal(dladdr(in_libc, &info), 0);
    const struct xseg_module_mapping *libc = find(in_libc);
    assert_non_null(libc);
    assert_ptr_not_equal(libc, program);
    assert_string_equal(libc->module->path, info.dli_fname);
    assert_ptr_equal((const void *)libc->start, info.dli_fbase);
    assert_null(find(NULL));
    assert_null(find((const void *)UINTPTR_MAX));
}

TEST_WITH(a_library_that_is_unloaded_stays_in_the_table, set_up, tear_down)
{
    struct plugin plugin;

    const uint64_t before = modules.changes;
    plugin_open(&plugin, "plugin-one");
    assert_null(find(plugin.base)); /* there was no scan since the load */
    const struct xseg_module_mapping *mapping = find_plugin(&plugin);
    assert_string_equal(mapping->module->path, plugin.path);
    assert_string_equal(mapping->module->build_id, PLUGIN_ONE_ID);
    assert_ptr_equal(find((const char *)mapping->end - 1), mapping);
    assert_ptr_not_equal(find((const char *)mapping->end), mapping);
    assert_int_equal(modules.changes, before + 1);
    plugin_close(&plugin);
    scan();
    assert_int_equal(modules.changes, before + 2);
    assert_false(mapping->is_loaded);
    assert_null(find(plugin.base));
    assert_string_equal(mapping->module->path, plugin.path);
}

/* A library that is loaded a hundred times is one module, with one mapping for each address at which it was loaded. */
TEST_WITH(one_file_is_one_module, set_up, tear_down)
{
    struct plugin plugin;

    plugin_open(&plugin, "plugin-one");
    const struct xseg_module_mapping *first = find_plugin(&plugin);
    plugin_close(&plugin);
    scan();
    /* Reserve the addresses of the library, unless a sanitizer has already done so, so that it is loaded elsewhere. */
    void *reservation = mmap((void *)first->start, first->end - first->start, PROT_NONE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    plugin_open(&plugin, "plugin-one");
    const struct xseg_module_mapping *second = find_plugin(&plugin);
    assert_ptr_not_equal(second, first);
    assert_ptr_equal(second->module, first->module);
    assert_false(first->is_loaded);
    plugin_close(&plugin);
    if (reservation != MAP_FAILED)
        assert_int_equal(munmap(reservation, first->end - first->start), 0);
    const size_t used = memory.used;
    for (unsigned i = 0; i < 100; i++) {
        plugin_open(&plugin, "plugin-one");
        const struct xseg_module_mapping *reloaded = find_plugin(&plugin);
        assert_ptr_equal(reloaded->module, first->module);
        assert_int_equal(reloaded == first, plugin.base == (const char *)first->start);
        plugin_close(&plugin);
        scan();
    }
    /* An emulator may choose a new address for each load. */
    assert_true(is_emulated() || memory.used - used < 100 * sizeof(*first) / 2);
}

/* Several builds at one path, as during development. The third and fourth build have no build ID; the last equals the first. */
TEST_WITH(another_file_at_the_same_path_is_another_module, set_up, tear_down)
{
    static const char *const name[] = {"plugin-one", "plugin-rebuilt", "plugin-two",
                                       "plugin-stripped", "plugin-one"};
    enum { FILES = sizeof(name) / sizeof(name[0]) };
    const struct xseg_module_mapping *mapping[FILES];
    char path[1024], built[1024];
    struct plugin plugin;

    const char *directory = getenv("TMPDIR");
    (void)snprintf(path, sizeof(path), "%s/xseg-modules-XXXXXX",
                   directory != NULL ? directory : P_tmpdir);
    const int file = mkstemp(path);
    assert_true(file >= 0);
    assert_int_equal(close(file), 0);
    for (unsigned i = 0; i < FILES; i++) {
        plugin_path(name[i], built, sizeof(built));
        plugin_copy(built, path);
        plugin_open_path(&plugin, path);
        mapping[i] = find_plugin(&plugin);
        assert_string_equal(mapping[i]->module->path, path);
        assert_int_equal(mapping[i]->module->build_id != NULL, i != 2 && i != 3);
        plugin_close(&plugin);
        assert_int_equal(unlink(path), 0);
        for (unsigned j = 0; j < i; j++)
            assert_int_equal(mapping[i]->module == mapping[j]->module, i == FILES - 1 && j == 0);
    }
    scan();
}

TEST_WITH(a_relative_path_is_made_absolute, set_up, tear_down)
{
    char directory[1024], previous_directory[1024], path[1100];
    struct plugin plugin;

    plugin_path("plugin-one", directory, sizeof(directory));
    *strrchr(directory, '/') = '\0';
    assert_non_null(getcwd(previous_directory, sizeof(previous_directory)));
    assert_int_equal(chdir(directory), 0);
    plugin_open_path(&plugin, "./libplugin-one.so");
    const struct xseg_module_mapping *mapping = find_plugin(&plugin);
    (void)snprintf(path, sizeof(path), "%s/./libplugin-one.so", directory);
    assert_string_equal(mapping->module->path, path);
    plugin_close(&plugin);
    assert_int_equal(chdir(previous_directory), 0);
}

/* A table whose memory is full contains only complete modules, which the audit checks. */
TEST(full_table_omits_modules)
{
    for (size_t remaining = 0; remaining < 8192; remaining += 56) {
        assert_true(xseg_bump_init(&memory, 16384));
        assert_non_null(xseg_bump_alloc(&memory, xseg_bump_remaining(&memory) - remaining - 8));
        xseg_modules_init(&modules, &memory);
        scan();
        scan();
        assert_true(memory.was_full || modules.loaded_count > 2);
        (void)tear_down(NULL);
    }
}

static atomic_bool must_end, has_failed;

static void *open_and_close(void *self)
{
    const char *name = self;
    char path[1024];

    plugin_path(name, path, sizeof(path));
    while (!atomic_load(&must_end)) {
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
    (void)context;
    for (uint32_t i = 0; i < modules.loaded_count; i++)
        assert_memory_equal((const void *)modules.loaded[i]->start, "\177ELF", 4);
}

TEST_WITH(libraries_may_be_loaded_and_unloaded_concurrently, set_up, tear_down)
{
    static char first[] = "plugin-one", second[] = "plugin-two";
    pthread_t thread[2];

    atomic_store(&must_end, false);
    assert_int_equal(pthread_create(&thread[0], NULL, open_and_close, first), 0);
    assert_int_equal(pthread_create(&thread[1], NULL, open_and_close, second), 0);
    const uint64_t changes = modules.changes;
    for (unsigned i = 0; (i < 300 || modules.changes == changes) && !has_failed; i++) {
        xseg_modules_call_locked(&modules, read_first_bytes, NULL);
        expect_modules_audit(NULL);
    }
    atomic_store(&must_end, true);
    for (unsigned i = 0; i < 2; i++)
        assert_int_equal(pthread_join(thread[i], NULL), 0);
    assert_false(has_failed);
}

TEST_WITH(audit_reports_the_violated_invariant, set_up, tear_down)
{
    assert_true(modules.loaded_count > 2);
    WITH_VALUE(modules.loaded[0], modules.loaded[1], expect_modules_audit("MODULES-1"));
    WITH_VALUE(modules.loaded_count, modules.loaded_count - 1, expect_modules_audit("MODULES-1"));
    expect_modules_audit(NULL);
    struct xseg_module *first = modules.modules, *second = first->next;
    const struct xseg_module before = *second;
    second->name = first->name;
    second->headers_hash = first->headers_hash;
    second->build_id = first->build_id;
    expect_modules_audit("MODULES-2");
    *second = before;
    expect_modules_audit(NULL);
}

/* --- Frames: one record for each address and mapping, with its source. --- */

static struct xseg_frames frames;

/* An invented module, mapped at two addresses. */
static struct xseg_module fake_module;
static struct xseg_module_mapping mapping[2];

FIXTURE(set_up_frames)
{
    assert_true(xseg_bump_init(&memory, 1 << 20));
    assert_true(xseg_frames_init(&frames, &memory));
    fake_module = (struct xseg_module){.name = "/lib/made-up.so", .path = "/lib/made-up.so"};
    for (unsigned i = 0; i < 2; i++) {
        mapping[i] = (struct xseg_module_mapping){.module = &fake_module, .is_loaded = true};
        mapping[i].base = mapping[i].start = (i + 1) * 65536;
        mapping[i].end = mapping[i].start + 65536;
    }
}

static void expect_frames_audit(const char *tag)
{
    expect_audit(xseg_frames_audit(&frames, &violation), tag);
}

static int tear_down_frames(void **state)
{
    expect_frames_audit(NULL);
    return tear_down(state);
}

static const struct xseg_frame *add_frame(uintptr_t pc,
                                          const struct xseg_module_mapping *in_mapping)
{
    assert_true(xseg_frames_add(&frames, (const void *)pc, in_mapping));
    const struct xseg_frame *frame = xseg_frames_find(&frames, (const void *)pc, in_mapping);
    assert_non_null(frame);
    return frame;
}

TEST_WITH(an_address_has_one_frame_per_mapping, set_up_frames, tear_down_frames)
{
    assert_null(xseg_frames_find(&frames, (const void *)70000, &mapping[0]));
    const struct xseg_frame *frame = add_frame(70000, &mapping[0]);
    assert_ptr_equal(add_frame(70000, &mapping[0]), frame);
    assert_ptr_not_equal(add_frame(70001, &mapping[0]), frame);
    assert_ptr_not_equal(add_frame(70000, &mapping[1]), frame);
    assert_ptr_not_equal(add_frame(70000, NULL), frame);
    assert_int_equal(frames.frames.used, 4);
}

/* The first source of a frame is final, even if the lookup found no function and no file. */
TEST_WITH(recorded_frames_remain_valid, set_up_frames, tear_down_frames)
{
    const struct xseg_stack_source first = {"function", 5, "made-up.c", 17},
                                   unresolved = {NULL, 0, NULL, 9};
    const struct xseg_stack_source second = {"other", 6, "other.c", 18};
    struct xseg_stack_frame out;

    for (unsigned has_source = 0; has_source < 2; has_source++) {
        const struct xseg_frame *frame = add_frame(65536 + 100 + has_source, &mapping[0]);

        xseg_frames_read(&frames, frame, &out);
        assert_int_equal(out.offset, 100 + has_source);
        assert_string_equal(out.path, "/lib/made-up.so");
        assert_null(out.build_id);
        assert_false(out.is_resolved);
        assert_null(out.symbol);
        assert_null(out.file);
        xseg_frames_set_source(&frames, frame, has_source ? &first : &unresolved);
        xseg_frames_set_source(&frames, frame, &second);
        xseg_frames_read(&frames, frame, &out);
        assert_true(out.is_resolved);
        assert_int_equal(out.line, has_source ? 17 : 0);
        assert_int_equal(out.symbol != NULL && out.file != NULL, has_source);
        assert_int_equal(out.symbol != NULL || out.file != NULL, has_source);
    }
    assert_string_equal(out.symbol, "function");
    assert_int_equal(out.symbol_offset, 5);
    assert_string_equal(out.file, "made-up.c");
}

TEST_WITH(strings_are_stored_once, set_up_frames, tear_down_frames)
{
    struct xseg_stack_frame out, before;

    memset(&before, 0, sizeof(before));
    for (uint32_t i = 1; i < 50; i++) {
        const struct xseg_stack_source source = {"function", i, "made-up.c", i};
        const struct xseg_frame *frame = add_frame(65536 + 100 + i, &mapping[0]);

        xseg_frames_set_source(&frames, frame, &source);
        xseg_frames_read(&frames, frame, &out);
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
    const struct xseg_frame *frame = add_frame(65536 + 100, &mapping[0]);
    xseg_frames_set_source(&frames, frame, &shorter);
    xseg_frames_read(&frames, frame, &out);
    assert_string_equal(out.file, "made-up");
}

TEST_WITH(names_belong_to_modules, set_up_frames, tear_down_frames)
{
    const struct xseg_stack_source source[] = {{"one", 0, NULL, 0}, {"other", 0, NULL, 0}};
    struct xseg_module second_module = {.name = "/lib/other.so", .path = "/lib/other.so"};
    struct xseg_stack_frame out;

    mapping[1].module = &second_module;
    for (unsigned i = 0; i < 2; i++) {
        const struct xseg_frame *frame = add_frame(mapping[i].base + 100, &mapping[i]);

        xseg_frames_set_source(&frames, frame, &source[i]);
        xseg_frames_read(&frames, frame, &out);
        assert_string_equal(out.symbol, source[i].symbol);
    }
}

TEST(host_allocation_failure_loses_only_details)
{
    const struct xseg_stack_source source = {"function", 5, "made-up.c", 17};

    for (size_t remaining = 0; remaining < 256; remaining += 8) {
        struct xseg_stack_frame out;

        (void)set_up_frames(NULL);
        const struct xseg_frame *frame = add_frame(65536 + 100, &mapping[0]);
        const size_t used = xseg_bump_remaining(&memory) - remaining;
        assert_non_null(xseg_bump_alloc(&memory, used));
        xseg_frames_set_source(&frames, frame, &source);
        xseg_frames_read(&frames, frame, &out);
        assert_true(out.symbol == NULL || strcmp(out.symbol, "function") == 0);
        assert_true(out.file == NULL || strcmp(out.file, "made-up.c") == 0);
        assert_int_equal(out.line, out.file != NULL ? 17 : 0);
        assert_true(remaining < 128 || out.file != NULL);
        if (xseg_frames_add(&frames, (const void *)(uintptr_t)70000, NULL))
            assert_non_null(xseg_frames_find(&frames, (const void *)(uintptr_t)70000, NULL));
        (void)tear_down_frames(NULL);
    }
}

TEST_WITH(frame_audit_reports_the_violated_invariant, set_up_frames, tear_down_frames)
{
    const struct xseg_stack_source source = {"function", 5, "made-up.c", 17};

    struct xseg_frame *frame =
        xseg_bump_at(&memory, xseg_bump_handle(&memory, add_frame(65536 + 100, mapping)));
    xseg_frames_set_source(&frames, frame, &source);
    WITH_VALUE(frame->pc, (const void *)(uintptr_t)7, expect_frames_audit("FRAMES-1"));
    struct xseg_frame *frame_without_mapping =
        xseg_bump_at(&memory, xseg_bump_handle(&memory, add_frame(65536 + 100, NULL)));
    WITH_VALUE(frame_without_mapping->is_resolved, true, expect_frames_audit("FRAMES-2"));
}
