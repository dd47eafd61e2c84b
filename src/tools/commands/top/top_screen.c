/* SPDX-License-Identifier: MIT */
#include "src/tools/commands/top/top_screen.h"

#ifdef TOOLS_NCURSES

#include <curses.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <term.h>
#include <time.h>
#include <unistd.h>

/* Lines above the rows, and below. */
#define ABOVE 3
#define BELOW 1

struct screen {
    const struct top_wish *wish;
    enum top_by by;
    bool has_pools;
    size_t first; /* row at the top */
    struct publishers publishers;
    struct top_table table;
    struct top_budget budget;
    const char *why; /* the screen cannot be gone on with */
};

static int64_t read_ms(void)
{
    struct timespec now = {0};

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* --- What is shown. --- */

static bool order_rows(struct screen *screen)
{
    top_table_fini(&screen->table);
    if (top_table_init(&screen->table, &screen->publishers, screen->by, screen->has_pools))
        return true;
    screen->why = "no host memory is left";
    return false;
}

static bool look(struct screen *screen)
{
    int error;

    top_table_fini(&screen->table);
    publishers_fini(&screen->publishers);
    top_budget_fini(&screen->budget);
    if (screen->wish->budget)
        top_budget_look(&screen->budget, screen->wish->budget);
    error = publishers_find(&screen->publishers, screen->wish->pid);
    if (error != 0) {
        screen->why = strerror(error);
        return false;
    }
    return order_rows(screen);
}

/* Lines of the second table, with an empty one above: no more than half of the screen. */
static size_t budget_rows(const struct screen *screen)
{
    const size_t most = LINES > 0 ? (size_t)LINES / 2 : 0;
    const size_t wanted = screen->wish->budget ? top_budget_lines(&screen->budget) + 1 : 0;

    return wanted < most ? wanted : most;
}

static size_t rows_that_fit(const struct screen *screen)
{
    const size_t taken = ABOVE + BELOW + budget_rows(screen);

    return LINES > 0 && (size_t)LINES > taken ? (size_t)LINES - taken : 0;
}

static void put(int row, const char *line)
{
    (void)mvaddnstr(row, 0, line, COLS);
}

static void draw_head(const struct screen *screen)
{
    char line[TOP_LINE], title[TOP_LINE + 32];
    int from, length;

    top_table_summary(&screen->table, &screen->publishers, line);
    (void)snprintf(title, sizeof(title), "xseg top - %s", line);
    put(0, title);
    top_table_head(line, screen->by, &from, &length);
    (void)attron(A_BOLD);
    put(ABOVE - 1, line);
    (void)attroff(A_BOLD);
    if (from < COLS)
        (void)mvchgat(ABOVE - 1, from, length, A_REVERSE | A_BOLD, 0, NULL);
}

static void draw_budget(const struct screen *screen)
{
    const int rows = (int)budget_rows(screen);
    char line[TOP_LINE];

    for (int i = 1; i < rows; i++) {
        top_budget_line(&screen->budget, (size_t)i - 1, line);
        (void)(i == 1 ? attron(A_BOLD) : attroff(A_BOLD));
        put(LINES - BELOW - rows + i, line);
    }
    (void)attroff(A_BOLD);
}

static void draw(struct screen *screen)
{
    const size_t fit = rows_that_fit(screen);
    char line[TOP_LINE];

    if (screen->first + fit > screen->table.count)
        screen->first = screen->table.count > fit ? screen->table.count - fit : 0;
    (void)erase();
    draw_head(screen);
    if (screen->table.count == 0)
        put(ABOVE, "no process publishes its memory: give one the key publish:True");
    for (size_t i = 0; i < fit && screen->first + i < screen->table.count; i++) {
        top_table_line(&screen->table.rows[screen->first + i], line);
        put(ABOVE + (int)i, line);
    }
    draw_budget(screen);
    (void)attron(A_DIM);
    put(LINES - 1,
        "q quit   < > order by another column   p pools   arrows scroll   space look now");
    (void)attroff(A_DIM);
    (void)refresh();
}

/* --- Keys. --- */

static void scroll_rows(struct screen *screen, int64_t by)
{
    const int64_t first = (int64_t)screen->first + by;

    screen->first = first > 0 ? (size_t)first : 0; /* draw() sees to the other end */
}

static bool order_by(struct screen *screen, int step)
{
    screen->by = (enum top_by)(((int)screen->by + step + TOP_BYS) % TOP_BYS);
    return order_rows(screen);
}

/* Returns false if that was the end. */
static bool take_key(struct screen *screen, int key, int64_t *due)
{
    const int64_t page = (int64_t)rows_that_fit(screen);

    switch (key) {
    case 'q':
    case 'Q':
        return false;
    case '<':
    case KEY_LEFT:
        return order_by(screen, -1);
    case '>':
    case KEY_RIGHT:
        return order_by(screen, 1);
    case 'p':
        screen->has_pools = !screen->has_pools;
        return order_rows(screen);
    case ' ':
        *due = 0;
        break;
    case 'L' & 0x1f: /* Ctrl-L: what others have written to the terminal goes away */
        (void)clearok(curscr, TRUE);
        break;
    case KEY_UP:
    case KEY_DOWN:
        scroll_rows(screen, key == KEY_UP ? -1 : 1);
        break;
    case KEY_PPAGE:
    case KEY_NPAGE:
        scroll_rows(screen, key == KEY_PPAGE ? -page : page);
        break;
    case KEY_HOME:
        screen->first = 0;
        break;
    case KEY_END:
        screen->first = screen->table.count;
        break;
    default: /* KEY_RESIZE among them: what is drawn next has the new size */
        break;
    }
    return true;
}

/* Whether there is still a terminal to read from: without one getch() comes back at once, for ever. */
static bool has_terminal(void)
{
    struct pollfd terminal = {.fd = STDIN_FILENO, .events = POLLIN};

    return poll(&terminal, 1, 0) <= 0 || (terminal.revents & (POLLHUP | POLLERR | POLLNVAL)) == 0;
}

static void show(struct screen *screen)
{
    int64_t due = 0, now;
    bool goes_on = true;

    while (goes_on) {
        now = read_ms();
        if (now >= due) {
            goes_on = look(screen);
            due = now + (int64_t)screen->wish->seconds * 1000;
        }
        if (!goes_on)
            break;
        draw(screen);
        timeout((int)(due > now ? due - now : 0));
        goes_on = take_key(screen, getch(), &due) && has_terminal();
    }
}

/* Start ncurses, or return NULL.  Whether the terminal is known is asked first: newterm() loses host memory where it is
 * not. */
static SCREEN *start(void)
{
    int error;

    if (setupterm(NULL, STDOUT_FILENO, &error) != OK)
        return NULL;
    (void)del_curterm(cur_term);
    return newterm(NULL, stdout, stdin);
}

const char *top_screen_run(const struct top_wish *wish)
{
    struct screen screen = {.wish = wish, .by = wish->by, .has_pools = true};
    SCREEN *terminal = start();

    if (!terminal)
        return "the terminal cannot show a table (is TERM right?): give --once";
    (void)cbreak();
    (void)noecho();
    (void)keypad(stdscr, TRUE);
    (void)curs_set(0);
    show(&screen);
    (void)endwin();
    delscreen(terminal);
    top_table_fini(&screen.table);
    publishers_fini(&screen.publishers);
    top_budget_fini(&screen.budget);
    return screen.why;
}

#else

const char *top_screen_run(const struct top_wish *wish)
{
    (void)wish;
    return "this xseg was built without ncurses: give --once";
}

#endif
