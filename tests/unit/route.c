/* SPDX-License-Identifier: MIT */
/* Routes: lock-free lookup while routes begin and end. */
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "src/core/device/device.h"
#include "tests/support/test.h"

static struct xseg_mutex table_lock;
static struct xseg_routes routes;
static struct xseg_known_stream stream; /* the legacy stream: no driver query */

FIXTURE(set_up)
{
    memset(&stream, 0, sizeof(stream));
    xseg_mutex_init(&table_lock, XSEG_RANK_TABLE);
    xseg_routes_init(&routes, NULL, &table_lock);
}

FIXTURE(tear_down)
{
    xseg_routes_fini(&routes);
    xseg_mutex_fini(&table_lock);
}

static struct xseg_pool *find_pool(void)
{
    struct xseg_pool *pool = NULL;

    assert_int_equal(xseg_routes_find(&routes, &stream, &pool), XSEG_OK);
    return pool;
}

static bool return_flag(void *self, xseg_stream handle)
{
    (void)handle;
    return *(const bool *)self;
}

TEST_WITH(latest_accepting_route_is_found, set_up, tear_down)
{
    struct xseg_pool pools[3];
    bool accepts[3] = {true, true, true};

    assert_false(xseg_routes_exist(&routes));
    assert_null(find_pool());
    for (unsigned i = 0; i < 3; i++) {
        memset(&pools[i], 0, sizeof(pools[i]));
        pools[i].holders = 1;
        const struct xseg_route route = {
            .pool = &pools[i], .accepts = return_flag, .self = &accepts[i]};

        assert_int_equal(xseg_routes_begin(&routes, &route), XSEG_OK);
        assert_ptr_equal(find_pool(), &pools[i]);
        assert_int_equal(xseg_routes_begin(&routes, &route), XSEG_ERR_BUSY);
    }
    accepts[2] = false;
    assert_ptr_equal(find_pool(), &pools[1]);
    assert_false(xseg_routes_end(&routes, &pools[1], true));
    assert_true(xseg_routes_end(&routes, &pools[1], false));
    assert_false(xseg_routes_end(&routes, &pools[1], false));
    assert_ptr_equal(find_pool(), &pools[0]);
    accepts[0] = false;
    assert_null(find_pool());
    accepts[2] = true;
    assert_ptr_equal(find_pool(), &pools[2]);
}

/* --- Readers concurrent with the begin and the end of routes. --- */

enum { READERS = 3, ROUNDS = 3000 };

static struct xseg_pool routed_pool = {.holders = 1};
static atomic_bool stop, is_routed;
static atomic_uint failures; /* late calls of the predicate, and wrong results */

/* A predicate may be called only until its route ends. */
static bool count_late_call(void *self, xseg_stream handle)
{
    (void)handle;
    if (!atomic_load((atomic_bool *)self))
        atomic_fetch_add(&failures, 1);
    return true;
}

static void *read_until_stopped(void *unused)
{
    struct xseg_pool *pool = NULL;

    while (!atomic_load(&stop))
        if (xseg_routes_find(&routes, &stream, &pool) != XSEG_OK ||
            (pool != NULL && pool != &routed_pool))
            atomic_fetch_add(&failures, 1);
    return unused;
}

TEST_WITH(predicate_is_not_called_after_removal, set_up, tear_down)
{
    const struct xseg_route route = {
        .pool = &routed_pool, .accepts = count_late_call, .self = &is_routed};
    pthread_t reader[READERS];

    for (unsigned i = 0; i < READERS; i++)
        assert_int_equal(pthread_create(&reader[i], NULL, read_until_stopped, NULL), 0);
    for (unsigned i = 0; i < ROUNDS; i++) {
        atomic_store(&is_routed, true);
        assert_int_equal(xseg_routes_begin(&routes, &route), XSEG_OK);
        assert_true(xseg_routes_end(&routes, &routed_pool, false));
        atomic_store(&is_routed, false);
    }
    atomic_store(&stop, true);
    for (unsigned i = 0; i < READERS; i++)
        assert_int_equal(pthread_join(reader[i], NULL), 0);
    assert_int_equal(atomic_load(&failures), 0);
}
