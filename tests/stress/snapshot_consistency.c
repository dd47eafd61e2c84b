/* SPDX-License-Identifier: MIT */
/* Snapshots with concurrent threads are consistent across arenas, and their trace ends at that state.  Each worker has at most
 * one block, alternately on two streams.  The arena of another stream between them has many blocks, whose copy takes time. */
#include <unistd.h>

#include "src/tools/reading/pickle.h"
#include "tests/stress/stress.h"
#include "xseg/history.h"

#define WORKERS      2u
#define OTHER_BLOCKS 5000u
#define SNAPSHOTS    (ENV_IS_SANITIZED ? 10u : 30u) /* with sanitizers each takes two seconds */
#define EVENTS       4000u                          /* in a snapshot: the newest events */

struct worker {
    struct xseg_allocator *allocator;
    atomic_bool *is_done;
    xseg_stream stream[2];
    size_t bytes; /* a size that only this worker requests */
};

static char path[128];
static void *kept_block[WORKERS * 2]
                       [OTHER_BLOCKS + 1]; /* of a worker's stream, and of the next other stream */

static void *alternate_between_streams(void *self)
{
    struct worker *worker = self;
    void *ptr = NULL;

    for (unsigned i = 0; !atomic_load(worker->is_done); i++) {
        CHECK_OK(xseg_alloc(worker->allocator, 0, worker->bytes, worker->stream[i % 2], &ptr));
        CHECK_OK(xseg_free(worker->allocator, ptr));
    }
    return NULL;
}

/* Write a snapshot and read it. */
static void write_snapshot(struct xseg_allocator *allocator, struct pickle *out)
{
    const struct xseg_snapshot_options options = {sizeof(options),
                                                  .host_bytes = (uint64_t)EVENTS * 64};
    struct pickle_fault fault;

    assert_ok(xseg_snapshot(allocator, path, &options));
    FILE *file = fopen(path, "rb");
    struct input *input = file == NULL ? NULL : input_open(file);
    assert_non_null(input);
    assert_true(pickle_read(input, NULL, out, &fault));
    input_close(input);
    assert_int_equal(fclose(file), 0);
}

static uint64_t number_of(const struct pickle *pickle, const struct pickle_value *value,
                          const char *key)
{
    uint64_t number = 0;

    assert_true(pickle_number(pickle_find(pickle, value, key), &number));
    return number;
}

static bool has_string(const struct pickle *pickle, const struct pickle_value *value,
                       const char *key, const char *expected)
{
    const char *string = pickle_string(pickle, pickle_find(pickle, value, key));

    return string != NULL && strcmp(string, expected) == 0;
}

static unsigned count_allocated(const struct pickle *pickle, size_t bytes)
{
    const struct pickle_value *segments = pickle_find(pickle, pickle_top(pickle), "segments");
    unsigned count = 0;

    for (size_t i = 0; i < pickle_count(segments); i++) {
        const struct pickle_value *blocks =
            pickle_find(pickle, pickle_item(pickle, segments, i), "blocks");

        for (size_t k = 0; k < pickle_count(blocks); k++) {
            const struct pickle_value *block = pickle_item(pickle, blocks, k);

            count += has_string(pickle, block, "state", "active_allocated") &&
                     number_of(pickle, block, "requested_size") == bytes;
        }
    }
    return count;
}

/* Whether a worker's block is allocated after its last entry in the trace; *has_entry: whether the trace has an entry. */
static bool ends_allocated(const struct pickle *pickle, size_t bytes, bool *has_entry)
{
    const struct pickle_value *trace =
        pickle_item(pickle, pickle_find(pickle, pickle_top(pickle), "device_traces"), 0);

    for (size_t i = pickle_count(trace); i > 0; i--) {
        const struct pickle_value *entry = pickle_item(pickle, trace, i - 1);

        *has_entry = number_of(pickle, entry, "size") == bytes;
        if (*has_entry)
            return has_string(pickle, entry, "action", "alloc");
    }
    return false;
}

static uint64_t allocated_in_segments(const struct pickle *pickle)
{
    const struct pickle_value *segments = pickle_find(pickle, pickle_top(pickle), "segments");
    uint64_t sum = 0;

    for (size_t i = 0; i < pickle_count(segments); i++)
        sum += number_of(pickle, pickle_item(pickle, segments, i), "allocated_size");
    return sum;
}

static uint64_t allocated_in_pages(const struct pickle *pickle)
{
    const struct pickle_value *xseg = pickle_find(pickle, pickle_top(pickle), "xseg");
    const struct pickle_value *devices = pickle_find(pickle, xseg, "devices");
    const struct pickle_value *pages =
        pickle_find(pickle, pickle_item(pickle, devices, 0), "pages");
    uint64_t sum = 0;

    for (size_t i = 0; i < pickle_count(pages); i++) {
        uint64_t allocated = 0;

        /* Address, bytes, reason, allocated bytes, cached bytes. */
        assert_true(
            pickle_number(pickle_item(pickle, pickle_item(pickle, pages, i), 3), &allocated));
        sum += allocated;
    }
    return sum;
}

TEST(snapshot_is_consistent_while_threads_allocate)
{
    struct xseg_allocator *allocator = env_open("expandable_segments:True,history:all,"
                                                "history_events:200000,history_stacks:none");
    struct worker worker[WORKERS];
    xseg_stream other_stream[2 * WORKERS];
    pthread_t thread[WORKERS];
    atomic_bool is_done = false;
    unsigned allocated = 0, entries = 0, snapshots = 0;

    for (unsigned i = 0; i < 2 * WORKERS; i++) {
        const xseg_stream stream = env_stream();

        other_stream[i] = env_stream();
        worker[i / 2].stream[i % 2] = stream;
        for (unsigned k = 0; k <= OTHER_BLOCKS; k++)
            kept_block[i][k] = env_alloc(allocator, 4096, k == 0 ? stream : other_stream[i]);
    }
    for (unsigned i = 0; i < WORKERS; i++) {
        worker[i].allocator = allocator;
        worker[i].is_done = &is_done;
        worker[i].bytes = 8001 + i;
    }
    threads_start(thread, alternate_between_streams, worker, WORKERS);
    /* On a busy host each snapshot may be written while no worker has a block; then write more. */
    for (; snapshots < SNAPSHOTS ||
           (snapshots < 30 * SNAPSHOTS && (allocated == 0 || entries <= SNAPSHOTS));
         snapshots++) {
        struct pickle pickle;

        write_snapshot(allocator, &pickle);
        for (unsigned k = 0; k < WORKERS; k++) {
            const unsigned count = count_allocated(&pickle, worker[k].bytes);
            bool has_entry = false;
            const bool is_allocated = ends_allocated(&pickle, worker[k].bytes, &has_entry);

            assert_in_range(count, 0, 1);
            assert_true(!has_entry || is_allocated == (count == 1));
            allocated += count;
            entries += has_entry;
        }
        assert_int_equal(allocated_in_segments(&pickle), allocated_in_pages(&pickle));
        pickle_fini(&pickle);
    }
    atomic_store(&is_done, true);
    threads_join(thread, WORKERS);
    print_message("# of %u: %u allocated, %u with an entry in the trace\n", WORKERS * snapshots,
                  allocated, entries);
    assert_true(allocated > 0 && entries > SNAPSHOTS);
    assert_int_equal(unlink(path), 0);
    for (unsigned i = 0; i < 2 * WORKERS; i++)
        for (unsigned k = 0; k <= OTHER_BLOCKS; k++)
            env_free(allocator, kept_block[i][k]);
    assert_ok(xseg_close(allocator));
    for (unsigned i = 0; i < 2 * WORKERS; i++) {
        env_stream_destroy(other_stream[i]);
        env_stream_destroy(worker[i / 2].stream[i % 2]);
    }
}

int main(void)
{
    (void)snprintf(path, sizeof(path), P_tmpdir "/xseg-snapshot-%ld", (long)getpid());
    return test_run();
}
