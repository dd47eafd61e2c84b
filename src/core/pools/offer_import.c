/* SPDX-License-Identifier: MIT */
#include "src/core/pools/offer_import.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "src/base/check.h"
#include "src/base/clock.h"
#include "src/base/error.h"
#include "src/base/lock.h"
#include "src/core/pools/offer_form.h"
#include "src/core/pools/share.h"
#include "src/core/pools/share_header.h"
#include "src/core/pools/share_socket.h"

/* Both are the same on all architectures. */
#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif
#ifndef SYS_pidfd_getfd
#define SYS_pidfd_getfd 438
#endif

/* How long a socket whose queue is full is tried. */
#define PATIENCE_MS 10000u
#define NAP_MS      10
#define MS          UINT64_C(1000000)

/* The largest record that is looked at; xseg_share_check_fixed() has the bounds of a header. */
#define RECORD_MOST (UINT64_C(64) << 20)

/* --- Out of the process. --- */

/* The exporter, as the importer looks into it. */
struct source {
    const struct xseg_offer_text *offer;
    int process; /* a pidfd */
    int record;
};

static int get_file(const struct source *source, int file)
{
    return (int)syscall(SYS_pidfd_getfd, source->process, file, 0);
}

static xseg_status refused(const struct source *source, const char *what)
{
    return xseg_fail(XSEG_ERR_FILE, "%s of process %" PRId64 " cannot be taken: %s", what,
                     source->offer->process, strerror(errno));
}

/* Whether the record is of the offer, and that is open. */
static bool read_record(const struct source *source, struct xseg_offer_record *out)
{
    /* Memory files alone have seals.  Another file could be one whose owner never answers a read. */
    return fcntl(source->record, F_GET_SEALS) >= 0 &&
           pread(source->record, out, sizeof(*out), 0) == (ssize_t)sizeof(*out) &&
           memcmp(out->magic, XSEG_OFFER_RECORD, sizeof(out->magic)) == 0 &&
           memcmp(&out->token, &source->offer->token, sizeof(out->token)) == 0 && out->is_open == 1;
}

static xseg_status fail_closed(const struct source *source)
{
    return xseg_fail(XSEG_ERR_FILE, "process %" PRId64 " has closed that export",
                     source->offer->process);
}

static xseg_status read_header(const struct source *source, const struct xseg_offer_record *record,
                               struct xseg_share_header **out)
{
    const size_t bytes = (size_t)record->header_bytes;

    if (record->header_bytes > RECORD_MOST)
        return fail_closed(source);
    void *read = malloc(bytes);
    if (read == NULL)
        return xseg_fail(XSEG_ERR_HOST_MEMORY, "no host memory for a header of %zu bytes", bytes);
    const xseg_status status =
        pread(source->record, read, bytes, (off_t)sizeof(*record)) == (ssize_t)bytes
            ? xseg_share_copy(read, bytes, out)
            : fail_closed(source);
    free(read);
    return status;
}

/* Take the descriptors whose numbers stand behind the header. */
static xseg_status take_files(const struct source *source, struct xseg_share *share)
{
    int *file = xseg_share_fds(share);
    const size_t bytes = share->fd_count * sizeof(*file);
    int *number = malloc(bytes);
    xseg_status status = XSEG_OK;

    if (number == NULL)
        return xseg_fail(XSEG_ERR_HOST_MEMORY, "no host memory for %zu numbers", share->fd_count);
    if (pread(source->record, number, bytes,
              (off_t)(sizeof(struct xseg_offer_record) + share->header_bytes)) != (ssize_t)bytes)
        status = fail_closed(source);
    for (size_t i = 0; i < share->fd_count && status == XSEG_OK; i++) {
        file[i] = get_file(source, number[i]);
        if (file[i] < 0)
            status = refused(source, "the descriptors");
    }
    free(number);
    return status;
}

/* Whether two descriptors are of one file. */
static bool is_same_file(int one, int other)
{
    struct stat first, second;

    return fstat(one, &first) == 0 && fstat(other, &second) == 0 && first.st_dev == second.st_dev &&
           first.st_ino == second.st_ino;
}

/*
 * Look at the record once more, when descriptors have been taken.  What was closed before may have been another file by
 * then.  An exporter that closes an export marks its record first.  One that executes another program does not: its
 * descriptors are closed, and its own descriptor of the record with them, so that is fetched once more, too.
 */
static xseg_status look_again(const struct source *source)
{
    struct xseg_offer_record record;
    const int again = get_file(source, source->offer->file);

    if (again < 0)
        return refused(source, "the descriptors");
    const bool is_same = is_same_file(again, source->record);
    (void)close(again);
    return is_same && read_record(source, &record) ? XSEG_OK : fail_closed(source);
}

static xseg_status take_share(const struct source *source, struct xseg_share *out)
{
    struct xseg_share_header *header = NULL;
    struct xseg_offer_record record;
    struct xseg_share share;

    if (!read_record(source, &record))
        return fail_closed(source);
    xseg_status status = read_header(source, &record, &header);
    if (status != XSEG_OK)
        return status;
    const bool is_made =
        xseg_share_make(&share, (enum xseg_share_kind)header->kind, header->page_count);
    if (is_made)
        memcpy(xseg_share_head(&share), header, (size_t)header->header_bytes);
    free(header);
    if (!is_made)
        return xseg_fail(XSEG_ERR_HOST_MEMORY, "no host memory for a share");
    status = take_files(source, &share);
    if (status == XSEG_OK)
        status = look_again(source);
    if (status == XSEG_OK)
        *out = share;
    else
        xseg_share_free(&share);
    return status;
}

static xseg_status by_process(const struct xseg_offer_text *offer, struct xseg_share *out)
{
    struct source source = {offer, (int)syscall(SYS_pidfd_open, (pid_t)offer->process, 0), -1};
    xseg_status status;

    if (source.process < 0)
        return xseg_fail(XSEG_ERR_FILE, "process %" PRId64 " cannot be looked into: %s",
                         offer->process, strerror(errno));
    if (offer->start != 0 && xseg_offer_form_start(offer->process) != offer->start) {
        status = xseg_fail(XSEG_ERR_FILE, "process %" PRId64 " is not the one that exported",
                           offer->process);
        goto close_process;
    }
    if (!xseg_offer_form_is_own_process(offer->process)) {
        status = xseg_fail(XSEG_ERR_FILE, "process %" PRId64 " is another user's", offer->process);
        goto close_process;
    }
    source.record = get_file(&source, offer->file);
    status = source.record < 0 ? refused(&source, "the descriptors") : take_share(&source, out);
    if (source.record >= 0)
        (void)close(source.record);

close_process:
    (void)close(source.process);
    return status;
}

/* --- By the socket. --- */

static uint64_t now(void)
{
    return xseg_clock_fine(&(const struct xseg_clock){NULL, NULL});
}

/* Connect; as long as the queue of the socket is full, that is tried again for a while. */
static bool connect_to(int socket, const struct xseg_offer_text *offer)
{
    const uint64_t deadline = now() + PATIENCE_MS * MS;
    struct sockaddr_un address;
    const socklen_t bytes = xseg_offer_form_address(offer->process, offer->socket, &address);

    while (connect(socket, (const struct sockaddr *)&address, bytes) != 0) {
        if ((errno != EAGAIN && errno != EINTR) || now() >= deadline)
            return false;
        (void)poll(NULL, 0, NAP_MS);
    }
    return true;
}

static xseg_status ask(int socket, const struct xseg_offer_text *offer, struct xseg_share *out)
{
    struct xseg_offer_request request = {.token = offer->token};

    memcpy(request.magic, XSEG_OFFER_REQUEST, sizeof(request.magic));
    if (!connect_to(socket, offer))
        return xseg_fail(XSEG_ERR_FILE, "its socket cannot be reached: %s", strerror(errno));
    if (!xseg_offer_form_is_own(socket))
        return xseg_fail(XSEG_ERR_FILE, "its socket is another user's");
    if (send(socket, &request, sizeof(request), MSG_NOSIGNAL) != (ssize_t)sizeof(request))
        return xseg_fail(XSEG_ERR_FILE, "its socket takes no request: %s", strerror(errno));
    const xseg_status status = xseg_share_fetch(socket, out);
    if (status == XSEG_ERR_FILE)
        xseg_fail_add("; the exporter answers its own user only, and no longer than until "
                      "xseg_export_close()");
    return status;
}

static xseg_status by_socket(const struct xseg_offer_text *offer, struct xseg_share *out)
{
    const int client = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (client < 0)
        return xseg_fail(XSEG_ERR_FILE, "the system gives no socket: %s", strerror(errno));
    const xseg_status status = ask(client, offer, out);
    (void)close(client);
    return status;
}

xseg_status xseg_offer_import(const char *text, struct xseg_share *out)
{
    struct xseg_offer_text offer;
    char first[160], second[256];
    xseg_status status = xseg_offer_form_read(text, &offer);

    XSEG_ASSERT(!xseg_lock_is_any_held());
    if (status == XSEG_OK)
        status = by_process(&offer, out);
    if (status != XSEG_ERR_FILE)
        return status;
    (void)snprintf(first, sizeof(first), "%s", xseg_fail_text()->buffer);
    status = by_socket(&offer, out);
    if (status == XSEG_OK)
        return XSEG_OK;
    (void)snprintf(second, sizeof(second), "%s", xseg_fail_text()->buffer);
    return xseg_fail(status, "the export cannot be reached: %s; %s", first, second);
}
