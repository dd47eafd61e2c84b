/* SPDX-License-Identifier: MIT */
/*
 * The lifetime of a plug-in: the library is loaded, used and closed with dlclose() repeatedly.  It is also closed while
 * a thread exists that had an error in it, and while a thread is executing a call.  The library remains mapped, and no
 * driver objects remain.  After the first round, the numbers of files, threads, heap blocks and mappings of the process
 * do not increase.
 *
 * reload LIBRARY: the argument of dlopen().  The program is linked with the simulator only, and started with
 * GLIBC_TUNABLES=glibc.malloc.tcache_count=0, because blocks in thread caches count as allocated.
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

/* The functions used, as dlsym() has them. */
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
    find("xseg_error_message", &xseg.error_text);
}

struct holdings {
    size_t files, threads, heap_bytes, mappings, own_mappings;
};

static size_t entries(const char *path)
{
    size_t count = 0;
    DIR *folder = opendir(path);

    check(folder != NULL, path);
    while (readdir(folder) != NULL)
        count++;
    (void)closedir(folder);
    return count;
}

static struct holdings holdings(void)
{
    char line[4096];
    struct holdings held = {0};
    FILE *maps = fopen("/proc/self/maps", "re");

    check(maps != NULL, "no /proc/self/maps");
    while (fgets(line, sizeof(line), maps) != NULL) {
        held.mappings++;
        held.own_mappings += strstr(line, "libxseg.so") != NULL;
    }
    (void)fclose(maps);
    held.files = entries("/proc/self/fd");
    held.threads = entries("/proc/self/task");
    held.heap_bytes = mallinfo2().uordblks;
    return held;
}

static void check_same(const char *what, size_t before, size_t after)
{
    if (after <= before)
        return;
    (void)fprintf(stderr, "reload: %s: %zu after the first round, %zu after the last\n", what,
                  before, after);
    exit(1);
}

static pthread_barrier_t failed, closed;

/* Leaves an error text behind, and ends when the library is closed. */
static void *fail(void *unused)
{
    struct xseg_allocator *allocator = NULL;

    check(xseg.open("no_such_key:1", NULL, &allocator) == XSEG_ERR_CONFIG, "a bad key");
    check(xseg.error_text(NULL, 0) > 0, "no error text");
    (void)pthread_barrier_wait(&failed);
    (void)pthread_barrier_wait(&closed);
    return unused;
}

static pthread_barrier_t inside, go_on;

/* The device is being opened: the caller is inside of xseg_alloc(). */
static void wait_inside(void *context, enum xseg_log_level level, const char *line)
{
    (void)context;
    (void)level;
    if (strstr(line, "device 0: opened") == NULL)
        return;
    (void)pthread_barrier_wait(&inside);
    (void)pthread_barrier_wait(&go_on);
}

static void *use_over_the_end(void *unused)
{
    struct xseg_options options = {sizeof(options)};
    struct xseg_allocator *allocator = NULL;
    void *block = NULL;

    options.log = wait_inside;
    check(xseg.open(NULL, &options, &allocator) == XSEG_OK, "xseg_open");
    check(xseg.alloc(allocator, 0, 512, NULL, &block) == XSEG_OK, "xseg_alloc over dlclose");
    check(xseg.free(allocator, block) == XSEG_OK, "xseg_free after dlclose");
    check(xseg.close(allocator) == XSEG_OK, "xseg_close after dlclose");
    return unused;
}

static void use(void)
{
    struct xseg_allocator *allocator = NULL;
    void *block[2] = {NULL, NULL};

    check(xseg.open("background_thread:True", NULL, &allocator) == XSEG_OK, "xseg_open");
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
    check(holdings().own_mappings > 0, "the library is unmapped after dlclose");
    (void)pthread_barrier_wait(&closed);
    check(pthread_join(thread, NULL) == 0, "pthread_join");

    load(path);
    check(pthread_create(&thread, NULL, use_over_the_end, NULL) == 0, "pthread_create");
    (void)pthread_barrier_wait(&inside);
    check(dlclose(xseg.library) == 0, "dlclose");
    (void)pthread_barrier_wait(&go_on);
    check(pthread_join(thread, NULL) == 0, "pthread_join");
}

int main(int count, char **argument)
{
    struct holdings first = {0}, last = {0};
    char leaks[1024];

    check(count == 2, "usage: reload LIBRARY");
    check(pthread_barrier_init(&failed, NULL, 2) == 0, "pthread_barrier_init");
    check(pthread_barrier_init(&closed, NULL, 2) == 0, "pthread_barrier_init");
    check(pthread_barrier_init(&inside, NULL, 2) == 0, "pthread_barrier_init");
    check(pthread_barrier_init(&go_on, NULL, 2) == 0, "pthread_barrier_init");
    for (int round = 0; round < ROUNDS; round++) {
        live(argument[1]);
        if (xseg_sim_leaks(leaks, sizeof(leaks)) > 0) {
            (void)fprintf(stderr, "reload: left behind in the driver: %s\n", leaks);
            return 1;
        }
        check(xseg_sim_reset(NULL) == XSEG_OK, "xseg_sim_reset");
        last = holdings();
        if (round == 0)
            first = last;
    }
    check_same("open files", first.files, last.files);
    check_same("threads", first.threads, last.threads);
    check_same("bytes of the heap", first.heap_bytes, last.heap_bytes);
    check_same("mappings", first.mappings, last.mappings);
    check_same("mappings of libxseg.so", first.own_mappings, last.own_mappings);
    return 0;
}
