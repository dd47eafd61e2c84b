/* SPDX-License-Identifier: MIT */
/* Pause and resume: the memory of a pool is released, another pool allocates and overwrites as much, and the pool is mapped
 * again at the same addresses, with its contents if they were kept. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "tests/gpu/contents/journal.h"
#include "tests/gpu/contents/section.h"

#define BLOCKS 12u
#define MAX_PAUSED \
    (512 * MIB) /* limits the pinned host memory and the file, which have the same size */

static const struct {
    enum xseg_keep keep;
    const char *name;
} modes[] = {
    {XSEG_KEEP_HOST, "kept_in_host_memory"},
    {XSEG_KEEP_FILE, "kept_in_a_file"},
    {XSEG_KEEP_NOTHING, "kept_nowhere"},
};

struct pause {
    struct section_env *env;
    struct xseg_allocator *allocator;
    struct xseg_pool *pool;
    struct buffer buffer[BLOCKS]; /* bytes 0: freed */
    size_t budget;                /* of the pool */
    uint64_t rounds[sizeof(modes) / sizeof(modes[0])];
};

static struct buffer new_block(struct pause *pause, struct xseg_pool *pool, unsigned stream,
                               size_t bytes)
{
    const struct buffer buffer = section_alloc(pause->env, pause->allocator, pool, stream, bytes);

    kernel_write(pause->env->stream[stream], &buffer);
    return buffer;
}

static void free_block(struct pause *pause, struct buffer *buffer)
{
    section_free(pause->allocator, buffer);
    buffer->bytes = 0;
}

static void free_all(struct pause *pause)
{
    for (unsigned i = 0; i < BLOCKS; i++)
        if (pause->buffer[i].bytes != 0)
            free_block(pause, &pause->buffer[i]);
}

/* The blocks alternate between two streams, each of which has its own segments. */
static unsigned stream_of(unsigned block)
{
    return block % 2;
}

static void check_all(struct pause *pause)
{
    for (unsigned i = 0; i < BLOCKS; i++)
        if (pause->buffer[i].bytes != 0)
            kernel_check(pause->env->checks[0], pause->env->stream[stream_of(i)],
                         &pause->buffer[i]);
}

/* Allocates small and large blocks and blocks of odd sizes, and frees some, whose memory remains cached. */
static void fill_pool(struct pause *pause)
{
    const size_t max = pause->budget / BLOCKS * 2;

    for (unsigned i = 0; i < BLOCKS; i++) {
        const size_t bound = i % 3 == 0 ? 100000 : max;

        pause->buffer[i] = new_block(pause, pause->pool, stream_of(i),
                                     1 + random_below(&pause->env->random_state, bound));
    }
    for (unsigned i = 0; i < BLOCKS; i += 5)
        free_block(pause, &pause->buffer[i]);
    check_all(pause);
}

static void overwrite_memory(struct pause *pause)
{
    struct buffer buffer[4];

    for (unsigned i = 0; i < 4; i++)
        buffer[i] = new_block(pause, NULL, 2, pause->budget / 4);
    for (unsigned i = 0; i < 4; i++) {
        kernel_check(pause->env->checks[0], pause->env->stream[2], &buffer[i]);
        free_block(pause, &buffer[i]);
    }
}

static void trim_and_wait(struct pause *pause)
{
    struct xseg_trim_options options = {sizeof(options)};

    options.wait = true;
    journal_operation("trim, waiting");
    XSEG(trim, pause->allocator, NULL, &options, NULL);
}

static uint64_t reserved_by(const struct pause *pause)
{
    struct xseg_statistics stats = {sizeof(stats)};
    struct xseg_scope scope = XSEG_SCOPE_ALL;

    scope.device = 0;
    scope.pool = pause->pool;
    XSEG(stats_get, pause->allocator, &scope, &stats);
    return stats.reserved_bytes[XSEG_STAT_ALL].current;
}

/* The memory of the pool must be free.  On a GPU other processes may allocate some of it, so there is a tolerance. */
static void expect_memory_released(size_t before, uint64_t reserved)
{
    const size_t after = device_free_memory();
    const uint64_t slack = device.is_simulated ? 0 : reserved / 4 + 32 * MIB;

    if (after + slack < before + reserved)
        journal_error("a paused pool has memory: it reserved %" PRIu64
                      " bytes, and free memory changed from %zu to %zu",
                      reserved, before, after);
}

/* Insufficient host memory or disk space for the contents is not an error. */
static bool pause_pool(struct pause *pause, enum xseg_keep keep, const char *name, const char *file)
{
    const uint64_t reserved = reserved_by(pause);
    const size_t before = device_free_memory();
    char text[300];

    journal_operation("pause, %s", name);
    const xseg_status status =
        xseg_pool_pause(pause->pool, keep, keep == XSEG_KEEP_FILE ? file : NULL);
    if (status == XSEG_ERR_HOST_MEMORY || status == XSEG_ERR_FILE) {
        (void)xseg_error_message(text, sizeof(text));
        journal_result(name, 0, "skipped", "%s", text);
        return false;
    }
    journal_status(status, "xseg_pool_pause");
    if (reserved_by(pause) != 0)
        journal_error("a paused pool reserves %" PRIu64 " bytes", reserved_by(pause));
    expect_memory_released(before, reserved);
    return true;
}

static void check_addresses(const struct pause *pause)
{
    for (unsigned i = 0; i < BLOCKS; i++) {
        struct xseg_block_info info = {sizeof(info)};
        void *address = (void *)(uintptr_t)pause->buffer[i].address;

        if (pause->buffer[i].bytes == 0)
            continue;
        XSEG(block_query, pause->allocator, address, &info);
        if (info.base != address || info.state != XSEG_BLOCK_ALLOCATED ||
            info.requested != pause->buffer[i].bytes)
            journal_error("block %" PRIu64 " of %zu bytes at %p differs after a resume",
                          pause->buffer[i].block, pause->buffer[i].bytes, address);
    }
}

static bool run_round(struct pause *pause, enum xseg_keep keep, const char *name, const char *file)
{
    fill_pool(pause);
    section_synchronize(pause->env);
    if (!pause_pool(pause, keep, name, file))
        return false;
    overwrite_memory(pause);
    free_block(pause, &pause->buffer[1]); /* a block may be freed during the pause */
    section_synchronize(pause->env);
    trim_and_wait(pause);
    journal_operation("resume");
    XSEG(pool_resume, pause->pool);
    check_addresses(pause);
    if (keep == XSEG_KEEP_NOTHING)
        for (unsigned i = 0; i < BLOCKS; i++)
            if (pause->buffer[i].bytes != 0)
                kernel_write(pause->env->stream[stream_of(i)], &pause->buffer[i]);
    check_all(pause);
    section_synchronize(pause->env);
    return true;
}

static void run_mode(struct pause *pause, unsigned mode, const char *file)
{
    XSEG(pool_create, pause->allocator, 0, NULL, &pause->pool);
    if (run_round(pause, modes[mode].keep, modes[mode].name, file))
        pause->rounds[mode]++;
    free_all(pause);
    XSEG(pool_release, pause->pool);
    trim_and_wait(pause);
}

void run_pause(struct section_env *env)
{
    struct pause pause = {.env = env};
    char file[4096];

    pause.budget = env->memory / 4 < MAX_PAUSED ? env->memory / 4 : MAX_PAUSED;
    (void)snprintf(file, sizeof(file), "%s/paused-%d", env->folder, (int)getpid());
    pause.allocator = section_open_allocator("expandable_segments:True");
    do {
        for (unsigned mode = 0; mode < sizeof(modes) / sizeof(modes[0]); mode++)
            run_mode(&pause, mode, file);
    } while (section_has_time(env));
    for (unsigned mode = 0; mode < sizeof(modes) / sizeof(modes[0]); mode++)
        if (pause.rounds[mode] != 0)
            journal_result(modes[mode].name, pause.rounds[mode], "ok", "pauses of %u blocks",
                           BLOCKS);
    section_close_allocator(pause.allocator);
}
