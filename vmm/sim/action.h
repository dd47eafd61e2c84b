/* SPDX-License-Identifier: MIT */
/*
 * Actions: what happens when a piece of work ends, namely copies and fills of real bytes, and host
 * functions.
 *
 * Time is virtual, so work ends inside of some call.  Before that call returns, it carries out the
 * actions of the work that has ended, by end and then by the order of queueing.  Copies run under
 * the machine's lock.  A host function runs without it, in the thread inside of whose call its work
 * ended.  The calls of other threads that have seen work end meanwhile wait for it.
 *
 * Locking: the machine's lock.
 */
#ifndef XSEG_SIM_ACTION_H
#define XSEG_SIM_ACTION_H

#include <cuda.h>
#include <stdbool.h>
#include <stdint.h>

struct sim_stream;
struct sim_work;

struct sim_action {
    struct sim_work *work; /* referred to */
    unsigned device;
    struct sim_action *next; /* by the order of queueing */
    /* A host function, or bytes that are copied, or filled with a pattern. */
    CUhostFn function;
    void *argument;
    uint64_t to, from, bytes;
    void *staged;     /* the bytes to copy, set aside; or NULL */
    uint32_t pattern; /* repeated in its lowest width bytes */
    unsigned width;   /* 0: a copy */
};

struct sim_actions {
    struct sim_action *first, **last; /* last: where the next one is linked in */
    bool is_running;                  /* a host function */
    uint64_t runner;                  /* the thread that runs it */
    const struct sim_action *running;
};

/**
 * Queue a piece of work on a stream that carries out an action when it ends.
 *
 * @param action  on the heap; taken over, also on failure
 *
 * Returns: false when there is no host memory
 */
bool sim_action_queue(struct sim_stream *stream, struct sim_action *action);

/** Carry out the actions of work that has ended; gives the lock back while host functions run. */
void sim_actions_run(void);

/**
 * Whether a piece of work is not over although its time has come: another thread runs a host
 * function that it, or something before it in its queue, stands for or waits behind.
 */
bool sim_actions_hold(const struct sim_work *work);

/** A copy that is not carried out yet and begins at an address in there, on either side; or NULL. */
const struct sim_action *sim_actions_find(uint64_t base, uint64_t bytes);

/** Drop the actions of a device, whose streams end. */
void sim_actions_drop(unsigned device);

#endif
