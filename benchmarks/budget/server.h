/* SPDX-License-Identifier: MIT */
/*
 * A process that serves sessions, on a simulated card that it shares with others.  It does what it is told through a
 * socket, and nothing beside but what the threads of the library do by themselves.
 *
 * Its clock is the simulated one, and stands still until the next order moves it; so does the library's.  A session begins
 * with 300 ms of work on its service's stream, and ends with 50 ms behind which its blocks are freed, without a wait.
 */
#ifndef BENCHMARKS_BUDGET_SERVER_H
#define BENCHMARKS_BUDGET_SERVER_H

#include <stdbool.h>
#include <sys/types.h>

#include "benchmarks/budget/sessions.h"

#define CALLS 6u

enum server_task {
    SERVER_LOOK,  /* only move the clock */
    SERVER_BEGIN, /* a session */
    SERVER_END,   /* one that was served */
    SERVER_LEAVE  /* give everything back, and end */
};

struct server_order {
    enum server_task task;
    uint32_t session;
    uint64_t at_ns;
};

/* Times and calls of a request are those of the session that was to begin. */
struct server_answer {
    bool served;
    uint64_t driver_ns;     /* simulated time in the request's driver calls: modelled */
    uint64_t host_ns;       /* time of the machine that the request took: measured */
    uint64_t waits;         /* calls of the request that wait for the device */
    uint64_t physical;      /* bytes that the process has of the card, afterwards */
    uint64_t all_driver_ns; /* of all calls so far */
    uint64_t calls[CALLS];  /* made so far */
};

struct server_machine {
    const char *name;      /* of the simulated machine that the processes share */
    uint64_t memory_bytes; /* of its card */
};

struct server {
    pid_t pid;
    int socket;
};

extern const char *const server_call[CALLS];

/*
 * Start a process.
 *
 * services: bits of those that it serves; it allocates their weights at once
 * ticks:    whether it calls xseg_trim() with due_only every ten seconds
 */
struct server server_start(const struct server_machine *machine, const struct week *week,
                           unsigned services, const char *config, bool ticks);

/* Give an order and await the answer.  Ends the programme if the process has ended. */
struct server_answer server_do(const struct server *server, struct server_order order);

/* Let a process end: with everything given back, or the programme ends. */
struct server_answer server_end(const struct server *server, uint64_t at_ns);

/* End the programme unless something holds. */
void require(bool holds, const char *what);

#endif
