/* SPDX-License-Identifier: MIT */
/*
 * A library for tests of call stacks, which is loaded and unloaded.
 *
 * PLUGIN_CALL names its function, which is exported unless everything is hidden; `plugin_call` leads to
 * it in any case.  It calls back through another function, which is not exported.
 */
#define EXPORTED __attribute__((visibility("default")))

typedef void plugin_function(void (*back)(void *), void *context);

void PLUGIN_CALL(void (*back)(void *), void *context);
extern EXPORTED plugin_function *const plugin_call;

plugin_function *const plugin_call = PLUGIN_CALL;

/* Calls are followed by something, or the compiler would make jumps of them. */
static __attribute__((noinline)) void inner(void (*back)(void *), void *context)
{
    back(context);
    __asm__ volatile("" : : : "memory");
}

void PLUGIN_CALL(void (*back)(void *), void *context)
{
    inner(back, context);
    __asm__ volatile("" : : : "memory");
}
