/* SPDX-License-Identifier: MIT */
/* One xseg_unpin() too many, then the end of a pinned descriptor or registration: every call returns a status, and no
 * other memory loses its pin.  xseg_unpin() fails if pins of descriptors and registrations are counted separately. */
#include <unistd.h>

#include "tests/support/child.h"
#include "tests/support/ranges.h"
#include "xseg/register.h"

enum { COUNT = 4 };

/* The allocator of a case, and a range with committed memory. */
static struct xseg_allocator *allocator;
static struct xseg_range *range;
static void *base;

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
    void (*const *check)(void) = argument;

    allocator = env_open("rdma:True");
    range = reserve(&base);
    (*check)();
    env_close(allocator);
}

static int descriptor(const void *address, size_t bytes)
{
    uint64_t offset = 0;
    int fd = -1;

    assert_ok(xseg_dmabuf_open(allocator, address, bytes, XSEG_DMABUF_PIN, &fd, &offset));
    return fd;
}

/* One unpin too many.  Returns: whether it has taken the pin of something else */
static bool unpin_once_more(const void *address, size_t bytes)
{
    const xseg_status status = xseg_unpin(allocator, address, bytes);

    assert_true(status == XSEG_OK || status == XSEG_ERR_ARGUMENT);
    return status == XSEG_OK;
}

/* The descriptor's pin has been taken: closing it says so, and closes it. */
static void close_unpinned(int fd, bool was_taken)
{
    if (was_taken)
        assert_error(xseg_dmabuf_close(allocator, fd), ARGUMENT, "xseg_unpin");
    else
        assert_ok(xseg_dmabuf_close(allocator, fd));
    assert_error(xseg_dmabuf_close(allocator, fd), ARGUMENT, "");
}

static void a_descriptor_of_memory_that_is_there(void)
{
    const int fd = descriptor(base, COUNT * PAGE);

    child_case_begin();
    close_unpinned(fd, unpin_once_more(base, COUNT * PAGE));
    discard(range, NULL, {0, COUNT});
}

/* The range has been released, and another one has its segment, or its addresses. */
static void a_descriptor_of_a_range_that_was_released(void)
{
    void *other = NULL;
    const int fd = descriptor(base, COUNT * PAGE);

    child_case_begin();
    const bool was_taken = unpin_once_more(base, COUNT * PAGE);
    decommit(range, 0, COUNT, NULL);
    assert_int_equal(xseg_range_release(range), was_taken ? XSEG_OK : XSEG_ERR_BUSY);
    struct xseg_range *next = reserve(&other);
    assert_ok(xseg_pin(allocator, other, COUNT * PAGE));
    close_unpinned(fd, was_taken);
    assert_ok(xseg_unpin(allocator, other, COUNT * PAGE));
    if (!was_taken)
        release(range);
    discard(next, NULL, {0, COUNT});
}

/* The segment of a block is released: an expandable one with its pool, a classic one with its memory. */
static void a_descriptor_of_a_block(const void *config)
{
    allocator = env_open(config);
    struct xseg_pool *pool = env_pool(allocator), *next = NULL;
    char *block = env_alloc_in(allocator, pool, 32 * MIB, NULL);
    const int fd = descriptor(block, 32 * MIB);

    child_case_begin();
    const bool was_taken = unpin_once_more(block, 32 * MIB);
    env_free(allocator, block);
    assert_ok(xseg_pool_release(pool));
    env_empty_cache(allocator);
    next = env_pool(allocator);
    char *other = env_alloc_in(allocator, next, 32 * MIB, NULL);
    assert_ok(xseg_pin(allocator, other, 32 * MIB));
    close_unpinned(fd, was_taken);
    assert_ok(xseg_unpin(allocator, other, 32 * MIB));
    env_free(allocator, other);
    assert_ok(xseg_pool_release(next));
    env_close(allocator);
}

/* Closed by close(), so its number comes again with another descriptor. */
static void a_descriptor_whose_number_comes_again(void)
{
    void *other = NULL;
    struct xseg_range *next = reserve(&other);
    const int fd = descriptor(base, COUNT * PAGE);

    (void)close(fd);
    assert_int_equal(descriptor(other, COUNT * PAGE), fd);
    child_case_begin();
    assert_ok(xseg_dmabuf_close(allocator, fd));
    assert_error(xseg_unpin(allocator, other, COUNT * PAGE), ARGUMENT, "");
    (void)unpin_once_more(base, COUNT * PAGE);
    discard(range, NULL, {0, COUNT});
    discard(next, NULL, {0, COUNT});
}

static int runs;

static bool enter(void *context, struct xseg_registered *run)
{
    (void)context;
    (void)run;
    runs++;
    return true;
}

static void leave(void *context, const struct xseg_registered *run)
{
    (void)context;
    (void)run;
    runs--;
}

static uint64_t add(const void *address, size_t bytes)
{
    struct xseg_registrar registrar = {sizeof(registrar), .enter = enter, .leave = leave,
                                       .pin = true};
    uint64_t id = 0;

    assert_ok(xseg_register(allocator, address, bytes, &registrar, &id));
    assert_int_equal(runs, 1);
    return id;
}

/* A registration whose pin has been taken ends all the same; whether that is an error is not promised. */
static void remove_unpinned(uint64_t id)
{
    const xseg_status status = xseg_unregister(allocator, id);

    assert_true(status == XSEG_OK || status == XSEG_ERR_ARGUMENT);
    assert_int_equal(runs, 0);
    assert_int_equal(xseg_unregister(allocator, id), XSEG_ERR_ARGUMENT);
}

static void a_registration_of_memory_that_is_there(void)
{
    const uint64_t id = add(base, COUNT * PAGE);

    child_case_begin();
    (void)unpin_once_more(base, PAGE);
    remove_unpinned(id);
    discard(range, NULL, {0, COUNT});
}

/* The memory goes although it was to stay: the run leaves before. */
static void a_registration_of_memory_that_went(void)
{
    const uint64_t id = add(base, COUNT * PAGE);

    child_case_begin();
    (void)unpin_once_more(base, COUNT * PAGE);
    decommit(range, 0, COUNT, NULL);
    commit(range, 0, COUNT, NULL);
    assert_int_equal(runs, 1);
    remove_unpinned(id);
    discard(range, NULL, {0, COUNT});
}

/* A descriptor pins the memory as well, and the pins of one page are gone. */
static void a_registration_beside_a_pin(void)
{
    const uint64_t id = add(base, COUNT * PAGE);
    const int fd = descriptor(base, COUNT * PAGE);

    child_case_begin();
    const bool first = unpin_once_more(base, PAGE), second = unpin_once_more(base, PAGE);
    remove_unpinned(id);
    close_unpinned(fd, first || second);
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
        CASE(a_descriptor_of_memory_that_is_there),
        CASE(a_descriptor_of_a_range_that_was_released),
        {"a_descriptor_of_an_expandable_segment_that_ended", a_descriptor_of_a_block,
         "expandable_segments:True,rdma:True"},
        {"a_descriptor_of_a_classic_segment_that_ended", a_descriptor_of_a_block,
         "expandable_segments:False"},
        CASE(a_descriptor_whose_number_comes_again),
        CASE(a_registration_of_memory_that_is_there),
        CASE(a_registration_of_memory_that_went),
        CASE(a_registration_beside_a_pin),
    };

    return child_case_main(argc, argv, cases, COUNT_OF(cases));
}
