/* SPDX-License-Identifier: MIT */
/*
 * Fault sweep over exports, imports, their probe and their releases.  After a failure no additional descriptor is open,
 * no memory is imported, and no page is retained; the same call then succeeds.
 */
#include <string.h>

#include "tests/fault/fault_env.h"
#include "tests/support/exported_handles.h"

static uint64_t imported(struct fault_env *env)
{
    struct xseg_statistics stats = {sizeof(stats)};
    struct xseg_scope scope = {sizeof(scope), .device = 0};

    FAULT_RETRY(env, xseg_stats_get(env->allocator, &scope, &stats));
    return stats.imported_bytes;
}

static struct exported_handles export_block(struct fault_env *env, void *block,
                                            enum xseg_handle_type type)
{
    const unsigned open_fds = env_open_fds();
    struct exported_handles exported;
    xseg_status status;

    do {
        status = export_handles(env->allocator, block, type, &exported);
        if (status != XSEG_OK) {
            assert_int_equal(env_open_fds(), open_fds);
            assert_int_equal(xseg_export_close(env->allocator, block), XSEG_ERR_NOT_ALLOCATED);
        }
    } while (fault_retry(env, status));
    return exported;
}

/* Returns the address of the block, and in `base` that of its run. */
static void *import_block(struct fault_env *env, const struct exported_handles *exported,
                          void **base)
{
    const uint64_t before = imported(env);
    void *block = NULL;
    xseg_status status;

    do {
        status = import_handles(env->allocator, exported, &block, base);
        if (status != XSEG_OK) {
            assert_null(block);
            assert_int_equal(imported(env), before);
        }
    } while (fault_retry(env, status));
    return block;
}

/* A release that fails in the driver is retried later, so these calls succeed. */
static void close_import(struct fault_env *env, void *block)
{
    FAULT_RETRY(env, xseg_import_close(env->allocator, block));
}

static void close_export(struct fault_env *env, void *block)
{
    FAULT_RETRY(env, xseg_export_close(env->allocator, block));
}

/* Words that are written through the imported address can be read through the exported address. */
static void expect_shared(uint64_t *exported, uint64_t *imported_words, size_t bytes,
                          uint64_t value)
{
    for (size_t at = 0; at < bytes / sizeof(*exported); at += 512 * KIB) {
        imported_words[at] = value;
        assert_true(exported[at] == value);
    }
}

/* A block on several pages, and a small block. */
static void export_and_reimport(struct fault_env *env)
{
    struct xseg_pool *pool = fault_pool_of(env, .exportable = true);
    void *blocks[2] = {fault_alloc_in(env, pool, 50 * MIB, NULL),
                       fault_alloc_in(env, pool, 700 * KIB, env->side)};

    faults_begin();
    for (unsigned i = 0; i < 2; i++) {
        const size_t bytes = i == 0 ? 50 * MIB : 700 * KIB;
        struct exported_handles exported = export_block(env, blocks[i], XSEG_HANDLE_FD);
        void *base[2] = {NULL};
        (void)import_block(env, &exported, &base[0]);
        void *second = import_block(env, &exported, &base[1]);
        const bool had_contents = env->has_contents;

        export_handles_close(&exported);
        env->has_contents = false; /* the contents are overwritten, and not checked */
        if (had_contents)
            expect_shared(blocks[i], second, bytes, 4711);
        fault_free(env, blocks[i]);
        env->has_contents = had_contents;
        close_import(env, base[0]);
        fault_trim(env, false);
        close_export(env, blocks[i]);
        close_import(env, base[1]);
    }
    assert_int_equal(imported(env), 0);
    fault_pool_end(env, pool);
}

/* The probe that the first exportable pool of an open device runs. */
static void open_first_pool(struct fault_env *env)
{
    fault_free(env, fault_alloc(env, 1000, NULL));
    faults_begin();
    struct xseg_pool *pool = fault_pool_of(env, .exportable = true);
    void *block = fault_alloc_in(env, pool, 30 * MIB, NULL);
    struct exported_handles exported = export_block(env, block, XSEG_HANDLE_FD);

    export_handles_close(&exported);
    close_export(env, block);
    fault_free(env, block);
    fault_pool_end(env, pool);
}

/* Export and import a block.  If the import is closed last, the exporter has released its pages before. */
static void export_and_import(struct fault_env *env, enum xseg_handle_type type,
                              bool import_is_last)
{
    struct xseg_pool *pool = fault_pool_of(env, .exportable = true);
    void *block = fault_alloc_in(env, pool, 50 * MIB, NULL), *base = NULL;

    faults_begin();
    struct exported_handles exported = export_block(env, block, type);
    (void)import_block(env, &exported, &base);
    export_handles_close(&exported);
    close_export(env, block);
    if (!import_is_last)
        close_import(env, base);
    fault_free(env, block);
    fault_pool_end(env, pool);
    if (import_is_last)
        close_import(env, base);
}

/* Fabric handles need no descriptors. */
static void export_by_fabric(struct fault_env *env)
{
    export_and_import(env, XSEG_HANDLE_FABRIC, false);
}

static void close_import_last(struct fault_env *env)
{
    export_and_import(env, XSEG_HANDLE_FD, true);
}

/* Import by a token; after a failure no memory is imported. */
static void *import_token(struct fault_env *env, const struct xseg_export_token *token)
{
    void *base = NULL;
    xseg_status status;

    do {
        status = xseg_import(env->allocator, 0, token, &base);
        if (status != XSEG_OK) {
            assert_null(base);
            assert_int_equal(imported(env), 0);
        }
    } while (fault_retry(env, status));
    return base;
}

/* With a token the exports run in the server, which reports failures to the import. */
static void export_by_token(struct fault_env *env)
{
    struct xseg_pool *pool = fault_pool_of(env, .exportable = true);
    void *block = fault_alloc_in(env, pool, 50 * MIB, NULL);
    struct xseg_export_token token;
    xseg_status status;

    faults_begin();
    do {
        status = xseg_export(env->allocator, block, &token, NULL);
        if (status != XSEG_OK)
            assert_int_equal(xseg_export_close(env->allocator, block), XSEG_ERR_NOT_ALLOCATED);
    } while (fault_retry(env, status));
    void *base = import_token(env, &token);
    close_export(env, block);
    close_import(env, base);
    fault_free(env, block);
    fault_pool_end(env, pool);
}

/* A segment with a gap between its pages. */
static void export_whole_segment(struct fault_env *env)
{
    struct xseg_pool *pool = fault_pool_of(env, .exportable = true);
    void *first = fault_alloc_in(env, pool, 60 * MIB, NULL);
    void *gap = fault_alloc_in(env, pool, 60 * MIB, NULL);
    void *last = fault_alloc_in(env, pool, 60 * MIB, NULL);
    struct xseg_export_token token;

    fault_free(env, gap);
    (void)env_trim_pool(env->allocator, pool);
    faults_begin();
    FAULT_RETRY(env, xseg_export_segment(env->allocator, first, &token));
    void *base = import_token(env, &token);
    assert_int_equal(imported(env), 2 * 60 * MIB);
    close_import(env, base);
    fault_free(env, first);
    fault_free(env, last);
    fault_pool_end(env, pool);
}

static const struct fault_suite_scenario scenarios[] = {
    {"export and reimport", export_and_reimport, 4, 4}, {"the first pool", open_first_pool, 4, 6},
    {"close import last", close_import_last, 4, 6},     {"by token", export_by_token, 4, 4},
    {"whole segment", export_whole_segment, 4, 4},      {"by fabric", export_by_fabric, 4, 4},
};

int main(void)
{
    const struct fault_suite sweep = {"export", scenarios,           COUNT_OF(scenarios),
                                      NULL,     export_and_reimport, 300};

    return fault_suite_run(&sweep);
}
