/* SPDX-License-Identifier: MIT */
#include "src/core/pools/share_socket.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "src/base/check.h"
#include "src/base/clock.h"
#include "src/base/error.h"
#include "src/core/pools/share_header.h"

/* Descriptors per message; Linux accepts 253. */
#define BATCH 250u

/* Time to wait for the other side where the socket sets none. */
#define PATIENCE_MS 10000u

#define MS UINT64_C(1000000)

/* --- Over a socket: the header, then a byte for each batch of descriptors. --- */

/* A direction of a socket, used for one share. */
struct line {
    int socket;
    short events;     /* what poll() waits for */
    const char *done; /* "sent", "received" */
    const char *option;
    uint64_t patience_ms, deadline; /* nanoseconds of the clock */
};

static uint64_t now(void)
{
    return xseg_clock_fine(&(const struct xseg_clock){NULL, NULL});
}

/* Begin a share.  The whole share has to pass within the time that the socket's option sets for
 * one call. */
static struct line begin(int socket, bool sends)
{
    struct line line = {
        .socket = socket,
        .events = sends ? POLLOUT : POLLIN,
        .done = sends ? "sent" : "received",
        .option = sends ? "SO_SNDTIMEO" : "SO_RCVTIMEO",
        .patience_ms = PATIENCE_MS,
    };
    struct timeval set = {0};
    socklen_t bytes = sizeof(set);

    if (getsockopt(socket, SOL_SOCKET, sends ? SO_SNDTIMEO : SO_RCVTIMEO, &set, &bytes) == 0 &&
        (set.tv_sec != 0 || set.tv_usec != 0))
        line.patience_ms = (uint64_t)set.tv_sec * 1000 + ((uint64_t)set.tv_usec + 999) / 1000;
    line.deadline = now() + line.patience_ms * MS;
    return line;
}

static xseg_status fail_socket(const struct line *line)
{
    return xseg_fail(XSEG_ERR_FILE, "a share could not be %s: %s", line->done, strerror(errno));
}

/* Wait after a call that failed, until it may be repeated. */
static xseg_status wait_for(const struct line *line)
{
    struct pollfd wait = {.fd = line->socket, .events = line->events};

    XSEG_ASSERT(errno != 0);
    if (errno == EINTR)
        return XSEG_OK;
    if (errno != EAGAIN && errno != EWOULDBLOCK)
        return fail_socket(line);
    for (uint64_t time = now(); time < line->deadline; time = now()) {
        const uint64_t left = (line->deadline - time + MS - 1) / MS;
        const int ready = poll(&wait, 1, left < INT32_MAX ? (int)left : INT32_MAX);

        if (ready > 0)
            return XSEG_OK;
        if (ready < 0 && errno != EINTR)
            return fail_socket(line);
    }
    return xseg_fail(XSEG_ERR_FILE,
                     "a share could not be %s within %" PRIu64
                     " ms: the other side is late; the socket's %s says how long to wait for it",
                     line->done, line->patience_ms, line->option);
}

static xseg_status send_bytes(const struct line *line, const char *bytes, size_t count)
{
    while (count > 0) {
        const ssize_t sent = send(line->socket, bytes, count, MSG_NOSIGNAL | MSG_DONTWAIT);
        const xseg_status status = sent < 0 ? wait_for(line) : XSEG_OK;

        if (status != XSEG_OK)
            return status;
        if (sent > 0) {
            XSEG_ASSERT((size_t)sent <= count);
            bytes += sent;
            count -= (size_t)sent;
        }
    }
    return XSEG_OK;
}

static xseg_status receive_bytes(const struct line *line, char *bytes, size_t count)
{
    while (count > 0) {
        const ssize_t received = recv(line->socket, bytes, count, MSG_DONTWAIT);
        const xseg_status status = received < 0 ? wait_for(line) : XSEG_OK;

        if (status != XSEG_OK)
            return status;
        if (received == 0)
            return xseg_fail(XSEG_ERR_FILE, "the socket ended within a share");
        if (received > 0) {
            XSEG_ASSERT((size_t)received <= count);
            bytes += received;
            count -= (size_t)received;
        }
    }
    return XSEG_OK;
}

/* A message of one byte with room for a batch. */
struct message {
    _Alignas(struct cmsghdr) char control[CMSG_SPACE(BATCH * sizeof(int))];
    char byte;
    struct iovec data;
    struct msghdr head;
};

static void begin_message(struct message *message, size_t count)
{
    XSEG_ASSERT(count != 0 && count <= BATCH);
    memset(message, 0, sizeof(*message));
    message->data = (struct iovec){&message->byte, 1};
    message->head.msg_iov = &message->data;
    message->head.msg_iovlen = 1;
    message->head.msg_control = message->control;
    message->head.msg_controllen = CMSG_SPACE(count * sizeof(int));
}

static xseg_status send_batch(const struct line *line, const int *file, size_t count)
{
    struct message message;
    xseg_status status = XSEG_OK;

    begin_message(&message, count);
    struct cmsghdr *control = CMSG_FIRSTHDR(&message.head);
    XSEG_ASSERT(control != NULL && file != NULL);
    control->cmsg_level = SOL_SOCKET;
    control->cmsg_type = SCM_RIGHTS;
    control->cmsg_len = CMSG_LEN(count * sizeof(int));
    memcpy(CMSG_DATA(control), file, count * sizeof(int));
    while (status == XSEG_OK &&
           sendmsg(line->socket, &message.head, MSG_NOSIGNAL | MSG_DONTWAIT) != 1)
        status = wait_for(line);
    return status;
}

/* Take the descriptors of a message, and close those beyond `room`.  Returns how many came. */
static size_t take_files(struct msghdr *head, int *file, size_t room)
{
    size_t came = 0;

    for (struct cmsghdr *control = CMSG_FIRSTHDR(head); control != NULL;
         control = CMSG_NXTHDR(head, control)) {
        if (control->cmsg_level != SOL_SOCKET || control->cmsg_type != SCM_RIGHTS)
            continue;
        for (size_t at = 0; CMSG_LEN(at + sizeof(int)) <= control->cmsg_len; at += sizeof(int)) {
            int one;

            memcpy(&one, CMSG_DATA(control) + at, sizeof(one));
            if (came < room)
                file[came] = one;
            else
                (void)close(one);
            came++;
        }
    }
    return came;
}

static xseg_status receive_batch(const struct line *line, int *file, size_t count)
{
    struct message message;
    xseg_status status = XSEG_OK;
    ssize_t received;

    do {
        begin_message(&message, BATCH);
        received = recvmsg(line->socket, &message.head, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    } while (received < 0 && (status = wait_for(line)) == XSEG_OK);
    if (status != XSEG_OK)
        return status;
    const size_t came = received == 0 ? 0 : take_files(&message.head, file, count);
    if (received == 0)
        return xseg_fail(XSEG_ERR_FILE, "the socket ended within a share");
    if (came != count || (message.head.msg_flags & MSG_CTRUNC) != 0)
        return xseg_fail(
            XSEG_ERR_FILE,
            "%zu descriptors came where %zu were sent: each page of a share takes one, "
            "see ulimit -n",
            came, count);
    return XSEG_OK;
}

xseg_status xseg_share_post(int socket, const struct xseg_share *share)
{
    struct xseg_share_header *header = NULL;
    xseg_status status = xseg_share_copy(share->header, share->header_bytes, &header);

    if (status != XSEG_OK)
        return status;
    const struct line line = begin(socket, true);
    status = xseg_share_check_count(header, share->fd_count);
    if (status == XSEG_OK)
        status = send_bytes(&line, (const char *)header, (size_t)header->header_bytes);
    for (size_t at = 0; at < share->fd_count && status == XSEG_OK; at += BATCH)
        status = send_batch(&line, share->fd + at,
                            share->fd_count - at < BATCH ? share->fd_count - at : BATCH);
    free(header);
    return status;
}

/* Refuse a share with more descriptors than the process may have. */
static xseg_status check_descriptors(uint64_t pages)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY ||
        pages <= limit.rlim_cur)
        return XSEG_OK;
    return xseg_fail(XSEG_ERR_FILE,
                     "a share of %" PRIu64
                     " pages takes as many descriptors, and this process may have %" PRIu64
                     ": see ulimit -n",
                     pages, (uint64_t)limit.rlim_cur);
}

/* Receive the rest of a share whose header has come. */
static xseg_status fetch_rest(const struct line *line, const struct xseg_share_header *header,
                              struct xseg_share *share)
{
    char *place = (char *)xseg_share_head(share);

    XSEG_ASSERT(share->header_bytes == header->header_bytes);
    memcpy(place, header, sizeof(*header));
    xseg_status status =
        receive_bytes(line, place + sizeof(*header), share->header_bytes - sizeof(*header));
    if (status == XSEG_OK)
        status = xseg_share_check(share->header);
    for (size_t at = 0; at < share->fd_count && status == XSEG_OK; at += BATCH)
        status = receive_batch(line, xseg_share_fds(share) + at,
                               share->fd_count - at < BATCH ? share->fd_count - at : BATCH);
    return status;
}

xseg_status xseg_share_fetch(int socket, struct xseg_share *out)
{
    const struct line line = begin(socket, false);
    struct xseg_share_header header = {.version = 0};
    struct xseg_share share;
    xseg_status status = receive_bytes(&line, (char *)&header, sizeof(header));

    XSEG_ASSERT(out != NULL);
    if (status == XSEG_OK)
        status = xseg_share_check_fixed(&header);
    if (status == XSEG_OK && header.kind == XSEG_SHARE_FD)
        status = check_descriptors(header.page_count);
    if (status != XSEG_OK)
        return status;
    if (!xseg_share_make(&share, (enum xseg_share_kind)header.kind, header.page_count))
        return xseg_fail(XSEG_ERR_HOST_MEMORY, "no host memory for a share of %" PRIu64 " pages",
                         header.page_count);
    status = fetch_rest(&line, &header, &share);
    if (status == XSEG_OK)
        *out = share;
    else
        xseg_share_free(&share);
    return status;
}
