/* SPDX-License-Identifier: MIT */
/* The trial of memory that may only be read at a second place: verdicts, what is remembered, and calls that fail in it. */
#include "vmm/context.h"

#include <string.h>

#include "tests/support/scene.h"

#define INVALID       1
#define OUT_OF_MEMORY 2
#define ILLEGAL       700 /* CUDA_ERROR_ILLEGAL_ADDRESS: the device is lost */
#define NOT_SUPPORTED 801
#define UNKNOWN       999

/* The trial makes fewer calls than that, undoing it and asking again included. */
#define CALLS 32u

/* The driver's own function, as a program declares it. */
struct location {
    int type, id;
};
int cuMemGetAccess(unsigned long long *flags, const struct location *location,
                   unsigned long long ptr);

enum { NONE = 0, READ = 1, WRITE = 3 };

static unsigned long long access_of(uint64_t address, int device)
{
    const struct location location = {1, device};
    unsigned long long flags = 7;

    assert_int_equal(cuMemGetAccess(&flags, &location, address), 0);
    return flags;
}

struct fixture {
    struct xseg_driver *driver;
    struct xseg_context context;
    struct xseg_leftovers leftovers;
};

static void set_up_on(struct fixture *f, const struct xseg_sim_settings *settings)
{
    char why[128];

    memset(f, 0, sizeof(*f));
    assert_int_equal(xseg_sim_reset(settings), XSEG_OK);
    assert_int_equal(xseg_driver_open(scene_driver(), &f->driver), XSEG_OK);
    assert_int_equal(xseg_leftovers_init(&f->leftovers, &f->context), XSEG_OK);
    assert_int_equal(xseg_context_open(&f->context, f->driver, 0, &f->leftovers, why, sizeof(why)),
                     XSEG_OK);
    assert_int_equal(f->context.read_only, XSEG_READ_ONLY_UNTRIED);
}

static void set_up(struct fixture *f)
{
    struct xseg_sim_settings settings = XSEG_SIM_SETTINGS_INIT;

    settings.devices = 2;
    set_up_on(f, &settings);
}

/* What is in use is counted, and goes back once the driver takes it. */
static void expect_nothing_lost(struct fixture *f)
{
    struct xseg_finding finding = {0};

    assert_true(xseg_leftovers_audit(&f->leftovers, &finding));
    assert_int_equal(xseg_leftovers_bytes(&f->leftovers), xseg_sim_used(0));
    assert_int_equal(xseg_leftovers_retry(&f->leftovers), XSEG_OK);
    assert_int_equal(xseg_leftovers_bytes(&f->leftovers), 0);
    assert_int_equal(xseg_sim_used(0), 0);
    assert_int_equal(xseg_sim_leaks(NULL, 0), 1); /* the context */
}

static void tear_down(struct fixture *f)
{
    expect_nothing_lost(f);
    assert_int_equal(xseg_context_close(&f->context), XSEG_OK);
    xseg_leftovers_fini(&f->leftovers);
    xseg_driver_close(f->driver);
    assert_int_equal(xseg_sim_leaks(NULL, 0), 0);
}

static xseg_status try(struct fixture *f)
{
    return xseg_context_try_read_only(&f->context, &f->leftovers);
}

/* The verdict belongs to the status, and is remembered: another question makes no call. */
static void expect_verdict(struct fixture *f, xseg_status status, const char *word)
{
    const uint64_t calls = xseg_sim_calls(NULL);

    assert_int_equal(f->context.read_only, status == XSEG_OK ? XSEG_READ_ONLY_WORKS
                                           : status == XSEG_ERR_UNSUPPORTED
                                               ? XSEG_READ_ONLY_REFUSED
                                               : XSEG_READ_ONLY_UNTRIED);
    if (status == XSEG_OK)
        assert_int_equal(try(f), XSEG_OK);
    if (status == XSEG_ERR_UNSUPPORTED)
        scene_expect_error(try(f), XSEG_ERR_UNSUPPORTED, word);
    assert_int_equal(xseg_sim_calls(NULL), calls);
}

/* --- Rights, as the driver's functions give them. --- */

static void peers_may_only_read_either(void **state)
{
    struct fixture f;
    uint64_t base = 0, handle = 0, bytes;
    bool is_read_only = true;

    (void)state;
    set_up(&f);
    bytes = f.context.granularity;
    f.context.peer[0] = 1;
    assert_int_equal(xseg_driver_reserve(&f.context, 2 * bytes, 0, &base), XSEG_OK);
    assert_int_equal(xseg_driver_create(&f.context, bytes, 0, &handle), XSEG_OK);
    assert_int_equal(xseg_driver_map(&f.context, base, bytes, handle), XSEG_OK);
    assert_int_equal(xseg_driver_map(&f.context, base + bytes, bytes, handle), XSEG_OK);
    f.context.peers = 1;
    assert_int_equal(xseg_driver_set_access(&f.context, base, bytes), XSEG_OK);
    f.context.peers = 0;
    assert_int_equal(xseg_driver_is_read_only(&f.context, base + bytes, &is_read_only), XSEG_OK);
    assert_false(is_read_only); /* nothing may be done there yet */
    assert_int_equal(xseg_driver_set_access_read_only(&f.context, base + bytes, bytes), XSEG_OK);
    assert_int_equal(access_of(base + bytes, 1), NONE);
    assert_int_equal(xseg_driver_set_peer_access_read_only(&f.context, 1, base + bytes, bytes),
                     XSEG_OK);
    assert_int_equal(access_of(base + bytes, 1), READ);
    assert_int_equal(xseg_driver_set_peer_access(&f.context, 1, base + bytes, bytes, false),
                     XSEG_OK);
    assert_int_equal(access_of(base + bytes, 1), NONE);
    f.context.peers = 1;
    assert_int_equal(xseg_driver_set_access_read_only(&f.context, base + bytes, bytes), XSEG_OK);
    for (int device = 0; device < 2; device++) {
        assert_int_equal(access_of(base, device), WRITE);
        assert_int_equal(access_of(base + bytes, device), READ);
    }
    assert_int_equal(xseg_driver_is_read_only(&f.context, base, &is_read_only), XSEG_OK);
    assert_false(is_read_only);
    assert_int_equal(xseg_driver_is_read_only(&f.context, base + bytes, &is_read_only), XSEG_OK);
    assert_true(is_read_only);
    assert_int_equal(
        xseg_leftovers_give_mapped_twice(&f.leftovers, handle, base, base + bytes, bytes), XSEG_OK);
    scene_expect_error(xseg_driver_is_read_only(&f.context, base, &is_read_only), XSEG_ERR_DRIVER,
                       "cuMemGetAccess");
    assert_int_equal(xseg_leftovers_give(&f.leftovers, XSEG_LEFTOVER_RANGE, base, 2 * bytes),
                     XSEG_OK);
    tear_down(&f);
}

/* --- Verdicts. --- */

static void it_is_tried_once(void **state)
{
    static const struct {
        const char *call;
        uint64_t count;
    } rows[] = {
        {"cuMemAddressReserve", 1}, {"cuMemCreate", 1},      {"cuMemMap", 2},
        {"cuMemSetAccess", 2},      {"cuMemGetAccess", 2},   {"cuMemUnmap", 2},
        {"cuMemRelease", 1},        {"cuMemAddressFree", 1},
    };
    uint64_t before[COUNT_OF(rows)];
    struct fixture f;

    (void)state;
    set_up(&f);
    for (size_t i = 0; i < COUNT_OF(rows); i++)
        before[i] = xseg_sim_calls(rows[i].call);
    f.context.batches_access = false;
    assert_int_equal(try(&f), XSEG_OK);
    for (size_t i = 0; i < COUNT_OF(rows); i++)
        assert_int_equal(xseg_sim_calls(rows[i].call) - before[i], rows[i].count);
    expect_verdict(&f, XSEG_OK, NULL);
    assert_false(f.context.batches_access);
    assert_int_equal(xseg_leftovers_bytes(&f.leftovers), 0);
    tear_down(&f);
}

static void a_device_that_maps_one_by_one_does(void **state)
{
    struct xseg_sim_settings settings = XSEG_SIM_SETTINGS_INIT;
    struct fixture f;

    (void)state;
    settings.one_by_one = true;
    set_up_on(&f, &settings);
    assert_int_equal(try(&f), XSEG_OK);
    expect_verdict(&f, XSEG_OK, NULL);
    tear_down(&f);
}

static void a_refusal_has_the_drivers_sentence(void **state)
{
    struct xseg_sim_settings settings = XSEG_SIM_SETTINGS_INIT;
    struct fixture f;

    (void)state;
    settings.without_read_only = true;
    set_up_on(&f, &settings);
    scene_expect_error(try(&f), XSEG_ERR_UNSUPPORTED,
                       "memory of device 0 cannot be mapped a second time with read-only access: "
                       "cuMemSetAccess failed with CUDA_ERROR_NOT_SUPPORTED (801)");
    expect_verdict(&f, XSEG_ERR_UNSUPPORTED, "CUDA_ERROR_NOT_SUPPORTED (801)");
    tear_down(&f);
}

static void a_device_without_pages_has_none(void **state)
{
    struct xseg_sim_settings settings = XSEG_SIM_SETTINGS_INIT;
    struct fixture f;

    (void)state;
    settings.without_vmm = true;
    set_up_on(&f, &settings);
    scene_expect_error(try(&f), XSEG_ERR_UNSUPPORTED, "no virtual memory management");
    tear_down(&f);
}

/* What the driver says of the next places that are asked about, instead of the truth: bit 0 of the first one. */
static unsigned said, asked;
static bool lies;

xseg_status __real_xseg_driver_is_read_only(struct xseg_context *context, uint64_t address,
                                            bool *read_only);
xseg_status __wrap_xseg_driver_is_read_only(struct xseg_context *context, uint64_t address,
                                            bool *read_only);

xseg_status __wrap_xseg_driver_is_read_only(struct xseg_context *context, uint64_t address,
                                            bool *read_only)
{
    const xseg_status status = __real_xseg_driver_is_read_only(context, address, read_only);

    if (lies)
        *read_only = (said >> asked++ & 1) != 0;
    return status;
}

static void rights_that_were_not_asked_for_are_a_refusal(void **state)
{
    (void)state;
    lies = true;
    for (said = 0; said < 4; said++) {
        struct fixture f;

        set_up(&f);
        asked = 0;
        if (said == 2)
            assert_int_equal(try(&f), XSEG_OK);
        else
            scene_expect_error(try(&f), XSEG_ERR_UNSUPPORTED, "other rights than it is asked for");
        assert_int_equal(asked, 2);
        expect_verdict(&f, said == 2 ? XSEG_OK : XSEG_ERR_UNSUPPORTED, "cuMemGetAccess");
        tear_down(&f);
    }
    lies = false;
}

/* --- Calls that fail. --- */

static void what_fails_says_what_is_found_out(void **state)
{
    static const struct {
        const char *call;
        uint64_t nth;
        int error;
        xseg_status status;
    } rows[] = {
        {"cuMemAddressReserve", 1, OUT_OF_MEMORY, XSEG_ERR_NO_ADDRESSES},
        {"cuMemAddressReserve", 1, UNKNOWN, XSEG_ERR_DRIVER},
        {"cuMemCreate", 1, OUT_OF_MEMORY, XSEG_ERR_NO_MEMORY},
        {"cuMemCreate", 1, UNKNOWN, XSEG_ERR_DRIVER},
        {"cuMemMap", 1, OUT_OF_MEMORY, XSEG_ERR_NO_MEMORY},
        {"cuMemMap", 1, INVALID, XSEG_ERR_DRIVER},
        {"cuMemSetAccess", 1, OUT_OF_MEMORY, XSEG_ERR_NO_MEMORY},
        {"cuMemSetAccess", 1, UNKNOWN, XSEG_ERR_DRIVER},
        {"cuMemMap", 2, OUT_OF_MEMORY, XSEG_ERR_NO_MEMORY},
        {"cuMemMap", 2, INVALID, XSEG_ERR_DRIVER},
        {"cuMemSetAccess", 2, OUT_OF_MEMORY, XSEG_ERR_NO_MEMORY},
        {"cuMemSetAccess", 2, INVALID, XSEG_ERR_UNSUPPORTED},
        {"cuMemSetAccess", 2, UNKNOWN, XSEG_ERR_UNSUPPORTED},
        {"cuMemSetAccess", 2, ILLEGAL, XSEG_ERR_DEVICE_LOST},
        {"cuMemGetAccess", 1, UNKNOWN, XSEG_ERR_UNSUPPORTED},
        {"cuMemGetAccess", 2, NOT_SUPPORTED, XSEG_ERR_UNSUPPORTED},
        {"cuMemUnmap", 1, UNKNOWN, XSEG_OK},
        {"cuMemUnmap", 2, UNKNOWN, XSEG_OK},
        {"cuMemRelease", 1, UNKNOWN, XSEG_OK},
        {"cuMemAddressFree", 1, UNKNOWN, XSEG_OK},
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct fixture f;

        set_up(&f);
        assert_int_equal(xseg_sim_fail(rows[i].call, rows[i].nth, rows[i].error), XSEG_OK);
        if (rows[i].status == XSEG_OK)
            assert_int_equal(try(&f), XSEG_OK);
        else
            scene_expect_error(try(&f), rows[i].status, rows[i].call);
        assert_true(xseg_sim_failed());
        expect_verdict(&f, rows[i].status, rows[i].call);
        if (strcmp(rows[i].call, "cuMemUnmap") == 0 || strcmp(rows[i].call, "cuMemRelease") == 0)
            assert_int_equal(xseg_leftovers_bytes(&f.leftovers), f.context.granularity);
        expect_nothing_lost(&f);
        /* What was not found out is asked again. */
        if (f.context.read_only == XSEG_READ_ONLY_UNTRIED)
            assert_int_equal(try(&f), XSEG_OK);
        tear_down(&f);
    }
}

static void set_fault(unsigned slot, const char *call, uint64_t nth, uint64_t every, int error)
{
    struct xseg_sim_fault fault = XSEG_SIM_FAULT_INIT;

    fault.call = call;
    fault.nth = nth;
    fault.every = every;
    fault.error = error;
    assert_int_equal(xseg_sim_fault_set(slot, &fault), XSEG_OK);
}

static void clear_faults(void)
{
    assert_int_equal(xseg_sim_fault_set(0, NULL), XSEG_OK);
    assert_int_equal(xseg_sim_fault_set(1, NULL), XSEG_OK);
}

/* Every two calls fail together; second == first: one call. */
static void nothing_is_lost_at_any_two_failures(void **state)
{
    static const int errors[] = {INVALID, OUT_OF_MEMORY, UNKNOWN};
    unsigned struck = 0;

    (void)state;
    for (size_t i = 0; i < COUNT_OF(errors); i++)
        for (uint64_t first = 1; first < CALLS; first++)
            for (uint64_t second = first; second < CALLS; second++) {
                struct fixture f;

                set_up(&f);
                set_fault(0, NULL, first, 0, errors[i]);
                set_fault(1, NULL, second, 0, errors[i]);
                const xseg_status status = try(&f);
                struck += xseg_sim_fault_struck(1) != 0;
                clear_faults();
                expect_verdict(&f, status, "cu");
                tear_down(&f);
            }
    assert_true(struck > 100);
}

/* Calls that fail for good, until they work again. */
static void nothing_is_lost_while_a_call_is_refused(void **state)
{
    static const char *const calls[] = {"cuMemUnmap", "cuMemRelease", "cuMemAddressFree",
                                        "cuCtxPushCurrent", "cuPointerGetAttributes"};

    (void)state;
    for (size_t one = 0; one < COUNT_OF(calls); one++)
        for (size_t other = 0; other < COUNT_OF(calls); other++)
            for (uint64_t nth = 1; nth <= 2; nth++) {
                struct fixture f;

                set_up(&f);
                set_fault(0, calls[one], nth, 1, UNKNOWN);
                set_fault(1, calls[other], 1, 1, UNKNOWN);
                assert_int_equal(try(&f), XSEG_OK);
                assert_int_equal(xseg_leftovers_bytes(&f.leftovers), xseg_sim_used(0));
                (void)xseg_leftovers_retry(&f.leftovers);
                assert_int_equal(xseg_leftovers_bytes(&f.leftovers), xseg_sim_used(0));
                clear_faults();
                expect_verdict(&f, XSEG_OK, NULL);
                tear_down(&f);
            }
}

/* The reason stands, whatever else goes wrong behind it. */
static void the_first_reason_is_the_one_that_is_told(void **state)
{
    struct xseg_sim_settings settings = XSEG_SIM_SETTINGS_INIT;
    struct fixture f;

    (void)state;
    settings.without_read_only = true;
    set_up_on(&f, &settings);
    set_fault(0, "cuMemUnmap", 1, 1, UNKNOWN);
    scene_expect_error(try(&f), XSEG_ERR_UNSUPPORTED, "CUDA_ERROR_NOT_SUPPORTED (801)");
    assert_int_equal(xseg_leftovers_bytes(&f.leftovers), f.context.granularity);
    clear_faults();
    expect_verdict(&f, XSEG_ERR_UNSUPPORTED, "CUDA_ERROR_NOT_SUPPORTED (801)");
    tear_down(&f);
    set_up(&f);
    set_fault(0, "cuMemSetAccess", 1, 0, OUT_OF_MEMORY);
    set_fault(1, "cuMemUnmap", 1, 1, UNKNOWN);
    scene_expect_error(try(&f), XSEG_ERR_NO_MEMORY, "cuMemSetAccess");
    clear_faults();
    tear_down(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(peers_may_only_read_either),
        cmocka_unit_test(it_is_tried_once),
        cmocka_unit_test(a_device_that_maps_one_by_one_does),
        cmocka_unit_test(a_refusal_has_the_drivers_sentence),
        cmocka_unit_test(a_device_without_pages_has_none),
        cmocka_unit_test(rights_that_were_not_asked_for_are_a_refusal),
        cmocka_unit_test(what_fails_says_what_is_found_out),
        cmocka_unit_test(nothing_is_lost_at_any_two_failures),
        cmocka_unit_test(nothing_is_lost_while_a_call_is_refused),
        cmocka_unit_test(the_first_reason_is_the_one_that_is_told),
    };

    return cmocka_run_group_tests_name("context", tests, NULL, NULL);
}
