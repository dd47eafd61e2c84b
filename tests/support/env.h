/* SPDX-License-Identifier: MIT */
/*
 * The environment of a test: a fresh simulated driver with an allocator on it, streams, captures and kernel launches.
 *
 * * env_close() closes the allocator and expects that the simulator finds no leaked handle, so every test that uses it
 * is a leak test as well.  All functions fail the test if a call fails, unless their name contains "try".
 */
#ifndef XSEG_TESTS_ENV_H
#define XSEG_TESTS_ENV_H

#include "tests/support/test.h"
#include "xseg/sim.h"
#include "xseg/xseg.h"

/* Sanitizers add host memory to each allocation, so limits of host memory cannot be tested. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define ENV_IS_SANITIZED true
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define ENV_IS_SANITIZED true
#endif
#endif
#ifndef ENV_IS_SANITIZED
#define ENV_IS_SANITIZED false
#endif

/* ThreadSanitizer does not support memory at most addresses of the simulator, so blocks have no contents there. */
#define ENV_HAS_BYTES true
#if defined(__SANITIZE_THREAD__)
#undef ENV_HAS_BYTES
#define ENV_HAS_BYTES false
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#undef ENV_HAS_BYTES
#define ENV_HAS_BYTES false
#endif
#endif

/* CUDA's own tag of a CUgraph or cudaGraph_t. */
struct CUgraph_st;

/* --- Expectations. --- */

/* Expect XSEG_OK; a failure prints the status and the error message. */
#define assert_ok(call) env_expect_ok((call), #call, __FILE__, __LINE__)

void env_expect_ok(xseg_status status, const char *call, const char *file, int line);

/* Expect a status, and words in the error message. */
#define env_expect_error(call, status, words) \
    env_expect_error_of((call), (status), (words), #call, __FILE__, __LINE__)

/* Expect XSEG_ERR_<status>, and words in the error message. */
#define assert_error(call, status, words) \
    env_expect_error_of((call), XSEG_ERR_##status, (words), #call, __FILE__, __LINE__)

void env_expect_error_of(xseg_status status, xseg_status expected, const char *words,
                         const char *call, const char *file, int line);

/* --- Allocators. --- */

/* Log lines of an allocator, without those of XSEG_LOG_INFO: their number, and the last one. */
struct env_log {
    char line[512];
    unsigned lines;
    enum xseg_log_level level; /* of the last one */
};

/* Expect this number of log lines so far, and words in the last one, which must be a warning. */
void env_expect_warnings(const struct env_log *log, unsigned lines, const char *words);

/* The path of the simulated driver that this program is linked with. */
const char *env_driver(void);

/* Reset the simulator and open an allocator; settings may be NULL. */
struct xseg_allocator *env_open(const char *config);
struct xseg_allocator *env_open_on(const struct xseg_sim_settings *settings, const char *config);

/* env_open_sim(config, .devices = 2, ...): as env_open(), with these members of struct xseg_sim_settings. */
#define env_open_sim(config, ...) \
    env_open_on(&(struct xseg_sim_settings){sizeof(struct xseg_sim_settings), __VA_ARGS__}, config)

/* As env_open(), on one device with this many MiB of memory. */
struct xseg_allocator *env_open_mib(uint64_t mib, const char *config);

/* As env_open_on(), with an allocator that uses the simulated clock. */
struct xseg_allocator *env_open_with_clock(const struct xseg_sim_settings *settings,
                                           const char *config);
#define env_open_sim_with_clock(config, ...) \
    env_open_with_clock(                     \
        &(struct xseg_sim_settings){sizeof(struct xseg_sim_settings), __VA_ARGS__}, config)

/* As env_open_with_clock(), without log lines. */
struct xseg_allocator *env_open_quietly(const struct xseg_sim_settings *settings,
                                        const char *config);

/* A log callback without effect, for struct xseg_options. */
void env_no_log(void *context, enum xseg_log_level level, const char *line);

/* Open an allocator without a reset of the simulator. */
struct xseg_allocator *env_open_logged(const char *config, struct env_log *log);
xseg_status env_try_open(const char *config, struct xseg_allocator **out);

/* The simulated clock, for struct xseg_options. */
uint64_t env_clock(void *context);

/* env_close(allocator, stream...): close, destroy the streams, then expect no leaks. */
#define env_close(...) \
    env_close_all((const void *const[]){__VA_ARGS__}, sizeof((const void *const[]){__VA_ARGS__}))

void env_close_all(const void *const *handles, size_t bytes);

/*
 * A test with an allocator, its parameter `allocator`; `open` is an expression that opens it.  At the end the allocator
 * is closed, the streams of env_stream() that the test did not destroy are destroyed, and no leaks are expected.
 */
#define TEST_ON(name, open)                                  \
    static void name##_on(struct xseg_allocator *allocator); \
    TEST(name)                                               \
    {                                                        \
        env_streams_discard();                               \
        struct xseg_allocator *allocator = (open);           \
        name##_on(allocator);                                \
        env_close_with_streams(allocator);                   \
    }                                                        \
    static void name##_on(__attribute__((unused)) struct xseg_allocator *allocator)

/* As TEST_ON(), with a private pool that is released at the end. */
#define TEST_IN_POOL(name, open)                                                     \
    static void name##_in(struct xseg_allocator *allocator, struct xseg_pool *pool); \
    TEST_ON(name, open)                                                              \
    {                                                                                \
        struct xseg_pool *pool = env_pool(allocator);                                \
        name##_in(allocator, pool);                                                  \
        assert_ok(xseg_pool_release(pool));                                          \
    }                                                                                \
    static void name##_in(__attribute__((unused)) struct xseg_allocator *allocator,  \
                          __attribute__((unused)) struct xseg_pool *pool)

/* As TEST_ON(), `count` times; `open` and the test may use the number of the run, `i`. */
#define TEST_TIMES(name, count, open)                                               \
    static void name##_on(struct xseg_allocator *allocator, unsigned i);            \
    TEST(name)                                                                      \
    {                                                                               \
        for (unsigned i = 0; i < (count); i++) {                                    \
            env_streams_discard();                                                  \
            struct xseg_allocator *allocator = (open);                              \
            name##_on(allocator, i);                                                \
            env_close_with_streams(allocator);                                      \
        }                                                                           \
    }                                                                               \
    static void name##_on(__attribute__((unused)) struct xseg_allocator *allocator, \
                          __attribute__((unused)) unsigned i)

/* TEST_EACH(name, env_open(config), string, ...): as TEST_TIMES(), once for each of these strings, `config`. */
#define TEST_EACH(name, open, ...)                                                             \
    static const char *const name##_configs[] = {__VA_ARGS__};                                 \
    static void name##_with(struct xseg_allocator *allocator, const char *config, unsigned i); \
    static struct xseg_allocator *name##_open(__attribute__((unused)) const char *config,      \
                                              __attribute__((unused)) unsigned i)              \
    {                                                                                          \
        return (open);                                                                         \
    }                                                                                          \
    TEST_TIMES(name, COUNT_OF(name##_configs), name##_open(name##_configs[i], i))              \
    {                                                                                          \
        name##_with(allocator, name##_configs[i], i);                                          \
    }                                                                                          \
    static void name##_with(__attribute__((unused)) struct xseg_allocator *allocator,          \
                            __attribute__((unused)) const char *config,                        \
                            __attribute__((unused)) unsigned i)

/* Both kinds of segments, for TEST_EACH(). */
#define ENV_KINDS "expandable_segments:True", "expandable_segments:False"

void env_streams_discard(void);
void env_close_with_streams(struct xseg_allocator *allocator);

/* --- Memory of device 0. --- */

void *env_alloc(struct xseg_allocator *allocator, size_t bytes, xseg_stream stream);

/* env_alloc_with(allocator, .bytes = 1000, ...): a request with these members of struct xseg_request. */
#define env_alloc_with(allocator, ...) \
    env_alloc_request(allocator, &(struct xseg_request){sizeof(struct xseg_request), __VA_ARGS__})

void *env_alloc_request(struct xseg_allocator *allocator, const struct xseg_request *request);

/* A block of another device, on its default stream. */
void *env_alloc_on(struct xseg_allocator *allocator, int device, size_t bytes);

/* Returns the status of an allocation that is expected to fail; expects that the pointer is not written if it does. */
xseg_status env_try_alloc(struct xseg_allocator *allocator, size_t bytes, xseg_stream stream);
void *env_alloc_in(struct xseg_allocator *allocator, struct xseg_pool *pool, size_t bytes,
                   xseg_stream stream);
xseg_status env_try_alloc_in(struct xseg_allocator *allocator, struct xseg_pool *pool, size_t bytes,
                             void **out);

/* env_free(allocator, block...) */
#define env_free(allocator, ...) \
    env_free_all((allocator), (void *const[]){__VA_ARGS__}, sizeof((void *const[]){__VA_ARGS__}))

void env_free_all(struct xseg_allocator *allocator, void *const *blocks, size_t bytes);

/* Trim everything: without a wait, or with one, as torch.cuda.empty_cache() does. */
struct xseg_trim_result env_trim(struct xseg_allocator *allocator);
struct xseg_trim_result env_trim_pool(struct xseg_allocator *allocator, struct xseg_pool *pool);
void env_empty_cache(struct xseg_allocator *allocator);

/* Empty the cache; returns the bytes of device 0 that remain reserved. */
uint64_t env_reserved_without_cache(struct xseg_allocator *allocator);

/* env_trim_with(allocator, pool, .wait = true, ...): trim with these members of struct xseg_trim_options; all memory if
 * the pool is NULL. */
#define env_trim_with(allocator, pool, ...) \
    env_trim_by(allocator, pool,            \
                &(struct xseg_trim_options){sizeof(struct xseg_trim_options), __VA_ARGS__})

struct xseg_trim_result env_trim_by(struct xseg_allocator *allocator, struct xseg_pool *pool,
                                    const struct xseg_trim_options *options);

/* env_scope(.device = 1, ...): the address of a scope with these members. */
#define env_scope(...) (&(const struct xseg_scope){sizeof(struct xseg_scope), __VA_ARGS__})

/* Advance the simulated clock in steps; after each step release the memory that is due (due_only). */
void env_advance_and_trim(struct xseg_allocator *allocator, unsigned steps, uint64_t step_ms);

/* Bytes of device 0 that are reserved. */
uint64_t env_reserved(struct xseg_allocator *allocator);

struct xseg_statistics env_stats(struct xseg_allocator *allocator);
struct xseg_statistics env_stats_on(struct xseg_allocator *allocator, int device);
struct xseg_statistics env_pool_stats(struct xseg_allocator *allocator, struct xseg_pool *pool);

/* Set the hard limit of a pool, or of device 0 if the pool is NULL, and reset its other limits. */
void env_set_hard_limit(struct xseg_allocator *allocator, struct xseg_pool *pool,
                        uint64_t hard_bytes);

/* The block at an address, which must be in a segment. */
struct xseg_block_info env_block(struct xseg_allocator *allocator, const void *address);

/* A private pool with one reference. */
struct xseg_pool *env_pool(struct xseg_allocator *allocator);
struct xseg_pool *env_pool_with(struct xseg_allocator *allocator,
                                const struct xseg_pool_options *options);

/* env_pool_of(allocator, .no_split = true, ...): a pool with these members of struct xseg_pool_options. */
#define env_pool_of(allocator, ...) \
    env_pool_with(allocator,        \
                  &(struct xseg_pool_options){sizeof(struct xseg_pool_options), __VA_ARGS__})

/* Memory functions for a pool, which return no memory. */
extern const struct xseg_pool_memory env_no_memory;

/* A pool with an on_destroy callback: its handle stays valid after the last release until its memory is released. */
struct xseg_pool *env_observed_pool(struct xseg_allocator *allocator);

struct xseg_checkpoint *env_checkpoint(struct xseg_pool *pool);

/* env_observe(allocator, .on_map = f, .context = c): add an observer; returns its ID. */
#define env_observe(allocator, ...) \
    env_observe_with(allocator, &(struct xseg_observer){sizeof(struct xseg_observer), __VA_ARGS__})

uint64_t env_observe_with(struct xseg_allocator *allocator, const struct xseg_observer *observer);

/* --- Streams. --- */

/* Push the primary context of a device; pop it and release it. */
void env_context_push(int device);
void env_context_pop(int device);

/* A new stream, of device 0 or another one; it retains the primary context until it is destroyed. */
xseg_stream env_stream(void);
xseg_stream env_stream_on(int device);
#define env_stream_destroy(...) \
    env_streams_destroy((const xseg_stream[]){__VA_ARGS__}, sizeof((xseg_stream[]){__VA_ARGS__}))

void env_streams_destroy(const xseg_stream *streams, size_t bytes);
void env_stream_destroy_on(int device, xseg_stream stream);

/* `stream` waits for the work queued on `other`; if `other` is being captured, `stream` joins the capture.  NULL is the
 * default stream of device 0. */
void env_stream_wait(xseg_stream stream, xseg_stream other);

/* Launch, or capture, a kernel that uses a block or any memory of device 0; it runs until a call waits for it or
 * xseg_sim_finish(). */
void env_launch(struct xseg_allocator *allocator, xseg_stream stream, const void *ptr);
void env_launch_at(xseg_stream stream, const void *address, uint64_t bytes);

/* Launch a kernel that uses a block on another stream, and record the use; env_free_in_use(): and free the block. */
void env_use(struct xseg_allocator *allocator, void *ptr, xseg_stream stream);
void env_free_in_use(struct xseg_allocator *allocator, void *ptr, xseg_stream stream);

/* The access rights of a device at an address: a CUmemAccess_flags. */
enum { ENV_NO_ACCESS = 0, ENV_READ = 1, ENV_READ_WRITE = 3 };

unsigned env_access_at(const void *address, int device);

/* --- Captures, in global mode, the strictest: any unsafe driver call of the library invalidates them. --- */

/* xseg_capture_begin() and the driver's begin. */
void env_capture_begin(struct xseg_pool *pool, xseg_stream stream);

/* The driver's end and xseg_capture_end(); expects that the capture is valid.  The graph is destroyed, or returned. */
void env_capture_end(struct xseg_pool *pool, xseg_stream stream);
struct CUgraph_st *env_capture_end_graph(struct xseg_pool *pool, xseg_stream stream);
void env_graph_destroy(struct CUgraph_st *graph);

/* A capture of the driver alone; the end returns whether the capture was valid. */
void env_driver_capture_begin(xseg_stream stream);
bool env_driver_capture_end(xseg_stream stream);

/* Driver calls so far that a capture in global mode forbids: queries, waits, event records, releases. */
uint64_t env_unsafe_calls(void);

/* env_fault(slot, .call = "cuMemUnmap", .every = 1, ...): set a fault with these members of struct xseg_sim_fault; the
 * default of `nth` is 1, and that of `error` 2, CUDA_ERROR_OUT_OF_MEMORY. */
#define env_fault(slot, ...) \
    env_fault_at(slot, (struct xseg_sim_fault){sizeof(struct xseg_sim_fault), __VA_ARGS__})

void env_fault_at(unsigned slot, struct xseg_sim_fault fault);

/* From now on each call of this name fails, until xseg_sim_fault_set(0, NULL). */
void env_fail_every(const char *call, int error);

/* --- Process. --- */

/* Open file descriptors of this process. */
unsigned env_open_fds(void);

/* Resident bytes of the process, exact: /proc/self/statm is delayed. */
uint64_t env_resident_bytes(void);

/* Threads of the process. */
unsigned env_threads(void);

/* Run a function in a thread; returns the result of the function. */
void *env_run_thread(void *(*function)(void *context), void *context);

/* Wait for a child process; returns its wait status. */
int env_wait(int child);

/* env_expect_forked(condition, call, ...): in a forked child each of these calls returns XSEG_ERR_FORKED, and the
 * condition is true after them. */
#define env_expect_forked(condition, ...)                                 \
    do {                                                                  \
        const int child_ = env_fork();                                    \
        if (child_ == 0) {                                                \
            const xseg_status statuses_[] = {__VA_ARGS__};                \
            env_exit_forked((condition), statuses_, COUNT_OF(statuses_)); \
        }                                                                 \
        assert_int_equal(env_wait(child_), 0);                            \
    } while (0)

int env_fork(void);
_Noreturn void env_exit_forked(bool condition, const xseg_status *statuses, size_t count);

#endif
