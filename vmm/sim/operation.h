/* SPDX-License-Identifier: MIT */
/*
 * Operations: kernels, copies, fills, host functions, and event records and waits of graphs.
 *
 * An operation is the description of work.  It is queued on a stream, or stored in the node of a graph, which queues it
 * at each launch.  sim_operation_check() resolves the sides of a transfer (host or device) and checks that the addresses
 * are accessible; sim_operation_queue() queues the work, records its memory accesses (access.h), and creates its
 * completion.
 *
 * A completion is the effect of a host function or, with real_bytes, of a transfer.  It is executed when its work has
 * completed, before the driver call that observed this returns.  Completions are executed in the order of their ends,
 * then in queue order.  Transfers are executed under the machine lock.  A host function is called without the lock, in
 * the thread of that driver call.  Calls of other threads that observe completions wait until it returns.  Until then
 * later work of the stream is not complete (sim_completions_block()).
 *
 * Host memory that is not pinned (memory.h) is pageable.  A copy from pageable memory reads its source when it is
 * queued, so that the application can reuse the buffer.  A copy to pageable memory waits for its work.
 *
 * Without real_bytes transfers move nothing; only their addresses are checked.
 *
 * Invariants: completions are in queue order; a completion retains its work.
 *
 * Locking: the machine lock.
 */
#ifndef XSEG_SIM_OPERATION_H
#define XSEG_SIM_OPERATION_H

#include <cuda.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "xseg/sim.h"

struct sim_stream;
struct sim_work;

enum sim_node_type {
    SIM_NODE_KERNEL = CU_GRAPH_NODE_TYPE_KERNEL,
    SIM_NODE_MEMCPY = CU_GRAPH_NODE_TYPE_MEMCPY,
    SIM_NODE_MEMSET = CU_GRAPH_NODE_TYPE_MEMSET,
    SIM_NODE_HOST = CU_GRAPH_NODE_TYPE_HOST,
    SIM_NODE_EMPTY = CU_GRAPH_NODE_TYPE_EMPTY,
    SIM_NODE_EVENT_WAIT = CU_GRAPH_NODE_TYPE_WAIT_EVENT,
    SIM_NODE_EVENT_RECORD = CU_GRAPH_NODE_TYPE_EVENT_RECORD,
    SIM_NODE_MEM_OP = CU_GRAPH_NODE_TYPE_BATCH_MEM_OP,
    SIM_NODE_CONDITIONAL = 13 /* CU_GRAPH_NODE_TYPE_CONDITIONAL, since CUDA 12.3 */
};

/* SIM_INFERRED: the address determines the side. */
enum sim_side { SIM_HOST, SIM_DEVICE, SIM_INFERRED };

struct sim_transfer {
    uint64_t to, from, bytes;
    enum sim_side to_side, from_side;
    uint32_t pattern; /* of a fill */
    unsigned width;   /* bytes of the pattern; 0: a copy */
    bool is_peer;     /* copy between two contexts: each device accesses its own side */
};

struct sim_operation {
    enum sim_node_type type;
    unsigned device;              /* of the stream */
    struct sim_transfer transfer; /* of a copy, fill or value write */
    CUhostFn function;            /* of a host function */
    void *argument;
    CUevent event;     /* of an event record or wait */
    uint64_t duration; /* of a kernel */
    const struct xseg_sim_access *access;
    size_t accesses;
};

struct sim_completion {
    struct sim_work *work;
    unsigned device;
    struct sim_completion *next;
    CUhostFn function; /* NULL: a transfer */
    void *argument;
    uint64_t to, from, bytes;
    void *staged; /* contents of a pageable source, or NULL */
    uint32_t pattern;
    unsigned width;
};

struct sim_completions {
    struct sim_completion *first, **last; /* last: link of the next completion */
    bool is_running;                      /* a host function is running */
    uint64_t runner;                      /* number of its thread */
    const struct sim_completion *running;
};

/**
 * Check an operation and resolve the sides of its transfer.
 *
 * Returns CUDA_ERROR_INVALID_VALUE for an address that the driver does not know.  In strict mode an inaccessible address
 * ends the process with a report.
 */
CUresult sim_operation_check(struct sim_operation *operation);

/**
 * Queue a checked operation.
 *
 * Returns CUDA_ERROR_OUT_OF_MEMORY on host allocation failure, CUDA_ERROR_INVALID_HANDLE for a destroyed event.
 */
CUresult sim_operation_queue(struct sim_stream *stream, const struct sim_operation *operation);

/** Copy an operation, its accesses included.  Returns false on host allocation failure. */
bool sim_operation_copy(struct sim_operation *to, const struct sim_operation *from);

/** Free the memory of a copied operation. */
void sim_operation_destroy(struct sim_operation *operation);

/** Execute the completions of completed work.  Releases the lock while host functions run. */
void sim_completions_run(void);

/** Get whether a host function that runs in another thread delays the completion of work. */
bool sim_completions_block(const struct sim_work *work);

/** Get a pending copy one of whose sides begins in a range, or NULL. */
const struct sim_completion *sim_completions_find_copy(uint64_t base, uint64_t bytes);

/** Discard the completions of a device. */
void sim_completions_discard(unsigned device);

#endif
