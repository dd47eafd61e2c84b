/* SPDX-License-Identifier: MIT */
#include "src/core/report/publisher.h"

#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "src/base/clock.h"
#include "src/core/register/register.h"
#include "src/core/report/usage.h"

/* How old figures may get while calls come, if reading them takes next to nothing. */
#define AGE_NS 10000000u

/* At most a hundredth of the time goes into publishing, memory that comes and goes aside. */
#define SHARE 100u

/* How often a thread publishes in one call at the most. */
#define TURNS 4u

/* The field of /proc/PID/stat that says when the process began; the name in the second one may hold anything. */
#define START_FIELD 22

_Static_assert(XSEG_PUBLISHED_POOLS / XSEG_PUBLISHED_DEVICES >= XSEG_USAGE_COMMON,
               "each device has its rows");

void xseg_publisher_init(struct xseg_publisher *publisher)
{
    atomic_init(&publisher->is_busy, false);
    atomic_init(&publisher->is_open, false);
    atomic_init(&publisher->due_ns, 0);
    atomic_init(&publisher->changes, 0);
    publisher->region = (struct xseg_shared_region){.memory = NULL};
}

/* When this process began, in the kernel's ticks; 0 where /proc does not say. */
static uint64_t read_start(void)
{
    const int file = open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
    char text[1024];

    if (file < 0)
        return 0;
    const ssize_t bytes = read(file, text, sizeof(text) - 1);
    (void)close(file);
    text[bytes > 0 ? bytes : 0] = '\0';
    const char *at = strrchr(text, ')');
    for (int field = 2; at != NULL && field < START_FIELD; field++)
        at = strchr(at + 1, ' ');
    return at != NULL ? strtoull(at, NULL, 10) : 0;
}

/* How often memory has come and gone, been refused, and been registered. */
static uint64_t count_changes(struct xseg_allocator *allocator)
{
    uint64_t changes =
        atomic_load_explicit(&allocator->registrations->changes, memory_order_relaxed);

    for (int i = 0; i < allocator->device_count; i++) {
        const struct xseg_device *device = xseg_allocator_open_device(allocator, i);

        if (device != NULL)
            changes += atomic_load_explicit(&device->grown, memory_order_relaxed) +
                       atomic_load_explicit(&device->shrunk, memory_order_relaxed) +
                       atomic_load_explicit(&device->ooms, memory_order_relaxed) +
                       atomic_load_explicit(&device->rejections, memory_order_relaxed);
    }
    return changes;
}

void xseg_publisher_fill(struct xseg_allocator *allocator, struct xseg_published_sample *frame)
{
    struct xseg_device *open[XSEG_PUBLISHED_DEVICES];
    uint32_t count = 0;

    for (int i = 0; i < allocator->device_count && count < XSEG_PUBLISHED_DEVICES; i++) {
        open[count] = xseg_allocator_open_device(allocator, i);
        count += open[count] != NULL;
    }
    frame->device_count = count;
    frame->pool_count = 0;
    for (uint32_t i = 0; i < count; i++)
        frame->pool_count +=
            xseg_usage_read(open[i], &frame->devices[i], frame->pools + frame->pool_count,
                            XSEG_PUBLISHED_POOLS / count - XSEG_USAGE_COMMON, NULL);
}

/* Fill the frame that is not the current one, and make it that. */
static void put(struct xseg_allocator *allocator, struct xseg_published *published)
{
    const uint64_t next = published->sequence + 1;
    struct xseg_published_sample *frame = &published->samples[next % 2];

    /* A reader that sees a part of this frame also sees that `sequence` has left the frame that was there. */
    atomic_thread_fence(memory_order_release);
    frame->time_ns = xseg_clock_system();
    xseg_publisher_fill(allocator, frame);
    __atomic_store_n(&published->sequence, next, __ATOMIC_RELEASE);
}

/* Publish.  The caller has set is_busy. */
static void publish(struct xseg_allocator *allocator)
{
    struct xseg_publisher *publisher = allocator->publisher;
    const uint64_t changes = count_changes(allocator), began = xseg_clock_system();

    if (publisher->region.memory == NULL)
        return;
    put(allocator, publisher->region.memory);
    const uint64_t ended = xseg_clock_system();
    atomic_store(&publisher->changes, changes);
    atomic_store(&publisher->due_ns, ended + xseg_max(AGE_NS, SHARE * (ended - began)));
}

/* Begin to publish.  Returns 0 or an errno. */
static int begin(struct xseg_publisher *publisher)
{
    const int error = xseg_shared_region_init(&publisher->region, XSEG_PUBLISHED_NAME,
                                              sizeof(struct xseg_published));

    if (error != 0)
        return error;
    struct xseg_published *published = publisher->region.memory;
    memcpy(published->magic, XSEG_PUBLISHED_MAGIC, sizeof(published->magic));
    published->version = XSEG_PUBLISHED_VERSION;
    published->pid = (int32_t)getpid();
    published->start_ticks = read_start();
    published->bytes = sizeof(*published);
    atomic_store(&publisher->is_open, true);
    return 0;
}

static void create_region(struct xseg_publisher *publisher)
{
    while (atomic_exchange(&publisher->is_busy, true))
        (void)sched_yield();
}

void xseg_publisher_follow(struct xseg_allocator *allocator)
{
    struct xseg_publisher *publisher = allocator->publisher;
    int error = 0;

    XSEG_ASSERT(!xseg_lock_rank_is_any_held());
    create_region(publisher);
    const bool is_wanted = xseg_allocator_config(allocator)->publish;
    if (is_wanted && publisher->region.memory == NULL)
        error = begin(publisher);
    if (is_wanted)
        publish(allocator);
    if (!is_wanted) {
        atomic_store(&publisher->is_open, false);
        xseg_shared_region_fini(&publisher->region);
    }
    atomic_store(&publisher->is_busy, false);
    if (error != 0)
        xseg_log_line(
            &allocator->log, XSEG_LOG_WARNING,
            "publish: shared statistics region cannot be created, %s; xseg top does not list "
            "this process",
            strerror(error));
}

void xseg_publisher_end(struct xseg_publisher *publisher)
{
    create_region(publisher);
    atomic_store(&publisher->is_open, false);
    xseg_shared_region_fini(&publisher->region);
    atomic_store(&publisher->is_busy, false);
}

static bool is_due(struct xseg_allocator *allocator)
{
    struct xseg_publisher *publisher = allocator->publisher;

    if (!atomic_load(&publisher->is_open))
        return false;
    /* Either the thread that publishes sees what this one has changed, as it looks again, or this one sees that
     * nobody publishes any more. */
    atomic_thread_fence(memory_order_seq_cst);
    return count_changes(allocator) != atomic_load(&publisher->changes) ||
           xseg_clock_system() >= atomic_load(&publisher->due_ns);
}

void xseg_publisher_run(struct xseg_allocator *allocator)
{
    struct xseg_publisher *publisher = allocator->publisher;

    XSEG_ASSERT(!xseg_lock_rank_is_any_held());
    /* What changes while a thread publishes is seen by this loop of that thread; threads without end do not hold it. */
    for (unsigned turn = 0; turn < TURNS && is_due(allocator); turn++) {
        if (atomic_exchange(&publisher->is_busy, true))
            return;
        publish(allocator);
        atomic_store(&publisher->is_busy, false);
    }
}
