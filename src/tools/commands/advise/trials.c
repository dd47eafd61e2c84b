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
#define PROGRESS_NS   50000000 /* between two looks */

/* What the processes share. */
struct board {
    atomic_size_t next, done;
    struct trial_figures figures[];
};

/* --- In a child. --- */

static bool is_complete(const struct replay_result *result)
{
    return result->end == REPLAY_DONE && result->oom_at < 0;
}

static bool is_served(const struct replay_result *result)
{
    return is_complete(result) && result->failed_served == result->failed;
}

/* What a trial has replayed last, since its devices may be one. */
struct stage {
    const struct xtrace *trace;
    struct replay_settings settings;
    struct replay_result result;
    bool has_result;
};

static const struct replay_result *play_on(struct stage *stage, uint64_t device_bytes)
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

static void find_devices(const struct stage *stage, struct trial_figures *out)
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

static void replay_trial(const struct programme *programme, const char *config, bool in_full,
                         struct trial_figures *out)
{
    struct stage stage = {.trace = programme->trace,
                          .settings = {.file = programme->file,
                                       .config = config,
                                       .driver = GPU_SIMULATED,
                                       .check = CHECK_OFF,
                                       .tick_ms = option_table[OPTION_TICK].default_number,
                                       .quiet = true}};
    const struct replay_result *result = play_on(&stage, programme->device_bytes);

    out->is_broken = result->end == REPLAY_REFUSED || result->end == REPLAY_MISMATCH;
    out->completes = is_complete(result);
    out->oom_at = result->oom_at;
    out->peak_requested = result->peak_requested;
    out->peak_reserved = result->peak_reserved;
    out->end_reserved = result->end_reserved;
    out->driver_ns = result->driver_ns;
    out->failed = result->failed;
    if (in_full)
        find_devices(&stage, out);
    result = play_on(&stage, programme->roomy_bytes);
    out->room = (struct trial_room){is_complete(result),
                                    result->oom_at < 0 ? (uint64_t)programme->trace->op_count
                                                       : (uint64_t)result->oom_at,
                                    result->peak_reserved, result->driver_ns};
    out->serves = is_served(play_on(&stage, programme->target_bytes));
    replay_result_fini(&stage.result);
    out->is_there = true;
}

static void work(const struct trials *trials, struct trial *const *trial, size_t count,
                 bool in_full, struct board *board)
{
    for (;;) {
        const size_t at = atomic_fetch_add(&board->next, 1);

        if (at >= count * trials->count)
            break;
        replay_trial(&trials->programmes[at % trials->count], trial[at / trials->count]->config,
                     in_full, &board->figures[at]);
        (void)atomic_fetch_add(&board->done, 1);
    }
}

/* --- In the parent. --- */

static size_t processors(void)
{
    cpu_set_t set;
    const int count = sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;

    return count > PROCESSES_MAX ? PROCESSES_MAX : (size_t)count;
}

static pid_t start(const struct trials *trials, struct trial *const *trial, size_t count,
                   bool in_full, struct board *board)
{
    const pid_t parent = getpid();
    const pid_t child = fork();

    if (child != 0)
        return child;
    /* A replay has no end of its own if nobody is there to read its figures. */
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent)
        exit(EXIT_FAILURE);
    work(trials, trial, count, in_full, board);
    exit(EXIT_SUCCESS);
}

static void draw(const struct trials *trials, size_t done)
{
    const size_t most = done > trials->expected ? done : trials->expected;

    progress_print_bar(done, most > 0 ? most : 1, "%s, %s", amount_of(done, "configuration").text,
                       trials->name);
}

/* Wait for a child, and draw meanwhile. */
static void wait_for(const struct trials *trials, const struct board *board, bool in_full,
                     pid_t child)
{
    const struct timespec pause = {.tv_nsec = PROGRESS_NS};
    int status;
    pid_t ended;

    do {
        ended = waitpid(child, &status, trials->progress ? WNOHANG : 0);
        if (ended == 0) {
            draw(trials, trials->done + (in_full ? 0 : atomic_load(&board->done) / trials->count));
            (void)nanosleep(&pause, NULL);
        }
    } while (ended == 0 || (ended < 0 && errno == EINTR));
}

static void raise_to(uint64_t *most, uint64_t value)
{
    if (value > *most)
        *most = value;
}

static void add_figures(struct trial_figures *whole, const struct trial_figures *figures)
{
    if (figures->peak_reserved > whole->peak_reserved)
        whole->peak_requested = figures->peak_requested;
    if (figures->oom_at >= 0 && (whole->oom_at < 0 || figures->oom_at < whole->oom_at))
        whole->oom_at = figures->oom_at;
    whole->is_broken |= figures->is_broken;
    whole->completes &= figures->completes;
    whole->serves &= figures->serves;
    whole->has_min_device &= figures->has_min_device;
    whole->has_enough &= figures->has_enough;
    whole->failed += figures->failed;
    raise_to(&whole->peak_reserved, figures->peak_reserved);
    raise_to(&whole->driver_ns, figures->driver_ns);
    raise_to(&whole->min_device, figures->min_device);
    raise_to(&whole->enough, figures->enough);
    whole->room.completes &= figures->room.completes;
    whole->room.reach += figures->room.reach;
    raise_to(&whole->room.peak_reserved, figures->room.peak_reserved);
    raise_to(&whole->room.driver_ns, figures->room.driver_ns);
}

static void add_up(struct trial *trial, size_t count)
{
    trial->whole = trial->figures[0];
    for (size_t i = 1; i < count; i++)
        add_figures(&trial->whole, &trial->figures[i]);
}

static bool run_on(struct trials *trials, struct trial *const *trial, size_t count, bool in_full,
                   struct board *board)
{
    const size_t replays = count * trials->count;
    const size_t wanted = processors() < replays ? processors() : replays;
    pid_t children[PROCESSES_MAX];
    size_t started = 0;

    for (; started < wanted; started++) {
        children[started] = start(trials, trial, count, in_full, board);
        if (children[started] < 0)
            break;
    }
    if (started == 0) {
        message_print("%s: no process can be started to replay it: %s", trials->name,
                      strerror(errno));
        return false;
    }
    for (size_t i = 0; i < started; i++)
        wait_for(trials, board, in_full, children[i]);
    if (trials->progress)
        progress_clear();
    for (size_t i = 0; i < replays; i++) {
        if (!board->figures[i].is_there) {
            message_print(
                "%s: the process that replayed it with '%s' was ended, as happens when the "
                "machine runs short of memory",
                trials->programmes[i % trials->count].file, trial[i / trials->count]->config);
            return false;
        }
        trial[i / trials->count]->figures[i % trials->count] = board->figures[i];
    }
    for (size_t i = 0; i < count; i++)
        add_up(trial[i], trials->count);
    return true;
}

bool trials_run(struct trials *trials, struct trial *const *trial, size_t count, bool in_full)
{
    const size_t bytes =
        sizeof(struct board) + count * trials->count * sizeof(struct trial_figures);
    struct board *board;
    bool fine;

    if (count == 0)
        return true;
    board = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (board == MAP_FAILED) {
        message_print("%s: no host memory is left", trials->name);
        return false;
    }
    fine = run_on(trials, trial, count, in_full, board);
    trials->done += in_full ? 0 : count;
    (void)munmap(board, bytes);
    return fine;
}
