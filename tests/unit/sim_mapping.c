/* SPDX-License-Identifier: MIT */
/* Reservations, physical memory, mappings and access rights: rejected calls, and accounting. */
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include "tests/support/rng.h"
#include "tests/unit/sim_setup.h"

/* The state for rejected calls: a reservation of eight granules, with mappings of granule 0, of 1 and 2, and of 4. */
struct scene {
    CUdeviceptr base;
    CUmemGenericAllocationHandle one, two; /* of one and of two granules */
    CUmemGenericAllocationHandle released;
    CUmemAllocationProp prop;
    CUmemAccessDesc desc;
};

static CUdeviceptr at(const struct scene *scene, size_t granule)
{
    return scene->base + granule * GRANULE;
}

static struct scene set_scene(void)
{
    struct scene scene = {.base = reserve(8 * GRANULE),
                          .one = create(GRANULE),
                          .two = create(2 * GRANULE),
                          .released = create(GRANULE),
                          .prop = on_device(0),
                          .desc = read_write(0)};

    ASSERT_OK(cuMemMap(at(&scene, 0), GRANULE, 0, scene.one, 0));
    ASSERT_OK(cuMemMap(at(&scene, 1), 2 * GRANULE, 0, scene.two, 0));
    ASSERT_OK(cuMemMap(at(&scene, 4), GRANULE, 0, scene.one, 0));
    ASSERT_OK(cuMemRelease(scene.released));
    return scene;
}

#define REJECTED(name, expected, call)                             \
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

#define VALUE       CUDA_ERROR_INVALID_VALUE
#define DEVICE      CUDA_ERROR_INVALID_DEVICE
#define UNSUPPORTED CUDA_ERROR_NOT_SUPPORTED
#define MEMORY      CUDA_ERROR_OUT_OF_MEMORY

/* clang-format off */
#define REJECTED_CALLS(X) \
    X(reserve_null, VALUE, cuMemAddressReserve(NULL, GRANULE, 0, 0, 0)) \
    X(reserve_zero_bytes, VALUE, cuMemAddressReserve(&out, 0, 0, 0, 0)) \
    X(reserve_part_of_a_host_page, VALUE, cuMemAddressReserve(&out, GRANULE + 512, 0, 0, 0)) \
    X(reserve_invalid_alignment, VALUE, cuMemAddressReserve(&out, GRANULE, 3 * GRANULE, 0, 0)) \
    X(reserve_unaligned_hint, VALUE, cuMemAddressReserve(&out, GRANULE, 0, 0x1001, 0)) \
    X(reserve_flags, VALUE, cuMemAddressReserve(&out, GRANULE, 0, 0, 1)) \
    X(reserve_too_much, MEMORY, cuMemAddressReserve(&out, (size_t)1 << 47, 0, 0, 0)) \
    X(reserve_maximum, MEMORY, cuMemAddressReserve(&out, SIZE_MAX - page_bytes() + 1, 0, 0, 0)) \
    X(reserve_huge_alignment, MEMORY, cuMemAddressReserve(&out, GRANULE, (size_t)1 << 63, 0, 0)) \
    X(address_free_other_size, VALUE, cuMemAddressFree(s->base, GRANULE)) \
    X(address_free_inside, VALUE, cuMemAddressFree(at(s, 5), 3 * GRANULE)) \
    X(address_free_mapped, VALUE, cuMemAddressFree(s->base, 8 * GRANULE)) \
    X(address_free_unknown, VALUE, cuMemAddressFree(0x1000, GRANULE)) \
    X(create_null, VALUE, cuMemCreate(NULL, GRANULE, &s->prop, 0)) \
    X(create_zero_bytes, VALUE, cuMemCreate(&handle, 0, &s->prop, 0)) \
    X(create_part_of_a_granule, VALUE, cuMemCreate(&handle, GRANULE + 4096, &s->prop, 0)) \
    X(create_without_properties, VALUE, cuMemCreate(&handle, GRANULE, NULL, 0)) \
    X(create_flags, VALUE, cuMemCreate(&handle, GRANULE, &s->prop, 1)) \
    X(create_type, VALUE, (s->prop.type = CU_MEM_ALLOCATION_TYPE_INVALID, cuMemCreate(&handle, GRANULE, &s->prop, 0))) \
    X(create_location_type, VALUE, (s->prop.location.type = CU_MEM_LOCATION_TYPE_INVALID, cuMemCreate(&handle, GRANULE, &s->prop, 0))) \
    X(create_on_the_host, UNSUPPORTED, (s->prop.location.type = (CUmemLocationType)2, cuMemCreate(&handle, GRANULE, &s->prop, 0))) \
    X(create_on_current_node, VALUE, (s->prop.location.type = (CUmemLocationType)4, cuMemCreate(&handle, GRANULE, &s->prop, 0))) \
    X(create_no_such_device, DEVICE, (s->prop.location.id = 2, cuMemCreate(&handle, GRANULE, &s->prop, 0))) \
    X(create_negative_device, DEVICE, (s->prop.location.id = -1, cuMemCreate(&handle, GRANULE, &s->prop, 0))) \
    X(create_for_windows, UNSUPPORTED, (s->prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_WIN32, cuMemCreate(&handle, GRANULE, &s->prop, 0))) \
    X(create_too_much, MEMORY, cuMemCreate(&handle, 1024 * MIB, &s->prop, 0)) \
    X(release_twice, VALUE, cuMemRelease(s->released)) \
    X(release_null, VALUE, cuMemRelease(0)) \
    X(release_invalid_handle, VALUE, cuMemRelease(0xdeadbeef12345678)) \
    X(map_flags, VALUE, cuMemMap(at(s, 5), GRANULE, 0, s->one, 1)) \
    X(map_offset, VALUE, cuMemMap(at(s, 5), GRANULE, GRANULE, s->two, 0)) \
    X(map_zero_bytes, VALUE, cuMemMap(at(s, 5), 0, 0, s->one, 0)) \
    X(map_part_of_a_granule, VALUE, cuMemMap(at(s, 5), GRANULE / 2, 0, s->one, 0)) \
    X(map_between_granules, VALUE, cuMemMap(at(s, 5) + 4096, GRANULE, 0, s->one, 0)) \
    X(map_more_than_the_handle, VALUE, cuMemMap(at(s, 5), 2 * GRANULE, 0, s->one, 0)) \
    X(map_over_a_mapping, VALUE, cuMemMap(at(s, 3), 2 * GRANULE, 0, s->two, 0)) \
    X(map_past_the_end, VALUE, cuMemMap(at(s, 7), 2 * GRANULE, 0, s->two, 0)) \
    X(map_outside, VALUE, cuMemMap(at(s, 8), GRANULE, 0, s->one, 0)) \
    X(map_released, VALUE, cuMemMap(at(s, 5), GRANULE, 0, s->released, 0)) \
    X(unmap_zero_bytes, VALUE, cuMemUnmap(at(s, 0), 0)) \
    X(unmap_front_of_a_mapping, VALUE, cuMemUnmap(at(s, 1), GRANULE)) \
    X(unmap_back_of_a_mapping, VALUE, cuMemUnmap(at(s, 2), GRANULE)) \
    X(unmap_one_and_a_half, VALUE, cuMemUnmap(at(s, 0), 2 * GRANULE)) \
    X(unmap_unmapped, VALUE, cuMemUnmap(at(s, 3), GRANULE)) \
    X(unmap_across_unmapped, VALUE, cuMemUnmap(at(s, 0), 5 * GRANULE)) \
    X(unmap_past_the_end, VALUE, cuMemUnmap(at(s, 4), 8 * GRANULE)) \
    X(unmap_unreserved, VALUE, cuMemUnmap(at(s, 64), GRANULE)) \
    X(unmap_part_of_a_granule, VALUE, cuMemUnmap(at(s, 0), GRANULE + 1)) \
    X(access_null, VALUE, cuMemSetAccess(at(s, 0), GRANULE, NULL, 1)) \
    X(access_no_descriptors, VALUE, cuMemSetAccess(at(s, 0), GRANULE, &s->desc, 0)) \
    X(access_of_unmapped, VALUE, cuMemSetAccess(at(s, 3), GRANULE, &s->desc, 1)) \
    X(access_across_unmapped, VALUE, cuMemSetAccess(at(s, 0), 5 * GRANULE, &s->desc, 1)) \
    X(access_of_half_a_mapping, VALUE, cuMemSetAccess(at(s, 1), GRANULE, &s->desc, 1)) \
    X(access_one_byte_more, VALUE, cuMemSetAccess(at(s, 0), GRANULE + 1, &s->desc, 1)) \
    X(access_one_byte_less, VALUE, cuMemSetAccess(at(s, 0), GRANULE - 1, &s->desc, 1)) \
    X(access_flags, VALUE, (s->desc.flags = (CUmemAccess_flags)2, cuMemSetAccess(at(s, 0), GRANULE, &s->desc, 1))) \
    X(access_location_type, VALUE, (s->desc.location.type = (CUmemLocationType)3, cuMemSetAccess(at(s, 0), GRANULE, &s->desc, 1))) \
    X(access_no_such_device, DEVICE, (s->desc.location.id = 2, cuMemSetAccess(at(s, 0), GRANULE, &s->desc, 1))) \
    X(get_access_null, VALUE, cuMemGetAccess(NULL, &s->desc.location, at(s, 0))) \
    X(get_access_without_location, VALUE, cuMemGetAccess(&flags, NULL, at(s, 0))) \
    X(get_access_of_unmapped, VALUE, cuMemGetAccess(&flags, &s->desc.location, at(s, 3))) \
    X(get_access_no_such_device, DEVICE, (s->desc.location.id = 64, cuMemGetAccess(&flags, &s->desc.location, at(s, 0)))) \
    X(retain_null, VALUE, cuMemRetainAllocationHandle(NULL, (void *)(uintptr_t)at(s, 0))) \
    X(retain_unmapped, VALUE, cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)at(s, 3))) \
    X(retain_null_address, VALUE, cuMemRetainAllocationHandle(&handle, NULL)) \
    X(granularity_null, VALUE, cuMemGetAllocationGranularity(NULL, &s->prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM)) \
    X(granularity_without_properties, VALUE, cuMemGetAllocationGranularity(&size, NULL, CU_MEM_ALLOC_GRANULARITY_MINIMUM)) \
    X(granularity_option, VALUE, cuMemGetAllocationGranularity(&size, &s->prop, (CUmemAllocationGranularity_flags)2)) \
    X(free_a_reservation, VALUE, cuMemFree(s->base)) \
    X(free_invalid_address, VALUE, cuMemFree(12345)) \
    X(alloc_null, VALUE, cuMemAlloc(NULL, 1)) \
    X(alloc_zero_bytes, VALUE, cuMemAlloc(&out, 0)) \
    X(alloc_too_much, MEMORY, cuMemAlloc(&out, 1024 * MIB)) \
    X(alloc_maximum, MEMORY, cuMemAlloc(&out, SIZE_MAX))
/* clang-format on */

REJECTED_CALLS(REJECTED)

static const struct {
    const char *name;
    CUresult (*call)(struct scene *scene);
    int expected;
} rejected_call[] = {
#define ROW(name, expected, call) {#name, name, name##_expected},
    REJECTED_CALLS(ROW)
#undef ROW
};

/* All state that a rejected call could change. */
struct machine_state {
    uint64_t used, peak;
    size_t leaks;
    char text[1024];
};

static struct machine_state read_state(void)
{
    struct machine_state machine = {.used = xseg_sim_used(0), .peak = xseg_sim_peak(0)};

    machine.leaks = xseg_sim_leaks(machine.text, sizeof(machine.text));
    return machine;
}

TEST(failed_calls_report_a_cause_and_change_nothing)
{
    for (size_t i = 0; i < COUNT_OF(rejected_call); i++) {
        assert_int_equal(fresh(NULL), 0);
        struct scene scene = set_scene();
        struct machine_state before = read_state();
        int result = (int)rejected_call[i].call(&scene);
        struct machine_state after = read_state();
        if (result != rejected_call[i].expected)
            fail_msg("%s: %d, expected %d", rejected_call[i].name, result,
                     rejected_call[i].expected);
        assert_string_equal(before.text, after.text);
        assert_int_equal(before.used, after.used);
        assert_int_equal(before.peak, after.peak);
        assert_int_equal(before.leaks, after.leaks);
        assert_int_equal(access_of(scene.base, 0), CU_MEM_ACCESS_FLAGS_PROT_NONE);
    }
}

SIM_TEST(failed_call_does_not_move_the_next_address)
{
    CUdeviceptr out = 0, first = reserve(GRANULE);

    ASSERT_CU(cuMemAlloc(&out, 2048 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
    ASSERT_CU(cuMemAddressReserve(&out, (size_t)1 << 47, 0, 0, 0), CUDA_ERROR_OUT_OF_MEMORY);
    assert_int_equal(out, 0);
    assert_int_equal(reserve(GRANULE), first + GRANULE);
}

SIM_TEST(addresses_rise_and_are_aligned)
{
    CUdeviceptr last = 0;

    for (size_t i = 0; i < 300; i++) {
        const size_t alignment = i % 3 == 0 ? 0 : (size_t)1 << (12 + i % 24);
        CUdeviceptr address = 0;

        if (i % 5 == 0) {
            address = allocate(1 + i * 700);
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

SIM_TEST(ranges_are_found_after_many_releases)
{
    enum { KEPT = 50 };
    CUdeviceptr kept[KEPT];

    for (int i = 0; i < KEPT; i++) {
        kept[i] = reserve(2 * GRANULE);
        for (int j = 0; j < 20; j++)
            ASSERT_OK(cuMemAddressFree(reserve(GRANULE), GRANULE));
    }
    for (int i = 0; i < KEPT; i++) {
        back(kept[i] + GRANULE, GRANULE);
        ASSERT_OK(cuMemUnmap(kept[i] + GRANULE, GRANULE));
        ASSERT_OK(cuMemAddressFree(kept[i], 2 * GRANULE));
        ASSERT_INVALID(cuMemAddressFree(kept[i], 2 * GRANULE));
    }
}

#define TIB ((uint64_t)1 << 40)

/* The machine has 128 TiB of addresses, except for those below the first range. */
SIM_TEST(addresses_are_reused_once_all_were_used)
{
    const CUdeviceptr first = reserve(TIB), kept = reserve(4 * GRANULE);
    CUdeviceptr base = 0;
    unsigned wrapped = 0;

    ASSERT_OK(cuMemAddressFree(first, TIB));
    back(kept + GRANULE, 2 * GRANULE);
    CUdeviceptr last = kept;
    for (int i = 0; i < 400; i++) {
        base = reserve(TIB);
        assert_true(base + TIB <= kept || base >= kept + 4 * GRANULE);
        assert_true(base + TIB <= (uint64_t)1 << 47);
        if (base < last && wrapped++ == 0)
            assert_int_equal(base, first);
        last = base;
        /* The new range is found at addresses of an earlier one. */
        back(base + TIB - GRANULE, GRANULE);
        ASSERT_OK(cuMemUnmap(base + TIB - GRANULE, GRANULE));
        ASSERT_OK(cuMemAddressFree(base, TIB));
        ASSERT_INVALID(cuMemAddressFree(base, TIB));
    }
    assert_int_equal(wrapped, 3); /* 400 TiB / 128 TiB */
    ASSERT_OK(cuMemUnmap(kept + GRANULE, 2 * GRANULE));
    ASSERT_OK(cuMemAddressFree(kept, 4 * GRANULE));
}

/* Many ranges of all sizes and alignments, while the address space is exhausted repeatedly. */
SIM_TEST(reused_addresses_belong_to_one_range)
{
    enum { RANGES = 40 };
    CUdeviceptr base[RANGES] = {0};
    uint64_t bytes[RANGES] = {0}, random = 11;
    unsigned failures = 0;

    for (int round = 0; round < 2000; round++) {
        const unsigned i = (unsigned)(rng_next(&random) % RANGES);
        const uint64_t size = (1 + rng_next(&random) % (3 * TIB / GRANULE)) * GRANULE;
        const uint64_t alignment = (uint64_t)GRANULE << rng_next(&random) % 12;

        if (base[i] != 0)
            ASSERT_OK(cuMemAddressFree(base[i], bytes[i]));
        base[i] = 0;
        if (cuMemAddressReserve(&base[i], size, alignment, 0, 0) != CUDA_SUCCESS) {
            failures++;
            continue;
        }
        bytes[i] = size;
        assert_int_equal(base[i] % alignment, 0);
        for (unsigned j = 0; j < RANGES; j++)
            assert_true(j == i || base[j] == 0 || base[i] + size <= base[j] ||
                        base[j] + bytes[j] <= base[i]);
        CUdeviceptr inside = base[i] + rng_next(&random) % size;
        assert_int_equal(pointer_attribute(inside, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR), base[i]);
    }
    assert_true(failures < 200); /* without a gap that is long enough */
    for (unsigned i = 0; i < RANGES; i++)
        if (base[i] != 0)
            ASSERT_OK(cuMemAddressFree(base[i], bytes[i]));
}

TEST(exhausted_addresses_are_available_after_a_free)
{
    CUdeviceptr out = 0;

    start_with((struct xseg_sim_settings){.address_bytes = 64 * MIB});
    CUdeviceptr range = reserve(64 * MIB);
    ASSERT_CU(cuMemAddressReserve(&out, GRANULE, 0, 0, 0), CUDA_ERROR_OUT_OF_MEMORY);
    ASSERT_CU(cuMemAlloc(&out, 1), CUDA_ERROR_OUT_OF_MEMORY);
    assert_int_equal(xseg_sim_used(0), 0);
    assert_int_equal(xseg_sim_peak(0), 0);
    ASSERT_OK(cuMemAddressFree(range, 64 * MIB));
    assert_true(reserve(64 * MIB) > range);
}

SIM_TEST(memory_is_counted_by_physical_bytes)
{
    CUdeviceptr base = reserve(8 * GRANULE);
    size_t free_bytes = 0, total = 0;

    assert_int_equal(xseg_sim_used(0), 0);
    CUmemGenericAllocationHandle handle = create(4 * GRANULE);
    assert_int_equal(xseg_sim_used(0), 4 * GRANULE);
    ASSERT_OK(cuMemMap(base, 2 * GRANULE, 0, handle, 0));
    ASSERT_OK(cuMemMap(base + 4 * GRANULE, 4 * GRANULE, 0, handle, 0));
    assert_int_equal(xseg_sim_used(0), 4 * GRANULE);
    ASSERT_OK(cuMemGetInfo(&free_bytes, &total));
    assert_int_equal(total, 1024 * MIB);
    assert_int_equal(free_bytes, 1024 * MIB - 4 * GRANULE);

    ASSERT_OK(cuMemRelease(handle));
    ASSERT_OK(cuMemUnmap(base, 2 * GRANULE));
    assert_int_equal(xseg_sim_used(0), 4 * GRANULE);
    ASSERT_OK(cuMemUnmap(base + 4 * GRANULE, 4 * GRANULE));
    assert_int_equal(xseg_sim_used(0), 0);
    assert_int_equal(xseg_sim_peak(0), 4 * GRANULE);
    assert_int_equal(xseg_sim_used(1), 0);

    CUdeviceptr allocation = allocate(1);
    assert_int_equal(xseg_sim_used(0), GRANULE);
    ASSERT_OK(cuMemFree(allocation));
    assert_int_equal(xseg_sim_used(0), 0);
    assert_int_equal(xseg_sim_peak(0), 4 * GRANULE);
    ASSERT_INVALID(cuMemFree(allocation));
    ASSERT_OK(cuMemFree(0));
    assert_int_equal(xseg_sim_used(64), 0);
}

SIM_TEST(memory_can_be_allocated_to_the_last_granule)
{
    CUmemGenericAllocationHandle all = create(1022 * MIB);
    CUdeviceptr out = allocate(GRANULE);

    ASSERT_CU(cuMemAlloc(&out, 1), CUDA_ERROR_OUT_OF_MEMORY);
    ASSERT_CU(try_create(GRANULE), CUDA_ERROR_OUT_OF_MEMORY);
    ASSERT_OK(cuMemRelease(all));
    ASSERT_OK(try_create(1022 * MIB));
}

SIM_TEST(a_fresh_mapping_has_no_access)
{
    const CUmemAccessDesc both[2] = {read_write(0), read_write(1)},
                          one_invalid[2] = {read_write(0), read_write(7)};
    CUmemAccessDesc desc = read_write(1);
    CUdeviceptr base = reserve(4 * GRANULE);

    back(base, GRANULE);
    back(base + GRANULE, 2 * GRANULE);
    assert_int_equal(access_of(base, 0), CU_MEM_ACCESS_FLAGS_PROT_NONE);
    ASSERT_CU(cuMemSetAccess(base, GRANULE, one_invalid, 2), CUDA_ERROR_INVALID_DEVICE);
    assert_int_equal(access_of(base, 0), CU_MEM_ACCESS_FLAGS_PROT_NONE);
    ASSERT_OK(cuMemSetAccess(base, 3 * GRANULE, both, 2));
    /* Read-only access is not modeled; a failure changes nothing. */
    desc.flags = CU_MEM_ACCESS_FLAGS_PROT_READ;
    ASSERT_CU(cuMemSetAccess(base, GRANULE, &desc, 1), CUDA_ERROR_NOT_SUPPORTED);
    assert_int_equal(access_of(base, 0), CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    assert_int_equal(access_of(base, 1), CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    assert_int_equal(access_of(base + 3 * GRANULE - 1, 1), CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    desc.flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
    ASSERT_OK(cuMemSetAccess(base, GRANULE, &desc, 1));
    assert_int_equal(access_of(base, 1), CU_MEM_ACCESS_FLAGS_PROT_NONE);

    ASSERT_OK(cuMemUnmap(base, 3 * GRANULE));
    back(base, 3 * GRANULE);
    assert_int_equal(access_of(base, 0), CU_MEM_ACCESS_FLAGS_PROT_NONE);
}

TEST(one_call_may_unmap_several_mappings)
{
    struct xseg_sim_settings settings = small_machine();
    const CUmemAccessDesc desc = read_write(0);
    CUdeviceptr base;

    for (int is_single = 0; is_single < 2; is_single++) {
        const CUresult expected = is_single ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;

        settings.single_mapping_calls = is_single;
        start(&settings);
        base = reserve(4 * GRANULE);
        back(base, GRANULE);
        back(base + GRANULE, 2 * GRANULE);
        ASSERT_CU(cuMemSetAccess(base, 3 * GRANULE, &desc, 1), expected);
        assert_int_equal(access_of(base, 0), is_single ? CU_MEM_ACCESS_FLAGS_PROT_NONE
                                                       : CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
        ASSERT_CU(cuMemUnmap(base, 3 * GRANULE), expected);
        if (is_single) {
            ASSERT_OK(cuMemSetAccess(base, GRANULE, &desc, 1));
            ASSERT_OK(cuMemSetAccess(base + GRANULE, 2 * GRANULE, &desc, 1));
            ASSERT_OK(cuMemUnmap(base, GRANULE));
            ASSERT_OK(cuMemUnmap(base + GRANULE, 2 * GRANULE));
        }
        assert_int_equal(xseg_sim_used(0), 0);
        ASSERT_OK(cuMemAddressFree(base, 4 * GRANULE));
    }
}

/* cuda-python #2882: without that release the memory leaks. */
SIM_TEST(a_retained_handle_is_the_same_and_needs_its_own_release)
{
    CUmemGenericAllocationHandle handle = create(2 * GRANULE), retained = 0;
    CUdeviceptr base = reserve(2 * GRANULE);

    ASSERT_OK(cuMemMap(base, 2 * GRANULE, 0, handle, 0));
    ASSERT_OK(cuMemRelease(handle));
    ASSERT_INVALID(cuMemRelease(handle));
    ASSERT_OK(cuMemRetainAllocationHandle(&retained, (void *)(uintptr_t)(base + GRANULE + 17)));
    assert_int_equal(retained, handle);
    ASSERT_OK(cuMemUnmap(base, 2 * GRANULE));
    assert_int_equal(xseg_sim_used(0), 2 * GRANULE);
    ASSERT_OK(cuMemRelease(retained));
    assert_int_equal(xseg_sim_used(0), 0);
    ASSERT_INVALID(cuMemRelease(retained));
}

SIM_TEST(a_range_can_be_mapped_again_after_unmap)
{
    CUdeviceptr base = reserve(4 * GRANULE);

    ASSERT_OK(cuCtxSetCurrent(NULL)); /* no call needs a context */
    for (size_t i = 0; i < 100; i++) {
        const CUdeviceptr at = base + i % 3 * GRANULE;
        const size_t bytes = GRANULE * (1 + i % 2);

        back(at, bytes);
        grant(at, bytes, (int)(i % 2));
        ASSERT_OK(cuMemUnmap(at, bytes));
    }
    ASSERT_OK(cuMemAddressFree(base, 4 * GRANULE));
    /* A new machine returns the same addresses for the same calls. */
    assert_int_equal(fresh(state), 0);
    assert_int_equal(reserve(4 * GRANULE), base);
}

TEST(virtual_memory_calls_fail_without_support)
{
    const CUmemAllocationProp prop = on_device(0);
    CUdeviceptr out = 0;
    size_t size;

    start_with((struct xseg_sim_settings){.without_vmm = true});
    assert_int_equal(device_attribute(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED), 0);
    ASSERT_CU(cuMemAddressReserve(&out, GRANULE, 0, 0, 0), CUDA_ERROR_NOT_SUPPORTED);
    ASSERT_CU(try_create(GRANULE), CUDA_ERROR_NOT_SUPPORTED);
    ASSERT_CU(cuMemUnmap(out, GRANULE), CUDA_ERROR_NOT_SUPPORTED);
    ASSERT_CU(cuMemGetAllocationGranularity(&size, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
              CUDA_ERROR_NOT_SUPPORTED);
    out = allocate(GRANULE);
    ASSERT_OK(cuMemFree(out));
}

/* A mapped page that the first device may use, in a reservation of four. */
static CUdeviceptr page(void)
{
    CUdeviceptr base = reserve(4 * GRANULE);

    back_usable(base, GRANULE);
    return base;
}

/* A page of the first device; the context of the second device is current. */
static CUdeviceptr foreign_page(void)
{
    CUdeviceptr base = page();

    (void)enter(1);
    return base;
}

static void unmap_during_work(void)
{
    CUdeviceptr base = page();

    (void)xseg_sim_launch_on(new_stream(), UINT64_MAX, base + 100, 50);
    (void)cuMemUnmap(base, GRANULE);
}

static void unmap_during_work_on_several_ranges(void)
{
    CUdeviceptr base = page(), allocation = 0;
    struct xseg_sim_access accesses[2] = {{0, 1}, {base + GRANULE - 1, 1}};

    (void)cuMemAlloc(&allocation, 1);
    accesses[0].address = allocation;
    (void)xseg_sim_launch_accessing(NULL, 1000, accesses, 2);
    (void)cuMemUnmap(base, GRANULE);
}

static void revoke_access_during_work(void)
{
    CUmemAccessDesc desc = read_write(0);
    CUdeviceptr base = page();

    (void)xseg_sim_launch_on(NULL, 10, base, GRANULE);
    desc.flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
    (void)cuMemSetAccess(base, GRANULE, &desc, 1);
}

static void free_during_open_ended_work(void)
{
    CUdeviceptr address = 0;

    (void)cuMemAlloc(&address, 100);
    (void)xseg_sim_launch_on(NULL, UINT64_MAX, address, 100);
    (void)cuMemFree(address);
}

PART(access_unreserved, xseg_sim_launch_on(NULL, 1, 4096, 1))
PART(access_unmapped, xseg_sim_launch_on(NULL, 1, page() + GRANULE - 1, 2))
PART(access_from_anstream, xseg_sim_launch_on(NULL, 1, foreign_page(), 1))

static void access_without_rights(void)
{
    CUdeviceptr base = page();

    back(base + GRANULE, GRANULE);
    (void)xseg_sim_launch_on(NULL, 1, base, 2 * GRANULE);
}

static void access_allocation_of_anstream(void)
{
    CUdeviceptr address = 0;

    (void)cuMemAlloc(&address, 1);
    (void)enter(1);
    (void)xseg_sim_launch_on(NULL, 1, address, 1);
}

static void unmap_in_a_foreign_context(void)
{
    launch(new_stream(), UINT64_MAX);
    (void)cuMemUnmap(foreign_page(), GRANULE);
}

TEST(unmapping_memory_in_use_is_reported)
{
    EXPECT_REPORT(
        unmap_during_work,
        "xseg-sim: cuMemUnmap: undefined behavior, queued work accesses the memory; synchronize "
        "its stream first",
        "call:         cuMemUnmap",
        "mapping:      2097152 bytes at 0x200000000, created by cuMemMap",
        "memory:       2097152 bytes on device 0, created by cuMemCreate", "work:         stream ",
        " of device 0, accesses 50 bytes at 0x200000064, queued by xseg_sim_launch_on", "stack:");
    EXPECT_REPORT(unmap_during_work_on_several_ranges, "cuMemUnmap", "accesses 1 bytes");
    EXPECT_REPORT(revoke_access_during_work, "call:         cuMemSetAccess", "work:  ");
    EXPECT_REPORT(free_during_open_ended_work, "call:         cuMemFree",
                  "queued work accesses the memory", "100 bytes on device 0",
                  "created by cuMemAlloc", "work:  ");
    EXPECT_REPORT(unmap_in_a_foreign_context, "current context is of another device",
                  "context:      device 1", "accesses unknown memory");
}

TEST(access_to_unreachable_memory_is_reported)
{
    EXPECT_REPORT(access_unreserved, "neither reserved nor allocated",
                  "0x1000, accessed by device 0", "call:         xseg_sim_launch_on");
    EXPECT_REPORT(access_unmapped, "access to an unmapped address", "0x200200000",
                  "reservation:  8388608 bytes at 0x200000000, created by cuMemAddressReserve");
    EXPECT_REPORT(access_without_rights, "without access rights", "0x200200000", "by cuMemMap");
    EXPECT_REPORT(access_from_anstream, "without access rights", "accessed by device 1");
    EXPECT_REPORT(access_allocation_of_anstream, "without peer access",
                  "1 bytes on device 0 at 0x200000000, created by cuMemAlloc");
}

SIM_TEST(memory_can_be_unmapped_after_its_work)
{
    CUdeviceptr base = reserve(4 * GRANULE);
    CUstream stream = new_stream(), second = new_stream();

    for (int method = 0; method < 5; method++) {
        CUevent event = new_event();

        back(base, GRANULE);
        back(base + GRANULE, GRANULE);
        grant(base, 2 * GRANULE, 0);
        /* Work on other memory, and open-ended work, do not block the unmap. */
        launch_on(second, UINT64_MAX, base + GRANULE, 8);
        launch_on(stream, 1000, base, GRANULE);
        ASSERT_OK(cuEventRecord(event, stream));
        launch(stream, UINT64_MAX);
        if (method == 0)
            xseg_sim_advance(1000);
        else if (method == 1)
            ASSERT_OK(cuEventSynchronize(event));
        else if (method == 2)
            ASSERT_OK(cuStreamSynchronize(stream));
        else if (method == 3)
            finish(stream);
        else
            xseg_sim_finish_all();
        ASSERT_OK(cuMemUnmap(base, GRANULE));
        ASSERT_OK(cuCtxSynchronize());
        ASSERT_OK(cuMemUnmap(base + GRANULE, GRANULE));
        ASSERT_OK(cuEventDestroy(event));
    }
    /* cuMemFree() itself waits for work of limited duration. */
    CUdeviceptr address = allocate(100);
    launch_on(stream, 100, address, 100);
    ASSERT_OK(cuMemFree(address));
    /* The work of a stream or context is destroyed with it. */
    back_usable(base, GRANULE);
    launch_on(stream, UINT64_MAX, base, 1);
    ASSERT_OK(cuStreamDestroy(stream));
    ASSERT_OK(cuDevicePrimaryCtxReset(0));
    ASSERT_OK(cuMemUnmap(base, GRANULE));
}

TEST(fast_mode_skips_the_checks)
{
    start_with((struct xseg_sim_settings){.skip_checks = true});
    CUdeviceptr base = reserve(GRANULE);
    back(base, GRANULE);
    launch_on(NULL, UINT64_MAX, base, GRANULE);
    ASSERT_CU(cuStreamQuery(NULL), CUDA_ERROR_NOT_READY);
    ASSERT_OK(cuMemUnmap(base, GRANULE));
    expect_rejected(xseg_sim_launch_on((CUstream)(uintptr_t)77, 1, base, 1),
                    "xseg_sim_launch_on: invalid stream handle, 0x4d;");
}

SIM_TEST(many_completed_accesses_permit_an_unmap)
{
    CUdeviceptr base = reserve(GRANULE);
    CUstream stream = new_stream();

    back_usable(base, GRANULE);
    for (uint64_t i = 0; i < 20000; i++) {
        launch_on(stream, 10, base + i % 100, 1);
        if (i % 3 == 0)
            xseg_sim_advance(29);
    }
    ASSERT_OK(cuStreamSynchronize(stream));
    ASSERT_OK(cuMemUnmap(base, GRANULE));
}

/* --- Real bytes. --- */

SIM_TEST_BYTES(copies_and_fills_move_bytes)
{
    CUdeviceptr mapped = usable(2 * GRANULE);
    unsigned char in[64], out[64];
    CUdeviceptr allocated = allocate(64);

    for (size_t i = 0; i < sizeof(in); i++)
        in[i] = (unsigned char)(i * 3 + 1);
    assert_int_equal(bytes_at(mapped)[0], 0);
    ASSERT_OK(cuMemcpyHtoD(mapped + GRANULE - 32, in, sizeof(in)));
    ASSERT_OK(cuMemcpyDtoD(allocated, mapped + GRANULE - 32, sizeof(in)));
    ASSERT_OK(cuMemcpyDtoH(out, allocated, sizeof(out)));
    assert_memory_equal(in, out, sizeof(in));
    assert_memory_equal(bytes_at(mapped + GRANULE - 32), in, sizeof(in));

    ASSERT_OK(cuMemsetD8(mapped, 0xa5, 7));
    ASSERT_OK(cuMemsetD16(mapped + 8, 0x1234, 3));
    ASSERT_OK(cuMemsetD32(mapped + 16, 0x89abcdef, 2));
    ASSERT_OK(cuMemcpyDtoH(out, mapped, 26));
    assert_memory_equal(out,
                        "\xa5\xa5\xa5\xa5\xa5\xa5\xa5\0\x34\x12\x34\x12\x34\x12\0\0"
                        "\xef\xcd\xab\x89\xef\xcd\xab\x89\0",
                        26);
    /* Either side may be host memory. */
    ASSERT_OK(cuMemcpy((CUdeviceptr)(uintptr_t)out, mapped, 8));
    ASSERT_OK(cuMemcpy(allocated, (CUdeviceptr)(uintptr_t)in, 8));
    assert_memory_equal(bytes_at(allocated), in, 8);
    assert_int_equal(out[6], 0xa5);
}

SIM_TEST_BYTES(aliases_share_bytes)
{
    CUmemGenericAllocationHandle handle = create(2 * GRANULE);
    CUdeviceptr first = reserve(2 * GRANULE), second = reserve(2 * GRANULE);

    ASSERT_OK(cuMemMap(first, 2 * GRANULE, 0, handle, 0));
    ASSERT_OK(cuMemMap(second, GRANULE, 0, handle, 0));
    grant(first, 2 * GRANULE, 0);
    grant(second, GRANULE, 0);
    ASSERT_OK(cuMemsetD8(first, 1, 2 * GRANULE));
    assert_int_equal(bytes_at(second)[GRANULE - 1], 1);
    ASSERT_OK(cuMemUnmap(first, 2 * GRANULE));
    ASSERT_OK(cuMemsetD8(second, 2, 1));
    map_usable(first, 2 * GRANULE, handle);
    /* Unmapped memory keeps its contents; fresh memory is zero. */
    assert_int_equal(bytes_at(first)[0], 2);
    assert_int_equal(bytes_at(first)[2 * GRANULE - 1], 1);
    ASSERT_OK(cuMemUnmap(second, GRANULE));
    back_usable(second, GRANULE);
    assert_int_equal(bytes_at(second)[0], 0);
}

SIM_TEST_BYTES(asynchronous_copies_run_in_stream_order)
{
    CUdeviceptr base = usable(GRANULE);
    CUstream stream = new_stream(), second = new_stream();
    unsigned char in = 7, out = 0;

    launch(stream, 100);
    ASSERT_OK(cuMemcpyHtoDAsync(base, &in, 1, stream));
    in = 8;
    ASSERT_OK(cuMemcpyDtoDAsync(base + 1, base, 1, stream));
    ASSERT_OK(cuMemsetD8Async(base + 2, 9, 1, second));
    ASSERT_OK(cuMemsetD16Async(base + 4, 0x0b0a, 1, stream));
    ASSERT_OK(cuMemsetD32Async(base + 8, 0x0f0e0d0c, 1, stream));
    assert_memory_equal(bytes_at(base), "\0\0\x09", 3);
    xseg_sim_advance(99);
    assert_int_equal(bytes_at(base)[0], 0);
    xseg_sim_advance(1);
    assert_memory_equal(bytes_at(base), "\7\7\x09\0\x0a\x0b\0\0\x0c\x0d\x0e\x0f", 12);
    launch(stream, 100);
    ASSERT_OK(cuMemsetD8Async(base, 4, 1, stream));
    /* A copy to host memory waits. */
    ASSERT_OK(cuMemcpyDtoHAsync(&out, base, 1, stream));
    assert_int_equal(out, 4);
    launch(stream, UINT64_MAX);
    ASSERT_OK(cuMemcpyAsync(base, base + 2, 1, stream));
    assert_int_equal(bytes_at(base)[0], 4);
    finish(stream);
    assert_int_equal(bytes_at(base)[0], 9);
}

/* Whether the process survives a write to the address. */
static bool can_write(CUdeviceptr address)
{
    const pid_t child = fork();
    int result = 0;

    if (child == 0) {
        (void)signal(SIGSEGV, SIG_DFL);
        (void)signal(SIGBUS, SIG_DFL);
        *(volatile unsigned char *)bytes_at(address) = 1;
        _exit(0);
    }
    assert_int_equal(waitpid(child, &result, 0), child);
    return WIFEXITED(result) && WEXITSTATUS(result) == 0;
}

SIM_TEST_BYTES(unreachable_memory_faults)
{
    CUmemAccessDesc desc = read_write(0);
    CUdeviceptr base = usable(GRANULE), unmapped = reserve(GRANULE), allocated = allocate(1);

    assert_true(can_write(base) && can_write(allocated));
    assert_false(can_write(unmapped));
    back(unmapped, GRANULE);
    assert_false(can_write(unmapped));
    desc.flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
    ASSERT_OK(cuMemSetAccess(base, GRANULE, &desc, 1));
    assert_false(can_write(base));
    ASSERT_OK(cuMemUnmap(base, GRANULE));
    assert_false(can_write(base));
    ASSERT_OK(cuMemFree(allocated));
    assert_false(can_write(allocated));
}

SIM_TEST_BYTES(forked_child_keeps_the_memory_of_its_parent)
{
    CUdeviceptr base = usable(GRANULE);
    const pid_t child = (ASSERT_OK(cuMemsetD8(base, 5, GRANULE)), fork());

    if (child == 0)
        _exit(with_bytes(state));
    child_expect_success(child);
    assert_int_equal(bytes_at(base)[GRANULE - 1], 5);
}

SIM_TEST_BYTES(occupied_addresses_are_skipped)
{
    CUdeviceptr first = reserve(GRANULE);
    void *occupied = mmap((void *)(uintptr_t)(first + 4 * GRANULE), GRANULE, PROT_READ,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);

    assert_true(occupied != MAP_FAILED);
    CUdeviceptr second = reserve(8 * GRANULE);
    assert_true(second > first + 4 * GRANULE);
    assert_int_equal(second % GRANULE, 0);
    back(second, 8 * GRANULE);
    assert_int_equal(munmap(occupied, GRANULE), 0);
}

/* A copy may run on a stream of any device; a fill is a kernel, which runs on the device of the memory. */
SIM_TEST_BYTES(copy_may_run_on_a_stream_of_another_device)
{
    const char letter = 'x';
    char result = 0;

    (void)enter(1);
    CUstream stream = new_stream();
    (void)enter(0);
    CUdeviceptr memory = allocate(GRANULE);
    ASSERT_OK(cuMemcpyHtoDAsync(memory, &letter, 1, stream));
    ASSERT_OK(cuMemcpyDtoHAsync(&result, memory, 1, stream));
    assert_int_equal(result, letter);
    ASSERT_CU(cuMemsetD8Async(memory, 1, 1, stream), CUDA_ERROR_INVALID_CONTEXT);
    ASSERT_OK(cuMemFree(memory));
}

TEST(copies_without_bytes_are_checked)
{
    unsigned char out = 77;

    start_with((struct xseg_sim_settings){.skip_checks = true});
    CUdeviceptr memory = allocate(64);
    ASSERT_OK(cuMemcpyDtoH(&out, memory, 1));
    assert_int_equal(out, 77);
    ASSERT_OK(cuMemsetD32(memory, 1, 16));
    ASSERT_OK(cuMemsetD32(memory, 1, 0));
    ASSERT_INVALID(cuMemsetD32(memory, 1, 17));
    ASSERT_INVALID(cuMemsetD32(memory + 2, 1, 1));
    ASSERT_INVALID(cuMemsetD16(memory + 1, 1, 1));
    ASSERT_INVALID(cuMemsetD32(memory, 1, SIZE_MAX / 2));
    ASSERT_INVALID(cuMemcpyHtoD(0, &out, 1));
    ASSERT_INVALID(cuMemcpyHtoD(memory, NULL, 1));
    ASSERT_INVALID(cuMemcpyDtoH(&out, 4096, 1));
    ASSERT_INVALID(cuMemcpyDtoD(memory, memory + 32, 33));
    ASSERT_INVALID(cuMemcpyDtoH(&out, reserve(GRANULE), 1));
    ASSERT_CU(cuMemsetD8Async(memory, 1, 1, (CUstream)(uintptr_t)5), CUDA_ERROR_INVALID_HANDLE);
}

PART(fill_unmapped, cuMemsetD8(page() + GRANULE - 4, 1, 8))
PART(fill_anstream, cuMemsetD8(foreign_page(), 0, 64))

static void copy_from_anstream(void)
{
    CUdeviceptr base = foreign_page();

    (void)cuMemcpyDtoD(allocate(64), base, 64);
}

static void copy_to_anstream(void)
{
    CUdeviceptr base = foreign_page();

    (void)cuMemcpyDtoDAsync(base, allocate(64), 64, new_stream());
}

static void copy_from_memory_without_rights(void)
{
    CUdeviceptr base = page();
    char out;

    back(base + GRANULE, GRANULE);
    (void)cuMemcpyDtoH(&out, base + GRANULE, 1);
}

static void unmap_during_a_copy(void)
{
    CUdeviceptr base = page();
    CUstream stream = new_stream();

    (void)xseg_sim_launch_on(stream, 1000, base, 1);
    (void)cuMemcpyDtoDAsync(base + 8, base + 16, 8, stream);
    xseg_sim_advance(999);
    (void)cuMemUnmap(base, GRANULE);
}

TEST(invalid_copies_are_reported)
{
    EXPECT_REPORT(copy_from_anstream, "without access rights", "accessed by device 1",
                  "cuMemcpyDtoD");
    EXPECT_REPORT(copy_to_anstream, "without access rights", "accessed by device 1",
                  "cuMemcpyDtoDAsync");
    EXPECT_REPORT(fill_anstream, "without access rights", "accessed by device 1", "cuMemsetD8");
    EXPECT_REPORT(fill_unmapped, "access to an unmapped address", "call:         cuMemsetD8",
                  "0x200200000");
    EXPECT_REPORT(copy_from_memory_without_rights, "without access rights", "cuMemcpyDtoH");
    EXPECT_REPORT(unmap_during_a_copy, "cuMemUnmap", "work:  ");
}

/* --- Peers, and attributes of addresses. --- */

TEST(peers_access_each_others_allocations)
{
    struct xseg_sim_settings settings = small_machine();
    CUcontext context[10];
    CUmemAccessDesc desc = read_write(1);
    int can_access = -1;

    settings.devices = 10;
    settings.skip_checks = true;
    start(&settings);
    for (int i = 9; i >= 0; i--)
        context[i] = enter(i);
    ASSERT_OK(cuDeviceCanAccessPeer(&can_access, 0, 1));
    assert_int_equal(can_access, 1);
    ASSERT_OK(cuDeviceCanAccessPeer(&can_access, 1, 1));
    assert_int_equal(can_access, 0);
    ASSERT_CU(cuDeviceCanAccessPeer(&can_access, 0, 10), CUDA_ERROR_INVALID_DEVICE);
    ASSERT_INVALID(cuDeviceCanAccessPeer(NULL, 0, 1));

    ASSERT_OK(cuCtxSetCurrent(context[1]));
    CUdeviceptr peer_memory = allocate(64);
    ASSERT_OK(cuCtxSetCurrent(context[0]));
    /* The driver copies between any two devices; a kernel needs peer access. */
    ASSERT_OK(cuMemcpyDtoD(peer_memory, peer_memory + 32, 32));
    ASSERT_INVALID(cuMemsetD8(peer_memory, 0, 64));
    ASSERT_CU(cuCtxDisablePeerAccess(context[1]), CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
    ASSERT_INVALID(cuCtxEnablePeerAccess(context[1], 1));
    ASSERT_CU(cuCtxEnablePeerAccess(context[0], 0), CUDA_ERROR_INVALID_DEVICE);
    ASSERT_CU(cuCtxEnablePeerAccess(NULL, 0), CUDA_ERROR_INVALID_CONTEXT);
    ASSERT_OK(cuCtxEnablePeerAccess(context[1], 0));
    ASSERT_CU(cuCtxEnablePeerAccess(context[1], 0), CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
    ASSERT_OK(cuMemsetD8(peer_memory, 0, 64));
    for (int i = 2; i <= 8; i++)
        ASSERT_OK(cuCtxEnablePeerAccess(context[i], 0));
    ASSERT_CU(cuCtxEnablePeerAccess(context[9], 0), CUDA_ERROR_TOO_MANY_PEERS);
    ASSERT_OK(cuCtxDisablePeerAccess(context[1]));
    ASSERT_INVALID(cuMemsetD8(peer_memory, 0, 64));

    settings.without_peers = true;
    start(&settings);
    context[1] = retain_context(1);
    (void)enter(0);
    ASSERT_OK(cuDeviceCanAccessPeer(&can_access, 0, 1));
    assert_int_equal(can_access, 0);
    ASSERT_CU(cuCtxEnablePeerAccess(context[1], 0), CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
    peer_memory = usable(GRANULE);
    ASSERT_CU(cuMemSetAccess(peer_memory, GRANULE, &desc, 1), CUDA_ERROR_INVALID_DEVICE);
}

/* XLA #40852: enabling peer access is not sufficient. */
SIM_TEST(mapped_memory_needs_separate_access_rights)
{
    CUmemAccessDesc both[2] = {read_write(0), read_write(1)};
    CUdeviceptr base = reserve(GRANULE);
    CUcontext first = current_context();

    back(base, GRANULE);
    ASSERT_OK(cuMemSetAccess(base, GRANULE, both, 1));
    (void)enter(1);
    ASSERT_OK(cuCtxEnablePeerAccess(first, 0));
    assert_int_equal(access_of(base, 1), CU_MEM_ACCESS_FLAGS_PROT_NONE);
    ASSERT_OK(cuMemSetAccess(base, GRANULE, both, 2));
    ASSERT_OK(cuMemsetD8(base, 1, GRANULE));
    launch_on(NULL, 1, base, GRANULE);
}

SIM_TEST(access_of_an_idle_device_can_be_revoked)
{
    CUmemAccessDesc both[2] = {read_write(0), read_write(1)};
    CUdeviceptr base = reserve(GRANULE);

    back(base, GRANULE);
    ASSERT_OK(cuMemSetAccess(base, GRANULE, both, 2));
    launch_on(NULL, UINT64_MAX, base, GRANULE);
    both[1].flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
    ASSERT_OK(cuMemSetAccess(base, GRANULE, &both[1], 1));
    assert_int_equal(access_of(base, 0), CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    assert_int_equal(access_of(base, 1), CU_MEM_ACCESS_FLAGS_PROT_NONE);
    ASSERT_OK(cuCtxSynchronize());
}

SIM_TEST(pointer_attributes_describe_addresses)
{
    enum { GPU_DIRECT = 15, MAPPING_SIZE = 18, MAPPING_BASE = 19, BLOCK_ID = 20 };
    CUdeviceptr base = reserve(4 * GRANULE), inside = base + 2 * GRANULE + 5, start = 0;
    size_t bytes = 0;
    uint64_t value;

    CUcontext context = current_context();
    back(base + GRANULE, 2 * GRANULE);
    CUdeviceptr allocated = allocate(100);
    assert_int_equal(pointer_attribute(inside, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR), base);
    assert_int_equal(pointer_attribute(inside, CU_POINTER_ATTRIBUTE_RANGE_SIZE), 4 * GRANULE);
    assert_int_equal(pointer_attribute(inside, CU_POINTER_ATTRIBUTE_MAPPED), 1);
    assert_int_equal(pointer_attribute(inside, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE), 0);
    assert_int_equal(pointer_attribute(inside, CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES), 0);
    assert_int_equal(pointer_attribute(inside, CU_POINTER_ATTRIBUTE_MEMORY_TYPE),
                     CU_MEMORYTYPE_DEVICE);
    assert_int_equal(pointer_attribute(inside, CU_POINTER_ATTRIBUTE_DEVICE_POINTER), inside);
    assert_int_equal(pointer_attribute(inside, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL), 0);
    assert_int_equal(pointer_attribute(inside, CU_POINTER_ATTRIBUTE_CONTEXT), 0);
    assert_int_equal(pointer_attribute(inside, GPU_DIRECT), 0);
    assert_int_equal(pointer_attribute(inside, MAPPING_SIZE), 2 * GRANULE);
    assert_int_equal(pointer_attribute(inside, MAPPING_BASE), base + GRANULE);
    assert_true(pointer_attribute(inside, BLOCK_ID) != pointer_attribute(allocated, BLOCK_ID));
    assert_true(pointer_attribute(inside, CU_POINTER_ATTRIBUTE_BUFFER_ID) !=
                pointer_attribute(allocated, CU_POINTER_ATTRIBUTE_BUFFER_ID));
    assert_int_equal(pointer_attribute(inside, CU_POINTER_ATTRIBUTE_ACCESS_FLAGS), 0);
    grant(base + GRANULE, 2 * GRANULE, 0);
    assert_int_equal(pointer_attribute(inside, CU_POINTER_ATTRIBUTE_ACCESS_FLAGS), 3);

    assert_int_equal(pointer_attribute(base, CU_POINTER_ATTRIBUTE_MAPPED), 0);
    assert_int_equal(pointer_attribute(base, CU_POINTER_ATTRIBUTE_RANGE_SIZE), 4 * GRANULE);
    ASSERT_INVALID(cuPointerGetAttribute(&value, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, base));
    assert_int_equal(pointer_attribute(allocated, CU_POINTER_ATTRIBUTE_CONTEXT),
                     (uintptr_t)context);
    assert_int_equal(pointer_attribute(allocated, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE),
                     1);
    assert_int_equal(pointer_attribute(allocated + 99, CU_POINTER_ATTRIBUTE_ACCESS_FLAGS), 3);
    ASSERT_INVALID(cuPointerGetAttribute(&value, CU_POINTER_ATTRIBUTE_MAPPED, allocated + 100));
    ASSERT_INVALID(cuPointerGetAttribute(NULL, CU_POINTER_ATTRIBUTE_MAPPED, base));
    ASSERT_INVALID(cuPointerGetAttribute(&value, (CUpointer_attribute)99, base));

    ASSERT_OK(cuMemGetAddressRange(&start, &bytes, inside));
    assert_int_equal(start, base + GRANULE);
    assert_int_equal(bytes, 2 * GRANULE);
    ASSERT_OK(cuMemGetAddressRange(&start, NULL, allocated + 50));
    assert_int_equal(start, allocated);
    ASSERT_CU(cuMemGetAddressRange(&start, &bytes, base), CUDA_ERROR_NOT_FOUND);
    ASSERT_CU(cuMemGetAddressRange(&start, &bytes, 5), CUDA_ERROR_NOT_FOUND);
}

SIM_TEST(several_attributes_are_returned_by_one_call)
{
    CUpointer_attribute attributes[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                        CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                        CU_POINTER_ATTRIBUTE_RANGE_SIZE};
    unsigned type = 9;
    int device = 9;
    size_t size = 9;
    void *data[] = {&type, &device, &size};

    CUdeviceptr address = allocate(100);
    ASSERT_OK(cuPointerGetAttributes(3, attributes, data, address));
    assert_int_equal(type, CU_MEMORYTYPE_DEVICE);
    assert_int_equal(device, 0);
    assert_int_equal(size, 100);
    /* For an unknown address the driver returns empty values and succeeds. */
    ASSERT_OK(cuPointerGetAttributes(3, attributes, data, (CUdeviceptr)(uintptr_t)&size));
    assert_int_equal(type, 0);
    assert_int_equal(device, CU_DEVICE_INVALID);
    assert_int_equal(size, 0);
    attributes[1] = (CUpointer_attribute)99;
    ASSERT_INVALID(cuPointerGetAttributes(3, attributes, data, address));
    ASSERT_INVALID(cuPointerGetAttributes(0, attributes, data, address));
    ASSERT_INVALID(cuPointerGetAttributes(1, NULL, data, address));
}

SIM_TEST(sync_memops_makes_copies_wait)
{
    const unsigned on = 1;
    CUdeviceptr address = allocate(100);

    assert_int_equal(pointer_attribute(address, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS), 0);
    ASSERT_OK(cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, address + 50));
    assert_int_equal(pointer_attribute(address, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS), 1);
    ASSERT_INVALID(cuPointerSetAttribute(NULL, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, address));
    ASSERT_INVALID(cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_MAPPED, address));
    ASSERT_INVALID(cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, 5));
    CUdeviceptr base = reserve(2 * MIB);
    ASSERT_CU(cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, base),
              CUDA_ERROR_NOT_SUPPORTED);
    ASSERT_OK(cuMemAddressFree(base, 2 * MIB));
    ASSERT_OK(cuMemFree(address));
}

SIM_TEST(handle_returns_its_properties)
{
    CUmemAllocationProp prop = on_device(1), returned;
    CUmemGenericAllocationHandle handle = 0;

    prop.allocFlags.gpuDirectRDMACapable = 1;
    ASSERT_OK(cuMemCreate(&handle, GRANULE, &prop, 0));
    ASSERT_OK(cuMemGetAllocationPropertiesFromHandle(&returned, handle));
    assert_memory_equal(&returned, &prop, sizeof(prop));
    ASSERT_INVALID(cuMemGetAllocationPropertiesFromHandle(NULL, handle));
    ASSERT_INVALID(cuMemGetAllocationPropertiesFromHandle(&returned, 12));
}
