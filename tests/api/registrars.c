/* SPDX-License-Identifier: MIT */
/*
 * What registrars take of a tensor of 2 GiB, on pages as PyTorch makes them and as xseg does.  Each row is what users have
 * met in threads of issues; the calls are the simulator's registrars, in the order in which such libraries make them.
 */
#include "tests/support/env.h"

#define TENSOR (2 * GIB)

enum layout {
    PAGES,     /* of 20 MiB, without the flag: PyTorch's expandable segments before 2.10 */
    REACHABLE, /* of 20 MiB, for network cards */
    SINGLE,    /* one page for network cards */
    LAYOUTS
};

static const struct {
    const char *thread;
    enum xseg_sim_registrar kind;
    bool no_address_range;
    bool takes[LAYOUTS];
} rows[] = {
    /* ibv_reg_mr through nvidia_peermem: "Bad address [14]". */
    {"Mooncake 351, uccl 839, pytorch 153688", XSEG_SIM_PEERMEM, false, {false, false, true}},
    /* The range of cuMemGetAddressRange is exported, and the whole buffer registered: "Invalid argument [22]". */
    {"Mooncake 2511, torchcomms 3078, monarch 4547", XSEG_SIM_DMABUF, false, {false, false, true}},
    /* User buffers that are walked allocation by allocation. */
    {"nccl 1820", XSEG_SIM_NCCL, false, {false, true, true}},
    /* "named symbol not found": the driver does not answer for mapped memory. */
    {"nccl 2332", XSEG_SIM_NCCL, true, {false, false, false}},
};

static void *make(struct xseg_allocator *allocator, enum layout layout)
{
    struct xseg_pool_options options = {sizeof(options), .rdma = layout != PAGES,
                                        .single_page = layout == SINGLE};
    struct xseg_pool *pool = NULL;

    assert_ok(xseg_pool_create(allocator, 0, &options, &pool));
    return env_alloc_in(allocator, pool, TENSOR, NULL);
}

TEST(each_takes_what_it_can)
{
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct xseg_sim_settings settings = {sizeof(settings)};

        settings.without_address_range = rows[i].no_address_range;
        struct xseg_allocator *allocator = env_open_on(&settings, "expandable_segments:True");
        for (unsigned layout = 0; layout < LAYOUTS; layout++) {
            void *tensor = make(allocator, (enum layout)layout);
            uint64_t id = 0;
            const xseg_status status =
                xseg_sim_register((uintptr_t)tensor, TENSOR, rows[i].kind, &id);

            if ((status == XSEG_OK) != rows[i].takes[layout])
                fail_msg("%s, layout %u: %d", rows[i].thread, layout, status);
            if (status == XSEG_OK)
                assert_ok(xseg_sim_unregister(id));
            env_free(allocator, tensor);
        }
        env_close(allocator);
    }
}

/* Whatever cuMemGetAddressRange answers, a descriptor of the library's serves: pages need only be reachable. */
TEST(a_descriptor_serves_where_address_ranges_do_not)
{
    struct xseg_sim_settings settings = {sizeof(settings), .without_address_range = true};

    struct xseg_allocator *allocator = env_open_on(&settings, "expandable_segments:True");
    for (unsigned layout = REACHABLE; layout < LAYOUTS; layout++) {
        void *tensor = make(allocator, (enum layout)layout);
        uint64_t offset = 0, id = 0;
        int fd = -1;

        assert_ok(xseg_dmabuf_open(allocator, tensor, TENSOR, XSEG_DMABUF_PIN, &fd, &offset));
        assert_ok(xseg_sim_register_descriptor(fd, offset, TENSOR, &id));
        assert_ok(xseg_sim_unregister(id));
        assert_ok(xseg_dmabuf_close(allocator, fd));
        env_free(allocator, tensor);
    }
    env_close(allocator);
}
