/* SPDX-License-Identifier: MIT */
/* Registrations.  Callbacks register with the simulator, which ends the process if registered memory is unmapped. */
#include <stdlib.h>

#include "tests/support/env.h"
#include "tests/support/rng.h"

/* A registrar that records its callbacks and the registered runs. */
struct recorder {
    struct xseg_allocator *allocator;
    unsigned enter_calls, leave_calls; /* number of successful calls */
    unsigned reject_from; /* enter() rejects the run of this number and later ones; 0: none */
    uint64_t begin[64], end[64];               /* of the registered runs */
    unsigned count;                            /* of registered runs */
    void (*action)(struct recorder *recorder); /* called in enter() */
    uint64_t id;                               /* of the registration, for the action */
};

static bool enter(void *context, struct xseg_registered *run)
{
    struct recorder *recorder = context;
    uint64_t id = 0;

    assert_int_equal(run->struct_size, sizeof(*run));
    assert_int_equal(run->device, 0);
    assert_null(run->handle);
    if (recorder->reject_from != 0 && recorder->enter_calls + 1 >= recorder->reject_from)
        return false;
    assert_ok(xseg_sim_register((uintptr_t)run->base, run->bytes, XSEG_SIM_NCCL, &id));
    run->handle = (void *)(uintptr_t)id;
    recorder->begin[recorder->count] = (uintptr_t)run->base;
    recorder->end[recorder->count++] = (uintptr_t)run->base + run->bytes;
    recorder->enter_calls++;
    if (recorder->action != NULL)
        recorder->action(recorder);
    return true;
}

static void leave(void *context, const struct xseg_registered *run)
{
    struct recorder *recorder = context;
    unsigned i = 0;

    while (i < recorder->count && recorder->begin[i] != (uintptr_t)run->base)
        i++;
    assert_true(i < recorder->count);
    assert_int_equal(recorder->end[i], (uintptr_t)run->base + run->bytes);
    assert_ok(xseg_sim_unregister((uintptr_t)run->handle));
    recorder->count--;
    recorder->begin[i] = recorder->begin[recorder->count];
    recorder->end[i] = recorder->end[recorder->count];
    recorder->leave_calls++;
}

static struct xseg_registrar registrar_of(struct recorder *recorder, bool pin)
{
    struct xseg_registrar registrar = {sizeof(registrar), .context = recorder, .enter = enter,
                                       .leave = leave, .pin = pin};

    return registrar;
}

static uint64_t register_range(struct recorder *recorder, const void *address, size_t bytes,
                               bool pin)
{
    const struct xseg_registrar registrar = registrar_of(recorder, pin);
    uint64_t id = 0;

    assert_ok(xseg_register(recorder->allocator, address, bytes, &registrar, &id));
    assert_int_not_equal(id, 0);
    return id;
}

/* Expect that a registration fails and registers nothing. */
static void expect_register_error(struct recorder *recorder, const void *address, size_t bytes,
                                  xseg_status status, const char *words)
{
    const struct xseg_registrar registrar = registrar_of(recorder, false);
    const unsigned count = recorder->count;
    uint64_t id = 77;

    env_expect_error(xseg_register(recorder->allocator, address, bytes, &registrar, &id), status,
                     words);
    assert_int_equal(id, 77);
    assert_int_equal(recorder->count, count);
}

static struct recorder recorder;

static struct xseg_allocator *open_recorded(const char *config)
{
    recorder = (struct recorder){.allocator = env_open(config)};
    return recorder.allocator;
}

#define EXPANDABLE "expandable_segments:True,rdma:True"

TEST_ON(existing_memory_is_registered_in_one_run, open_recorded(EXPANDABLE))
{
    /* Two growths, so the pages have two generations. */
    char *first = env_alloc(allocator, 50 * MIB, NULL);
    char *second = env_alloc(allocator, 400 * MIB, NULL);

    assert_ptr_equal(second, first + 50 * MIB);
    const uint64_t id = register_range(&recorder, first, 450 * MIB, false);
    assert_int_equal(recorder.enter_calls, 1);
    assert_int_equal(recorder.begin[0], (uintptr_t)first);
    assert_int_equal(recorder.end[0], (uintptr_t)first + 450 * MIB);
    assert_int_equal(xseg_sim_registered(), 450 * MIB);
    assert_int_equal(env_stats(allocator).registered_bytes, 450 * MIB);
    assert_ok(xseg_unregister(allocator, id));
    assert_int_equal(recorder.count, 0);
    assert_int_equal(env_stats(allocator).registered_bytes, 0);
    assert_error(xseg_unregister(allocator, id), ARGUMENT, "registration does not exist, ID ");
    env_free(allocator, first, second);
}

TEST_ON(new_memory_is_registered_before_its_use, open_recorded(EXPANDABLE))
{
    char *first = env_alloc(allocator, 40 * MIB, NULL);
    const uint64_t id = register_range(&recorder, first, 200 * MIB, false);

    assert_int_equal(recorder.enter_calls, 1);
    char *second = env_alloc(allocator, 100 * MIB, NULL);
    assert_ptr_equal(second, first + 40 * MIB);
    assert_int_equal(recorder.enter_calls, 2);
    assert_int_equal(recorder.begin[1], (uintptr_t)second);
    /* Only the part of the third block in the range is registered. */
    char *third = env_alloc(allocator, 100 * MIB, NULL);
    assert_int_equal(recorder.enter_calls, 3);
    assert_int_equal(recorder.end[2], (uintptr_t)first + 200 * MIB);
    env_free(allocator, first, second, third);
    env_empty_cache(allocator);
    assert_int_equal(recorder.count, 0);
    /* The registration retains the addresses for later memory. */
    first = env_alloc(allocator, 40 * MIB, NULL);
    assert_int_equal(recorder.count, 1);
    assert_ok(xseg_unregister(allocator, id));
    env_free(allocator, first);
}

TEST_ON(remaining_parts_of_a_run_are_registered_again, open_recorded(EXPANDABLE))
{
    char *block[3];

    for (unsigned i = 0; i < 3; i++)
        block[i] = env_alloc(allocator, 40 * MIB, NULL);
    const uint64_t id = register_range(&recorder, block[0], 120 * MIB, false);
    env_free(allocator, block[1]);
    env_empty_cache(allocator);
    assert_int_equal(recorder.leave_calls, 1);
    assert_int_equal(recorder.enter_calls, 3);
    assert_int_equal(recorder.count, 2);
    assert_int_equal(xseg_sim_registered(), 80 * MIB);
    assert_ok(xseg_unregister(allocator, id));
    env_free(allocator, block[0], block[2]);
}

TEST_IN_POOL(pause_and_resume_are_notified, open_recorded(EXPANDABLE))
{
    char *block = env_alloc_in(allocator, pool, 100 * MIB, NULL);
    const uint64_t id = register_range(&recorder, block, 100 * MIB, false);
    assert_ok(xseg_pool_pause(pool, XSEG_KEEP_NOTHING, NULL));
    assert_int_equal(recorder.count, 0);
    assert_int_equal(recorder.leave_calls, 1);
    expect_register_error(&recorder, block, 10 * MIB, XSEG_ERR_PAUSED, "paused");
    assert_ok(xseg_pool_resume(pool));
    assert_int_equal(xseg_sim_registered(), 100 * MIB);
    assert_ok(xseg_unregister(allocator, id));
    env_free(allocator, block);
}

TEST_ON(released_classic_segment_is_unregistered, open_recorded("expandable_segments:False"))
{
    char *block = env_alloc(allocator, 40 * MIB, NULL);
    const uint64_t id = register_range(&recorder, block, 40 * MIB, false);

    env_free(allocator, block);
    env_empty_cache(allocator);
    assert_int_equal(recorder.count, 0);
    block = env_alloc(allocator, 40 * MIB, NULL);
    assert_int_equal(recorder.count, 0);
    assert_ok(xseg_unregister(allocator, id));
    env_free(allocator, block);
}

/* A capture that begins in the first unmap notification. */
struct capture {
    struct xseg_pool *pool; /* NULL: the capture has begun */
    xseg_stream stream;
};

static void begin_capture(void *context, const struct xseg_mapping *mapping)
{
    struct capture *capture = context;

    (void)mapping;
    if (capture->pool != NULL)
        env_capture_begin(capture->pool, capture->stream);
    capture->pool = NULL;
}

/* A trim does not release a classic segment after a capture has begun in its notification. */
TEST(kept_classic_segment_is_registered_again)
{
    struct xseg_allocator *allocator = open_recorded("expandable_segments:False");
    struct capture capture = {env_pool(allocator), env_stream()};
    struct xseg_pool *pool = capture.pool;
    char *block = env_alloc(allocator, 40 * MIB, NULL);
    const uint64_t id = register_range(&recorder, block, 40 * MIB, false);

    (void)env_observe(allocator, .context = &capture, .on_unmap = begin_capture);
    env_free(allocator, block);
    assert_int_equal(env_trim(allocator).kept_capture, 40 * MIB);
    assert_int_equal(recorder.leave_calls, 1);
    assert_int_equal(recorder.count, 1);
    assert_int_equal(xseg_sim_registered(), 40 * MIB);
    env_capture_end(pool, capture.stream);
    env_empty_cache(allocator);
    assert_int_equal(recorder.count, 0);
    /* Other memory at the same addresses is not registered. */
    block = env_alloc(allocator, 40 * MIB, NULL);
    assert_int_equal(recorder.count, 0);
    assert_ok(xseg_unregister(allocator, id));
    env_free(allocator, block);
    env_close(allocator, capture.stream);
}

static bool add_registered(void *context, const struct xseg_reason *reason)
{
    uint64_t *bytes = context;

    *bytes += reason->kind == XSEG_REASON_REGISTERED ? reason->registered_bytes : 0;
    return true;
}

TEST_ON(pinning_registration_keeps_memory, open_recorded(EXPANDABLE))
{
    struct xseg_explain_result sums = {sizeof(sums)};
    uint64_t registered = 0;
    struct xseg_pool *pool = env_pool(allocator);

    char *block = env_alloc_in(allocator, pool, 60 * MIB, NULL);
    const uint64_t id = register_range(&recorder, block, 200 * MIB, true);
    assert_int_equal(xseg_pool_pause(pool, XSEG_KEEP_NOTHING, NULL), XSEG_ERR_BUSY);
    /* Later memory is pinned as well. */
    char *second = env_alloc_in(allocator, pool, 60 * MIB, NULL);
    assert_ptr_equal(second, block + 60 * MIB);
    env_free(allocator, block, second);
    assert_ok(xseg_pool_release(pool));
    env_empty_cache(allocator);
    assert_int_equal(recorder.leave_calls, 0);
    assert_int_equal(xseg_sim_registered(), 120 * MIB);
    assert_ok(xseg_explain(allocator, NULL, add_registered, &registered, &sums));
    assert_int_equal(registered, 120 * MIB);
    assert_int_equal(sums.registered, 120 * MIB);
    assert_int_equal(sums.reserved, 120 * MIB);
    assert_ok(xseg_unregister(allocator, id));
    assert_int_equal(env_reserved_without_cache(allocator), 0);
}

TEST_ON(registrations_may_overlap, open_recorded(EXPANDABLE))
{
    char *block = env_alloc(allocator, 40 * MIB, NULL);

    struct recorder second_recorder = recorder;
    const uint64_t id = register_range(&recorder, block, 40 * MIB, false);
    const uint64_t second_id = register_range(&recorder, block, 40 * MIB, false);
    assert_int_not_equal(second_id, id);
    assert_int_equal(recorder.enter_calls, 2);
    const uint64_t part_id = register_range(&second_recorder, block + 10 * MIB, 20 * MIB, false);
    assert_int_not_equal(part_id, id);
    assert_int_equal(env_stats(allocator).registered_bytes, (40 + 40 + 20) * MIB);
    assert_ok(xseg_unregister(allocator, id));
    assert_int_equal(recorder.count, 1);
    env_free(allocator, block);
    env_empty_cache(allocator);
    assert_int_equal(recorder.count + second_recorder.count, 0);
    assert_ok(xseg_unregister(allocator, second_id));
    assert_ok(xseg_unregister(allocator, part_id));
}

TEST_ON(failed_registration_is_rolled_back, open_recorded(EXPANDABLE))
{
    char *block[3];

    for (unsigned i = 0; i < 3; i++)
        block[i] = env_alloc(allocator, 40 * MIB, NULL);
    env_free(allocator, block[1]);
    env_empty_cache(allocator);
    /* The range has two runs of memory, of which enter() rejects the second one. */
    recorder.reject_from = 2;
    expect_register_error(&recorder, block[0], 120 * MIB, XSEG_ERR_UNSUPPORTED,
                          "callback enter rejected a run of memory");
    assert_int_equal(recorder.leave_calls, 1);

    /* A rejected run of new memory has no leave(). */
    recorder.reject_from = 0;
    const uint64_t id = register_range(&recorder, block[0], 120 * MIB, false);
    recorder.reject_from = 1;
    block[1] = env_alloc(allocator, 40 * MIB, NULL);
    assert_int_equal(recorder.count, 2);
    recorder.reject_from = 0;
    assert_ok(xseg_unregister(allocator, id));
    env_free(allocator, block[0], block[1], block[2]);
}

static void trim_and_unregister(struct recorder *calling)
{
    env_free(calling->allocator, env_alloc(calling->allocator, 300 * MIB, NULL));
    env_empty_cache(calling->allocator);
    if (calling->id != 0)
        assert_error(xseg_unregister(calling->allocator, calling->id), BUSY, "in its own callback");
}

TEST_ON(callbacks_can_allocate_and_trim, open_recorded(EXPANDABLE))
{
    char *block = env_alloc(allocator, 40 * MIB, NULL);
    char *next = env_alloc(allocator, 40 * MIB, NULL);

    env_free(allocator, next);
    recorder.action = trim_and_unregister;
    recorder.id = register_range(&recorder, block, 400 * MIB, false);
    /* A trim in enter() unmaps the idle pages after the block; the run of the block stays registered. */
    next = env_alloc(allocator, 40 * MIB, NULL);
    env_free(allocator, next);
    env_empty_cache(allocator);
    recorder.action = NULL;
    assert_ok(xseg_unregister(allocator, recorder.id));
    assert_int_equal(xseg_sim_registered(), 0);
    env_free(allocator, block);
}

static void trim_all(struct recorder *calling)
{
    env_empty_cache(calling->allocator);
}

/* A trim unmaps a part of an idle run, and enter() is called for the remaining part.  A trim in this callback does not release
 * the remaining part. */
TEST_ON(callback_does_not_release_its_memory, open_recorded(EXPANDABLE))
{
    char *block = env_alloc(allocator, 120 * MIB, NULL);
    const uint64_t id = register_range(&recorder, block, 120 * MIB, false);

    env_free(allocator, block);
    recorder.action = trim_all;
    (void)env_trim_with(allocator, NULL, .target_bytes = 80 * MIB);
    assert_int_equal(recorder.count, 1);
    assert_int_equal(xseg_sim_registered(), 80 * MIB);
    recorder.action = NULL;
    assert_ok(xseg_unregister(allocator, id));
}

/* Addresses of single pages are freed for pages of another size, unless they are registered. */
TEST_ON(registration_retains_its_addresses, open_recorded(EXPANDABLE))
{
    struct xseg_pool *pool = env_pool_of(allocator, .single_page = true);
    char *block = env_alloc_in(allocator, pool, 40 * MIB, NULL);
    const uint64_t id = register_range(&recorder, block, 40 * MIB, false);
    env_free(allocator, block);
    (void)env_trim_pool(allocator, pool);
    assert_int_equal(recorder.count, 0);
    void *larger = env_alloc_in(allocator, pool, 80 * MIB, NULL);
    assert_ptr_equal(env_alloc_in(allocator, pool, 40 * MIB, NULL), block);
    assert_int_equal(recorder.count, 1);
    assert_ok(xseg_unregister(allocator, id));
    env_free(allocator, larger, block);
}

/* A forked child makes no callbacks, which are those of the parent. */
TEST_ON(calls_of_a_forked_child_fail, open_recorded(EXPANDABLE))
{
    char *block = env_alloc(allocator, 40 * MIB, NULL);
    const uint64_t id = register_range(&recorder, block, 40 * MIB, true);
    const struct xseg_registrar registrar = registrar_of(&recorder, false);
    uint64_t rejected_id = 0;

    env_expect_forked(recorder.enter_calls == 1 && recorder.leave_calls == 0,
                      xseg_register(allocator, block, MIB, &registrar, &rejected_id),
                      xseg_unregister(allocator, id));
    env_free(allocator, block);
    env_empty_cache(allocator);
    assert_int_equal(recorder.count, 1);
    assert_ok(xseg_unregister(allocator, id));
}

TEST_ON(invalid_input_is_rejected, open_recorded(EXPANDABLE))
{
    struct xseg_registrar registrar = registrar_of(&recorder, false);
    char *block = env_alloc(allocator, 40 * MIB, NULL);
    uint64_t id = 0;
    char host_memory[64];

    expect_register_error(&recorder, NULL, 10, XSEG_ERR_ARGUMENT, "NULL");
    expect_register_error(&recorder, block, 0, XSEG_ERR_ARGUMENT, "bytes is 0");
    expect_register_error(&recorder, block, SIZE_MAX, XSEG_ERR_ARGUMENT,
                          "exceeds the address space");
    expect_register_error(&recorder, block, 1000000 * GIB, XSEG_ERR_ARGUMENT,
                          "size exceeds the segment");
    expect_register_error(&recorder, host_memory, sizeof(host_memory), XSEG_ERR_NOT_ALLOCATED,
                          "not in memory of this allocator");
    expect_register_error(&recorder, block + GIB, 40 * MIB, XSEG_ERR_NOT_ALLOCATED,
                          "address range has no mapped memory");
    assert_error(xseg_register(allocator, block, 10, NULL, &id), ARGUMENT, "registrar is NULL");
    registrar.leave = NULL;
    assert_error(xseg_register(allocator, block, 10, &registrar, &id), ARGUMENT, "leave is NULL");
    registrar.struct_size = 3;
    assert_error(xseg_register(allocator, block, 10, &registrar, &id), ARGUMENT,
                 "struct_size is unknown, 3");
    id = register_range(&recorder, block, 40 * MIB, false);
    env_free(allocator, block);
    assert_error(xseg_close(allocator), BUSY, "memory is registered, 1 registration, one with ID ");
    assert_ok(xseg_unregister(allocator, id));
}

/* --- Registrars of reported issues on a tensor of 2 GiB, with pages of PyTorch and of xseg. --- */

#define TENSOR_BYTES (2 * GIB)

enum layout {
    PAGES,            /* of 20 MiB, without rdma: PyTorch's expandable segments before 2.10 */
    RDMA_PAGES,       /* of 20 MiB, with rdma */
    RDMA_SINGLE_PAGE, /* one page, with rdma */
    LAYOUTS
};

/* Registrars, and the layouts that they accept. */
static const struct {
    const char *issues;
    enum xseg_sim_registrar kind;
    bool without_address_range;
    bool accepts[LAYOUTS];
} rows[] = {
    /* ibv_reg_mr through nvidia_peermem: "Bad address [14]". */
    {"Mooncake 351, uccl 839, pytorch 153688", XSEG_SIM_PEERMEM, false, {false, false, true}},
    /* The range of cuMemGetAddressRange is exported, and the whole buffer registered: "Invalid argument [22]". */
    {"Mooncake 2511, torchcomms 3078, monarch 4547", XSEG_SIM_DMABUF, false, {false, false, true}},
    /* User buffers that are registered by allocation of the driver. */
    {"nccl 1820", XSEG_SIM_NCCL, false, {false, true, true}},
    /* "named symbol not found": cuMemGetAddressRange fails for mapped memory. */
    {"nccl 2332", XSEG_SIM_NCCL, true, {false, false, false}},
};

static void *allocate_tensor(struct xseg_allocator *allocator, enum layout layout)
{
    struct xseg_pool *pool =
        env_pool_of(allocator, .rdma = layout != PAGES, .single_page = layout == RDMA_SINGLE_PAGE);

    return env_alloc_in(allocator, pool, TENSOR_BYTES, NULL);
}

TEST_TIMES(registrars_accept_supported_memory, COUNT_OF(rows),
           env_open_sim("expandable_segments:True",
                        .without_address_range = rows[i].without_address_range))
{
    for (unsigned layout = 0; layout < LAYOUTS; layout++) {
        void *tensor = allocate_tensor(allocator, (enum layout)layout);
        uint64_t id = 0;
        const xseg_status status =
            xseg_sim_register((uintptr_t)tensor, TENSOR_BYTES, rows[i].kind, &id);

        if ((status == XSEG_OK) != rows[i].accepts[layout])
            fail_msg("%s, layout %u: %d", rows[i].issues, layout, status);
        if (status == XSEG_OK)
            assert_ok(xseg_sim_unregister(id));
        env_free(allocator, tensor);
    }
}

/* xseg_dmabuf_open() does not depend on cuMemGetAddressRange(); the pages must only support RDMA. */
TEST_ON(descriptor_needs_no_address_ranges,
        env_open_sim("expandable_segments:True", .without_address_range = true))
{
    for (unsigned layout = RDMA_PAGES; layout < LAYOUTS; layout++) {
        void *tensor = allocate_tensor(allocator, (enum layout)layout);
        uint64_t offset = 0, id = 0;
        int fd = -1;

        assert_ok(xseg_dmabuf_open(allocator, tensor, TENSOR_BYTES, XSEG_DMABUF_PIN, &fd, &offset));
        assert_ok(xseg_sim_register_descriptor(fd, offset, TENSOR_BYTES, &id));
        assert_ok(xseg_sim_unregister(id));
        assert_ok(xseg_dmabuf_close(allocator, fd));
        env_free(allocator, tensor);
    }
}

/* --- A week of a service that registers 40 GiB in 300 ranges.  Each hour ranges are replaced, and requests cause growth
 * and trims.  Each night one of two pools, with half of the ranges, is paused and resumed. --- */

#define RANGES   300u
#define HOURS    168u
#define REPLACED 4u   /* ranges per hour */
#define REQUESTS 64u  /* maximum number of blocks of requests */
#define STEPS    100u /* allocations and frees per hour */
#define TOTAL    (40 * GIB)

struct range {
    struct xseg_pool *pool;
    void *block;
    size_t bytes;
    uint64_t id;
};

struct week {
    struct xseg_allocator *allocator;
    struct xseg_pool *pool[2];
    struct range range[RANGES];
    void *request[REQUESTS];
    uint64_t random;
    uint64_t enter_calls;
    uint64_t registered;    /* in bytes */
    uint64_t mapped_ranges; /* creations of ranges, and ranges of resumed pools */
};

static uint64_t random_below(struct week *week, uint64_t bound)
{
    return rng_next(&week->random) % bound;
}

static bool enter_counted(void *context, struct xseg_registered *run)
{
    struct week *week = context;
    uint64_t id = 0;

    if (xseg_sim_register((uintptr_t)run->base, run->bytes, XSEG_SIM_NCCL, &id) != XSEG_OK)
        abort();
    run->handle = (void *)(uintptr_t)id;
    week->enter_calls++;
    week->registered += run->bytes;
    return true;
}

static void leave_counted(void *context, const struct xseg_registered *run)
{
    struct week *week = context;

    if (xseg_sim_unregister((uintptr_t)run->handle) != XSEG_OK)
        abort();
    week->registered -= run->bytes;
}

static void create_range(struct week *week, struct range *range)
{
    struct xseg_registrar registrar = {sizeof(registrar), .context = week, .enter = enter_counted,
                                       .leave = leave_counted};

    range->block = env_alloc_in(week->allocator, range->pool, range->bytes, NULL);
    assert_ok(xseg_register(week->allocator, range->block, range->bytes, &registrar, &range->id));
    week->mapped_ranges++;
}

static void destroy_range(struct week *week, struct range *range)
{
    assert_ok(xseg_unregister(week->allocator, range->id));
    env_free(week->allocator, range->block);
}

/* Create 300 ranges of random sizes, a quarter to seven quarters of the mean; the last range has the rest of 40 GiB. */
static void create_ranges(struct week *week)
{
    uint64_t remaining = TOTAL;

    for (unsigned i = 0; i < RANGES; i++) {
        struct range *range = &week->range[i];
        const uint64_t mean = remaining / (RANGES - i);

        range->pool = week->pool[i % 2];
        range->bytes = i + 1 == RANGES ? remaining : mean / 4 + random_below(week, mean + mean / 2);
        remaining -= range->bytes;
        create_range(week, range);
    }
    assert_int_equal(week->registered, TOTAL);
}

/* Allocate and free blocks of 4 KiB to 64 MiB of the default pool, and trim. */
static void serve_requests(struct week *week)
{
    for (unsigned i = 0; i < STEPS; i++) {
        void **request = &week->request[random_below(week, REQUESTS)];

        env_free(week->allocator, *request);
        *request = *request != NULL
                       ? NULL
                       : env_alloc(week->allocator, 4096u << random_below(week, 15), NULL);
    }
    assert_ok(xseg_trim(week->allocator, NULL, NULL, NULL));
}

static void pass_hour(struct week *week, unsigned hour)
{
    struct xseg_pool *pool = week->pool[hour / 24 % 2];

    serve_requests(week);
    for (unsigned i = 0; i < REPLACED; i++) {
        struct range *range = &week->range[random_below(week, RANGES)];

        destroy_range(week, range);
        create_range(week, range);
    }
    if (hour % 24 != 3)
        return;
    /* The pause unregisters the memory of the pool, and the resume registers it again. */
    assert_ok(xseg_pool_pause(pool, XSEG_KEEP_NOTHING, NULL));
    assert_true(week->registered < TOTAL * 3 / 4);
    serve_requests(week);
    assert_ok(xseg_pool_resume(pool));
    week->mapped_ranges += RANGES / 2;
}

TEST(ranges_stay_registered_for_a_week)
{
    static struct week week;

    week = (struct week){.random = 4711};
    week.allocator = env_open_sim("expandable_segments:True,rdma:True", .memory_bytes = 80 * GIB);
    for (unsigned i = 0; i < 2; i++)
        week.pool[i] = env_pool(week.allocator);
    create_ranges(&week);
    for (unsigned hour = 0; hour < HOURS; hour++) {
        pass_hour(&week, hour);
        assert_int_equal(week.registered, TOTAL);
        assert_int_equal(env_stats(week.allocator).registered_bytes, TOTAL);
        assert_int_equal(xseg_sim_registered(), TOTAL);
    }
    /* The memory of a range is mapped and registered as one run, with at most 5 % exceptions. */
    assert_true(week.enter_calls * 100 <= week.mapped_ranges * 105);
    for (unsigned i = 0; i < RANGES; i++)
        destroy_range(&week, &week.range[i]);
    env_free_all(week.allocator, week.request, sizeof(week.request));
    for (unsigned i = 0; i < 2; i++)
        assert_ok(xseg_pool_release(week.pool[i]));
    env_close(week.allocator);
}
