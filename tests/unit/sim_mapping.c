/* SPDX-License-Identifier: MIT */
/* Reservations, physical memory, mappings and access rights: what is refused, and what is counted. */
#include "tests/unit/sim_setup.h"

/* The scene of the refusals: a reservation of eight granules with mappings of 1, 2, none, 1, ... */
struct scene {
    CUdeviceptr base;
    CUmemGenericAllocationHandle one, two, released;
    CUmemAllocationProp prop;
    CUmemAccessDesc desc;
};

static CUdeviceptr at(const struct scene *scene, size_t granule)
{
    return scene->base + granule * GRANULE;
}

static struct scene set_scene(void)
{
    struct scene scene = {
        .base = reserve(8 * GRANULE),
        .one = create(GRANULE),
        .two = create(2 * GRANULE),
        .released = create(GRANULE),
        .prop = on_device(0),
        .desc = read_write(0),
    };

    ASSERT_OK(cuMemMap(at(&scene, 0), GRANULE, 0, scene.one, 0));
    ASSERT_OK(cuMemMap(at(&scene, 1), 2 * GRANULE, 0, scene.two, 0));
    ASSERT_OK(cuMemMap(at(&scene, 4), GRANULE, 0, scene.one, 0));
    ASSERT_OK(cuMemRelease(scene.released));
    return scene;
}

#define REFUSED(name, expected, call)                              \
    static CUresult name(struct scene *s)                          \
    {                                                              \
        CUmemGenericAllocationHandle handle = 0;                   \
        CUdeviceptr out = 0;                                       \
        unsigned long long flags = 0;                              \
        size_t size = 0;                                           \
                                                                   \
        (void)s, (void)handle, (void)out, (void)flags, (void)size; \
        return (call);                                             \
    }                                                              \
    enum { name##_expected = (expected) };

#define VALUE  CUDA_ERROR_INVALID_VALUE
#define DEVICE CUDA_ERROR_INVALID_DEVICE
#define LACKS  CUDA_ERROR_NOT_SUPPORTED
#define MEMORY CUDA_ERROR_OUT_OF_MEMORY

/* clang-format off */
#define REFUSALS(X) \
    X(reserve_null, VALUE, cuMemAddressReserve(NULL, GRANULE, 0, 0, 0)) \
    X(reserve_nothing, VALUE, cuMemAddressReserve(&out, 0, 0, 0, 0)) \
    X(reserve_part_of_a_host_page, VALUE, cuMemAddressReserve(&out, GRANULE + 512, 0, 0, 0)) \
    X(reserve_odd_alignment, VALUE, cuMemAddressReserve(&out, GRANULE, 3 * GRANULE, 0, 0)) \
    X(reserve_odd_hint, VALUE, cuMemAddressReserve(&out, GRANULE, 0, 0x1001, 0)) \
    X(reserve_flags, VALUE, cuMemAddressReserve(&out, GRANULE, 0, 0, 1)) \
    X(reserve_too_much, MEMORY, cuMemAddressReserve(&out, (size_t)1 << 47, 0, 0, 0)) \
    X(reserve_all_there_is, MEMORY, cuMemAddressReserve(&out, SIZE_MAX & ~(size_t)4095, 0, 0, 0)) \
    X(reserve_huge_alignment, MEMORY, cuMemAddressReserve(&out, GRANULE, (size_t)1 << 63, 0, 0)) \
    X(address_free_other_size, VALUE, cuMemAddressFree(s->base, GRANULE)) \
    X(address_free_inside, VALUE, cuMemAddressFree(at(s, 5), 3 * GRANULE)) \
    X(address_free_mapped, VALUE, cuMemAddressFree(s->base, 8 * GRANULE)) \
    X(address_free_unknown, VALUE, cuMemAddressFree(0x1000, GRANULE)) \
    X(create_null, VALUE, cuMemCreate(NULL, GRANULE, &s->prop, 0)) \
    X(create_nothing, VALUE, cuMemCreate(&handle, 0, &s->prop, 0)) \
    X(create_part_of_a_granule, VALUE, cuMemCreate(&handle, GRANULE + 4096, &s->prop, 0)) \
    X(create_without_properties, VALUE, cuMemCreate(&handle, GRANULE, NULL, 0)) \
    X(create_flags, VALUE, cuMemCreate(&handle, GRANULE, &s->prop, 1)) \
    X(create_type, VALUE, (s->prop.type = CU_MEM_ALLOCATION_TYPE_INVALID, cuMemCreate(&handle, GRANULE, &s->prop, 0))) \
    X(create_location_type, VALUE, (s->prop.location.type = CU_MEM_LOCATION_TYPE_INVALID, cuMemCreate(&handle, GRANULE, &s->prop, 0))) \
    X(create_on_the_host, LACKS, (s->prop.location.type = (CUmemLocationType)2, cuMemCreate(&handle, GRANULE, &s->prop, 0))) \
    X(create_on_current_node, VALUE, (s->prop.location.type = (CUmemLocationType)4, cuMemCreate(&handle, GRANULE, &s->prop, 0))) \
    X(create_no_such_device, DEVICE, (s->prop.location.id = 2, cuMemCreate(&handle, GRANULE, &s->prop, 0))) \
    X(create_negative_device, DEVICE, (s->prop.location.id = -1, cuMemCreate(&handle, GRANULE, &s->prop, 0))) \
    X(create_exportable, LACKS, (s->prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, cuMemCreate(&handle, GRANULE, &s->prop, 0))) \
    X(create_too_much, MEMORY, cuMemCreate(&handle, 1024 * MIB, &s->prop, 0)) \
    X(release_twice, VALUE, cuMemRelease(s->released)) \
    X(release_nothing, VALUE, cuMemRelease(0)) \
    X(release_rubbish, VALUE, cuMemRelease(0xdeadbeef12345678)) \
    X(map_flags, VALUE, cuMemMap(at(s, 5), GRANULE, 0, s->one, 1)) \
    X(map_offset, VALUE, cuMemMap(at(s, 5), GRANULE, GRANULE, s->two, 0)) \
    X(map_nothing, VALUE, cuMemMap(at(s, 5), 0, 0, s->one, 0)) \
    X(map_part_of_a_granule, VALUE, cuMemMap(at(s, 5), GRANULE / 2, 0, s->one, 0)) \
    X(map_between_granules, VALUE, cuMemMap(at(s, 5) + 4096, GRANULE, 0, s->one, 0)) \
    X(map_more_than_there_is, VALUE, cuMemMap(at(s, 5), 2 * GRANULE, 0, s->one, 0)) \
    X(map_over_a_mapping, VALUE, cuMemMap(at(s, 3), 2 * GRANULE, 0, s->two, 0)) \
    X(map_over_the_end, VALUE, cuMemMap(at(s, 7), 2 * GRANULE, 0, s->two, 0)) \
    X(map_outside, VALUE, cuMemMap(at(s, 8), GRANULE, 0, s->one, 0)) \
    X(map_released, VALUE, cuMemMap(at(s, 5), GRANULE, 0, s->released, 0)) \
    X(unmap_nothing, VALUE, cuMemUnmap(at(s, 0), 0)) \
    X(unmap_front_of_a_mapping, VALUE, cuMemUnmap(at(s, 1), GRANULE)) \
    X(unmap_back_of_a_mapping, VALUE, cuMemUnmap(at(s, 2), GRANULE)) \
    X(unmap_one_and_a_half, VALUE, cuMemUnmap(at(s, 0), 2 * GRANULE)) \
    X(unmap_a_hole, VALUE, cuMemUnmap(at(s, 3), GRANULE)) \
    X(unmap_over_a_hole, VALUE, cuMemUnmap(at(s, 0), 5 * GRANULE)) \
    X(unmap_over_the_end, VALUE, cuMemUnmap(at(s, 4), 8 * GRANULE)) \
    X(unmap_unreserved, VALUE, cuMemUnmap(at(s, 64), GRANULE)) \
    X(unmap_part_of_a_granule, VALUE, cuMemUnmap(at(s, 0), GRANULE + 1)) \
    X(access_null, VALUE, cuMemSetAccess(at(s, 0), GRANULE, NULL, 1)) \
    X(access_no_descriptors, VALUE, cuMemSetAccess(at(s, 0), GRANULE, &s->desc, 0)) \
    X(access_of_a_hole, VALUE, cuMemSetAccess(at(s, 3), GRANULE, &s->desc, 1)) \
    X(access_over_a_hole, VALUE, cuMemSetAccess(at(s, 0), 5 * GRANULE, &s->desc, 1)) \
    X(access_of_half, VALUE, cuMemSetAccess(at(s, 1), GRANULE, &s->desc, 1)) \
    X(access_one_too_many, VALUE, cuMemSetAccess(at(s, 0), GRANULE + 1, &s->desc, 1)) \
    X(access_one_too_few, VALUE, cuMemSetAccess(at(s, 0), GRANULE - 1, &s->desc, 1)) \
    X(access_flags, VALUE, (s->desc.flags = (CUmemAccess_flags)2, cuMemSetAccess(at(s, 0), GRANULE, &s->desc, 1))) \
    X(access_location_type, VALUE, (s->desc.location.type = (CUmemLocationType)3, cuMemSetAccess(at(s, 0), GRANULE, &s->desc, 1))) \
    X(access_no_such_device, DEVICE, (s->desc.location.id = 2, cuMemSetAccess(at(s, 0), GRANULE, &s->desc, 1))) \
    X(get_access_null, VALUE, cuMemGetAccess(NULL, &s->desc.location, at(s, 0))) \
    X(get_access_nowhere, VALUE, cuMemGetAccess(&flags, NULL, at(s, 0))) \
    X(get_access_of_a_hole, VALUE, cuMemGetAccess(&flags, &s->desc.location, at(s, 3))) \
    X(get_access_no_such_device, DEVICE, (s->desc.location.id = 64, cuMemGetAccess(&flags, &s->desc.location, at(s, 0)))) \
    X(retain_null, VALUE, cuMemRetainAllocationHandle(NULL, (void *)(uintptr_t)at(s, 0))) \
    X(retain_a_hole, VALUE, cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)at(s, 3))) \
    X(retain_nothing, VALUE, cuMemRetainAllocationHandle(&handle, NULL)) \
    X(granularity_null, VALUE, cuMemGetAllocationGranularity(NULL, &s->prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM)) \
    X(granularity_of_nothing, VALUE, cuMemGetAllocationGranularity(&size, NULL, CU_MEM_ALLOC_GRANULARITY_MINIMUM)) \
    X(granularity_option, VALUE, cuMemGetAllocationGranularity(&size, &s->prop, (CUmemAllocationGranularity_flags)2)) \
    X(free_a_reservation, VALUE, cuMemFree(s->base)) \
    X(free_rubbish, VALUE, cuMemFree(12345)) \
    X(alloc_null, VALUE, cuMemAlloc(NULL, 1)) \
    X(alloc_nothing, VALUE, cuMemAlloc(&out, 0)) \
    X(alloc_too_much, MEMORY, cuMemAlloc(&out, 1024 * MIB)) \
    X(alloc_absurd, MEMORY, cuMemAlloc(&out, SIZE_MAX))
/* clang-format on */

REFUSALS(REFUSED)

static const struct {
    const char *name;
    CUresult (*call)(struct scene *scene);
    int expected;
} refusal[] = {
#define ROW(name, expected, call) {#name, name, name##_expected},
    REFUSALS(ROW)
#undef ROW
};

/* Everything that a refused call could have changed. */
struct count {
    uint64_t used, peak;
    size_t leaks;
    char text[1024];
};

static struct count take_count(void)
{
    struct count count;

    memset(&count, 0, sizeof(count));
    count.used = xseg_sim_used(0);
    count.peak = xseg_sim_peak(0);
    count.leaks = xseg_sim_leaks(count.text, sizeof(count.text));
    return count;
}

static void refused_calls_say_why_and_change_nothing(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(refusal) / sizeof(refusal[0]); i++) {
        struct count before, after;
        struct scene scene;
        int result;

        assert_int_equal(fresh(NULL), 0);
        scene = set_scene();
        before = take_count();
        result = (int)refusal[i].call(&scene);
        after = take_count();
        if (result != refusal[i].expected)
            fail_msg("%s: %d, expected %d", refusal[i].name, result, refusal[i].expected);
        assert_string_equal(before.text, after.text);
        assert_int_equal(before.used, after.used);
        assert_int_equal(before.peak, after.peak);
        assert_int_equal(before.leaks, after.leaks);
        assert_int_equal(access_of(scene.base, 0), CU_MEM_ACCESS_FLAGS_PROT_NONE);
    }
}

static void a_refused_call_does_not_move_the_next_address(void **state)
{
    CUdeviceptr first, out = 0;

    (void)state;
    first = reserve(GRANULE);
    ASSERT_CU(cuMemAlloc(&out, 2048 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
    ASSERT_CU(cuMemAddressReserve(&out, (size_t)1 << 47, 0, 0, 0), CUDA_ERROR_OUT_OF_MEMORY);
    assert_int_equal(out, 0);
    assert_int_equal(reserve(GRANULE), first + GRANULE);
}

static void addresses_rise_and_are_aligned(void **state)
{
    CUdeviceptr last = 0;

    (void)state;
    for (size_t i = 0; i < 300; i++) {
        const size_t alignment = i % 3 == 0 ? 0 : (size_t)1 << (12 + i % 24);
        CUdeviceptr address = 0;

        if (i % 5 == 0) {
            ASSERT_OK(cuMemAlloc(&address, 1 + i * 700));
            ASSERT_OK(cuMemFree(address));
        } else {
            ASSERT_OK(cuMemAddressReserve(&address, GRANULE * (1 + i % 7), alignment, 0, 0));
            if (alignment != 0)
                assert_int_equal(address % alignment, 0);
            if (i % 2 == 0)
                ASSERT_OK(cuMemAddressFree(address, GRANULE * (1 + i % 7)));
        }
        assert_true(address > last);
        assert_int_equal(address % GRANULE, 0);
        last = address;
    }
    assert_true(last < (CUdeviceptr)1 << 47);
}

static void a_run_of_the_same_calls_gives_the_same_addresses(void **state)
{
    CUdeviceptr first;

    first = reserve(3 * GRANULE);
    assert_int_equal(fresh(state), 0);
    assert_int_equal(reserve(3 * GRANULE), first);
}

static void ranges_are_found_after_many_were_given_back(void **state)
{
    enum { KEPT = 50 };
    CUdeviceptr kept[KEPT];

    (void)state;
    for (int i = 0; i < KEPT; i++) {
        kept[i] = reserve(2 * GRANULE);
        for (int j = 0; j < 20; j++)
            ASSERT_OK(cuMemAddressFree(reserve(GRANULE), GRANULE));
    }
    for (int i = 0; i < KEPT; i++) {
        back(kept[i] + GRANULE, GRANULE);
        ASSERT_OK(cuMemUnmap(kept[i] + GRANULE, GRANULE));
        ASSERT_OK(cuMemAddressFree(kept[i], 2 * GRANULE));
        ASSERT_CU(cuMemAddressFree(kept[i], 2 * GRANULE), CUDA_ERROR_INVALID_VALUE);
    }
}

static void addresses_run_out_and_come_back(void **state)
{
    struct xseg_sim_settings settings = small_machine();
    CUdeviceptr whole, out = 0;

    (void)state;
    settings.address_bytes = 64 * MIB;
    start(&settings);
    (void)enter(0);
    whole = reserve(64 * MIB);
    ASSERT_CU(cuMemAddressReserve(&out, GRANULE, 0, 0, 0), CUDA_ERROR_OUT_OF_MEMORY);
    ASSERT_CU(cuMemAlloc(&out, 1), CUDA_ERROR_OUT_OF_MEMORY);
    assert_int_equal(xseg_sim_used(0), 0);
    assert_int_equal(xseg_sim_peak(0), 0);
    ASSERT_OK(cuMemAddressFree(whole, 64 * MIB));
    assert_true(reserve(64 * MIB) > whole);
}

static void memory_is_counted_by_physical_bytes(void **state)
{
    CUmemGenericAllocationHandle handle;
    CUdeviceptr base = reserve(8 * GRANULE), out = 0;
    size_t left = 0, total = 0;

    (void)state;
    assert_int_equal(xseg_sim_used(0), 0);
    handle = create(4 * GRANULE);
    assert_int_equal(xseg_sim_used(0), 4 * GRANULE);
    ASSERT_OK(cuMemMap(base, 2 * GRANULE, 0, handle, 0));
    ASSERT_OK(cuMemMap(base + 4 * GRANULE, 4 * GRANULE, 0, handle, 0));
    assert_int_equal(xseg_sim_used(0), 4 * GRANULE);
    ASSERT_OK(cuMemGetInfo(&left, &total));
    assert_int_equal(total, 1024 * MIB);
    assert_int_equal(left, 1024 * MIB - 4 * GRANULE);

    ASSERT_OK(cuMemRelease(handle));
    ASSERT_OK(cuMemUnmap(base, 2 * GRANULE));
    assert_int_equal(xseg_sim_used(0), 4 * GRANULE);
    ASSERT_OK(cuMemUnmap(base + 4 * GRANULE, 4 * GRANULE));
    assert_int_equal(xseg_sim_used(0), 0);
    assert_int_equal(xseg_sim_peak(0), 4 * GRANULE);
    assert_int_equal(xseg_sim_used(1), 0);

    ASSERT_OK(cuMemAlloc(&out, 1));
    assert_int_equal(xseg_sim_used(0), GRANULE);
    ASSERT_OK(cuMemFree(out));
    assert_int_equal(xseg_sim_used(0), 0);
    assert_int_equal(xseg_sim_peak(0), 4 * GRANULE);
    ASSERT_CU(cuMemFree(out), CUDA_ERROR_INVALID_VALUE);
    ASSERT_OK(cuMemFree(0));
    assert_int_equal(xseg_sim_used(64), 0);
}

static void memory_can_be_taken_to_the_last_granule(void **state)
{
    const CUmemAllocationProp prop = on_device(0);
    CUmemGenericAllocationHandle all = create(1022 * MIB), handle = 0;
    CUdeviceptr out = 0;

    (void)state;
    ASSERT_OK(cuMemAlloc(&out, GRANULE));
    ASSERT_CU(cuMemAlloc(&out, 1), CUDA_ERROR_OUT_OF_MEMORY);
    ASSERT_CU(cuMemCreate(&handle, GRANULE, &prop, 0), CUDA_ERROR_OUT_OF_MEMORY);
    ASSERT_OK(cuMemRelease(all));
    ASSERT_OK(cuMemCreate(&handle, 1022 * MIB, &prop, 0));
}

static void a_fresh_mapping_has_no_access(void **state)
{
    const CUmemAccessDesc both[2] = {read_write(0), read_write(1)};
    CUmemAccessDesc desc = read_write(1);
    CUdeviceptr base = reserve(4 * GRANULE);

    (void)state;
    back(base, GRANULE);
    back(base + GRANULE, 2 * GRANULE);
    assert_int_equal(access_of(base, 0), CU_MEM_ACCESS_FLAGS_PROT_NONE);
    ASSERT_OK(cuMemSetAccess(base, 3 * GRANULE, both, 2));
    desc.flags = CU_MEM_ACCESS_FLAGS_PROT_READ;
    ASSERT_OK(cuMemSetAccess(base, GRANULE, &desc, 1));
    assert_int_equal(access_of(base, 0), CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    assert_int_equal(access_of(base, 1), CU_MEM_ACCESS_FLAGS_PROT_READ);
    assert_int_equal(access_of(base + 3 * GRANULE - 1, 1), CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    desc.flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
    ASSERT_OK(cuMemSetAccess(base, GRANULE, &desc, 1));
    assert_int_equal(access_of(base, 1), CU_MEM_ACCESS_FLAGS_PROT_NONE);

    ASSERT_OK(cuMemUnmap(base, 3 * GRANULE));
    back(base, 3 * GRANULE);
    assert_int_equal(access_of(base, 0), CU_MEM_ACCESS_FLAGS_PROT_NONE);
}

static void a_bad_descriptor_behind_a_good_one_grants_nothing(void **state)
{
    const CUmemAccessDesc desc[2] = {read_write(0), read_write(7)};
    CUdeviceptr base = reserve(GRANULE);

    (void)state;
    back(base, GRANULE);
    ASSERT_CU(cuMemSetAccess(base, GRANULE, desc, 2), CUDA_ERROR_INVALID_DEVICE);
    assert_int_equal(access_of(base, 0), CU_MEM_ACCESS_FLAGS_PROT_NONE);
}

static void several_mappings_in_one_call(void **state)
{
    struct xseg_sim_settings settings = small_machine();
    const CUmemAccessDesc desc = read_write(0);
    CUdeviceptr base;

    (void)state;
    for (int one_by_one = 0; one_by_one < 2; one_by_one++) {
        const CUresult expected = one_by_one ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;

        settings.one_by_one = one_by_one;
        start(&settings);
        base = reserve(4 * GRANULE);
        back(base, GRANULE);
        back(base + GRANULE, 2 * GRANULE);
        ASSERT_CU(cuMemSetAccess(base, 3 * GRANULE, &desc, 1), expected);
        assert_int_equal(access_of(base, 0), one_by_one ? CU_MEM_ACCESS_FLAGS_PROT_NONE
                                                        : CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
        ASSERT_CU(cuMemUnmap(base, 3 * GRANULE), expected);
        if (one_by_one) {
            ASSERT_OK(cuMemSetAccess(base, GRANULE, &desc, 1));
            ASSERT_OK(cuMemSetAccess(base + GRANULE, 2 * GRANULE, &desc, 1));
            ASSERT_OK(cuMemUnmap(base, GRANULE));
            ASSERT_OK(cuMemUnmap(base + GRANULE, 2 * GRANULE));
        }
        assert_int_equal(xseg_sim_used(0), 0);
        ASSERT_OK(cuMemAddressFree(base, 4 * GRANULE));
    }
}

static void a_retained_handle_is_the_same_and_needs_its_own_release(void **state)
{
    CUmemGenericAllocationHandle handle = create(2 * GRANULE), again = 0;
    CUdeviceptr base = reserve(2 * GRANULE);

    (void)state;
    ASSERT_OK(cuMemMap(base, 2 * GRANULE, 0, handle, 0));
    ASSERT_OK(cuMemRelease(handle));
    ASSERT_CU(cuMemRelease(handle), CUDA_ERROR_INVALID_VALUE);
    ASSERT_OK(cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)(base + GRANULE + 17)));
    assert_int_equal(again, handle);
    ASSERT_OK(cuMemUnmap(base, 2 * GRANULE));
    assert_int_equal(xseg_sim_used(0), 2 * GRANULE);
    ASSERT_OK(cuMemRelease(again));
    assert_int_equal(xseg_sim_used(0), 0);
    ASSERT_CU(cuMemRelease(again), CUDA_ERROR_INVALID_VALUE);
}

static void a_range_can_be_mapped_again_after_unmap(void **state)
{
    CUdeviceptr base = reserve(4 * GRANULE);

    (void)state;
    for (size_t i = 0; i < 100; i++) {
        back(base + i % 3 * GRANULE, GRANULE * (1 + i % 2));
        ASSERT_OK(cuMemUnmap(base + i % 3 * GRANULE, GRANULE * (1 + i % 2)));
    }
    ASSERT_OK(cuMemAddressFree(base, 4 * GRANULE));
}

static void virtual_memory_needs_no_context(void **state)
{
    const CUmemAccessDesc desc = read_write(1);
    CUdeviceptr base;

    (void)state;
    ASSERT_OK(cuCtxSetCurrent(NULL));
    base = reserve(GRANULE);
    back(base, GRANULE);
    ASSERT_OK(cuMemSetAccess(base, GRANULE, &desc, 1));
    ASSERT_OK(cuMemUnmap(base, GRANULE));
    ASSERT_OK(cuMemAddressFree(base, GRANULE));
}

static void without_virtual_memory_every_such_call_is_refused(void **state)
{
    struct xseg_sim_settings settings = small_machine();
    const CUmemAllocationProp prop = on_device(0);
    CUmemGenericAllocationHandle handle;
    CUdeviceptr out = 0;
    size_t size;
    int value = 1;

    (void)state;
    settings.without_vmm = true;
    start(&settings);
    (void)enter(0);
    ASSERT_OK(
        cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 0));
    assert_int_equal(value, 0);
    ASSERT_CU(cuMemAddressReserve(&out, GRANULE, 0, 0, 0), CUDA_ERROR_NOT_SUPPORTED);
    ASSERT_CU(cuMemCreate(&handle, GRANULE, &prop, 0), CUDA_ERROR_NOT_SUPPORTED);
    ASSERT_CU(cuMemUnmap(out, GRANULE), CUDA_ERROR_NOT_SUPPORTED);
    ASSERT_CU(cuMemGetAllocationGranularity(&size, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
              CUDA_ERROR_NOT_SUPPORTED);
    ASSERT_OK(cuMemAlloc(&out, GRANULE));
    ASSERT_OK(cuMemFree(out));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(refused_calls_say_why_and_change_nothing),
        cmocka_unit_test_setup(a_refused_call_does_not_move_the_next_address, fresh),
        cmocka_unit_test_setup(addresses_rise_and_are_aligned, fresh),
        cmocka_unit_test_setup(a_run_of_the_same_calls_gives_the_same_addresses, fresh),
        cmocka_unit_test_setup(ranges_are_found_after_many_were_given_back, fresh),
        cmocka_unit_test(addresses_run_out_and_come_back),
        cmocka_unit_test_setup(memory_is_counted_by_physical_bytes, fresh),
        cmocka_unit_test_setup(memory_can_be_taken_to_the_last_granule, fresh),
        cmocka_unit_test_setup(a_fresh_mapping_has_no_access, fresh),
        cmocka_unit_test_setup(a_bad_descriptor_behind_a_good_one_grants_nothing, fresh),
        cmocka_unit_test(several_mappings_in_one_call),
        cmocka_unit_test_setup(a_retained_handle_is_the_same_and_needs_its_own_release, fresh),
        cmocka_unit_test_setup(a_range_can_be_mapped_again_after_unmap, fresh),
        cmocka_unit_test_setup(virtual_memory_needs_no_context, fresh),
        cmocka_unit_test(without_virtual_memory_every_such_call_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
