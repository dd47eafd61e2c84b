/* SPDX-License-Identifier: MIT */
/* Metrics while threads create and destroy pools and blocks: every page reports a permanent pool equally. */
#include "tests/stress/stress.h"

#define MAKERS     2u
#define READERS    2u
#define ROUNDS     150u
#define PAGES      60u /* minimum number of pages that each reader reads */
#define TEXT_BYTES ((size_t)256 << 10)

struct shared {
    struct xseg_allocator *allocator;
    atomic_uint makers; /* number of makers that still run */
    atomic_uint pages;
};

struct worker {
    struct shared *shared;
    unsigned number;
};

/* Create a pool, allocate from it and from the default pool, and release all. */
static void *make_pools(void *self)
{
    const struct worker *worker = self;
    struct shared *shared = worker->shared;
    char name[32];
    const struct xseg_pool_options options = {sizeof(options), .name = name};

    (void)snprintf(name, sizeof(name), "maker %u", worker->number);
    for (unsigned i = 0; i < ROUNDS; i++) {
        void *pool_block = NULL, *default_block = NULL;
        struct xseg_pool *pool = NULL;

        CHECK_OK(xseg_pool_create(shared->allocator, 0, &options, &pool));
        CHECK(env_try_alloc_in(shared->allocator, pool, i % 2 == 0 ? 100 : 3 * MIB, &pool_block) ==
              XSEG_OK);
        CHECK_OK(xseg_alloc(shared->allocator, 0, 1 + i % 3 * MIB, NULL, &default_block));
        CHECK_OK(xseg_free(shared->allocator, pool_block));
        CHECK_OK(xseg_pool_release(pool));
        CHECK_OK(xseg_free(shared->allocator, default_block));
        if (i % 16 == 0)
            CHECK_OK(xseg_trim(shared->allocator, NULL, NULL, NULL));
    }
    atomic_fetch_sub(&shared->makers, 1);
    return NULL;
}

/* The number of lines of a family; *permanent_lines: those of the permanent pool.  0 if a line names an unknown pool. */
static unsigned count_lines(const char *page, const char *family, unsigned *permanent_lines)
{
    static const char permanent[] = "steady\"} 7340032\n"; /* 7 MiB */
    unsigned lines = 0;

    *permanent_lines = 0;
    for (const char *line = page; (line = strstr(line, family)) != NULL; line++) {
        const char *name = strstr(line, ",name=\"");

        if (name == NULL)
            return 0;
        name += strlen(",name=\"");
        *permanent_lines += strncmp(name, permanent, strlen(permanent)) == 0;
        if (name[0] != '"' && strncmp(name, permanent, strlen(permanent)) != 0 &&
            strncmp(name, "maker 0\"} ", 10) != 0 && strncmp(name, "maker 1\"} ", 10) != 0)
            return 0;
        lines++;
    }
    return lines;
}

static void *read_pages(void *self)
{
    const struct worker *worker = self;
    struct shared *shared = worker->shared;
    char *text = malloc(TEXT_BYTES);

    CHECK(text != NULL);
    for (unsigned i = 0; i < PAGES || atomic_load(&shared->makers) > 0; i++) {
        unsigned permanent_lines = 0;
        size_t needed = 0;

        CHECK_OK(xseg_metrics(shared->allocator, text, TEXT_BYTES, &needed));
        CHECK(needed <= TEXT_BYTES && strlen(text) + 1 == needed);
        const unsigned lines = count_lines(text, "\nxseg_allocated_bytes{", &permanent_lines);
        /* The default pool and the permanent pool; most of the 300 pools of the makers do not exist any more. */
        CHECK(lines >= 2 && lines <= 150 && permanent_lines == 1);
        if (i % 8 == 0)
            CHECK_OK(xseg_metrics_write(shared->allocator, "/dev/null"));
        atomic_fetch_add(&shared->pages, 1);
    }
    free(text);
    return NULL;
}

TEST(metrics_of_an_unchanged_pool_do_not_change)
{
    struct shared shared = {
        .allocator = env_open("expandable_segments:True,idle_ms:1,page_cache_mb:32,publish:True")};
    struct xseg_pool *pool = env_pool_of(shared.allocator, .name = "steady");
    struct worker worker[MAKERS + READERS];
    pthread_t thread[MAKERS + READERS];

    void *pool_block = env_alloc_in(shared.allocator, pool, 7 * MIB, NULL);
    atomic_store(&shared.makers, MAKERS);
    for (unsigned i = 0; i < COUNT_OF(thread); i++)
        worker[i] = (struct worker){&shared, i};
    threads_start(thread, make_pools, worker, MAKERS);
    threads_start(thread + MAKERS, read_pages, worker + MAKERS, READERS);
    threads_join(thread, COUNT_OF(thread));
    assert_true(atomic_load(&shared.pages) >= READERS * PAGES);
    env_free(shared.allocator, pool_block);
    assert_ok(xseg_pool_release(pool));
    env_close(shared.allocator);
}
