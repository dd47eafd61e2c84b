/* SPDX-License-Identifier: MIT */
#include "src/tools/commands/probe/probe_round.h"

#define RESULT_NOT_READY 600
#define EVENT_NO_TIMING  2u

bool probe_round_create_page(struct probe_round *round)
{
    const struct probe_properties properties = probe_driver_properties(round->driver);

    if (PROBE_CALL(round->driver, round->doing, create, &round->handle[round->created], round->page,
                   &properties, 0) != 0)
        return false;
    round->created++;
    return true;
}

bool probe_round_map_page(struct probe_round *round)
{
    if (PROBE_CALL(round->driver, round->doing, map, round->base + round->mapped * round->page,
                   round->page, 0, round->handle[round->mapped], 0) != 0)
        return false;
    round->mapped++;
    return true;
}

bool probe_round_allow_together(struct probe_round *round)
{
    const struct probe_access rights = probe_driver_access(round->driver);

    return PROBE_CALL(round->driver, round->doing, set_access, round->base,
                      round->mapped * round->page, &rights, 1) == 0;
}

bool probe_round_allow_each(struct probe_round *round)
{
    const struct probe_access rights = probe_driver_access(round->driver);

    for (unsigned i = 0; i < round->mapped; i++)
        if (PROBE_CALL(round->driver, round->doing, set_access, round->base + i * round->page,
                       round->page, &rights, 1) != 0)
            return false;
    return true;
}

bool probe_round_unmap_together(struct probe_round *round)
{
    if (PROBE_CALL(round->driver, round->doing, unmap, round->base, round->mapped * round->page) !=
        0)
        return false;
    round->mapped = 0;
    return true;
}

/* From the top, so that what is left is a run. */
bool probe_round_unmap_each(struct probe_round *round)
{
    for (; round->mapped > 0; round->mapped--)
        if (PROBE_CALL(round->driver, round->doing, unmap,
                       round->base + (round->mapped - 1) * round->page, round->page) != 0)
            return false;
    return true;
}

bool probe_round_release_page(struct probe_round *round)
{
    if (PROBE_CALL(round->driver, round->doing, release, round->handle[round->created - 1]) != 0)
        return false;
    round->created--;
    return true;
}

bool probe_round_reserve_range(struct probe_round *round)
{
    if (PROBE_CALL(round->driver, round->doing, reserve, &round->base, round->page * round->pages,
                   0, 0, 0) == 0)
        return true;
    round->base = 0;
    return false;
}

bool probe_round_unreserve_range(struct probe_round *round)
{
    if (PROBE_CALL(round->driver, round->doing, unreserve, round->base,
                   round->page * round->pages) != 0)
        return false;
    round->base = 0;
    return true;
}

bool probe_round_allocate(struct probe_round *round)
{
    if (PROBE_CALL(round->driver, round->doing, memory_alloc, &round->address, round->page) == 0)
        return true;
    round->address = 0;
    return false;
}

bool probe_round_free_allocation(struct probe_round *round)
{
    if (PROBE_CALL(round->driver, round->doing, memory_free, round->address) != 0)
        return false;
    round->address = 0;
    return true;
}

bool probe_round_create_event(struct probe_round *round)
{
    if (PROBE_CALL(round->driver, round->doing, event_create, &round->event, EVENT_NO_TIMING) == 0)
        return true;
    round->event = NULL;
    return false;
}

bool probe_round_record_event(struct probe_round *round)
{
    return PROBE_CALL(round->driver, round->doing, event_record, round->event,
                      round->driver->stream) == 0;
}

/* Not ready is an answer. */
bool probe_round_query_event(struct probe_round *round)
{
    const int result = PROBE_CALL(round->driver, round->doing, event_query, round->event);

    return result == 0 || result == RESULT_NOT_READY;
}

/* The legacy stream waits: what a programme without streams of its own works on. */
bool probe_round_wait_for_event(struct probe_round *round)
{
    return PROBE_CALL(round->driver, round->doing, stream_wait, NULL, round->event, 0) == 0;
}

/* Of a stream without work: what a wait costs that has nothing to wait for. */
bool probe_round_wait_for_stream(struct probe_round *round)
{
    return PROBE_CALL(round->driver, round->doing, stream_synchronize, NULL) == 0;
}

bool probe_round_destroy_event(struct probe_round *round)
{
    if (PROBE_CALL(round->driver, round->doing, event_destroy, round->event) != 0)
        return false;
    round->event = NULL;
    return true;
}

bool probe_round_ask_memory(struct probe_round *round)
{
    size_t free_bytes, total_bytes;

    return PROBE_CALL(round->driver, round->doing, memory_info, &free_bytes, &total_bytes) == 0;
}

bool probe_round_put_back(struct probe_round *round)
{
    struct probe_driver *driver = round->driver;
    bool all = true;

    for (; round->mapped > 0; round->mapped--)
        all &= PROBE_RETURN(driver, round->doing, unmap,
                            round->base + (round->mapped - 1) * round->page, round->page);
    for (; round->created > 0; round->created--)
        all &= PROBE_RETURN(driver, round->doing, release, round->handle[round->created - 1]);
    if (round->address)
        all &= PROBE_RETURN(driver, round->doing, memory_free, round->address);
    if (round->event)
        all &= PROBE_RETURN(driver, round->doing, event_destroy, round->event);
    round->address = 0;
    round->event = NULL;
    return all;
}

bool probe_round_put_range_back(struct probe_round *round)
{
    const bool fine = !round->base || PROBE_RETURN(round->driver, round->doing, unreserve,
                                                   round->base, round->page * round->pages);

    round->base = 0;
    return fine;
}
