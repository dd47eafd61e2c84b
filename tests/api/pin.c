/* SPDX-License-Identifier: MIT */
/* Mapped addresses, pins, and dma-buf descriptors. */
#include <fcntl.h>
#include <stdio.h>

#include "tests/support/process.h"
#include "tests/support/trim_due.h"

#define MAPPINGS_MAX 64u

/* Mappings of a walk, which ends at `max` mappings. */
struct mapping_list {
    struct xseg_mapping mapping[MAPPINGS_MAX];
    unsigned count, max;
};

static bool add_mapping(void *context, const struct xseg_mapping *mapping)
{
    struct mapping_list *list = context;

    assert_true(list->count < MAPPINGS_MAX);
    assert_int_equal(mapping->struct_size, sizeof(*mapping));
    list->mapping[list->count++] = *mapping;
    return list->count < list->max;
}

static struct mapping_list list_mappings(struct xseg_allocator *allocator, struct xseg_pool *pool)
{
    struct mapping_list list = {.max = MAPPINGS_MAX};

    assert_ok(xseg_for_each_mapping(allocator, env_scope(.device = -1, .pool = pool), add_mapping,
                                    &list));
    return list;
}

/* The mapping that contains an address, or NULL. */
static const struct xseg_mapping *find_mapping(const struct mapping_list *list, const void *ptr)
{
    for (unsigned i = 0; i < list->count; i++)
        if ((uintptr_t)ptr - (uintptr_t)list->mapping[i].base < list->mapping[i].bytes)
            return &list->mapping[i];
    return NULL;
}

TEST_IN_POOL(iteration_visits_each_mapped_byte_once, env_open(NULL))
{
    void *ptr[4] = {env_alloc(allocator, 50 * MIB, NULL), env_alloc(allocator, 1000, NULL),
                    env_alloc_in(allocator, pool, 30 * MIB, NULL),
                    env_alloc(allocator, 30 * MIB, NULL)};
    uint64_t bytes = 0;

    struct mapping_list list = list_mappings(allocator, NULL);
    for (unsigned i = 0; i < list.count; i++) {
        bytes += list.mapping[i].bytes;
        assert_int_equal(list.mapping[i].bytes % list.mapping[i].page_bytes, 0);
        assert_int_not_equal(list.mapping[i].generation, 0);
        assert_true(list.mapping[i].is_expandable);
        /* The mappings are disjoint. */
        for (unsigned j = 0; j < i; j++)
            assert_null(
                find_mapping(&(struct mapping_list){.mapping = {list.mapping[j]}, .count = 1},
                             list.mapping[i].base));
    }
    assert_int_equal(bytes, env_reserved(allocator));
    assert_int_equal(find_mapping(&list, ptr[0])->page_bytes, 20 * MIB);
    assert_int_equal(find_mapping(&list, ptr[1])->page_bytes, 2 * MIB);
    assert_ptr_equal(find_mapping(&list, ptr[2])->pool, pool);
    assert_null(find_mapping(&list, ptr[0])->pool);
    list = list_mappings(allocator, pool);
    assert_int_equal(list.count, 1);
    assert_int_equal(list.mapping[0].bytes, 2 * 20 * MIB);
    /* The callback ends the iteration by its return value. */
    list = (struct mapping_list){.max = 1};
    assert_ok(xseg_for_each_mapping(allocator, NULL, add_mapping, &list));
    assert_int_equal(list.count, 1);
    assert_error(xseg_for_each_mapping(allocator, NULL, NULL, NULL), ARGUMENT, "visit");
    env_free_all(allocator, ptr, sizeof(ptr));
}

/* Only mappings of new memory have a new generation. */
TEST_IN_POOL(new_memory_has_a_new_generation, env_open(NULL))
{
    void *low = env_alloc(allocator, 40 * MIB, NULL), *high = env_alloc(allocator, 40 * MIB, NULL);
    void *pool_block = env_alloc_in(allocator, pool, 30 * MIB, NULL);

    const struct mapping_list before = list_mappings(allocator, NULL);
    env_free(allocator, high);
    high = env_alloc(allocator, 40 * MIB, NULL); /* a hit: the same memory */
    struct mapping_list after = list_mappings(allocator, NULL);
    assert_int_equal(find_mapping(&after, high)->generation,
                     find_mapping(&before, high)->generation);
    env_free(allocator, high);
    (void)env_trim(allocator);
    after = list_mappings(allocator, NULL);
    assert_null(find_mapping(&after, high));
    assert_int_equal(find_mapping(&after, low)->generation, find_mapping(&before, low)->generation);
    assert_ptr_equal(env_alloc(allocator, 40 * MIB, NULL), high);
    after = list_mappings(allocator, NULL);
    assert_true(find_mapping(&after, high)->generation > find_mapping(&before, high)->generation);
    assert_int_equal(find_mapping(&after, low)->generation, find_mapping(&before, low)->generation);
    /* A paused pool has no mappings, but its blocks can be queried. */
    const uint64_t generation = env_block(allocator, pool_block).generation;
    assert_int_equal(generation, find_mapping(&after, pool_block)->generation);
    assert_ok(xseg_pool_pause(pool, XSEG_KEEP_NOTHING, NULL));
    after = list_mappings(allocator, NULL);
    assert_null(find_mapping(&after, pool_block));
    assert_true(env_block(allocator, pool_block).is_paused);
    const uint64_t paused_generation = env_block(allocator, pool_block).generation;
    assert_true(paused_generation > generation);
    assert_ok(xseg_pool_resume(pool));
    assert_true(env_block(allocator, pool_block).generation > paused_generation);
    assert_false(env_block(allocator, pool_block).is_paused);
    env_free(allocator, pool_block, low, high);
}

TEST_ON(pinned_pages_of_a_freed_block_stay_mapped, env_open(NULL))
{
    char *ptr = env_alloc(allocator, 200 * MIB, NULL); /* ten pages */
    void *small = env_alloc(allocator, 1000, NULL);

    /* Pin parts of the third, fourth and eighth page, and a small page. */
    assert_ok(xseg_pin(allocator, ptr + 59 * MIB, 2 * MIB));
    assert_ok(xseg_pin(allocator, ptr + 150 * MIB, 1));
    assert_ok(xseg_pin(allocator, ptr + 150 * MIB, 1));
    assert_ok(xseg_pin(allocator, small, 1000));
    const struct mapping_list pinned = list_mappings(allocator, NULL);
    assert_true(find_mapping(&pinned, small)->is_pinned);
    env_free(allocator, ptr, small);
    struct xseg_trim_result result = env_trim(allocator);
    assert_int_equal(result.released, 7 * 20 * MIB);
    assert_int_equal(result.kept_pinned, (3 * 20 + 2) * MIB);
    assert_int_equal(result.kept_fragmented + result.kept_failed + result.kept_by_options, 0);
    assert_int_equal(env_reserved(allocator), 62 * MIB);
    const struct mapping_list remaining = list_mappings(allocator, NULL);
    assert_non_null(find_mapping(&remaining, ptr + 40 * MIB));
    assert_non_null(find_mapping(&remaining, ptr + 79 * MIB));
    assert_non_null(find_mapping(&remaining, ptr + 150 * MIB));
    assert_null(find_mapping(&remaining, ptr + 39 * MIB));
    assert_null(find_mapping(&remaining, ptr + 80 * MIB));
    /* Pins are counted: the eighth page is pinned twice. */
    assert_ok(xseg_unpin(allocator, ptr + 150 * MIB, 1));
    assert_int_equal(env_trim(allocator).kept_pinned, 62 * MIB);
    assert_ok(xseg_unpin(allocator, ptr + 150 * MIB, 1));
    assert_error(xseg_unpin(allocator, ptr + 150 * MIB, 1), ARGUMENT, "pinned");
    assert_int_equal(env_trim(allocator).released, 20 * MIB);
    /* Pinned memory prevents a close. */
    assert_error(xseg_close(allocator), BUSY, "pinned");
    assert_ok(xseg_unpin(allocator, ptr + 59 * MIB, 2 * MIB));
    assert_ok(xseg_unpin(allocator, small, 1000));
}

/* Under memory pressure all idle memory is reclaimed except pinned pages. */
TEST_ON(pinned_pages_are_not_remapped, env_open_mib(200, NULL))
{
    const xseg_stream side = env_stream();
    char *pinned = env_alloc(allocator, 160 * MIB, NULL);
    assert_ok(xseg_pin(allocator, pinned + 70 * MIB, MIB));
    env_free(allocator, pinned);
    /* All but the pinned page of 20 MiB are available: 180 MiB. */
    assert_error(env_try_alloc(allocator, 190 * MIB, side), NO_MEMORY, "pinned");
    void *ptr = env_alloc(allocator, 180 * MIB, side);
    const struct mapping_list remaining = list_mappings(allocator, NULL);
    assert_true(find_mapping(&remaining, pinned + 70 * MIB)->is_pinned);
    env_free(allocator, ptr);
    /* A limit below the memory in use does not release the pinned page, either. */
    env_set_hard_limit(allocator, NULL, 2 * MIB);
    assert_int_equal(env_reserved(allocator), 20 * MIB);
    assert_ok(xseg_unpin(allocator, pinned + 70 * MIB, MIB));
}

TEST_ON(decay_keeps_pinned_pages, env_open("expandable_segments:True,idle_ms:0"))
{
    char *ptr = env_alloc(allocator, 100 * MIB, NULL);
    struct xseg_explain_result sums = {sizeof(sums)};

    assert_ok(xseg_pin(allocator, ptr + 50 * MIB, 1));
    env_free(allocator, ptr);
    for (unsigned i = 0; i < 3; i++)
        assert_ok(trim_due(allocator, 1000000));
    assert_int_equal(env_reserved(allocator), 20 * MIB);
    assert_ok(xseg_explain(allocator, NULL, NULL, NULL, &sums));
    assert_int_equal(sums.pinned, 20 * MIB);
    assert_int_equal(sums.reserved, 20 * MIB);
    assert_ok(xseg_unpin(allocator, ptr + 50 * MIB, 1));
}

TEST_ON(a_classic_segment_is_pinned_as_a_whole, env_open("expandable_segments:False"))
{
    char *ptr = env_alloc(allocator, 30 * MIB, NULL);

    assert_ok(xseg_pin(allocator, ptr + 10 * MIB, 100));
    env_free(allocator, ptr);
    struct xseg_trim_result result = env_trim(allocator);
    assert_int_equal(result.released, 0);
    assert_int_equal(result.kept_pinned, 30 * MIB);
    assert_ok(xseg_unpin(allocator, ptr, 1));
    assert_int_equal(env_trim(allocator).released, 30 * MIB);
}

TEST_IN_POOL(a_pinned_pool_is_not_paused, env_open(NULL))
{
    void *ptr = env_alloc_in(allocator, pool, 30 * MIB, NULL);

    assert_ok(xseg_pin(allocator, ptr, 1));
    env_free(allocator, ptr);
    assert_error(xseg_pool_pause(pool, XSEG_KEEP_NOTHING, NULL), BUSY, "pinned");
    assert_ok(xseg_unpin(allocator, ptr, 1));
    ptr = env_alloc_in(allocator, pool, 30 * MIB, NULL);
    assert_ok(xseg_pool_pause(pool, XSEG_KEEP_NOTHING, NULL));
    assert_error(xseg_pin(allocator, ptr, 1), PAUSED, "paused");
    assert_ok(xseg_pool_resume(pool));
    env_free(allocator, ptr);
}

TEST_ON(pins_outside_a_block_are_rejected, env_open(NULL))
{
    char *ptr = env_alloc(allocator, 30 * MIB, NULL);
    int local = 0;

    assert_error(xseg_pin(NULL, ptr, 1), ARGUMENT, "NULL");
    assert_error(xseg_pin(allocator, NULL, 1), ARGUMENT, "NULL");
    assert_error(xseg_pin(allocator, ptr, 0), ARGUMENT, "bytes is 0");
    assert_error(xseg_pin(allocator, ptr, SIZE_MAX), ARGUMENT, "exceeds the address space");
    assert_error(xseg_pin(allocator, &local, 1), NOT_ALLOCATED, "not in memory");
    assert_error(xseg_pin(allocator, ptr + 1, 30 * MIB), ARGUMENT, "size exceeds the block");
    assert_error(xseg_pin(allocator, ptr + 31 * MIB, 1), NOT_ALLOCATED,
                 "not in an allocated block");
    assert_error(xseg_unpin(allocator, ptr, 1), ARGUMENT, "pinned");
    assert_error(xseg_unpin(allocator, &local, 1), NOT_ALLOCATED, "not in memory");
    assert_error(xseg_unpin(allocator, ptr, (size_t)1 << 46), ARGUMENT, "segment");
    /* A part of the range is pinned, so the call fails and changes nothing. */
    assert_ok(xseg_pin(allocator, ptr, MIB));
    assert_error(xseg_unpin(allocator, ptr, 3 * MIB), ARGUMENT, "pinned");
    assert_ok(xseg_unpin(allocator, ptr, MIB));
    env_free(allocator, ptr);
}

/* --- Descriptors of mapped memory: importers, pins and errors. --- */

#define EXPANDABLE "expandable_segments:True,rdma:True"

/* Expect that the simulator can register a range of a descriptor. */
static void expect_registrable(int fd, uint64_t offset, uint64_t bytes)
{
    uint64_t id = 0;

    assert_ok(xseg_sim_register_descriptor(fd, offset, bytes, &id));
    assert_ok(xseg_sim_unregister(id));
}

/* Expect that xseg_dmabuf_open() fails, and that it does not change its results. */
static void expect_dmabuf_error(struct xseg_allocator *allocator, const void *address, size_t bytes,
                                xseg_status status, const char *words)
{
    uint64_t offset = 77;
    int fd = 77;

    env_expect_error(xseg_dmabuf_open(allocator, address, bytes, 0, &fd, &offset), status, words);
    assert_int_equal(fd, 77);
    assert_int_equal(offset, 77);
}

TEST_EACH(a_range_of_many_pages_has_one_descriptor, env_open(config), EXPANDABLE,
          "expandable_segments:False")
{
    const size_t host_page = (size_t)sysconf(_SC_PAGESIZE);
    char *block = env_alloc(allocator, 214 * MIB, NULL);
    uint64_t offset = 7;
    int fd = -1;

    assert_ok(xseg_dmabuf_open(allocator, block, 214 * MIB, 0, &fd, &offset));
    assert_int_equal(offset, 0);
    assert_int_equal(fcntl(fd, F_GETFD), FD_CLOEXEC);
    expect_registrable(fd, 0, 214 * MIB);
    assert_int_equal(close(fd), 0);
    /* A descriptor begins at a host page, so a range within a host page has an offset. */
    assert_ok(xseg_dmabuf_open(allocator, block + 512 + host_page, 50 * MIB, 0, &fd, &offset));
    assert_int_equal(offset, 512);
    expect_registrable(fd, offset, 50 * MIB);
    assert_int_equal(close(fd), 0);
    env_free(allocator, block);
}

TEST_ON(pinned_descriptor_keeps_pages_until_its_close, env_open(EXPANDABLE))
{
    char *block = env_alloc(allocator, 40 * MIB, NULL);
    uint64_t offset = 0;
    int fd = -1;

    assert_ok(xseg_dmabuf_open(allocator, block, 40 * MIB, XSEG_DMABUF_PIN, &fd, &offset));
    env_free(allocator, block);
    env_empty_cache(allocator);
    uint64_t reserved = env_reserved(allocator);
    assert_int_equal(reserved, 40 * MIB);
    expect_registrable(fd, 0, 40 * MIB);
    assert_error(xseg_close(allocator), BUSY, "pinned");
    assert_ok(xseg_dmabuf_close(allocator, fd));
    assert_int_equal(fcntl(fd, F_GETFD), -1);
    assert_error(xseg_dmabuf_close(allocator, fd), ARGUMENT,
                 "fd is not a pinned descriptor of xseg_dmabuf_open(),");
    env_empty_cache(allocator);
    reserved = env_reserved(allocator);
    assert_int_equal(reserved, 0);
}

TEST_ON(invalid_input_is_rejected_with_its_page, env_open(EXPANDABLE))
{
    char *block = env_alloc(allocator, 40 * MIB, NULL), host_memory[64], words[64];
    uint64_t offset = 0;
    int fd = -1;

    expect_dmabuf_error(allocator, NULL, 1, XSEG_ERR_ARGUMENT, "NULL");
    expect_dmabuf_error(allocator, block, 0, XSEG_ERR_ARGUMENT, "bytes is 0");
    expect_dmabuf_error(allocator, block, 1000000 * GIB, XSEG_ERR_ARGUMENT,
                        "size exceeds the segment");
    expect_dmabuf_error(allocator, host_memory, sizeof(host_memory), XSEG_ERR_NOT_ALLOCATED,
                        "not in memory of this allocator");
    (void)snprintf(words, sizeof(words), "address is not mapped, %p", (void *)(block + 40 * MIB));
    expect_dmabuf_error(allocator, block, 50 * MIB, XSEG_ERR_NOT_ALLOCATED, words);
    assert_error(xseg_dmabuf_open(allocator, block, 1, 8, &fd, &offset), ARGUMENT,
                 "unknown flags, 0x8");
    assert_error(xseg_dmabuf_open(allocator, block, 1, 0, NULL, &offset), ARGUMENT, "fd is NULL");
    /* The simulated driver does not map memory over PCIe. */
    assert_error(xseg_dmabuf_open(allocator, block, MIB, XSEG_DMABUF_PCIE, &fd, &offset),
                 UNSUPPORTED, "cuMemGetHandleForAddressRange");
    struct xseg_pool *pool = env_pool(allocator);
    char *paused = env_alloc_in(allocator, pool, 40 * MIB, NULL);
    assert_ok(xseg_pool_pause(pool, XSEG_KEEP_NOTHING, NULL));
    expect_dmabuf_error(allocator, paused, MIB, XSEG_ERR_PAUSED, "paused");
    assert_ok(xseg_pool_resume(pool));
    env_free(allocator, paused, block);
}

TEST(memory_without_rdma_is_rejected_with_the_reason)
{
    struct xseg_allocator *allocator = env_open("expandable_segments:True");
    void *block = env_alloc(allocator, 40 * MIB, NULL);

    expect_dmabuf_error(allocator, block, MIB, XSEG_ERR_UNSUPPORTED,
                        "page was created without rdma");
    env_free(allocator, block);
    env_close(allocator);
    allocator = env_open_sim(EXPANDABLE, .rdma = XSEG_SIM_RDMA_CREATE_FAILS);
    block = env_alloc(allocator, 40 * MIB, NULL);
    expect_dmabuf_error(allocator, block, MIB, XSEG_ERR_UNSUPPORTED,
                        "rdma does not work on this device");
    env_free(allocator, block);
    env_close(allocator);
    allocator = env_open_sim(EXPANDABLE, .without_dma_buf = true);
    block = env_alloc(allocator, 4 * MIB, NULL);
    expect_dmabuf_error(allocator, block, MIB, XSEG_ERR_UNSUPPORTED,
                        "cuMemGetHandleForAddressRange");
    env_free(allocator, block);
    env_close(allocator);
}

/* --- Two processes. --- */

/* After a command: open and register two descriptors, one of which pins, answer, and wait to be killed. */
static void hold_descriptors(int socket, const struct xseg_sim_settings *settings)
{
    struct xseg_allocator *allocator = NULL;
    void *block = NULL;
    uint64_t offset, id;
    int fd[2];
    char command;

    if (read(socket, &command, 1) != 1 || xseg_sim_reset(settings) != XSEG_OK ||
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
    (void)read(socket, &command, 1); /* until the test ends, if it is not killed */
    _exit(4);
}

TEST(killed_process_leaves_no_descriptors)
{
    struct xseg_sim_settings settings = {sizeof(settings), .memory_bytes = 1 * GIB};
    struct process process = {0};
    struct xseg_allocator *allocator = NULL;
    int wait_status = 0;

    if (!process_start(&process, &settings, hold_descriptors))
        return;
    assert_int_equal(write(process.socket, "g", 1), 1);
    assert_true(process_responds_yes(&process));
    /* The other process has 100 of the 1024 MiB until it is killed. */
    assert_ok(env_try_open(NULL, &allocator));
    assert_int_equal(env_try_alloc(allocator, 1000 * MIB, NULL), XSEG_ERR_NO_MEMORY);
    assert_int_equal(kill(process.pid, SIGKILL), 0);
    assert_int_equal(waitpid(process.pid, &wait_status, 0), process.pid);
    assert_true(WIFSIGNALED(wait_status));
    void *block = env_alloc(allocator, 1000 * MIB, NULL);
    (void)close(process.socket);
    assert_ok(xseg_free(allocator, block));
    assert_ok(xseg_close(allocator));
    settings.shared = NULL;
    assert_ok(xseg_sim_reset(&settings));
}

TEST_ON(forked_child_inherits_descriptors_and_its_calls_fail, env_open(EXPANDABLE))
{
    char *block = env_alloc(allocator, 40 * MIB, NULL);
    uint64_t offset = 0;
    int fd = -1, rejected_fd = -1;

    assert_ok(xseg_dmabuf_open(allocator, block, 40 * MIB, XSEG_DMABUF_PIN, &fd, &offset));
    const pid_t child = fork();
    if (child == 0)
        _exit(fcntl(fd, F_GETFD) == FD_CLOEXEC &&
                      xseg_dmabuf_open(allocator, block, MIB, 0, &rejected_fd, &offset) ==
                          XSEG_ERR_FORKED &&
                      xseg_dmabuf_close(allocator, fd) == XSEG_ERR_FORKED
                  ? 0
                  : 1);
    assert_int_equal(env_wait(child), 0);
    env_free(allocator, block);
    assert_int_equal(env_reserved_without_cache(allocator), 40 * MIB);
    assert_ok(xseg_dmabuf_close(allocator, fd));
    assert_int_equal(env_reserved_without_cache(allocator), 0);
}
