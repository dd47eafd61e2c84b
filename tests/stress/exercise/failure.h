/* SPDX-License-Identifier: MIT */
/*
 * Failures: what was wrong, and how to have it again.  A failure ends the process, as the simulator's
 * reports and the sanitizers' do; whatever ends it, the programme and the last operations of each
 * thread are printed.
 */
#ifndef XSEG_TESTS_EXERCISE_FAILURE_H
#define XSEG_TESTS_EXERCISE_FAILURE_H

#include <stdint.h>

_Noreturn void failure(const char *form, ...) __attribute__((format(printf, 1, 2)));

/* End the process unless a condition holds; with the library's last sentence. */
#define CHECK(condition)                                                                  \
    do {                                                                                  \
        if (!(condition)) {                                                               \
            char text_[1024] = "";                                                        \
            (void)xseg_error_message(text_, sizeof(text_));                               \
            failure("%s:%d: %s (last error: %s)", __FILE__, __LINE__, #condition, text_); \
        }                                                                                 \
    } while (0)

/* Print programmes and operations when the process is ended. */
void failure_install(void);

/* What is under way: a command that repeats it; "" when nothing is. */
void failure_set_programme(const char *command);

/* A thread's operations, in a ring.  `thread` is its number, from 0 to 7. */
void failure_note(unsigned thread, const char *form, ...) __attribute__((format(printf, 2, 3)));
void failure_forget(void);

#endif
