/* SPDX-License-Identifier: MIT */
/* Files of published statistics: accepted and rejected files, and random damage. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "src/tools/commands/top/top_table.h"
#include "tests/support/rng.h"
#include "tests/support/test.h"

static struct xseg_published file, head;
static struct xseg_published_sample sample;
static const char *reason;

/* A file with two devices and three pools, in the sample of sequence number 6. */
static void fill(void)
{
    struct xseg_published_sample *current = &file.samples[0];

    memset(&file, 0, sizeof(file));
    memcpy(file.magic, XSEG_PUBLISHED_MAGIC, sizeof(file.magic));
    file.version = XSEG_PUBLISHED_VERSION;
    file.pid = 77;
    file.start_ticks = 1234;
    file.bytes = sizeof(file);
    file.sequence = 6;
    current->device_count = 2;
    current->pool_count = 3;
    current->devices[1] =
        (struct xseg_published_device){.ordinal = 1, .allocated = 5, .reserved = 9};
    current->pools[0] =
        (struct xseg_published_pool){.kind = XSEG_PUBLISHED_DEFAULT, .label = "default"};
    current->pools[1] = (struct xseg_published_pool){
        .ordinal = 1, .kind = XSEG_PUBLISHED_DEFAULT, .label = "default", .reserved = 4};
    current->pools[2] = (struct xseg_published_pool){
        .ordinal = 1, .kind = XSEG_PUBLISHED_PRIVATE, .label = "\"kv\"", .reserved = 5};
}

static bool accept(void)
{
    reason = NULL;
    return published_copy(&file, sizeof(file), &head, &sample, &reason);
}

static void expect_rejected(const char *word)
{
    assert_false(accept());
    assert_non_null(reason);
    if (strstr(reason, word) == NULL)
        fail_msg("'%s' does not contain '%s'", reason, word);
    fill();
}

TEST(well_formed_files_are_accepted)
{
    fill();
    assert_true(accept());
    assert_int_equal(head.pid, 77);
    assert_int_equal(head.start_ticks, 1234);
    assert_int_equal(sample.device_count, 2);
    assert_int_equal(sample.devices[1].allocated, 5);
    assert_string_equal(sample.pools[2].label, "\"kv\"");
    /* The other sample is current after the next change. */
    file.samples[1].device_count = 1;
    file.samples[1].devices[0].allocated = 11;
    file.sequence++;
    assert_true(accept());
    assert_int_equal(sample.device_count, 1);
    assert_int_equal(sample.devices[0].allocated, 11);
}

TEST(malformed_files_are_rejected)
{
    fill();
    file.magic[0] = 'X';
    expect_rejected("xseg did not write");
    file.version = XSEG_PUBLISHED_VERSION + 1;
    expect_rejected("another version");
    file.bytes--;
    expect_rejected("too short");
    file.samples[0].device_count = XSEG_PUBLISHED_DEVICES + 1;
    expect_rejected("more devices or pools");
    file.samples[0].pool_count = XSEG_PUBLISHED_POOLS + 1;
    expect_rejected("more devices or pools");
    file.samples[0].device_count = UINT32_MAX;
    expect_rejected("more devices or pools");
    file.samples[0].devices[0].ordinal = -1;
    expect_rejected("negative device ordinal");
    file.samples[0].pools[2].ordinal = 2;
    expect_rejected("unknown device");
    file.samples[0].pools[2].kind = XSEG_PUBLISHED_OTHERS + 1;
    expect_rejected("unknown kind");
    for (size_t bytes = 0; bytes < sizeof(file); bytes += 1 + bytes / 7) {
        assert_false(published_copy(&file, bytes, &head, &sample, &reason));
        assert_non_null(strstr(reason, "too short"));
    }
}

TEST(labels_can_be_printed)
{
    fill();
    memset(file.samples[0].pools[2].label, 'a', XSEG_PUBLISHED_LABEL);
    assert_true(accept());
    assert_in_range(strlen(sample.pools[2].label), 60, XSEG_PUBLISHED_LABEL - 1);
    memcpy(file.samples[0].pools[2].label, "\033[2J\n", 6);
    assert_true(accept());
    assert_string_equal(sample.pools[2].label, "\\x1b[2J\\x0a");
}

/* --- Rows. --- */

TEST(rows_are_in_order)
{
    struct publisher readable = {.pid = 5, .command = "readable"};
    struct publisher unreadable = {.pid = 3, .command = "unreadable"};
    struct publisher *list[] = {&unreadable, &readable};
    const struct publishers publishers = {.list = list, .count = 2, .hidden = 1};
    struct top_table table;
    char line[TOP_LINE];
    int from, length;

    fill();
    assert_true(accept());
    readable.sample = sample;
    unreadable.error = "unreadable: the file is too short";
    assert_true(top_table_init(&table, &publishers, TOP_BY_RESERVED, true));
    /* Device 1 with two pools; the process with a problem and device 0 have none. */
    assert_int_equal(table.count, 5);
    assert_int_equal(table.rows[0].device->ordinal, 1);
    assert_string_equal(table.rows[1].pool->label, "\"kv\"");
    assert_string_equal(table.rows[2].pool->label, "default");
    assert_ptr_equal(table.rows[3].publisher, &unreadable);
    assert_int_equal(table.rows[4].device->ordinal, 0);
    struct top_layout layout = top_table_layout(0, TOP_BY_RESERVED, 0);
    top_table_line(&layout, &table.rows[3], line);
    assert_non_null(strstr(line, "the file is too short"));
    top_table_summary(&table, &publishers, line);
    assert_string_equal(line,
                        "2 processes, 2 devices; 1 process cannot be read (permission denied)");
    top_table_fini(&table);
    assert_true(top_table_init(&table, &publishers, TOP_BY_PID, false));
    assert_int_equal(table.count, 3);
    assert_ptr_equal(table.rows[0].publisher, &unreadable);
    top_table_fini(&table);
    for (unsigned by = 0; by < TOP_BYS; by++) {
        for (int width = 0; width <= 200; width++) {
            unsigned shown = 0, pages = 1;

            for (unsigned page = 0; page < pages; page++) {
                layout = top_table_layout(width, (enum top_by)by, page);

                pages = layout.pages;
                shown |= layout.shown;
                top_table_head(&layout, (enum top_by)by, line, &from, &length);
                /* A page has at least the columns PID, COMMAND, DEVICE and one of numbers: 8 + 2 + 8 + 2 + 6 + 2 + 11. */
                assert_true(width == 0 || width < 39 || strlen(line) <= (size_t)width);
                assert_true(from >= 0 && (page > 0 || length > 0));
            }
            /* Each of the 13 columns is on a page, except the column POOL (bit 3), which requires space for all. */
            assert_int_equal(shown & 0x1ff7, 0x1ff7);
        }
    }
}

/* --- Files. --- */

static int create_file(size_t bytes)
{
    const int descriptor = memfd_create("xseg-top", MFD_CLOEXEC);

    assert_true(descriptor >= 0);
    assert_int_equal(write(descriptor, &file, bytes), bytes);
    return descriptor;
}

TEST(files_are_read)
{
    int ends[2];

    fill();
    int descriptor = create_file(sizeof(file));
    assert_true(published_read(descriptor, &head, &sample, &reason));
    assert_int_equal(sample.devices[1].allocated, 5);
    assert_int_equal(close(descriptor), 0);
    for (size_t bytes = 0; bytes < sizeof(file); bytes = bytes * 3 + 1) {
        descriptor = create_file(bytes);
        assert_false(published_read(descriptor, &head, &sample, &reason));
        assert_non_null(strstr(reason, "too short"));
        assert_int_equal(close(descriptor), 0);
    }
    /* Bytes after the samples are not read. */
    descriptor = create_file(sizeof(file));
    assert_int_equal(ftruncate(descriptor, (off_t)1 << 40), 0);
    assert_true(published_read(descriptor, &head, &sample, &reason));
    assert_int_equal(close(descriptor), 0);
    /* A pipe and an invalid descriptor. */
    assert_int_equal(pipe(ends), 0);
    assert_false(published_read(ends[0], &head, &sample, &reason));
    assert_int_equal(close(ends[0]), 0);
    assert_int_equal(close(ends[1]), 0);
    assert_false(published_read(-1, &head, &sample, &reason));
}

static atomic_bool must_stop;

/* Writes samples as a publisher does; all statistics of a sample equal its sequence number. */
static void *write_samples(void *self)
{
    struct xseg_published *memory = self;

    while (!atomic_load(&must_stop)) {
        const uint64_t next = memory->sequence + 1;
        struct xseg_published_sample *to = &memory->samples[next % 2];

        atomic_thread_fence(memory_order_release);
        to->device_count = 1;
        to->devices[0].allocated = next;
        for (unsigned i = 0; i < XSEG_PUBLISHED_POOLS; i++)
            to->pools[i].allocated = next;
        to->devices[0].reserved = next;
        __atomic_store_n(&memory->sequence, next, __ATOMIC_RELEASE);
        if (next % 16 == 0)
            (void)usleep(50);
    }
    return NULL;
}

TEST(samples_are_consistent)
{
    pthread_t thread;
    unsigned samples = 0;

    fill();
    file.samples[0].pool_count = 0;
    const int descriptor = create_file(sizeof(file));
    struct xseg_published *memory =
        mmap(NULL, sizeof(file), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    assert_true(memory != MAP_FAILED);
    atomic_store(&must_stop, false);
    assert_int_equal(pthread_create(&thread, NULL, write_samples, memory), 0);
    for (unsigned i = 0; i < 3000; i++) {
        if (!published_read(descriptor, &head, &sample, &reason)) {
            assert_non_null(strstr(reason, "faster"));
            continue;
        }
        if (sample.device_count != 1)
            continue; /* the sample from before the thread */
        samples++;
        assert_int_equal(sample.devices[0].allocated, head.sequence);
        assert_int_equal(sample.devices[0].reserved, head.sequence);
        for (unsigned k = 0; k < XSEG_PUBLISHED_POOLS; k++)
            assert_int_equal(sample.pools[k].allocated, head.sequence);
    }
    atomic_store(&must_stop, true);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_true(samples > 0);
    assert_int_equal(munmap(memory, sizeof(file)), 0);
    assert_int_equal(close(descriptor), 0);
}

/* Random bytes anywhere in the file: the reader stays within bounds, which a sanitizer checks. */
TEST(damaged_files_are_tolerated)
{
    struct publisher publisher = {.pid = 1, .command = "any"};
    struct publisher *list[] = {&publisher};
    const struct publishers publishers = {.list = list, .count = 1};
    uint64_t random = 7;
    unsigned accepted = 0;

    for (unsigned round = 0; round < 20000; round++) {
        struct top_table table;
        char line[TOP_LINE];

        fill();
        for (uint64_t i = rng_next(&random) % 6; i > 0; i--) {
            /* Half of the changes are in the first 400 bytes: the head and the first devices. */
            const size_t range = rng_next(&random) % 2 != 0 ? 400 : sizeof(file);

            ((unsigned char *)&file)[rng_next(&random) % range] =
                (unsigned char)(rng_next(&random) % 3 == 0 ? 255 : rng_next(&random));
        }
        if (!accept()) {
            assert_non_null(reason);
            continue;
        }
        accepted++;
        publisher.sample = sample;
        assert_true(top_table_init(&table, &publishers, (enum top_by)(rng_next(&random) % TOP_BYS),
                                   round % 2 != 0));
        for (size_t i = 0; i < table.count; i++) {
            const struct top_layout layout =
                top_table_layout((int)(rng_next(&random) % 200), TOP_BY_PEAK, 0);

            top_table_line(&layout, &table.rows[i], line);
        }
        top_table_fini(&table);
    }
    assert_in_range(accepted, 2000, 19000);
}
