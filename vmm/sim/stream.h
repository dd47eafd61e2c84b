/* SPDX-License-Identifier: MIT */
/*
 * Streams: queues of work, and the completion of work on the virtual clock.
 *
 * Each operation on a stream is a piece of work.  Work starts when the previous work of its stream and its dependency,
 * a piece of work of another stream, have completed.  It takes a duration, or is open-ended: it completes when the host
 * waits for it or calls xseg_sim_finish().
 *
 *     stream A   [10 us] -> [open-ended] -> [5 us]
 *                                ^
 *     stream B   [3 us] -> [depends on A] -> [open-ended]      end unknown: the last two of A and of B
 *
 * The end of work is computed as soon as the ends of its predecessors are known.  Until then `end` is SIM_OPEN_ENDED and
 * the work is linked with its predecessor (prev, next) and its dependency (dependency, waiters).  Wherever an end becomes
 * known, work_compute_ends() computes the ends of dependent work, in a loop rather than recursively, because chains are
 * as long as the program makes them.
 *
 * Work is reference counted.  The references are the queue (to its last work), events, executable graphs, recorded
 * accesses (access.h), completions (operation.h), and the work itself while its end is unknown.
 *
 * xseg_sim_finish() completes all work of one stream: `finished` is the number of the last such work.  Work of other
 * streams whose end had been computed before keeps that end.
 *
 * Default streams.  NULL and CU_STREAM_LEGACY denote the legacy default stream of the current context,
 * CU_STREAM_PER_THREAD the per-thread default stream; both are created on first use.  Work on the legacy stream waits
 * for earlier work on all blocking streams of the device, and work on these waits for earlier work on the legacy
 * stream.  Blocking streams are per-thread default streams and those created without CU_STREAM_NON_BLOCKING.  A query
 * and a wait of the host concern the stream's own work only.
 *
 * A stream that is destroyed before its work has completed stays in the list destroyed_streams of its device.
 *
 * Invariants: work is numbered from 1 in its queue, and last_number is the number of queue->last.  A queue outlives its
 * work (work_count).  Work with a known end has no prev, next, dependency or waiters.
 *
 * Locking: the machine lock.
 */
#ifndef XSEG_SIM_STREAM_H
#define XSEG_SIM_STREAM_H

#include <cuda.h>
#include <stdbool.h>
#include <stdint.h>

#include "vmm/sim/graph.h"

#define SIM_OPEN_ENDED UINT64_MAX /* duration of open-ended work; an end that is not known */

struct sim_capture;

/** Work of a stream, in order. */
struct sim_queue {
    struct sim_work *last; /* NULL: none yet */
    uint64_t last_number;
    uint64_t finished;   /* number of the last work that xseg_sim_finish() completed */
    uint64_t work_count; /* pieces of work in memory */
};

struct sim_work {
    struct sim_queue *queue;
    uint64_t number; /* in the queue */
    uint64_t earliest, duration, end;
    uint64_t references;
    uint64_t accesses;      /* references by recorded accesses */
    bool accesses_anything; /* one of these accesses has no range */
    /* While the end is unknown. */
    struct sim_work *prev, *next;
    struct sim_work *dependency; /* in another queue */
    struct sim_work *waiters;    /* work whose dependency this is */
    struct sim_work *waiter_prev, *waiter_next;
    uint64_t visit_number;                  /* of the last walk that reached the work */
    struct sim_work *list_next, *open_next; /* in temporary lists */
};

struct sim_stream {
    uint64_t handle, id;
    unsigned device, flags;
    bool is_legacy;
    bool is_default; /* legacy or per-thread default stream */
    uint64_t thread; /* number of the thread of a per-thread default stream; otherwise 0 */
    struct sim_queue queue;
    uint64_t legacy_waited;        /* number of the last work for which the legacy stream waits */
    uint64_t waited_legacy;        /* number of the last legacy work for which this stream waits */
    struct sim_capture *capture;   /* in which the stream participates, or NULL */
    struct sim_nodes dependencies; /* of the next node that the stream captures */
    struct sim_stream *capture_next;
    struct sim_stream *prev, *next; /* in the list of the device */
};

/** Retain work.  Accepts NULL. */
struct sim_work *sim_work_retain(struct sim_work *work);
void sim_work_release(struct sim_work *work);

/** Complete work and everything on which it depends, and advance the clock to its end: a wait of the host. */
void sim_work_wait(struct sim_work *work);

/** Complete all work of a queue now. */
void sim_queue_finish(struct sim_queue *queue);

/**
 * Get the stream of a handle.
 *
 * @param must_be_current  the stream must belong to the current context.
 *
 * Returns CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_INVALID_CONTEXT, CUDA_ERROR_CONTEXT_IS_DESTROYED or
 * CUDA_ERROR_OUT_OF_MEMORY.
 */
CUresult sim_stream_find(CUstream handle, bool must_be_current, struct sim_stream **out);

/** Queue the waits between the legacy stream and blocking streams.  Returns false on host allocation failure. */
bool sim_stream_queue_implicit_waits(struct sim_stream *stream);

/**
 * Queue work, after the implicit waits.
 *
 * @param dependency  work that must complete first, or NULL.
 *
 * Returns false on host allocation failure.
 */
bool sim_stream_queue(struct sim_stream *stream, uint64_t duration, struct sim_work *dependency);

/** Wait for all work of a device. */
void sim_streams_wait(unsigned device);

/** Advance the clock to the last known end of work of a device. */
void sim_streams_advance_past(unsigned device);

/** Destroy all streams of a device, after its events. */
void sim_streams_destroy(unsigned device);

#endif
