/* SPDX-License-Identifier: MIT */
#include "src/tools/route.h"

#include <stdlib.h>
#include <string.h>

void routes_init(struct routes *routes, uint32_t stream_count)
{
    *routes = (struct routes){NULL, 0, 0, stream_count};
}

void routes_fini(struct routes *routes)
{
    for (size_t i = 0; i < routes->count; i++)
        free(routes->open[i].streams);
    free(routes->open);
    routes->open = NULL;
    routes->count = 0;
}

bool routes_begin(struct routes *routes, uint16_t pool, uint16_t stream, bool capture)
{
    struct route *open = realloc(routes->open, (routes->count + 1) * sizeof(*open));
    bool *streams = calloc(routes->stream_count, sizeof(*streams));

    if (open)
        routes->open = open;
    if (!open || !streams) {
        free(streams);
        return false;
    }
    streams[stream] = true;
    open[routes->count++] = (struct route){pool, capture, streams};
    routes->captures += capture;
    return true;
}

void routes_end(struct routes *routes, uint16_t pool)
{
    size_t at = 0;

    while (at < routes->count && routes->open[at].pool != pool)
        at++;
    if (at == routes->count)
        return;
    routes->captures -= routes->open[at].capture;
    free(routes->open[at].streams);
    routes->count--;
    memmove(&routes->open[at], &routes->open[at + 1], (routes->count - at) * sizeof(*routes->open));
}

void routes_join(struct routes *routes, uint16_t stream, uint16_t other)
{
    for (size_t i = 0; i < routes->count; i++)
        if (routes->open[i].capture && routes->open[i].streams[other])
            routes->open[i].streams[stream] = true;
}

uint16_t routes_find(const struct routes *routes, uint16_t stream)
{
    for (size_t i = routes->count; i-- > 0;)
        if (routes->open[i].streams[stream])
            return routes->open[i].pool;
    return 0;
}
