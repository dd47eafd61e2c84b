/* SPDX-License-Identifier: MIT */
#include "src/core/pool/share.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <unistd.h>

#include "src/base/check.h"
#include "src/base/clock.h"
#include "src/base/error.h"
#include "src/base/mutex.h"

/* The smallest page of any device. */
#define PAGE_MIN UINT64_C(4096)

_Static_assert(sizeof(struct xseg_export_fields) == XSEG_EXPORT_TOKEN_SIZE,
               "the fields fill a token without gaps");

/* Timeouts of the server: for a request, and for each reply. */
#define SERVER_TIMEOUT_S 2
#define BACKLOG          64

/* The server retries accept() after this time if the process has no free descriptor. */
#define ACCEPT_RETRY_MS 10

/* Timeout of the client, in total. */
#define CLIENT_TIMEOUT_MS 10000u

/* --- Protocol. --- */

xseg_status xseg_export_token_read(const struct xseg_export_token *token,
                                   struct xseg_export_fields *out)
{
    struct xseg_export_fields fields;

    memcpy(&fields, token->byte, sizeof(fields));
    if (memcmp(fields.magic, XSEG_EXPORT_MAGIC, sizeof(fields.magic)) != 0)
        return xseg_fail(XSEG_ERR_ARGUMENT,
                         "token is not an export token, first byte 0x%02x; pass all %u bytes "
                         "of the token unchanged",
                         token->byte[0], XSEG_EXPORT_TOKEN_SIZE);
    if (fields.version != XSEG_EXPORT_TOKEN_VERSION)
        return xseg_fail(XSEG_ERR_ARGUMENT,
                         "version of the export token is not supported, %" PRIu32
                         " instead of %u; run the same version of xseg in both processes",
                         fields.version, XSEG_EXPORT_TOKEN_VERSION);
    const bool is_valid =
        fields.kind == XSEG_EXPORT_RUN
            ? fields.offset <= XSEG_EXPORT_BYTES_MAX && fields.offset % PAGE_MIN == 0
            : fields.kind == XSEG_EXPORT_SEGMENT && fields.offset < fields.size;
    if (fields.size == 0 || fields.size > XSEG_EXPORT_BYTES_MAX || fields.size % PAGE_MIN != 0 ||
        !is_valid)
        return xseg_fail(XSEG_ERR_ARGUMENT,
                         "export token is malformed, %" PRIu64 " bytes at offset %" PRIu64
                         "; pass all %u bytes of the token unchanged",
                         fields.size, fields.offset, XSEG_EXPORT_TOKEN_SIZE);
    *out = fields;
    return XSEG_OK;
}

socklen_t xseg_export_address(uint64_t exporter, struct sockaddr_un *out)
{
    memset(out, 0, sizeof(*out));
    out->sun_family = AF_UNIX;
    /* The leading zero byte makes the name abstract. */
    const int length =
        snprintf(out->sun_path + 1, sizeof(out->sun_path) - 1, "xseg-export-%016" PRIx64, exporter);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length);
}

/* Get the process at the other end of a socket; for a client, the process that listens.  Returns
 * false on error, or if the process belongs to another user. */
static bool get_peer(int socket, struct ucred *out)
{
    socklen_t size = sizeof(*out);

    return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, out, &size) == 0 && size == sizeof(*out) &&
           out->uid == geteuid();
}

/* --- Server: requests. --- */

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

/* Limit the send queue to about one reply, because the kernel limits the descriptors in flight
 * (ulimit -n). */
static bool limit_send_queue(int socket)
{
    const struct timeval timeout = {.tv_sec = SERVER_TIMEOUT_S};
    const int size = sizeof(struct xseg_export_reply);

    return setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof(timeout)) == 0 &&
           setsockopt(socket, SOL_SOCKET, SO_SNDBUF, &size, sizeof(size)) == 0;
}

/* Send all pages of a token.  Returns false after an error, or if the client does not receive. */
static bool send_pages(const struct xseg_export_server *server, int socket,
                       const struct xseg_export_token *token)
{
    struct xseg_export_reply reply;
    int fd[XSEG_EXPORT_BATCH];
    uint64_t sent = 0;
    bool is_sent = true;

    do {
        server->fill_reply(server->self, token, sent, &reply, fd);
        XSEG_ASSERT(reply.count <= XSEG_EXPORT_BATCH);
        sent += reply.count;
        is_sent = send_reply(socket, &reply, fd) && reply.count != 0;
        for (uint32_t i = 0; i < reply.count; i++)
            (void)close(fd[i]);
    } while (is_sent && sent < reply.page_count);
    return is_sent;
}

/* Receive the token of a client, and send the pages. */
static bool serve_client(const struct xseg_export_server *server, int socket,
                         struct xseg_export_token *token)
{
    struct xseg_export_fields fields;
    struct ucred client;

    /* MSG_TRUNC: the result is the size of the message, even if it is larger than a token. */
    if (!get_peer(socket, &client) || !limit_send_queue(socket) ||
        !wait_readable(server, socket, SERVER_TIMEOUT_S * 1000) ||
        recv(socket, token, sizeof(*token), MSG_DONTWAIT | MSG_TRUNC) != (ssize_t)sizeof(*token))
        return false;
    memcpy(&fields, token, sizeof(fields));
    if (fields.kind != XSEG_EXPORT_SEGMENT) {
        (void)send_pages(server, socket, token);
        return false;
    }
    /* Without an export, the client gets the error of the first reply. */
    const bool is_counted = server->count_importer(server->self, token, true);
    const bool is_served = send_pages(server, socket, token) && is_counted;
    if (is_counted && !is_served)
        (void)server->count_importer(server->self, token, false);
    return is_served;
}

/* --- Server: connections. --- */

enum { STOP, LISTEN, FIRST_IMPORTER };

static bool add_connection(struct xseg_export_connections *connections, int fd,
                           const struct xseg_export_token *token)
{
    if (connections->count == connections->capacity) {
        const size_t capacity = xseg_max(connections->capacity * 2, 8u);
        void *pollfds = realloc(connections->pollfd, capacity * sizeof(*connections->pollfd));

        connections->pollfd = pollfds != NULL ? pollfds : connections->pollfd;
        void *tokens = realloc(connections->token, capacity * sizeof(*connections->token));
        connections->token = tokens != NULL ? tokens : connections->token;
        if (pollfds == NULL || tokens == NULL)
            return false;
        connections->capacity = capacity;
    }
    connections->pollfd[connections->count] = (struct pollfd){.fd = fd, .events = POLLIN};
    connections->token[connections->count] =
        token != NULL ? *token : (struct xseg_export_token){{0}};
    connections->count++;
    return true;
}

/* An importer sends nothing after its token, so its connection is readable when it is closed. */
static void remove_connection(const struct xseg_export_server *server,
                              struct xseg_export_connections *connections, size_t i)
{
    (void)server->count_importer(server->self, &connections->token[i], false);
    (void)close(connections->pollfd[i].fd);
    connections->count--;
    connections->pollfd[i] = connections->pollfd[connections->count];
    connections->token[i] = connections->token[connections->count];
}

static void accept_client(struct xseg_export_server *server)
{
    const int socket = accept4(server->socket, NULL, NULL, SOCK_CLOEXEC);
    struct xseg_export_token token;

    if (socket < 0) {
        if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED)
            (void)poll(NULL, 0, ACCEPT_RETRY_MS); /* out of descriptors: retry */
        return;
    }
    if (!serve_client(server, socket, &token)) {
        (void)close(socket);
        return;
    }
    /* On host allocation failure the importer is not counted; its mappings stay valid. */
    if (!add_connection(&server->connections, socket, &token)) {
        (void)server->count_importer(server->self, &token, false);
        (void)close(socket);
    }
}

static void *run_server(void *self)
{
    struct xseg_export_server *server = self;
    struct xseg_export_connections *connections = &server->connections;

    for (;;) {
        /* poll() fails if the limit of descriptors was lowered below the number of connections.
         * Then only `stop` is polled, until the limit permits more. */
        if (poll(connections->pollfd, connections->count, -1) < 0 &&
            (errno == EINTR || poll(connections->pollfd, 1, ACCEPT_RETRY_MS) <= 0))
            continue;
        if (connections->pollfd[STOP].revents != 0)
            return NULL;
        for (size_t i = connections->count; i-- > FIRST_IMPORTER;)
            if (connections->pollfd[i].revents != 0)
                remove_connection(server, connections, i);
        if (connections->pollfd[LISTEN].revents != 0)
            accept_client(server);
    }
}

/* --- Server: start and stop. --- */

static xseg_status open_server_socket(struct xseg_export_server *server, uint64_t exporter)
{
    struct sockaddr_un address;
    const socklen_t length = xseg_export_address(exporter, &address);

    server->stop = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    server->socket = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (!add_connection(&server->connections, server->stop, NULL) ||
        !add_connection(&server->connections, server->socket, NULL))
        return xseg_fail(XSEG_ERR_HOST_MEMORY, "out of host memory, connections of importers");
    if (server->stop >= 0 && server->socket >= 0 &&
        bind(server->socket, (const struct sockaddr *)&address, length) == 0 &&
        listen(server->socket, BACKLOG) == 0)
        return XSEG_OK;
    return xseg_fail(XSEG_ERR_FILE, "socket for importers failed, %s; see ulimit -n",
                     strerror(errno));
}

static int start_server_thread(struct xseg_export_server *server)
{
    sigset_t all, previous;

    /* The program's own threads handle its signals. */
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &previous);
    const int error = pthread_create(&server->thread, NULL, run_server, server);
    (void)pthread_sigmask(SIG_SETMASK, &previous, NULL);
    return error;
}

static void close_sockets(struct xseg_export_server *server)
{
    struct xseg_export_connections *connections = &server->connections;

    if (server->socket >= 0)
        (void)close(server->socket);
    if (server->stop >= 0)
        (void)close(server->stop);
    for (size_t i = FIRST_IMPORTER; i < connections->count; i++)
        (void)close(connections->pollfd[i].fd);
    free(connections->pollfd);
    free(connections->token);
    *connections = (struct xseg_export_connections){.count = 0};
}

xseg_status xseg_export_server_start(struct xseg_export_server *server, uint64_t exporter)
{
    XSEG_ASSERT(server->fill_reply != NULL);
    if (server->is_running)
        return XSEG_OK;
    xseg_status status = open_server_socket(server, exporter);
    const int error = status == XSEG_OK ? start_server_thread(server) : 0;
    if (error != 0)
        status =
            xseg_fail(XSEG_ERR_HOST_MEMORY, "thread for importers did not start, %s; see ulimit -u",
                      strerror(error));
    if (status != XSEG_OK) {
        close_sockets(server);
        return status;
    }
    (void)pthread_setname_np(server->thread, "xseg-export");
    server->is_running = true;
    return XSEG_OK;
}

void xseg_export_server_stop(struct xseg_export_server *server)
{
    const uint64_t increment = 1;

    if (!server->is_running)
        return;
    while (write(server->stop, &increment, sizeof(increment)) < 0 && errno == EINTR)
        continue;
    (void)pthread_join(server->thread, NULL);
    /* A forked child keeps the socket open but has no server thread: reject all clients. */
    (void)shutdown(server->socket, SHUT_RDWR);
    for (int socket; (socket = accept4(server->socket, NULL, NULL, SOCK_CLOEXEC)) >= 0;)
        (void)close(socket);
    close_sockets(server);
    server->is_running = false;
}

/* --- Client: connection. --- */

struct client {
    int socket;
    struct xseg_export_fields token;
    uint64_t deadline;
};

static xseg_status connect_to_exporter(struct client *client)
{
    const struct timeval timeout = {.tv_sec = CLIENT_TIMEOUT_MS / 1000};
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
                         client->token.pid, strerror(errno));
    if (!get_peer(client->socket, &exporter))
        return xseg_fail(XSEG_ERR_FILE,
                         "exporter runs as another user, process %" PRIu32
                         "; run both processes as one user",
                         client->token.pid);
    /* A forked child keeps the socket of a terminated exporter open, and does not reply. */
    if (exporter.pid > 0 && kill(exporter.pid, 0) != 0 && errno == ESRCH)
        return xseg_fail(XSEG_ERR_FILE,
                         "exporter has ended, process %" PRIu32
                         "; export the memory from a running process",
                         client->token.pid);
    return XSEG_OK;
}

static xseg_status fail_connection_closed(const struct client *client)
{
    return xseg_fail(XSEG_ERR_FILE,
                     "exporter closed the connection, process %" PRIu32
                     "; the exporter serves its own user only, until its allocator is closed",
                     client->token.pid);
}

static xseg_status fail_invalid_reply(const struct client *client, const char *field,
                                      uint64_t value)
{
    return xseg_fail(XSEG_ERR_FILE,
                     "reply of process %" PRIu32 " is invalid, %s %" PRIu64
                     "; run the same version of xseg in both processes",
                     client->token.pid, field, value);
}

static xseg_status wait_for_reply(const struct client *client)
{
    struct pollfd wait = {.fd = client->socket, .events = POLLIN};

    for (uint64_t now = xseg_clock_system(); now < client->deadline; now = xseg_clock_system()) {
        const int ready = poll(
            &wait, 1, (int)((client->deadline - now + XSEG_MILLISECOND - 1) / XSEG_MILLISECOND));

        if (ready > 0)
            return XSEG_OK;
        if (ready < 0 && errno != EINTR)
            break;
    }
    return xseg_fail(XSEG_ERR_FILE,
                     "exporter did not reply within %u ms, process %" PRIu32
                     "; check whether that process is stopped",
                     CLIENT_TIMEOUT_MS, client->token.pid);
}

/* Move the descriptors of a message into fd[].  Returns the number of descriptors. */
static size_t read_descriptors(struct msghdr *message, int fd[XSEG_EXPORT_BATCH])
{
    size_t count = 0;

    for (struct cmsghdr *header = CMSG_FIRSTHDR(message); header != NULL;
         header = CMSG_NXTHDR(message, header)) {
        if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS)
            continue;
        const size_t received = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        XSEG_ASSERT(count + received <= XSEG_EXPORT_BATCH);
        memcpy(fd + count, CMSG_DATA(header), received * sizeof(int));
        count += received;
    }
    return count;
}

/* Receive a reply with `*count` descriptors, which the caller closes also after an error. */
static xseg_status receive_reply(const struct client *client, struct xseg_export_reply *reply,
                                 int fd[XSEG_EXPORT_BATCH], size_t *count)
{
    _Alignas(struct cmsghdr) char control[CMSG_SPACE(XSEG_EXPORT_BATCH * sizeof(int))];
    struct iovec data = {reply, sizeof(*reply)};
    struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1};
    xseg_status status = wait_for_reply(client);

    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    if (status != XSEG_OK)
        return status;
    const ssize_t size = recvmsg(client->socket, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (size <= 0)
        return fail_connection_closed(client);
    *count = read_descriptors(&message, fd);
    if (size != (ssize_t)sizeof(*reply) || (message.msg_flags & MSG_TRUNC) != 0)
        return fail_invalid_reply(client, "size", (uint64_t)size);
    if ((message.msg_flags & MSG_CTRUNC) != 0)
        return xseg_fail(XSEG_ERR_FILE,
                         "too many open files, %zu of %" PRIu32
                         " descriptors received; raise ulimit -n",
                         *count, reply->count);
    if (reply->status != XSEG_OK) {
        reply->error[sizeof(reply->error) - 1] = '\0';
        return xseg_fail(reply->status == (uint32_t)XSEG_ERR_NOT_ALLOCATED ? XSEG_ERR_NOT_ALLOCATED
                                                                           : XSEG_ERR_DRIVER,
                         "exporter failed, %s", reply->error);
    }
    return *count == reply->count && *count != 0
               ? XSEG_OK
               : fail_invalid_reply(client, "descriptors", (uint64_t)*count);
}

/* --- Client: pages. --- */

/* Check the size of a run before memory is allocated for it: each page needs a descriptor. */
static xseg_status check_page_count(const struct client *client, uint64_t count)
{
    struct rlimit limit;

    if (count == 0 || count > client->token.size / PAGE_MIN)
        return fail_invalid_reply(client, "pages", count);
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || count <= limit.rlim_cur)
        return XSEG_OK;
    return xseg_fail(XSEG_ERR_FILE,
                     "export has more pages than the limit of file descriptors, %" PRIu64
                     " pages, limit %" PRIu64 "; raise ulimit -n",
                     count, (uint64_t)limit.rlim_cur);
}

/* Move the pages of a reply into the list.  Ownership of the descriptors passes to the list.
 * end: the end of the last page; the pages of a run follow each other without gaps */
static xseg_status add_reply_pages(const struct client *client,
                                   const struct xseg_export_reply *reply, const int *fd,
                                   uint64_t *end, struct xseg_export_pages *pages, size_t *received)
{
    const bool has_gaps = client->token.kind == XSEG_EXPORT_SEGMENT;

    if (reply->count > pages->count - *received)
        return fail_invalid_reply(client, "pages", reply->page_count);
    for (uint32_t i = 0; i < reply->count; i++) {
        const uint64_t offset = reply->page[i].offset, size = reply->page[i].size;

        if (has_gaps ? offset < *end : offset != *end)
            return fail_invalid_reply(client, "page offset", offset);
        if (size == 0 || offset > client->token.size || size > client->token.size - offset)
            return fail_invalid_reply(client, "page size", size);
        pages->handle[*received + i].offset = offset;
        pages->handle[*received + i].size = size;
        *end = offset + size;
    }
    for (uint32_t i = 0; i < reply->count; i++)
        pages->handle[*received + i].fd = fd[i];
    *received += reply->count;
    return XSEG_OK;
}

/* Allocate the list that the first reply describes. */
static xseg_status allocate_pages(const struct client *client,
                                  const struct xseg_export_reply *reply,
                                  struct xseg_export_pages *pages)
{
    const xseg_status status = check_page_count(client, reply->page_count);

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

/* Receive replies until the list is complete. */
static xseg_status receive_pages(const struct client *client, struct xseg_export_pages *pages)
{
    struct xseg_export_reply reply;
    int fd[XSEG_EXPORT_BATCH];
    uint64_t end = 0;
    size_t received = 0;
    xseg_status status = XSEG_OK;

    do {
        size_t count = 0;
        const size_t received_before = received;

        status = receive_reply(client, &reply, fd, &count);
        if (status == XSEG_OK && pages->handle == NULL)
            status = allocate_pages(client, &reply, pages);
        if (status == XSEG_OK)
            status = add_reply_pages(client, &reply, fd, &end, pages, &received);
        for (size_t i = received - received_before; i < count; i++)
            (void)close(fd[i]);
    } while (status == XSEG_OK && received < pages->count);
    if (status == XSEG_OK && end != client->token.size)
        status = fail_invalid_reply(client, "end of the last page", end);
    return status;
}

xseg_status xseg_export_resolve(const struct xseg_export_token *token,
                                struct xseg_export_pages *out)
{
    struct client client = {.deadline = xseg_clock_system() + CLIENT_TIMEOUT_MS * XSEG_MILLISECOND};
    struct xseg_export_pages pages = {.connection = -1};
    xseg_status status = xseg_export_token_read(token, &client.token);

    XSEG_ASSERT(!xseg_lock_rank_is_any_held());
    if (status != XSEG_OK)
        return status;
    client.socket = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (client.socket < 0)
        return xseg_fail(XSEG_ERR_FILE, "socket failed, %s; raise ulimit -n", strerror(errno));
    status = connect_to_exporter(&client);
    if (status == XSEG_OK &&
        send(client.socket, token, sizeof(*token), MSG_NOSIGNAL) != (ssize_t)sizeof(*token))
        status = fail_connection_closed(&client);
    if (status == XSEG_OK)
        status = receive_pages(&client, &pages);
    if (status == XSEG_OK && client.token.kind == XSEG_EXPORT_SEGMENT)
        pages.connection = client.socket;
    else
        (void)close(client.socket);
    if (status == XSEG_OK)
        *out = pages;
    else
        xseg_export_pages_close(&pages);
    return status;
}

void xseg_export_pages_close(struct xseg_export_pages *pages)
{
    for (size_t i = 0; i < pages->count; i++)
        if (pages->handle[i].fd >= 0)
            (void)close(pages->handle[i].fd);
    if (pages->connection >= 0)
        (void)close(pages->connection);
    free(pages->handle);
    *pages = (struct xseg_export_pages){.connection = -1};
}
