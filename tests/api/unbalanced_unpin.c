/* SPDX-License-Identifier: MIT */
/*
 * One xseg_unpin() too many, and what ends afterwards: a pinned descriptor or a registration that pins.
 *
 * Every call returns a status in every build, and no pin of other memory is lost.  An implementation may count the
 * pins of descriptors and registrations by themselves; then xseg_unpin() itself is refused.
 */
#include <unistd.h>

#include "tests/support/child.h"
#include "tests/support/ranges.h"
#include "xseg/register.h"

enum { COUNT = 4 };

static struct xseg_range *reserve(struct xseg_allocator *allocator, void **base)
{
    struct xseg_range *range = NULL;

    assert_ok(xseg_range_reserve(allocator, 0, COUNT * PAGE, NULL, &range));
    commit(range, 0, COUNT, NULL);
    *base = info(range).base;
    return range;
}

static int descriptor(struct xseg_allocator *allocator, const void *address, size_t bytes)
{
    uint64_t offset = 0;
    int fd = -1;

    assert_ok(xseg_dmabuf_open(allocator, address, bytes, XSEG_DMABUF_PIN, &fd, &offset));
    return fd;
}

/* One unpin too many.  Returns: whether it has taken the pin of something else */
static bool unpin_once_more(struct xseg_allocator *allocator, const void *address, size_t bytes)
{
    const xseg_status status = xseg_unpin(allocator, address, bytes);

    assert_true(status == XSEG_OK || status == XSEG_ERR_ARGUMENT);
    return status == XSEG_OK;
}

/* The descriptor's pin has been taken: closing it says so, and closes it. */
static void close_unpinned(struct xseg_allocator *allocator, int fd, bool was_taken)
{
    if (was_taken)
        assert_error(xseg_dmabuf_close(allocator, fd), ARGUMENT, "xseg_unpin");
    else
        assert_ok(xseg_dmabuf_close(allocator, fd));
    assert_error(xseg_dmabuf_close(allocator, fd), ARGUMENT, "");
}

static void a_descriptor_of_memory_that_is_there(const void *argument)
{
    struct xseg_allocator *allocator = env_open("rdma:True");
    void *base = NULL;
    struct xseg_range *range = reserve(allocator, &base);
    const int fd = descriptor(allocator, base, COUNT * PAGE);

    (void)argument;
    child_case_begin();
    close_unpinned(allocator, fd, unpin_once_more(allocator, base, COUNT * PAGE));
    discard(range, NULL, {0, COUNT});
    env_close(allocator);
}

/* The range has been released, and another one has its segment, or its addresses. */
static void a_descriptor_of_a_range_that_was_released(const void *argument)
{
    struct xseg_allocator *allocator = env_open("rdma:True");
    void *base = NULL, *other = NULL;
    struct xseg_range *range = reserve(allocator, &base);
    const int fd = descriptor(allocator, base, COUNT * PAGE);

    (void)argument;
    child_case_begin();
    const bool was_taken = unpin_once_more(allocator, base, COUNT * PAGE);
    decommit(range, 0, COUNT, NULL);
    assert_int_equal(xseg_range_release(range), was_taken ? XSEG_OK : XSEG_ERR_BUSY);
    struct xseg_range *next = reserve(allocator, &other);
    assert_ok(xseg_pin(allocator, other, COUNT * PAGE));
    close_unpinned(allocator, fd, was_taken);
    assert_ok(xseg_unpin(allocator, other, COUNT * PAGE));
    if (!was_taken)
        release(range);
    discard(next, NULL, {0, COUNT});
    env_close(allocator);
}

/* The segment of a block is released: an expandable one with its pool, a classic one with its memory. */
static void a_descriptor_of_a_block(bool is_classic)
{
    struct xseg_allocator *allocator =
        env_open(is_classic ? "expandable_segments:False" : "expandable_segments:True,rdma:True");
    struct xseg_pool *pool = env_pool(allocator), *next = NULL;
    char *block = env_alloc_in(allocator, pool, 32 * MIB, NULL);
    const int fd = descriptor(allocator, block, 32 * MIB);

    child_case_begin();
    const bool was_taken = unpin_once_more(allocator, block, 32 * MIB);
    env_free(allocator, block);
    assert_ok(xseg_pool_release(pool));
    env_empty_cache(allocator);
    next = env_pool(allocator);
    char *other = env_alloc_in(allocator, next, 32 * MIB, NULL);
    assert_ok(xseg_pin(allocator, other, 32 * MIB));
    close_unpinned(allocator, fd, was_taken);
    assert_ok(xseg_unpin(allocator, other, 32 * MIB));
    env_free(allocator, other);
    assert_ok(xseg_pool_release(next));
    env_close(allocator);
}

static void a_descriptor_of_an_expandable_segment_that_ended(const void *argument)
{
    (void)argument;
    a_descriptor_of_a_block(false);
}

static void a_descriptor_of_a_classic_segment_that_ended(const void *argument)
{
    (void)argument;
    a_descriptor_of_a_block(true);
}

/* Closed by close(), so its number comes again with another descriptor. */
static void a_descriptor_whose_number_comes_again(const void *argument)
{
    struct xseg_allocator *allocator = env_open("rdma:True");
    void *base = NULL, *other = NULL;
    struct xseg_range *range = reserve(allocator, &base), *next = reserve(allocator, &other);
    const int fd = descriptor(allocator, base, COUNT * PAGE);

    (void)argument;
    (void)close(fd);
    assert_int_equal(descriptor(allocator, other, COUNT * PAGE), fd);
    child_case_begin();
    assert_ok(xseg_dmabuf_close(allocator, fd));
    assert_error(xseg_unpin(allocator, other, COUNT * PAGE), ARGUMENT, "");
    (void)unpin_once_more(allocator, base, COUNT * PAGE);
    decommit(range, 0, COUNT, NULL);
    decommit(next, 0, COUNT, NULL);
    release(range);
    release(next);
    env_close(allocator);
}

/* --- Registrations. --- */

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

static uint64_t add(struct xseg_allocator *allocator, const void *address, size_t bytes)
{
    struct xseg_registrar registrar = {sizeof(registrar), .enter = enter, .leave = leave,
                                       .pin = true};
    uint64_t id = 0;

    assert_ok(xseg_register(allocator, address, bytes, &registrar, &id));
    assert_int_equal(runs, 1);
    return id;
}

/* A registration whose pin has been taken ends all the same; whether that is an error is not promised. */
static void remove_unpinned(struct xseg_allocator *allocator, uint64_t id)
{
    const xseg_status status = xseg_unregister(allocator, id);

    assert_true(status == XSEG_OK || status == XSEG_ERR_ARGUMENT);
    assert_int_equal(runs, 0);
    assert_int_equal(xseg_unregister(allocator, id), XSEG_ERR_ARGUMENT);
}

static void a_registration_of_memory_that_is_there(const void *argument)
{
    struct xseg_allocator *allocator = env_open("rdma:True");
    void *base = NULL;
    struct xseg_range *range = reserve(allocator, &base);
    const uint64_t id = add(allocator, base, COUNT * PAGE);

    (void)argument;
    child_case_begin();
    (void)unpin_once_more(allocator, base, PAGE);
    remove_unpinned(allocator, id);
    discard(range, NULL, {0, COUNT});
    env_close(allocator);
}

/* The memory goes although it was to stay: the run leaves before. */
static void a_registration_of_memory_that_went(const void *argument)
{
    struct xseg_allocator *allocator = env_open("rdma:True");
    void *base = NULL;
    struct xseg_range *range = reserve(allocator, &base);
    const uint64_t id = add(allocator, base, COUNT * PAGE);

    (void)argument;
    child_case_begin();
    (void)unpin_once_more(allocator, base, COUNT * PAGE);
    decommit(range, 0, COUNT, NULL);
    commit(range, 0, COUNT, NULL);
    assert_int_equal(runs, 1);
    remove_unpinned(allocator, id);
    discard(range, NULL, {0, COUNT});
    env_close(allocator);
}

/* A descriptor pins the memory as well, and the pins of one page are gone. */
static void a_registration_beside_a_pin(const void *argument)
{
    struct xseg_allocator *allocator = env_open("rdma:True");
    void *base = NULL;
    struct xseg_range *range = reserve(allocator, &base);
    const uint64_t id = add(allocator, base, COUNT * PAGE);
    const int fd = descriptor(allocator, base, COUNT * PAGE);

    (void)argument;
    child_case_begin();
    const bool first = unpin_once_more(allocator, base, PAGE),
               second = unpin_once_more(allocator, base, PAGE);
    remove_unpinned(allocator, id);
    close_unpinned(allocator, fd, first || second);
    discard(range, NULL, {0, COUNT});
    env_close(allocator);
}

#define CASE(name)        \
    {                     \
#name, name, NULL \
    }

int main(int argc, char **argv)
{
    static const struct child_case cases[] = {
        CASE(a_descriptor_of_memory_that_is_there),
        CASE(a_descriptor_of_a_range_that_was_released),
        CASE(a_descriptor_of_an_expandable_segment_that_ended),
        CASE(a_descriptor_of_a_classic_segment_that_ended),
        CASE(a_descriptor_whose_number_comes_again),
        CASE(a_registration_of_memory_that_is_there),
        CASE(a_registration_of_memory_that_went),
        CASE(a_registration_beside_a_pin),
    };

    return child_case_main(argc, argv, cases, COUNT_OF(cases));
}
