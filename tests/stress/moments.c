/* SPDX-License-Identifier: MIT */
/*
 * Snapshots while threads run: the state is of one moment, also across arenas, and the trace ends there.
 *
 * Each worker has one block at the most, in turn on two streams.  Between these lies the arena of a third stream, whose
 * blocks take their time to be copied.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/scene.h"
#include "xseg/snapshot.h"

#define WORKERS   2u
#define BETWEEN   5000u
#define SNAPSHOTS (SCENE_IS_SANITIZED ? 10u : 30u) /* with sanitizers each takes two seconds */
#define EVENTS    4000u                            /* in a snapshot: the newest */

struct worker {
    struct xseg_allocator *allocator;
    atomic_bool *over;
    xseg_stream stream[2];
    size_t bytes; /* that only this one asks for */
    unsigned failures;
};

static char path[128];
static void *held[WORKERS * 2][BETWEEN + 1];

static void *take_turns(void *self)
{
    struct worker *worker = self;
    void *ptr = NULL;

    for (unsigned i = 0; !atomic_load(worker->over); i++) {
        worker->failures +=
            xseg_alloc(worker->allocator, 0, worker->bytes, worker->stream[i % 2], &ptr) != XSEG_OK;
        worker->failures += xseg_free(worker->allocator, ptr) != XSEG_OK;
    }
    return NULL;
}

/* A snapshot as text, which the caller frees. */
static char *write_snapshot(struct xseg_allocator *allocator)
{
    struct xseg_snapshot_options options = XSEG_SNAPSHOT_OPTIONS_INIT;

    options.as_json = true;
    options.host_bytes = (uint64_t)EVENTS * 64;
    assert_int_equal(xseg_snapshot(allocator, path, &options), XSEG_OK);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    const long bytes = ftell(file);
    assert_true(bytes > 0);
    rewind(file);
    char *text = calloc(1, (size_t)bytes + 1);
    assert_non_null(text);
    assert_int_equal(fread(text, 1, (size_t)bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
    return text;
}

static unsigned count_live(const char *text, size_t bytes)
{
    char wanted[96];
    unsigned count = 0;

    (void)snprintf(wanted, sizeof(wanted), "\"requested_size\":%zu,\"state\":\"active_allocated\"",
                   bytes);
    for (const char *at = text; (at = strstr(at, wanted)) != NULL; at++)
        count++;
    return count;
}

/* Whether the last entry about a worker's block leaves it live; false in *found if there is none. */
static bool ends_live(const char *text, size_t bytes, bool *found)
{
    const char *last = NULL, *entry = NULL;
    char wanted[32];

    (void)snprintf(wanted, sizeof(wanted), "\"size\":%zu,", bytes);
    for (const char *at = strstr(text, "\"device_traces\":"); (at = strstr(at, wanted)) != NULL;
         at++)
        last = at;
    *found = last != NULL;
    for (entry = last; entry != NULL && *entry != '{'; entry--) {
    }
    return entry != NULL && strncmp(entry, "{\"action\":\"alloc\"", 16) == 0;
}

/* Live bytes by the segments, and by the pages. */
static uint64_t live_in_segments(const char *text)
{
    const char *const key = "\"allocated_size\":", *at = text;
    uint64_t sum = 0;

    while ((at = strstr(at, key)) != NULL)
        sum += strtoull(at += strlen(key), NULL, 10);
    return sum;
}

static uint64_t live_in_pages(const char *text)
{
    const char *at = strstr(text, "\"pages\":[");
    unsigned long long live;
    uint64_t sum = 0;

    assert_non_null(at);
    for (at += strlen("\"pages\":["); sscanf(at, "[%*u,%*u,\"%*[^\"]\",%llu,%*u]", &live) == 1;) {
        sum += live;
        at = strchr(at, ']') + 1;
        at += *at == ',';
    }
    return sum;
}

static void a_snapshot_is_of_one_moment(void **state)
{
    struct xseg_allocator *allocator = scene_open("expandable_segments:True,history:all,"
                                                  "history_events:200000,history_stacks:none");
    struct worker worker[WORKERS];
    xseg_stream between[2 * WORKERS];
    pthread_t thread[WORKERS];
    atomic_bool over = false;
    unsigned live = 0, traces = 0, taken = 0;

    (void)state;
    for (unsigned i = 0; i < 2 * WORKERS; i++) {
        const xseg_stream stream = scene_stream();

        between[i] = scene_stream();
        worker[i / 2].stream[i % 2] = stream;
        for (unsigned k = 0; k <= BETWEEN; k++)
            held[i][k] = scene_alloc(allocator, 4096, k == 0 ? stream : between[i]);
    }
    for (unsigned i = 0; i < WORKERS; i++) {
        worker[i].allocator = allocator;
        worker[i].over = &over;
        worker[i].bytes = 8001 + i;
        worker[i].failures = 0;
        assert_int_equal(pthread_create(&thread[i], NULL, take_turns, &worker[i]), 0);
    }
    /* On a machine that is busy all of them may find the workers between two turns: then more are taken. */
    for (; taken < SNAPSHOTS || (taken < 30 * SNAPSHOTS && (live == 0 || traces <= SNAPSHOTS));
         taken++) {
        char *text = write_snapshot(allocator);

        for (unsigned k = 0; k < WORKERS; k++) {
            const unsigned count = count_live(text, worker[k].bytes);
            bool found = false;
            const bool ended = ends_live(text, worker[k].bytes, &found);

            assert_in_range(count, 0, 1);
            assert_true(!found || ended == (count == 1));
            live += count;
            traces += found;
        }
        assert_int_equal(live_in_segments(text), live_in_pages(text));
        free(text);
    }
    atomic_store(&over, true);
    for (unsigned i = 0; i < WORKERS; i++) {
        assert_int_equal(pthread_join(thread[i], NULL), 0);
        assert_int_equal(worker[i].failures, 0);
    }
    print_message("# of %u: %u live, %u traces\n", WORKERS * taken, live, traces);
    assert_true(live > 0 && traces > SNAPSHOTS);
    assert_int_equal(unlink(path), 0);
    for (unsigned i = 0; i < 2 * WORKERS; i++)
        for (unsigned k = 0; k <= BETWEEN; k++)
            scene_free(allocator, held[i][k]);
    assert_int_equal(xseg_close(allocator), XSEG_OK);
    for (unsigned i = 0; i < 2 * WORKERS; i++) {
        scene_stream_destroy(between[i]);
        scene_stream_destroy(worker[i / 2].stream[i % 2]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_snapshot_is_of_one_moment),
    };

    (void)snprintf(path, sizeof(path), P_tmpdir "/xseg-moments-%ld", (long)getpid());
    return cmocka_run_group_tests_name("moments", tests, NULL, NULL);
}
