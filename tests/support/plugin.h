/* SPDX-License-Identifier: MIT */
/*
 * The libraries that are built from plugin.c, next to the test program:
 *
 *   plugin-one       exports call_of_one(); its build id is PLUGIN_ONE_ID
 *   plugin-rebuilt   is the same with another build id
 *   plugin-two       exports call_of_two(); it has no build id
 *   plugin-stripped  exports no function, and has no build id
 */
#ifndef XSEG_TESTS_PLUGIN_H
#define XSEG_TESTS_PLUGIN_H

#include <dlfcn.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define PLUGIN_ONE_ID "0123456789abcdef0123456789abcdef01234567"

/* The lines of the calls in plugin.c. */
#define PLUGIN_INNER_LINE 20
#define PLUGIN_CALL_LINE  26

struct plugin {
    void *handle;
    void (*call)(void (*callback)(void *), void *context);
    const char *base; /* lowest address */
    char path[1024];
};

/* The path of a library next to the program, without a run path: sanitizers intercept dlopen(). */
static inline void plugin_path(const char *name, char *path, size_t bytes)
{
    char self[512];
    const ssize_t length = readlink("/proc/self/exe", self, sizeof(self) - 1);

    assert_true(length > 0);
    self[length] = '\0';
    *strrchr(self, '/') = '\0';
    assert_true((size_t)snprintf(path, bytes, "%s/lib%s.so", self, name) < bytes);
}

static inline void plugin_open_path(struct plugin *plugin, const char *path)
{
    Dl_info info;

    (void)snprintf(plugin->path, sizeof(plugin->path), "%s", path);
    plugin->handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (plugin->handle == NULL)
        fail_msg("%s", dlerror());
    void *const *const call = dlsym(plugin->handle, "plugin_call");
    assert_non_null(call);
    memcpy(&plugin->call, call, sizeof(plugin->call));
    assert_int_not_equal(dladdr(*call, &info), 0);
    plugin->base = info.dli_fbase;
}

static inline void plugin_open(struct plugin *plugin, const char *name)
{
    char path[1024];

    plugin_path(name, path, sizeof(path));
    plugin_open_path(plugin, path);
}

/* Copy a library or any other file. */
static inline void plugin_copy(const char *from, const char *to)
{
    char bytes[4096];
    const int in = open(from, O_RDONLY | O_CLOEXEC);
    const int out = open(to, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0700);

    assert_true(in >= 0 && out >= 0);
    for (ssize_t count = read(in, bytes, sizeof(bytes)); count > 0;
         count = read(in, bytes, sizeof(bytes)))
        assert_int_equal(write(out, bytes, (size_t)count), count);
    assert_int_equal(close(in), 0);
    assert_int_equal(close(out), 0);
}

static inline void plugin_close(struct plugin *plugin)
{
    assert_int_equal(dlclose(plugin->handle), 0);
    plugin->handle = NULL;
}

#endif
