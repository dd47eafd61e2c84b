/* SPDX-License-Identifier: MIT */
/* xseg_unpin() without xseg_pin() while a descriptor or a registration pins the memory: the call fails, because pins of
 * descriptors and registrations are counted separately, and all pins remain until the descriptor or registration ends. */
#include <unistd.h>

#include "tests/support/child.h"
#include "tests/support/ranges.h"
#include "xseg/register.h"

enum { COUNT = 4 }; /* granules of a range */

/* The allocator of a case, and a range with committed memory. */
static struct xseg_allocator *allocator;
static struct xseg_range *range;
static void *base;

/* Reserve a range, and commit all of it; *start receives its address. */
static struct xseg_range *reserve(void **start)
{
    struct xseg_range *reserved = NULL;

    assert_ok(xseg_range_reserve(allocator, 0, COUNT * PAGE, NULL, &reserved));
    commit(reserved, 0, COUNT, NULL);
    *start = info(reserved).base;
    return reserved;
}

static void run_on_a_range(const void *argument)
{
    void (*const *run_test)(void) = argument;

    allocator = env_open("rdma:True");
    range = reserve(&base);
    (*run_test)();
    env_close(allocator);
}

/* Open a descriptor that pins memory. */
static int open_pinned_descriptor(const void *address, size_t bytes)
{
    uint64_t offset = 0;
    int fd = -1;

    assert_ok(xseg_dmabuf_open(allocator, address, bytes, XSEG_DMABUF_PIN, &fd, &offset));
    return fd;
}

/* Call xseg_unpin() without xseg_pin(). */
static void unpin_unbalanced(const void *address, size_t bytes)
{
    assert_error(xseg_unpin(allocator, address, bytes), ARGUMENT, "");
}

static void close_descriptor(int fd)
{
    assert_ok(xseg_dmabuf_close(allocator, fd));
    assert_error(xseg_dmabuf_close(allocator, fd), ARGUMENT, "");
}

static void descriptor_of_mapped_memory_can_be_closed(void)
{
    const int fd = open_pinned_descriptor(base, COUNT * PAGE);

    child_case_begin();
    unpin_unbalanced(base, COUNT * PAGE);
    close_descriptor(fd);
    discard(range, NULL, {0, COUNT});
}

/* The range is released, and another range reuses its segment or addresses. */
static void descriptor_of_a_released_range_can_be_closed(void)
{
    void *next_base = NULL;
    const int fd = open_pinned_descriptor(base, COUNT * PAGE);

    child_case_begin();
    unpin_unbalanced(base, COUNT * PAGE);
    decommit(range, 0, COUNT, NULL);
    assert_int_equal(xseg_range_release(range), XSEG_ERR_BUSY);
    struct xseg_range *next_range = reserve(&next_base);
    assert_ok(xseg_pin(allocator, next_base, COUNT * PAGE));
    close_descriptor(fd);
    assert_ok(xseg_unpin(allocator, next_base, COUNT * PAGE));
    release(range);
    discard(next_range, NULL, {0, COUNT});
}

/* The segment of a block is released: an expandable segment with its pool, a classic segment with its memory. */
static void run_on_a_block(const void *config)
{
    allocator = env_open(config);
    struct xseg_pool *pool = env_pool(allocator), *next_pool = NULL;
    char *block = env_alloc_in(allocator, pool, 32 * MIB, NULL);
    const int fd = open_pinned_descriptor(block, 32 * MIB);

    child_case_begin();
    unpin_unbalanced(block, 32 * MIB);
    env_free(allocator, block);
    assert_ok(xseg_pool_release(pool));
    env_empty_cache(allocator);
    next_pool = env_pool(allocator);
    char *next_block = env_alloc_in(allocator, next_pool, 32 * MIB, NULL);
    assert_ok(xseg_pin(allocator, next_block, 32 * MIB));
    close_descriptor(fd);
    assert_ok(xseg_unpin(allocator, next_block, 32 * MIB));
    env_free(allocator, next_block);
    assert_ok(xseg_pool_release(next_pool));
    env_close(allocator);
}

/* The program closes the descriptor by close(), so another descriptor gets its number. */
static void descriptor_with_a_reused_number_can_be_closed(void)
{
    void *next_base = NULL;
    struct xseg_range *next_range = reserve(&next_base);
    const int fd = open_pinned_descriptor(base, COUNT * PAGE);

    (void)close(fd);
    assert_int_equal(open_pinned_descriptor(next_base, COUNT * PAGE), fd);
    child_case_begin();
    assert_ok(xseg_dmabuf_close(allocator, fd));
    assert_error(xseg_unpin(allocator, next_base, COUNT * PAGE), ARGUMENT, "");
    unpin_unbalanced(base, COUNT * PAGE);
    discard(range, NULL, {0, COUNT});
    discard(next_range, NULL, {0, COUNT});
}

static int registered_runs;

static bool enter(void *context, struct xseg_registered *run)
{
    (void)context, (void)run;
    registered_runs++;
    return true;
}

static void leave(void *context, const struct xseg_registered *run)
{
    (void)context, (void)run;
    registered_runs--;
}

static uint64_t register_pinned(const void *address, size_t bytes)
{
    struct xseg_registrar registrar = {sizeof(registrar), .enter = enter, .leave = leave,
                                       .pin = true};
    uint64_t id = 0;

    assert_ok(xseg_register(allocator, address, bytes, &registrar, &id));
    assert_int_equal(registered_runs, 1);
    return id;
}

static void end_registration(uint64_t id)
{
    assert_ok(xseg_unregister(allocator, id));
    assert_int_equal(registered_runs, 0);
    assert_int_equal(xseg_unregister(allocator, id), XSEG_ERR_ARGUMENT);
}

static void registration_of_mapped_memory_can_be_removed(void)
{
    const uint64_t id = register_pinned(base, COUNT * PAGE);

    child_case_begin();
    unpin_unbalanced(base, PAGE);
    end_registration(id);
    discard(range, NULL, {0, COUNT});
}

static void registration_of_unmapped_memory_can_be_removed(void)
{
    const uint64_t id = register_pinned(base, COUNT * PAGE);

    child_case_begin();
    unpin_unbalanced(base, COUNT * PAGE);
    decommit(range, 0, COUNT, NULL);
    commit(range, 0, COUNT, NULL);
    assert_int_equal(registered_runs, 1);
    end_registration(id);
    discard(range, NULL, {0, COUNT});
}

/* A descriptor pins the memory as well. */
static void registration_with_a_pinned_descriptor_can_be_removed(void)
{
    const uint64_t id = register_pinned(base, COUNT * PAGE);
    const int fd = open_pinned_descriptor(base, COUNT * PAGE);

    child_case_begin();
    unpin_unbalanced(base, PAGE);
    end_registration(id);
    unpin_unbalanced(base, PAGE);
    close_descriptor(fd);
    discard(range, NULL, {0, COUNT});
}

#define CASE(name)                                    \
    {                                                 \
#name, run_on_a_range, &(void (*const)(void)) \
        {                                             \
            name                                      \
        }                                             \
    }

int main(int argc, char **argv)
{
    const struct child_case cases[] = {
        CASE(descriptor_of_mapped_memory_can_be_closed),
        CASE(descriptor_of_a_released_range_can_be_closed),
        {"descriptor_of_a_released_expandable_segment_can_be_closed", run_on_a_block,
         "expandable_segments:True,rdma:True"},
        {"descriptor_of_a_released_classic_segment_can_be_closed", run_on_a_block,
         "expandable_segments:False"},
        CASE(descriptor_with_a_reused_number_can_be_closed),
        CASE(registration_of_mapped_memory_can_be_removed),
        CASE(registration_of_unmapped_memory_can_be_removed),
        CASE(registration_with_a_pinned_descriptor_can_be_removed),
    };

    return child_case_main(argc, argv, cases, COUNT_OF(cases));
}
