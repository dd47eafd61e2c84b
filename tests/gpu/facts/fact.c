/* SPDX-License-Identifier: MIT */
#include "tests/gpu/facts/fact.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/gpu/facts/driver.h"

/* With less free memory, a driver that is out of memory says nothing about the fact. */
#define LITTLE_MEMORY (512 * MIB)

static struct outcome *asked; /* of the active check */
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

const struct fact *fact_at(size_t number)
{
    return facts[number];
}

size_t fact_find(const char *id)
{
    size_t number = 0;

    while (number < fact_count() && strcmp(fact_at(number)->id, id) != 0)
        number++;
    return number;
}

const char *verdict_name(enum verdict verdict)
{
    static const char *const names[] = {
        [HOLDS] = "holds",     [DIFFERS] = "differs", [SKIPPED] = "skipped",
        [CRASHED] = "crashed", [HUNG] = "hung",
    };

    return names[verdict];
}

/* An answer is a field of a table: tabs and newlines are replaced. */
static void print_answer(const char *format, va_list arguments)
{
    const size_t held = strlen(asked->answer);
    char *text = asked->answer + held;
    const size_t room = sizeof(asked->answer) - held;

    if (held > 0)
        (void)snprintf(text, room, "; ");
    text += strlen(text);
    (void)vsnprintf(text, sizeof(asked->answer) - (size_t)(text - asked->answer), format,
                    arguments);
    for (; *text != '\0'; text++)
        if (*text == '\t' || *text == '\n')
            *text = ' ';
}

void fact_say(const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    print_answer(format, arguments);
    va_end(arguments);
}

/* The failure comes first; earlier measurements follow it. */
void fact_fail(const char *file, int line, const char *format, ...)
{
    char measured[sizeof(asked->answer)];
    const char *name = strrchr(file, '/');
    va_list arguments;

    (void)snprintf(measured, sizeof(measured), "%s", asked->answer);
    asked->answer[0] = '\0';
    va_start(arguments, format);
    print_answer(format, arguments);
    va_end(arguments);
    if (measured[0] != '\0')
        fact_say("%s", measured);
    (void)snprintf(asked->where, sizeof(asked->where), "%s:%d", name != NULL ? name + 1 : file,
                   line);
    asked->verdict = DIFFERS;
    longjmp(end_of_check, 1);
}

void fact_skip(const char *format, ...)
{
    va_list arguments;

    asked->answer[0] = '\0';
    va_start(arguments, format);
    print_answer(format, arguments);
    va_end(arguments);
    asked->verdict = SKIPPED;
    longjmp(end_of_check, 1);
}

/* As in the driver's documentation: cuMemMap(...) for cu.MemMap(...). */
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
    char name[256], got[64], wanted[64];

    if (result == expected)
        return;
    name_call(call, name, sizeof(name));
    driver_name_result(result, got, sizeof(got));
    if (result == CUDA_ERROR_OUT_OF_MEMORY && expected == CUDA_SUCCESS &&
        free_at_start < LITTLE_MEMORY)
        fact_skip("too little memory is free, %zu MiB: %s gave %s", free_at_start / MIB, name, got);
    driver_name_result(expected, wanted, sizeof(wanted));
    fact_fail(file, line, "%s: %s, expected %s", name, got, wanted);
}

void fact_expect_number(uint64_t number, uint64_t expected, const char *text,
                        const char *expected_text, const char *file, int line)
{
    char name[256];

    if (number == expected)
        return;
    name_call(text, name, sizeof(name));
    fact_fail(file, line, "%s: %llu (%#llx), expected %s (%#llx)", name, (unsigned long long)number,
              (unsigned long long)number, expected_text, (unsigned long long)expected);
}

void fact_expect_refusal(CUresult result, const char *call, const char *file, int line)
{
    char name[256], got[64];

    name_call(call, name, sizeof(name));
    driver_name_result(result, got, sizeof(got));
    if (result == CUDA_SUCCESS)
        fact_fail(file, line, "%s: %s, expected an error", name, got);
    fact_say("%s: %s", name, got);
}

void fact_expect(bool condition, const char *text, const char *file, int line)
{
    char name[256];

    if (condition)
        return;
    name_call(text, name, sizeof(name));
    fact_fail(file, line, "not so: %s", name);
}

/* The thread is in the state that the next check expects, and the device has no error. */
static void assert_tidy(void)
{
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
    CUcontext current = NULL;

    ASSERT_SAID("afterwards, cuCtxSynchronize()", cu.CtxSynchronize(), CUDA_SUCCESS);
    ASSERT_OK(cu.ThreadExchangeStreamCaptureMode(&mode));
    ASSERT_EQUAL(mode, CU_STREAM_CAPTURE_MODE_GLOBAL);
    ASSERT_OK(cu.CtxGetCurrent(&current));
    ASSERT(current == primary);
}

void fact_ask(const struct fact *fact, struct outcome *outcome)
{
    const char *missing = driver_lacks(fact->needs);
    const double began = microseconds();

    *outcome = (struct outcome){.verdict = HOLDS, .is_clean = true};
    asked = outcome;
    driver_forget_missing();
    if (missing != NULL) {
        outcome->verdict = SKIPPED;
        fact_say("%s", missing);
        return;
    }
    if (setjmp(end_of_check) == 0) {
        fact->check();
        if (fact->needs != NOTHING)
            assert_tidy();
    }
    outcome->milliseconds = (microseconds() - began) / 1e3;
    missing = driver_missing();
    if (missing != NULL) {
        outcome->verdict = SKIPPED;
        outcome->answer[0] = outcome->where[0] = '\0';
        fact_say("the driver has no %s", missing);
    }
    outcome->is_clean = outcome->verdict == HOLDS;
}
