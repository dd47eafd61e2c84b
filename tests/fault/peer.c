/* SPDX-License-Identifier: MIT */
/*
 * Fault sweep over peer access.  After a single failure the peer has no access, and the owner has full access; the same
 * call then succeeds.  After a second failure, in the rollback, access may remain, and the message states this.
 */
#include <string.h>

#include "tests/fault/fault_env.h"
#include "tests/support/exported_handles.h"

/* The distance of the words that are written.  Each page of 20 MiB has at least two of them; more words would only cost page
 * faults of the host. */
#define STRIDE (8 * MIB)
#define PAGE   (2 * MIB)

/* The number of pages that the peer can access. */
static size_t count_accessible(const void *ptr, size_t bytes)
{
    size_t count = 0;

    for (size_t at = 0; at < bytes; at += PAGE)
        count += fault_access(1, (const char *)ptr + at) == ENV_READ_WRITE;
    return count;
}

static bool is_accessible(const void *ptr, size_t bytes)
{
    return count_accessible(ptr, bytes) == bytes / PAGE;
}

/* The sweep of fault/allocator.c fails the calls that open a device. */
static void open_peer(struct fault_env *env)
{
    void *ptr = NULL;

    assert_ok(xseg_alloc(env->allocator, 1, 1000, NULL, &ptr));
    assert_ok(xseg_free(env->allocator, ptr));
}

static void allow_peer(struct fault_env *env, const void *ptr, size_t bytes)
{
    char text[1024] = "";
    xseg_status status;

    do {
        status = xseg_peer_allow(env->allocator, 0, 1);
        if (status != XSEG_OK) {
            (void)xseg_error_message(text, sizeof(text));
            if (strstr(text, "keeps access to some memory") == NULL)
                assert_int_equal(count_accessible(ptr, bytes), 0);
        }
    } while (fault_retry(env, status));
}

/* Unmapped ranges between the pages, a small arena, a private pool, and memory that is mapped later. */
static void before_and_after(struct fault_env *env)
{
    env->stride = STRIDE;
    void *first = fault_alloc(env, 50 * MIB, NULL), *unmapped = fault_alloc(env, 20 * MIB, NULL),
         *second = fault_alloc(env, 30 * MIB, NULL), *small = fault_alloc(env, 1000, NULL);

    struct xseg_pool *pool = fault_pool(env, NULL);
    void *pool_block = fault_alloc_in(env, pool, 30 * MIB, env->side);
    fault_free(env, unmapped);
    fault_trim(env, false);
    open_peer(env);
    faults_begin();
    allow_peer(env, first, 50 * MIB);
    void *later = fault_alloc(env, 90 * MIB, NULL);
    assert_true(is_accessible(first, 50 * MIB) && is_accessible(second, 30 * MIB) &&
                count_accessible(small, 1000) == 1);
    assert_true(is_accessible(pool_block, 30 * MIB) && is_accessible(later, 90 * MIB));
    fault_free(env, first, second, small, pool_block, later);
    fault_pool_end(env, pool);
}

/* Imported memory. */
static void imports(struct fault_env *env)
{
    struct exported_handles exported;
    void *imported = NULL, *base = NULL;

    env->stride = STRIDE;
    struct xseg_pool *pool = fault_pool_of(env, .exportable = true);
    void *block = fault_alloc_in(env, pool, 50 * MIB, NULL);
    FAULT_RETRY(env, export_handles(env->allocator, block, XSEG_HANDLE_FD, &exported));
    FAULT_RETRY(env, import_handles(env->allocator, &exported, &imported, &base));
    export_handles_close(&exported);
    open_peer(env);
    faults_begin();
    allow_peer(env, imported, 50 * MIB);
    assert_true(is_accessible(block, 50 * MIB) && is_accessible(imported, 50 * MIB));
    FAULT_RETRY(env, xseg_import_close(env->allocator, base));
    FAULT_RETRY(env, xseg_export_close(env->allocator, block));
    fault_free(env, block);
    fault_pool_end(env, pool);
}

static const struct fault_suite_scenario scenarios[] = {
    {"before and after", before_and_after, 4, 4},
    {"imports", imports, 4, 4},
};

int main(void)
{
    const struct fault_suite sweep = {"peer", scenarios,        COUNT_OF(scenarios),
                                      NULL,   before_and_after, 200};

    return fault_suite_run(&sweep);
}
