/* SPDX-License-Identifier: MIT */
/*
 * The importer of a text, while something becomes of the exporter: the linker leads its system calls here (--wrap), so
 * that this happens between two of them.
 */
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "src/core/pools/offer_form.h"
#include "src/core/pools/offer_import.h"
#include "tests/support/emulated.h"
#include "tests/support/scene.h"

#ifndef SYS_pidfd_getfd
#define SYS_pidfd_getfd 438
#endif

/* How many descriptors are taken out of the exporter before `meanwhile` is called; UINT_MAX: it is not. */
static unsigned countdown = UINT_MAX;
static void (*meanwhile)(void);

/* NOLINTBEGIN(bugprone-reserved-identifier) */
long __real_syscall(long number, long a, long b, long c, long d, long e, long f);
long __wrap_syscall(long number, long a, long b, long c, long d, long e, long f);
/* NOLINTEND(bugprone-reserved-identifier) */

long __wrap_syscall(long number, long a, long b, long c, long d, long e, long f)
{
    if (number == SYS_pidfd_getfd && countdown != UINT_MAX && countdown-- == 0)
        meanwhile();
    return __real_syscall(number, a, b, c, d, e, f);
}

/* --- The exporter, a process of its own. --- */

static int
    ends[2]; /* a pair of sockets; [1] is the exporter's, also in the program that it executes */

static void say(int socket, const void *bytes, size_t count)
{
    if (write(socket, bytes, count) != (ssize_t)count)
        _exit(2);
}

static void wait_for_word(int socket)
{
    char word = 0;

    if (read(socket, &word, 1) != 1)
        _exit(3);
}

/* This program, executed by an exporter: all numbers of descriptors that it may have had are another file now. */
static int run_another_program(int socket)
{
    while (open("/dev/null", O_RDONLY | O_CLOEXEC) < 200)
        continue;
    say(socket, "d", 1);
    wait_for_word(socket);
    return 0;
}

/* Export a block, say its text, and execute the other program when told to. */
static void be_exporter(uid_t user)
{
    struct xseg_allocator *own = scene_open("exportable:True");
    char text[XSEG_SHARE_TEXT_BYTES] = "", number[16];
    void *block = scene_alloc(own, 50 * MIB, NULL);

    if (user != 0 && setuid(user) != 0)
        _exit(1);
    if (xseg_export_text(own, block, text, sizeof(text), NULL) != XSEG_OK)
        _exit(1);
    say(ends[1], text, sizeof(text));
    wait_for_word(ends[1]);
    (void)snprintf(number, sizeof(number), "%d", ends[1]);
    (void)execl("/proc/self/exe", "offer", "another", number, (char *)NULL);
    _exit(4);
}

static pid_t start_exporter(uid_t user, char text[XSEG_SHARE_TEXT_BYTES])
{
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        (void)close(ends[0]);
        be_exporter(user);
    }
    (void)close(ends[1]);
    assert_int_equal(read(ends[0], text, XSEG_SHARE_TEXT_BYTES), XSEG_SHARE_TEXT_BYTES);
    return child;
}

static void end_exporter(pid_t child, int status)
{
    (void)close(ends[0]);
    int result = 0;
    assert_int_equal(waitpid(child, &result, 0), child);
    assert_true(WIFEXITED(result));
    assert_int_equal(WEXITSTATUS(result), status);
}

static void let_it_execute(void)
{
    char word = 0;

    assert_int_equal(write(ends[0], "x", 1), 1);
    assert_int_equal(read(ends[0], &word, 1), 1);
    assert_int_equal(word, 'd');
}

static void expect_refused(const char *text, const char *word)
{
    const unsigned files = scene_open_files();
    struct xseg_share share = XSEG_SHARE_INIT;

    scene_expect_error(xseg_offer_import(text, &share), XSEG_ERR_FILE, word);
    assert_null(share.header);
    assert_int_equal(scene_open_files(), files);
}

/* --- Tests. --- */

static void an_exporter_is_asked_by_its_text(void **state)
{
    char text[XSEG_SHARE_TEXT_BYTES] = "";
    struct xseg_share share = XSEG_SHARE_INIT;
    const pid_t child = start_exporter(0, text);

    (void)state;
    assert_int_equal(xseg_offer_import(text, &share), XSEG_OK);
    assert_int_equal(share.fd_count, 3);
    xseg_share_end(&share);
    end_exporter(child, 3);
}

/* The exporter executes another program before the n-th descriptor is taken: the record, three pages, the record. */
static void an_exporter_that_executes_a_program_has_closed(void **state)
{
    (void)state;
    if (is_emulated_and_said("no other program is executed"))
        return;
    for (unsigned n = 0; n < 5; n++) {
        char text[XSEG_SHARE_TEXT_BYTES] = "";
        const pid_t child = start_exporter(0, text);

        meanwhile = let_it_execute;
        countdown = n;
        expect_refused(text, "has closed that export");
        assert_int_equal(countdown, UINT_MAX);
        countdown = UINT_MAX;
        end_exporter(child, 3);
    }
}

static struct xseg_offer_text offered;

static void mark_the_record(void)
{
    const uint64_t no = 0;

    assert_int_equal(
        pwrite(offered.file, &no, sizeof(no), (off_t)offsetof(struct xseg_offer_record, is_open)),
        sizeof(no));
}

/* The exporter has marked its record, and its descriptors are still open: any of them may be another file by then. */
static void an_export_that_is_marked_meanwhile_has_closed(void **state)
{
    char text[XSEG_SHARE_TEXT_BYTES] = "";
    struct xseg_allocator *own = scene_open("exportable:True");
    void *block = scene_alloc(own, 50 * MIB, NULL);

    (void)state;
    for (unsigned n = 1; n < 5; n++) {
        assert_int_equal(xseg_export_text(own, block, text, sizeof(text), NULL), XSEG_OK);
        assert_int_equal(xseg_offer_form_read(text, &offered), XSEG_OK);
        offered.socket ^= 1; /* nobody answers there */
        (void)xseg_offer_form_write(&offered, text);
        meanwhile = mark_the_record;
        countdown = n;
        expect_refused(text, "has closed that export");
        assert_int_equal(countdown, UINT_MAX);
        assert_int_equal(xseg_export_close(own, block), XSEG_OK);
    }
    scene_free(own, block);
    scene_close(own);
}

/* One that may take descriptors out of anybody's process takes none out of another user's. */
static void another_users_process_is_refused(void **state)
{
    char text[XSEG_SHARE_TEXT_BYTES] = "";

    (void)state;
    if (is_emulated_and_said("a process that has changed its user shows other files"))
        return;
    if (geteuid() != 0) {
        print_message("# only root may look into another user's process: nothing was tried\n");
        return;
    }
    const pid_t child = start_exporter(65534, text);
    expect_refused(text, "is another user's; its socket is another user's");
    end_exporter(child, 3);
}

int main(int count, char **arguments)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_exporter_is_asked_by_its_text),
        cmocka_unit_test(an_exporter_that_executes_a_program_has_closed),
        cmocka_unit_test(an_export_that_is_marked_meanwhile_has_closed),
        cmocka_unit_test(another_users_process_is_refused),
    };
    int socket = -1;

    if (count == 3 && strcmp(arguments[1], "another") == 0 &&
        sscanf(arguments[2], "%d", &socket) == 1)
        return run_another_program(socket);
    return cmocka_run_group_tests_name("offer", tests, NULL, NULL);
}
