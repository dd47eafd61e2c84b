/* SPDX-License-Identifier: MIT */
/* The client of exports against an exporter that violates the protocol: each violation ends with a status, and no
 * descriptor remains open. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "src/base/clock.h"
#include "src/core/pool/share.h"
#include "tests/support/env.h"

#define PAGE (2 * MIB)

/* NOLINTBEGIN(bugprone-reserved-identifier) */
uint64_t __real_xseg_clock_system(void);
uint64_t __wrap_xseg_clock_system(void);
/* NOLINTEND(bugprone-reserved-identifier) */

static uint64_t clock_step;   /* nanoseconds by which each read of the clock advances it */
static uint64_t clock_offset; /* the sum of these */

uint64_t __wrap_xseg_clock_system(void)
{
    clock_offset += clock_step;
    return __real_xseg_clock_system() + clock_offset;
}

/* The replies of the exporter. */
struct script {
    const char *words; /* of the client's error message */
    xseg_status status;
    uint64_t page_count, page_size;
    uint32_t count, descriptors, reply_status, replies;
    size_t size; /* of the message; 0: a complete reply */
    bool is_silent;
};

struct exporter {
    const struct script *script;
    int socket;
    pthread_t thread;
};

/* Send a reply; earlier replies had `sent` pages. */
static void send_reply(int client, const struct script *script, uint64_t sent)
{
    _Alignas(struct cmsghdr) char control[CMSG_SPACE(8 * sizeof(int))] = {0};
    struct xseg_export_reply reply = {
        .status = script->reply_status, .count = script->count, .page_count = script->page_count};
    struct iovec data = {&reply, script->size == 0 ? sizeof(reply) : script->size};
    struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1};
    int fd[8];

    for (uint32_t i = 0; i < script->descriptors; i++)
        fd[i] = dup(STDERR_FILENO);
    if (script->reply_status != XSEG_OK)
        memset(reply.error, 'w', sizeof(reply.error));
    for (uint32_t i = 0; script->reply_status == XSEG_OK && i < XSEG_EXPORT_BATCH; i++) {
        reply.page[i].offset = (sent + i) * script->page_size;
        reply.page[i].size = script->page_size;
    }
    if (script->descriptors != 0) {
        message.msg_control = control;
        message.msg_controllen = CMSG_SPACE(script->descriptors * sizeof(int));
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(script->descriptors * sizeof(int));
        memcpy(CMSG_DATA(header), fd, script->descriptors * sizeof(int));
    }
    (void)sendmsg(client, &message, MSG_NOSIGNAL);
    for (uint32_t i = 0; i < script->descriptors; i++)
        (void)close(fd[i]);
}

static void *run_exporter(void *self)
{
    const struct exporter *exporter = self;
    struct xseg_export_token token;
    const int client = accept(exporter->socket, NULL, NULL);

    (void)recv(client, &token, sizeof(token), 0);
    for (uint32_t i = 0; i < exporter->script->replies; i++)
        send_reply(client, exporter->script, (uint64_t)i * exporter->script->count);
    if (exporter->script->is_silent) /* until the client times out */
        (void)recv(client, &token, sizeof(token), 0);
    (void)close(client);
    return NULL;
}

static struct xseg_export_token make_token(uint64_t exporter)
{
    const struct xseg_export_fields fields = {.magic = {'x', 's', 'e', 'g'},
                                              .version = XSEG_EXPORT_TOKEN_VERSION,
                                              .exporter = exporter,
                                              .size = 3 * PAGE,
                                              .pid = 4711};
    struct xseg_export_token token;

    memcpy(&token, &fields, sizeof(token));
    return token;
}

/* Run the client against an exporter with this script. */
static xseg_status resolve_from(const struct script *script, struct xseg_export_pages *pages)
{
    struct exporter exporter = {.script = script};
    const uint64_t exporter_id = (uint64_t)getpid() << 32 | (uintptr_t)script;
    const struct xseg_export_token token = make_token(exporter_id);
    struct sockaddr_un address;
    const socklen_t length = xseg_export_address(exporter_id, &address);

    exporter.socket = socket(AF_UNIX, SOCK_SEQPACKET, 0);
    assert_int_equal(bind(exporter.socket, (struct sockaddr *)&address, length), 0);
    assert_int_equal(listen(exporter.socket, 1), 0);
    assert_int_equal(pthread_create(&exporter.thread, NULL, run_exporter, &exporter), 0);
    const xseg_status status = xseg_export_resolve(&token, pages);
    assert_int_equal(pthread_join(exporter.thread, NULL), 0);
    (void)close(exporter.socket);
    return status;
}

TEST(exporter_that_violates_the_protocol_is_rejected)
{
    /* The token has 3 pages of 2 MiB; each script violates the protocol in one way. */
    static const struct script scripts[] = {
        {"closed the connection", XSEG_ERR_FILE, 3, PAGE, 3, 3, 0, .replies = 0},
        {"reply of process 4711 is invalid, size 7", XSEG_ERR_FILE, 3, PAGE, 3, 3, 0, .replies = 1,
         .size = 7},
        {"descriptors 2", XSEG_ERR_FILE, 3, PAGE, 3, 2, 0, .replies = 1},
        {"descriptors 4", XSEG_ERR_FILE, 3, PAGE, 3, 4, 0, .replies = 1},
        {"descriptors 0", XSEG_ERR_FILE, 3, PAGE, 0, 0, 0, .replies = 1},
        {"descriptors 1", XSEG_ERR_FILE, 3, PAGE, UINT32_MAX, 1, 0, .replies = 1},
        {"pages 0", XSEG_ERR_FILE, 0, PAGE, 1, 1, 0, .replies = 1},
        {"pages 2", XSEG_ERR_FILE, 2, PAGE, 3, 3, 0, .replies = 1},
        {"pages 18446744073709551615", XSEG_ERR_FILE, UINT64_MAX, PAGE, 3, 3, 0, .replies = 1},
        {"pages 1537", XSEG_ERR_FILE, 3 * PAGE / 4096 + 1, PAGE, 3, 3, 0, .replies = 1},
        {"page size 0", XSEG_ERR_FILE, 3, 0, 3, 3, 0, .replies = 1},
        {"page size 18446744073709551615", XSEG_ERR_FILE, 3, UINT64_MAX, 3, 3, 0, .replies = 1},
        {"page size 4194304", XSEG_ERR_FILE, 3, 2 * PAGE, 3, 3, 0, .replies = 1},
        {"end of the last page 3145728", XSEG_ERR_FILE, 3, PAGE / 2, 3, 3, 0, .replies = 1},
        {"closed the connection", XSEG_ERR_FILE, 3, PAGE, 2, 2, 0, .replies = 1},
        {"pages 3", XSEG_ERR_FILE, 3, PAGE / 2, 2, 2, 0, .replies = 2},
        {"exporter failed, www", XSEG_ERR_DRIVER, 3, PAGE, 0, 0, 77, .replies = 1},
        {"exporter failed, www", XSEG_ERR_DRIVER, 3, PAGE, 3, 3, (uint32_t)XSEG_ERR_FORKED,
         .replies = 1},
        {"exporter failed, www", XSEG_ERR_NOT_ALLOCATED, 3, PAGE, 0, 0,
         (uint32_t)XSEG_ERR_NOT_ALLOCATED, .replies = 1},
    };

    for (unsigned i = 0; i < COUNT_OF(scripts); i++) {
        const unsigned open_fds = env_open_fds();
        struct xseg_export_pages pages = {.count = 0};
        const xseg_status status = resolve_from(&scripts[i], &pages);

        env_expect_error(status, scripts[i].status, scripts[i].words);
        assert_null(pages.handle);
        assert_int_equal(env_open_fds(), open_fds);
    }
}

TEST(run_arrives_in_any_number_of_replies)
{
    static const struct script scripts[] = {
        {.page_count = 3, .page_size = PAGE, .count = 3, .descriptors = 3, .replies = 1},
        {.page_count = 3, .page_size = PAGE, .count = 1, .descriptors = 1, .replies = 3},
    };

    for (unsigned i = 0; i < COUNT_OF(scripts); i++) {
        const unsigned open_fds = env_open_fds();
        struct xseg_export_pages pages = {.count = 0};

        assert_ok(resolve_from(&scripts[i], &pages));
        assert_int_equal(pages.count, 3);
        for (size_t page = 0; page < 3; page++) {
            assert_int_equal(pages.handle[page].offset, page * PAGE);
            assert_int_equal(pages.handle[page].size, PAGE);
        }
        assert_int_equal(env_open_fds(), open_fds + 3);
        xseg_export_pages_close(&pages);
        assert_int_equal(env_open_fds(), open_fds);
    }
}

TEST(silent_exporter_times_out)
{
    static const struct script scripts[] = {
        {.is_silent = true},
        {.page_count = 3,
         .page_size = PAGE,
         .count = 1,
         .descriptors = 1,
         .replies = 1,
         .is_silent = true},
    };

    for (unsigned i = 0; i < COUNT_OF(scripts); i++) {
        struct xseg_export_pages pages = {.count = 0};

        /* 20 ms of the timeout of 10 s remain for the last wait: the client reads the clock once before each wait. */
        clock_step = UINT64_C(9980000000) / (i + 1);
        const xseg_status status = resolve_from(&scripts[i], &pages);
        clock_step = 0;
        assert_error(status, FILE, "exporter did not reply within 10000 ms");
        assert_null(pages.handle);
    }
}

/* The fields of an accepted token are within their bounds, whatever its 64 bytes are. */
TEST(arbitrary_tokens_are_handled)
{
    struct xseg_export_token token = make_token(1);
    uint64_t random = 4711;

    for (unsigned i = 0; i < 100000; i++) {
        struct xseg_export_fields fields = {.size = 0};

        random = random * UINT64_C(6364136223846793005) + 1442695040888963407;
        token.byte[(random >> 33) % sizeof(token)] ^= (uint8_t)(random >> 41);
        if (i % 16 == 0)
            token = make_token(i);
        if (xseg_export_token_read(&token, &fields) == XSEG_OK)
            assert_true(fields.size != 0 && fields.size % 4096 == 0 &&
                        fields.size <= XSEG_EXPORT_BYTES_MAX &&
                        fields.version == XSEG_EXPORT_TOKEN_VERSION);
        else
            assert_int_equal(fields.size, 0);
    }
}
