/* SPDX-License-Identifier: MIT */
/* Processes that share one simulated device by a budget file; each has an allocator and executes commands from a
 * socket. */
#ifndef XSEG_TESTS_MEMBERS_H
#define XSEG_TESTS_MEMBERS_H

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "tests/support/process.h"
#include "xseg/pool.h"
#include "xseg/range.h"

#define MEMBERS       8u
#define MEMBER_BLOCKS 64u

enum member_operation {
    MEMBER_QUERY,            /* no call: the response has the state of the member */
    MEMBER_ALLOC,            /* allocate block `index` of `bytes` */
    MEMBER_ALLOC_IN_POOL,    /* as MEMBER_ALLOC, from a private pool */
    MEMBER_ALLOC_BY_THREADS, /* two threads retry an allocation of `bytes` until one succeeds */
    MEMBER_FREE,             /* free block `index` */
    MEMBER_COMMIT,           /* commit `bytes` of an elastic range from granule `index` on */
    MEMBER_PAUSE,            /* pause the private pool */
    MEMBER_RESUME,           /* resume it */
    MEMBER_TRIM,
    MEMBER_CONFIGURE, /* set the configuration `text` */
    MEMBER_MARK,      /* mark the device as capturing */
    MEMBER_UNMARK,
    MEMBER_FORK /* fork a child, whose calls must fail */
};

struct member_command {
    enum member_operation operation;
    unsigned index;
    uint64_t bytes;
    char text[256];
};

struct member_response {
    int status;
    uint64_t ns;                        /* duration of the call */
    uint64_t physical, idle, allocated; /* bytes of the device after the call */
    uint64_t creates;                   /* cuMemCreate calls of the command */
    unsigned warnings;                  /* number of warnings in the log since the start */
    char text[512];                     /* error message, or the last warning */
};

static struct {
    struct process process[MEMBERS];
    unsigned count;
    struct xseg_sim_settings sim_settings;
    char sim_name[64], folder[64], budget_file[128];
    /* Called in each new member: first of all, and before it opens its allocator; may be NULL. */
    void (*at_start)(int socket);
    void (*before_open)(void);
} members;

/* --- In a member. --- */

static struct {
    struct xseg_allocator *allocator;
    struct xseg_range *range;
    struct xseg_pool *pool;
    void *block[MEMBER_BLOCKS];
    pthread_mutex_t lock; /* guards the next two members: the background thread logs */
    unsigned warnings;
    char warning[512]; /* the last one */
    atomic_bool is_served;
} member = {.lock = PTHREAD_MUTEX_INITIALIZER};

static inline void member_log(void *context, enum xseg_log_level level, const char *line)
{
    (void)context;
    if (level != XSEG_LOG_WARNING || strstr(line, "self-checks: ") != NULL)
        return;
    (void)pthread_mutex_lock(&member.lock);
    member.warnings++;
    (void)snprintf(member.warning, sizeof(member.warning), "%s", line);
    (void)pthread_mutex_unlock(&member.lock);
}

static inline uint64_t member_clock(void)
{
    struct timespec now = {0};

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* *block: the address of the size at the begin, and the block or NULL at the end. */
static inline void *member_alloc_until_served(void *block)
{
    const uint64_t *bytes = *(void **)block;
    const uint64_t deadline = member_clock() + UINT64_C(20) * 1000000000;
    void *ptr = NULL;

    while (!atomic_load(&member.is_served) && member_clock() < deadline)
        if (xseg_alloc(member.allocator, 0, *bytes, NULL, &ptr) == XSEG_OK)
            atomic_store(&member.is_served, true);
    *(void **)block = ptr;
    return NULL;
}

/* Two threads retry an allocation, so that one of them always waits, until one succeeds. */
static inline xseg_status member_alloc_by_threads(uint64_t bytes)
{
    void *block[2] = {&bytes, &bytes};
    pthread_t thread[2];

    atomic_store(&member.is_served, false);
    for (unsigned i = 0; i < 2; i++)
        if (pthread_create(&thread[i], NULL, member_alloc_until_served, &block[i]) != 0)
            return XSEG_ERR_HOST_MEMORY;
    for (unsigned i = 0; i < 2; i++) {
        (void)pthread_join(thread[i], NULL);
        if (block[i] != NULL)
            (void)!xseg_free(member.allocator, block[i]);
    }
    return atomic_load(&member.is_served) ? XSEG_OK : XSEG_ERR_NO_MEMORY;
}

/* Fork.  Expect that calls of the child fail; its exit must have no effect on the member. */
static inline xseg_status member_fork(void)
{
    void *block = NULL;
    int status = 1;
    const pid_t child = fork();

    if (child == 0) {
        const bool has_failed = xseg_alloc(member.allocator, 0, MIB, NULL, &block) != XSEG_OK &&
                                xseg_config_set(member.allocator, "budget_share:1") != XSEG_OK &&
                                xseg_close(member.allocator) != XSEG_OK;

        /* At exit() LeakSanitizer would report the memory of the library, which is wiped on fork. */
        if (ENV_IS_SANITIZED)
            _exit(has_failed ? 0 : 1);
        exit(has_failed ? 0 : 1);
    }
    if (child < 0 || waitpid(child, &status, 0) != child || status != 0)
        return XSEG_ERR_FORKED;
    return XSEG_OK;
}

static inline xseg_status member_execute(const struct member_command *command)
{
    struct xseg_request request = {sizeof(request), .bytes = command->bytes};
    void **block = &member.block[command->index];

    switch (command->operation) {
    case MEMBER_ALLOC:
        return xseg_alloc(member.allocator, 0, command->bytes, NULL, block);
    case MEMBER_FREE:
        return xseg_free(member.allocator, *block);
    case MEMBER_COMMIT:
        if (member.range == NULL &&
            xseg_range_reserve(member.allocator, 0, 4 * GIB, NULL, &member.range) != XSEG_OK)
            return XSEG_ERR_ARGUMENT;
        return xseg_range_commit(member.range, command->index * 2 * MIB, command->bytes, NULL);
    case MEMBER_ALLOC_IN_POOL:
        if (member.pool == NULL &&
            xseg_pool_create(member.allocator, 0, NULL, &member.pool) != XSEG_OK)
            return XSEG_ERR_ARGUMENT;
        request.pool = member.pool;
        return xseg_alloc_with(member.allocator, &request, block);
    case MEMBER_TRIM:
        return xseg_trim(member.allocator, NULL, NULL, NULL);
    case MEMBER_PAUSE:
        return xseg_pool_pause(member.pool, XSEG_KEEP_NOTHING, NULL);
    case MEMBER_RESUME:
        return xseg_pool_resume(member.pool);
    case MEMBER_ALLOC_BY_THREADS:
        return member_alloc_by_threads(command->bytes);
    case MEMBER_CONFIGURE:
        return xseg_config_set(member.allocator, command->text);
    case MEMBER_FORK:
        return member_fork();
    case MEMBER_MARK:
        return xseg_capture_mark(member.allocator, 0);
    case MEMBER_UNMARK:
        return xseg_capture_unmark(member.allocator, 0);
    case MEMBER_QUERY:
    default:
        return XSEG_OK;
    }
}

/* Execute a command, and send the response. */
static inline void member_serve_command(int socket, const struct member_command *command)
{
    struct xseg_statistics stats = {sizeof(stats)};
    struct xseg_scope scope = XSEG_SCOPE_ALL;
    struct member_response response = {0};
    const uint64_t begin = member_clock(), creates = xseg_sim_calls("cuMemCreate");

    response.status = member_execute(command);
    response.ns = member_clock() - begin;
    response.creates = xseg_sim_calls("cuMemCreate") - creates;
    if (response.status != XSEG_OK)
        (void)xseg_error_message(response.text, sizeof(response.text));
    (void)pthread_mutex_lock(&member.lock);
    if (response.status == XSEG_OK)
        (void)snprintf(response.text, sizeof(response.text), "%s", member.warning);
    response.warnings = member.warnings;
    (void)pthread_mutex_unlock(&member.lock);
    scope.device = 0;
    if (xseg_stats_get(member.allocator, &scope, &stats) != XSEG_OK)
        _exit(3);
    response.physical = stats.physical_bytes;
    response.allocated = stats.allocated_bytes[XSEG_STAT_ALL].current;
    response.idle = response.physical - stats.active_bytes[XSEG_STAT_ALL].current;
    if (write(socket, &response, sizeof(response)) != (ssize_t)sizeof(response))
        _exit(3);
}

/* Execute commands until the socket is closed.  The exit releases the member's memory. */
static inline void member_run(int socket, const char *config)
{
    struct xseg_options options = {sizeof(options), .driver = env_driver(), .log = member_log};
    struct member_command command;

    if (members.at_start != NULL)
        members.at_start(socket);
    if (xseg_sim_reset(&members.sim_settings) != XSEG_OK)
        _exit(2);
    if (members.before_open != NULL)
        members.before_open();
    if (xseg_open(config, &options, &member.allocator) != XSEG_OK)
        _exit(2);
    while (read(socket, &command, sizeof(command)) == (ssize_t)sizeof(command))
        member_serve_command(socket, &command);
    _exit(0);
}

/* --- In the test. --- */

static inline int members_begin(void **state)
{
    (void)state;
    memset(&members, 0, sizeof(members));
    members.sim_settings =
        (struct xseg_sim_settings){sizeof(members.sim_settings), .memory_bytes = GIB};
    if (!sim_shared_name(members.sim_name, sizeof(members.sim_name)))
        return -1;
    members.sim_settings.shared = members.sim_name;
    (void)snprintf(members.folder, sizeof(members.folder), "/dev/shm/xseg-test-XXXXXX");
    if (mkdtemp(members.folder) == NULL)
        return -1;
    (void)snprintf(members.budget_file, sizeof(members.budget_file), "%s/budget", members.folder);
    return 0;
}

static inline void member_end(unsigned number)
{
    int result = 0;

    if (members.process[number].pid == 0)
        return;
    (void)close(members.process[number].socket);
    (void)waitpid(members.process[number].pid, &result, 0);
    members.process[number].pid = 0;
}

static inline void member_kill(unsigned number)
{
    (void)kill(members.process[number].pid, SIGKILL);
    member_end(number);
}

/* Members exit without detaching from the simulated device, so its file is removed here. */
static inline int members_end(void **state)
{
    char sim_path[128];

    (void)state;
    for (unsigned i = 0; i < members.count; i++)
        member_end(i);
    (void)snprintf(sim_path, sizeof(sim_path), "/dev/shm/xseg-sim-%s", members.sim_name);
    (void)unlink(sim_path);
    (void)unlink(members.budget_file);
    return rmdir(members.folder);
}

/* Start a member; returns its number.  The budget file of the test is added to a configuration without budget_file. */
static inline unsigned member_start(const char *config)
{
    struct process *process = &members.process[members.count];
    char extended[512];

    (void)snprintf(extended, sizeof(extended), "budget_file:%s,budget_wait_ms:400%s%s",
                   members.budget_file, config[0] != '\0' ? "," : "", config);
    assert_true(members.count < MEMBERS);
    process->pid = child_fork_with_socket(&process->socket);
    if (process->pid == 0) {
        for (unsigned i = 0; i < members.count; i++)
            (void)close(members.process[i].socket);
        member_run(process->socket, strstr(config, "budget_file") != NULL ? config : extended);
    }
    return members.count++;
}

static inline void member_send_command(unsigned number, const struct member_command *command)
{
    assert_int_equal(write(members.process[number].socket, command, sizeof(*command)),
                     sizeof(*command));
}

static inline void member_send(unsigned number, enum member_operation operation, unsigned index,
                               uint64_t bytes)
{
    member_send_command(number, &(struct member_command){operation, index, bytes, ""});
}

static inline struct member_response member_receive(unsigned number)
{
    struct pollfd ready = {members.process[number].socket, POLLIN, 0};
    struct member_response response = {0};

    assert_int_equal(poll(&ready, 1, 60000), 1);
    assert_int_equal(read(members.process[number].socket, &response, sizeof(response)),
                     sizeof(response));
    return response;
}

static inline struct member_response member_call(unsigned number, enum member_operation operation,
                                                 unsigned index, uint64_t bytes)
{
    member_send(number, operation, index, bytes);
    return member_receive(number);
}

static inline struct member_response member_configure(unsigned number, const char *text)
{
    struct member_command command = {MEMBER_CONFIGURE, 0, 0, ""};

    (void)snprintf(command.text, sizeof(command.text), "%s", text);
    member_send_command(number, &command);
    return member_receive(number);
}

/* Query a member every 10 ms until a condition on `response` holds, at most 3000 times. */
#define MEMBER_EVENTUALLY(number, condition)                                         \
    do {                                                                             \
        struct member_response response = member_call((number), MEMBER_QUERY, 0, 0); \
                                                                                     \
        for (unsigned tries = 0; !(condition) && tries < 3000; tries++) {            \
            (void)usleep(10000);                                                     \
            response = member_call((number), MEMBER_QUERY, 0, 0);                    \
        }                                                                            \
        assert_true(condition);                                                      \
    } while (0)

/* Maximum duration of a call: budget_wait_ms is 400, but the host may be loaded. */
#define MEMBER_MAX_NS (UINT64_C(30) * 1000000000)

/* Expect success within MEMBER_MAX_NS. */
#define EXPECT_OK(response)                                \
    do {                                                   \
        const struct member_response result_ = (response); \
                                                           \
        if (result_.status != XSEG_OK)                     \
            fail_msg("%s", result_.text);                  \
        assert_true(result_.ns < MEMBER_MAX_NS);           \
    } while (0)

/* As member_call(); expects that the call succeeds within MEMBER_MAX_NS. */
static inline struct member_response
member_expect_ok(unsigned number, enum member_operation operation, unsigned index, uint64_t bytes)
{
    const struct member_response response = member_call(number, operation, index, bytes);

    EXPECT_OK(response);
    return response;
}

/* As member_call(); expects that the call fails within MEMBER_MAX_NS for lack of memory. */
static inline struct member_response member_expect_denied(unsigned number,
                                                          enum member_operation operation,
                                                          unsigned index, uint64_t bytes)
{
    const struct member_response response = member_call(number, operation, index, bytes);

    assert_int_equal(response.status, XSEG_ERR_NO_MEMORY);
    assert_true(response.ns < MEMBER_MAX_NS);
    return response;
}

/* Allocate and free block 0, so that the member has this much idle memory. */
static inline void member_make_idle(unsigned number, uint64_t bytes)
{
    (void)member_expect_ok(number, MEMBER_ALLOC, 0, bytes);
    (void)member_expect_ok(number, MEMBER_FREE, 0, 0);
}

/* A test of two members with the default configuration, `first` and `second`. */
#define TEST_OF_TWO_MEMBERS(name, end)                      \
    static void name##_of(unsigned first, unsigned second); \
    TEST_WITH(name, members_begin, end)                     \
    {                                                       \
        const unsigned first = member_start("");            \
        name##_of(first, member_start(""));                 \
    }                                                       \
    static void name##_of(unsigned first, unsigned second)

static int members_ignore_sigpipe(void **state)
{
    (void)state;
    (void)signal(SIGPIPE, SIG_IGN);
    return 0;
}

TEST_GROUP_FIXTURE(members_ignore_sigpipe, NULL)

#endif
