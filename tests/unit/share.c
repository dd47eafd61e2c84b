/* SPDX-License-Identifier: MIT */
/* Shares that come from somebody who may be slow, or mean: what is read once, and how long one waits. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "tests/support/scene.h"

/* --- Calls of the library that pass by here. --- */

/* NOLINTBEGIN(bugprone-reserved-identifier) */
int __real_poll(struct pollfd *wait, nfds_t count, int milliseconds);
int __wrap_poll(struct pollfd *wait, nfds_t count, int milliseconds);
int __real_clock_gettime(clockid_t id, struct timespec *out);
int __wrap_clock_gettime(clockid_t id, struct timespec *out);
int __real_fcntl(int file, int command, ...);
int __wrap_fcntl(int file, int command, ...);
int __wrap_fcntl64(int file, int command, ...);
/* NOLINTEND(bugprone-reserved-identifier) */

/* What happens while the library waits; it says what poll() returns.  NULL: poll() itself. */
static int (*meanwhile)(struct pollfd *wait, int milliseconds);
static uint64_t waited; /* milliseconds that it took */

/* What happens when the library looks whether a descriptor is open. */
static void (*on_look)(void);

int __wrap_poll(struct pollfd *wait, nfds_t count, int milliseconds)
{
    return meanwhile == NULL ? __real_poll(wait, count, milliseconds)
                             : meanwhile(wait, milliseconds);
}

int __wrap_clock_gettime(clockid_t id, struct timespec *out)
{
    const int result = __real_clock_gettime(id, out);

    if (meanwhile != NULL) {
        out->tv_sec = (time_t)(1000 + waited / 1000);
        out->tv_nsec = (long)(waited % 1000 * 1000000);
    }
    return result;
}

int __wrap_fcntl(int file, int command, ...)
{
    va_list arguments;

    if (command == F_GETFD) {
        if (on_look != NULL)
            on_look();
        return __real_fcntl(file, command);
    }
    va_start(arguments, command);
    const int argument = va_arg(arguments, int);
    va_end(arguments);
    return __real_fcntl(file, command, argument);
}

int __wrap_fcntl64(int file, int command, ...)
{
    va_list arguments;

    if (command == F_GETFD)
        return __wrap_fcntl(file, command);
    va_start(arguments, command);
    const int argument = va_arg(arguments, int);
    va_end(arguments);
    return __wrap_fcntl(file, command, argument);
}

/* --- A header that its author still writes to. --- */

static struct {
    struct xseg_share_header fixed;
    uint64_t page_bytes[3];
} shown;

/* Each of these would have been refused. */
static void change_header(void)
{
    shown.fixed.page_count = 2;
    shown.fixed.block_offset = (uint64_t)1 << 40;
    shown.page_bytes[0] = 7;
    shown.page_bytes[1] = UINT64_MAX;
}

static void a_header_is_read_once(void **state)
{
    struct xseg_pool_options options = XSEG_POOL_OPTIONS_INIT;
    struct xseg_allocator *allocator = scene_open(NULL);
    struct xseg_share share = XSEG_SHARE_INIT;
    struct xseg_pool *pool = NULL;
    void *again = NULL;

    (void)state;
    options.exportable = true;
    assert_int_equal(xseg_pool_create(allocator, 0, &options, &pool), XSEG_OK);
    void *block = scene_alloc_in(allocator, pool, 50 * MIB, NULL);
    assert_int_equal(xseg_export(allocator, block, XSEG_SHARE_FD, &share), XSEG_OK);
    assert_int_equal(share.header_bytes, sizeof(shown));
    memcpy(&shown, share.header, sizeof(shown));
    struct xseg_share seen = share;
    seen.header = &shown.fixed;

    on_look = change_header;
    assert_int_equal(xseg_import(allocator, 0, &seen, &again), XSEG_OK);
    on_look = NULL;
    assert_int_equal(shown.page_bytes[0], 7);
    assert_int_equal(scene_stats(allocator).imported_bytes, 60 * MIB);
    scene_expect_error(xseg_import(allocator, 0, &seen, &again), XSEG_ERR_ARGUMENT, "2 pages");
    xseg_share_end(&share);
    assert_int_equal(xseg_import_close(allocator, again), XSEG_OK);
    assert_int_equal(xseg_export_close(allocator, block), XSEG_OK);
    scene_free(allocator, block);
    assert_int_equal(xseg_pool_release(pool), XSEG_OK);
    scene_close(allocator);
}

/* --- Waiting for the other side. --- */

static int sockets[2];

static int nothing_comes(struct pollfd *wait, int milliseconds)
{
    assert_int_equal(wait->fd, sockets[1]);
    assert_int_equal(wait->events, POLLIN);
    waited += (uint64_t)milliseconds;
    return 0;
}

static int a_byte_comes(struct pollfd *wait, int milliseconds)
{
    (void)wait;
    assert_true(milliseconds > 0);
    assert_int_equal(write(sockets[0], "x", 1), 1);
    waited += 100;
    return 1;
}

/* Signals do not make it longer. */
static int a_signal_comes(struct pollfd *wait, int milliseconds)
{
    (void)wait;
    assert_true(milliseconds > 0);
    waited += 30;
    errno = EINTR;
    return -1;
}

static int nothing_goes(struct pollfd *wait, int milliseconds)
{
    assert_int_equal(wait->fd, sockets[1]);
    assert_int_equal(wait->events, POLLOUT);
    waited += (uint64_t)milliseconds;
    return 0;
}

/* Set how long the socket waits; 0: nothing is set. */
static void open_sockets(int option, unsigned milliseconds)
{
    const struct timeval set = {milliseconds / 1000, (suseconds_t)(milliseconds % 1000 * 1000)};

    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets), 0);
    if (milliseconds != 0)
        assert_int_equal(setsockopt(sockets[1], SOL_SOCKET, option, &set, sizeof(set)), 0);
    waited = 0;
}

static void close_sockets(void)
{
    meanwhile = NULL;
    assert_int_equal(close(sockets[0]) + close(sockets[1]), 0);
}

static void expect_late(int (*what)(struct pollfd *wait, int milliseconds), unsigned milliseconds,
                        uint64_t least)
{
    struct xseg_share came = XSEG_SHARE_INIT;

    open_sockets(SO_RCVTIMEO, milliseconds);
    meanwhile = what;
    scene_expect_error(xseg_share_receive(sockets[1], &came), XSEG_ERR_FILE, "SO_RCVTIMEO");
    assert_null(came.header);
    assert_true(waited >= least && waited < least + 200);
    close_sockets();
}

static void a_receiver_gives_up(void **state)
{
    (void)state;
    expect_late(nothing_comes, 0, 10000);
    expect_late(nothing_comes, 300, 300);
    expect_late(nothing_comes, 60000, 60000);
    expect_late(a_byte_comes, 0, 10000);
    expect_late(a_byte_comes, 500, 500);
    expect_late(a_signal_comes, 0, 10000);
}

static void a_sender_gives_up(void **state)
{
    struct xseg_pool_options options = XSEG_POOL_OPTIONS_INIT;
    struct xseg_allocator *allocator = scene_open(NULL);
    struct xseg_share share = XSEG_SHARE_INIT;
    struct xseg_pool *pool = NULL;
    const uint64_t least[] = {10000, 2500};
    char noise[4096] = {0};

    (void)state;
    options.exportable = true;
    assert_int_equal(xseg_pool_create(allocator, 0, &options, &pool), XSEG_OK);
    void *block = scene_alloc_in(allocator, pool, 50 * MIB, NULL);
    assert_int_equal(xseg_export(allocator, block, XSEG_SHARE_FD, &share), XSEG_OK);
    for (unsigned i = 0; i < 2; i++) {
        open_sockets(SO_SNDTIMEO, i == 0 ? 0 : 2500);
        while (send(sockets[1], noise, sizeof(noise), MSG_DONTWAIT) > 0)
            ;
        meanwhile = nothing_goes;
        scene_expect_error(xseg_share_send(sockets[1], &share), XSEG_ERR_FILE, "SO_SNDTIMEO");
        assert_true(waited >= least[i] && waited < least[i] + 200);
        close_sockets();
    }
    xseg_share_end(&share);
    assert_int_equal(xseg_export_close(allocator, block), XSEG_OK);
    scene_free(allocator, block);
    assert_int_equal(xseg_pool_release(pool), XSEG_OK);
    scene_close(allocator);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_header_is_read_once),
        cmocka_unit_test(a_receiver_gives_up),
        cmocka_unit_test(a_sender_gives_up),
    };

    return cmocka_run_group_tests_name("share", tests, NULL, NULL);
}
