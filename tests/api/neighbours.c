/* SPDX-License-Identifier: MIT */
/*
 * Neighbours on one device: what one has idle serves the other's burst, through its soft limit or
 * because it is asked to shrink; two allocators of a process, and two processes.
 */
#include "tests/support/process.h"
#include "tests/support/trim_due.h"

#define SECOND UINT64_C(1000000000)

/* What a neighbour takes, and of that what it goes on using. */
#define PEAK (700 * MIB)
#define KEPT (100 * MIB)
/* What the other one then wants: more than is left, less than with the idle memory. */
#define BURST (600 * MIB)
/* What a neighbour is to shrink to. */
#define SHARE (200 * MIB)

static struct xseg_sim_settings gib_machine(void)
{
    struct xseg_sim_settings settings = {sizeof(settings), .memory_bytes = 1 * GIB};

    return settings;
}

static struct xseg_allocator *open_neighbour(const char *config)
{
    struct xseg_options options = {sizeof(options), .driver = env_driver(), .clock = env_clock};
    struct xseg_allocator *allocator = NULL;

    return xseg_open(config, &options, &allocator) == XSEG_OK ? allocator : NULL;
}

/* --- What a neighbour does; also in a process of its own, so nothing is asserted here. --- */

struct neighbour {
    struct xseg_allocator *allocator;
    void *kept;
};

/* A burst that is over: PEAK was taken, KEPT is in use. */
static bool have_burst(struct neighbour *neighbour)
{
    void *rest = NULL;

    return xseg_alloc(neighbour->allocator, 0, KEPT, NULL, &neighbour->kept) == XSEG_OK &&
           xseg_alloc(neighbour->allocator, 0, PEAK - KEPT, NULL, &rest) == XSEG_OK &&
           xseg_free(neighbour->allocator, rest) == XSEG_OK;
}

/* The timer of a service that goes by its clock. */
static bool pass_second(struct xseg_allocator *allocator)
{
    xseg_sim_advance(SECOND);
    return trim_due(allocator, 1000000) == XSEG_OK;
}

/* Set the soft limit while it runs, and let a timer do the rest. */
static bool limit_to_share(struct neighbour *neighbour)
{
    struct xseg_limits limits = XSEG_LIMITS_INIT;
    struct xseg_scope where = XSEG_SCOPE_ALL;

    where.device = 0;
    limits.soft_bytes = SHARE;
    return xseg_limits_set(neighbour->allocator, &where, &limits) == XSEG_OK &&
           pass_second(neighbour->allocator);
}

/* Please shrink to SHARE: whether it has. */
static bool shrink_to_share(struct neighbour *neighbour)
{
    struct xseg_trim_options how = {sizeof(how), .target_bytes = SHARE};
    struct xseg_trim_result done = {sizeof(done)};

    return xseg_trim(neighbour->allocator, NULL, &how, &done) == XSEG_OK &&
           done.remaining <= SHARE && done.released >= PEAK - SHARE - 20 * MIB;
}

static bool end_neighbour(struct neighbour *neighbour)
{
    return xseg_free(neighbour->allocator, neighbour->kept) == XSEG_OK &&
           xseg_close(neighbour->allocator) == XSEG_OK;
}

/* --- Two allocators in one process. --- */

static void set_scene(struct neighbour *idle, struct xseg_allocator **other, const char *config)
{
    const struct xseg_sim_settings settings = gib_machine();

    assert_ok(xseg_sim_reset(&settings));
    idle->allocator = open_neighbour(config);
    *other = open_neighbour(NULL);
    assert_non_null(idle->allocator);
    assert_non_null(*other);
    assert_true(have_burst(idle));
}

/* The other's burst, which is served or not. */
static void try_burst(struct xseg_allocator *other, bool is_served)
{
    void *burst = NULL;
    const xseg_status status = xseg_alloc(other, 0, BURST, NULL, &burst);

    assert_int_equal(status, is_served ? XSEG_OK : XSEG_ERR_NO_MEMORY);
    assert_ok(xseg_free(other, burst));
}

static void close_scene(struct neighbour *idle, struct xseg_allocator *other)
{
    assert_true(end_neighbour(idle));
    env_close(other);
}

TEST(idle_memory_is_not_shared_by_itself)
{
    struct neighbour idle = {0};
    struct xseg_allocator *other = NULL;

    set_scene(&idle, &other, NULL);
    assert_true(pass_second(idle.allocator));
    try_burst(other, false);
    assert_int_equal(env_reserved(idle.allocator), PEAK);
    close_scene(&idle, other);
}

TEST(a_soft_limit_makes_room_for_the_other)
{
    struct neighbour idle = {0};
    struct xseg_allocator *other = NULL;

    set_scene(&idle, &other, "soft_limit_mb:200");
    assert_true(pass_second(idle.allocator));
    assert_true(env_reserved(idle.allocator) <= SHARE);
    try_burst(other, true);
    close_scene(&idle, other);
}

TEST(a_soft_limit_can_be_set_when_the_other_needs_it)
{
    struct neighbour idle = {0};
    struct xseg_allocator *other = NULL;

    set_scene(&idle, &other, NULL);
    try_burst(other, false);
    assert_true(limit_to_share(&idle));
    try_burst(other, true);
    /* A soft limit never fails a request: the neighbour may have a burst again, if there is room. */
    env_empty_cache(other);
    env_free(idle.allocator, env_alloc(idle.allocator, PEAK - KEPT, NULL));
    close_scene(&idle, other);
}

TEST(the_other_s_need_counts)
{
    struct neighbour idle = {0};
    struct xseg_allocator *other = NULL;
    void *block;

    set_scene(&idle, &other, "device_free_min_mb:400");
    block = env_alloc(other, 200 * MIB, NULL);
    assert_true(pass_second(idle.allocator));
    assert_true(env_reserved(idle.allocator) <= 424 * MIB);
    env_free(other, block);
    close_scene(&idle, other);
}

static bool ask_neighbour(void *context, const struct xseg_oom_info *shortage)
{
    return shortage->attempt == 0 && shrink_to_share(context);
}

TEST(a_neighbour_shrinks_when_it_is_asked_to)
{
    struct xseg_observer observer = {sizeof(observer)};
    struct neighbour idle = {0};
    struct xseg_allocator *other = NULL;
    uint64_t id = 0;

    set_scene(&idle, &other, NULL);
    observer.context = &idle;
    observer.on_low_memory = ask_neighbour;
    assert_ok(xseg_observer_add(other, &observer, &id));
    try_burst(other, true);
    assert_int_equal(env_stats(other).num_ooms, 0);
    assert_true(env_reserved(idle.allocator) <= SHARE);
    assert_ok(xseg_observer_remove(other, id));
    close_scene(&idle, other);
}

/* --- Two processes. --- */

/* A process of its own that does what it is told, byte by byte, and says y or n. */
static void run(int socket, const struct xseg_sim_settings *settings)
{
    struct neighbour neighbour = {0};
    char order;

    if (xseg_sim_reset(settings) != XSEG_OK || !(neighbour.allocator = open_neighbour(NULL)))
        _exit(1);
    while (read(socket, &order, 1) == 1) {
        const bool is_fine = order == 'b'   ? have_burst(&neighbour)
                             : order == 'l' ? limit_to_share(&neighbour)
                             : order == 's' ? shrink_to_share(&neighbour)
                                            : end_neighbour(&neighbour);

        if (write(socket, is_fine ? "y" : "n", 1) != 1)
            _exit(2);
    }
    /* The process that leaves last removes the machine; after a failure that is this one. */
    _exit(xseg_sim_reset(NULL) == XSEG_OK ? 0 : 3);
}

static bool tell(const struct process *process, char order)
{
    return write(process->socket, &order, 1) == 1 && process_answer(process);
}

/* Another process and an allocator of our own, both on a machine with 1 GiB; NULL where that cannot be. */
static struct xseg_allocator *start_process(struct process *process)
{
    const struct xseg_sim_settings settings = gib_machine();
    struct xseg_allocator *own;

    if (!process_start(process, &settings, run))
        return NULL;
    own = open_neighbour(NULL);
    assert_non_null(own);
    assert_true(tell(process, 'b'));
    return own;
}

static void end_process(const struct process *process, struct xseg_allocator *own)
{
    const struct xseg_sim_settings alone = gib_machine();

    assert_true(tell(process, 'e'));
    process_end(process, own, &alone);
}

TEST(a_process_makes_room_by_its_soft_limit)
{
    struct process process = {0};
    struct xseg_allocator *own = start_process(&process);

    if (own == NULL)
        return;
    try_burst(own, false);
    assert_true(tell(&process, 'l'));
    try_burst(own, true);
    end_process(&process, own);
}

static bool ask_process(void *context, const struct xseg_oom_info *shortage)
{
    return shortage->attempt == 0 && tell(context, 's');
}

TEST(a_process_shrinks_when_it_is_asked_to)
{
    struct xseg_observer observer = {sizeof(observer)};
    struct process process = {0};
    struct xseg_allocator *own = start_process(&process);
    uint64_t id = 0;

    if (own == NULL)
        return;
    try_burst(own, false);
    observer.context = &process;
    observer.on_low_memory = ask_process;
    assert_ok(xseg_observer_add(own, &observer, &id));
    try_burst(own, true);
    assert_int_equal(env_stats(own).num_ooms, 1);
    end_process(&process, own);
}
