/* SPDX-License-Identifier: MIT */
/* Metrics while threads create and destroy pools and blocks: every page reports a permanent pool equally. */
#include "tests/stress/stress.h"

#define MAKERS  2u
#define READERS 2u
#define ROUNDS  150u
#define PAGES   60u /* minimum of each reader */
#define ROOM    ((size_t)256 << 10)

struct stage {
    struct xseg_allocator *allocator;
    atomic_uint makers; /* still running */
    atomic_uint pages;
};

struct actor {
    struct stage *stage;
    unsigned number;
};

/* Create a pool, allocate from it and from the default pool, and release all. */
static void *make_pools(void *self)
{
    const struct actor *actor = self;
    struct stage *stage = actor->stage;
    char name[32];
    const struct xseg_pool_options options = {sizeof(options), .name = name};

    (void)snprintf(name, sizeof(name), "maker %u", actor->number);
    for (unsigned i = 0; i < ROUNDS; i++) {
        void *block = NULL, *other = NULL;
        struct xseg_pool *pool = NULL;

        CHECK_OK(xseg_pool_create(stage->allocator, 0, &options, &pool));
        CHECK(env_try_alloc_in(stage->allocator, pool, i % 2 == 0 ? 100 : 3 * MIB, &block) ==
              XSEG_OK);
        CHECK_OK(xseg_alloc(stage->allocator, 0, 1 + i % 3 * MIB, NULL, &other));
        CHECK_OK(xseg_free(stage->allocator, block));
        CHECK_OK(xseg_pool_release(pool));
        CHECK_OK(xseg_free(stage->allocator, other));
        if (i % 16 == 0)
            CHECK_OK(xseg_trim(stage->allocator, NULL, NULL, NULL));
    }
    atomic_fetch_sub(&stage->makers, 1);
    return NULL;
}

/* The number of lines of a family; `steady`: those of the permanent pool; 0 for a name without a pool. */
static unsigned count_lines(const char *page, const char *family, unsigned *steady)
{
    unsigned lines = 0;

    *steady = 0;
    for (const char *at = page; (at = strstr(at, family)) != NULL; at++) {
        const char *name = strstr(at, ",name=\"");

        if (name == NULL)
            return 0;
        name += strlen(",name=\"");
        *steady += strncmp(name, "steady\"} 7340032\n", 17) == 0;
        if (name[0] != '"' && strncmp(name, "steady\"} 7340032\n", 17) != 0 &&
            strncmp(name, "maker 0\"} ", 10) != 0 && strncmp(name, "maker 1\"} ", 10) != 0)
            return 0;
        lines++;
    }
    return lines;
}

static void *read_pages(void *self)
{
    const struct actor *actor = self;
    struct stage *stage = actor->stage;
    char *text = malloc(ROOM);

    CHECK(text != NULL);
    for (unsigned i = 0; i < PAGES || atomic_load(&stage->makers) > 0; i++) {
        unsigned steady = 0;
        size_t needed = 0;

        CHECK_OK(xseg_metrics(stage->allocator, text, ROOM, &needed));
        CHECK(needed <= ROOM && strlen(text) + 1 == needed);
        const unsigned lines = count_lines(text, "\nxseg_allocated_bytes{", &steady);
        CHECK(lines >= 2 && lines <= 150 && steady == 1);
        if (i % 8 == 0)
            CHECK_OK(xseg_metrics_write(stage->allocator, "/dev/null"));
        atomic_fetch_add(&stage->pages, 1);
    }
    free(text);
    return NULL;
}

TEST(metrics_of_an_unchanged_pool_do_not_change)
{
    struct stage stage = {
        .allocator = env_open("expandable_segments:True,idle_ms:1,page_cache_mb:32,publish:True")};
    struct xseg_pool *pool = env_pool_of(stage.allocator, .name = "steady");
    struct actor actor[MAKERS + READERS];
    pthread_t thread[MAKERS + READERS];

    void *block = env_alloc_in(stage.allocator, pool, 7 * MIB, NULL);
    atomic_store(&stage.makers, MAKERS);
    for (unsigned i = 0; i < COUNT_OF(thread); i++)
        actor[i] = (struct actor){&stage, i};
    threads_start(thread, make_pools, actor, MAKERS);
    threads_start(thread + MAKERS, read_pages, actor + MAKERS, READERS);
    threads_join(thread, COUNT_OF(thread));
    assert_true(atomic_load(&stage.pages) >= READERS * PAGES);
    env_free(stage.allocator, block);
    assert_ok(xseg_pool_release(pool));
    env_close(stage.allocator);
}
