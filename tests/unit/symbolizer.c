/* SPDX-License-Identifier: MIT */
/* Names of frames by libdw, where it is installed. */
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>

#include "src/base/stack.h"
#include "src/base/symbolizer.h"
#include "tests/support/child.h"
#include "tests/support/plugin.h"

/* --- The loader, as replaced by the test. --- */

static bool is_missing; /* simulates that libdw is not installed */

void *__real_dlopen(const char *name, int mode);
void *__wrap_dlopen(const char *name, int mode);

void *__wrap_dlopen(const char *name, int mode)
{
    return is_missing && strstr(name, "libdw") != NULL ? NULL : __real_dlopen(name, mode);
}

/* --- Frames of plugins. --- */

static struct xseg_stack_depot depot;

FIXTURE(set_up)
{
    assert_true(xseg_stack_depot_init(&depot, 0));
}

FIXTURE(tear_down)
{
    xseg_stack_depot_fini(&depot);
}

static __attribute__((noinline)) void capture(void *id)
{
    void *frames[XSEG_STACK_FRAMES];

    *(uint32_t *)id =
        xseg_stack_depot_add(&depot, frames, xseg_stack_capture(frames, XSEG_STACK_FRAMES));
}

/* Frame 1 is in the plugin's hidden function, 2 in its exported one. */
static uint32_t capture_in(const struct plugin *plugin)
{
    uint32_t id = 0;

    plugin->call(capture, &id);
    assert_int_not_equal(id, 0);
    return id;
}

static void resolve(uint32_t id)
{
    struct xseg_symbolizer symbolizer;

    assert_true(xseg_symbolizer_init(&symbolizer, &depot));
    xseg_symbolizer_resolve(&symbolizer, id);
    xseg_symbolizer_fini(&symbolizer);
}

/* Expect that a frame of a plugin has a symbol and its source, a line of a call in plugin.c. */
static void assert_source(uint32_t id, uint32_t index, const char *symbol)
{
    struct xseg_stack_frame frame;

    assert_true(xseg_stack_depot_frame(&depot, id, index, &frame));
    assert_true(frame.is_resolved);
    assert_non_null(frame.symbol);
    assert_string_equal(frame.symbol, symbol);
    assert_true(frame.symbol_offset > 0 && frame.symbol_offset < 100);
    assert_non_null(frame.file);
    assert_non_null(strstr(frame.file, "support/plugin.c"));
    assert_int_equal(frame.line, index == 1 ? PLUGIN_INNER_LINE : PLUGIN_CALL_LINE);
}

static void assert_no_source(uint32_t id, bool is_resolved)
{
    struct xseg_stack_frame frame;

    for (uint32_t i = 1; i <= 2; i++) {
        assert_true(xseg_stack_depot_frame(&depot, id, i, &frame));
        assert_int_equal(frame.is_resolved, is_resolved);
        assert_null(frame.symbol);
        assert_null(frame.file);
        assert_int_equal(frame.line, 0);
    }
}

static bool has_libdw(void)
{
    if (xseg_symbolizer_prepare())
        return true;
    print_message("# libdw is not installed\n");
    return false;
}

static void prepare_without_libdw(void)
{
    struct xseg_symbolizer symbolizer;

    is_missing = true;
    if (xseg_symbolizer_prepare() || !xseg_stack_depot_init(&depot, 0) ||
        xseg_symbolizer_init(&symbolizer, &depot))
        _exit(1);
}

static void *prepare(void *self)
{
    *(bool *)self = xseg_symbolizer_prepare();
    return NULL;
}

static void prepare_in_threads(void)
{
    pthread_t thread[4];
    bool is_prepared[4];

    for (unsigned i = 0; i < 4; i++)
        if (pthread_create(&thread[i], NULL, prepare, &is_prepared[i]) != 0)
            _exit(1);
    for (unsigned i = 0; i < 4; i++)
        if (pthread_join(thread[i], NULL) != 0 || is_prepared[i] != xseg_symbolizer_prepare())
            _exit(1);
}

TEST(symbolizer_is_prepared_completely_or_not_at_all)
{
    char output[1024];

    assert_int_equal(child_run_without_argument(prepare_without_libdw, output, sizeof(output)), 0);
    assert_int_equal(child_run_without_argument(prepare_in_threads, output, sizeof(output)), 0);
}

TEST_WITH(frames_have_sources_after_the_code_was_unloaded, set_up, tear_down)
{
    static const char *const name[] = {"plugin-one", "plugin-two"};
    static const char *const symbol[] = {"call_of_one", "call_of_two"};
    struct xseg_symbolizer symbolizer;
    struct plugin plugin[2];
    uint32_t id[2];

    if (!has_libdw())
        return;
    for (unsigned i = 0; i < 2; i++) {
        plugin_open(&plugin[i], name[i]);
        id[i] = capture_in(&plugin[i]);
        assert_no_source(id[i], false);
    }
    for (unsigned i = 0; i < 2; i++)
        plugin_close(&plugin[i]);
    assert_true(xseg_symbolizer_init(&symbolizer, &depot));
    xseg_symbolizer_resolve(&symbolizer, 0);
    xseg_symbolizer_resolve(&symbolizer, UINT32_MAX);
    for (unsigned i = 0; i < 2; i++) {
        xseg_symbolizer_resolve(&symbolizer, id[i]);
        assert_source(id[i], 1, "inner");
        assert_source(id[i], 2, symbol[i]);
    }
    xseg_symbolizer_fini(&symbolizer);
    assert_source(id[0], 1, "inner");
}

TEST_WITH(each_frame_is_resolved_once, set_up, tear_down)
{
    struct xseg_symbolizer symbolizer;
    struct plugin plugin;

    if (!has_libdw())
        return;
    plugin_open(&plugin, "plugin-one");
    const uint32_t id = capture_in(&plugin);
    resolve(id);
    const size_t used = depot.memory.used;
    assert_true(xseg_symbolizer_init(&symbolizer, &depot));
    xseg_symbolizer_resolve(&symbolizer, id);
    assert_null(symbolizer.files); /* no file had to be opened */
    assert_int_equal(depot.memory.used, used);
    xseg_symbolizer_fini(&symbolizer);
    plugin_close(&plugin);
}

/* After the deadline no further stack is resolved; a later call continues with the remaining stacks. */
TEST_WITH(all_stacks_are_named_until_the_deadline, set_up, tear_down)
{
    struct plugin plugin[2];
    uint32_t id[2];

    if (!has_libdw())
        return;
    plugin_open(&plugin[0], "plugin-one");
    plugin_open(&plugin[1], "plugin-two");
    id[0] = capture_in(&plugin[0]);
    assert_true(xseg_symbolizer_resolve_all(&depot, 1));
    assert_no_source(id[0], false);
    assert_true(xseg_symbolizer_resolve_all(&depot, UINT64_MAX));
    assert_source(id[0], 2, "call_of_one");
    id[1] = capture_in(&plugin[1]);
    assert_no_source(id[1], false);
    assert_true(xseg_symbolizer_resolve_all(&depot, UINT64_MAX));
    assert_source(id[1], 2, "call_of_two");
    plugin_close(&plugin[0]);
    plugin_close(&plugin[1]);
}

/* A stripped library has names of exported functions only, and this library exports none. */
TEST_WITH(a_stripped_library_has_no_sources, set_up, tear_down)
{
    struct plugin plugin;

    if (!has_libdw())
        return;
    plugin_open(&plugin, "plugin-stripped");
    const uint32_t id = capture_in(&plugin);
    resolve(id);
    assert_no_source(id, true);
    plugin_close(&plugin);
}

/* The file of the module was removed (0), or replaced by another library (1), another build (2), or no module (3). */
TEST(changed_file_is_not_used)
{
    char path[1024], source[1024];
    const char *folder = getenv("TMPDIR");

    if (!has_libdw())
        return;
    for (unsigned change = 0; change < 4; change++) {
        struct plugin plugin;

        (void)snprintf(path, sizeof(path), "%s/xseg-name-XXXXXX",
                       folder != NULL ? folder : P_tmpdir);
        const int file = mkstemp(path);
        assert_true(file >= 0);
        assert_int_equal(close(file), 0);
        plugin_path("plugin-one", source, sizeof(source));
        plugin_copy(source, path);
        (void)set_up(NULL);
        plugin_open_path(&plugin, path);
        const uint32_t id = capture_in(&plugin);
        plugin_close(&plugin);
        assert_int_equal(unlink(path), 0);
        plugin_path(change == 2 ? "plugin-rebuilt" : "plugin-two", source, sizeof(source));
        if (change == 1 || change == 2)
            plugin_copy(source, path);
        if (change == 3)
            plugin_copy("/proc/self/comm", path);
        resolve(id);
        assert_no_source(id, true);
        if (change != 0)
            assert_int_equal(unlink(path), 0);
        (void)tear_down(NULL);
    }
}
