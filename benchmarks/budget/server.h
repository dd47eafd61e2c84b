/* SPDX-License-Identifier: MIT */
/*
 * A process that serves sessions on a simulated GPU that several processes share.  The process executes commands that it
 * receives through a socket; otherwise only the library's threads run.
 *
 * The simulated clock, which the library also uses, advances only by commands and driver calls.  A session begins with 300 ms
 * of work on the stream of its service, and ends with 50 ms of work; its blocks are freed in stream order, without a wait.
 */
#ifndef BENCHMARKS_BUDGET_SERVER_H
#define BENCHMARKS_BUDGET_SERVER_H

#include <stdbool.h>
#include <sys/types.h>

#include "benchmarks/budget/sessions.h"

#define CALLS 6u

enum server_task {
    SERVER_ADVANCE, /* only advance the clock */
    SERVER_BEGIN,   /* begin a session */
    SERVER_END,     /* end a session that was served */
    SERVER_CLOSE    /* release all memory, and exit */
};

struct server_command {
    enum server_task task;
    uint32_t session;
    uint64_t time_ns;
};

/* The result of a command.  Times and calls of a request are set by SERVER_BEGIN. */
struct server_response {
    bool served;
    uint64_t driver_ns;     /* modeled time of the request's driver calls */
    uint64_t host_ns;       /* measured host time of the request */
    uint64_t waits;         /* calls of the request that wait for the device */
    uint64_t physical;      /* physical bytes of the process afterwards */
    uint64_t all_driver_ns; /* modeled time of all calls so far */
    uint64_t calls[CALLS];  /* number of calls so far */
};

struct server_host {
    const char *name;      /* of the simulated host that the processes share */
    uint64_t memory_bytes; /* of its GPU */
};

struct server {
    pid_t pid;
    int socket;
};

extern const char *const server_call[CALLS];

/*
 * Start a process.
 *
 * service_mask: bit mask of the services; the process immediately allocates their weights
 * runs_decay:   whether the process calls xseg_trim() with due_only every ten seconds
 */
struct server server_start(const struct server_host *host, const struct week *week,
                           unsigned service_mask, const char *config, bool runs_decay);

/* Send a command, and wait for the response.  Ends the program if the process has exited. */
struct server_response server_execute(const struct server *server, struct server_command command);

/* Stop a process.  Ends the program if the process did not release all memory. */
struct server_response server_stop(const struct server *server, uint64_t time_ns);

/* End the program with a message unless a condition holds. */
void require(bool condition, const char *operation);

#endif
