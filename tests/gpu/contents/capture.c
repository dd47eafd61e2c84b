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

#define REPLAYS   8u
#define MAX_BLOCK (64 * MIB) /* maximum bytes of each block */
#define OTHERS    3u
#define CAPTURED  0u /* the streams */
#define JOINING   1u
#define OTHER     2u

static const uint64_t masks[] = {0x00ff00ff00ff00ff, 0x0f0f0f0f0f0f0f0f, 0x1111111111111111,
                                 0x8000000000000001, 0x5a5a5a5a5a5a5a5a, 0x3300330033003300};

struct capture {
    struct stage *stage;
    struct xseg_allocator *allocator;
    struct xseg_pool *pool;
    struct graph *graph;
    struct piece in, out, side;
    uint64_t replays, after_host, after_nothing; /* replays with verified contents */
};

static struct piece new_block(struct capture *capture, struct xseg_pool *pool, unsigned stream,
                              size_t bytes)
{
    return stage_block(capture->stage, capture->allocator, pool, stream, bytes);
}

/* Allocations without a pool use the capture's pool. */
static struct piece captured_copy(struct capture *capture, const struct piece *from, uint64_t mask)
{
    const struct piece to = new_block(capture, NULL, CAPTURED, from->bytes);

    kernel_copy(capture->stage->stream[CAPTURED], to.address, from, mask);
    return to;
}

static void capture_graph(struct capture *capture)
{
    const CUstream stream = capture->stage->stream[CAPTURED];
    const CUstream joining = capture->stage->stream[JOINING];
    const CUevent event = capture->stage->event[0];

    journal_operation("capture");
    XSEG(capture_begin, capture->pool, stream);
    capture->graph = graph_begin(stream);
    kernel_spin(stream, 200);
    const struct piece a = captured_copy(capture, &capture->in, masks[0]);
    const struct piece b = captured_copy(capture, &a, masks[1]);
    stage_free(capture->allocator, &a);
    device_order(joining, stream, event);
    XSEG(record_stream, capture->allocator, (void *)(uintptr_t)b.address, joining);
    kernel_spin(joining, 100);
    kernel_copy(joining, capture->side.address, &b, masks[2]);
    const struct piece c = captured_copy(capture, &b, masks[3]);
    stage_free(capture->allocator, &b);
    const struct piece d = captured_copy(capture, &c, masks[4]);
    stage_free(capture->allocator, &c);
    kernel_copy(stream, capture->out.address, &d, masks[5]);
    stage_free(capture->allocator, &d);
    device_order(stream, joining, event);
    graph_end(capture->graph);
    XSEG(capture_end, capture->pool);
}

static void replay(struct capture *capture)
{
    const CUstream stream = capture->stage->stream[CAPTURED];
    const uint64_t both = masks[0] ^ masks[1];

    journal_operation("write %" PRIu64 ", replay, check", capture->in.block);
    capture->in.seed = capture->out.seed = capture->side.seed =
        draw(&capture->stage->draws, UINT64_MAX);
    capture->side.mask = both ^ masks[2];
    capture->out.mask = both ^ masks[3] ^ masks[4] ^ masks[5];
    kernel_write(stream, &capture->in);
    graph_launch(capture->graph, stream);
    kernel_check(capture->stage->checks[0], stream, &capture->out);
    kernel_check(capture->stage->checks[0], stream, &capture->side);
}

/* Allocations and frees of other memory during replays. */
static void work_besides(struct capture *capture)
{
    const CUstream other = capture->stage->stream[OTHER];
    struct piece piece[OTHERS];

    for (unsigned i = 0; i < OTHERS; i++) {
        piece[i] = new_block(capture, NULL, OTHER, capture->in.bytes);
        kernel_write(other, &piece[i]);
    }
    for (unsigned i = 0; i < OTHERS; i++) {
        kernel_check(capture->stage->checks[0], other, &piece[i]);
        stage_free(capture->allocator, &piece[i]);
    }
    if (device_is_busy(capture->stage->stream[CAPTURED]))
        journal_count(COUNT_BUSY_TRIMS, 1);
    journal_operation("trim");
    XSEG(trim, capture->allocator, NULL, NULL, NULL);
}

static void replay_some(struct capture *capture, uint64_t *count)
{
    for (unsigned i = 0; i < REPLAYS; i++) {
        replay(capture);
        if (i % 4 == 1)
            work_besides(capture);
    }
    stage_rest(capture->stage);
    *count += REPLAYS;
}

static void pause_and_resume(struct capture *capture, enum xseg_keep keep)
{
    journal_operation("pause");
    XSEG(pool_pause, capture->pool, keep, NULL);
    work_besides(capture);
    stage_rest(capture->stage);
    journal_operation("resume");
    XSEG(pool_resume, capture->pool);
}

static void play_round(struct capture *capture)
{
    const size_t max =
        capture->stage->memory / 16 < MAX_BLOCK ? capture->stage->memory / 16 : MAX_BLOCK;
    const size_t bytes = 1 + draw(&capture->stage->draws, max);

    XSEG(pool_create, capture->allocator, 0, NULL, &capture->pool);
    capture->in = new_block(capture, capture->pool, CAPTURED, bytes);
    capture->out = new_block(capture, capture->pool, CAPTURED, bytes);
    capture->side = new_block(capture, capture->pool, CAPTURED, bytes);
    capture_graph(capture);
    replay_some(capture, &capture->replays);
    if (!capture->stage->is_classic) {
        pause_and_resume(capture, XSEG_KEEP_HOST);
        /* The memory of the last replay is available again. */
        kernel_check(capture->stage->checks[0], capture->stage->stream[CAPTURED], &capture->out);
        replay_some(capture, &capture->after_host);
        pause_and_resume(capture, XSEG_KEEP_NOTHING);
        replay_some(capture, &capture->after_nothing);
    }
    graph_free(capture->graph);
    stage_free(capture->allocator, &capture->in);
    stage_free(capture->allocator, &capture->out);
    stage_free(capture->allocator, &capture->side);
    XSEG(pool_release, capture->pool);
}

void play_capture(struct stage *stage)
{
    struct capture capture = {.stage = stage};

    capture.allocator =
        stage_open(stage->is_classic ? "expandable_segments:False" : "expandable_segments:True");
    do
        play_round(&capture);
    while (stage_has_time(stage));
    journal_note("replays", capture.replays, "ok", "%s",
                 device.is_simulated
                     ? "the captured kernels were queued again: the simulator runs no graphs"
                     : "of graphs");
    if (stage->is_classic)
        journal_note("replays_after_a_pause", 0, "skipped", "a classic pool cannot be paused");
    else
        journal_note("replays_after_a_pause", capture.after_host, "ok",
                     "contents kept in host memory");
    if (!stage->is_classic)
        journal_note("replays_after_a_pause", capture.after_nothing, "ok", "contents kept nowhere");
    stage_close(capture.allocator);
}
