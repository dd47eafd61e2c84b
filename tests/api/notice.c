/* SPDX-License-Identifier: MIT */
/* Notices: who registers addresses elsewhere hears before memory goes and after it came. */
#include <stdlib.h>
#include <string.h>

#include "tests/support/env.h"
#include "tests/support/trim_due.h"

/* By its plain C types; CUmemLocation is a kind (1: device) and a number. */
struct location {
    int kind, number;
};
int cuMemGetAccess(unsigned long long *flags, const struct location *location,
                   unsigned long long address);

#define GRANULE  (2 * MIB)
#define GRANULES ((size_t)1 << 16)

/* What was told, as somebody would keep it who registers memory: by granule from the lowest address. */
struct mirror {
    struct xseg_allocator *allocator;
    uintptr_t origin;
    uint64_t generation[GRANULES]; /* 0: not there */
    unsigned came, left;
    struct xseg_mapping last; /* that was told of */
    /* What a notice is to do beside that, once. */
    void (*act)(struct mirror *mirror);
    struct xseg_pool *pool;
    xseg_stream stream;
    void *ptr;
};

static size_t place_of(struct mirror *mirror, const void *base)
{
    if (mirror->origin == 0)
        mirror->origin = (uintptr_t)base / GIB * GIB;
    assert_true((uintptr_t)base >= mirror->origin);
    const size_t place = ((uintptr_t)base - mirror->origin) / GRANULE;
    assert_true(place < GRANULES);
    return place;
}

static size_t count_of(const struct xseg_mapping *mapping)
{
    return (mapping->bytes + GRANULE - 1) / GRANULE;
}

static void act(struct mirror *mirror)
{
    void (*once)(struct mirror *) = mirror->act;

    mirror->act = NULL;
    if (once != NULL)
        once(mirror);
}

static bool is_accessible(const void *base)
{
    const struct location device = {1, 0};
    unsigned long long flags = 0;

    return cuMemGetAccess(&flags, &device, (uintptr_t)base) == 0 && flags == 3;
}

static void leaving(void *context, const struct xseg_mapping *mapping)
{
    struct mirror *mirror = context;
    const size_t first = place_of(mirror, mapping->base);

    mirror->last = *mapping;
    mirror->left++;
    for (size_t i = 0; i < count_of(mapping); i++) {
        assert_int_equal(mirror->generation[first + i], mapping->generation);
        mirror->generation[first + i] = 0;
    }
    if (mapping->is_expandable)
        assert_true(is_accessible(mapping->base)); /* it is still there */
    act(mirror);
}

static void came(void *context, const struct xseg_mapping *mapping)
{
    struct mirror *mirror = context;
    const size_t first = place_of(mirror, mapping->base);

    mirror->last = *mapping;
    mirror->came++;
    for (size_t i = 0; i < count_of(mapping); i++) {
        assert_int_equal(mirror->generation[first + i], 0);
        mirror->generation[first + i] = mapping->generation;
    }
    if (mapping->is_expandable)
        assert_true(is_accessible(mapping->base));
    act(mirror);
}

static struct mirror *observe(struct xseg_allocator *allocator)
{
    struct xseg_observer observer = {sizeof(observer)};
    struct mirror *mirror = calloc(1, sizeof(*mirror));
    uint64_t id = 0;

    assert_non_null(mirror);
    mirror->allocator = allocator;
    observer.context = mirror;
    observer.on_unmap = leaving;
    observer.on_map = came;
    assert_ok(xseg_observer_add(allocator, &observer, &id));
    return mirror;
}

static bool compare(void *context, const struct xseg_mapping *mapping)
{
    struct mirror *mirror = context;
    const size_t first = place_of(mirror, mapping->base);

    for (size_t i = 0; i < count_of(mapping); i++) {
        assert_int_equal(mirror->generation[first + i], mapping->generation);
        mirror->generation[first + i] |= (uint64_t)1 << 63;
    }
    return true;
}

/* What was told is what is there. */
static void expect_true(struct mirror *mirror)
{
    assert_ok(xseg_for_each_mapping(mirror->allocator, NULL, compare, mirror));
    for (size_t i = 0; i < GRANULES; i++) {
        assert_true(mirror->generation[i] == 0 || mirror->generation[i] >> 63 != 0);
        mirror->generation[i] &= ~((uint64_t)1 << 63);
    }
}

TEST(growth_and_trim_are_told)
{
    static const char *const config[] = {"expandable_segments:True", "expandable_segments:False",
                                         "unmap_on_free:True"};

    for (unsigned i = 0; i < COUNT_OF(config); i++) {
        struct xseg_allocator *allocator = env_open(config[i]);
        struct mirror *mirror = observe(allocator);
        void *ptr = env_alloc(allocator, 50 * MIB, NULL), *small = env_alloc(allocator, 100, NULL);

        assert_int_equal(mirror->came, 2);
        assert_int_equal(mirror->left, 0);
        expect_true(mirror);
        env_free(allocator, ptr);
        env_empty_cache(allocator);
        assert_int_equal(mirror->left, 1);
        expect_true(mirror);
        env_free(allocator, small);
        env_close(allocator); /* all of it goes */
        assert_int_equal(mirror->left, 2);
        free(mirror);
    }
}

/* While memory comes nobody has it yet; and no lock is held, so the library can be called. */
static void allocate_more(struct mirror *mirror)
{
    struct xseg_block_info info = {sizeof(info)};
    const struct xseg_mapping mapping = mirror->last;

    assert_ok(xseg_block_query(mirror->allocator, mapping.base, &info));
    assert_int_equal(info.state, XSEG_BLOCK_CLAIMED);
    mirror->ptr = env_alloc(mirror->allocator, 70 * MIB, NULL);
    env_empty_cache(mirror->allocator);
    (void)env_stats(mirror->allocator);
}

TEST(observers_may_call_the_library)
{
    struct xseg_allocator *allocator = env_open(NULL);
    struct mirror *mirror = observe(allocator);
    void *held;

    mirror->act = allocate_more;
    void *ptr = env_alloc(allocator, 50 * MIB, NULL);
    assert_non_null(mirror->ptr);
    assert_ptr_not_equal(mirror->ptr, ptr);
    held = mirror->ptr;
    expect_true(mirror);
    env_free(allocator, ptr);
    mirror->act = allocate_more;
    env_empty_cache(allocator);
    expect_true(mirror);
    env_free(allocator, held, mirror->ptr);
    env_close(allocator);
    free(mirror);
}

TEST(what_the_driver_refuses_stays)
{
    struct xseg_allocator *allocator = env_open(NULL);
    struct mirror *mirror = observe(allocator);
    struct xseg_sim_fault fault = XSEG_SIM_FAULT_INIT;

    env_free(allocator, env_alloc(allocator, 50 * MIB, NULL));
    const uint64_t generation = mirror->last.generation;
    fault.call = "cuMemUnmap";
    fault.every = 1;
    fault.error = 999;
    assert_ok(xseg_sim_fault_set(0, &fault));
    env_empty_cache(allocator);
    assert_ok(xseg_sim_fault_set(0, NULL));
    assert_int_equal(mirror->left, 1);
    assert_int_equal(mirror->came, 2);
    assert_int_equal(mirror->last.generation, generation);
    expect_true(mirror);
    env_close(allocator);
    free(mirror);
}

static void grow(struct mirror *mirror)
{
    mirror->ptr = env_alloc(mirror->allocator, 70 * MIB, NULL);
}

static void grow_when_told_next(struct mirror *mirror)
{
    mirror->act = grow;
}

/* Pages are mapped in the segment while observers are told that the rest of a block stays. */
TEST(a_growth_during_the_notice_of_a_refusal_is_counted)
{
    struct xseg_allocator *allocator = env_open(NULL);
    struct mirror *mirror = observe(allocator);
    struct xseg_sim_fault fault = XSEG_SIM_FAULT_INIT;

    env_free(allocator, env_alloc(allocator, 60 * MIB, NULL));
    /* The call for all pages fails, and so does the one for the third page. */
    fault.call = "cuMemUnmap";
    fault.nth = 1;
    fault.every = 3;
    fault.error = 999;
    assert_ok(xseg_sim_fault_set(0, &fault));
    mirror->act = grow_when_told_next;
    env_empty_cache(allocator);
    assert_ok(xseg_sim_fault_set(0, NULL));
    assert_non_null(mirror->ptr);
    expect_true(mirror);
    assert_int_equal(env_stats(allocator).reserved_bytes[XSEG_STAT_ALL].current, xseg_sim_used(0));
    env_free(allocator, mirror->ptr);
    env_close(allocator);
    free(mirror);
}

static void begin_capture(struct mirror *mirror)
{
    env_capture_begin(mirror->pool, mirror->stream);
}

/* A capture that begins while observers are told: nothing goes, and it is not spoilt. */
TEST(nothing_goes_in_a_capture_that_begins_meanwhile)
{
    struct xseg_allocator *allocator = env_open(NULL);
    struct mirror *mirror = observe(allocator);
    struct xseg_trim_result done = {sizeof(done)};

    mirror->pool = env_pool(allocator);
    mirror->stream = env_stream();
    env_free(allocator, env_alloc(allocator, 50 * MIB, NULL));
    mirror->act = begin_capture;
    assert_ok(xseg_trim(allocator, NULL, NULL, &done));
    assert_int_equal(done.released, 0);
    assert_int_equal(done.kept_capture, 60 * MIB);
    assert_int_equal(mirror->came, 2);
    expect_true(mirror);
    env_capture_end(mirror->pool, mirror->stream);
    env_close(allocator, mirror->stream);
    free(mirror);
}

/* Frees a block in a capture that it begins, when first told that memory leaves. */
static void free_in_a_capture(void *context, const struct xseg_mapping *mapping)
{
    struct mirror *mirror = context;

    (void)mapping;
    if (mirror->left++ != 0)
        return;
    begin_capture(mirror);
    mirror->ptr = env_alloc(mirror->allocator, 1000, mirror->stream);
    assert_ok(xseg_record_stream(mirror->allocator, mirror->ptr, NULL));
    env_free(mirror->allocator, mirror->ptr);
}

/* A request that is short looks for pages while a capture begins.  What is freed in that capture waits for its end. */
TEST(a_shortage_leaves_a_capture_alone_that_begins_meanwhile)
{
    struct xseg_allocator *allocator = env_open("expandable_segments:True,hard_limit_mb:70");
    struct mirror mirror = {.allocator = allocator, .pool = env_pool(allocator)};
    struct xseg_observer observer = {sizeof(observer), .context = &mirror,
                                     .on_unmap = free_in_a_capture};
    const xseg_stream side = env_stream();
    void *ptr = NULL;
    uint64_t id = 0;

    mirror.stream = env_stream();
    assert_ok(xseg_observer_add(allocator, &observer, &id));
    env_free(allocator, env_alloc(allocator, 50 * MIB, NULL));
    assert_int_equal(xseg_alloc(allocator, 0, 50 * MIB, side, &ptr), XSEG_ERR_LIMIT);
    assert_true(mirror.left > 0);
    assert_int_equal(env_block(allocator, mirror.ptr).state, XSEG_BLOCK_PENDING_FREE);
    env_capture_end(mirror.pool, mirror.stream);
    env_free(allocator, env_alloc(allocator, 50 * MIB, side));
    env_close(allocator, mirror.stream, side);
}

static void queue_work(struct mirror *mirror)
{
    env_launch(mirror->allocator, mirror->stream, mirror->ptr);
}

TEST(pauses_are_told)
{
    struct xseg_allocator *allocator = env_open(NULL);
    struct mirror *mirror = observe(allocator);

    mirror->pool = env_pool(allocator);
    mirror->ptr = env_alloc_in(allocator, mirror->pool, 50 * MIB, NULL);
    const uint64_t generation = mirror->last.generation;
    assert_ok(xseg_pool_pause(mirror->pool, XSEG_KEEP_HOST, NULL));
    assert_int_equal(mirror->left, 1);
    expect_true(mirror);
    assert_ok(xseg_pool_resume(mirror->pool));
    assert_int_equal(mirror->came, 2);
    assert_true(mirror->last.generation > generation);
    expect_true(mirror);
    /* Work that is queued meanwhile stands in the way, and the same memory is there again. */
    mirror->act = queue_work;
    env_expect_error(xseg_pool_pause(mirror->pool, XSEG_KEEP_NOTHING, NULL), XSEG_ERR_BUSY, "work");
    assert_int_equal(mirror->left, 2);
    assert_int_equal(mirror->came, 3);
    expect_true(mirror);
    xseg_sim_finish_all();
    env_free(allocator, mirror->ptr);
    env_close(allocator);
    free(mirror);
}

static uint64_t next(uint64_t *seed)
{
    *seed = *seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return *seed >> 33;
}

/* Whatever happens, on a device that is short of memory, too: who only listens knows what is there. */
TEST(the_mirror_is_always_true)
{
    static const char *const config[] = {
        "expandable_segments:True", "expandable_segments:True,idle_ms:0",
        "expandable_segments:False", "expandable_segments:True,page_cache_mb:64",
        ("expandable_segments:True,per_process_memory_fraction:0.8,"
         "garbage_collection_threshold:0.6")};

    for (unsigned c = 0; c < COUNT_OF(config); c++) {
        struct xseg_sim_settings settings = {sizeof(settings)};
        void *block[24] = {NULL};
        uint64_t seed = 7 + c;

        settings.memory_bytes = 600 * MIB;
        struct xseg_allocator *allocator = env_open_on(&settings, config[c]);
        struct mirror *mirror = observe(allocator);
        const xseg_stream stream[2] = {NULL, env_stream()};
        mirror->pool = env_pool(allocator);
        for (unsigned step = 0; step < 600; step++) {
            const uint64_t what = next(&seed) % 20;
            void **at = &block[next(&seed) % COUNT_OF(block)];
            struct xseg_request request = {sizeof(request)};

            request.bytes =
                next(&seed) % 4 == 0 ? next(&seed) % MIB + 1 : next(&seed) % (80 * MIB) + 1;
            request.stream = stream[next(&seed) % 2];
            request.pool = next(&seed) % 4 == 0 ? mirror->pool : NULL;
            if (what == 0)
                env_empty_cache(allocator);
            else if (what == 1)
                assert_ok(trim_due(allocator, 1000));
            else if (what == 2 && xseg_pool_pause(mirror->pool, XSEG_KEEP_NOTHING, NULL) == XSEG_OK)
                expect_true(mirror);
            else if (what == 3)
                (void)!xseg_pool_resume(mirror->pool);
            else if (*at == NULL)
                (void)!xseg_alloc_with(allocator, &request, at);
            else {
                env_free(allocator, *at);
                *at = NULL;
            }
            if (step % 10 == 0)
                expect_true(mirror);
        }
        expect_true(mirror);
        assert_true(mirror->left > 10);
        (void)!xseg_pool_resume(mirror->pool);
        for (unsigned i = 0; i < COUNT_OF(block); i++)
            if (block[i] != NULL)
                env_free(allocator, block[i]);
        env_close(allocator, stream[1]);
        free(mirror);
    }
}
