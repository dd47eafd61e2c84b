/* SPDX-License-Identifier: MIT */
#include "tests/fault/fault_suite.h"

#include "tests/fault/host_faults.h"

/* The faults of the driver in a run; nth 0 is none. */
static struct xseg_sim_fault fault[2];

/* The fault of the host in a run; nth 0 is none. */
static struct {
    uint64_t nth;
    bool onward;
} host_fault;

/* A round of single faults: with which error, and whether the driver takes one mapping a call. */
static const struct {
    int error;
    bool one_by_one;
} rounds[] = {{999, false}, {999, true}, {2, false}, {1, false}};

void faults_begin(void)
{
    for (unsigned i = 0; i < COUNT_OF(fault); i++)
        if (fault[i].nth != 0)
            assert_int_equal(xseg_sim_fault_set(i, &fault[i]), XSEG_OK);
    host_fault_set(host_fault.nth, host_fault.onward);
}

void faults_end(void)
{
    host_fault_clear();
    for (unsigned i = 0; i < COUNT_OF(fault); i++)
        assert_int_equal(xseg_sim_fault_set(i, NULL), XSEG_OK);
}

static void play_once(fault_scenario play, const char *config, bool one_by_one)
{
    const struct xseg_sim_fault none = fault_nth_call(0, 1);
    struct xseg_sim_settings settings = {sizeof(settings),   .devices = 2,
                                         .fabric = true,     .memory_bytes = GIB,
                                         .real_bytes = true, .single_mapping_calls = one_by_one};

    (void)fault_run(play, &settings, config, none, none);
}

/* Whether the last of the run's faults struck. */
static bool run(fault_scenario play, const char *config, bool one_by_one)
{
    const unsigned files = env_open_fds();

    play_once(play, config, one_by_one);
    assert_int_equal(env_open_fds(), files);
    return xseg_sim_fault_count(fault[1].nth != 0 ? 1 : 0) != 0;
}

static void calls_survive_each_failure(void **state)
{
    const struct fault_suite *sweep = *state;

    fault[1].nth = 0;
    for (size_t i = 0; i < sweep->count; i++) {
        const struct fault_suite_scenario *scenario = &sweep->scenarios[i];
        uint64_t n = 0;

        for (unsigned round = 0; round < scenario->rounds; round++)
            for (n = 1; fault[0] = fault_nth_call(n, rounds[round].error),
                run(scenario->play, sweep->config, rounds[round].one_by_one);
                 n++)
                assert_true(n < 1000);
        print_message("# %s: %u driver calls\n", scenario->name, (unsigned)(n - 1));
        assert_true(n > 20);
    }
}

/* Every allocation and mapping of the host fails, once and from then on. */
static void calls_survive_host_failures(void **state)
{
    const struct fault_suite *sweep = *state;

    fault[0].nth = fault[1].nth = 0;
    for (size_t i = 0; i < sweep->count; i++) {
        uint64_t n = 0;

        for (unsigned onward = 0; onward < 2; onward++) {
            host_fault.onward = onward;
            for (n = 1; n < 1000; n++) {
                host_fault.nth = n;
                (void)run(sweep->scenarios[i].play, sweep->config, false);
                if (host_fault_count() == 0)
                    break;
            }
        }
        print_message("# %s: %u calls of the host\n", sweep->scenarios[i].name, (unsigned)(n - 1));
    }
    host_fault.nth = 0;
    host_fault_set(0, false);
}

/* All pairs in one scenario; how many there are. */
static uint64_t pairs_in(const struct fault_suite *sweep,
                         const struct fault_suite_scenario *scenario, bool one_by_one)
{
    uint64_t runs = 0;

    for (uint64_t behind = 1; behind <= scenario->distance; behind++)
        for (uint64_t n = 1;
             fault[0] = fault_nth_call(n, 999), fault[1] = fault_nth_call(n + behind, 999),
                      run(scenario->play, sweep->config, one_by_one);
             n++)
            runs++;
    return runs;
}

static void rollbacks_survive_a_second_failure(void **state)
{
    const struct fault_suite *sweep = *state;
    uint64_t runs = 0;

    for (size_t i = 0; i < sweep->count; i++)
        for (unsigned one_by_one = 0; one_by_one < 2; one_by_one++)
            runs += pairs_in(sweep, &sweep->scenarios[i], one_by_one != 0);
    print_message("# %u pairs\n", (unsigned)runs);
    assert_true(runs > sweep->min_pairs);
}

static void partial_batches_are_rolled_back(void **state)
{
    static const char *const calls[] = {"cuMemUnmap", "cuMemSetAccess"};
    const struct fault_suite *sweep = *state;
    uint64_t runs = 0;

    fault[1].nth = 0;
    for (unsigned call = 0; call < COUNT_OF(calls); call++)
        for (uint64_t mappings = 1; mappings <= 3; mappings++) {
            fault[0] = fault_nth_call(1, 999);
            fault[0].call = calls[call];
            fault[0].halfway = mappings;
            for (; run(sweep->halfway, sweep->config, false); fault[0].nth++)
                runs++;
        }
    assert_true(runs > 10);
}

int fault_suite_run(const struct fault_suite *sweep)
{
    void *state = (void *)(uintptr_t)sweep;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(calls_survive_host_failures, state),
        cmocka_unit_test_prestate(calls_survive_each_failure, state),
        cmocka_unit_test_prestate(rollbacks_survive_a_second_failure, state),
        cmocka_unit_test_prestate(partial_batches_are_rolled_back, state),
    };

    /* Once without faults: the machine's own files are there from then on. */
    fault[0] = fault[1] = fault_nth_call(0, 1);
    play_once(sweep->halfway, sweep->config, false);
    return cmocka_run_group_tests_name(sweep->name, tests, NULL, NULL);
}
