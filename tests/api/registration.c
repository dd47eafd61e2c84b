/* SPDX-License-Identifier: MIT */
/* Registrations.  Callbacks register with the simulator, which ends the process if registered memory is unmapped. */
#include <stdlib.h>

#include "tests/support/env.h"
#include "tests/support/rng.h"

/* A test registrar, which records its runs. */
struct recorder {
    struct xseg_allocator *allocator;
    unsigned entered, left;
    unsigned reject_from;        /* number of the first run that `enter` rejects; 0: none */
    uint64_t begin[64], end[64]; /* of the entered runs */
    unsigned count;
    void (*within)(struct recorder *recorder); /* called in `enter` */
    uint64_t id;
};

static bool enter(void *context, struct xseg_registered *run)
{
    struct recorder *recorder = context;
    uint64_t id = 0;

    assert_int_equal(run->struct_size, sizeof(*run));
    assert_int_equal(run->device, 0);
    assert_null(run->handle);
    if (recorder->reject_from != 0 && recorder->entered + 1 >= recorder->reject_from)
        return false;
    assert_ok(xseg_sim_register((uintptr_t)run->base, run->bytes, XSEG_SIM_NCCL, &id));
    run->handle = (void *)(uintptr_t)id;
    recorder->begin[recorder->count] = (uintptr_t)run->base;
    recorder->end[recorder->count++] = (uintptr_t)run->base + run->bytes;
    recorder->entered++;
    if (recorder->within != NULL)
        recorder->within(recorder);
    return true;
}

static void leave(void *context, const struct xseg_registered *run)
{
    struct recorder *recorder = context;
    unsigned at = 0;

    while (at < recorder->count && recorder->begin[at] != (uintptr_t)run->base)
        at++;
    assert_true(at < recorder->count);
    assert_int_equal(recorder->end[at], (uintptr_t)run->base + run->bytes);
    assert_ok(xseg_sim_unregister((uintptr_t)run->handle));
    recorder->count--;
    recorder->begin[at] = recorder->begin[recorder->count];
    recorder->end[at] = recorder->end[recorder->count];
    recorder->left++;
}

static struct xseg_registrar registrar_of(struct recorder *recorder, bool pin)
{
    struct xseg_registrar registrar = {sizeof(registrar), .context = recorder, .enter = enter,
                                       .leave = leave, .pin = pin};

    return registrar;
}

static uint64_t add(struct recorder *recorder, const void *address, size_t bytes, bool pin)
{
    const struct xseg_registrar registrar = registrar_of(recorder, pin);
    uint64_t id = 0;

    assert_ok(xseg_register(recorder->allocator, address, bytes, &registrar, &id));
    assert_int_not_equal(id, 0);
    return id;
}

static void expect_error(struct recorder *recorder, const void *address, size_t bytes,
                         xseg_status status, const char *text)
{
    const struct xseg_registrar registrar = registrar_of(recorder, false);
    const unsigned in = recorder->count;
    uint64_t id = 77;

    env_expect_error(xseg_register(recorder->allocator, address, bytes, &registrar, &id), status,
                     text);
    assert_int_equal(id, 77);
    assert_int_equal(recorder->count, in);
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
    /* Three growths: pages of several generations, and small pages at the end. */
    char *first = env_alloc(allocator, 50 * MIB, NULL);
    char *second = env_alloc(allocator, 400 * MIB, NULL);

    assert_ptr_equal(second, first + 50 * MIB);
    const uint64_t id = add(&recorder, first, 450 * MIB, false);
    assert_int_equal(recorder.entered, 1);
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
    const uint64_t id = add(&recorder, first, 200 * MIB, false);

    assert_int_equal(recorder.entered, 1);
    char *second = env_alloc(allocator, 100 * MIB, NULL);
    assert_ptr_equal(second, first + 40 * MIB);
    assert_int_equal(recorder.entered, 2);
    assert_int_equal(recorder.begin[1], (uintptr_t)second);
    /* Memory outside of the range is not reported. */
    char *third = env_alloc(allocator, 100 * MIB, NULL);
    assert_int_equal(recorder.entered, 3);
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
    const uint64_t id = add(&recorder, block[0], 120 * MIB, false);
    env_free(allocator, block[1]);
    env_empty_cache(allocator);
    assert_int_equal(recorder.left, 1);
    assert_int_equal(recorder.entered, 3);
    assert_int_equal(recorder.count, 2);
    assert_int_equal(xseg_sim_registered(), 80 * MIB);
    assert_ok(xseg_unregister(allocator, id));
    env_free(allocator, block[0], block[2]);
}

TEST_IN_POOL(pause_and_resume_are_notified, open_recorded(EXPANDABLE))
{
    char *block = env_alloc_in(allocator, pool, 100 * MIB, NULL);
    const uint64_t id = add(&recorder, block, 100 * MIB, false);
    assert_ok(xseg_pool_pause(pool, XSEG_KEEP_NOTHING, NULL));
    assert_int_equal(recorder.count, 0);
    assert_int_equal(recorder.left, 1);
    expect_error(&recorder, block, 10 * MIB, XSEG_ERR_PAUSED, "paused");
    assert_ok(xseg_pool_resume(pool));
    assert_int_equal(xseg_sim_registered(), 100 * MIB);
    assert_ok(xseg_unregister(allocator, id));
    env_free(allocator, block);
}

TEST_ON(released_classic_segment_is_unregistered, open_recorded("expandable_segments:False"))
{
    char *block = env_alloc(allocator, 40 * MIB, NULL);
    const uint64_t id = add(&recorder, block, 40 * MIB, false);

    env_free(allocator, block);
    env_empty_cache(allocator);
    assert_int_equal(recorder.count, 0);
    block = env_alloc(allocator, 40 * MIB, NULL);
    assert_int_equal(recorder.count, 0);
    assert_ok(xseg_unregister(allocator, id));
    env_free(allocator, block);
}

/* A capture that begins in the first unmap notification. */
struct capturing {
    struct xseg_pool *pool;
    xseg_stream stream;
};

static void capture_once(void *context, const struct xseg_mapping *mapping)
{
    struct capturing *capturing = context;

    (void)mapping;
    if (capturing->pool != NULL)
        env_capture_begin(capturing->pool, capturing->stream);
    capturing->pool = NULL;
}

TEST(kept_classic_segment_is_registered_again)
{
    struct xseg_allocator *allocator = open_recorded("expandable_segments:False");
    struct capturing capturing = {env_pool(allocator), env_stream()};
    struct xseg_pool *pool = capturing.pool;
    char *block = env_alloc(allocator, 40 * MIB, NULL);
    const uint64_t id = add(&recorder, block, 40 * MIB, false);

    (void)env_observe(allocator, .context = &capturing, .on_unmap = capture_once);
    env_free(allocator, block);
    assert_int_equal(env_trim(allocator).kept_capture, 40 * MIB);
    assert_int_equal(recorder.left, 1);
    assert_int_equal(recorder.count, 1);
    assert_int_equal(xseg_sim_registered(), 40 * MIB);
    env_capture_end(pool, capturing.stream);
    env_empty_cache(allocator);
    assert_int_equal(recorder.count, 0);
    /* Other memory at the same addresses is not registered. */
    block = env_alloc(allocator, 40 * MIB, NULL);
    assert_int_equal(recorder.count, 0);
    assert_ok(xseg_unregister(allocator, id));
    env_free(allocator, block);
    env_close(allocator, capturing.stream);
}

static bool find_registered(void *context, const struct xseg_reason *reason)
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
    const uint64_t id = add(&recorder, block, 200 * MIB, true);
    assert_int_equal(xseg_pool_pause(pool, XSEG_KEEP_NOTHING, NULL), XSEG_ERR_BUSY);
    /* Later memory is pinned as well. */
    char *more = env_alloc_in(allocator, pool, 60 * MIB, NULL);
    assert_ptr_equal(more, block + 60 * MIB);
    env_free(allocator, block, more);
    assert_ok(xseg_pool_release(pool));
    env_empty_cache(allocator);
    assert_int_equal(recorder.left, 0);
    assert_int_equal(xseg_sim_registered(), 120 * MIB);
    assert_ok(xseg_explain(allocator, NULL, find_registered, &registered, &sums));
    assert_int_equal(registered, 120 * MIB);
    assert_int_equal(sums.registered, 120 * MIB);
    assert_int_equal(sums.reserved, 120 * MIB);
    assert_ok(xseg_unregister(allocator, id));
    assert_int_equal(env_reserved_without_cache(allocator), 0);
}

TEST_ON(registrations_may_overlap, open_recorded(EXPANDABLE))
{
    char *block = env_alloc(allocator, 40 * MIB, NULL);

    struct recorder other = recorder;
    const uint64_t id = add(&recorder, block, 40 * MIB, false);
    const uint64_t again = add(&recorder, block, 40 * MIB, false);
    assert_int_not_equal(again, id);
    assert_int_equal(recorder.entered, 2);
    const uint64_t part = add(&other, block + 10 * MIB, 20 * MIB, false);
    assert_int_not_equal(part, id);
    assert_int_equal(env_stats(allocator).registered_bytes, 100 * MIB);
    assert_ok(xseg_unregister(allocator, id));
    assert_int_equal(recorder.count, 1);
    env_free(allocator, block);
    env_empty_cache(allocator);
    assert_int_equal(recorder.count + other.count, 0);
    assert_ok(xseg_unregister(allocator, again));
    assert_ok(xseg_unregister(allocator, part));
}

TEST_ON(failed_registration_is_rolled_back, open_recorded(EXPANDABLE))
{
    char *block[3];

    for (unsigned i = 0; i < 3; i++)
        block[i] = env_alloc(allocator, 40 * MIB, NULL);
    env_free(allocator, block[1]);
    env_empty_cache(allocator);
    recorder.reject_from = 2;
    expect_error(&recorder, block[0], 120 * MIB, XSEG_ERR_UNSUPPORTED,
                 "callback enter rejected a run of memory");
    assert_int_equal(recorder.left, 1);
    /* A rejected run of new memory has no `leave`. */
    recorder.reject_from = 0;
    const uint64_t id = add(&recorder, block[0], 120 * MIB, false);
    recorder.reject_from = 1;
    block[1] = env_alloc(allocator, 40 * MIB, NULL);
    assert_int_equal(recorder.count, 2);
    recorder.reject_from = 0;
    assert_ok(xseg_unregister(allocator, id));
    env_free(allocator, block[0], block[1], block[2]);
}

static void trim_and_end(struct recorder *registrar)
{
    env_free(registrar->allocator, env_alloc(registrar->allocator, 300 * MIB, NULL));
    env_empty_cache(registrar->allocator);
    if (registrar->id != 0)
        assert_error(xseg_unregister(registrar->allocator, registrar->id), BUSY,
                     "in its own callback");
}

TEST_ON(callbacks_can_allocate_and_trim, open_recorded(EXPANDABLE))
{
    char *block = env_alloc(allocator, 40 * MIB, NULL);
    char *next = env_alloc(allocator, 40 * MIB, NULL);

    env_free(allocator, next);
    recorder.within = trim_and_end;
    recorder.id = add(&recorder, block, 400 * MIB, false);
    /* A trim during `enter` unmaps the idle page after the block; the run of the block stays entered. */
    next = env_alloc(allocator, 40 * MIB, NULL);
    env_free(allocator, next);
    env_empty_cache(allocator);
    recorder.within = NULL;
    assert_ok(xseg_unregister(allocator, recorder.id));
    assert_int_equal(xseg_sim_registered(), 0);
    env_free(allocator, block);
}

static void trim_all(struct recorder *registrar)
{
    env_empty_cache(registrar->allocator);
}

/* A trim during the `enter` callback of the rest of a run does not release this idle rest. */
TEST_ON(callback_does_not_release_its_memory, open_recorded(EXPANDABLE))
{
    char *block = env_alloc(allocator, 120 * MIB, NULL);
    const uint64_t id = add(&recorder, block, 120 * MIB, false);

    env_free(allocator, block);
    recorder.within = trim_all;
    (void)env_trim_with(allocator, NULL, .target_bytes = 80 * MIB);
    assert_int_equal(recorder.count, 1);
    assert_int_equal(xseg_sim_registered(), 80 * MIB);
    recorder.within = NULL;
    assert_ok(xseg_unregister(allocator, id));
}

/* Addresses of single pages are freed for pages of other sizes, unless they are registered. */
TEST_ON(registration_retains_its_addresses, open_recorded(EXPANDABLE))
{
    struct xseg_pool *pool = env_pool_of(allocator, .single_page = true);
    char *block = env_alloc_in(allocator, pool, 40 * MIB, NULL);
    const uint64_t id = add(&recorder, block, 40 * MIB, false);
    env_free(allocator, block);
    (void)env_trim_pool(allocator, pool);
    assert_int_equal(recorder.count, 0);
    void *other = env_alloc_in(allocator, pool, 80 * MIB, NULL);
    assert_ptr_equal(env_alloc_in(allocator, pool, 40 * MIB, NULL), block);
    assert_int_equal(recorder.count, 1);
    assert_ok(xseg_unregister(allocator, id));
    env_free(allocator, other, block);
}

/* The callbacks are those of the parent, so no memory of the child is registered. */
TEST_ON(calls_of_a_forked_child_fail, open_recorded(EXPANDABLE))
{
    char *block = env_alloc(allocator, 40 * MIB, NULL);
    const uint64_t id = add(&recorder, block, 40 * MIB, true);
    const struct xseg_registrar registrar = registrar_of(&recorder, false);
    uint64_t other = 0;

    env_expect_forked(recorder.entered == 1 && recorder.left == 0,
                      xseg_register(allocator, block, MIB, &registrar, &other),
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
    char host[64];

    expect_error(&recorder, NULL, 10, XSEG_ERR_ARGUMENT, "NULL");
    expect_error(&recorder, block, 0, XSEG_ERR_ARGUMENT, "bytes is 0");
    expect_error(&recorder, block, SIZE_MAX, XSEG_ERR_ARGUMENT, "exceeds the address space");
    expect_error(&recorder, block, 1000000 * GIB, XSEG_ERR_ARGUMENT, "size exceeds the segment");
    expect_error(&recorder, host, sizeof(host), XSEG_ERR_NOT_ALLOCATED,
                 "not in memory of this allocator");
    expect_error(&recorder, block + GIB, 40 * MIB, XSEG_ERR_NOT_ALLOCATED,
                 "address range has no mapped memory");
    assert_error(xseg_register(allocator, block, 10, NULL, &id), ARGUMENT, "registrar is NULL");
    registrar.leave = NULL;
    assert_error(xseg_register(allocator, block, 10, &registrar, &id), ARGUMENT, "leave is NULL");
    registrar.struct_size = 3;
    assert_error(xseg_register(allocator, block, 10, &registrar, &id), ARGUMENT,
                 "struct_size is unknown, 3");
    id = add(&recorder, block, 40 * MIB, false);
    env_free(allocator, block);
    assert_error(xseg_close(allocator), BUSY, "memory is registered, 1 registration, one with ID ");
    assert_ok(xseg_unregister(allocator, id));
}

/* --- Registrars of reported issues on a tensor of 2 GiB, with pages of PyTorch and of xseg. --- */

#define TENSOR (2 * GIB)

enum layout {
    PAGES,     /* of 20 MiB, without the flag: PyTorch's expandable segments before 2.10 */
    REACHABLE, /* of 20 MiB, for network cards */
    SINGLE,    /* one page for network cards */
    LAYOUTS
};

static const struct {
    const char *thread;
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
        env_pool_of(allocator, .rdma = layout != PAGES, .single_page = layout == SINGLE);

    return env_alloc_in(allocator, pool, TENSOR, NULL);
}

TEST_TIMES(registrars_accept_supported_memory, COUNT_OF(rows),
           env_open_sim("expandable_segments:True",
                        .without_address_range = rows[i].without_address_range))
{
    for (unsigned layout = 0; layout < LAYOUTS; layout++) {
        void *tensor = allocate_tensor(allocator, (enum layout)layout);
        uint64_t id = 0;
        const xseg_status status = xseg_sim_register((uintptr_t)tensor, TENSOR, rows[i].kind, &id);

        if ((status == XSEG_OK) != rows[i].accepts[layout])
            fail_msg("%s, layout %u: %d", rows[i].thread, layout, status);
        if (status == XSEG_OK)
            assert_ok(xseg_sim_unregister(id));
        env_free(allocator, tensor);
    }
}

/* Descriptors of the library do not depend on cuMemGetAddressRange; the pages must only support RDMA. */
TEST_ON(descriptor_needs_no_address_ranges,
        env_open_sim("expandable_segments:True", .without_address_range = true))
{
    for (unsigned layout = REACHABLE; layout < LAYOUTS; layout++) {
        void *tensor = allocate_tensor(allocator, (enum layout)layout);
        uint64_t offset = 0, id = 0;
        int fd = -1;

        assert_ok(xseg_dmabuf_open(allocator, tensor, TENSOR, XSEG_DMABUF_PIN, &fd, &offset));
        assert_ok(xseg_sim_register_descriptor(fd, offset, TENSOR, &id));
        assert_ok(xseg_sim_unregister(id));
        assert_ok(xseg_dmabuf_close(allocator, fd));
        env_free(allocator, tensor);
    }
}

/* --- A week of a service that registers 40 GiB in 300 ranges.  Each hour ranges are replaced, and requests cause growth
 * and trims.  Each night the pool of half of the ranges is paused and resumed. --- */

#define RANGES   300u
#define HOURS    168u
#define REPLACED 4u   /* ranges per hour */
#define REQUESTS 64u  /* allocated in addition to the ranges */
#define STEPS    100u /* allocations and frees per hour */
#define TOTAL    (40 * 1024 * MIB)

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
    uint64_t entered, registered;
    uint64_t mapped; /* ranges whose memory was mapped, by a creation or by a resume of the pool */
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
    week->entered++;
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

static void make_range(struct week *week, struct range *range)
{
    struct xseg_registrar registrar = {sizeof(registrar), .context = week, .enter = enter_counted,
                                       .leave = leave_counted};

    range->block = env_alloc_in(week->allocator, range->pool, range->bytes, NULL);
    assert_ok(xseg_register(week->allocator, range->block, range->bytes, &registrar, &range->id));
    week->mapped++;
}

static void end_range(struct week *week, struct range *range)
{
    assert_ok(xseg_unregister(week->allocator, range->id));
    env_free(week->allocator, range->block);
}

/* Create 300 ranges of 16 to 256 MiB; the last range has the rest of 40 GiB. */
static void make_ranges(struct week *week)
{
    uint64_t left = TOTAL;

    for (unsigned i = 0; i < RANGES; i++) {
        struct range *range = &week->range[i];
        const uint64_t mean = left / (RANGES - i);

        range->pool = week->pool[i % 2];
        range->bytes = i + 1 == RANGES ? left : mean / 4 + random_below(week, mean + mean / 2);
        left -= range->bytes;
        make_range(week, range);
    }
    assert_int_equal(week->registered, TOTAL);
}

/* Requests of all sizes of the default pool, some of which need growth, and a trim. */
static void serve(struct week *week)
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

    serve(week);
    for (unsigned i = 0; i < REPLACED; i++) {
        struct range *range = &week->range[random_below(week, RANGES)];

        end_range(week, range);
        make_range(week, range);
    }
    if (hour % 24 != 3)
        return;
    /* Registered memory of the pool is unregistered, and registered again with its memory. */
    assert_ok(xseg_pool_pause(pool, XSEG_KEEP_NOTHING, NULL));
    assert_true(week->registered < TOTAL * 3 / 4);
    serve(week);
    assert_ok(xseg_pool_resume(pool));
    week->mapped += RANGES / 2;
}

TEST(ranges_stay_registered_for_a_week)
{
    static struct week week;

    week = (struct week){.random = 4711};
    week.allocator =
        env_open_sim("expandable_segments:True,rdma:True", .memory_bytes = 80 * 1024 * MIB);
    for (unsigned i = 0; i < 2; i++)
        week.pool[i] = env_pool(week.allocator);
    make_ranges(&week);
    for (unsigned hour = 0; hour < HOURS; hour++) {
        pass_hour(&week, hour);
        assert_int_equal(week.registered, TOTAL);
        assert_int_equal(env_stats(week.allocator).registered_bytes, TOTAL);
        assert_int_equal(xseg_sim_registered(), TOTAL);
    }
    /* The memory of a range is registered as one run, with at most 5 % exceptions. */
    assert_true(week.entered * 100 <= week.mapped * 105);
    for (unsigned i = 0; i < RANGES; i++)
        end_range(&week, &week.range[i]);
    env_free_all(week.allocator, week.request, sizeof(week.request));
    for (unsigned i = 0; i < 2; i++)
        assert_ok(xseg_pool_release(week.pool[i]));
    env_close(week.allocator);
}
