/* SPDX-License-Identifier: MIT */
/*
 * Random programs: two threads allocate, write, check, pass to each other and free blocks on four streams.
 * Concurrently, memory is trimmed, decays, and is remapped from other streams and pools because of a hard limit.
 *
 * A block is written after its allocation and checked before its free, by kernels that are only queued.  The block's
 * stream orders them.  Another stream uses the block after an event and xseg_record_stream(), or until
 * xseg_free_after().  Many kernels follow a kernel that takes time, so frees, trims and growth happen while work is
 * pending.
 *
 * A game is one allocator with one configuration.  Each thread has its own seed, but the interleaving of their calls
 * depends on the scheduler: a seed repeats the operations of each thread, not their interleaving.
 */
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/gpu/contents/journal.h"
#include "tests/gpu/contents/section.h"

#define MAX_BLOCKS    400u
#define MIN_MOVES     60u /* of a thread in a game, on any host */
#define POOLS         2u
#define MAX_BYTES     (200 * MIB)
#define COPIED_BYTES  MIB /* of a block that the host compares */
#define CORRUPT_AFTER 20u /* blocks */

struct block {
    struct piece piece;
    unsigned stream; /* that owns it */
};

struct game {
    struct stage *stage;
    struct xseg_allocator *allocator;
    struct xseg_pool *pool[POOLS];
    uint64_t ends;
    uint64_t thread_moves; /* 0: until the end */
    pthread_mutex_t lock;  /* of the blocks that one thread passes to the other */
    bool has_left;
    struct block left;
};

struct player {
    struct game *game;
    unsigned number;
    uint64_t draws;
    size_t budget, bytes; /* its limit, and its current sum */
    unsigned count;
    struct block block[MAX_BLOCKS];
    unsigned char *copy; /* COPIED_BYTES */
};

static atomic_uint_fast64_t blocks; /* blocks created so far, which number the blocks */
static atomic_bool has_corrupted;

static uint64_t choose(struct player *player, uint64_t below)
{
    return draw(&player->draws, below);
}

static CUstream stream_of(const struct player *player, const struct block *block)
{
    return player->game->stage->stream[block->stream];
}

static CUevent event_of(const struct player *player)
{
    return player->game->stage->event[player->number];
}

static void *pointer_of(const struct block *block)
{
    return (void *)(uintptr_t)block->piece.address;
}

static struct block *any_block(struct player *player)
{
    return player->count == 0 ? NULL : &player->block[choose(player, player->count)];
}

static void dawdle(struct player *player, CUstream stream)
{
    if (choose(player, 4) == 0)
        kernel_spin(stream, 50 + (unsigned)choose(player, 1000));
}

static void check(struct player *player, const struct block *block, CUstream stream)
{
    kernel_check(player->game->stage->checks[player->number], stream, &block->piece);
}

static void write_anew(struct player *player, struct block *block, CUstream stream)
{
    block->piece.seed = choose(player, UINT64_MAX);
    kernel_write(stream, &block->piece);
}

/* Remove a block from the player's list: the last block replaces it. */
static void strike_out(struct player *player, struct block *block)
{
    player->bytes -= block->piece.bytes;
    *block = player->block[--player->count];
}

static void count_busy(enum journal_count kind, CUstream stream)
{
    if (device_is_busy(stream))
        journal_count(kind, 1);
}

/* --- Moves. --- */

static void drop(struct player *player, struct block *block)
{
    const CUstream stream = stream_of(player, block);

    journal_operation("thread %u: check and free %" PRIu64 " on stream %u", player->number,
                      block->piece.block, block->stream);
    dawdle(player, stream);
    check(player, block, stream);
    count_busy(COUNT_BUSY_FREES, stream);
    XSEG(free, player->game->allocator, pointer_of(block));
    strike_out(player, block);
}

static void drop_any(struct player *player)
{
    struct block *block = any_block(player);

    if (block != NULL)
        drop(player, block);
}

static size_t choose_bytes(struct player *player)
{
    const size_t max = player->budget / 3 < MAX_BYTES ? player->budget / 3 : MAX_BYTES;
    const uint64_t kind = choose(player, 16);
    size_t bytes;

    if (kind < 8)
        bytes = (size_t)512 << choose(player, 11);
    else if (kind < 15)
        bytes = MIB << choose(player, 5);
    else
        bytes = 20 * MIB + choose(player, max);
    bytes += choose(player, bytes);
    /* Arbitrary sizes at the end, so that last words are incomplete. */
    return (bytes < max ? bytes : max) - choose(player, 16);
}

static void corrupt(struct player *player, struct block *block)
{
    const uint64_t offset = choose(player, block->piece.bytes);
    const uint64_t word = pattern_word(block->piece.seed, block->piece.mask, offset / 8);
    const unsigned char byte = (unsigned char)((word >> (offset % 8 * 8)) ^ 0x5a);

    journal_note("corrupted", block->piece.block, "note", "byte %" PRIu64 " of block %" PRIu64,
                 offset, block->piece.block);
    CU(MemsetD8Async, block->piece.address + offset, byte, 1, stream_of(player, block));
    drop(player, block);
}

static bool is_refused(xseg_status status)
{
    return status == XSEG_ERR_LIMIT || status == XSEG_ERR_NO_MEMORY;
}

static void add(struct player *player)
{
    struct game *game = player->game;
    struct block *block = &player->block[player->count];
    struct xseg_request request = {sizeof(request)};
    const unsigned stream = (unsigned)choose(player, STREAMS);
    void *address = NULL;

    request.bytes = choose_bytes(player);
    request.stream = game->stage->stream[stream];
    request.pool = choose(player, 6) == 0 ? game->pool[choose(player, POOLS)] : NULL;
    while (player->count == MAX_BLOCKS ||
           (player->count > 0 && player->bytes + request.bytes > player->budget))
        drop_any(player);
    block = &player->block[player->count];
    *block = (struct block){.stream = stream};
    block->piece.block = atomic_fetch_add(&blocks, 1) + 1;
    journal_operation("thread %u: allocate %" PRIu64 ", %zu bytes, on stream %u%s", player->number,
                      block->piece.block, request.bytes, stream,
                      request.pool != NULL ? ", of a pool" : "");
    const xseg_status status = xseg_alloc_with(game->allocator, &request, &address);
    if (is_refused(status)) {
        journal_count(COUNT_REFUSED, 1);
        drop_any(player);
        return;
    }
    journal_status(status, "xseg_alloc_with");
    journal_count(COUNT_BLOCKS, 1);
    block->piece.address = (CUdeviceptr)(uintptr_t)address;
    block->piece.bytes = request.bytes;
    player->count++;
    player->bytes += request.bytes;
    dawdle(player, request.stream);
    write_anew(player, block, request.stream);
    if (game->stage->corrupts && block->piece.block >= CORRUPT_AFTER &&
        !atomic_exchange(&has_corrupted, true))
        corrupt(player, block);
}

static void look(struct player *player)
{
    struct block *block = any_block(player);

    if (block == NULL)
        return;
    journal_operation("thread %u: check %" PRIu64, player->number, block->piece.block);
    check(player, block, stream_of(player, block));
}

static void rewrite(struct player *player)
{
    struct block *block = any_block(player);

    if (block == NULL)
        return;
    journal_operation("thread %u: check and write %" PRIu64 " again", player->number,
                      block->piece.block);
    check(player, block, stream_of(player, block));
    dawdle(player, stream_of(player, block));
    write_anew(player, block, stream_of(player, block));
}

/* A stream other than the owner of a block, which waits for the owner. */
static CUstream borrow(struct player *player, const struct block *block, unsigned *other)
{
    const CUstream *stream = player->game->stage->stream;

    *other = (block->stream + 1 + (unsigned)choose(player, STREAMS - 1)) % STREAMS;
    device_order(stream[*other], stream[block->stream], event_of(player));
    return stream[*other];
}

static void work_elsewhere(struct player *player, struct block *block, CUstream stream)
{
    dawdle(player, stream);
    check(player, block, stream);
    if (choose(player, 2) == 0) {
        write_anew(player, block, stream);
        check(player, block, stream);
    }
}

/* Another stream uses a block, which remains allocated or is freed immediately. */
static void use(struct player *player)
{
    struct block *block = any_block(player);
    unsigned other;

    if (block == NULL)
        return;
    const bool is_last = choose(player, 2) == 0;
    const CUstream stream = borrow(player, block, &other);
    journal_operation("thread %u: stream %u uses %" PRIu64 "%s", player->number, other,
                      block->piece.block, is_last ? ", which is freed" : "");
    XSEG(record_stream, player->game->allocator, pointer_of(block), stream);
    work_elsewhere(player, block, stream);
    if (!is_last) {
        device_order(stream_of(player, block), stream, event_of(player));
        return;
    }
    count_busy(COUNT_BUSY_FREES, stream);
    XSEG(free, player->game->allocator, pointer_of(block));
    strike_out(player, block);
}

static void free_after(struct player *player)
{
    struct block *block = any_block(player);
    const xseg_event event = event_of(player);
    unsigned other;

    if (block == NULL)
        return;
    const CUstream stream = borrow(player, block, &other);
    journal_operation("thread %u: free %" PRIu64 " after an event of stream %u", player->number,
                      block->piece.block, other);
    work_elsewhere(player, block, stream);
    CU(EventRecord, event, stream);
    count_busy(COUNT_BUSY_FREES, stream);
    XSEG(free_after, player->game->allocator, pointer_of(block), &event, 1);
    strike_out(player, block);
}

static void hand_over(struct player *player)
{
    struct game *game = player->game;
    struct block *block = any_block(player);

    (void)pthread_mutex_lock(&game->lock);
    if (game->has_left && player->count < MAX_BLOCKS) {
        journal_operation("thread %u: receive %" PRIu64, player->number, game->left.piece.block);
        player->block[player->count++] = game->left;
        player->bytes += game->left.piece.bytes;
        game->has_left = false;
    } else if (!game->has_left && block != NULL) {
        journal_operation("thread %u: pass %" PRIu64, player->number, block->piece.block);
        game->left = *block;
        game->has_left = true;
        strike_out(player, block);
    }
    (void)pthread_mutex_unlock(&game->lock);
}

static void copy_back(struct player *player)
{
    const struct block *block = any_block(player);

    if (block == NULL)
        return;
    struct piece piece = block->piece;
    piece.bytes = piece.bytes < COPIED_BYTES ? piece.bytes : COPIED_BYTES;
    journal_operation("thread %u: compare %zu bytes of %" PRIu64 " by the host", player->number,
                      piece.bytes, piece.block);
    CU(MemcpyDtoHAsync, player->copy, piece.address, piece.bytes, stream_of(player, block));
    CU(StreamSynchronize, stream_of(player, block));
    const struct pattern_report report =
        pattern_check(player->copy, piece.bytes, piece.seed, piece.mask);
    kernel_report(&piece, &report);
    journal_count(COUNT_CHECKED, piece.bytes);
}

static void trim(struct player *player)
{
    struct xseg_trim_options options = {sizeof(options)};
    struct xseg_scope where = XSEG_SCOPE_ALL;
    const struct game *game = player->game;
    const unsigned stream = (unsigned)choose(player, STREAMS);

    options.wait = choose(player, 2) == 0;
    where.one_stream = choose(player, 3) == 0;
    where.stream = where.one_stream ? game->stage->stream[stream] : NULL;
    if (where.one_stream)
        where.device = 0;
    else if (choose(player, 3) == 0)
        where.pool = game->pool[choose(player, POOLS)];
    journal_operation("thread %u: trim%s%s", player->number, options.wait ? ", waiting" : "",
                      where.one_stream     ? ", one stream"
                      : where.pool != NULL ? ", one pool"
                                           : "");
    count_busy(COUNT_BUSY_TRIMS, game->stage->stream[stream]);
    XSEG(trim, game->allocator, &where, &options, NULL);
}

static void decay(struct player *player)
{
    const unsigned milliseconds = 10 + (unsigned)choose(player, 400);

    journal_operation("thread %u: %u ms pass", player->number, milliseconds);
    stage_pass_time(milliseconds);
    count_busy(COUNT_BUSY_TRIMS, player->game->stage->stream[choose(player, STREAMS)]);
    const struct xseg_trim_options due = {
        .struct_size = sizeof(due), .due_only = true, .max_us = 2000};
    XSEG(trim, player->game->allocator, NULL, &due, NULL);
}

/* Free nearly all memory of the player, so that other streams use the cached memory. */
static void drop_most(struct player *player)
{
    const unsigned left = player->count / 8;

    while (player->count > left)
        drop_any(player);
}

static const struct {
    unsigned weight;
    void (*make)(struct player *);
} moves[] = {
    {40, add},      {14, drop_any}, {10, look}, {8, rewrite}, {14, use},      {4, free_after},
    {4, hand_over}, {2, copy_back}, {3, trim},  {4, decay},   {1, drop_most},
};

static void move(struct player *player)
{
    unsigned sum = 0;

    for (size_t i = 0; i < sizeof(moves) / sizeof(moves[0]); i++)
        sum += moves[i].weight;
    uint64_t drawn = choose(player, sum);
    for (size_t i = 0; i < sizeof(moves) / sizeof(moves[0]); i++) {
        if (drawn < moves[i].weight) {
            moves[i].make(player);
            break;
        }
        drawn -= moves[i].weight;
    }
    if (device.is_simulated)
        sim.advance(choose(player, 20000));
}

/* --- A game. --- */

/* A thread's number of moves does not depend on the speed of the other one. */
static bool has_moves(const struct game *game, uint64_t count)
{
    struct stage until = {.ends = game->ends};

    if (count < MIN_MOVES)
        return true;
    return game->thread_moves > 0 ? count < game->thread_moves : stage_has_time(&until);
}

static void *play_alone(void *argument)
{
    struct player *player = argument;

    device_enter();
    for (uint64_t i = 0; has_moves(player->game, i); i++)
        move(player);
    while (player->count > 0)
        drop(player, &player->block[player->count - 1]);
    checks_wait(player->game->stage->checks[player->number]);
    device_leave();
    return NULL;
}

static struct player *new_player(struct game *game, unsigned number, uint64_t draws)
{
    struct player *player = calloc(1, sizeof(*player));
    unsigned char *copy = malloc(COPIED_BYTES);

    if (player == NULL || copy == NULL)
        journal_stop("out of host memory");
    player->game = game;
    player->number = number;
    player->draws = draws;
    /* The other part of the limit is for blocks that are pending free. */
    player->budget = game->stage->memory / 4 * 3 / PLAYERS;
    player->copy = copy;
    return player;
}

static void free_left(struct game *game)
{
    if (!game->has_left)
        return;
    kernel_check(game->stage->checks[0], game->stage->stream[game->left.stream], &game->left.piece);
    XSEG(free, game->allocator, pointer_of(&game->left));
}

static void report_statistics(const struct game *game, const char *config)
{
    struct xseg_statistics stats = {sizeof(stats)};
    struct xseg_scope where = XSEG_SCOPE_ALL;

    where.device = 0;
    XSEG(stats_get, game->allocator, &where, &stats);
    journal_note("memory_taken", stats.num_device_alloc, "note",
                 "allocations from the driver, with %s", config);
    journal_note("memory_given_back", stats.num_device_free, "note",
                 "releases to the driver, with %s", config);
    journal_note("memory_short", stats.num_alloc_retries, "note",
                 "allocations that succeeded after cached memory was released, with %s", config);
}

static void play_game(struct stage *stage, const char *config, uint64_t draws, uint64_t ends,
                      uint64_t thread_moves)
{
    struct game game = {.stage = stage,
                        .ends = ends,
                        .thread_moves = thread_moves,
                        .lock = PTHREAD_MUTEX_INITIALIZER};
    struct xseg_pool_options lends = {sizeof(lends)};
    struct player *player[PLAYERS];
    pthread_t thread[PLAYERS];

    game.allocator = stage_open(config);
    XSEG(pool_create, game.allocator, 0, NULL, &game.pool[0]);
    lends.use_on_oom = true;
    XSEG(pool_create, game.allocator, 0, &lends, &game.pool[1]);
    for (unsigned i = 0; i < PLAYERS; i++) {
        player[i] = new_player(&game, i, draws + (uint64_t)i * (UINT64_C(1) << 40));
        if (pthread_create(&thread[i], NULL, play_alone, player[i]) != 0)
            journal_stop("cannot create a thread");
    }
    for (unsigned i = 0; i < PLAYERS; i++) {
        (void)pthread_join(thread[i], NULL);
        free(player[i]->copy);
        free(player[i]);
    }
    free_left(&game);
    report_statistics(&game, config);
    for (unsigned i = 0; i < POOLS; i++)
        XSEG(pool_release, game.pool[i]);
    stage_close(game.allocator);
    stage_rest(stage);
}

void play_random(struct stage *stage)
{
    static const char *const configs[] = {
        "expandable_segments:False",
        "expandable_segments:True",
        "expandable_segments:True,page_size:auto",
        "expandable_segments:True,page_size:small,page_cache_mb:64",
    };
    const unsigned games = stage->is_classic ? 1 : sizeof(configs) / sizeof(configs[0]);
    const uint64_t threads = (uint64_t)games * PLAYERS;
    const uint64_t each = (uint64_t)stage->seconds * 1000000000 / games;
    const uint64_t begins = stage->ends - (uint64_t)stage->seconds * 1000000000;

    for (unsigned i = 0; i < games; i++) {
        char config[200];

        (void)snprintf(config, sizeof(config),
                       "%s,idle_ms:300,reclaim_us_per_s:1000000,hard_limit_mb:%zu", configs[i],
                       stage->memory / 8 * 7 / MIB);
        play_game(stage, config, stage->seed + ((uint64_t)i << 50), begins + (i + 1) * each,
                  (stage->operations + threads - 1) / threads);
    }
}
