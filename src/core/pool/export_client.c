/* SPDX-License-Identifier: MIT */
#include "src/core/pool/export_client.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <unistd.h>

#include "src/base/check.h"
#include "src/base/clock.h"
#include "src/base/error.h"
#include "src/base/mutex.h"

/* Time for the exporter to answer, in total. */
#define TIMEOUT_MS 10000u
#define MS         UINT64_C(1000000)

struct client {
    int socket;
    struct xseg_export_fields token;
    uint64_t deadline;
};

/* --- The connection. --- */

static xseg_status connect_to(struct client *client)
{
    const struct timeval timeout = {.tv_sec = TIMEOUT_MS / 1000};
    struct sockaddr_un address;
    const socklen_t length = xseg_export_address(client->token.exporter, &address);
    struct ucred exporter;
    int result;

    /* The timeout bounds connect(), which waits while the exporter's backlog is full. */
    (void)setsockopt(client->socket, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof(timeout));
    do
        result = connect(client->socket, (const struct sockaddr *)&address, length);
    while (result != 0 && errno == EINTR && xseg_clock_system() < client->deadline);
    if (result != 0)
        return xseg_fail(XSEG_ERR_FILE,
                         "exporter cannot be reached, process %" PRIu32
                         ", %s; the process must run with an open allocator in the same network "
                         "namespace (container)",
                         client->token.process, strerror(errno));
    if (!xseg_export_peer(client->socket, &exporter))
        return xseg_fail(XSEG_ERR_FILE,
                         "exporter runs as another user, process %" PRIu32
                         "; run both processes as one user",
                         client->token.process);
    /* A forked child of an exporter that has ended keeps the socket open, and does not answer. */
    if (exporter.pid > 0 && kill(exporter.pid, 0) != 0 && errno == ESRCH)
        return xseg_fail(XSEG_ERR_FILE,
                         "exporter has ended, process %" PRIu32
                         "; export the memory from a running process",
                         client->token.process);
    return XSEG_OK;
}

static xseg_status fail_closed(const struct client *client)
{
    return xseg_fail(XSEG_ERR_FILE,
                     "exporter closed the connection, process %" PRIu32
                     "; the exporter serves its own user only, until its allocator is closed",
                     client->token.process);
}

static xseg_status fail_reply(const struct client *client, const char *what, uint64_t value)
{
    return xseg_fail(XSEG_ERR_FILE,
                     "reply of process %" PRIu32 " is invalid, %s %" PRIu64
                     "; run the same version of xseg in both processes",
                     client->token.process, what, value);
}

/* Wait for a reply. */
static xseg_status wait_reply(const struct client *client)
{
    struct pollfd wait = {.fd = client->socket, .events = POLLIN};

    for (uint64_t now = xseg_clock_system(); now < client->deadline; now = xseg_clock_system()) {
        const int ready = poll(&wait, 1, (int)((client->deadline - now + MS - 1) / MS));

        if (ready > 0)
            return XSEG_OK;
        if (ready < 0 && errno != EINTR)
            break;
    }
    return xseg_fail(XSEG_ERR_FILE,
                     "exporter did not reply within %u ms, process %" PRIu32
                     "; check whether that process is stopped",
                     TIMEOUT_MS, client->token.process);
}

/* Move the descriptors of a message into fd[]; returns how many there are. */
static size_t take_files(struct msghdr *message, int fd[XSEG_EXPORT_BATCH])
{
    size_t count = 0;

    for (struct cmsghdr *at = CMSG_FIRSTHDR(message); at != NULL; at = CMSG_NXTHDR(message, at)) {
        if (at->cmsg_level != SOL_SOCKET || at->cmsg_type != SCM_RIGHTS)
            continue;
        const size_t more = (at->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        XSEG_ASSERT(count + more <= XSEG_EXPORT_BATCH);
        memcpy(fd + count, CMSG_DATA(at), more * sizeof(int));
        count += more;
    }
    return count;
}

/* Receive a reply, with `*count` descriptors, which the caller closes also on an error. */
static xseg_status receive(const struct client *client, struct xseg_export_reply *reply,
                           int fd[XSEG_EXPORT_BATCH], size_t *count)
{
    _Alignas(struct cmsghdr) char control[CMSG_SPACE(XSEG_EXPORT_BATCH * sizeof(int))];
    struct iovec data = {reply, sizeof(*reply)};
    struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1};
    xseg_status status = wait_reply(client);

    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    if (status != XSEG_OK)
        return status;
    const ssize_t size = recvmsg(client->socket, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (size <= 0)
        return fail_closed(client);
    *count = take_files(&message, fd);
    if (size != (ssize_t)sizeof(*reply) || (message.msg_flags & MSG_TRUNC) != 0)
        return fail_reply(client, "size", (uint64_t)size);
    if ((message.msg_flags & MSG_CTRUNC) != 0)
        return xseg_fail(XSEG_ERR_FILE,
                         "too many open files, %zu of %" PRIu32
                         " descriptors received; raise ulimit -n",
                         *count, reply->count);
    if (reply->status != XSEG_OK) {
        reply->why[sizeof(reply->why) - 1] = '\0';
        return xseg_fail(reply->status == (uint32_t)XSEG_ERR_NOT_ALLOCATED ? XSEG_ERR_NOT_ALLOCATED
                                                                           : XSEG_ERR_DRIVER,
                         "exporter failed, %s", reply->why);
    }
    return *count == reply->count && *count != 0
               ? XSEG_OK
               : fail_reply(client, "descriptors", (uint64_t)*count);
}

/* --- The run. --- */

/* Check the size of a run before memory is allocated for it: each page needs a descriptor. */
static xseg_status check_count(const struct client *client, uint64_t count)
{
    struct rlimit limit;

    if (count == 0 || count > client->token.size / 4096)
        return fail_reply(client, "pages", count);
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || count <= limit.rlim_cur)
        return XSEG_OK;
    return xseg_fail(XSEG_ERR_FILE,
                     "run has more pages than the limit of file descriptors, %" PRIu64
                     " pages, limit %" PRIu64 "; raise ulimit -n",
                     count, (uint64_t)limit.rlim_cur);
}

/* Move the pages of a reply into the run; the descriptors belong to the run then. */
static xseg_status add_pages(const struct client *client, const struct xseg_export_reply *reply,
                             const int *fd, uint64_t *size, struct xseg_export_pages *pages,
                             size_t *had)
{
    if (reply->count > pages->count - *had)
        return fail_reply(client, "pages", reply->page_count);
    for (uint32_t i = 0; i < reply->count; i++) {
        if (reply->page_size[i] == 0 || reply->page_size[i] > client->token.size - *size)
            return fail_reply(client, "page size", reply->page_size[i]);
        pages->handle[*had + i].offset = *size;
        pages->handle[*had + i].size = reply->page_size[i];
        *size += reply->page_size[i];
    }
    for (uint32_t i = 0; i < reply->count; i++)
        pages->handle[*had + i].fd = fd[i];
    *had += reply->count;
    return XSEG_OK;
}

/* Make the empty run that the first reply describes. */
static xseg_status begin_pages(const struct client *client, const struct xseg_export_reply *reply,
                               struct xseg_export_pages *pages)
{
    const xseg_status status = check_count(client, reply->page_count);

    if (status != XSEG_OK)
        return status;
    pages->handle = calloc((size_t)reply->page_count, sizeof(*pages->handle));
    if (pages->handle == NULL)
        return xseg_fail(XSEG_ERR_HOST_MEMORY, "out of host memory, handles of %" PRIu64 " pages",
                         reply->page_count);
    pages->count = (size_t)reply->page_count;
    memcpy(pages->device, reply->device, sizeof(pages->device));
    for (size_t i = 0; i < pages->count; i++)
        pages->handle[i].fd = -1;
    return XSEG_OK;
}

/* Receive replies until the run is complete. */
static xseg_status receive_run(const struct client *client, struct xseg_export_pages *pages)
{
    struct xseg_export_reply reply;
    int fd[XSEG_EXPORT_BATCH];
    uint64_t size = 0;
    size_t had = 0;
    xseg_status status = XSEG_OK;

    do {
        size_t count = 0;
        const size_t before = had;

        status = receive(client, &reply, fd, &count);
        if (status == XSEG_OK && pages->handle == NULL)
            status = begin_pages(client, &reply, pages);
        if (status == XSEG_OK)
            status = add_pages(client, &reply, fd, &size, pages, &had);
        for (size_t i = had - before; i < count; i++)
            (void)close(fd[i]);
    } while (status == XSEG_OK && had < pages->count);
    if (status == XSEG_OK && size != client->token.size)
        status = fail_reply(client, "run size", size);
    return status;
}

xseg_status xseg_export_fetch(const struct xseg_export_token *token, struct xseg_export_pages *out)
{
    struct client client = {.deadline = xseg_clock_system() + TIMEOUT_MS * MS};
    struct xseg_export_pages pages = {.count = 0};
    xseg_status status = xseg_export_token_read(token, &client.token);

    XSEG_ASSERT(!xseg_lock_rank_is_any_held());
    if (status != XSEG_OK)
        return status;
    client.socket = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (client.socket < 0)
        return xseg_fail(XSEG_ERR_FILE, "socket failed, %s; raise ulimit -n", strerror(errno));
    status = connect_to(&client);
    if (status == XSEG_OK &&
        send(client.socket, token, sizeof(*token), MSG_NOSIGNAL) != (ssize_t)sizeof(*token))
        status = fail_closed(&client);
    if (status == XSEG_OK)
        status = receive_run(&client, &pages);
    (void)close(client.socket);
    if (status == XSEG_OK)
        *out = pages;
    else
        xseg_export_pages_end(&pages);
    return status;
}

void xseg_export_pages_end(struct xseg_export_pages *pages)
{
    for (size_t i = 0; i < pages->count; i++)
        if (pages->handle[i].fd >= 0)
            (void)close(pages->handle[i].fd);
    free(pages->handle);
    *pages = (struct xseg_export_pages){.count = 0};
}
