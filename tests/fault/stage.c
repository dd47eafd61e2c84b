/* SPDX-License-Identifier: MIT */
#include "tests/fault/stage.h"

#include <stdio.h>
#include <string.h>

#include "src/core/device/device.h"
#include "src/core/instance/instance.h"
#include "src/core/pending/pending.h"
#include "tests/fault/host.h"
#include "tests/support/due.h"

/* By its plain C types; CUmemLocation is a kind (1: device) and a number. */
struct location {
    int kind, number;
};
int cuMemGetAccess(unsigned long long *flags, const struct location *location,
                   unsigned long long address);

void stage_no_log(void *context, enum xseg_log_level level, const char *line)
{
    (void)context;
    (void)level;
    (void)line;
}

/* --- What must hold after every call. --- */

/* Calls that may have failed: faults of the host end with the first one. */
static uint64_t faults_struck(void)
{
    return xseg_sim_fault_count(0) + xseg_sim_fault_count(1) + (host_struck() != 0);
}

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

/* What a word of a block contains: nothing that another word does. */
static uint64_t word_at(const uint64_t *place)
{
    return ((uint64_t)(uintptr_t)place + 1) * UINT64_C(0x9E3779B97F4A7C15);
}

/* The next of the words that are written and looked at: one in each stride, and the last one. */
static uint64_t *word_after(const struct stage_held *held, size_t offset)
{
    const size_t last = (held->bytes - sizeof(uint64_t)) & ~(sizeof(uint64_t) - 1);

    return (uint64_t *)(void *)((char *)held->ptr + (offset < last ? offset : last));
}

static size_t stride_of(const struct stage *stage)
{
    return stage->stride != 0 ? stage->stride : 512 * KIB;
}

static void expect_contents(const struct stage *stage, const struct stage_held *held)
{
    const size_t stride = stride_of(stage);

    for (size_t at = 0; at < held->bytes + stride; at += stride)
        assert_int_equal(*word_after(held, at), word_at(word_after(held, at)));
}

static void write_contents(const struct stage *stage, const struct stage_held *held)
{
    const size_t stride = stride_of(stage);

    for (size_t at = 0; at < held->bytes + stride; at += stride)
        *word_after(held, at) = word_at(word_after(held, at));
}

static void expect_intact(struct stage *stage)
{
    struct xseg_device *device = NULL;
    struct xseg_violation violation = {0};
    uint64_t requested = 0;

    if (stage->allocator != NULL)
        device = xseg_allocator_open_device(stage->allocator, 0);
    if (device == NULL)
        return;
    for (unsigned i = 0; i < stage->count; i++) {
        const struct xseg_block_info info = scene_block(stage->allocator, stage->held[i].ptr);

        assert_int_equal(info.state, XSEG_BLOCK_ALLOCATED);
        assert_ptr_equal(info.base, stage->held[i].ptr);
        assert_int_equal(info.requested, stage->held[i].bytes);
        requested += stage->held[i].bytes;
        if (stage->paused != NULL && info.pool == stage->paused)
            continue;
        expect_mapped(&info);
        if (stage->bytes)
            expect_contents(stage, &stage->held[i]);
    }
    assert_int_equal(
        xseg_totals_read(&device->totals, XSEG_STAT_ALL, XSEG_COUNT_ALLOCATION).current,
        stage->count);
    assert_true(
        xseg_totals_read(&device->totals, XSEG_STAT_ALL, XSEG_COUNT_REQUESTED_BYTES).current >=
        requested);
    /* Until a fault strikes, all runs of a scenario are the same. */
    if (faults_struck() > 0 && !xseg_device_audit(device, &violation))
        fail_msg("%s: %s", violation.tag, violation.text);
}

bool stage_again(struct stage *stage, xseg_status status)
{
    char text[1024];

    host_hold(true);
    expect_intact(stage);
    host_hold(false);
    if (status == XSEG_OK)
        return false;
    if (host_struck() != 0 && status != XSEG_ERR_HOST_MEMORY)
        fail_msg("an error of host memory is told as %s", xseg_status_name(status));
    host_recover();
    assert_true(xseg_error_message(text, sizeof(text)) > 0);
    if (faults_struck() <= stage->failures++)
        fail_msg("failed without a fault: %s", text);
    return true;
}

bool stage_tried(struct stage *stage, xseg_status status)
{
    char text[1024];

    expect_intact(stage);
    if (status == XSEG_OK)
        return false;
    assert_true(xseg_error_message(text, sizeof(text)) > 0);
    if (faults_struck() == 0)
        fail_msg("failed without a fault: %s", text);
    return true;
}

bool stage_again_own(struct stage *stage, int result)
{
    if (result == 0)
        return false;
    if (faults_struck() <= stage->failures++)
        fail_msg("a driver call failed without a fault: %d", result);
    return true;
}

/* --- The calls. --- */

void stage_hold(struct stage *stage, void *ptr, size_t bytes)
{
    assert_true(stage->count < STAGE_HELD_MAX);
    stage->held[stage->count] = (struct stage_held){ptr, bytes};
    if (stage->bytes)
        write_contents(stage, &stage->held[stage->count]);
    stage->count++;
}

void stage_drop(struct stage *stage, const void *ptr)
{
    unsigned i = 0;

    while (stage->held[i].ptr != ptr)
        i++;
    stage->held[i] = stage->held[--stage->count];
}

static void *take(struct stage *stage, struct xseg_pool *pool, size_t bytes, xseg_stream stream,
                  bool zeroed)
{
    struct xseg_request request = {sizeof(request)};
    void *ptr = NULL;
    xseg_status status;

    request.bytes = bytes;
    request.stream = stream;
    request.pool = pool;
    request.zeroed = zeroed;
    request.user = stage;
    do {
        status = xseg_alloc_with(stage->allocator, &request, &ptr);
        if (status == XSEG_OK) {
            stage_hold(stage, ptr, bytes);
        }
    } while (stage_again(stage, status));
    return ptr;
}

void *stage_take_from(struct stage *stage, struct xseg_pool *pool, size_t bytes, xseg_stream stream)
{
    return take(stage, pool, bytes, stream, false);
}

void *stage_take_zeroed(struct stage *stage, struct xseg_pool *pool, size_t bytes,
                        xseg_stream stream)
{
    return take(stage, pool, bytes, stream, true);
}

void *stage_take(struct stage *stage, size_t bytes, xseg_stream stream)
{
    return stage_take_from(stage, NULL, bytes, stream);
}

void stage_give(struct stage *stage, void *ptr)
{
    xseg_status status;

    do {
        status = xseg_free(stage->allocator, ptr);
        if (status == XSEG_OK)
            stage_drop(stage, ptr);
    } while (stage_again(stage, status));
}

void stage_use(struct stage *stage, void *ptr, xseg_stream stream)
{
    while (stage_again(stage, xseg_record_stream(stage->allocator, ptr, stream)))
        ;
}

void stage_trim(struct stage *stage, bool wait)
{
    struct xseg_trim_options how = {sizeof(how)};

    how.wait = wait;
    while (stage_again(stage, xseg_trim(stage->allocator, NULL, &how, NULL)))
        ;
}

void stage_configure(struct stage *stage, const char *config)
{
    while (stage_again(stage, xseg_config_set(stage->allocator, config)))
        ;
}

void stage_pass(struct stage *stage, uint64_t milliseconds)
{
    xseg_sim_advance(milliseconds * 1000000);
    while (stage_again(stage, trim_due(stage->allocator, UINT64_MAX)))
        ;
}

/* --- Running. --- */

static void open_allocator(struct stage *stage, const char *config)
{
    struct xseg_options options = {sizeof(options)};

    options.driver = scene_driver();
    options.log = stage_no_log;
    options.clock = scene_clock; /* so that runs are repeatable */
    while (stage_again(stage, xseg_open(config, &options, &stage->allocator)))
        ;
}

/* `usual` is what the stage itself has made. */
static void expect_nothing_left(size_t usual)
{
    char text[1024];

    if (xseg_sim_leaks(text, sizeof(text)) != usual)
        fail_msg("left behind: %s", text);
}

static void close_allocator(struct stage *stage)
{
    xseg_status status;

    do
        status = xseg_close(stage->allocator);
    while (status != XSEG_OK && stage_again(stage, status));
}

/* A fill or a copy that failed is no write after a free. */
static void expect_no_alarm(struct stage *stage)
{
    struct xseg_device *device = xseg_allocator_open_device(stage->allocator, 0);

    if (device != NULL)
        assert_int_equal(atomic_load(&device->overwrites), 0);
}

/* The fault of the host in the next runs; nth 0 is none. */
static struct {
    uint64_t nth;
    bool onward;
} host_fault;

/* Set the scene, and up to two faults; a fault of nth 0 is none. */
static void set_fault(unsigned slot, struct xseg_sim_fault fault)
{
    assert_int_equal(xseg_sim_fault_set(slot, fault.nth != 0 ? &fault : NULL), XSEG_OK);
}

struct xseg_sim_fault stage_nth_call(uint64_t nth, int error)
{
    struct xseg_sim_fault fault = XSEG_SIM_FAULT_INIT;

    fault.nth = nth;
    fault.error = error;
    return fault;
}

bool stage_run(stage_scenario play, const struct xseg_sim_settings *settings, const char *config,
               struct xseg_sim_fault first, struct xseg_sim_fault second)
{
    struct stage stage = {.bytes = settings->real_bytes};

    assert_int_equal(xseg_sim_reset(settings), XSEG_OK);
    stage.side = scene_stream();
    const size_t usual = xseg_sim_leaks(NULL, 0);
    set_fault(0, first);
    set_fault(1, second);
    host_fail(host_fault.nth, host_fault.onward);
    open_allocator(&stage, config);
    play(&stage);
    expect_no_alarm(&stage);
    close_allocator(&stage);
    const bool struck = xseg_sim_fault_count(second.nth != 0 ? 1 : 0) != 0;
    set_fault(0, stage_nth_call(0, 1));
    set_fault(1, stage_nth_call(0, 1));
    host_recover();
    /* Events and streams would end with the last holder of the context. */
    expect_nothing_left(usual);
    scene_stream_destroy(stage.side);
    expect_nothing_left(0);
    return struck;
}

/* With a sanitizer one error stands for the others, which builds without it go through. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define FIRST_ERROR 2u
#else
#define FIRST_ERROR 0u
#endif

void stage_sweep(const char *name, stage_scenario play, const struct xseg_sim_settings *settings,
                 const char *config)
{
    static const int errors[] = {1, 2, 999};
    uint64_t n = 0;

    /* Moving bytes takes its time: there, too, one error stands for the others. */
    for (unsigned i = settings->real_bytes ? 2 : FIRST_ERROR; i < COUNT_OF(errors); i++)
        for (n = 1; stage_run(play, settings, config, stage_nth_call(n, errors[i]),
                              stage_nth_call(0, errors[i]));
             n++)
            assert_true(n < 100000);
    print_message("# %s: %u driver calls\n", name, (unsigned)(n - 1));
    assert_true(n > 20);
    stage_sweep_host(name, play, settings, config);
}

void stage_sweep_host(const char *name, stage_scenario play,
                      const struct xseg_sim_settings *settings, const char *config)
{
    const struct xseg_sim_fault none = stage_nth_call(0, 1);
    uint64_t n = 0;

    for (unsigned onward = 0; onward < 2; onward++) {
        host_fault.onward = onward;
        for (n = 1; n < 100000; n++) {
            host_fault.nth = n;
            (void)stage_run(play, settings, config, none, none);
            if (host_struck() == 0)
                break;
        }
    }
    host_fault.nth = 0;
    host_fail(0, false);
    print_message("# %s: %u calls of the host\n", name, (unsigned)(n - 1));
    assert_true(n > 10);
}

/*
 * A second fault right behind the first one, where the undo is: nothing is lost then either.  It is
 * no INVALID_VALUE, which is the driver's word for an address that is not mapped.
 */
uint64_t stage_pairs(stage_scenario play, const struct xseg_sim_settings *settings,
                     const char *config, uint64_t distance)
{
    uint64_t pairs = 0;

    for (uint64_t behind = 1; behind <= distance; behind++)
        for (uint64_t n = 1; stage_run(play, settings, config, stage_nth_call(n, 999),
                                       stage_nth_call(n + behind, 999));
             n++)
            pairs++;
    return pairs;
}
