/* SPDX-License-Identifier: MIT */
#include "src/core/pool/export_server.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/time.h>
#include <unistd.h>

#include "src/base/check.h"
#include "src/base/error.h"

#define TIMEOUT_S 2
#define BACKLOG   64

/* The server retries accept() after this time if the process has no free descriptor. */
#define PAUSE_MS 10

/* --- Answering. --- */

/* Wait until a descriptor is readable.  Returns false on a timeout, or if the server must stop. */
static bool wait_readable(const struct xseg_export_server *server, int fd, int milliseconds)
{
    struct pollfd wait[2] = {{.fd = server->stop, .events = POLLIN}, {.fd = fd, .events = POLLIN}};

    while (poll(wait, 2, milliseconds) < 0 && errno == EINTR)
        continue;
    return wait[0].revents == 0 && wait[1].revents != 0;
}

static bool send_reply(int socket, const struct xseg_export_reply *reply, const int *fd)
{
    _Alignas(struct cmsghdr) char control[CMSG_SPACE(XSEG_EXPORT_BATCH * sizeof(int))] = {0};
    struct iovec data = {(void *)(uintptr_t)reply,
                         sizeof(*reply)}; /* NOLINT(performance-no-int-to-ptr) */
    struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1};

    if (reply->count != 0) {
        message.msg_control = control;
        message.msg_controllen = CMSG_SPACE(reply->count * sizeof(int));
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(reply->count * sizeof(int));
        memcpy(CMSG_DATA(header), fd, reply->count * sizeof(int));
    }
    return sendmsg(socket, &message, MSG_NOSIGNAL) == (ssize_t)sizeof(*reply);
}

/* Bound what is sent and not yet received to about one reply: the kernel limits the descriptors in flight (ulimit -n). */
static bool limit_client(int socket)
{
    const struct timeval timeout = {.tv_sec = TIMEOUT_S};
    const int size = sizeof(struct xseg_export_reply);

    return setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof(timeout)) == 0 &&
           setsockopt(socket, SOL_SOCKET, SO_SNDBUF, &size, sizeof(size)) == 0;
}

/* Send the pages of a run.  Ends with a reply that carries a status, or when the client does not receive. */
static void answer(const struct xseg_export_server *server, int socket,
                   const struct xseg_export_token *token)
{
    struct xseg_export_reply reply;
    int fd[XSEG_EXPORT_BATCH];
    uint64_t sent = 0;
    bool goes_on = true;

    while (goes_on) {
        server->answer(server->self, token, sent, &reply, fd);
        XSEG_ASSERT(reply.count <= XSEG_EXPORT_BATCH);
        sent += reply.count;
        goes_on = send_reply(socket, &reply, fd) && reply.count != 0 && sent < reply.page_count;
        for (uint32_t i = 0; i < reply.count; i++)
            (void)close(fd[i]);
    }
}

static void serve(const struct xseg_export_server *server, int socket)
{
    struct xseg_export_token token;
    struct ucred client;

    /* MSG_TRUNC: the size of the message, also if that is larger than a token. */
    if (xseg_export_peer(socket, &client) && limit_client(socket) &&
        wait_readable(server, socket, TIMEOUT_S * 1000) &&
        recv(socket, &token, sizeof(token), MSG_DONTWAIT | MSG_TRUNC) == (ssize_t)sizeof(token))
        answer(server, socket, &token);
    (void)close(socket);
}

static void *run(void *self)
{
    const struct xseg_export_server *server = self;

    while (wait_readable(server, server->socket, -1)) {
        const int socket = accept4(server->socket, NULL, NULL, SOCK_CLOEXEC);

        if (socket >= 0)
            serve(server, socket);
        else if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED)
            (void)poll(NULL, 0, PAUSE_MS); /* no descriptor is left: retry */
    }
    return NULL;
}

/* --- Start and stop. --- */

static xseg_status open_socket(struct xseg_export_server *server, uint64_t exporter)
{
    struct sockaddr_un address;
    const socklen_t length = xseg_export_address(exporter, &address);

    server->stop = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    server->socket = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (server->stop >= 0 && server->socket >= 0 &&
        bind(server->socket, (const struct sockaddr *)&address, length) == 0 &&
        listen(server->socket, BACKLOG) == 0)
        return XSEG_OK;
    return xseg_fail(XSEG_ERR_FILE, "socket for importers failed, %s; see ulimit -n",
                     strerror(errno));
}

static int start_thread(struct xseg_export_server *server)
{
    sigset_t all, before;

    /* The program's own threads handle its signals. */
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    const int error = pthread_create(&server->thread, NULL, run, server);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}

static void close_files(const struct xseg_export_server *server)
{
    if (server->socket >= 0)
        (void)close(server->socket);
    if (server->stop >= 0)
        (void)close(server->stop);
}

xseg_status xseg_export_server_start(struct xseg_export_server *server, uint64_t exporter)
{
    XSEG_ASSERT(server->answer != NULL);
    if (server->runs)
        return XSEG_OK;
    xseg_status status = open_socket(server, exporter);
    const int error = status == XSEG_OK ? start_thread(server) : 0;
    if (error != 0)
        status =
            xseg_fail(XSEG_ERR_HOST_MEMORY, "thread for importers did not start, %s; see ulimit -u",
                      strerror(error));
    if (status != XSEG_OK) {
        close_files(server);
        return status;
    }
    (void)pthread_setname_np(server->thread, "xseg-export");
    server->runs = true;
    return XSEG_OK;
}

void xseg_export_server_stop(struct xseg_export_server *server)
{
    const uint64_t one = 1;

    if (!server->runs)
        return;
    while (write(server->stop, &one, sizeof(one)) < 0 && errno == EINTR)
        continue;
    (void)pthread_join(server->thread, NULL);
    /* A forked child has the socket as well: refuse all clients, which the child would never answer. */
    (void)shutdown(server->socket, SHUT_RDWR);
    for (int socket; (socket = accept4(server->socket, NULL, NULL, SOCK_CLOEXEC)) >= 0;)
        (void)close(socket);
    close_files(server);
    server->runs = false;
}
