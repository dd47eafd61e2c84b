/* SPDX-License-Identifier: MIT */
/*
 * The memory tables of "Memory Issues" in NVIDIA's documentation of CUDA graphs under PyTorch
 * (https://docs.nvidia.com/dl-cuda-graph/latest/troubleshooting/memory-issues.html): PyTorch's statistics of the
 * large pools after each step of its examples, in GB of 2^30 bytes.  Each program makes the requests of the example
 * on the same streams, with the same captures; queued work replaces its kernels.  A row follows its step, with
 * one string for each table: "allocated active inactive-split reserved", as printed there.  Tables that name no kind
 * of segment are classic.
 */
#include <stdio.h>
#include <string.h>

#include "tests/support/env.h"

#define CLASSIC "expandable_segments:False"

/* The tables of a program: the example, captured, and captured with a remedy. */
enum { EAGER, GRAPH };

static struct {
    const char *name;
    unsigned column; /* of this table in each row */
    unsigned rows, mismatches;
    struct xseg_allocator *allocator;
    xseg_stream stream; /* torch.cuda.graph()'s own, or torch.cuda.stream(stream) in eager tables */
    xseg_stream side;
    struct xseg_pool *capturing; /* the pool of the active capture of `stream`, or NULL */
} table;

struct graph {
    struct xseg_pool *pool;
    struct CUgraph_st *graph;
};

static void open_table(const char *name, const char *config, unsigned column)
{
    memset(&table, 0, sizeof(table));
    table.name = name;
    table.column = column;
    table.allocator = env_open(config);
    table.stream = env_stream();
    table.side = env_stream();
}

static void close_table(void)
{
    assert_ok(xseg_stream_retire(table.allocator, 0, table.side));
    assert_ok(xseg_stream_retire(table.allocator, 0, table.stream));
    env_close(table.allocator, table.side, table.stream);
    if (table.mismatches != 0)
        fail_msg("%s: %u of %u rows differ", table.name, table.mismatches, table.rows);
}

static void expect_row(const char *tag, const char *const *expected, size_t count)
{
    const struct xseg_statistics stats = env_stats(table.allocator);
    char actual[96];

    assert_true(table.column < count);
    table.rows++;
    (void)snprintf(actual, sizeof(actual), "%.3f %.3f %.3f %.3f",
                   (double)stats.allocated_bytes[XSEG_STAT_LARGE].current / (double)GIB,
                   (double)stats.active_bytes[XSEG_STAT_LARGE].current / (double)GIB,
                   (double)stats.inactive_split_bytes[XSEG_STAT_LARGE].current / (double)GIB,
                   (double)stats.reserved_bytes[XSEG_STAT_LARGE].current / (double)GIB);
    if (strcmp(actual, expected[table.column]) == 0)
        return;
    table.mismatches++;
    print_error("%s, row %u, %s: %s instead of %s\n", table.name, table.rows, tag, actual,
                expected[table.column]);
}

/* TEST_OF_TABLES(test, {name of a table, configuration}, ...): the steps run once for each table, `table.column`. */
#define TEST_OF_TABLES(test, ...)                             \
    static void run_##test(void);                             \
    TEST(test)                                                \
    {                                                         \
        static const char *const tables[][2] = {__VA_ARGS__}; \
        for (unsigned i = 0; i < COUNT_OF(tables); i++) {     \
            open_table(tables[i][0], tables[i][1], i);        \
            run_##test();                                     \
            close_table();                                    \
        }                                                     \
    }                                                         \
    static void run_##test(void)

/* The statistics after a step: one string for each table of the program. */
#define ROW(tag, ...)                                \
    expect_row((tag), (const char *[]){__VA_ARGS__}, \
               sizeof((const char *[]){__VA_ARGS__}) / sizeof(const char *))

/* An uninitialized tensor.  Only captured tensors are allocated from the graph's pool. */
static void *allocate(size_t bytes, xseg_stream stream)
{
    void *ptr = env_alloc(table.allocator, bytes, stream);

    assert_ptr_equal(env_block(table.allocator, ptr).pool,
                     stream == table.stream ? table.capturing : NULL);
    return ptr;
}

#define discard(...) env_free(table.allocator, __VA_ARGS__)

/* A tensor that a kernel fills from an input tensor, or without one (randn). */
static void *compute(const void *input, size_t bytes, xseg_stream stream)
{
    void *output = allocate(bytes, stream);

    if (input != NULL)
        env_launch(table.allocator, stream, input);
    env_launch(table.allocator, stream, output);
    return output;
}

/* A kernel on another stream uses a tensor, and record_stream() announces this use. */
static void use(void *ptr, xseg_stream stream)
{
    env_use(table.allocator, ptr, stream);
}

/* Enter torch.cuda.graph(): empty_cache, then a capture into a new pool or the pool of another graph. */
static struct graph begin_graph(struct xseg_pool *shared)
{
    struct graph graph = {.pool = shared};

    env_empty_cache(table.allocator);
    if (shared == NULL)
        graph.pool = env_pool(table.allocator);
    else
        assert_ok(xseg_pool_retain(shared));
    env_capture_begin(graph.pool, table.stream);
    table.capturing = graph.pool;
    return graph;
}

/* No effect in an eager table, which has no graph. */
static void end_graph(struct graph *graph)
{
    if (graph->pool == NULL)
        return;
    graph->graph = env_capture_end_graph(graph->pool, table.stream);
    table.capturing = NULL;
}

static void delete_graph(const struct graph *graph)
{
    if (graph->pool == NULL)
        return;
    env_graph_destroy(graph->graph);
    assert_ok(xseg_pool_release(graph->pool));
}

/* "Understanding Caching Allocator Statistics" */
TEST_OF_TABLES(caching_allocator_statistics, {"statistics", CLASSIC})
{
    void *x1 = allocate(4 * GIB, NULL);
    ROW("after alloc x1", "4.000 4.000 0.000 4.000");
    discard(x1);
    ROW("after del x1", "0.000 0.000 0.000 4.000");
    void *x2 = allocate(GIB, NULL);
    ROW("after alloc x2", "1.000 1.000 3.000 4.000");
    discard(x2);
    ROW("after del x2", "0.000 0.000 0.000 4.000");
    void *x3 = allocate(GIB, NULL);
    ROW("after alloc x3", "1.000 1.000 3.000 4.000");
    env_stream_wait(table.side, NULL);
    use(x3, table.side);
    discard(x3);
    ROW("after del x3", "0.000 1.000 3.000 4.000");
    xseg_sim_finish_all();
    void *t1 = allocate(1, table.side);
    ROW("after alloc t1", "0.000 0.000 0.000 4.000");
    discard(t1);
    void *x4 = allocate(GIB, table.side);
    ROW("after alloc x4", "1.000 1.000 0.000 5.000");
    env_empty_cache(table.allocator);
    ROW("after empty cache", "1.000 1.000 0.000 1.000");
    void *x5 = allocate(GIB, table.side);
    ROW("after alloc x5", "2.000 2.000 0.000 2.000");
    env_stream_wait(NULL, table.side);
    discard(x4, x5);
}

/* "Intermediate Tensors Can't Be Reused Across Memory Pools", and the remedy: the graphs share a pool. */
TEST_OF_TABLES(intermediates_of_two_graphs, {"two pools", CLASSIC}, {"shared pool", CLASSIC})
{
    void *x1 = compute(NULL, 4 * GIB, NULL), *x2 = compute(NULL, 4 * GIB, NULL);

    ROW("after alloc x1, x2", "8.000 8.000 0.000 8.000", "8.000 8.000 0.000 8.000");
    struct graph first = begin_graph(NULL);
    void *intermediate = compute(x1, 4 * GIB, table.stream);
    void *out1 = compute(intermediate, 4 * GIB, table.stream);
    discard(intermediate);
    ROW("after del intermediate1", "12.000 12.000 0.000 16.000", "12.000 12.000 0.000 16.000");
    end_graph(&first);
    struct graph second = begin_graph(table.column == 1 ? first.pool : NULL);
    intermediate = compute(x2, 4 * GIB, table.stream);
    void *out2 = compute(intermediate, 4 * GIB, table.stream);
    discard(intermediate);
    ROW("after del intermediate2", "16.000 16.000 0.000 24.000", "16.000 16.000 0.000 20.000");
    end_graph(&second);
    discard(x1, x2, out1, out2);
    delete_graph(&first);
    delete_graph(&second);
}

/* "Intermediate Tensors After Capture Can't Reuse Graph Pool Memory", USE_GRAPH=0 and 1 */
TEST_OF_TABLES(temporaries_after_a_capture, {"after capture, USE_GRAPH=0", CLASSIC},
               {"after capture, USE_GRAPH=1", CLASSIC})
{
    const xseg_stream stream = table.column == GRAPH ? table.stream : NULL;
    void *x1 = compute(NULL, 4 * GIB, NULL);
    struct graph graph = {NULL, NULL};

    discard(allocate(4 * GIB, NULL));
    ROW("after alloc x1, del t1", "4.000 4.000 0.000 8.000", "4.000 4.000 0.000 8.000");
    if (table.column == GRAPH)
        graph = begin_graph(NULL);
    ROW("after enter context", "4.000 4.000 0.000 8.000", "4.000 4.000 0.000 4.000");
    void *t2 = compute(x1, 4 * GIB, stream), *out1 = compute(t2, 4 * GIB, stream);
    discard(t2);
    ROW("after alloc out1, del t2", "8.000 8.000 0.000 12.000", "8.000 8.000 0.000 12.000");
    end_graph(&graph);
    discard(compute(NULL, 4 * GIB, NULL));
    ROW("after alloc t3, del t3", "8.000 8.000 0.000 12.000", "8.000 8.000 0.000 16.000");
    discard(x1, out1);
    delete_graph(&graph);
}

/* "Memory Fragmentation Across Pools": the example, with expandable segments, and with max_split_size */
TEST_OF_TABLES(fragmentation_across_pools, {"fragmentation", CLASSIC},
               {"fragmentation, expandable", "expandable_segments:True"},
               {"fragmentation, max_split_size_mb", "max_split_size_mb:128," CLASSIC})
{
    discard(compute(NULL, 8 * GIB, NULL));
    ROW("after del temp", "0.000 0.000 0.000 8.000", "0.000 0.000 0.000 8.008",
        "0.000 0.000 0.000 8.000");
    void *small = compute(NULL, GIB, NULL), *x = compute(NULL, GIB, NULL);
    ROW("after alloc x", "2.000 2.000 6.000 8.000", "2.000 2.000 0.000 8.008",
        "2.000 2.000 0.000 10.000");
    struct graph graph = begin_graph(NULL);
    ROW("after empty cache", "2.000 2.000 6.000 8.000", "2.000 2.000 0.000 2.012",
        "2.000 2.000 0.000 2.000");
    void *intermediate = compute(x, GIB, table.stream);
    void *out = compute(intermediate, GIB, table.stream);
    discard(intermediate);
    ROW("after del intermediate", "3.000 3.000 6.000 10.000", "3.000 3.000 0.000 4.023",
        "3.000 3.000 0.000 4.000");
    end_graph(&graph);
    discard(small, x, out);
    delete_graph(&graph);
}

/* "Expandable segments cannot reclaim memory during CUDA graph capture" */
TEST_OF_TABLES(expandable_segments_during_a_capture,
               {"expandable in a capture", "expandable_segments:True"})
{
    struct graph graph = begin_graph(NULL);

    discard(compute(NULL, 8 * GIB, table.stream));
    ROW("after del temp", "0.000 0.000 0.000 8.008");
    void *x = compute(NULL, 2 * GIB, table.stream);
    ROW("after alloc x", "2.000 2.000 0.000 8.008");
    void *y = compute(NULL, 8 * GIB, table.stream);
    ROW("after alloc y", "10.000 10.000 0.000 10.000");
    discard(x, y);
    ROW("after del x, y", "0.000 0.000 0.000 10.000");
    void *z = compute(NULL, 16 * GIB, table.stream);
    ROW("after alloc z", "16.000 16.000 0.000 16.016");
    discard(z);
    ROW("after del z", "0.000 0.000 0.000 16.016");
    env_empty_cache(table.allocator);
    ROW("after empty cache", "0.000 0.000 0.000 16.016");
    end_graph(&graph);
    delete_graph(&graph);
    ROW("after del graph", "0.000 0.000 0.000 16.016");
    env_empty_cache(table.allocator);
    ROW("after empty cache", "0.000 0.000 0.000 0.000");
}

/* "Deferred Memory Recycling", USE_GRAPH=0, 1, and 1 with graph_capture_record_stream_reuse */
TEST_OF_TABLES(recycling_deferred_by_a_capture, {"deferred recycling, USE_GRAPH=0", CLASSIC},
               {"deferred recycling, USE_GRAPH=1", CLASSIC},
               {"deferred recycling, graph_capture_record_stream_reuse",
                "graph_capture_record_stream_reuse:True," CLASSIC})
{
    struct graph graph = {NULL, NULL};

    if (table.column != EAGER)
        graph = begin_graph(NULL);
    void *x1 = allocate(4 * GIB, table.stream);
    ROW("after alloc x1", "4.000 4.000 0.000 4.000", "4.000 4.000 0.000 4.000",
        "4.000 4.000 0.000 4.000");
    env_stream_wait(table.side, table.stream);
    use(x1, table.side);
    env_stream_wait(table.stream, table.side);
    discard(x1);
    ROW("after del x1", "0.000 4.000 0.000 4.000", "0.000 4.000 0.000 4.000",
        "0.000 4.000 0.000 4.000");
    xseg_sim_finish_all();
    discard(allocate(1, table.stream));
    ROW("after alloc t1", "0.000 0.000 0.000 4.000", "0.000 4.000 0.000 4.000",
        "0.000 0.000 0.000 4.000");
    void *x2 = allocate(4 * GIB, table.stream);
    ROW("after alloc x2", "4.000 4.000 0.000 4.000", "4.000 8.000 0.000 8.000",
        "4.000 4.000 0.000 4.000");
    end_graph(&graph);
    void *t2 = allocate(1, NULL);
    ROW("after alloc t2", "4.000 4.000 0.000 4.000", "4.000 4.000 0.000 8.000",
        "4.000 4.000 0.000 4.000");
    discard(x2, t2);
    delete_graph(&graph);
}

/*
 * step(x): five times y = (x * 2).sum(), whose product is freed before y.backward() makes a gradient.  The gradient
 * is added to x.grad on the stream on which its accumulator was created; if that is another stream, autograd calls
 * record_stream().
 */
static void accumulate_gradients(void *x, xseg_stream stream, const char *const rows[5])
{
    void *sum = NULL, *gradient;
    char tag[16];

    for (unsigned i = 0; i < 5; i++) {
        discard(compute(x, 4 * GIB, stream));
        gradient = compute(NULL, 4 * GIB, stream);
        if (stream != table.side) {
            env_stream_wait(table.side, stream);
            use(gradient, table.side);
            env_stream_wait(stream, table.side);
        }
        if (sum == NULL)
            sum = gradient;
        else
            discard(gradient);
        (void)snprintf(tag, sizeof(tag), "step %u", i);
        ROW(tag, rows[i]);
    }
    discard(sum);
}

/* "Gradient Accumulator Cross-Stream Memory Growth" */
TEST_OF_TABLES(gradients_accumulated_across_streams, {"gradient accumulator", CLASSIC})
{
    static const char *const warmup[] = {
        "8.000 8.000 0.000 8.000",  "8.000 8.000 0.000 12.000", "8.000 8.000 0.000 12.000",
        "8.000 8.000 0.000 12.000", "8.000 8.000 0.000 12.000",
    };
    static const char *const capture[] = {
        "8.000 8.000 0.000 8.000",   "8.000 12.000 0.000 12.000", "8.000 16.000 0.000 16.000",
        "8.000 20.000 0.000 20.000", "8.000 24.000 0.000 24.000",
    };
    void *x = compute(NULL, 4 * GIB, NULL);

    ROW("before warmup", "4.000 4.000 0.000 4.000");
    accumulate_gradients(x, table.side, warmup);
    env_stream_wait(NULL, table.side);
    ROW("after warmup", "4.000 4.000 0.000 12.000");
    struct graph graph = begin_graph(NULL);
    ROW("before capture", "4.000 4.000 0.000 4.000");
    accumulate_gradients(x, table.stream, capture);
    ROW("after capture", "4.000 24.000 0.000 24.000");
    end_graph(&graph);
    discard(x);
    delete_graph(&graph);
}

/* "cudaFree Is Suppressed During Capture", USE_GRAPH=0 and 1 */
TEST_OF_TABLES(freeing_is_suppressed_by_a_capture, {"suppressed free, USE_GRAPH=0", CLASSIC},
               {"suppressed free, USE_GRAPH=1", CLASSIC})
{
    void *x1 = allocate(4 * GIB, NULL);
    struct graph graph = {NULL, NULL};

    ROW("after alloc x1", "4.000 4.000 0.000 4.000", "4.000 4.000 0.000 4.000");
    if (table.column == GRAPH)
        graph = begin_graph(NULL);
    void *x2 = allocate(4 * GIB, table.stream);
    ROW("after alloc x2", "8.000 8.000 0.000 8.000", "8.000 8.000 0.000 8.000");
    discard(x1);
    ROW("after del x1", "4.000 4.000 0.000 8.000", "4.000 4.000 0.000 8.000");
    env_empty_cache(table.allocator);
    ROW("after empty cache", "4.000 4.000 0.000 4.000", "4.000 4.000 0.000 8.000");
    void *x3 = allocate(4 * GIB, table.stream);
    ROW("after alloc x3", "8.000 8.000 0.000 8.000", "8.000 8.000 0.000 12.000");
    end_graph(&graph);
    discard(x2, x3);
    delete_graph(&graph);
}
