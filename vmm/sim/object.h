/* SPDX-License-Identifier: MIT */
/*
 * User objects: what a program wants to be told about when the last graph that needs it has gone.
 *
 * References are counted.  The program holds some, graphs and executables hold others.  When none is
 * left, the object is put aside; before the call returns, its function runs without the lock, as a
 * host function does.
 *
 * Locking: the machine's lock.
 */
#ifndef XSEG_SIM_OBJECT_H
#define XSEG_SIM_OBJECT_H

#include <stdbool.h>
#include <stdint.h>

struct sim_object;

/** An object that a graph refers to. */
struct sim_held {
    struct sim_held *next;
    struct sim_object *object;
    uint64_t references;
};

/** Refer to all that a list refers to, once each.  Returns: false when there is no host memory */
bool sim_objects_hold(struct sim_held **list, const struct sim_held *from);

/** Give back all references of a list. */
void sim_objects_let_go(struct sim_held **list);

/** Run the functions of the objects that nothing refers to any more. */
void sim_objects_settle(void);

/** Drop all; for the end of the machine. */
void sim_objects_end(void);

#endif
