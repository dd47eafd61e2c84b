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

struct member_command {
    char name;
    unsigned index;
    uint64_t bytes;
    char text[256]; /* of a configuration */
};

struct member_answer {
    int status;
    uint64_t ns;                     /* duration of the call */
    uint64_t taken, idle, allocated; /* bytes of the device after the command */
    uint64_t creates;                /* cuMemCreate calls of the command */
    unsigned lines;                  /* warnings in the log so far */
    char text[512];                  /* error message, or the last of these warnings */
};

static struct {
    struct process process[MEMBERS];
    unsigned count;
    struct xseg_sim_settings sim_settings;
    char sim_name[64], folder[64], budget_file[128];
    /* Called in each new member at its start, and before it opens its allocator; may be NULL. */
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
    unsigned lines;
    char line[512];
    atomic_bool is_served;
} member = {.lock = PTHREAD_MUTEX_INITIALIZER};

static inline void member_log(void *context, enum xseg_log_level level, const char *line)
{
    (void)context;
    if (level != XSEG_LOG_WARNING || strstr(line, "self-checks: ") != NULL)
        return;
    (void)pthread_mutex_lock(&member.lock);
    member.lines++;
    (void)snprintf(member.line, sizeof(member.line), "%s", line);
    (void)pthread_mutex_unlock(&member.lock);
}

static inline uint64_t member_clock(void)
{
    struct timespec now = {0};

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static inline void *member_alloc_until(void *block)
{
    const uint64_t *bytes = *(void **)block;
    const uint64_t until = member_clock() + UINT64_C(20) * 1000000000;
    void *ptr = NULL;

    while (!atomic_load(&member.is_served) && member_clock() < until)
        if (xseg_alloc(member.allocator, 0, *bytes, NULL, &ptr) == XSEG_OK)
            atomic_store(&member.is_served, true);
    *(void **)block = ptr;
    return NULL;
}

/* Two threads retry an allocation, so that one of them always waits, until one succeeds. */
static inline xseg_status member_alloc_in_two_threads(uint64_t bytes)
{
    void *block[2] = {&bytes, &bytes};
    pthread_t thread[2];

    atomic_store(&member.is_served, false);
    for (unsigned i = 0; i < 2; i++)
        if (pthread_create(&thread[i], NULL, member_alloc_until, &block[i]) != 0)
            return XSEG_ERR_HOST_MEMORY;
    for (unsigned i = 0; i < 2; i++) {
        (void)pthread_join(thread[i], NULL);
        if (block[i] != NULL)
            (void)!xseg_free(member.allocator, block[i]);
    }
    return atomic_load(&member.is_served) ? XSEG_OK : XSEG_ERR_NO_MEMORY;
}

/* Fork: calls of the child fail, and have no effect on this process. */
static inline xseg_status member_fork(void)
{
    void *block = NULL;
    int status = 1;
    const pid_t child = fork();

    if (child == 0) {
        const bool has_failed = xseg_alloc(member.allocator, 0, MIB, NULL, &block) != XSEG_OK &&
                                xseg_config_set(member.allocator, "budget_share:1") != XSEG_OK &&
                                xseg_close(member.allocator) != XSEG_OK;

        /* LeakSanitizer reports the memory that is wiped on fork. */
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

    switch (command->name) {
    case 'a':
        return xseg_alloc(member.allocator, 0, command->bytes, NULL, block);
    case 'f':
        return xseg_free(member.allocator, *block);
    case 'c':
        if (member.range == NULL &&
            xseg_range_reserve(member.allocator, 0, 4 * GIB, NULL, &member.range) != XSEG_OK)
            return XSEG_ERR_ARGUMENT;
        return xseg_range_commit(member.range, command->index * 2 * MIB, command->bytes, NULL);
    case 'p': /* from a private pool */
        if (member.pool == NULL &&
            xseg_pool_create(member.allocator, 0, NULL, &member.pool) != XSEG_OK)
            return XSEG_ERR_ARGUMENT;
        request.pool = member.pool;
        return xseg_alloc_with(member.allocator, &request, block);
    case 't':
        return xseg_trim(member.allocator, NULL, NULL, NULL);
    case 's': /* pause the pool */
        return xseg_pool_pause(member.pool, XSEG_KEEP_NOTHING, NULL);
    case 'w':
        return xseg_pool_resume(member.pool);
    case 'T':
        return member_alloc_in_two_threads(command->bytes);
    case 'C':
        return xseg_config_set(member.allocator, command->text);
    case 'F':
        return member_fork();
    case 'm':
        return xseg_capture_mark(member.allocator, 0);
    case 'u':
        return xseg_capture_unmark(member.allocator, 0);
    default:
        return XSEG_OK;
    }
}

static inline void member_answer(int socket, const struct member_command *command)
{
    struct xseg_statistics stats = {sizeof(stats)};
    struct xseg_scope scope = XSEG_SCOPE_ALL;
    struct member_answer answer = {0};
    const uint64_t begin = member_clock(), creates = xseg_sim_calls("cuMemCreate");

    answer.status = member_execute(command);
    answer.ns = member_clock() - begin;
    answer.creates = xseg_sim_calls("cuMemCreate") - creates;
    if (answer.status != XSEG_OK)
        (void)xseg_error_message(answer.text, sizeof(answer.text));
    (void)pthread_mutex_lock(&member.lock);
    if (answer.status == XSEG_OK)
        (void)snprintf(answer.text, sizeof(answer.text), "%s", member.line);
    answer.lines = member.lines;
    (void)pthread_mutex_unlock(&member.lock);
    scope.device = 0;
    if (xseg_stats_get(member.allocator, &scope, &stats) != XSEG_OK)
        _exit(3);
    answer.taken = stats.physical_bytes;
    answer.allocated = stats.allocated_bytes[XSEG_STAT_ALL].current;
    answer.idle = answer.taken - stats.active_bytes[XSEG_STAT_ALL].current;
    if (write(socket, &answer, sizeof(answer)) != (ssize_t)sizeof(answer))
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
        member_answer(socket, &command);
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

/* Start a member.  A configuration without a budget_file is extended by the file of the test. */
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

static inline void member_send(unsigned number, char name, unsigned index, uint64_t bytes)
{
    member_send_command(number, &(struct member_command){name, index, bytes, ""});
}

static inline struct member_answer member_receive(unsigned number)
{
    struct pollfd ready = {members.process[number].socket, POLLIN, 0};
    struct member_answer answer = {0};

    assert_int_equal(poll(&ready, 1, 60000), 1);
    assert_int_equal(read(members.process[number].socket, &answer, sizeof(answer)), sizeof(answer));
    return answer;
}

static inline struct member_answer member_call(unsigned number, char name, unsigned index,
                                               uint64_t bytes)
{
    member_send(number, name, index, bytes);
    return member_receive(number);
}

static inline struct member_answer member_configure(unsigned number, const char *text)
{
    struct member_command command = {'C', 0, 0, ""};

    (void)snprintf(command.text, sizeof(command.text), "%s", text);
    member_send_command(number, &command);
    return member_receive(number);
}

/* Poll a member's answer until a condition holds, for at most 30 s. */
#define MEMBER_EVENTUALLY(number, condition)                              \
    do {                                                                  \
        struct member_answer answer = member_call((number), ' ', 0, 0);   \
                                                                          \
        for (unsigned tries = 0; !(condition) && tries < 3000; tries++) { \
            (void)usleep(10000);                                          \
            answer = member_call((number), ' ', 0, 0);                    \
        }                                                                 \
        assert_true(condition);                                           \
    } while (0)

/* Upper limit of a wait in nanoseconds: budget_wait_ms is 400, and the host may be loaded. */
#define BOUND (UINT64_C(30) * 1000000000)

/* Expect success within BOUND. */
#define EXPECT_OK(answer)                              \
    do {                                               \
        const struct member_answer result_ = (answer); \
                                                       \
        if (result_.status != XSEG_OK)                 \
            fail_msg("%s", result_.text);              \
        assert_true(result_.ns < BOUND);               \
    } while (0)

/* As member_call(), of a command that succeeds within BOUND. */
static inline struct member_answer member_expect_ok(unsigned number, char name, unsigned index,
                                                    uint64_t bytes)
{
    const struct member_answer answer = member_call(number, name, index, bytes);

    EXPECT_OK(answer);
    return answer;
}

/* As member_call(), of a command that fails within BOUND for lack of memory. */
static inline struct member_answer member_expect_denied(unsigned number, char name, unsigned index,
                                                        uint64_t bytes)
{
    const struct member_answer answer = member_call(number, name, index, bytes);

    assert_int_equal(answer.status, XSEG_ERR_NO_MEMORY);
    assert_true(answer.ns < BOUND);
    return answer;
}

/* Allocate as block 0, and free: the memory is idle. */
static inline void member_make_idle(unsigned number, uint64_t bytes)
{
    (void)member_expect_ok(number, 'a', 0, bytes);
    (void)member_expect_ok(number, 'f', 0, 0);
}

/* A test of two members with the default configuration. */
#define TEST_OF_TWO_MEMBERS(name, end)                   \
    static void name##_of(unsigned one, unsigned other); \
    TEST_WITH(name, members_begin, end)                  \
    {                                                    \
        const unsigned one = member_start("");           \
        name##_of(one, member_start(""));                \
    }                                                    \
    static void name##_of(unsigned one, unsigned other)

static int members_ignore_sigpipe(void **state)
{
    (void)state;
    (void)signal(SIGPIPE, SIG_IGN);
    return 0;
}

TEST_GROUP_FIXTURE(members_ignore_sigpipe, NULL)

#endif
