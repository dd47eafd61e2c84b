/* SPDX-License-Identifier: MIT */
/* Settings from the environment. */
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "tests/unit/sim_setup.h"

#include "tests/support/sim_shared.h"

static const char *const names[] = {
    "XSEG_SIM_DEVICES",       "XSEG_SIM_MEMORY_MB",     "XSEG_SIM_ADDRESSES_MB", "XSEG_SIM_COSTS",
    "XSEG_SIM_BATCH",         "XSEG_SIM_VMM",           "XSEG_SIM_FAIL",         "XSEG_SIM_STRICT",
    "XSEG_SIM_BYTES",         "XSEG_SIM_PEERS",         "XSEG_SIM_TAILS",        "XSEG_SIM_SHARED",
    "XSEG_SIM_FABRIC",        "XSEG_SIM_REUSE_HANDLES", "XSEG_SIM_RDMA",         "XSEG_SIM_DMA_BUF",
    "XSEG_SIM_ADDRESS_RANGE", "XSEG_SIM_ADDRESS_ORDER", "XSEG_SIM_INTEGRATED",   "XSEG_SIM_HOST_MB",
    "XSEG_SIM_PAGE_CACHE_MB",
};

FIXTURE(clear)
{
    for (size_t i = 0; i < COUNT_OF(names); i++)
        assert_int_equal(unsetenv(names[i]), 0);
}

static void set_variable(const char *name, const char *text)
{
    assert_int_equal(setenv(name, text, 1), 0);
}

static int count_of_devices(void)
{
    int count = 0;

    ASSERT_OK(cuInit(0));
    ASSERT_OK(cuDeviceGetCount(&count));
    return count;
}

/* Runs first: main() has set the variables, and there was no driver call. */
TEST_WITH(the_first_call_reads_the_environment, NULL, clear)
{
    assert_int_equal(count_of_devices(), 3);
    assert_int_equal(xseg_sim_calls(NULL), 2);
}

TEST_WITH(defaults_apply_without_variables, NULL, clear)
{
    assert_int_equal(xseg_sim_reset(NULL), XSEG_OK);
    assert_int_equal(count_of_devices(), 1);
    assert_int_equal(total_memory(0), (size_t)80 * 1024 * MIB);
    assert_int_equal(device_attribute(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED), 1);
    (void)reserve(GRANULE);
    assert_int_equal(xseg_sim_driver_time(), 2000);
    /* Settings with default values are equivalent to none. */
    const struct xseg_sim_settings settings = {sizeof(settings)};
    start(&settings);
    assert_int_equal(total_memory(0), (size_t)80 * 1024 * MIB);
    (void)reserve(GRANULE);
    assert_int_equal(xseg_sim_driver_time(), 2000);
}

TEST_WITH(every_variable_is_read, NULL, clear)
{
    CUdeviceptr out = 0;

    set_variable("XSEG_SIM_DEVICES", "64");
    set_variable("XSEG_SIM_MEMORY_MB", "10");
    set_variable("XSEG_SIM_ADDRESSES_MB", "12");
    set_variable("XSEG_SIM_COSTS", "consumer");
    set_variable("XSEG_SIM_BATCH", "0");
    assert_int_equal(xseg_sim_reset(NULL), XSEG_OK);
    assert_int_equal(count_of_devices(), 64);
    assert_int_equal(total_memory(63), 10 * MIB);
    ASSERT_CU(cuMemAddressReserve(&out, 14 * MIB, 0, 0, 0), CUDA_ERROR_OUT_OF_MEMORY);
    CUdeviceptr base = reserve(12 * MIB);
    assert_int_equal(xseg_sim_driver_time(), 2 * 9000);
    back(base, GRANULE);
    back(base + GRANULE, GRANULE);
    ASSERT_INVALID(cuMemUnmap(base, 2 * GRANULE));

    set_variable("XSEG_SIM_VMM", "0");
    start(NULL);
    ASSERT_CU(cuMemAddressReserve(&out, GRANULE, 0, 0, 0), CUDA_ERROR_NOT_SUPPORTED);
}

TEST_WITH(each_kind_of_rdma_has_its_name, NULL, clear)
{
    enum { OF_MAPPED = 110, SUPPORTED = 116, DMA_BUF = 124 };
    static const struct {
        const char *value;
        CUresult create;
        int attribute;
    } kinds[] = {
        {"works", CUDA_SUCCESS, 1},
        {"create_fails", CUDA_ERROR_NOT_SUPPORTED, 1},
        {"access_fails", CUDA_SUCCESS, 1},
        {"ignored", CUDA_SUCCESS, 1},
        {"absent", CUDA_ERROR_NOT_SUPPORTED, 0},
    };
    CUmemAllocationProp prop = on_device(0);
    CUmemGenericAllocationHandle handle;

    prop.allocFlags.gpuDirectRDMACapable = 1;
    for (size_t i = 0; i < COUNT_OF(kinds); i++) {
        set_variable("XSEG_SIM_RDMA", kinds[i].value);
        start(NULL);
        assert_int_equal(device_attribute(SUPPORTED), kinds[i].attribute);
        assert_int_equal(device_attribute(OF_MAPPED), kinds[i].attribute);
        assert_int_equal(device_attribute(DMA_BUF), 1);
        ASSERT_CU(cuMemCreate(&handle, GRANULE, &prop, 0), kinds[i].create);
    }
    set_variable("XSEG_SIM_DMA_BUF", "0");
    set_variable("XSEG_SIM_ADDRESS_RANGE", "0");
    start(NULL);
    (void)enter(0);
    assert_int_equal(device_attribute(DMA_BUF), 0);
    CUdeviceptr base = reserve(GRANULE), start_address = 0;
    back(base, GRANULE);
    ASSERT_CU(cuMemGetAddressRange(&start_address, NULL, base), CUDA_ERROR_NOT_FOUND);
    const struct xseg_sim_settings unknown = {
        sizeof(unknown), .rdma = (enum xseg_sim_rdma)(XSEG_SIM_RDMA_ABSENT + 1)};
    expect_rejected(xseg_sim_reset(&unknown), "unknown rdma, 5;");
}

#define ADDRESSES 64u
#define RANGES    6u

/* Allocations and reservations of several sizes, some of which are freed again; returns their addresses. */
static void allocate_and_reserve(CUdeviceptr *address)
{
    for (unsigned i = 0; i < ADDRESSES; i++) {
        const size_t bytes = (1 + i % 5) * GRANULE;

        if (i % 2 == 0)
            address[i] = allocate(bytes);
        else
            address[i] = reserve(bytes);
        if (i % 7 == 6)
            ASSERT_OK(i % 2 == 0 ? cuMemFree(address[i]) : cuMemAddressFree(address[i], bytes));
    }
}

TEST_WITH(addresses_rise_fall_or_are_shuffled, NULL, clear)
{
    static const char *const orders[] = {"rising", "falling", "shuffled"};
    static const unsigned min[] = {ADDRESSES - 1, 0, ADDRESSES / 4},
                          max[] = {ADDRESSES - 1, 0, ADDRESSES * 3 / 4};

    for (unsigned order = 0; order < 3; order++) {
        CUdeviceptr address[ADDRESSES], second[ADDRESSES];
        unsigned rising = 0;

        set_variable("XSEG_SIM_ADDRESS_ORDER", orders[order]);
        start(NULL);
        (void)enter(0);
        allocate_and_reserve(address);
        for (unsigned i = 1; i < ADDRESSES; i++)
            rising += address[i] > address[i - 1];
        assert_in_range(rising, min[order], max[order]);
        start(NULL);
        (void)enter(0);
        allocate_and_reserve(second);
        assert_memory_equal(address, second, sizeof(address));
    }
    const struct xseg_sim_settings unknown = {
        sizeof(unknown),
        .address_order = (enum xseg_sim_address_order)(XSEG_SIM_ADDRESSES_SHUFFLED + 1)};
    expect_rejected(xseg_sim_reset(&unknown), "unknown address_order, 3;");
}

/* With reused addresses, ranges do not overlap, and every range is found at its address. */
TEST_WITH(freed_addresses_are_reused_in_the_chosen_order, NULL, clear)
{
    const size_t bytes = (size_t)7 << 40;

    for (unsigned order = 0; order <= XSEG_SIM_ADDRESSES_SHUFFLED; order++) {
        CUdeviceptr base[RANGES] = {0};

        start_with((struct xseg_sim_settings){.address_order = (enum xseg_sim_address_order)order});
        for (unsigned step = 0; step < 200; step++) {
            const unsigned index = step * 5 % RANGES;

            if (base[index] != 0)
                ASSERT_OK(cuMemAddressFree(base[index], bytes));
            base[index] = reserve(bytes);
            back(base[index] + step * GRANULE, GRANULE);
            for (unsigned i = 0; i < RANGES; i++)
                assert_true(i == index || base[i] == 0 || base[i] + bytes <= base[index] ||
                            base[index] + bytes <= base[i]);
            ASSERT_OK(cuMemUnmap(base[index] + step * GRANULE, GRANULE));
        }
    }
}

TEST_WITH(fault_is_read_from_the_environment, NULL, clear)
{
    int count;

    set_variable("XSEG_SIM_FAIL", "cuDeviceGetCount:2:46");
    assert_int_equal(xseg_sim_reset(NULL), XSEG_OK);
    assert_int_equal(count_of_devices(), 1);
    ASSERT_CU(cuDeviceGetCount(&count), CUDA_ERROR_DEVICE_UNAVAILABLE);
    assert_true(xseg_sim_failed());
    set_variable("XSEG_SIM_FAIL", "cuDeviceGetCount:2+2:46,cuInit:2:999");
    assert_int_equal(xseg_sim_reset(NULL), XSEG_OK);
    for (int i = 1; i <= 6; i++) {
        ASSERT_CU(cuInit(0), i == 2 ? CUDA_ERROR_UNKNOWN : CUDA_SUCCESS);
        ASSERT_CU(cuDeviceGetCount(&count),
                  i % 2 == 0 ? CUDA_ERROR_DEVICE_UNAVAILABLE : CUDA_SUCCESS);
    }
    set_variable("XSEG_SIM_FAIL", ":1");
    assert_int_equal(xseg_sim_reset(NULL), XSEG_OK);
    ASSERT_CU(cuInit(0), CUDA_ERROR_OUT_OF_MEMORY);
    ASSERT_OK(cuInit(0));
}

TEST_WITH(invalid_values_are_rejected, NULL, clear)
{
    static const struct {
        const char *name, *values[14];
    } invalid[] = {
        {"XSEG_SIM_DEVICES", {"0", "65", "-1", "two", "2x", " 2"}},
        {"XSEG_SIM_MEMORY_MB", {"3", "0", "1.5", "99999999999999999999"}},
        {"XSEG_SIM_ADDRESSES_MB", {"0", "20000000000000"}},
        {"XSEG_SIM_COSTS", {"A100"}},
        {"XSEG_SIM_BATCH", {"2", "yes"}},
        {"XSEG_SIM_VMM", {"-0"}},
        {"XSEG_SIM_FAIL",
         {"cuMemCreate", "cuMemCreate:", "cuMemCreate:0", "cuMemCreate:1:", "cuMemCreate:1:0",
          "cuMemCreate:1:2:3", "cuNone:1", "cuMemCreate:1,", "cuMemCreate:1+", "cuMemCreate:1+0",
          "cuMemCreate:1:2+3", ":1,:1,:1,:1,:1,:1,:1,:1,:1,:1,:1,:1,:1,:1,:1,:1,:1",
          "cuMemCreate:1:99999999999",
          "cuMemCreatecuMemCreatecuMemCreatecuMemCreatecuMemCreatecuMemCreatecuMemCreate:1"}},
        {"XSEG_SIM_STRICT", {"on"}},
        {"XSEG_SIM_BYTES", {"2"}},
        {"XSEG_SIM_FABRIC", {"yes"}},
        {"XSEG_SIM_REUSE_HANDLES", {"yes"}},
        {"XSEG_SIM_RDMA", {"1", "work"}},
        {"XSEG_SIM_DMA_BUF", {"2"}},
        {"XSEG_SIM_ADDRESS_RANGE", {"no"}},
        {"XSEG_SIM_ADDRESS_ORDER", {"1", "fall"}},
        {"XSEG_SIM_PEERS", {"no"}},
        {"XSEG_SIM_INTEGRATED", {"2"}},
        {"XSEG_SIM_HOST_MB", {"-1", "1"}},
        {"XSEG_SIM_PAGE_CACHE_MB", {"x", "1"}},
        {"XSEG_SIM_TAILS", {"-1"}},
    };

    start(NULL);
    for (size_t i = 0; i < COUNT_OF(invalid); i++)
        for (size_t k = 0; k < COUNT_OF(invalid[i].values) && invalid[i].values[k] != NULL; k++) {
            (void)clear(NULL);
            set_variable(invalid[i].name, invalid[i].values[k]);
            expect_rejected(xseg_sim_reset(NULL), invalid[i].name);
        }
    /* Rejected settings change nothing: the machine is still running. */
    (void)reserve(GRANULE);
    (void)clear(NULL);
    set_variable("XSEG_SIM_DEVICES", "");
    assert_int_equal(xseg_sim_reset(NULL), XSEG_OK);
}

static void write_file(const char *path, const char *text, size_t bytes)
{
    FILE *file = fopen(path, "wb");

    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
}

#define WITHOUT_MAP                                                                               \
    "name = a GPU\nreserve = 11\naddress_free = 1\ncreate = 7000 150 0\nrelease = 1\nunmap = 1\n" \
    "unmap_mapping = 1\naccess_call = 1\naccess = 1\naccess_wide = 1\nalloc = 1\nfree = 1\n"      \
    "event_create = 1\nevent_record = 1\nevent_query = 1\nstream_wait = 1\nsynchronize = 1\n"

TEST_WITH(costs_are_read_from_a_file, NULL, clear)
{
    static const struct {
        const char *text, *words;
    } invalid[] = {
        {"", "missing key, name; set every key"},
        {WITHOUT_MAP, "missing key, map"},
        {WITHOUT_MAP "map = 1\nshrink = 2\n", "line 19: unknown key, 'shrink'"},
        {WITHOUT_MAP "map = 1\nmap = 1\n", "line 19: duplicate key, map"},
        {WITHOUT_MAP "map = \n", "line 18: no number for map; set up to three numbers of ns: base"},
        {"reserve = # none\n", "line 1: no number for reserve; set one number of ns"},
        {"# fine\n\nmap 1\n", "line 3: no '=' in the line, 'map 1'"},
        {"map = 1 2 3 4\n", "line 1: too many numbers for map; set up to three numbers"},
        {"unmap = 1 2\n", "line 1: too many numbers for unmap; set one number"},
        {"unmap = -1\n", "line 1: unmap is not a whole number of ns, '-1'"},
        {"unmap = 1.5\n", "not a whole number of ns, '1.5'"},
        {"unmap = 1000000000001\n", "use at most 1000000000000 ns"},
        {"unmap = 99999999999999999999999\n", "use at most 1000000000000 ns"},
        {"name = a\nname = b\n", "line 2: duplicate key, name"},
        {"name =\n", "line 1: invalid length of name, 0 characters; use 1 to 63"},
        {"name = \x01\n", "line 1: name has a character that is not printable ASCII, code 1"},
        {"n\x01me = 1\n", "unknown key, 'n\\x01me'"},
    };
    static char large[(64 << 10) + 1];
    char path[] = P_tmpdir "/xseg-costs.XXXXXX";

    assert_true(close(mkstemp(path)) == 0);
    write_file(path, WITHOUT_MAP "map = 1\n", strlen(WITHOUT_MAP "map = 1\n"));
    set_variable("XSEG_SIM_COSTS", path);
    start(NULL);
    (void)reserve(GRANULE);
    assert_int_equal(xseg_sim_driver_time(), 11);

    for (size_t i = 0; i < COUNT_OF(invalid); i++) {
        write_file(path, invalid[i].text, strlen(invalid[i].text));
        expect_rejected(xseg_sim_reset(NULL), invalid[i].words);
        expect_rejected(xseg_sim_reset(NULL), path);
    }
    write_file(path, "name = a\0b\n", 11);
    expect_rejected(xseg_sim_reset(NULL), "not a text file; give a cost file");
    memset(large, '\n', sizeof(large));
    write_file(path, large, sizeof(large));
    expect_rejected(xseg_sim_reset(NULL), "file exceeds the limit, 64 KiB");
    write_file(path, large, sizeof(large) - 1);
    expect_rejected(xseg_sim_reset(NULL), "missing key, name");
    assert_int_equal(unlink(path), 0);
    expect_rejected(xseg_sim_reset(NULL), "cannot open the file, No such file");
    assert_int_equal(mkfifo(path, 0600), 0);
    expect_rejected(xseg_sim_reset(NULL), "not a regular file");
    assert_int_equal(unlink(path), 0);
    set_variable("XSEG_SIM_COSTS", "/");
    expect_rejected(xseg_sim_reset(NULL), "not a regular file");
    /* The costs of the file are still in effect. */
    (void)reserve(GRANULE);
    assert_int_equal(xseg_sim_driver_time(), 22);
    struct xseg_sim_settings settings = {sizeof(settings), .costs = "./none.costs"};
    expect_rejected(xseg_sim_reset(&settings),
                    "xseg_sim_reset: costs: ./none.costs, cannot open the file");
    settings.costs = "cheap";
    expect_rejected(xseg_sim_reset(&settings), "or a path of a cost file that contains / or .");
}

static void use_destroyed_event(void)
{
    (void)xseg_sim_reset(NULL);
    (void)cuInit(0);
    (void)enter(0);
    CUevent event = new_event();
    (void)cuEventDestroy(event);
    (void)cuEventQuery(event);
}

TEST_WITH(machine_is_strict_by_default, NULL, clear)
{
    EXPECT_REPORT(use_destroyed_event, "cuEventQuery");
    set_variable("XSEG_SIM_STRICT", "1");
    EXPECT_REPORT(use_destroyed_event, "cuEventQuery");
    set_variable("XSEG_SIM_STRICT", "0");
    use_destroyed_event();
}

/* Settings of a shared machine; without a name if the host does not support sharing. */
static struct xseg_sim_settings shared_machine(void)
{
    static char name[64];
    struct xseg_sim_settings settings = small_machine();

    if (sim_shared_name(name, sizeof(name)))
        settings.shared = name;
    return settings;
}

/* Another process of the machine, which executes commands: 'a' allocates, 'f' frees, and 'k' kills the process. */
static void execute(int socket, const struct xseg_sim_settings *settings)
{
    const CUmemAllocationProp prop = on_device(0);
    CUmemGenericAllocationHandle handle = 0;
    char command;

    if (xseg_sim_reset(settings) != XSEG_OK || cuInit(0) != CUDA_SUCCESS)
        _exit(1);
    while (read(socket, &command, 1) == 1) {
        if (command == 'a')
            command = cuMemCreate(&handle, 600 * MIB, &prop, 0) == CUDA_SUCCESS ? 'y' : 'n';
        else if (command == 'f')
            command = cuMemRelease(handle) == CUDA_SUCCESS ? 'y' : 'n';
        else
            (void)raise(SIGKILL);
        if (write(socket, &command, 1) != 1)
            _exit(2);
    }
    /* The test has failed. The last process removes the machine, which may be this one. */
    (void)xseg_sim_reset(NULL);
    _exit(3);
}

static char send_command(int socket, char command)
{
    char response = '?';

    assert_int_equal(write(socket, &command, 1), 1);
    assert_int_equal(read(socket, &response, 1), 1);
    return response;
}

TEST_WITH(processes_share_a_machine, NULL, clear)
{
    struct xseg_sim_settings settings = shared_machine();
    const CUmemAllocationProp prop = on_device(0);
    CUmemGenericAllocationHandle handle = 0;
    int socket = -1, result = 0, count = 0;

    if (settings.shared == NULL)
        return;
    start_with(settings);
    pid_t child = child_fork_with_socket(&socket);
    if (child == 0) {
        /* The first process determines the settings of the machine. */
        settings.memory_bytes = 512 * MIB;
        settings.devices = 1;
        execute(socket, &settings);
    }
    assert_int_equal(send_command(socket, 'a'), 'y');
    assert_int_equal(free_memory(), (1024 - 600) * MIB);
    assert_int_equal(xseg_sim_used(0), 0);
    ASSERT_CU(cuMemCreate(&handle, 426 * MIB, &prop, 0), CUDA_ERROR_OUT_OF_MEMORY);
    assert_int_equal(send_command(socket, 'f'), 'y');
    ASSERT_OK(cuMemCreate(&handle, 426 * MIB, &prop, 0));
    assert_int_equal(send_command(socket, 'a'), 'n');
    ASSERT_OK(cuMemRelease(handle));
    assert_int_equal(send_command(socket, 'a'), 'y');
    assert_int_equal(free_memory(), (1024 - 600) * MIB);
    /* The memory of a killed process is free. */
    assert_int_equal(write(socket, "k", 1), 1);
    assert_int_equal(waitpid(child, &result, 0), child);
    assert_true(WIFSIGNALED(result));
    assert_int_equal(free_memory(), 1024 * MIB);
    ASSERT_OK(cuDeviceGetCount(&count));
    assert_int_equal(count, 2);
    (void)close(socket);
}

/* A killed process cannot remove the name of the machine. */
TEST_WITH(shared_machine_is_destroyed_when_its_processes_are_killed, NULL, clear)
{
    struct xseg_sim_settings settings = shared_machine();
    const struct xseg_sim_settings own = small_machine();
    int result = 0;

    if (settings.shared == NULL)
        return;
    settings.memory_bytes = 64 * MIB;
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        start(&settings);
        (void)raise(SIGKILL);
    }
    assert_int_equal(waitpid(child, &result, 0), child);
    assert_true(WIFSIGNALED(result) && WTERMSIG(result) == SIGKILL);
    settings.memory_bytes = 256 * MIB;
    start_with(settings);
    assert_int_equal(free_memory(), 256 * MIB);
    start(&own);
}

TEST_WITH(a_shared_machine_ends_with_its_last_process, NULL, clear)
{
    struct xseg_sim_settings settings = shared_machine();
    const struct xseg_sim_settings own = small_machine();
    char path[80];

    if (settings.shared == NULL)
        return;
    (void)snprintf(path, sizeof(path), "/xseg-sim-%s", settings.shared);
    start(&settings);
    start(&settings); /* joins the machine before it leaves it */
    int file = shm_open(path, O_RDONLY, 0);
    assert_true(file >= 0);
    (void)close(file);
    start(&own);
    assert_int_equal(shm_open(path, O_RDONLY, 0), -1);
    settings.memory_bytes = 64 * MIB;
    start_with(settings);
    assert_int_equal(free_memory(), 64 * MIB);
    start(&own);

    settings.shared = "no/such";
    expect_rejected(xseg_sim_reset(&settings),
                    "xseg_sim_reset: shared: cannot join the simulated machine, 'no/such'");
    settings.shared = "";
    expect_rejected(xseg_sim_reset(&settings), "cannot join the simulated machine, ''");
    set_variable("XSEG_SIM_SHARED", "a b");
    expect_rejected(xseg_sim_reset(NULL),
                    "XSEG_SIM_SHARED: cannot join the simulated machine, 'a b'");
    set_variable("XSEG_SIM_SHARED", path + sizeof("/xseg-sim-") - 1);
    assert_int_equal(xseg_sim_reset(NULL), XSEG_OK);
    file = shm_open(path, O_RDONLY, 0);
    assert_true(file >= 0);
    (void)close(file);
    start(&own);
}

int main(void)
{
    (void)clear(NULL);
    set_variable("XSEG_SIM_DEVICES", "3");
    /* An invalid variable is reported, and the others apply. */
    set_variable("XSEG_SIM_MEMORY_MB", "much");
    return test_run();
}
