/* SPDX-License-Identifier: MIT */
/* Capture of call stacks, on the fast path and by the C library, on stacks of threads and of fibers. */
#include <dlfcn.h>
#include <execinfo.h>
#include <link.h>
#include <pthread.h>
#include <string.h>
#include <ucontext.h>

#include "src/base/single_writer.h"
#include "src/base/stack.h"
#include "tests/support/child.h"

/* Whether the fast path uses libunwind. */
#if defined(__aarch64__)
enum { BY_LIBRARY = 0 };
#else
enum { BY_LIBRARY = 1 };
#endif

/* --- The loader, as replaced by the test. --- */

static bool dlopen_fails; /* simulates that libunwind is not installed */

void *__real_dlopen(const char *name, int mode);
void *__wrap_dlopen(const char *name, int mode);

void *__wrap_dlopen(const char *name, int mode)
{
    return dlopen_fails ? NULL : __real_dlopen(name, mode);
}

/* --- Stacks of a known depth. --- */

struct captured {
    void *frames[XSEG_STACK_FRAMES_MAX];
    uint32_t max, result;
    void *return_address; /* of the function that captures the stack */
    void *reference[XSEG_STACK_FRAMES_MAX + 8];
    int reference_count; /* frames from backtrace(), from the same function */
};

static __attribute__((noinline)) void capture(struct captured *captured)
{
    captured->return_address = __builtin_return_address(0);
    captured->reference_count = backtrace(captured->reference, XSEG_STACK_FRAMES_MAX + 8);
    captured->result = xseg_stack_capture(captured->frames, captured->max);
}

static __attribute__((noinline)) uint32_t descend(unsigned depth, struct captured *captured)
{
    const uint32_t below = depth == 0 ? 0 : descend(depth - 1, captured);

    if (depth == 0)
        capture(captured);
    __asm__ volatile("" : : : "memory");
    return below + 1;
}

static struct captured *capture_at(unsigned depth, uint32_t max)
{
    static struct captured captured;

    memset(&captured, 0, sizeof(captured));
    captured.max = max;
    (void)descend(depth, &captured);
    return &captured;
}

/* Whether a stack begins in capture() and has the frames of backtrace(), as far as both have frames. */
static bool matches_backtrace(const struct captured *captured)
{
    const uint32_t count = xseg_stack_frames(captured->result);
    int at = 0;

    while (at < captured->reference_count && captured->reference[at] != captured->return_address)
        at++;
    if (count < 2 || count > captured->max || captured->frames[1] != captured->return_address)
        return false;
    for (uint32_t i = 1; i < count && at < captured->reference_count; i++, at++)
        if (captured->frames[i] != captured->reference[at])
            return false;
    return true;
}

/* --- Functions for children, in which xseg_stack_prepare() has not been called. --- */

static void expect_in_child(bool holds)
{
    if (!holds)
        _exit(1);
}

static void use_without_preparation(void)
{
    expect_in_child(matches_backtrace(capture_at(10, 64)));
}

static void use_without_libunwind(void)
{
    dlopen_fails = true;
    expect_in_child(xseg_stack_prepare() == !BY_LIBRARY);
    dlopen_fails = false;
    expect_in_child(xseg_stack_prepare() == !BY_LIBRARY);
    for (unsigned depth = 0; depth < 100; depth += 9)
        expect_in_child(matches_backtrace(capture_at(depth, 64)));
    expect_in_child(xseg_stack_is_truncated(capture_at(100, 64)->result));
    expect_in_child(!xseg_stack_is_truncated(capture_at(990, XSEG_STACK_FRAMES_MAX)->result));
    expect_in_child(xseg_stack_frames(capture_at(990, XSEG_STACK_FRAMES_MAX)->result) > 990);
}

static void expect_child(void (*part)(void))
{
    char output[1024];

    if (child_run_without_argument(part, output, sizeof(output)) != 0)
        fail_msg("%s", output);
}

static void *prepare_and_capture(void *self)
{
    void *frames[XSEG_STACK_FRAMES];

    (void)xseg_stack_prepare();
    for (unsigned i = 0; i < 1000; i++)
        if (xseg_stack_frames(xseg_stack_capture(frames, XSEG_STACK_FRAMES)) == 0) {
            (void)fprintf(stderr, "stack %u has no frame\n", i);
            *(bool *)self = false;
        }
    return NULL;
}

static void prepare_in_threads(void)
{
    bool has_all[4] = {true, true, true, true};
    pthread_t thread[4];

    for (unsigned i = 0; i < 4; i++)
        expect_in_child(pthread_create(&thread[i], NULL, prepare_and_capture, &has_all[i]) == 0);
    for (unsigned i = 0; i < 4; i++)
        expect_in_child(pthread_join(thread[i], NULL) == 0 && has_all[i]);
}

TEST(stacks_are_captured_with_and_without_preparation)
{
    expect_child(use_without_preparation);
    expect_child(use_without_libunwind);
    expect_child(prepare_in_threads);
}

static int find_libunwind(struct dl_phdr_info *info, size_t bytes, void *context)
{
    (void)bytes;
    *(bool *)context |= strstr(info->dlpi_name, "libunwind.so") != NULL;
    return 0;
}

static bool has_libunwind(void)
{
    bool is_loaded = false;

    (void)dl_iterate_phdr(find_libunwind, &is_loaded);
    return is_loaded;
}

/* If libunwind were linked, it would handle the exceptions of the process. */
TEST(libunwind_is_loaded_by_the_preparation_only)
{
    assert_false(has_libunwind());
    const bool is_fast = xseg_stack_prepare();
    assert_int_equal(is_fast, has_libunwind() || !BY_LIBRARY);
    assert_int_equal(is_fast, xseg_stack_prepare());
    if (BY_LIBRARY && !has_libunwind())
        print_message("# libunwind is not installed\n");
}

TEST(stacks_begin_with_the_caller)
{
    for (unsigned depth = 0; depth < 300; depth += 7)
        assert_true(matches_backtrace(capture_at(depth, XSEG_STACK_FRAMES_MAX)));
}

static ucontext_t main_context, fiber_context;

static void run_fiber(void)
{
    assert_true(matches_backtrace(capture_at(30, XSEG_STACK_FRAMES_MAX)));
}

TEST(stack_of_a_fiber_is_captured)
{
    static char memory[1 << 20] __attribute__((aligned(16)));

    if (XSEG_HAS_THREAD_SANITIZER)
        return; /* ThreadSanitizer requires annotations of fibers */
    (void)xseg_stack_prepare();
    assert_int_equal(getcontext(&fiber_context), 0);
    fiber_context.uc_stack.ss_sp = memory;
    fiber_context.uc_stack.ss_size = sizeof(memory);
    fiber_context.uc_link = &main_context;
    makecontext(&fiber_context, run_fiber, 0);
    assert_int_equal(swapcontext(&main_context, &fiber_context), 0);
    assert_true(matches_backtrace(capture_at(30, XSEG_STACK_FRAMES_MAX)));
}

TEST(the_innermost_frames_are_kept)
{
    void *complete[XSEG_STACK_FRAMES_MAX];

    const uint32_t count = capture_at(990, XSEG_STACK_FRAMES_MAX)->result;
    assert_false(xseg_stack_is_truncated(count));
    assert_true(count > 990);
    memcpy(complete, capture_at(990, XSEG_STACK_FRAMES_MAX)->frames, sizeof(complete));
    for (uint32_t max = 1; max <= count + 1 && max <= XSEG_STACK_FRAMES_MAX; max++) {
        const struct captured *captured = capture_at(990, max);

        assert_int_equal(xseg_stack_is_truncated(captured->result), max < count);
        assert_int_equal(xseg_stack_frames(captured->result), max < count ? max : count);
        /* The frames outside descend() differ, because capture_at() was called from another line. */
        const uint32_t common = max < 990 ? max : 990;
        assert_memory_equal(captured->frames, complete, common * sizeof(*complete));
        for (uint32_t i = max; i < XSEG_STACK_FRAMES_MAX; i++)
            assert_null(captured->frames[i]);
    }
}

TEST(deep_stack_is_truncated)
{
    const struct captured *captured = capture_at(2 * XSEG_STACK_FRAMES_MAX, XSEG_STACK_FRAMES_MAX);
    assert_int_equal(captured->result, XSEG_STACK_FRAMES_MAX | XSEG_STACK_TRUNCATED);
    assert_ptr_equal(captured->frames[1], captured->return_address);
}
