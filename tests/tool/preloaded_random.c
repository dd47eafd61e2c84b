/* SPDX-License-Identifier: MIT */
/*
 * Random calls of a program without xseg, compared with the documented behavior of CUDA: with libxseg-preload.so, and
 * without it, to verify the rules with the original runtime.
 *
 * preloaded-random SEED STEPS; prints the step and the violated rule of a failure, and exits with 1.  Requires two
 * simulated devices with memory contents (XSEG_SIM_DEVICES=2 XSEG_SIM_BYTES=1).
 *
 * The rules:
 *   - An allocated block overlaps no other block, and no memory that unfinished work uses, unless the block is allocated on
 *     the stream of that work.  Its contents do not change until it is freed.
 *   - cudaFree and cuMemFree wait for the device of the block, whichever device is current, and do not change the latter.
 *   - Each function can free a block, once; no function can free it after the reset of its device.
 *   - The sum of free memory and allocated blocks is at most the total.
 *   - cudaGetLastError returns the last result of the runtime.  A failed free does not change the block.
 */

#include "tests/support/rng.h"
#include "tests/tool/preloaded.h"

#define BLOCKS       48u
#define STREAMS      6u /* of the program; the per-thread default stream of each device follows */
#define DEVICES      2u
#define WORK_COUNT   256u
#define NONE         (-1)
#define ANY_STREAM   (-2) /* blocks of every stream */
#define DESTROYED    (-3) /* blocks and work of a destroyed stream */
#define FREED_COUNT  16u

#define PER_THREAD ((struct CUstream_st *)(uintptr_t)2) /* cudaStreamPerThread */

struct block {
    char *ptr; /* NULL: none */
    uint64_t bytes, tag;
    int device, stream; /* the stream that orders the block, or ANY_STREAM, DESTROYED */
    bool is_driver;     /* the simulated driver may have allocated the block */
};

struct work {
    uint64_t base, bytes; /* bytes 0: none */
    int device, stream;
};

static uint64_t rng_state;
static unsigned step;
static struct block blocks[BLOCKS];
static struct work pending[WORK_COUNT];
static struct CUstream_st *streams[STREAMS + DEVICES]; /* NULL: none */
static int device_of[STREAMS + DEVICES];
static uint64_t freed_addresses[FREED_COUNT]; /* the latest ones, a ring buffer */
static unsigned freed_count;
static uint64_t next_tag = 1;

/* A random number less than the limit. */
static uint64_t draw(uint64_t limit)
{
    return rng_next(&rng_state) % limit;
}

#define EXPECT(cond, ...)                               \
    do {                                                \
        if (!(cond)) {                                  \
            (void)printf("step %u: %s: ", step, #cond); \
            (void)printf(__VA_ARGS__);                  \
            (void)printf("\n");                         \
            (void)fflush(stdout);                       \
            exit(1);                                    \
        }                                               \
    } while (0)

/* --- The model. --- */

static void set_device(int device)
{
    EXPECT(cudaSetDevice(device) == 0, "device %d", device);
}

static struct CUstream_st *handle_of(int stream)
{
    return stream >= (int)STREAMS ? PER_THREAD : streams[stream];
}

/* Query whether a stream has unfinished work.  Makes the device of the stream current. */
static bool is_busy(int stream)
{
    set_device(device_of[stream]);
    const int result = cudaStreamQuery(handle_of(stream));
    /* 600: cudaErrorNotReady. */
    EXPECT(result == 0 || result == 600, "cudaStreamQuery: %d", result);
    return result != 0;
}

/* Mark the work of a stream or of a device as completed; NONE: no stream or no device. */
static void complete_work(int stream, int device)
{
    for (unsigned i = 0; i < WORK_COUNT; i++)
        if ((stream != NONE && pending[i].stream == stream) ||
            (device != NONE && pending[i].device == device))
            pending[i].bytes = 0;
}

static void update_work(void)
{
    for (int stream = 0; stream < (int)(STREAMS + DEVICES); stream++)
        if (streams[stream] && !is_busy(stream))
            complete_work(stream, NONE);
}

/* Whether a device has unfinished work of a stream, or of any stream (NONE). */
static bool has_work(int device, int stream)
{
    for (unsigned i = 0; i < WORK_COUNT; i++)
        if (pending[i].bytes != 0 && pending[i].device == device &&
            (stream == NONE || pending[i].stream == stream))
            return true;
    return false;
}

static bool overlaps(uint64_t a, uint64_t a_bytes, uint64_t b, uint64_t b_bytes)
{
    return a < b + b_bytes && b < a + a_bytes;
}

static uint64_t base_of(const struct block *block)
{
    return (uint64_t)(uintptr_t)block->ptr;
}

/* Write the contents of a block: a tag at its start and its end. */
static void write_tags(struct block *block)
{
    block->tag = next_tag++;
    memcpy(block->ptr, &block->tag, sizeof(block->tag));
    memcpy(block->ptr + block->bytes - sizeof(block->tag), &block->tag, sizeof(block->tag));
}

static void check_tags(const struct block *block)
{
    uint64_t first, last;

    memcpy(&first, block->ptr, sizeof(first));
    memcpy(&last, block->ptr + block->bytes - sizeof(last), sizeof(last));
    EXPECT(first == block->tag && last == block->tag, "block %p of device %d", (void *)block->ptr,
           block->device);
}

/* Expect that cudaGetLastError returns the result of the last call. */
static void expect_last_error(int result, const char *call)
{
    const int last = cudaGetLastError();

    EXPECT(result == last, "%s: %d, last error %d", call, result, last);
}

/* --- Steps. --- */

/* The injected fault, which is active between set_fault() and clear_fault(). */
static struct {
    bool is_set;
    const char *call;
    uint64_t nth;
    int error;
} fault;

static void set_fault(void)
{
    if (fault.is_set)
        EXPECT(xseg_sim_fail(fault.call, fault.nth, fault.error) == XSEG_OK, "%s", fault.call);
}

static void clear_fault(void)
{
    if (fault.is_set)
        EXPECT(xseg_sim_fail(NULL, 0, 0) == XSEG_OK, "no fault");
}

static struct block *find_block(bool is_allocated)
{
    const unsigned start = (unsigned)draw(BLOCKS);

    for (unsigned i = 0; i < BLOCKS; i++) {
        struct block *block = &blocks[(start + i) % BLOCKS];

        if ((block->ptr != NULL) == is_allocated)
            return block;
    }
    return NULL;
}

static int draw_stream(void)
{
    int stream;

    do
        stream = (int)draw(STREAMS + DEVICES);
    while (!streams[stream]);
    return stream;
}

static void check_new_block(const struct block *block)
{
    int device = -1;

    EXPECT(block->ptr != NULL, "no address");
    /* 9: CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL. */
    EXPECT(cuPointerGetAttribute(&device, 9, base_of(block)) == 0 && device == block->device,
           "block of device %d on device %d", block->device, device);
    update_work();
    for (unsigned i = 0; i < BLOCKS; i++)
        EXPECT(&blocks[i] == block || !blocks[i].ptr ||
                   !overlaps(base_of(block), block->bytes, base_of(&blocks[i]), blocks[i].bytes),
               "%p is allocated", (void *)block->ptr);
    for (unsigned i = 0; i < WORK_COUNT; i++)
        EXPECT(pending[i].bytes == 0 || pending[i].stream == block->stream ||
                   !overlaps(base_of(block), block->bytes, pending[i].base, pending[i].bytes),
               "%p is used by stream %d, allocated for %d", (void *)block->ptr, pending[i].stream,
               block->stream);
}

static int get_entry_point(const char *name, void *function, size_t bytes)
{
    void *function_address = NULL;
    int status = 0;
    const int result = cudaGetDriverEntryPointByVersion(name, &function_address, 12000, 0, &status);

    memcpy(function, &function_address, bytes);
    return result;
}

static void allocate(void)
{
    static const uint64_t size_limits[] = {4096, 1 << 20, 8 << 20, 64 << 20};
    int (*alloc)(uint64_t *, size_t) = NULL;
    struct block *block = find_block(false);
    const int current = (int)draw(DEVICES), stream = draw_stream();
    uint64_t address = 0;
    const uint64_t calls_before = xseg_sim_calls("cuMemAlloc");
    size_t pitch = 0;
    void *ptr = NULL;
    int result = 0;

    if (!block)
        return;
    set_device(current);
    block->bytes = 16 + draw(size_limits[draw(4)]);
    block->device = current;
    block->stream = ANY_STREAM;
    const uint64_t kind = draw(6);
    if (kind == 2)
        EXPECT(get_entry_point("cuMemAlloc", &alloc, sizeof(alloc)) == 0, "no cuMemAlloc");
    set_fault();
    switch (kind) {
    case 0:
        result = cudaMalloc(&ptr, block->bytes);
        expect_last_error(result, "cudaMalloc");
        break;
    case 1:
        result = cuMemAlloc_v2(&address, block->bytes);
        break;
    case 2:
        result = alloc(&address, block->bytes);
        break;
    case 3: /* a stream handle implies its device, a default stream the current device */
        block->stream = stream < (int)STREAMS ? stream : (int)STREAMS + current;
        block->device = device_of[block->stream];
        result = cudaMallocAsync(&ptr, block->bytes, handle_of(block->stream));
        expect_last_error(result, "cudaMallocAsync");
        break;
    case 4:
        block->stream = (int)STREAMS + current;
        result = cudaMallocAsync_ptsz(&ptr, block->bytes, NULL);
        expect_last_error(result, "cudaMallocAsync_ptsz");
        break;
    default:
        result = cudaMallocPitch(&ptr, &pitch, block->bytes, 1);
        expect_last_error(result, "cudaMallocPitch");
    }
    clear_fault();
    if (result != 0)
        return;
    block->ptr = ptr ? ptr : (char *)(uintptr_t)address;
    block->is_driver = xseg_sim_calls("cuMemAlloc") != calls_before;
    check_new_block(block);
    write_tags(block);
}

/* Whether work of a stream may use a block: it is ordered by this stream, or the work of its ordering stream has completed. */
static bool may_use(const struct block *block, int stream)
{
    if (device_of[stream] != block->device)
        return false;
    return block->stream == ANY_STREAM || block->stream == stream ||
           !has_work(block->device, block->stream);
}

static void launch(void)
{
    const struct block *block = find_block(true);
    const int stream = draw_stream();
    unsigned i = 0;

    update_work();
    while (i < WORK_COUNT && pending[i].bytes != 0)
        i++;
    if (!block || i == WORK_COUNT || !may_use(block, stream))
        return;
    set_device(block->device);
    EXPECT(xseg_sim_launch_on(handle_of(stream), FOREVER, base_of(block), block->bytes) == XSEG_OK,
           "stream %d", stream);
    pending[i] = (struct work){base_of(block), block->bytes, block->device, stream};
}

/* Whether a stream may free a block: no work of another stream uses it. */
static bool may_free(const struct block *block, int stream)
{
    for (unsigned i = 0; i < WORK_COUNT; i++)
        if (pending[i].bytes != 0 && pending[i].stream != stream &&
            overlaps(base_of(block), block->bytes, pending[i].base, pending[i].bytes))
            return false;
    return block->stream == ANY_STREAM || block->stream == stream ||
           !has_work(block->device, block->stream);
}

/* Free an address by a random function; stream: NONE for a synchronous function; *waits: the function waits for the device. */
static int free_by(uint64_t address, int stream, bool *waits)
{
    int (*free_at)(uint64_t) = NULL, (*async)(uint64_t, struct CUstream_st *) = NULL;
    void *const ptr = (void *)(uintptr_t)address;
    int result;

    *waits = stream == NONE;
    (void)symbol_find(RTLD_DEFAULT, "cuMemFreeAsync", &async); /* not in the simulated driver */
    if (stream != NONE && draw(3) == 0 && async) {
        result = async(address, handle_of(stream));
        if (result != 302) /* 302: the symbol does not exist */
            return result;
    }
    if (stream >= (int)STREAMS) {
        result = cudaFreeAsync_ptsz(ptr, NULL);
        expect_last_error(result, "cudaFreeAsync_ptsz");
        return result;
    }
    if (stream != NONE) {
        result = cudaFreeAsync(ptr, handle_of(stream));
        expect_last_error(result, "cudaFreeAsync");
        return result;
    }
    *waits = true;
    if (draw(3) == 0)
        return cuMemFree_v2(address);
    if (draw(3) == 0 && get_entry_point("cuMemFree", &free_at, sizeof(free_at)) == 0)
        return free_at(address);
    (void)cudaGetLastError(); /* clear the error of the lookup */
    result = cudaFree(ptr);
    expect_last_error(result, "cudaFree");
    return result;
}

/* Free a block.  may_fail: an injected error may fail the free, which then does not change the block. */
static void free_block(struct block *block, bool may_fail)
{
    int stream = draw(2) == 0 ? draw_stream() : NONE, current = (int)draw(DEVICES);
    int current_after = -1;
    void *context = NULL, *context_after = NULL;
    bool waits = false;

    update_work();
    /* A default stream belongs to the current device. */
    if (stream >= (int)STREAMS)
        current = device_of[stream];
    if (stream != NONE && !may_free(block, stream))
        stream = NONE;
    check_tags(block);
    /* Unlike a GPU's driver, the simulated driver does not wait in cuMemFree. */
    if (block->is_driver) {
        set_device(block->device);
        EXPECT(cudaDeviceSynchronize() == 0, "device %d", block->device);
        complete_work(NONE, block->device);
    }
    set_device(current);
    EXPECT(cuCtxGetCurrent(&context) == 0, "cuCtxGetCurrent");
    set_fault();
    const int result = free_by(base_of(block), stream, &waits);
    clear_fault();
    EXPECT(cudaGetDevice(&current_after) == 0 && current_after == current, "device %d is current",
           current_after);
    EXPECT(cuCtxGetCurrent(&context_after) == 0 && context_after == context, "another context");
    EXPECT(result == 0 || may_fail, "error %d, stream %d, device %d of %d", result, stream, current,
           block->device);
    if (result != 0) {
        check_tags(block);
        return;
    }
    if (waits) {
        for (int i = 0; i < (int)(STREAMS + DEVICES); i++)
            EXPECT(!streams[i] || device_of[i] != block->device || !is_busy(i),
                   "stream %d has unfinished work", i);
        complete_work(NONE, block->device);
    }
    freed_addresses[freed_count++ % FREED_COUNT] = base_of(block);
    block->ptr = NULL;
}

static void free_invalid_address(void)
{
    const struct block *block = find_block(true);
    uint64_t address = freed_addresses[draw(FREED_COUNT)];
    bool waits;

    if (block && draw(2) == 0)
        address = base_of(block) + 8;
    for (unsigned i = 0; i < BLOCKS; i++)
        if (base_of(&blocks[i]) == address)
            return;
    if (address == 0) /* not an error */
        return;
    set_device((int)draw(DEVICES));
    EXPECT(free_by(address, NONE, &waits) != 0, "%#" PRIx64 " was freed", address);
    /* The original runtime may wait for the device before it rejects the address. */
    update_work();
    for (unsigned i = 0; i < DEVICES; i++)
        if (draw(2) == 0)
            check_tags(block ? block : &blocks[0]);
}

static void create_stream(int stream)
{
    const int device = (int)draw(DEVICES);

    set_device(device);
    EXPECT(cudaStreamCreateWithFlags(&streams[stream], 1) == 0, "stream %d", stream);
    device_of[stream] = device;
}

/* Destroy a stream, possibly with unfinished work, and create another one. */
static void replace_stream(void)
{
    const int stream = (int)draw(STREAMS);
    struct CUstream_st *const handle = streams[stream];

    update_work();
    for (unsigned i = 0; i < WORK_COUNT; i++)
        if (pending[i].stream == stream)
            pending[i].stream = DESTROYED;
    for (unsigned i = 0; i < BLOCKS; i++)
        if (blocks[i].stream == stream)
            blocks[i].stream = DESTROYED;
    set_device((int)draw(DEVICES));
    EXPECT((draw(2) == 0 ? cudaStreamDestroy(handle) : cuStreamDestroy_v2(handle)) == 0,
           "stream %d", stream);
    EXPECT(cudaStreamDestroy(NULL) == 400 && cudaGetLastError() == 400, "the default stream");
    create_stream(stream);
}

static void reset_device(void)
{
    const int device = (int)draw(DEVICES);
    size_t free_bytes = 0, total = 0;

    set_device(device);
    if (draw(2) == 0)
        EXPECT(cudaDeviceReset() == 0, "device %d", device);
    else
        EXPECT(cuDevicePrimaryCtxReset_v2(device) == 0, "device %d", device);
    EXPECT(cudaDeviceReset() == 0, "device %d, again", device);
    complete_work(NONE, device);
    for (unsigned i = 0; i < BLOCKS; i++)
        if (blocks[i].ptr && blocks[i].device == device) {
            freed_addresses[freed_count++ % FREED_COUNT] = base_of(&blocks[i]);
            blocks[i].ptr = NULL;
        }
    EXPECT(cudaMemGetInfo(&free_bytes, &total) == 0 && free_bytes == total,
           "%zu of %zu bytes are free after the reset", free_bytes, total);
    for (int stream = 0; stream < (int)STREAMS; stream++)
        if (device_of[stream] == device)
            create_stream(stream);
}

static void capture(void)
{
    const int stream = (int)draw(STREAMS), mode = draw(2) == 0 ? RELAXED : THREAD_LOCAL;
    struct block *block = find_block(true);
    void *graph = NULL, *ptr = NULL;

    set_device(device_of[stream]);
    EXPECT(cuStreamBeginCapture_v2(streams[stream], mode) == 0, "stream %d", stream);
    const int result = cudaMallocAsync(&ptr, 4096, streams[stream]);
    EXPECT(result != 0, "the runtime of the test does not support memory nodes");
    expect_last_error(result, "cudaMallocAsync in a capture");
    if (block) {
        const int free_result = cudaFreeAsync(block->ptr, streams[stream]);

        EXPECT(free_result != 0, "a block outside the graph was freed");
        expect_last_error(free_result, "cudaFreeAsync in a capture");
        check_tags(block);
    }
    if (block && mode == THREAD_LOCAL) {
        const int free_result = cudaFree(block->ptr);

        EXPECT(free_result != 0 || block->device != device_of[stream],
               "the function waited for the device");
        expect_last_error(free_result, "cudaFree in a capture");
        if (free_result == 0) {
            complete_work(NONE, block->device);
            block->ptr = NULL;
        } else {
            check_tags(block);
        }
    }
    if (cuStreamEndCapture(streams[stream], &graph) == 0)
        EXPECT(cuGraphDestroy(graph) == 0, "the graph");
}

static void call_with_fault(void)
{
    static const char *const calls[] = {"cuMemCreate",   "cuMemMap",         "cuMemSetAccess",
                                        "cuMemAlloc",    "cuEventCreate",    "cuEventRecord",
                                        "cuEventQuery",  "cuCtxSynchronize", "cuStreamSynchronize",
                                        "cuStreamGetId", "cuMemFree",        "cuMemAddressReserve"};
    const bool is_any_call = draw(2) == 0;
    struct block *block = find_block(true);

    fault.is_set = true;
    fault.call = is_any_call ? NULL : calls[draw(sizeof(calls) / sizeof(calls[0]))];
    fault.nth = 1 + draw(is_any_call ? 24 : 2);
    fault.error = draw(2) == 0 ? 2 : 999;
    if (draw(2) == 0)
        allocate();
    else if (block)
        free_block(block, true);
    fault.is_set = false;
    if (block && block->ptr && draw(2) == 0)
        free_block(block, false);
}

static void query_memory(void)
{
    size_t free_bytes = 0, total = 0;
    uint64_t allocated = 0, rounded = 0;
    const int device = (int)draw(DEVICES);

    for (unsigned i = 0; i < BLOCKS; i++)
        if (blocks[i].ptr && blocks[i].device == device) {
            allocated += blocks[i].bytes;
            rounded += (blocks[i].bytes / (2 * MIB) + 2) * 2 * MIB;
        }
    set_device(device);
    EXPECT((draw(2) == 0 ? cudaMemGetInfo(&free_bytes, &total)
                         : cuMemGetInfo_v2(&free_bytes, &total)) == 0,
           "device %d", device);
    EXPECT(free_bytes + allocated <= total, "%zu free and %" PRIu64 " allocated of %zu", free_bytes,
           allocated, total);
    EXPECT(free_bytes + rounded >= total, "%zu free and %" PRIu64 " allocated of %zu", free_bytes,
           allocated, total);
}

int main(int argc, char **argv)
{
    const unsigned steps = argc == 3 ? (unsigned)strtoul(argv[2], NULL, 10) : 0;

    if (argc != 3)
        return 2;
    rng_state = strtoull(argv[1], NULL, 10) * UINT64_C(0x9E3779B97F4A7C15) + 1;
    for (int stream = 0; stream < (int)(STREAMS + DEVICES); stream++) {
        if (stream < (int)STREAMS) {
            create_stream(stream);
        } else {
            streams[stream] = PER_THREAD;
            device_of[stream] = stream - (int)STREAMS;
        }
    }
    for (step = 1; step <= steps; step++) {
        struct block *block = find_block(true);
        const uint64_t kind = draw(100);

        if (kind < 32)
            allocate();
        else if (kind < 54)
            launch();
        else if (kind < 78 && block)
            free_block(block, false);
        else if (kind < 81 && block)
            free_invalid_address();
        else if (kind < 85)
            query_memory();
        else if (kind < 89)
            replace_stream();
        else if (kind < 92)
            call_with_fault();
        else if (kind < 95)
            capture();
        else if (kind < 99)
            EXPECT(xseg_sim_finish(handle_of((int)draw(STREAMS))) == XSEG_OK, "a stream");
        else
            reset_device();
    }
    for (unsigned i = 0; i < BLOCKS; i++)
        if (blocks[i].ptr)
            free_block(&blocks[i], false);
    return 0;
}
