/* SPDX-License-Identifier: MIT */
#include "src/tools/commands/advise/trials.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "src/tools/command/option.h"
#include "src/tools/output/amount.h"
#include "src/tools/output/message.h"
#include "src/tools/output/progress.h"
#include "src/tools/replay/min_device.h"
#include "src/tools/replay/replay.h"

#define PROCESSES_MAX 8
#define PROGRESS_NS   50000000 /* between updates of the progress bar */

/* In memory that the processes share. */
struct shared_results {
    atomic_size_t next, done;
    struct trial_results results[];
};

/* --- Child processes. --- */

static bool is_complete(const struct replay_result *result)
{
    return result->end == REPLAY_DONE && result->oom_at < 0;
}

static bool is_served(const struct replay_result *result)
{
    return is_complete(result) && result->failed_served == result->failed;
}

/* The last replay of a trial, which is reused if the next device is equal. */
struct stage {
    const struct xtrace *trace;
    struct replay_settings settings;
    struct replay_result result;
    bool has_result;
};

static const struct replay_result *replay_on(struct stage *stage, uint64_t device_bytes)
{
    if (stage->has_result && stage->settings.device_bytes == device_bytes)
        return &stage->result;
    if (stage->has_result)
        replay_result_fini(&stage->result);
    stage->settings.device_bytes = device_bytes;
    replay_run(stage->trace, &stage->settings, &stage->result);
    stage->has_result = true;
    return &stage->result;
}

static void find_devices(const struct stage *stage, struct trial_results *out)
{
    const struct replay_result *result = &stage->result;

    out->has_min_device =
        min_device_find(stage->trace, &stage->settings, result, false, &out->min_device);
    out->has_enough = out->has_min_device;
    out->enough = out->min_device;
    if (result->failed > 0)
        out->has_enough =
            min_device_find(stage->trace, &stage->settings, result, true, &out->enough);
}

static void replay_trial(const struct trial_program *program, const char *config, bool in_full,
                         struct trial_results *out)
{
    struct stage stage = {.trace = program->trace,
                          .settings = {.file = program->file,
                                       .config = config,
                                       .driver = GPU_SIMULATED,
                                       .check = CHECK_OFF,
                                       .tick_ms = option_table[OPTION_TICK].default_number,
                                       .quiet = true}};
    const struct replay_result *result = replay_on(&stage, program->device_bytes);

    out->is_broken = result->end == REPLAY_ERROR || result->end == REPLAY_MISMATCH;
    out->completes = is_complete(result);
    out->oom_at = result->oom_at;
    out->peak_requested = result->peak_requested;
    out->peak_reserved = result->peak_reserved;
    out->end_reserved = result->end_reserved;
    out->driver_ns = result->driver_ns;
    out->failed = result->failed;
    if (in_full)
        find_devices(&stage, out);
    result = replay_on(&stage, program->large_bytes);
    out->large = (struct trial_large){is_complete(result),
                                      result->oom_at < 0 ? (uint64_t)program->trace->op_count
                                                         : (uint64_t)result->oom_at,
                                      result->peak_reserved, result->driver_ns};
    out->serves = is_served(replay_on(&stage, program->target_bytes));
    replay_result_fini(&stage.result);
    out->is_there = true;
}

static void work(const struct trials *trials, struct trial *const *trial, size_t count,
                 bool in_full, struct shared_results *shared)
{
    for (;;) {
        const size_t at = atomic_fetch_add(&shared->next, 1);

        if (at >= count * trials->count)
            break;
        replay_trial(&trials->programs[at % trials->count], trial[at / trials->count]->config,
                     in_full, &shared->results[at]);
        (void)atomic_fetch_add(&shared->done, 1);
    }
}

/* --- The parent process. --- */

static size_t cpu_count(void)
{
    cpu_set_t set;
    const int count = sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;

    return count > PROCESSES_MAX ? PROCESSES_MAX : (size_t)count;
}

static pid_t start(const struct trials *trials, struct trial *const *trial, size_t count,
                   bool in_full, struct shared_results *shared)
{
    const pid_t parent = getpid();
    const pid_t child = fork();

    if (child != 0)
        return child;
    /* The child must not continue if the parent ends. */
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent)
        exit(EXIT_FAILURE);
    work(trials, trial, count, in_full, shared);
    exit(EXIT_SUCCESS);
}

static void draw(const struct trials *trials, size_t done)
{
    const size_t most = done > trials->expected ? done : trials->expected;

    progress_print_bar(done, most > 0 ? most : 1, "%s, %s", amount_of(done, "configuration").text,
                       trials->name);
}

/* Wait for a child, and draw the progress bar. */
static void wait_for(const struct trials *trials, const struct shared_results *shared, bool in_full,
                     pid_t child)
{
    const struct timespec pause = {.tv_nsec = PROGRESS_NS};
    int status;
    pid_t ended;

    do {
        ended = waitpid(child, &status, trials->progress ? WNOHANG : 0);
        if (ended == 0) {
            draw(trials, trials->done + (in_full ? 0 : atomic_load(&shared->done) / trials->count));
            (void)nanosleep(&pause, NULL);
        }
    } while (ended == 0 || (ended < 0 && errno == EINTR));
}

static void raise_to(uint64_t *most, uint64_t value)
{
    if (value > *most)
        *most = value;
}

static void add_results(struct trial_results *whole, const struct trial_results *results)
{
    if (results->peak_reserved > whole->peak_reserved)
        whole->peak_requested = results->peak_requested;
    if (results->oom_at >= 0 && (whole->oom_at < 0 || results->oom_at < whole->oom_at))
        whole->oom_at = results->oom_at;
    whole->is_broken |= results->is_broken;
    whole->completes &= results->completes;
    whole->serves &= results->serves;
    whole->has_min_device &= results->has_min_device;
    whole->has_enough &= results->has_enough;
    whole->failed += results->failed;
    raise_to(&whole->peak_reserved, results->peak_reserved);
    raise_to(&whole->driver_ns, results->driver_ns);
    raise_to(&whole->min_device, results->min_device);
    raise_to(&whole->enough, results->enough);
    whole->large.completes &= results->large.completes;
    whole->large.reach += results->large.reach;
    raise_to(&whole->large.peak_reserved, results->large.peak_reserved);
    raise_to(&whole->large.driver_ns, results->large.driver_ns);
}

static void add_up(struct trial *trial, size_t count)
{
    trial->whole = trial->results[0];
    for (size_t i = 1; i < count; i++)
        add_results(&trial->whole, &trial->results[i]);
}

static bool run_on(struct trials *trials, struct trial *const *trial, size_t count, bool in_full,
                   struct shared_results *shared)
{
    const size_t replays = count * trials->count;
    const size_t wanted = cpu_count() < replays ? cpu_count() : replays;
    pid_t children[PROCESSES_MAX];
    size_t started = 0;

    for (; started < wanted; started++) {
        children[started] = start(trials, trial, count, in_full, shared);
        if (children[started] < 0)
            break;
    }
    if (started == 0) {
        message_print("%s: cannot start a process for a replay: %s", trials->name, strerror(errno));
        return false;
    }
    for (size_t i = 0; i < started; i++)
        wait_for(trials, shared, in_full, children[i]);
    if (trials->progress)
        progress_clear();
    for (size_t i = 0; i < replays; i++) {
        if (!shared->results[i].is_there) {
            message_print(
                "%s: the process of the replay with '%s' was killed, for example because the "
                "host ran out of memory",
                trials->programs[i % trials->count].file, trial[i / trials->count]->config);
            return false;
        }
        trial[i / trials->count]->results[i % trials->count] = shared->results[i];
    }
    for (size_t i = 0; i < count; i++)
        add_up(trial[i], trials->count);
    return true;
}

bool trials_run(struct trials *trials, struct trial *const *trial, size_t count, bool in_full)
{
    const size_t bytes =
        sizeof(struct shared_results) + count * trials->count * sizeof(struct trial_results);
    struct shared_results *shared;
    bool fine;

    if (count == 0)
        return true;
    shared = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) {
        message_print("%s: out of host memory", trials->name);
        return false;
    }
    fine = run_on(trials, trial, count, in_full, shared);
    trials->done += in_full ? 0 : count;
    (void)munmap(shared, bytes);
    return fine;
}
