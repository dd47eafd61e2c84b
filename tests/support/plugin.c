/* SPDX-License-Identifier: MIT */
/*
 * A library for tests of call stacks, which is loaded and unloaded.
 *
 * PLUGIN_CALL is the name of its function, which is exported unless all symbols are hidden; `plugin_call` always points to
 * the function.  The function calls `callback` through inner(), which is not exported.
 */
#define EXPORTED __attribute__((visibility("default")))

typedef void plugin_function(void (*callback)(void *), void *context);

void PLUGIN_CALL(void (*callback)(void *), void *context);
extern EXPORTED plugin_function *const plugin_call;

plugin_function *const plugin_call = PLUGIN_CALL;

/* The statement after each call prevents a tail call. */
static __attribute__((noinline)) void inner(void (*callback)(void *), void *context)
{
    callback(context);
    __asm__ volatile("" : : : "memory");
}

void PLUGIN_CALL(void (*callback)(void *), void *context)
{
    inner(callback, context);
    __asm__ volatile("" : : : "memory");
}
