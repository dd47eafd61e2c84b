/* SPDX-License-Identifier: MIT */
#include "tests/stress/exercise/program.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/driver.h"
#include "tests/support/rng.h"
#include "xseg/sim.h"

/* The kinds of operations, their weights, and whether an operation must run alone. */
static const struct kind {
    const char *name;
    step *run;
    unsigned weight;
    bool runs_alone;
} kinds[] = {
    {"alloc", step_alloc, 300, false},
    {"free", step_free, 150, false},
    {"free_after", step_free_after, 20, false},
    {"burst", step_burst, 4, false},
    {"access", step_access, 80, false},
    {"record_stream", step_record_stream, 15, false},
    {"invalid", step_invalid, 4, false},
    {"advance", step_advance, 40, false},
    {"finish", step_finish, 15, false},
    {"synchronize", step_synchronize, 8, false},
    {"stream_retire", step_stream_retire, 12, false},
    {"pool_create", step_pool_create, 20, false},
    {"retain", step_retain, 6, false},
    {"release", step_release, 10, false},
    {"pause", step_pause, 30, false},
    {"resume", step_resume, 35, false},
    {"route", step_route, 12, false},
    {"route_end", step_route_end, 12, false},
    {"checkpoint", step_checkpoint, 20, true},
    {"restore", step_restore, 20, true},
    {"check_live", step_check_live, 4, true},
    {"replay", step_replay, 10, false},
    {"alloc_at", step_alloc_at, 6, false},
    {"mark", step_mark, 6, false},
    {"capture", step_capture, 16, false},
    {"capture_join", step_capture_join, 10, false},
    {"capture_end", step_capture_end, 40, false},
    {"pin", step_pin, 20, false},
    {"unpin", step_unpin, 40, false},
    {"register", step_register, 20, false},
    {"unregister", step_unregister, 30, false},
    {"dmabuf", step_dmabuf, 8, false},
    {"range", step_range, 8, true},
    {"export", step_export, 24, false},
    {"export_close", step_export_close, 40, false},
    {"peer", step_peer, 10, false},
    {"trim", step_trim, 16, false},
    {"trim_due", step_trim_due, 15, false},
    {"prewarm", step_prewarm, 10, false},
    {"limits", step_limits, 8, false},
    {"configure", step_configure, 10, false},
    {"observe", step_observe, 5, false},
    {"stats", step_stats, 6, false},
    {"history", step_history, 12, false},
    {"explain", step_explain, 6, false},
    {"metrics", step_metrics, 6, false},
    {"block_query", step_block_query, 8, false},
    {"strings", step_strings, 2, false},
    {"second_allocator", step_second_allocator, 1, false},
    {"close", step_close, 2, true},
    {"fork", step_fork, 1, true},
    {"check", step_check, 8, true},
};

struct operation {
    unsigned kind;
    uint64_t number;
};

/* The operations of one thread of a program; ownership passes to the caller. */
static struct operation *list_operations(uint64_t seed, unsigned thread, unsigned count)
{
    struct operation *list = calloc(count + 1, sizeof(*list));
    uint64_t state = (seed * 64 + thread + 1) * UINT64_C(0x9E3779B97F4A7C15) | 1, sum = 0;

    CHECK(list != NULL);
    for (unsigned i = 0; i < COUNT_OF(kinds); i++)
        sum += kinds[i].weight;
    for (unsigned i = 0; i < count; i++) {
        uint64_t offset = (rng_next(&state) >> 16) % sum;
        unsigned kind = 0;

        for (; offset >= kinds[kind].weight; kind++)
            offset -= kinds[kind].weight;
        list[i] = (struct operation){kind, rng_next(&state) | 1};
    }
    return list;
}

/* Run an operation.  Expect that the current context does not change; a fault may prevent the library from restoring it. */
static void run_operation(struct worker *worker, const struct operation *operation)
{
    struct world *world = worker->world;
    const struct kind *kind = &kinds[operation->kind];
    const uint64_t epoch = fault_epoch();
    const int device = (int)(operation->number % (world->options.devices + 1)) - 1;

    worker->random = operation->number;
    (void)(kind->runs_alone ? pthread_rwlock_wrlock(&world->lock)
                            : pthread_rwlock_rdlock(&world->lock));
    driver_set_current(device);
    kind->run(worker);
    CHECK(driver_current() == device || !fault_was_none(epoch));
    (void)pthread_rwlock_unlock(&world->lock);
}

/* Set or lift faults at random, while no operation runs alone. */
static void change_faults(struct worker *worker, uint64_t number)
{
    const unsigned faults = worker->world->options.faults;

    worker->random = number * 3 | 1;
    if (faults == 0)
        return;
    (void)pthread_rwlock_rdlock(&worker->world->lock);
    if (below(worker, 1000) < faults)
        step_fault(worker);
    else if (fault_epoch() % 2 != 0 && below(worker, 12) == 0)
        step_lift_faults(worker);
    (void)pthread_rwlock_unlock(&worker->world->lock);
}

struct thread_arguments {
    pthread_t thread;
    struct worker *worker;
    const struct operation *list;
    unsigned count;
    pthread_barrier_t *barrier;
};

static void *run_worker(void *self)
{
    struct thread_arguments *arguments = self;
    struct worker *worker = arguments->worker;

    worker_open(worker);
    for (unsigned i = 0; i < arguments->count; i++) {
        change_faults(worker, arguments->list[i].number);
        run_operation(worker, &arguments->list[i]);
    }
    driver_set_current(-1);
    (void)pthread_barrier_wait(arguments->barrier);
    fault_lift();
    end_capture(worker);
    (void)pthread_barrier_wait(arguments->barrier);
    worker_close(worker);
    return NULL;
}

static void run_lists(const struct world_options *options, struct operation *const *lists,
                      unsigned count)
{
    struct world *world = calloc(1, sizeof(*world));
    struct thread_arguments arguments[WORLD_WORKERS];
    pthread_barrier_t barrier;

    CHECK(world != NULL);
    failure_clear();
    world_open(world, options);
    (void)pthread_barrier_init(&barrier, NULL, options->threads);
    for (unsigned i = 0; i < options->threads; i++)
        arguments[i] = (struct thread_arguments){0, &world->worker[i], lists[i], count, &barrier};
    if (options->threads == 1) {
        (void)run_worker(&arguments[0]);
    } else {
        for (unsigned i = 0; i < options->threads; i++)
            CHECK(pthread_create(&arguments[i].thread, NULL, run_worker, &arguments[i]) == 0);
        for (unsigned i = 0; i < options->threads; i++)
            CHECK(pthread_join(arguments[i].thread, NULL) == 0);
    }
    (void)pthread_barrier_destroy(&barrier);
    world_close(world);
    free(world);
}

static void set_repeat_command(const struct world_options *options, unsigned count)
{
    char command[512];

    (void)snprintf(command, sizeof(command),
                   "tests/test-stress-exercise --program %llu --operations %u --threads %u "
                   "--devices %u --faults %u%s",
                   (unsigned long long)options->seed, count, options->threads, options->devices,
                   options->faults, options->has_background_thread ? " --background" : "");
    failure_set_program(command);
}

static void run_list(const struct world_options *options, struct operation *list, unsigned count)
{
    run_lists(options, &list, count);
}

void program_play(const struct world_options *options, unsigned count)
{
    struct operation *lists[WORLD_WORKERS];

    set_repeat_command(options, count);
    for (unsigned i = 0; i < options->threads; i++)
        lists[i] = list_operations(options->seed, i, count);
    run_lists(options, lists, count);
    for (unsigned i = 0; i < options->threads; i++)
        free(lists[i]);
    failure_set_program("");
}

/* --- Shrinking. --- */

static bool fails_in_child(const struct world_options *options, struct operation *list,
                           unsigned count)
{
    int result = 0;

    (void)fflush(NULL);
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        CHECK(freopen("/dev/null", "w", stderr) != NULL);
        (void)alarm(60);
        run_list(options, list, count);
        _exit(0);
    }
    CHECK(waitpid(child, &result, 0) == child);
    return result != 0;
}

/* Remove sublists of each length, from half of the list down to one operation, if the rest still fails; returns the
 * number of remaining operations. */
static unsigned shrink(const struct world_options *options, struct operation *list, unsigned count)
{
    struct operation *shorter = calloc(count + 1, sizeof(*shorter));

    CHECK(shorter != NULL);
    for (unsigned length = count / 2; length > 0; length = length == 1 ? 0 : (length + 1) / 2)
        for (unsigned offset = 0; offset < count;) {
            const unsigned end = offset + length < count ? offset + length : count;

            memcpy(shorter, list, offset * sizeof(*list));
            memcpy(shorter + offset, list + end, (count - end) * sizeof(*list));
            if (fails_in_child(options, shorter, count - (end - offset))) {
                count -= end - offset;
                memcpy(list, shorter, count * sizeof(*list));
            } else {
                offset = end;
            }
        }
    free(shorter);
    return count;
}

void program_shrink(const struct world_options *options, unsigned count)
{
    struct operation *list = list_operations(options->seed, 0, count);

    if (!fails_in_child(options, list, count)) {
        (void)printf("# the program does not fail\n");
    } else {
        const unsigned remaining = shrink(options, list, count);

        (void)printf("# %u of %u operations remain:\n", remaining, count);
        for (unsigned i = 0; i < remaining; i++)
            (void)printf("# %s %#llx\n", kinds[list[i].kind].name,
                         (unsigned long long)list[i].number);
        (void)fflush(stdout);
        set_repeat_command(options, count);
        run_list(options, list, remaining);
    }
    free(list);
}
