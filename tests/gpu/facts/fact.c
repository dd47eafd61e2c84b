/* SPDX-License-Identifier: MIT */
#include "tests/gpu/facts/fact.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/gpu/facts/driver.h"

/* With less free memory, an out-of-memory error does not contradict a fact. */
#define LOW_MEMORY (512 * MIB)

static struct outcome *current_outcome; /* of the active check */
static jmp_buf end_of_check;

static const struct fact *facts[256];
static size_t facts_added;

void fact_add(const struct fact *fact)
{
    if (facts_added == sizeof(facts) / sizeof(facts[0]))
        abort();
    facts[facts_added++] = fact;
}

size_t fact_count(void)
{
    return facts_added;
}

const struct fact *fact_at(size_t index)
{
    return facts[index];
}

size_t fact_find(const char *id)
{
    size_t index = 0;

    while (index < fact_count() && strcmp(fact_at(index)->id, id) != 0)
        index++;
    return index;
}

const char *verdict_name(enum verdict verdict)
{
    static const char *const names[] = {
        [HOLDS] = "holds",     [DIFFERS] = "differs", [SKIPPED] = "skipped",
        [CRASHED] = "crashed", [HUNG] = "hung",
    };

    return names[verdict];
}

/* Replaces tabs and newlines, because the answer is a field of a table. */
static void append_answer(const char *format, va_list arguments)
{
    char *const answer = current_outcome->answer, *appended = answer + strlen(answer);
    const char *const end = answer + sizeof(current_outcome->answer);

    if (appended > answer)
        (void)snprintf(appended, (size_t)(end - appended), "; ");
    appended += strlen(appended);
    (void)vsnprintf(appended, (size_t)(end - appended), format, arguments);
    for (; *appended != '\0'; appended++)
        if (*appended == '\t' || *appended == '\n')
            *appended = ' ';
}

void fact_report(const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    append_answer(format, arguments);
    va_end(arguments);
}

/* The failure comes first; earlier measurements follow it. */
void fact_fail(const char *file, int line, const char *format, ...)
{
    char measured[sizeof(current_outcome->answer)];
    const char *name = strrchr(file, '/');
    va_list arguments;

    (void)snprintf(measured, sizeof(measured), "%s", current_outcome->answer);
    current_outcome->answer[0] = '\0';
    va_start(arguments, format);
    append_answer(format, arguments);
    va_end(arguments);
    if (measured[0] != '\0')
        fact_report("%s", measured);
    (void)snprintf(current_outcome->position, sizeof(current_outcome->position), "%s:%d",
                   name != NULL ? name + 1 : file, line);
    current_outcome->verdict = DIFFERS;
    longjmp(end_of_check, 1);
}

void fact_skip(const char *format, ...)
{
    va_list arguments;

    current_outcome->answer[0] = '\0';
    va_start(arguments, format);
    append_answer(format, arguments);
    va_end(arguments);
    current_outcome->verdict = SKIPPED;
    longjmp(end_of_check, 1);
}

/* Names the call as the driver's documentation does: cuMemMap(...) for cu.MemMap(...). */
static void name_call(const char *call, char *name, size_t bytes)
{
    static const char *const spellings[][2] = {{"cu.", "cu"}, {"allow(", "cuMemSetAccess("}};

    for (unsigned i = 0; i < 2; i++) {
        const size_t length = strlen(spellings[i][0]);

        if (strncmp(call, spellings[i][0], length) == 0) {
            (void)snprintf(name, bytes, "%s%s", spellings[i][1], call + length);
            return;
        }
    }
    (void)snprintf(name, bytes, "%s", call);
}

void fact_expect_result(CUresult result, CUresult expected, const char *call, const char *file,
                        int line)
{
    char name[256], actual[64], expected_name[64];

    if (result == expected)
        return;
    name_call(call, name, sizeof(name));
    driver_name_result(result, actual, sizeof(actual));
    if (result == CUDA_ERROR_OUT_OF_MEMORY && expected == CUDA_SUCCESS &&
        free_at_start < LOW_MEMORY)
        fact_skip("low memory, %zu MiB free: %s: %s", free_at_start / MIB, name, actual);
    driver_name_result(expected, expected_name, sizeof(expected_name));
    fact_fail(file, line, "%s: %s, expected %s", name, actual, expected_name);
}

void fact_expect_number(uint64_t value, uint64_t expected, const char *expression,
                        const char *expected_expression, const char *file, int line)
{
    char name[256];

    if (value == expected)
        return;
    name_call(expression, name, sizeof(name));
    fact_fail(file, line, "%s: %llu (%#llx), expected %s (%#llx)", name, (unsigned long long)value,
              (unsigned long long)value, expected_expression, (unsigned long long)expected);
}

void fact_expect_failure(CUresult result, const char *call, const char *file, int line)
{
    char name[256], actual[64];

    name_call(call, name, sizeof(name));
    driver_name_result(result, actual, sizeof(actual));
    if (result == CUDA_SUCCESS)
        fact_fail(file, line, "%s: %s, expected an error", name, actual);
    fact_report("%s: %s", name, actual);
}

void fact_expect(bool condition, const char *expression, const char *file, int line)
{
    char name[256];

    if (condition)
        return;
    name_call(expression, name, sizeof(name));
    fact_fail(file, line, "false: %s", name);
}

/* The next check expects a device without an error, the default capture mode, and the primary context. */
static void assert_clean(void)
{
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
    CUcontext current = NULL;

    ASSERT_RESULT("cuCtxSynchronize() after the check", cu.CtxSynchronize(), CUDA_SUCCESS);
    ASSERT_OK(cu.ThreadExchangeStreamCaptureMode(&mode));
    ASSERT_EQUAL(mode, CU_STREAM_CAPTURE_MODE_GLOBAL);
    ASSERT_OK(cu.CtxGetCurrent(&current));
    ASSERT(current == primary);
}

void fact_verify(const struct fact *fact, struct outcome *outcome)
{
    const char *missing = driver_lacks(fact->needs);
    const double start_us = microseconds();

    *outcome = (struct outcome){.verdict = HOLDS, .is_clean = true};
    current_outcome = outcome;
    driver_clear_missing();
    if (missing != NULL) {
        outcome->verdict = SKIPPED;
        fact_report("%s", missing);
        return;
    }
    if (setjmp(end_of_check) == 0) {
        fact->check();
        if (fact->needs != NOTHING)
            assert_clean();
    }
    outcome->milliseconds = (microseconds() - start_us) / 1e3;
    missing = driver_missing();
    if (missing != NULL) {
        outcome->verdict = SKIPPED;
        outcome->answer[0] = outcome->position[0] = '\0';
        fact_report("the driver has no %s", missing);
    }
    outcome->is_clean = outcome->verdict == HOLDS;
}
