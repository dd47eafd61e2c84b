/* SPDX-License-Identifier: MIT */
/* A failure ends the process, and prints its cause, the last operations and the command that repeats the program. */
#ifndef XSEG_TESTS_EXERCISE_FAILURE_H
#define XSEG_TESTS_EXERCISE_FAILURE_H

#include <stdint.h>

_Noreturn void failure(const char *form, ...) __attribute__((format(printf, 1, 2)));

/* End the process unless a condition holds; prints the library's last error message. */
#define CHECK(condition)                                                                  \
    do {                                                                                  \
        if (!(condition)) {                                                               \
            char text_[1024] = "";                                                        \
            (void)xseg_error_message(text_, sizeof(text_));                               \
            failure("%s:%d: %s (last error: %s)", __FILE__, __LINE__, #condition, text_); \
        }                                                                                 \
    } while (0)
#define CHECK_OK(call) CHECK((call) == XSEG_OK)

/* Print the program and its operations when the process ends abnormally. */
void failure_install(void);

/* The command that repeats the active program; "" if there is none. */
void failure_set_program(const char *command);

/* Record an operation in the ring of a thread; thread: index of the worker, from 0 to 7. */
void failure_record(unsigned thread, const char *form, ...) __attribute__((format(printf, 2, 3)));
void failure_clear(void);

#endif
