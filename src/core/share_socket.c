/* SPDX-License-Identifier: MIT */
/* Of share.h: the share itself, and how it goes over a socket. */
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "src/base/error.h"
#include "src/core/share.h"

/* That one message carries; Linux takes 253. */
#define BATCH 250u

/* No device has more addresses, and no process more descriptors (fs.nr_open). */
#define BYTES_MAX (UINT64_C(1) << 47)
#define PAGES_MAX (UINT64_C(1) << 20)

/* --- Making and reading. --- */

bool xseg_share_make(struct xseg_share *share, uint64_t pages)
{
    const size_t bytes = sizeof(struct xseg_share_header) + (size_t)pages * sizeof(uint64_t);
    int *file = malloc((size_t)pages * sizeof(*file));

    *share = (struct xseg_share)XSEG_SHARE_INIT;
    share->header = calloc(1, bytes);
    if (share->header == NULL || file == NULL) {
        free(file);
        xseg_share_free(share);
        return false;
    }
    for (size_t i = 0; i < pages; i++)
        file[i] = -1;
    share->header_bytes = bytes;
    share->fd = file;
    share->fd_count = (size_t)pages;
    return true;
}

void xseg_share_free(struct xseg_share *share)
{
    for (size_t i = 0; i < share->fd_count; i++)
        if (share->fd[i] >= 0)
            (void)close(share->fd[i]);
    free(xseg_share_fds(share));
    free(xseg_share_head(share));
    *share = (struct xseg_share)XSEG_SHARE_INIT;
}

/* What can be said of the fixed part alone. */
static xseg_status check_fixed(const struct xseg_share_header *header)
{
    if (memcmp(header->magic, XSEG_SHARE_MAGIC, sizeof(header->magic)) != 0)
        return xseg_fail(XSEG_ERR_ARGUMENT, "this is no header of a share: it does not begin with "
                                            "\"" XSEG_SHARE_MAGIC "\"");
    if (header->version != XSEG_SHARE_VERSION || header->kind != XSEG_SHARE_FD)
        return xseg_fail(XSEG_ERR_ARGUMENT,
                         "a share of version %" PRIu32 " and kind %" PRIu32
                         ": this library knows version %u and kind %d",
                         header->version, header->kind, XSEG_SHARE_VERSION, XSEG_SHARE_FD);
    if (header->page_count == 0 || header->page_count > PAGES_MAX ||
        header->header_bytes != sizeof(*header) + header->page_count * sizeof(uint64_t))
        return xseg_fail(XSEG_ERR_ARGUMENT,
                         "a share of %" PRIu64 " pages with a header of %" PRIu64 " bytes",
                         header->page_count, header->header_bytes);
    return XSEG_OK;
}

/* Whether the block lies in the pages. */
static xseg_status check_block(const struct xseg_share_header *header, const char *table)
{
    uint64_t all = 0, first = 0;

    for (uint64_t i = 0; i < header->page_count; i++) {
        uint64_t bytes;

        memcpy(&bytes, table + i * sizeof(bytes), sizeof(bytes));
        if (bytes == 0 || bytes > BYTES_MAX || all > BYTES_MAX)
            return xseg_fail(XSEG_ERR_ARGUMENT,
                             "page %" PRIu64 " of the share has %" PRIu64 " bytes", i, bytes);
        all += bytes;
        first = i == 0 ? bytes : first;
    }
    if (header->block_offset < first && header->block_bytes != 0 &&
        header->requested_bytes <= header->block_bytes &&
        header->block_bytes <= all - header->block_offset)
        return XSEG_OK;
    return xseg_fail(XSEG_ERR_ARGUMENT,
                     "the share's block of %" PRIu64 " bytes at %" PRIu64
                     " does not lie in its %" PRIu64 " bytes",
                     header->block_bytes, header->block_offset, all);
}

xseg_status xseg_share_read(const void *header, size_t bytes, struct xseg_share_header *out)
{
    if (header == NULL || bytes < sizeof(*out))
        return xseg_fail(XSEG_ERR_ARGUMENT, "a header of %zu bytes: %zu are the least", bytes,
                         sizeof(*out) + sizeof(uint64_t));
    memcpy(out, header, sizeof(*out));
    const xseg_status status = check_fixed(out);
    if (status != XSEG_OK)
        return status;
    if (bytes < out->header_bytes)
        return xseg_fail(XSEG_ERR_ARGUMENT, "%zu of the %" PRIu64 " bytes of a header", bytes,
                         out->header_bytes);
    return check_block(out, (const char *)header + sizeof(*out));
}

/* --- Over a socket: the header, then a byte for each batch of descriptors. --- */

static xseg_status fail_socket(const char *what)
{
    return xseg_fail(XSEG_ERR_FILE, "a share could not be %s: %s", what, strerror(errno));
}

/* After a call that did not get through: whether to make it again. */
static bool may_repeat(int socket, short events)
{
    struct pollfd wait = {.fd = socket, .events = events};

    if (errno == EINTR)
        return true;
    return (errno == EAGAIN || errno == EWOULDBLOCK) && (poll(&wait, 1, -1) > 0 || errno == EINTR);
}

static xseg_status send_bytes(int socket, const char *bytes, size_t count)
{
    while (count > 0) {
        const ssize_t sent = send(socket, bytes, count, MSG_NOSIGNAL);

        if (sent < 0 && !may_repeat(socket, POLLOUT))
            return fail_socket("sent");
        if (sent > 0) {
            bytes += sent;
            count -= (size_t)sent;
        }
    }
    return XSEG_OK;
}

static xseg_status receive_bytes(int socket, char *bytes, size_t count)
{
    while (count > 0) {
        const ssize_t received = recv(socket, bytes, count, 0);

        if (received == 0)
            return xseg_fail(XSEG_ERR_FILE, "the socket ended within a share");
        if (received < 0 && !may_repeat(socket, POLLIN))
            return fail_socket("received");
        if (received > 0) {
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
    memset(message, 0, sizeof(*message));
    message->data = (struct iovec){&message->byte, 1};
    message->head.msg_iov = &message->data;
    message->head.msg_iovlen = 1;
    message->head.msg_control = message->control;
    message->head.msg_controllen = CMSG_SPACE(count * sizeof(int));
}

static xseg_status send_batch(int socket, const int *file, size_t count)
{
    struct message message;

    begin_message(&message, count);
    struct cmsghdr *control = CMSG_FIRSTHDR(&message.head);
    control->cmsg_level = SOL_SOCKET;
    control->cmsg_type = SCM_RIGHTS;
    control->cmsg_len = CMSG_LEN(count * sizeof(int));
    memcpy(CMSG_DATA(control), file, count * sizeof(int));
    while (sendmsg(socket, &message.head, MSG_NOSIGNAL) != 1)
        if (!may_repeat(socket, POLLOUT))
            return fail_socket("sent");
    return XSEG_OK;
}

/* Take the descriptors of a message: as many as there is room for, the rest is closed.  Returns how
 * many came. */
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

static xseg_status receive_batch(int socket, int *file, size_t count)
{
    struct message message;
    ssize_t received;

    do {
        begin_message(&message, BATCH);
        received = recvmsg(socket, &message.head, MSG_CMSG_CLOEXEC);
    } while (received < 0 && may_repeat(socket, POLLIN));
    if (received < 0)
        return fail_socket("received");
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
    struct xseg_share_header header = {.version = 0};
    xseg_status status = xseg_share_read(share->header, share->header_bytes, &header);

    if (status == XSEG_OK && header.page_count != share->fd_count)
        status = xseg_fail(XSEG_ERR_ARGUMENT, "a share of %" PRIu64 " pages with %zu descriptors",
                           header.page_count, share->fd_count);
    if (status == XSEG_OK)
        status = send_bytes(socket, (const char *)share->header, (size_t)header.header_bytes);
    for (size_t at = 0; at < share->fd_count && status == XSEG_OK; at += BATCH)
        status = send_batch(socket, share->fd + at,
                            share->fd_count - at < BATCH ? share->fd_count - at : BATCH);
    return status;
}

/* The rest of a share whose header has come. */
static xseg_status fetch_rest(int socket, const struct xseg_share_header *header,
                              struct xseg_share *share)
{
    struct xseg_share_header checked;
    char *place = (char *)xseg_share_head(share);

    memcpy(place, header, sizeof(*header));
    xseg_status status =
        receive_bytes(socket, place + sizeof(*header), share->header_bytes - sizeof(*header));
    for (size_t at = 0; at < share->fd_count && status == XSEG_OK; at += BATCH)
        status = receive_batch(socket, xseg_share_fds(share) + at,
                               share->fd_count - at < BATCH ? share->fd_count - at : BATCH);
    return status == XSEG_OK ? xseg_share_read(place, share->header_bytes, &checked) : status;
}

xseg_status xseg_share_fetch(int socket, struct xseg_share *out)
{
    struct xseg_share_header header = {.version = 0};
    struct xseg_share share;
    xseg_status status = receive_bytes(socket, (char *)&header, sizeof(header));

    if (status == XSEG_OK)
        status = check_fixed(&header);
    if (status != XSEG_OK)
        return status;
    if (!xseg_share_make(&share, header.page_count))
        return xseg_fail(XSEG_ERR_HOST_MEMORY, "no host memory for a share of %" PRIu64 " pages",
                         header.page_count);
    status = fetch_rest(socket, &header, &share);
    if (status == XSEG_OK)
        *out = share;
    else
        xseg_share_free(&share);
    return status;
}
