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
    out->has_min_full_device = out->has_min_device;
    out->min_full_device = out->min_device;
    if (result->failed > 0)
        out->has_min_full_device =
            min_device_find(stage->trace, &stage->settings, result, true, &out->min_full_device);
}

static void replay_trial(const struct trial_program *program, const char *config, bool is_detailed,
                         struct trial_results *out)
{
    struct stage stage = {.trace = program->trace,
                          .settings = {.file = program->file,
                                       .config = config,
                                       .driver = GPU_SIMULATED,
                                       .check = CHECK_OFF,
                                       .tick_ms = option_table[OPTION_TICK].default_number,
                                       .headroom = is_detailed,
                                       .quiet = true}};
    const struct replay_result *result = replay_on(&stage, program->device_bytes);

    stage.settings.headroom = false;
    out->is_broken = result->end == REPLAY_ERROR || result->end == REPLAY_MISMATCH;
    out->completes = is_complete(result);
    out->oom_at = result->oom_at;
    out->peak_requested = result->peak_requested;
    out->peak_reserved = result->peak_reserved;
    out->end_reserved = result->end_reserved;
    out->peak_allocated = result->peak_allocated;
    out->end_allocated = result->end_allocated;
    out->headroom = result->headroom;
    out->headroom_of_peak = result->headroom_of_peak;
    out->driver_ns = result->driver_ns;
    out->failed = result->failed;
    if (is_detailed)
        find_devices(&stage, out);
    result = replay_on(&stage, program->large_bytes);
    out->large = (struct trial_large){is_complete(result),
                                      result->oom_at < 0 ? (uint64_t)program->trace->op_count
                                                         : (uint64_t)result->oom_at,
                                      result->peak_reserved, result->driver_ns};
    out->completes_on_target = is_served(replay_on(&stage, program->target_bytes));
    replay_result_fini(&stage.result);
    out->has_ended = true;
}

static void run_trials(const struct trials *trials, struct trial *const *trial, size_t count,
                       bool is_detailed, struct shared_results *shared)
{
    for (;;) {
        const size_t index = atomic_fetch_add(&shared->next, 1);

        if (index >= count * trials->count)
            break;
        replay_trial(&trials->programs[index % trials->count], trial[index / trials->count]->config,
                     is_detailed, &shared->results[index]);
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

static pid_t start_child(const struct trials *trials, struct trial *const *trial, size_t count,
                         bool is_detailed, struct shared_results *shared)
{
    const pid_t parent = getpid();
    const pid_t child = fork();

    if (child != 0)
        return child;
    /* The child must not continue if the parent ends. */
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent)
        exit(EXIT_FAILURE);
    run_trials(trials, trial, count, is_detailed, shared);
    exit(EXIT_SUCCESS);
}

static void draw_progress(const struct trials *trials, size_t done)
{
    const size_t max = done > trials->expected ? done : trials->expected;

    progress_print_bar(done, max > 0 ? max : 1, "%s, %s", amount_of(done, "configuration").text,
                       trials->name);
}

/* Wait for a child, and draw the progress bar. */
static void wait_for_child(const struct trials *trials, const struct shared_results *shared,
                           bool is_detailed, pid_t child)
{
    const struct timespec pause = {.tv_nsec = PROGRESS_NS};
    int status;
    pid_t ended;

    do {
        ended = waitpid(child, &status, trials->progress ? WNOHANG : 0);
        if (ended == 0) {
            draw_progress(trials,
                          trials->done +
                              (is_detailed ? 0 : atomic_load(&shared->done) / trials->count));
            (void)nanosleep(&pause, NULL);
        }
    } while (ended == 0 || (ended < 0 && errno == EINTR));
}

static void update_max(uint64_t *max, uint64_t value)
{
    if (value > *max)
        *max = value;
}

static void combine_results(struct trial_results *combined, const struct trial_results *results)
{
    if (results->peak_reserved > combined->peak_reserved)
        combined->peak_requested = results->peak_requested;
    if (results->oom_at >= 0 && (combined->oom_at < 0 || results->oom_at < combined->oom_at))
        combined->oom_at = results->oom_at;
    combined->is_broken |= results->is_broken;
    combined->completes &= results->completes;
    combined->completes_on_target &= results->completes_on_target;
    combined->has_min_device &= results->has_min_device;
    combined->has_min_full_device &= results->has_min_full_device;
    combined->failed += results->failed;
    update_max(&combined->peak_reserved, results->peak_reserved);
    update_max(&combined->driver_ns, results->driver_ns);
    update_max(&combined->min_device, results->min_device);
    update_max(&combined->min_full_device, results->min_full_device);
    combined->large.completes &= results->large.completes;
    combined->large.reach += results->large.reach;
    update_max(&combined->large.peak_reserved, results->large.peak_reserved);
    update_max(&combined->large.driver_ns, results->large.driver_ns);
}

static void combine_programs(struct trial *trial, size_t count)
{
    trial->combined = trial->results[0];
    for (size_t i = 1; i < count; i++)
        combine_results(&trial->combined, &trial->results[i]);
}

static bool run_children(struct trials *trials, struct trial *const *trial, size_t count,
                         bool is_detailed, struct shared_results *shared)
{
    const size_t replays = count * trials->count;
    const size_t process_count = cpu_count() < replays ? cpu_count() : replays;
    pid_t children[PROCESSES_MAX];
    size_t started = 0;

    for (; started < process_count; started++) {
        children[started] = start_child(trials, trial, count, is_detailed, shared);
        if (children[started] < 0)
            break;
    }
    if (started == 0) {
        message_print("%s: cannot start a process for a replay: %s", trials->name, strerror(errno));
        return false;
    }
    for (size_t i = 0; i < started; i++)
        wait_for_child(trials, shared, is_detailed, children[i]);
    if (trials->progress)
        progress_clear();
    for (size_t i = 0; i < replays; i++) {
        if (!shared->results[i].has_ended) {
            message_print(
                "%s: the process of the replay with '%s' was killed, for example because the "
                "host ran out of memory",
                trials->programs[i % trials->count].file, trial[i / trials->count]->config);
            return false;
        }
        trial[i / trials->count]->results[i % trials->count] = shared->results[i];
    }
    for (size_t i = 0; i < count; i++)
        combine_programs(trial[i], trials->count);
    return true;
}

bool trials_run(struct trials *trials, struct trial *const *trial, size_t count, bool is_detailed)
{
    const size_t bytes =
        sizeof(struct shared_results) + count * trials->count * sizeof(struct trial_results);
    struct shared_results *shared;
    bool success;

    if (count == 0)
        return true;
    shared = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) {
        message_print("%s: out of host memory", trials->name);
        return false;
    }
    success = run_children(trials, trial, count, is_detailed, shared);
    trials->done += is_detailed ? 0 : count;
    (void)munmap(shared, bytes);
    return success;
}
