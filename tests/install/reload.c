/* SPDX-License-Identifier: MIT */
/*
 * A plug-in's life: the library is loaded, used and unloaded, again and again, also under a thread
 * that has met an error in it and outlives it.  Nothing may be left: not in the driver, not in the
 * process.
 *
 * reload LIBRARY, which is given to dlopen().  Linked with the simulator alone.  Started with
 * GLIBC_TUNABLES=glibc.malloc.tcache_count=0: what threads keep in caches counts as used.
 */
#include <dirent.h>
#include <dlfcn.h>
#include <malloc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <xseg/sim.h>
#include <xseg/xseg.h>

#define ROUNDS 20

static void check(int is_good, const char *what)
{
    if (is_good)
        return;
    (void)fprintf(stderr, "reload: %s\n", what);
    exit(1);
}

/* The functions used, as the library that is loaded now has them. */
static struct {
    void *library;
    xseg_status (*open)(const char *, const struct xseg_options *, struct xseg_allocator **);
    xseg_status (*alloc)(struct xseg_allocator *, int, size_t, xseg_stream, void **);
    xseg_status (*free)(struct xseg_allocator *, void *);
    xseg_status (*close)(struct xseg_allocator *);
    size_t (*error_text)(char *, size_t);
} xseg;

static void find(const char *name, void *function)
{
    void *address = dlsym(xseg.library, name);

    check(address != NULL, name);
    memcpy(function, &address, sizeof(address));
}

static void load(const char *path)
{
    xseg.library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    check(xseg.library != NULL, "dlopen");
    find("xseg_open", &xseg.open);
    find("xseg_alloc", &xseg.alloc);
    find("xseg_free", &xseg.free);
    find("xseg_close", &xseg.close);
    find("xseg_error_text", &xseg.error_text);
}

static int is_loaded(void)
{
    char line[4096];
    int is_there = 0;
    FILE *maps = fopen("/proc/self/maps", "re");

    check(maps != NULL, "no /proc/self/maps");
    while (fgets(line, sizeof(line), maps) != NULL)
        is_there |= strstr(line, "libxseg.so") != NULL;
    (void)fclose(maps);
    return is_there;
}

static size_t open_files(void)
{
    size_t count = 0;
    DIR *folder = opendir("/proc/self/fd");

    check(folder != NULL, "no /proc/self/fd");
    while (readdir(folder) != NULL)
        count++;
    (void)closedir(folder);
    return count;
}

static pthread_barrier_t failed, unloaded;

/* Leaves an error text behind, and ends when the library is gone. */
static void *fail(void *unused)
{
    struct xseg_allocator *allocator = NULL;

    check(xseg.open("no_such_key:1", NULL, &allocator) == XSEG_ERR_CONFIG, "a bad key");
    check(xseg.error_text(NULL, 0) > 0, "no error text");
    (void)pthread_barrier_wait(&failed);
    (void)pthread_barrier_wait(&unloaded);
    return unused;
}

static void use(void)
{
    struct xseg_allocator *allocator = NULL;
    void *block[2] = {NULL, NULL};

    check(xseg.open(NULL, NULL, &allocator) == XSEG_OK, "xseg_open");
    check(xseg.alloc(allocator, 0, 512, NULL, &block[0]) == XSEG_OK, "xseg_alloc");
    check(xseg.alloc(allocator, 0, (size_t)64 << 20, NULL, &block[1]) == XSEG_OK, "xseg_alloc");
    check(xseg.free(allocator, block[0]) == XSEG_OK, "xseg_free");
    check(xseg.free(allocator, block[1]) == XSEG_OK, "xseg_free");
    check(xseg.close(allocator) == XSEG_OK, "xseg_close");
}

static void live(const char *path)
{
    pthread_t thread;

    load(path);
    check(pthread_create(&thread, NULL, fail, NULL) == 0, "pthread_create");
    use();
    (void)pthread_barrier_wait(&failed);
    check(dlclose(xseg.library) == 0, "dlclose");
    check(!is_loaded(), "the library is still there after dlclose");
    (void)pthread_barrier_wait(&unloaded);
    check(pthread_join(thread, NULL) == 0, "pthread_join");
}

int main(int count, char **argument)
{
    size_t files = 0, bytes = 0;
    char leaks[1024];

    check(count == 2, "usage: reload LIBRARY");
    check(pthread_barrier_init(&failed, NULL, 2) == 0, "pthread_barrier_init");
    check(pthread_barrier_init(&unloaded, NULL, 2) == 0, "pthread_barrier_init");
    for (int round = 0; round < ROUNDS; round++) {
        live(argument[1]);
        check(xseg_sim_reset(NULL) == XSEG_OK, "xseg_sim_reset");
        /* What the C library and the simulator keep for good is there after some rounds. */
        if (round == ROUNDS / 2) {
            files = open_files();
            bytes = mallinfo2().uordblks;
        }
    }
    check(open_files() == files, "open files are left behind");
    if (mallinfo2().uordblks > bytes) {
        (void)fprintf(stderr, "reload: %zu bytes of the heap are left behind\n",
                      mallinfo2().uordblks - bytes);
        return 1;
    }
    live(argument[1]);
    if (xseg_sim_leaks(leaks, sizeof(leaks)) > 0) {
        (void)fprintf(stderr, "reload: left behind in the driver: %s\n", leaks);
        return 1;
    }
    return 0;
}
