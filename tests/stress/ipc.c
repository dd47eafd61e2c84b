/* SPDX-License-Identifier: MIT */
/*
 * Legacy IPC of expandable memory through libxseg-ipc.so: several processes run the calls that inference and training
 * engines make, and send each other 64 bytes and an offset.
 *
 *   custom all-reduce   allocate, capture a graph, query the range start, get a handle, exchange, open, write into the
 *                       memory of all others, close and free in either order; one process may be killed
 *   weight sync         a trainer exports its tensors each round; a sampler opens, reads and closes them
 */
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/child.h"
#include "tests/support/env.h"
#include "tests/support/runtime.h"
#include "tests/support/sim_shared.h"
#include "xseg/ipc.h"

int cuInit(unsigned flags);
int cuPointerGetAttribute(void *data, int attribute, unsigned long long ptr);
int cuIpcGetMemHandle(struct runtime_ipc_handle *handle, unsigned long long address);
int cuIpcOpenMemHandle_v2(unsigned long long *out, struct runtime_ipc_handle handle,
                          unsigned flags);
int cuIpcCloseMemHandle(unsigned long long address);
int cuDevicePrimaryCtxRelease_v2(int device);

#define RANGE_START_ADDR 11 /* CU_POINTER_ATTRIBUTE_RANGE_START_ADDR */
#define LAZY_PEER_ACCESS 1u
#define RANKS_MAX        8
#define BUFFER           (4 * MIB)
#define ROUNDS           1000

enum { INVALID_VALUE = 1, MAP_FAILED_ERROR = 205, INVALID_HANDLE = 400, NOT_SUPPORTED = 801 };

static struct xseg_allocator *allocator;

static const struct xseg_ipc_functions functions = {sizeof(functions),   xseg_block_query,
                                                    xseg_export_segment, xseg_import,
                                                    xseg_import_close,   xseg_error_message};

/* Open an allocator in a process whose runtime has retained the device's context. */
static void open_attached(const char *config)
{
    assert_int_equal(cuInit(0),
                     0); /* a reset of the simulator discards the initialization by the runtime */
    assert_int_equal(cudaDeviceSynchronize(), 0);
    assert_ok(env_try_open(config, &allocator));
    assert_true(xseg_ipc_attach(allocator, &functions));
}

static void close_attached(void)
{
    xseg_ipc_detach();
    assert_int_equal(cuDevicePrimaryCtxRelease_v2(0), 0);
    env_close_with_streams(allocator);
    allocator = NULL;
}

/* A message between processes. */
struct buffer_address {
    struct runtime_ipc_handle handle;
    uint64_t offset; /* from the base of the handle */
};

/* Get the handle of the range that contains an address, as vLLM's custom all-reduce does. */
static struct buffer_address get_address(const void *ptr)
{
    struct buffer_address address;
    void *base = NULL;

    assert_int_equal(cuPointerGetAttribute(&base, RANGE_START_ADDR, (uintptr_t)ptr), 0);
    assert_int_equal(cudaIpcGetMemHandle(&address.handle, base), 0);
    address.offset = (uint64_t)((const char *)ptr - (char *)base);
    return address;
}

static volatile unsigned char *open_address(const struct buffer_address *address, void **base)
{
    assert_int_equal(cudaIpcOpenMemHandle(base, address->handle, LAZY_PEER_ACCESS), 0);
    return (volatile unsigned char *)*base + address->offset;
}

static bool read_all(int socket, void *data, size_t bytes)
{
    return recv(socket, data, bytes, MSG_WAITALL) == (ssize_t)bytes;
}

static bool write_all(int socket, const void *data, size_t bytes)
{
    return send(socket, data, bytes, MSG_NOSIGNAL) == (ssize_t)bytes;
}

/* --- Ranks, which wait at barriers of their parent. --- */

static const struct xseg_sim_settings sim_settings = {sizeof(struct xseg_sim_settings),
                                                      .memory_bytes = 2 * GIB, .real_bytes = true};

struct group {
    unsigned ranks;
    bool kills_last_rank; /* between the exchange and the close */
    int socket[RANKS_MAX];
    pid_t process[RANKS_MAX];
};

/* Send an address to the parent, and receive the addresses of all ranks. */
static void exchange(int socket, const struct buffer_address *own, struct buffer_address *all,
                     unsigned ranks)
{
    assert_true(write_all(socket, own, sizeof(*own)));
    assert_true(read_all(socket, all, ranks * sizeof(*all)));
}

static void wait_at_barrier(int socket)
{
    char byte = 0;

    assert_true(write_all(socket, &byte, 1) && read_all(socket, &byte, 1));
}

/* Capture a graph that uses a buffer; afterwards the buffer is cached memory of the graph's pool. */
static unsigned char *capture_buffer(struct xseg_pool *pool, xseg_stream stream,
                                     struct CUgraph_st **graph)
{
    env_capture_begin(pool, stream);
    unsigned char *buffer = env_alloc(allocator, BUFFER, stream);
    env_launch(allocator, stream, buffer);
    env_free(allocator, buffer);
    *graph = env_capture_end_graph(pool, stream);
    return buffer;
}

static void run_rank(const struct group *group, unsigned rank, int socket)
{
    struct buffer_address all[RANKS_MAX];
    void *base[RANKS_MAX] = {NULL};
    volatile unsigned char *peer[RANKS_MAX];
    struct CUgraph_st *graph;
    const bool frees_first = rank % 2 == 0;

    /* The offset of the buffer from the base of the range differs between the ranks. */
    open_attached("exportable:True");
    const xseg_stream stream = env_stream();
    struct xseg_pool *pool = env_pool_of(allocator, .exportable = true);
    void *preceding_block = env_alloc_in(allocator, pool, (rank + 1) * BUFFER, NULL);
    unsigned char *captured = capture_buffer(pool, stream, &graph);
    volatile unsigned char *buffer = captured;
    struct buffer_address own = get_address(captured);
    exchange(socket, &own, all, group->ranks);
    for (unsigned i = 0; i < group->ranks; i++)
        peer[i] = i == rank ? buffer : open_address(&all[i], &base[i]);

    /* Each rank writes one byte into the buffers of all ranks. */
    for (unsigned i = 0; i < group->ranks; i++)
        peer[i][rank] = (unsigned char)(rank + 1);
    wait_at_barrier(socket);
    for (unsigned i = 0; i < group->ranks; i++)
        assert_int_equal(buffer[i], i + 1);
    wait_at_barrier(socket);
    if (group->kills_last_rank && rank == group->ranks - 1)
        (void)raise(SIGKILL);
    wait_at_barrier(socket);
    /* The memory of a killed process stays valid as long as it is open. */
    for (unsigned i = 0; i < group->ranks; i++)
        assert_int_equal(peer[i][rank], rank + 1);

    /* Free the own memory before or after the others are closed. */
    if (frees_first) {
        env_graph_destroy(graph);
        env_free(allocator, preceding_block);
        assert_ok(xseg_pool_release(pool));
        env_empty_cache(allocator);
    }
    for (unsigned i = 0; i < group->ranks; i++)
        assert_int_equal(i == rank ? 0 : cudaIpcCloseMemHandle(base[i]), 0);
    if (!frees_first) {
        env_graph_destroy(graph);
        env_free(allocator, preceding_block);
        assert_ok(xseg_pool_release(pool));
    }
    wait_at_barrier(socket);
    close_attached();
    _exit(0);
}

/* Serve a barrier of the first `ranks` ranks: receive `bytes` from each of them; then send one byte, or all received
 * addresses, to each of them. */
static void serve_barrier(const struct group *group, unsigned ranks, size_t bytes)
{
    struct buffer_address all[RANKS_MAX];

    for (unsigned i = 0; i < ranks; i++)
        assert_true(read_all(group->socket[i], &all[i], bytes));
    for (unsigned i = 0; i < ranks; i++)
        assert_true(write_all(group->socket[i], all, bytes == 1 ? 1 : ranks * sizeof(all[0])));
}

static void run_group(unsigned ranks, bool kills_last_rank)
{
    struct group group = {.ranks = ranks, .kills_last_rank = kills_last_rank};
    struct xseg_sim_settings settings = sim_settings;
    char name[64];

    if (!ENV_HAS_BYTES || !sim_shared_name(name, sizeof(name)))
        return;
    settings.shared = name;
    for (unsigned i = 0; i < ranks; i++) {
        group.process[i] = child_fork_with_socket(&group.socket[i]);
        if (group.process[i] == 0) {
            (void)alarm(300);
            if (xseg_sim_reset(&settings) != XSEG_OK)
                _exit(1);
            run_rank(&group, i, group.socket[i]);
        }
    }
    serve_barrier(&group, ranks, sizeof(struct buffer_address));
    serve_barrier(&group, ranks, 1);
    serve_barrier(&group, ranks, 1);

    /* One barrier after the kill, and one after the last close. */
    const unsigned remaining = kills_last_rank ? ranks - 1 : ranks;
    if (kills_last_rank) {
        const int status = env_wait(group.process[remaining]);
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    }
    serve_barrier(&group, remaining, 1);
    serve_barrier(&group, remaining, 1);
    for (unsigned i = 0; i < remaining; i++)
        assert_int_equal(env_wait(group.process[i]), 0);
    for (unsigned i = 0; i < ranks; i++)
        (void)close(group.socket[i]);
}

TEST(two_ranks_write_into_the_buffers_of_each_other)
{
    run_group(2, false);
}

TEST(eight_ranks_write_into_the_buffers_of_each_other)
{
    run_group(RANKS_MAX, false);
}

TEST(killed_rank_leaves_the_others_intact)
{
    run_group(2, true);
    run_group(RANKS_MAX, true);
}

/* --- Memory of one GPU that is opened on another GPU. --- */

/* Open memory of GPU 0 on GPU 1, and access it by work of GPU 1. */
static void run_on_other_gpu(int socket, bool has_peers)
{
    struct buffer_address address;
    void *base = NULL;
    char byte = 0;

    open_attached(NULL);
    assert_int_equal(cudaSetDevice(1), 0);
    assert_int_equal(cudaDeviceSynchronize(), 0);
    assert_true(read_all(socket, &address, sizeof(address)));
    if (has_peers) {
        const xseg_stream stream = env_stream_on(1);
        volatile unsigned char *buffer = open_address(&address, &base);

        env_context_push(1);
        assert_ok(xseg_sim_launch_on(stream, UINT64_MAX, (uintptr_t)buffer, BUFFER));
        env_context_pop(1);
        buffer[0] = 99;
        /* The close waits for the work of GPU 1, although GPU 0 is current. */
        assert_int_equal(cudaSetDevice(0), 0);
        assert_int_equal(cudaIpcCloseMemHandle(base), 0);
        env_stream_destroy_on(1, stream);
    } else {
        assert_int_equal(cudaIpcOpenMemHandle(&base, address.handle, LAZY_PEER_ACCESS),
                         MAP_FAILED_ERROR);
    }
    assert_true(write_all(socket, &byte, 1));
    assert_int_equal(cuDevicePrimaryCtxRelease_v2(1), 0);
    close_attached();
    _exit(0);
}

static void export_to_other_gpu(int socket, bool has_peers)
{
    char byte = 0;

    open_attached("exportable:True");
    void *block = env_alloc(allocator, BUFFER, NULL);
    const struct buffer_address address = get_address(block);
    assert_true(write_all(socket, &address, sizeof(address)));
    assert_true(read_all(socket, &byte, 1));
    assert_true(!has_peers || *(volatile unsigned char *)block == 99);
    env_free(allocator, block);
    close_attached();
    _exit(0);
}

/* Both sides are new processes: a child of a process that has used the runtime cannot use it. */
static void share_with_other_gpu(bool has_peers)
{
    struct xseg_sim_settings settings = sim_settings;
    char name[64];
    pid_t child[2];
    int ends[2];

    if (!ENV_HAS_BYTES || !sim_shared_name(name, sizeof(name)))
        return;
    settings.shared = name;
    settings.devices = 2;
    settings.without_peers = !has_peers;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    for (unsigned i = 0; i < 2; i++) {
        child[i] = fork();
        assert_true(child[i] >= 0);
        if (child[i] == 0) {
            (void)alarm(300);
            assert_ok(xseg_sim_reset(&settings));
            (i == 0 ? export_to_other_gpu : run_on_other_gpu)(ends[i], has_peers);
        }
    }
    for (unsigned i = 0; i < 2; i++) {
        assert_int_equal(env_wait(child[i]), 0);
        (void)close(ends[i]);
    }
}

TEST(memory_of_another_gpu_is_opened)
{
    share_with_other_gpu(true);
}

TEST(memory_of_a_gpu_without_a_connection_is_not_opened)
{
    share_with_other_gpu(false);
}

/* --- Weight sync. --- */

enum { TENSORS = 4 };

/* Open all tensors, check their first bytes, and close them. */
static void run_sampler(int socket)
{
    struct buffer_address all[TENSORS];
    unsigned char round = 0;
    unsigned files = 0;

    open_attached(NULL);
    env_free(allocator, env_alloc(allocator, BUFFER, NULL));
    while (read_all(socket, &round, 1)) {
        void *base[TENSORS];

        assert_true(read_all(socket, all, sizeof(all)));
        for (unsigned i = 0; i < TENSORS; i++)
            assert_int_equal(*open_address(&all[i], &base[i]), (unsigned char)(round + i));
        for (unsigned i = 0; i < TENSORS; i++)
            assert_int_equal(cudaIpcCloseMemHandle(base[i]), 0);
        files = files == 0 ? env_open_fds() : files;
        assert_int_equal(env_open_fds(), files);
        assert_true(write_all(socket, &round, 1));
    }
    close_attached();
    _exit(0);
}

TEST(weight_sync_of_many_rounds_has_no_leak)
{
    struct xseg_sim_settings settings = sim_settings;
    struct buffer_address all[TENSORS];
    uint64_t reserved = 0;
    char name[64];
    int socket;

    if (!ENV_HAS_BYTES || !sim_shared_name(name, sizeof(name)))
        return;
    settings.shared = name;
    const pid_t sampler = child_fork_with_socket(&socket);
    assert_ok(xseg_sim_reset(&settings));
    if (sampler == 0)
        run_sampler(socket);
    open_attached("exportable:True");
    for (unsigned round = 0; round < ROUNDS; round++) {
        unsigned char *tensor[TENSORS], byte = (unsigned char)round;

        /* A training step with activations of a varying size, so that other memory is cached in each round. */
        void *activations = env_alloc(allocator, (1 + round % 5) * 20 * MIB, NULL);
        for (unsigned i = 0; i < TENSORS; i++) {
            tensor[i] = env_alloc(allocator, (i + 1) * BUFFER, NULL);
            *(volatile unsigned char *)tensor[i] = (unsigned char)(round + i);
            all[i] = get_address(tensor[i]);
        }
        assert_true(write_all(socket, &byte, 1) && write_all(socket, all, sizeof(all)));
        assert_true(read_all(socket, &byte, 1));
        env_free(allocator, activations);
        for (unsigned i = 0; i < TENSORS; i++)
            env_free(allocator, tensor[i]);
        if (round % 10 == 0)
            env_empty_cache(allocator);
        /* The five sizes of activations have occurred: reserved memory must not grow any more. */
        if (round == 5)
            reserved = env_reserved(allocator);
        assert_true(round <= 5 || env_reserved(allocator) <= reserved);
    }
    (void)close(socket);
    assert_int_equal(env_wait(sampler), 0);
    close_attached();
    settings = sim_settings;
    assert_ok(xseg_sim_reset(&settings));
}

/* --- Calls of one process. --- */

static void open_in_one_process(const char *config)
{
    assert_ok(xseg_sim_reset(&sim_settings));
    open_attached(config);
}

TEST(memory_of_the_runtime_is_passed_to_the_runtime)
{
    struct runtime_ipc_handle handle;
    void *ptr = NULL, *out = NULL;

    open_in_one_process("exportable:True");
    assert_int_equal(cudaMalloc(&ptr, BUFFER), 0);
    assert_int_equal(cudaIpcGetMemHandle(&handle, ptr), 0);
    assert_memory_not_equal(handle.bytes, "xseg", 4);
    /* The simulator, as CUDA, does not open a handle of the same process. */
    assert_int_not_equal(cudaIpcOpenMemHandle(&out, handle, LAZY_PEER_ACCESS), 0);
    assert_int_equal(cudaIpcCloseMemHandle(ptr), INVALID_VALUE);
    assert_int_equal(cudaFree(ptr), 0);
    close_attached();
    /* Classic segments of xseg are memory of the driver, too. */
    open_in_one_process("expandable_segments:False");
    void *block = env_alloc(allocator, BUFFER, NULL);
    assert_int_equal(cuIpcGetMemHandle(&handle, (uintptr_t)block), 0);
    assert_memory_not_equal(handle.bytes, "xseg", 4);
    env_free(allocator, block);
    close_attached();
}

TEST(driver_functions_serve_expandable_memory)
{
    struct runtime_ipc_handle handle, again;
    unsigned long long first = 0, second = 0;

    open_in_one_process("exportable:True");
    unsigned char *block = env_alloc(allocator, BUFFER, NULL);
    assert_int_equal(cuIpcGetMemHandle(&handle, (uintptr_t)block), 0);
    assert_int_equal(cuIpcGetMemHandle(&again, (uintptr_t)block), 0);
    assert_memory_equal(handle.bytes, again.bytes, sizeof(handle.bytes));
    assert_int_equal(cuIpcOpenMemHandle_v2(&first, handle, LAZY_PEER_ACCESS), 0);
    assert_int_equal(cuIpcOpenMemHandle_v2(&second, handle, LAZY_PEER_ACCESS), 0);
    assert_true(first == second && first != 0);
    assert_int_equal(cuIpcCloseMemHandle(first), 0);
    assert_int_equal(cuIpcCloseMemHandle(first), 0);
    assert_int_equal(cuIpcCloseMemHandle(first), INVALID_VALUE);
    env_free(allocator, block);
    close_attached();
}

TEST(invalid_handles_return_errors_of_cuda)
{
    struct runtime_ipc_handle handle, other;
    void *out = NULL;

    open_in_one_process("exportable:True");
    struct xseg_pool *pool = env_pool_of(allocator, .exportable = true);
    void *block = env_alloc_in(allocator, pool, BUFFER, NULL);
    assert_int_equal(cudaIpcGetMemHandle(NULL, block), INVALID_VALUE);
    assert_int_equal(cudaIpcGetMemHandle(&handle, block), 0);
    assert_int_equal(cudaIpcOpenMemHandle(NULL, handle, LAZY_PEER_ACCESS), INVALID_VALUE);
    assert_int_equal(cudaIpcOpenMemHandle(&out, handle, 0), INVALID_VALUE);
    other = handle;
    other.bytes[5] ^= 1; /* of another version */
    assert_int_equal(cudaIpcOpenMemHandle(&out, other, LAZY_PEER_ACCESS), INVALID_HANDLE);
    other = handle;
    memset(other.bytes + 32, 0, 32); /* truncated */
    assert_int_equal(cudaIpcOpenMemHandle(&out, other, LAZY_PEER_ACCESS), INVALID_HANDLE);
    other = handle;
    other.bytes[8] ^= 1; /* of an exporter that does not exist */
    assert_int_equal(cudaIpcOpenMemHandle(&out, other, LAZY_PEER_ACCESS), MAP_FAILED_ERROR);
    assert_ok(xseg_pool_pause(pool, XSEG_KEEP_NOTHING, NULL));
    assert_int_equal(cudaIpcGetMemHandle(&other, block), MAP_FAILED_ERROR);
    assert_int_equal(cudaIpcOpenMemHandle(&out, handle, LAZY_PEER_ACCESS), MAP_FAILED_ERROR);
    assert_null(out);
    assert_ok(xseg_pool_resume(pool));
    env_free(allocator, block);
    assert_ok(xseg_pool_release(pool));
    close_attached();
    /* Pages without handles, and no allocator. */
    open_in_one_process(NULL);
    block = env_alloc(allocator, BUFFER, NULL);
    assert_int_equal(cudaIpcGetMemHandle(&other, block), NOT_SUPPORTED);
    env_free(allocator, block);
    close_attached();
    assert_int_equal(cudaIpcOpenMemHandle(&out, handle, LAZY_PEER_ACCESS), INVALID_HANDLE);
}

TEST(one_allocator_is_attached_at_a_time)
{
    struct xseg_ipc_functions other = functions;

    open_in_one_process(NULL);
    assert_false(xseg_ipc_attach(allocator, &functions));
    xseg_ipc_detach();
    other.struct_size--;
    assert_false(xseg_ipc_attach(allocator, &other));
    assert_true(xseg_ipc_attach(allocator, &functions));
    close_attached();
}
