/* SPDX-License-Identifier: MIT */
/*
 * The sweep: every driver call of every scenario fails once, with several errors.
 *
 * After the failure the operation has either succeeded all the same, or returned a status; live
 * blocks are where they were, with their pages mapped and accessible; the counts are those of the
 * blocks; the same call then works; and in the end nothing is left behind.
 */
#include "tests/support/scene.h"

#include <stdio.h>
#include <string.h>

#include "src/core/allocator.h"

#define HELD_MAX 64u

/* By its plain C types; CUmemLocation is a kind (1: device) and a number. */
struct location {
    int kind, number;
};
int cuMemGetAccess(unsigned long long *flags, const struct location *location,
                   unsigned long long address);

struct held {
    void *ptr;
    size_t bytes;
};

struct stage {
    struct xseg_allocator *allocator;
    xseg_stream side; /* a second stream; the program's own, so it is made without faults */
    struct held held[HELD_MAX];
    unsigned count;
    unsigned failures; /* calls that returned a status */
};

static void be_quiet(void *context, enum xseg_log_level level, const char *line)
{
    (void)context;
    (void)level;
    (void)line;
}

/* --- What must hold after every call. --- */

static void expect_mapped(const struct xseg_block_info *info)
{
    const struct location device = {1, 0};
    /* A block alone in its segment has small pages, too. */
    const uint64_t page = info->is_small || info->segment_bytes < 128 * MIB ? 2 * MIB : 20 * MIB;
    const uint64_t base = (uint64_t)(uintptr_t)info->base;
    const uint64_t segment = (uint64_t)(uintptr_t)info->segment_base;

    if (!info->is_expandable)
        return;
    for (uint64_t at = base; at < base + info->bytes;
         at = segment + ((at - segment) / page + 1) * page) {
        unsigned long long flags = 0;

        /* Each of two faults may strike this call of the test's own, once. */
        if (cuMemGetAccess(&flags, &device, at) != 0 && cuMemGetAccess(&flags, &device, at) != 0)
            assert_int_equal(cuMemGetAccess(&flags, &device, at), 0);
        assert_int_equal(flags, 3);
    }
}

static void expect_intact(struct stage *stage)
{
    struct xseg_device *device = NULL;
    struct xseg_finding finding = {0};
    uint64_t requested = 0;

    if (stage->allocator != NULL)
        device = xseg_allocator_open_device(stage->allocator, 0);
    if (device == NULL)
        return;
    for (unsigned i = 0; i < stage->count; i++) {
        const struct xseg_block_info info = scene_block(stage->allocator, stage->held[i].ptr);

        assert_int_equal(info.state, XSEG_BLOCK_LIVE);
        assert_ptr_equal(info.base, stage->held[i].ptr);
        assert_int_equal(info.requested, stage->held[i].bytes);
        expect_mapped(&info);
        requested += stage->held[i].bytes;
    }
    assert_int_equal(xseg_totals_current(&device->totals, XSEG_COUNT_ALLOCATION), stage->count);
    assert_true(xseg_totals_current(&device->totals, XSEG_COUNT_REQUESTED_BYTES) >= requested);
    if (!xseg_device_audit(device, &finding))
        fail_msg("%s: %s", finding.tag, finding.text);
}

static uint64_t faults_struck(void)
{
    return xseg_sim_fault_struck(0) + xseg_sim_fault_struck(1);
}

/* A call has returned: whether it is to be made again, at most once for each fault. */
static bool again(struct stage *stage, xseg_status status)
{
    char text[1024];

    expect_intact(stage);
    if (status == XSEG_OK)
        return false;
    assert_true(xseg_error_text(text, sizeof(text)) > 0);
    if (faults_struck() <= stage->failures++)
        fail_msg("failed without a fault: %s", text);
    return true;
}

/* --- The calls. --- */

static void *take_from(struct stage *stage, struct xseg_pool *pool, size_t bytes,
                       xseg_stream stream, bool zeroed)
{
    struct xseg_request request = XSEG_REQUEST_INIT;
    void *ptr = NULL;
    xseg_status status;

    request.bytes = bytes;
    request.stream = stream;
    request.pool = pool;
    request.zeroed = zeroed;
    do {
        status = xseg_alloc_with(stage->allocator, &request, &ptr);
        if (status == XSEG_OK) {
            stage->held[stage->count].ptr = ptr;
            stage->held[stage->count++].bytes = bytes;
        }
    } while (again(stage, status));
    return ptr;
}

static void *take(struct stage *stage, size_t bytes, xseg_stream stream)
{
    return take_from(stage, NULL, bytes, stream, false);
}

static void give(struct stage *stage, void *ptr)
{
    unsigned i = 0;
    xseg_status status;

    while (stage->held[i].ptr != ptr)
        i++;
    do {
        status = xseg_free(stage->allocator, ptr);
        if (status == XSEG_OK)
            stage->held[i] = stage->held[--stage->count];
    } while (again(stage, status));
}

static void use(struct stage *stage, void *ptr, xseg_stream stream)
{
    while (again(stage, xseg_use(stage->allocator, ptr, stream)))
        ;
}

static void trim(struct stage *stage, bool wait)
{
    struct xseg_trim how = XSEG_TRIM_INIT;

    how.wait = wait;
    while (again(stage, xseg_trim(stage->allocator, NULL, &how, NULL)))
        ;
}

/* --- The scenarios. --- */

static void grow_and_shrink(struct stage *stage)
{
    void *a = take(stage, 30 * MIB, NULL), *b = take(stage, 2 * MIB, NULL);
    void *c = take(stage, 90 * MIB, NULL), *d = take(stage, 1000, NULL);

    give(stage, a);
    give(stage, c);
    trim(stage, true);
    a = take(stage, 25 * MIB, NULL);
    c = take(stage, 70 * MIB, NULL);
    give(stage, b);
    give(stage, d);
    trim(stage, false);
    b = take(stage, 45 * MIB, NULL);
    give(stage, a);
    give(stage, b);
    give(stage, c);
    trim(stage, true);
}

static void several_streams(struct stage *stage)
{
    const xseg_stream side = stage->side;
    void *a = take(stage, 5 * MIB, NULL), *b = take(stage, 5 * MIB, side);
    void *c = take(stage, 300, side);

    use(stage, a, side);
    use(stage, b, NULL);
    assert_int_equal(xseg_sim_launch(side, UINT64_MAX), XSEG_OK);
    give(stage, a);
    give(stage, b);
    a = take(stage, 5 * MIB, NULL);
    assert_int_equal(xseg_sim_finish(side), XSEG_OK);
    b = take(stage, 5 * MIB, NULL);
    trim(stage, false);
    give(stage, a);
    give(stage, b);
    give(stage, c);
    trim(stage, true);
}

static void private_pool(struct stage *stage)
{
    struct xseg_pool *pool = NULL;

    while (again(stage, xseg_pool_create(stage->allocator, 0, NULL, &pool)))
        ;
    void *a = take_from(stage, pool, 12 * MIB, NULL, false);
    void *b = take_from(stage, pool, 700, NULL, true);
    give(stage, a);
    trim(stage, true);
    a = take_from(stage, pool, 11 * MIB, NULL, false);
    assert_int_equal(xseg_pool_release(pool), XSEG_OK);
    give(stage, b);
    trim(stage, true);
    give(stage, a);
    trim(stage, true);
}

/* The device holds 200 MiB: the last request is served only after cached memory went back. */
static void full_device(struct stage *stage)
{
    const xseg_stream side = stage->side;
    void *a = take(stage, 100 * MIB, NULL), *b = take(stage, 3 * MIB, NULL), *c;

    use(stage, a, side);
    assert_int_equal(xseg_sim_launch(side, UINT64_MAX), XSEG_OK);
    give(stage, a);
    c = take(stage, 130 * MIB, side);
    give(stage, b);
    give(stage, c);
    a = take(stage, 150 * MIB, NULL);
    give(stage, a);
    trim(stage, true);
}

/* Everything that fills, reads back, zeroes or takes pages away: small, so that bytes can be real. */
static void helpers(struct stage *stage)
{
    const xseg_stream side = stage->side;
    void *a = take(stage, 5000, NULL), *b = take_from(stage, NULL, 700 * KIB, side, true);
    void *c = take_from(stage, NULL, 600 * KIB, NULL, true);

    use(stage, a, side);
    assert_int_equal(xseg_sim_launch(side, UINT64_MAX), XSEG_OK);
    give(stage, a);
    give(stage, b);
    assert_int_equal(xseg_sim_finish(side), XSEG_OK);
    a = take(stage, 5000, NULL);
    b = take(stage, 700 * KIB, side);
    give(stage, c);
    c = take_from(stage, NULL, 600 * KIB, NULL, true);
    trim(stage, false);
    give(stage, a);
    give(stage, b);
    give(stage, c);
    trim(stage, true);
}

/* --- The sweep. --- */

typedef void (*scenario)(struct stage *stage);

static void open_allocator(struct stage *stage, const char *config)
{
    struct xseg_options options = XSEG_OPTIONS_INIT;

    options.driver = scene_driver();
    options.log = be_quiet;
    while (again(stage, xseg_open(config, &options, &stage->allocator)))
        ;
}

static void expect_nothing_left(void)
{
    char text[1024];

    if (xseg_sim_leaks(text, sizeof(text)) != 0)
        fail_msg("left behind: %s", text);
}

static void close_allocator(struct stage *stage)
{
    xseg_status status;

    do
        status = xseg_close(stage->allocator);
    while (status != XSEG_OK && again(stage, status));
}

/* A fill or a copy that failed is no write after a free. */
static void expect_no_alarm(struct stage *stage)
{
    struct xseg_device *device = xseg_allocator_open_device(stage->allocator, 0);

    assert_non_null(device);
    assert_int_equal(atomic_load(&device->fill.overwrites), 0);
}

/* Set the scene, and up to two faults; a fault of nth 0 is none. */
static void set_fault(unsigned slot, struct xseg_sim_fault fault)
{
    assert_int_equal(xseg_sim_fault_set(slot, fault.nth != 0 ? &fault : NULL), XSEG_OK);
}

static struct xseg_sim_fault nth_call(uint64_t nth, int error)
{
    struct xseg_sim_fault fault = XSEG_SIM_FAULT_INIT;

    fault.nth = nth;
    fault.error = error;
    return fault;
}

/* Run a scenario with faults; whether the second one struck (the first, if there is no second). */
static bool run_with_faults(scenario play, const struct xseg_sim_settings *settings,
                            const char *config, struct xseg_sim_fault first,
                            struct xseg_sim_fault second)
{
    struct stage stage = {0};

    assert_int_equal(xseg_sim_reset(settings), XSEG_OK);
    stage.side = scene_stream();
    set_fault(0, first);
    set_fault(1, second);
    open_allocator(&stage, config);
    play(&stage);
    expect_no_alarm(&stage);
    close_allocator(&stage);
    const bool struck = xseg_sim_fault_struck(second.nth != 0 ? 1 : 0) != 0;
    set_fault(0, nth_call(0, 1));
    set_fault(1, nth_call(0, 1));
    scene_stream_destroy(stage.side);
    expect_nothing_left();
    return struck;
}

static void sweep_with(const char *name, scenario play, const char *config, uint64_t memory,
                       bool one_by_one, bool real_bytes)
{
    static const int errors[] = {1, 2, 999};
    struct xseg_sim_settings settings = XSEG_SIM_SETTINGS_INIT;
    uint64_t n = 0;

    settings.memory_bytes = memory;
    settings.one_by_one = one_by_one;
    settings.real_bytes = real_bytes;
    /* Moving bytes takes its time: one error stands for the others there. */
    for (unsigned i = real_bytes ? 2 : 0; i < COUNT_OF(errors); i++)
        for (n = 1; run_with_faults(play, &settings, config, nth_call(n, errors[i]),
                                    nth_call(0, errors[i]));
             n++)
            assert_true(n < 100000);
    print_message("# %s: %u driver calls\n", name, (unsigned)(n - 1));
    assert_true(n > 20);
}

static void sweep(const char *name, scenario play, const char *config, uint64_t memory,
                  bool one_by_one)
{
    sweep_with(name, play, config, memory, one_by_one, false);
}

static void sweep_all(const char *config, bool one_by_one)
{
    sweep("grow and shrink", grow_and_shrink, config, GIB, one_by_one);
    sweep("several streams", several_streams, config, GIB, one_by_one);
    sweep("private pool", private_pool, config, GIB, one_by_one);
    sweep("full device", full_device, config, 200 * MIB, one_by_one);
}

static void expandable(void **state)
{
    (void)state;
    sweep_all("expandable_segments:True", false);
}

static void expandable_one_by_one(void **state)
{
    (void)state;
    sweep_all("expandable_segments:True", true);
}

static void classic(void **state)
{
    (void)state;
    sweep_all("expandable_segments:False", false);
}

static void limited(void **state)
{
    (void)state;
    sweep("limit", full_device, "expandable_segments:True,per_process_memory_fraction:0.2", GIB,
          false);
}

static void debug_fill(void **state)
{
    (void)state;
    sweep("several streams", several_streams, "debug_fill:True", GIB, false);
    sweep("full device", full_device, "debug_fill:True", 200 * MIB, false);
    sweep_with("helpers", helpers, "debug_fill:True", GIB, false, true);
    sweep_with("helpers", helpers, "debug_fill:True,expandable_segments:False", GIB, false, true);
}

/* Blocks of a few pages: every one of them is created and mapped apart. */
static void alone(void **state)
{
    static const char *const config[] = {"unmap_on_free:True", "guard_page:True,free_history:4"};

    (void)state;
    for (unsigned i = 0; i < COUNT_OF(config); i++) {
        sweep("several streams", several_streams, config[i], GIB, i == 1);
        sweep("helpers", helpers, config[i], 6 * MIB, i == 1);
    }
    sweep("helpers", helpers, "guard_page:True,debug_fill:True", GIB, false);
}

/*
 * A second fault right behind the first one, where the undo is: nothing is lost then either.  It is
 * no INVALID_VALUE, which is the driver's word for an address that is not mapped.
 */
static void pairs(void **state)
{
    static const struct {
        scenario play;
        uint64_t memory;
        const char *config;
        uint64_t farthest; /* how many calls behind the first fault the second one is, at most */
    } row[] = {
        {grow_and_shrink, GIB, "expandable_segments:True", 4},
        {full_device, 200 * MIB, "expandable_segments:True", 4},
        {helpers, GIB, "debug_fill:True", 1},
        {helpers, 6 * MIB, "unmap_on_free:True", 3},
    };
    struct xseg_sim_settings settings = XSEG_SIM_SETTINGS_INIT;
    uint64_t runs = 0;

    (void)state;
    for (unsigned i = 0; i < COUNT_OF(row); i++) {
        settings.memory_bytes = row[i].memory;
        for (uint64_t behind = 1; behind <= row[i].farthest; behind++)
            for (uint64_t n = 1; run_with_faults(row[i].play, &settings, row[i].config,
                                                 nth_call(n, 999), nth_call(n + behind, 999));
                 n++)
                runs++;
    }
    print_message("# %u pairs\n", (unsigned)runs);
    assert_true(runs > 400);
}

/* A batched unmap or set-access that does some of its mappings and then fails. */
static void halfway(void **state)
{
    static const char *const calls[] = {"cuMemUnmap", "cuMemSetAccess"};
    struct xseg_sim_settings settings = XSEG_SIM_SETTINGS_INIT;
    uint64_t runs = 0;

    (void)state;
    settings.memory_bytes = GIB;
    for (unsigned call = 0; call < COUNT_OF(calls); call++)
        for (uint64_t mappings = 1; mappings <= 3; mappings++) {
            struct xseg_sim_fault fault = nth_call(1, 999);

            fault.call = calls[call];
            fault.halfway = mappings;
            for (; run_with_faults(grow_and_shrink, &settings, "expandable_segments:True", fault,
                                   nth_call(0, 1));
                 fault.nth++)
                runs++;
        }
    assert_true(runs > 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pairs),      cmocka_unit_test(halfway),
        cmocka_unit_test(expandable), cmocka_unit_test(expandable_one_by_one),
        cmocka_unit_test(classic),    cmocka_unit_test(limited),
        cmocka_unit_test(debug_fill), cmocka_unit_test(alone),
    };

    return cmocka_run_group_tests_name("sweep", tests, NULL, NULL);
}
