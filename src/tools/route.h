/* SPDX-License-Identifier: MIT */
/*
 * Where allocations go while captures or routings to private pools are under way.
 *
 * The one place that knows that a capture is replayed as a routing: streams are not put into the
 * driver's capture mode; what the captured stream, and the streams that joined it, allocate between
 * begin and end goes to the capture's pool, and nothing that is queued meanwhile keeps a stream busy.
 *
 * The latest begin that has not ended and that holds a stream decides.
 *
 * Locking: none; it belongs to one replay.
 */
#ifndef TOOLS_ROUTE_H
#define TOOLS_ROUTE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct route {
    uint16_t pool;
    bool capture;
    bool *streams; /* [stream_count] that it holds */
};

struct routes {
    struct route *open; /* oldest first */
    size_t count;
    size_t captures;
    uint32_t stream_count;
};

void routes_init(struct routes *routes, uint32_t stream_count);
void routes_fini(struct routes *routes);

/* Returns false without host memory; then nothing has changed. */
bool routes_begin(struct routes *routes, uint16_t pool, uint16_t stream, bool capture);

/* End what was begun for a pool. */
void routes_end(struct routes *routes, uint16_t pool);

/* A stream waits for another: it joins the captures that hold the other. */
void routes_join(struct routes *routes, uint16_t stream, uint16_t other);

/* The pool that an allocation on a stream goes to; 0 is the default pool. */
uint16_t routes_find(const struct routes *routes, uint16_t stream);

#endif
