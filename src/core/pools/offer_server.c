/* SPDX-License-Identifier: MIT */
#include "src/core/pools/offer_server.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "src/base/check.h"
#include "src/base/clock.h"
#include "src/base/error.h"

#define PATIENCE_S  2
#define PATIENCE_MS (PATIENCE_S * 1000)
#define NAP_MS      10
#define BACKLOG     64
#define MS          UINT64_C(1000000)

static uint64_t now(void)
{
    return xseg_clock_fine(&(const struct xseg_clock){NULL, NULL});
}

/* Receive a whole request in time. */
static bool receive(int socket, struct xseg_offer_request *request)
{
    const uint64_t deadline = now() + PATIENCE_MS * MS;
    char *bytes = (char *)request;
    size_t came = 0;

    for (uint64_t time = now(); came < sizeof(*request) && time < deadline; time = now()) {
        struct pollfd wait = {.fd = socket, .events = POLLIN};
        const ssize_t got = recv(socket, bytes + came, sizeof(*request) - came, MSG_DONTWAIT);

        if (got > 0)
            came += (size_t)got;
        else if (got == 0 || (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR))
            return false;
        else
            (void)poll(&wait, 1, (int)((deadline - time + MS - 1) / MS));
    }
    return came == sizeof(*request) &&
           memcmp(request->magic, XSEG_OFFER_REQUEST, sizeof(request->magic)) == 0;
}

static void serve(const struct xseg_offer_server *server, int socket)
{
    const struct timeval patience = {.tv_sec = PATIENCE_S};
    struct xseg_offer_request request;

    if (xseg_offer_form_is_own(socket) &&
        setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience)) == 0 &&
        receive(socket, &request))
        server->answer(server->self, socket, &request.token);
    (void)close(socket);
}

static void *run(void *self)
{
    const struct xseg_offer_server *server = self;
    struct pollfd wait[2] = {{.fd = server->wake, .events = POLLIN},
                             {.fd = server->socket, .events = POLLIN}};

    for (;;) {
        if (poll(wait, 2, -1) < 0 && errno != EINTR)
            (void)poll(wait, 1, NAP_MS);
        if ((wait[0].revents & POLLIN) != 0)
            return NULL;
        const int socket = accept4(server->socket, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (socket >= 0)
            serve(server, socket);
        else if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED)
            (void)poll(wait, 1, NAP_MS); /* out of descriptors: some may be closed soon */
    }
}

/* --- Starting and ending. --- */

static xseg_status open_socket(struct xseg_offer_server *server)
{
    struct sockaddr_un address;

    if (getrandom(&server->number, sizeof(server->number), 0) != (ssize_t)sizeof(server->number))
        return xseg_fail(XSEG_ERR_FILE, "the system has no random number for a socket: %s",
                         strerror(errno));
    server->process = getpid();
    server->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    server->socket = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    const socklen_t bytes = xseg_offer_form_address(server->process, server->number, &address);
    if (server->wake >= 0 && server->socket >= 0 &&
        bind(server->socket, (const struct sockaddr *)&address, bytes) == 0 &&
        listen(server->socket, BACKLOG) == 0)
        return XSEG_OK;
    return xseg_fail(XSEG_ERR_FILE, "the system gives no socket to serve exports at: %s",
                     strerror(errno));
}

static void close_files(const struct xseg_offer_server *server)
{
    if (server->socket >= 0)
        (void)close(server->socket);
    if (server->wake >= 0)
        (void)close(server->wake);
}

/* Refuse all who come, also where a forked child has the socket as well: it would take them, and never answer. */
static void stop_listening(const struct xseg_offer_server *server)
{
    int waiting;

    (void)shutdown(server->socket, SHUT_RDWR);
    while ((waiting = accept4(server->socket, NULL, NULL, SOCK_CLOEXEC)) >= 0)
        (void)close(waiting);
}

static int start_thread(struct xseg_offer_server *server)
{
    sigset_t all, before;

    /* Signals of the program are handled by its own threads. */
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    const int error = pthread_create(&server->thread, NULL, run, server);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}

xseg_status xseg_offer_server_start(struct xseg_offer_server *server)
{
    xseg_status status;

    XSEG_ASSERT(server->answer != NULL);
    if (server->runs)
        return XSEG_OK;
    server->socket = server->wake = -1;
    status = open_socket(server);
    if (status != XSEG_OK)
        goto close_files;
    const int error = start_thread(server);
    if (error != 0) {
        status = xseg_fail(XSEG_ERR_HOST_MEMORY,
                           "the system gives no thread to serve exports (error %d)", error);
        goto close_files;
    }
    (void)pthread_setname_np(server->thread, "xseg-share");
    server->runs = true;
    return XSEG_OK;

close_files:
    close_files(server);
    return status;
}

void xseg_offer_server_end(struct xseg_offer_server *server)
{
    const uint64_t one = 1;

    if (!server->runs)
        return;
    while (write(server->wake, &one, sizeof(one)) < 0 && errno == EINTR)
        continue;
    (void)pthread_join(server->thread, NULL);
    stop_listening(server);
    close_files(server);
    server->runs = false;
}
