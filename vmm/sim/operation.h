/* SPDX-License-Identifier: MIT */
/*
 * Operations: what a piece of work does, be it queued on a stream at once or kept in the node of a
 * graph, which queues it each time that it is launched.
 *
 * Without real bytes a transfer moves nothing, and only its addresses are checked.  Host memory that
 * this driver neither gave nor registered is taken for pageable.
 *
 * Locking: the machine's lock.
 */
#ifndef XSEG_SIM_OPERATION_H
#define XSEG_SIM_OPERATION_H

#include <cuda.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "xseg/sim.h"

struct sim_stream;

enum sim_node_type {
    SIM_NODE_KERNEL = CU_GRAPH_NODE_TYPE_KERNEL,
    SIM_NODE_COPY = CU_GRAPH_NODE_TYPE_MEMCPY,
    SIM_NODE_FILL = CU_GRAPH_NODE_TYPE_MEMSET,
    SIM_NODE_HOST = CU_GRAPH_NODE_TYPE_HOST,
    SIM_NODE_EMPTY = CU_GRAPH_NODE_TYPE_EMPTY,
    SIM_NODE_WAIT = CU_GRAPH_NODE_TYPE_WAIT_EVENT,
    SIM_NODE_RECORD = CU_GRAPH_NODE_TYPE_EVENT_RECORD,
    SIM_NODE_MEMORY = CU_GRAPH_NODE_TYPE_BATCH_MEM_OP,
    SIM_NODE_CONDITIONAL = 13 /* CU_GRAPH_NODE_TYPE_CONDITIONAL, which older versions do not name */
};

enum sim_side { SIM_HOST, SIM_DEVICE, SIM_EITHER };

struct sim_transfer {
    uint64_t to, from, bytes;
    enum sim_side to_side, from_side;
    uint32_t pattern;
    unsigned width; /* 0: a copy */
    bool is_peer;   /* a copy between two named devices: each does its side */
};

struct sim_operation {
    enum sim_node_type type;
    unsigned device;              /* of the stream that it was given to */
    struct sim_transfer transfer; /* of a copy, a fill, and the write of a value */
    CUhostFn function;            /* of a host function */
    void *argument;
    CUevent event;     /* that is recorded, or waited for */
    uint64_t duration; /* of a kernel, with what that says of its touches */
    const struct xseg_sim_access *touch;
    size_t touches;
};

/**
 * Find out on which side the addresses of a transfer are, and whether they can be reached.
 *
 * Returns: CUDA_ERROR_INVALID_VALUE; in strict mode the process ends with a report for memory of a
 *          device that cannot be reached
 */
CUresult sim_transfer_check(unsigned device, struct sim_transfer *transfer);

/** Whether the host's side of a copy is pageable, so that the call waits for it. */
bool sim_transfer_is_to_pageable(const struct sim_transfer *transfer);

/** As sim_transfer_check(), for an operation of any type. */
CUresult sim_operation_check(struct sim_operation *operation);

/**
 * Queue a checked operation.
 *
 * Returns: CUDA_ERROR_OUT_OF_MEMORY without host memory; CUDA_ERROR_INVALID_HANDLE for an event that
 *          has been destroyed
 */
CUresult sim_operation_queue(struct sim_stream *stream, const struct sim_operation *operation);

/** Make a copy with memory of its own.  Returns: false when there is no host memory */
bool sim_operation_copy(struct sim_operation *to, const struct sim_operation *from);

/** Give back the memory of a copy. */
void sim_operation_end(struct sim_operation *operation);

#endif
