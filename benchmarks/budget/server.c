/* SPDX-License-Identifier: MIT */
#include "benchmarks/budget/server.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "xseg/sim.h"
#include "xseg/xseg.h"

#define DECAY_INTERVAL_NS (10 * SECOND_NS)
#define START_WORK_NS     (300 * MILLISECOND_NS)
#define END_WORK_NS       (50 * MILLISECOND_NS)

/* Maximum driver time of a decay pass in microseconds; the passes run between requests. */
#define DECAY_BUDGET_US 100000u
#define NON_BLOCKING    1u

/* Driver functions, declared with plain C types. */
int cuInit(unsigned flags);
int cuDevicePrimaryCtxRetain(void **context, int device);
int cuCtxPushCurrent_v2(void *context);
int cuStreamCreate(xseg_stream *stream, unsigned flags);

const char *const server_call[CALLS] = {"cuMemCreate", "cuMemMap",     "cuMemSetAccess",
                                        "cuMemUnmap",  "cuMemRelease", "cuMemGetInfo"};

/* State of a server process. */
struct state {
    const struct week *week;
    struct xseg_allocator *allocator;
    xseg_stream stream[SERVICES];
    void *weights[SERVICES];
    void *(*blocks)[BLOCKS_MAX]; /* of each session */
    bool runs_decay;
};

void require(bool condition, const char *operation)
{
    char text[1024] = "";

    if (condition)
        return;
    (void)xseg_error_message(text, sizeof(text));
    (void)fprintf(stderr, "bench-budget: %s: %s\n", operation, text);
    exit(1);
}

/* --- Server process. --- */

static uint64_t read_host_clock(void)
{
    struct timespec time = {0};

    (void)clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * SECOND_NS + (uint64_t)time.tv_nsec;
}

static uint64_t read_simulated_clock(void *context)
{
    (void)context;
    return xseg_sim_clock();
}

static uint64_t count_waits(void)
{
    return xseg_sim_calls("cuStreamSynchronize") + xseg_sim_calls("cuEventSynchronize") +
           xseg_sim_calls("cuCtxSynchronize");
}

/* Run a decay pass, like the timer of a service. */
static bool trim_due(struct xseg_allocator *allocator)
{
    const struct xseg_trim_options options = {
        .struct_size = sizeof(options),
        .due_only = true,
        .max_us = DECAY_BUDGET_US,
    };

    return xseg_trim(allocator, NULL, &options, NULL) == XSEG_OK;
}

/* Driver calls also advance the clock, so the clock may be past `time_ns`. */
static void advance_clock(const struct state *state, uint64_t time_ns)
{
    for (uint64_t now = xseg_sim_clock(); now < time_ns; now = xseg_sim_clock()) {
        xseg_sim_advance(time_ns - now < DECAY_INTERVAL_NS ? time_ns - now : DECAY_INTERVAL_NS);
        require(!state->runs_decay || trim_due(state->allocator), "xseg_trim");
    }
}

static void free_blocks(const struct state *state, uint32_t session, unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        require(xseg_free(state->allocator, state->blocks[session][i]) == XSEG_OK, "xseg_free");
}

/* Allocate all blocks of a session, or none. */
static bool allocate_session(const struct state *state, uint32_t index)
{
    const struct session *session = &state->week->sessions[index];

    for (unsigned i = 0; i < session->count; i++) {
        const xseg_status status =
            xseg_alloc(state->allocator, 0, session->block[i], state->stream[session->service],
                       &state->blocks[index][i]);

        require(status == XSEG_OK || status == XSEG_ERR_NO_MEMORY || status == XSEG_ERR_LIMIT,
                "xseg_alloc");
        if (status != XSEG_OK) {
            free_blocks(state, index, i);
            return false;
        }
    }
    return true;
}

static void begin_session(const struct state *state, uint32_t index,
                          struct server_response *response)
{
    const uint64_t driver_ns = xseg_sim_driver_time(), waits = count_waits();
    const uint64_t host_ns = read_host_clock();

    response->served = allocate_session(state, index);
    response->host_ns = read_host_clock() - host_ns;
    response->driver_ns = xseg_sim_driver_time() - driver_ns;
    response->waits = count_waits() - waits;
    if (response->served)
        require(xseg_sim_launch(state->stream[state->week->sessions[index].service],
                                START_WORK_NS) == XSEG_OK,
                "xseg_sim_launch");
}

static void end_session(const struct state *state, uint32_t index)
{
    const struct session *session = &state->week->sessions[index];

    require(xseg_sim_launch(state->stream[session->service], END_WORK_NS) == XSEG_OK,
            "xseg_sim_launch");
    free_blocks(state, index, session->count);
}

/* The simulator removes the shared host when its last process resets it. */
static void close_allocator(struct state *state)
{
    const struct xseg_sim_settings unshared = {sizeof(unshared)};

    for (unsigned i = 0; i < SERVICES; i++)
        require(xseg_free(state->allocator, state->weights[i]) == XSEG_OK, "xseg_free");
    require(xseg_close(state->allocator) == XSEG_OK, "xseg_close");
    require(xseg_sim_used(0) == 0, "memory was not released");
    require(xseg_sim_reset(&unshared) == XSEG_OK, "xseg_sim_reset");
}

static struct server_response handle_command(struct state *state,
                                             const struct server_command *command)
{
    struct xseg_statistics stats = {sizeof(stats)};
    struct server_response response = {0};
    struct xseg_scope scope = XSEG_SCOPE_ALL;

    advance_clock(state, command->time_ns);
    if (command->task == SERVER_BEGIN)
        begin_session(state, command->session, &response);
    else if (command->task == SERVER_END)
        end_session(state, command->session);
    scope.device = 0;
    require(xseg_stats_get(state->allocator, &scope, &stats) == XSEG_OK, "xseg_stats_get");
    response.physical = stats.physical_bytes;
    response.all_driver_ns = xseg_sim_driver_time();
    for (unsigned i = 0; i < CALLS; i++)
        response.calls[i] = xseg_sim_calls(server_call[i]);
    if (command->task == SERVER_CLOSE)
        close_allocator(state);
    return response;
}

static void open_allocator(struct state *state, const struct server_host *host,
                           unsigned service_mask, const char *config)
{
    struct xseg_sim_settings settings = {sizeof(settings)};
    struct xseg_options options = {sizeof(options)};
    void *context = NULL;

    settings.costs = "a100";
    settings.memory_bytes = host->memory_bytes;
    settings.shared = host->name;
    require(xseg_sim_reset(&settings) == XSEG_OK, "xseg_sim_reset");
    require(cuInit(0) == 0 && cuDevicePrimaryCtxRetain(&context, 0) == 0 &&
                cuCtxPushCurrent_v2(context) == 0,
            "open the simulated driver");
    options.driver = BENCH_DRIVER;
    options.clock = read_simulated_clock;
    require(xseg_open(config, &options, &state->allocator) == XSEG_OK, "xseg_open");
    for (unsigned i = 0; i < SERVICES; i++) {
        if ((service_mask >> i & 1) == 0)
            continue;
        require(cuStreamCreate(&state->stream[i], NON_BLOCKING) == 0, "cuStreamCreate");
        require(xseg_alloc(state->allocator, 0, services[i].weight_bytes, state->stream[i],
                           &state->weights[i]) == XSEG_OK,
                "xseg_alloc");
    }
}

/* --- Parent process. --- */

struct server server_start(const struct server_host *host, const struct week *week,
                           unsigned service_mask, const char *config, bool runs_decay)
{
    struct state state = {.week = week, .runs_decay = runs_decay};
    struct server_command command = {0};
    struct server server;
    int sockets[2];

    require(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) == 0, "socketpair");
    (void)fflush(NULL);
    server = (struct server){fork(), sockets[0]};
    require(server.pid >= 0, "fork");
    if (server.pid != 0) {
        (void)close(sockets[1]);
        (void)server_execute(&server, command);
        return server;
    }
    (void)close(sockets[0]);
    state.blocks = calloc(week->count + 1, sizeof(*state.blocks));
    require(state.blocks != NULL, "out of host memory");
    open_allocator(&state, host, service_mask, config);
    while (command.task != SERVER_CLOSE &&
           read(sockets[1], &command, sizeof(command)) == (ssize_t)sizeof(command)) {
        const struct server_response response = handle_command(&state, &command);

        require(write(sockets[1], &response, sizeof(response)) == (ssize_t)sizeof(response),
                "write");
    }
    free(state.blocks);
    _exit(command.task == SERVER_CLOSE ? 0 : 1);
}

struct server_response server_execute(const struct server *server, struct server_command command)
{
    struct server_response response = {0};

    require(write(server->socket, &command, sizeof(command)) == (ssize_t)sizeof(command), "write");
    require(read(server->socket, &response, sizeof(response)) == (ssize_t)sizeof(response),
            "server process has exited");
    return response;
}

struct server_response server_stop(const struct server *server, uint64_t time_ns)
{
    const struct server_command command = {.task = SERVER_CLOSE, .time_ns = time_ns};
    const struct server_response response = server_execute(server, command);
    int result = 1;

    (void)close(server->socket);
    require(waitpid(server->pid, &result, 0) == server->pid && result == 0,
            "server process failed");
    return response;
}
