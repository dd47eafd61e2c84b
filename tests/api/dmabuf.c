/* SPDX-License-Identifier: MIT */
/* Descriptors of mapped memory: whom they serve, what they pin, and what is refused. */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/env.h"
#include "tests/support/process.h"

#define EXPANDABLE "expandable_segments:True,rdma:True"

/* The registrar takes a range by its descriptor, from another place in it on. */
static void expect_registered(int fd, uint64_t offset, uint64_t bytes)
{
    uint64_t id = 0;

    assert_ok(xseg_sim_register_descriptor(fd, offset, bytes, &id));
    assert_ok(xseg_sim_unregister(id));
}

static void expect_error(struct xseg_allocator *allocator, const void *address, size_t bytes,
                         xseg_status status, const char *text)
{
    uint64_t offset = 77;
    int fd = 77;

    env_expect_error(xseg_dmabuf_open(allocator, address, bytes, 0, &fd, &offset), status, text);
    assert_int_equal(fd, 77);
    assert_int_equal(offset, 77);
}

/* --- One descriptor. --- */

TEST(a_range_of_many_pages_has_one_descriptor)
{
    static const char *const configs[] = {EXPANDABLE, "expandable_segments:False"};
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);

    for (size_t i = 0; i < COUNT_OF(configs); i++) {
        struct xseg_allocator *allocator = env_open(configs[i]);
        char *block = env_alloc(allocator, 214 * MIB, NULL);
        uint64_t offset = 7;
        int fd = -1;

        assert_ok(xseg_dmabuf_open(allocator, block, 214 * MIB, 0, &fd, &offset));
        assert_int_equal(offset, 0);
        assert_int_equal(fcntl(fd, F_GETFD), FD_CLOEXEC);
        expect_registered(fd, 0, 214 * MIB);
        assert_int_equal(close(fd), 0);
        /* In the middle of a page of the host. */
        assert_ok(xseg_dmabuf_open(allocator, block + 512 + page, 50 * MIB, 0, &fd, &offset));
        assert_int_equal(offset, 512);
        expect_registered(fd, offset, 50 * MIB);
        assert_int_equal(close(fd), 0);
        env_free(allocator, block);
        env_close(allocator);
    }
}

/* --- Pins. --- */

TEST(a_pin_keeps_the_pages_until_the_close)
{
    struct xseg_allocator *allocator = env_open(EXPANDABLE);
    char *block = env_alloc(allocator, 40 * MIB, NULL);
    uint64_t offset = 0, reserved;
    int fd = -1;

    assert_ok(xseg_dmabuf_open(allocator, block, 40 * MIB, XSEG_DMABUF_PIN, &fd, &offset));
    env_free(allocator, block);
    env_empty_cache(allocator);
    reserved = env_stats(allocator).reserved_bytes[XSEG_STAT_ALL].current;
    assert_int_equal(reserved, 40 * MIB);
    expect_registered(fd, 0, 40 * MIB);
    env_expect_error(xseg_close(allocator), XSEG_ERR_BUSY, "pinned");
    assert_ok(xseg_dmabuf_close(allocator, fd));
    assert_int_equal(fcntl(fd, F_GETFD), -1);
    env_expect_error(xseg_dmabuf_close(allocator, fd), XSEG_ERR_ARGUMENT,
                     "fd is not a pinned descriptor of xseg_dmabuf_open(),");
    env_empty_cache(allocator);
    reserved = env_stats(allocator).reserved_bytes[XSEG_STAT_ALL].current;
    assert_int_equal(reserved, 0);
    env_close(allocator);
}

/* --- What is refused. --- */

TEST(bad_input_is_refused_with_the_page_that_is_the_reason)
{
    struct xseg_allocator *allocator = env_open(EXPANDABLE);
    char *block = env_alloc(allocator, 40 * MIB, NULL), host[64], text[64];
    struct xseg_pool *pool = NULL;
    uint64_t offset = 0;
    int fd = -1;

    expect_error(allocator, NULL, 1, XSEG_ERR_ARGUMENT, "NULL");
    expect_error(allocator, block, 0, XSEG_ERR_ARGUMENT, "bytes is 0");
    expect_error(allocator, block, 1000000 * GIB, XSEG_ERR_ARGUMENT, "size exceeds the segment");
    expect_error(allocator, host, sizeof(host), XSEG_ERR_NOT_ALLOCATED,
                 "not in memory of this allocator");
    (void)snprintf(text, sizeof(text), "address is not mapped, %p", (void *)(block + 40 * MIB));
    expect_error(allocator, block, 50 * MIB, XSEG_ERR_NOT_ALLOCATED, text);
    env_expect_error(xseg_dmabuf_open(allocator, block, 1, 8, &fd, &offset), XSEG_ERR_ARGUMENT,
                     "unknown flags, 0x8");
    env_expect_error(xseg_dmabuf_open(allocator, block, 1, 0, NULL, &offset), XSEG_ERR_ARGUMENT,
                     "fd is NULL");
    /* Nothing here maps memory over PCIe. */
    env_expect_error(xseg_dmabuf_open(allocator, block, MIB, XSEG_DMABUF_PCIE, &fd, &offset),
                     XSEG_ERR_UNSUPPORTED, "cuMemGetHandleForAddressRange");
    assert_ok(xseg_pool_create(allocator, 0, NULL, &pool));
    char *paused = env_alloc_in(allocator, pool, 40 * MIB, NULL);
    assert_ok(xseg_pool_pause(pool, XSEG_KEEP_NOTHING, NULL));
    expect_error(allocator, paused, MIB, XSEG_ERR_PAUSED, "paused");
    assert_ok(xseg_pool_resume(pool));
    env_free(allocator, paused, block);
    env_close(allocator);
}

TEST(memory_without_rdma_is_refused_with_the_reason)
{
    struct xseg_sim_settings settings = {sizeof(settings)};
    struct xseg_allocator *allocator = env_open("expandable_segments:True");
    void *block = env_alloc(allocator, 40 * MIB, NULL);

    expect_error(allocator, block, MIB, XSEG_ERR_UNSUPPORTED, "page was created without rdma");
    env_free(allocator, block);
    env_close(allocator);
    settings.rdma = XSEG_SIM_RDMA_CREATE_FAILS;
    allocator = env_open_on(&settings, EXPANDABLE);
    block = env_alloc(allocator, 40 * MIB, NULL);
    expect_error(allocator, block, MIB, XSEG_ERR_UNSUPPORTED, "rdma does not work on this device");
    env_free(allocator, block);
    env_close(allocator);
    settings = (struct xseg_sim_settings){.struct_size = sizeof(struct xseg_sim_settings)};
    settings.without_dma_buf = true;
    allocator = env_open_on(&settings, EXPANDABLE);
    block = env_alloc(allocator, 4 * MIB, NULL);
    expect_error(allocator, block, MIB, XSEG_ERR_UNSUPPORTED, "cuMemGetHandleForAddressRange");
    env_free(allocator, block);
    env_close(allocator);
}

/* --- Two processes. --- */

/* Give out two descriptors, one of which pins, have them registered, and wait to be killed. */
static void give_out(int socket, const struct xseg_sim_settings *settings)
{
    struct xseg_allocator *allocator = NULL;
    void *block = NULL;
    uint64_t offset, id;
    int fd[2];
    char order;

    if (read(socket, &order, 1) != 1 || xseg_sim_reset(settings) != XSEG_OK ||
        env_try_open(EXPANDABLE, &allocator) != XSEG_OK ||
        xseg_alloc(allocator, 0, 100 * MIB, NULL, &block) != XSEG_OK)
        _exit(1);
    for (unsigned i = 0; i < 2; i++)
        if (xseg_dmabuf_open(allocator, block, 100 * MIB, i == 0 ? XSEG_DMABUF_PIN : 0, &fd[i],
                             &offset) != XSEG_OK ||
            xseg_sim_register_descriptor(fd[i], offset, 100 * MIB, &id) != XSEG_OK)
            _exit(2);
    if (write(socket, "y", 1) != 1)
        _exit(3);
    (void)read(socket, &order, 1); /* until the test ends, should it not be killed */
    _exit(4);
}

TEST(a_process_that_dies_with_descriptors_leaves_nothing)
{
    struct xseg_sim_settings settings = {sizeof(settings), .memory_bytes = 1 * GIB};
    struct process process = {0};
    struct xseg_allocator *own = NULL;
    void *block = NULL;
    int result = 0;

    if (!process_start(&process, &settings, give_out))
        return;
    assert_int_equal(write(process.socket, "g", 1), 1);
    assert_true(process_answer(&process));
    assert_ok(env_try_open(NULL, &own));
    assert_int_equal(xseg_alloc(own, 0, 1000 * MIB, NULL, &block), XSEG_ERR_NO_MEMORY);
    assert_int_equal(kill(process.pid, SIGKILL), 0);
    assert_int_equal(waitpid(process.pid, &result, 0), process.pid);
    assert_true(WIFSIGNALED(result));
    assert_ok(xseg_alloc(own, 0, 1000 * MIB, NULL, &block));
    (void)close(process.socket);
    assert_ok(xseg_free(own, block));
    assert_ok(xseg_close(own));
    settings.shared = NULL;
    assert_ok(xseg_sim_reset(&settings));
}

TEST(a_forked_child_has_descriptors_and_no_calls)
{
    struct xseg_allocator *allocator = env_open(EXPANDABLE);
    char *block = env_alloc(allocator, 40 * MIB, NULL);
    uint64_t offset = 0;
    int fd = -1, other = -1, result = 0;

    assert_ok(xseg_dmabuf_open(allocator, block, 40 * MIB, XSEG_DMABUF_PIN, &fd, &offset));
    const pid_t child = fork();
    if (child == 0)
        _exit(fcntl(fd, F_GETFD) == FD_CLOEXEC &&
                      xseg_dmabuf_open(allocator, block, MIB, 0, &other, &offset) ==
                          XSEG_ERR_FORKED &&
                      xseg_dmabuf_close(allocator, fd) == XSEG_ERR_FORKED
                  ? 0
                  : 1);
    assert_int_equal(waitpid(child, &result, 0), child);
    assert_int_equal(result, 0);
    env_free(allocator, block);
    env_empty_cache(allocator);
    assert_int_equal(env_stats(allocator).reserved_bytes[XSEG_STAT_ALL].current, 40 * MIB);
    assert_ok(xseg_dmabuf_close(allocator, fd));
    env_empty_cache(allocator);
    assert_int_equal(env_stats(allocator).reserved_bytes[XSEG_STAT_ALL].current, 0);
    env_close(allocator);
}
