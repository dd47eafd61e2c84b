/* SPDX-License-Identifier: MIT */
/* The costs that each preset charges. */
#include <stdlib.h>
#include <unistd.h>

#include "tests/unit/sim_setup.h"

/* The time by which the clock has advanced since the last call. */
static uint64_t elapsed(void)
{
    static uint64_t last;
    const uint64_t now = xseg_sim_clock(), previous = last;

    assert_int_equal(now, xseg_sim_driver_time());
    last = now;
    return now < previous ? now : now - previous;
}

static void expect_charge(CUresult result, uint64_t nanoseconds)
{
    ASSERT_OK(result);
    assert_int_equal(elapsed(), nanoseconds);
}

struct expected {
    const char *preset;
    uint64_t reserve, create_2, create_20, map, access_2, access_22_two_devices, unmap_1, unmap_3,
        release, address_free, alloc_2, alloc_200, free;
};

/* Sizes in the names are MiB.  A set-access of 22 MiB for two devices has two costs for each of the pages of 2 and 20 MiB; an
 * unmap of 3 pages has three.  alloc_2 is the minimum. */
static const struct expected expected[] = {
    {"none", 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0},
    {"a100", 2000, 7300, 10000, 2000, 38600, 201200, 34000, 102000, 23000, 1000, 60000, 76000,
     20000},
    {"a100_cold", 19000, 193000, 193000, 1500, 38600, 201200, 25600, 76800, 23000, 1000, 60000,
     76000, 20000},
    {"consumer", 9000, 7900, 10600, 1000, 38600, 201200, 11500, 34500, 10000, 1000, 60000, 76000,
     20000},
    {"rocm_slow", 10000, 62000, 80000, 20000, 38600, 201200, 1050000, 1150000, 30000, 5000, 60000,
     76000, 20000},
};

static void virtual_memory_costs(const struct expected *row)
{
    const CUmemAccessDesc desc[2] = {read_write(0), read_write(1)};
    CUdeviceptr base = reserve(64 * MIB);

    assert_int_equal(elapsed(), row->reserve);
    CUmemGenericAllocationHandle page_2 = create(2 * MIB);
    assert_int_equal(elapsed(), row->create_2);
    CUmemGenericAllocationHandle page_20 = create(20 * MIB);
    assert_int_equal(elapsed(), row->create_20);
    expect_charge(cuMemMap(base, 2 * MIB, 0, page_2, 0), row->map);
    expect_charge(cuMemSetAccess(base, 2 * MIB, desc, 1), row->access_2);
    ASSERT_OK(cuMemMap(base + 2 * MIB, 20 * MIB, 0, page_20, 0));
    (void)elapsed();
    expect_charge(cuMemSetAccess(base, 22 * MIB, desc, 2), row->access_22_two_devices);
    ASSERT_OK(cuMemMap(base + 22 * MIB, 2 * MIB, 0, page_2, 0));
    (void)elapsed();
    expect_charge(cuMemUnmap(base, 24 * MIB), row->unmap_3);
    ASSERT_OK(cuMemMap(base, 2 * MIB, 0, page_2, 0));
    (void)elapsed();
    expect_charge(cuMemUnmap(base, 2 * MIB), row->unmap_1);
    expect_charge(cuMemRelease(page_2), row->release);
    expect_charge(cuMemAddressFree(base, 64 * MIB), row->address_free);
}

static void classic_and_event_costs(const struct expected *row)
{
    const bool has_no_costs = strcmp(row->preset, "none") == 0;

    (void)elapsed();
    CUdeviceptr address = allocate(2 * MIB);
    assert_int_equal(elapsed(), row->alloc_2);
    expect_charge(cuMemFree(address), row->free);
    address = allocate(200 * MIB);
    assert_int_equal(elapsed(), row->alloc_200);
    (void)elapsed();
    CUevent event = new_event();
    assert_int_equal(elapsed(), has_no_costs ? 0 : 1000);
    expect_charge(cuEventRecord(event, NULL), has_no_costs ? 0 : 300);
    expect_charge(cuEventQuery(event), has_no_costs ? 0 : 200);
    expect_charge(cuStreamWaitEvent(NULL, event, 0), has_no_costs ? 0 : 300);
    expect_charge(cuStreamSynchronize(NULL), has_no_costs ? 0 : 5000);
    expect_charge(cuMemFree(address), row->free);
}

TEST(each_preset_charges_its_table)
{
    for (size_t i = 0; i < COUNT_OF(expected); i++) {
        start_with((struct xseg_sim_settings){.costs = expected[i].preset});
        (void)elapsed();
        virtual_memory_costs(&expected[i]);
        classic_and_event_costs(&expected[i]);
    }
}

/* Create a file of these lines; the caller removes it. */
static void write_costs(char path[], const char *text)
{
    const int file = mkstemp(path);

    assert_true(file >= 0);
    assert_int_equal(write(file, text, strlen(text)), (ssize_t)strlen(text));
    assert_int_equal(close(file), 0);
}

/* All numbers differ, so that none is charged in place of another. */
TEST(file_charges_its_table)
{
    static const struct expected row = {
        .reserve = 1,
        .create_2 = 3 + 2 * 5,
        .create_20 = 3 + 20 * 5,
        .map = 900, /* the minimum */
        .access_2 = 31000 + 32000 + 2 * 37,
        .access_22_two_devices = 31000 + 2 * (32000 + 2 * 37) + 2 * (32000 + 20 * 37),
        .unmap_1 = 17000 + 19000 + 2 * 23,
        .unmap_3 = 17000 + 3 * 19000 + 24 * 23,
        .release = 11000 + 2 * 13,
        .address_free = 2,
        .alloc_2 = 60000,
        .alloc_200 = 53000 + 200 * 59,
        .free = 0,
    };
    static const char text[] = "name = distinct\nreserve = 1\naddress_free = 2\ncreate = 3 5\n"
                               "map = 7 1 900\nrelease = 11000 13\nunmap = 17000\n"
                               "unmap_mapping = 19000 23\naccess_call = 31000\n"
                               "access = 32000 37\naccess_wide = 41000 43\n"
                               "alloc = 53000 59 60000\nfree = 61000 67\nevent_create = 71\n"
                               "event_record = 73\nevent_query = 79\nstream_wait = 83\n"
                               "synchronize = 89\n";
    struct xseg_sim_settings settings = small_machine();
    char path[] = P_tmpdir "/xseg-costs.XXXXXX";

    write_costs(path, text);
    settings.costs = path;
    start(&settings);
    assert_int_equal(unlink(path), 0); /* already read */
    (void)enter(0);
    (void)elapsed();
    virtual_memory_costs(&row);
    CUdeviceptr base = reserve(256 * MIB);
    back(base, 256 * MIB);
    (void)elapsed();
    grant(base, 256 * MIB, 0);
    assert_int_equal(elapsed(), 31000 + 41000 + 256 * 43);
    CUdeviceptr address = allocate(200 * MIB);
    (void)elapsed();
    expect_charge(cuMemFree(address), 61000 + 200 * 67);
    CUevent event = new_event();
    assert_int_equal(elapsed(), 71);
    expect_charge(cuEventRecord(event, NULL), 73);
    expect_charge(cuEventQuery(event), 79);
    expect_charge(cuStreamWaitEvent(NULL, event, 0), 83);
    expect_charge(cuStreamSynchronize(NULL), 89);
}

/* The numbers of a file may be large, and so may the size of a rejected request: their product saturates. */
TEST(the_largest_costs_do_not_overflow)
{
    static const char *const keys[] = {
        "reserve",       "address_free", "create",      "map",         "release",    "unmap",
        "unmap_mapping", "access_call",  "access",      "access_wide", "alloc",      "free",
        "event_create",  "event_record", "event_query", "stream_wait", "synchronize"};
    struct xseg_sim_settings settings = small_machine();
    char path[] = P_tmpdir "/xseg-costs.XXXXXX", text[2048] = "name = most\n";
    CUdeviceptr address = 0;

    for (size_t i = 0; i < COUNT_OF(keys); i++)
        (void)snprintf(text + strlen(text), sizeof(text) - strlen(text), "%s = 1000000000000%s\n",
                       keys[i], strcmp(keys[i], "alloc") == 0 ? " 1000000000000" : "");
    write_costs(path, text);
    settings.costs = path;
    start_with(settings);
    ASSERT_CU(cuMemAlloc(&address, SIZE_MAX), CUDA_ERROR_OUT_OF_MEMORY);
    assert_int_equal(xseg_sim_driver_time(), UINT64_C(100000000000000000)); /* SIM_COST_MAX_SIZED */
    settings.tail_seed = 5;
    start_with(settings);
    ASSERT_CU(cuMemAlloc(&address, SIZE_MAX), CUDA_ERROR_OUT_OF_MEMORY);
    assert_true(xseg_sim_driver_time() > UINT64_C(10000000000000000));
    assert_int_equal(unlink(path), 0);
}

TEST(wide_mappings_cost_the_same_from_128_mib_on)
{
    static const struct {
        uint64_t mib, cost;
    } rows[] = {{128, 36000 + 128 * 1300}, {130, 200000}, {512, 200000}};
    struct xseg_sim_settings settings = small_machine();

    settings.costs = NULL;
    start(&settings);
    for (size_t i = 0; i < 3; i++) {
        CUdeviceptr base = reserve(rows[i].mib * MIB);

        back(base, rows[i].mib * MIB);
        (void)elapsed();
        grant(base, rows[i].mib * MIB, 0);
        assert_int_equal(elapsed(), rows[i].cost);
        ASSERT_OK(cuMemUnmap(base, rows[i].mib * MIB));
    }
}

TEST(failed_calls_and_waits_are_not_driver_time)
{
    const struct xseg_sim_settings settings = {.costs = "a100"};
    CUdeviceptr address = 0;

    start_with(settings);
    ASSERT_INVALID(cuMemUnmap(0, 0));
    assert_int_equal(xseg_sim_fail("cuMemAlloc", 1, 2), XSEG_OK);
    ASSERT_CU(cuMemAlloc(&address, 1), CUDA_ERROR_OUT_OF_MEMORY);
    assert_int_equal(xseg_sim_driver_time(), 0);
    /* A failed allocation has the cost of a successful one. */
    ASSERT_CU(cuMemAlloc(&address, 2048 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
    assert_int_equal(xseg_sim_driver_time(), 40000 + 2048 * 180);

    start_with(settings);
    launch(NULL, 1000000);
    ASSERT_OK(cuCtxSynchronize());
    assert_int_equal(xseg_sim_driver_time(), 5000);
    assert_int_equal(xseg_sim_clock(), 1000000);
    xseg_sim_advance(7);
    assert_int_equal(xseg_sim_clock(), 1000007);
    assert_int_equal(xseg_sim_driver_time(), 5000);
}

enum { DRAWS = 100000 };

static int compare_ascending(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return x < y ? -1 : x > y;
}

/* The charges of DRAWS calls with a median of 2000 ns. */
static void charge_calls(uint64_t seed, uint64_t *charge)
{
    uint64_t before = 0;

    start_with((struct xseg_sim_settings){.costs = "a100", .tail_seed = seed});
    for (int i = 0; i < DRAWS; i++) {
        (void)reserve(GRANULE);
        charge[i] = xseg_sim_driver_time() - before;
        before += charge[i];
    }
}

TEST(tails_are_random_but_repeatable)
{
    static uint64_t charge[DRAWS], same_seed[DRAWS], other_seed[DRAWS];
    int spikes = 0; /* one in 1000 calls, of 5 to 80 times the median */

    charge_calls(7, charge);
    charge_calls(7, same_seed);
    charge_calls(8, other_seed);
    assert_memory_equal(charge, same_seed, sizeof(charge));
    assert_true(memcmp(charge, other_seed, sizeof(charge)) != 0);
    for (int i = 0; i < DRAWS; i++)
        spikes += charge[i] >= 5 * 2000;
    assert_in_range(spikes, 60, 140);
    qsort(charge, DRAWS, sizeof(charge[0]), compare_ascending);
    /* Median, and 99th percentile: 1.4 times the median. */
    assert_in_range(charge[DRAWS / 2], 1980, 2020);
    assert_in_range(charge[DRAWS / 100 * 99], 2700, 2950);
    assert_true(charge[DRAWS - 1] > 40 * 2000 && charge[DRAWS - 1] <= 80 * 2000);
    charge_calls(0, charge);
    for (int i = 0; i < DRAWS; i++)
        assert_int_equal(charge[i], 2000);
    /* Calls without cost remain free. */
    start_with((struct xseg_sim_settings){.tail_seed = 1});
    (void)reserve(GRANULE);
    assert_int_equal(xseg_sim_clock(), 0);
}
