/* SPDX-License-Identifier: MIT */
/*
 * Captures: kernels whose memory is allocated and freed during the capture.  The graphs are replayed while other memory
 * is allocated and freed, and after a pause of their pool.
 *
 *     in --> a --> b --> c --> d --> out     the stream of the capture; each step is a copy XOR a mask.  c may reuse
 *                  |                         the memory of a; d must not reuse that of b, because
 *                  `--> side                 a second stream, which joins the capture, still uses it
 *
 * `in` is written again before each replay, so the contents of `out` and `side` identify the replay.
 */
#include <inttypes.h>

#include "tests/gpu/contents/journal.h"
#include "tests/gpu/contents/section.h"

#define REPLAYS      8u
#define MAX_BLOCK    (64 * MIB) /* maximum bytes of each block */
#define OTHER_BLOCKS 3u
/* Indices of streams: the stream of the capture, the stream that joins it, and a stream outside the capture. */
#define CAPTURED 0u
#define JOINING  1u
#define OTHER    2u

static const uint64_t masks[] = {0x00ff00ff00ff00ff, 0x0f0f0f0f0f0f0f0f, 0x1111111111111111,
                                 0x8000000000000001, 0x5a5a5a5a5a5a5a5a, 0x3300330033003300};

struct capture {
    struct section_env *env;
    struct xseg_allocator *allocator;
    struct xseg_pool *pool;
    struct graph *graph;
    struct buffer in, out, side;
    uint64_t replays, after_host, after_nothing; /* replays with verified contents */
};

static struct buffer new_block(struct capture *capture, struct xseg_pool *pool, unsigned stream,
                               size_t bytes)
{
    return section_alloc(capture->env, capture->allocator, pool, stream, bytes);
}

/* Allocations without a pool use the capture's pool. */
static struct buffer capture_copy(struct capture *capture, const struct buffer *source,
                                  uint64_t mask)
{
    const struct buffer copy = new_block(capture, NULL, CAPTURED, source->bytes);

    kernel_copy(capture->env->stream[CAPTURED], copy.address, source, mask);
    return copy;
}

static void capture_graph(struct capture *capture)
{
    const CUstream stream = capture->env->stream[CAPTURED];
    const CUstream joining = capture->env->stream[JOINING];
    const CUevent event = capture->env->event[0];

    journal_operation("capture");
    XSEG(capture_begin, capture->pool, stream);
    capture->graph = graph_begin(stream);
    kernel_spin(stream, 200);
    const struct buffer a = capture_copy(capture, &capture->in, masks[0]);
    const struct buffer b = capture_copy(capture, &a, masks[1]);
    section_free(capture->allocator, &a);
    device_order(joining, stream, event);
    XSEG(record_stream, capture->allocator, (void *)(uintptr_t)b.address, joining);
    kernel_spin(joining, 100);
    kernel_copy(joining, capture->side.address, &b, masks[2]);
    const struct buffer c = capture_copy(capture, &b, masks[3]);
    section_free(capture->allocator, &b);
    const struct buffer d = capture_copy(capture, &c, masks[4]);
    section_free(capture->allocator, &c);
    kernel_copy(stream, capture->out.address, &d, masks[5]);
    section_free(capture->allocator, &d);
    device_order(stream, joining, event);
    graph_end(capture->graph);
    XSEG(capture_end, capture->pool);
}

static void replay(struct capture *capture)
{
    const CUstream stream = capture->env->stream[CAPTURED];
    const uint64_t copy_mask = masks[0] ^ masks[1];

    journal_operation("write %" PRIu64 ", replay, check", capture->in.block);
    capture->in.seed = capture->out.seed = capture->side.seed =
        random_below(&capture->env->random_state, UINT64_MAX);
    capture->side.mask = copy_mask ^ masks[2];
    capture->out.mask = copy_mask ^ masks[3] ^ masks[4] ^ masks[5];
    kernel_write(stream, &capture->in);
    graph_launch(capture->graph, stream);
    kernel_check(capture->env->checks[0], stream, &capture->out);
    kernel_check(capture->env->checks[0], stream, &capture->side);
}

/* Allocations and frees of other memory during replays. */
static void use_other_memory(struct capture *capture)
{
    const CUstream other = capture->env->stream[OTHER];
    struct buffer buffer[OTHER_BLOCKS];

    for (unsigned i = 0; i < OTHER_BLOCKS; i++) {
        buffer[i] = new_block(capture, NULL, OTHER, capture->in.bytes);
        kernel_write(other, &buffer[i]);
    }
    for (unsigned i = 0; i < OTHER_BLOCKS; i++) {
        kernel_check(capture->env->checks[0], other, &buffer[i]);
        section_free(capture->allocator, &buffer[i]);
    }
    if (device_is_busy(capture->env->stream[CAPTURED]))
        journal_count(COUNT_BUSY_TRIMS, 1);
    journal_operation("trim");
    XSEG(trim, capture->allocator, NULL, NULL, NULL);
}

static void replay_repeatedly(struct capture *capture, uint64_t *count)
{
    for (unsigned i = 0; i < REPLAYS; i++) {
        replay(capture);
        if (i % 4 == 1)
            use_other_memory(capture);
    }
    section_synchronize(capture->env);
    *count += REPLAYS;
}

static void pause_and_resume(struct capture *capture, enum xseg_keep keep)
{
    journal_operation("pause");
    XSEG(pool_pause, capture->pool, keep, NULL);
    use_other_memory(capture);
    section_synchronize(capture->env);
    journal_operation("resume");
    XSEG(pool_resume, capture->pool);
}

static void run_round(struct capture *capture)
{
    const size_t max =
        capture->env->memory / 16 < MAX_BLOCK ? capture->env->memory / 16 : MAX_BLOCK;
    const size_t bytes = 1 + random_below(&capture->env->random_state, max);

    XSEG(pool_create, capture->allocator, 0, NULL, &capture->pool);
    capture->in = new_block(capture, capture->pool, CAPTURED, bytes);
    capture->out = new_block(capture, capture->pool, CAPTURED, bytes);
    capture->side = new_block(capture, capture->pool, CAPTURED, bytes);
    capture_graph(capture);
    replay_repeatedly(capture, &capture->replays);
    if (!capture->env->is_classic) {
        pause_and_resume(capture, XSEG_KEEP_HOST);
        /* The contents from the last replay have been restored. */
        kernel_check(capture->env->checks[0], capture->env->stream[CAPTURED], &capture->out);
        replay_repeatedly(capture, &capture->after_host);
        pause_and_resume(capture, XSEG_KEEP_NOTHING);
        replay_repeatedly(capture, &capture->after_nothing);
    }
    graph_free(capture->graph);
    section_free(capture->allocator, &capture->in);
    section_free(capture->allocator, &capture->out);
    section_free(capture->allocator, &capture->side);
    XSEG(pool_release, capture->pool);
}

void run_capture(struct section_env *env)
{
    struct capture capture = {.env = env};

    capture.allocator = section_open_allocator(env->is_classic ? "expandable_segments:False"
                                                               : "expandable_segments:True");
    do
        run_round(&capture);
    while (section_has_time(env));
    journal_result("replays", capture.replays, "ok", "%s",
                   device.is_simulated
                       ? "the captured kernels were queued again: the simulator runs no graphs"
                       : "of graphs");
    if (env->is_classic)
        journal_result("replays_after_a_pause", 0, "skipped", "a classic pool cannot be paused");
    else
        journal_result("replays_after_a_pause", capture.after_host, "ok",
                       "contents kept in host memory");
    if (!env->is_classic)
        journal_result("replays_after_a_pause", capture.after_nothing, "ok",
                       "contents kept nowhere");
    section_close_allocator(capture.allocator);
}
