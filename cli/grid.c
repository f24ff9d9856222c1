/* Tables of text. A column is as wide as its widest cell; if a line is longer than the window, lists are cut, then columns are
 * left out by their rank; if it is still too long, the first column is cut. */
#include "grid.h"

#include <string.h>

#define FIRST_MIN 6 /* width of the first column at least */
#define LIST_MIN 8  /* and of lists that are cut */

static int greater(int a, int b) { return a > b ? a : b; }
static int lesser(int a, int b) { return a < b ? a : b; }

/* Columns on the screen: UTF-8 characters, not bytes. */
static int columns_of(const char *text)
{
    int n = 0;
    for (; *text; text++) n += ((unsigned char)*text & 0xC0) != 0x80;
    return n;
}

static int total_of(const grid *g)
{
    int total = g->indent, last = -1;
    for (int i = 0; i < g->columns; i++) {
        if (g->width[i] == 0) continue;
        total += g->width[i] + (last < 0 ? 0 : GRID_GAP);
        last = i;
    }
    return total + (last >= 0 && g->marked[last]);
}

/* Leaves out the column of the greatest rank. False: there is none left. */
static bool drop_column(grid *g)
{
    int least = -1;
    for (int i = 0; i < g->columns; i++)
        if (g->width[i] > 0 && g->column[i].rank > (least < 0 ? 0 : g->column[least].rank)) least = i;
    if (least < 0) return false;
    g->width[least] = 0;
    return true;
}

/* Leaves columns out as if lists had their least width, then gives these what is left. What is no list is not cut for it. */
static void fit(grid *g, int width, int single)
{
    const int wanted = g->width[g->list];
    if (g->list > 0) g->width[g->list] = lesser(wanted, greater(LIST_MIN, single));
    while (total_of(g) > width && drop_column(g)) {}
    const int left = width - total_of(g);
    if (left < 0) g->width[0] = greater(FIRST_MIN, g->width[0] + left);
    if (left > 0 && g->list > 0 && g->width[g->list] > 0) g->width[g->list] = lesser(wanted, g->width[g->list] + left);
}

void grid_measure(grid *g, int width)
{
    memset(g->width, 0, sizeof g->width);
    memset(g->marked, 0, sizeof g->marked);
    int single = 0; /* width of what stands alone in the column of lists */
    for (int row = 0; row < g->rows; row++) {
        grid_cell cells[GRID_COLUMNS_MAX] = {0};
        g->fill(g->user, row, cells);
        for (int i = 0; i < g->columns; i++) {
            g->width[i] = greater(g->width[i], columns_of(cells[i].text));
            g->marked[i] = g->marked[i] || cells[i].best;
            if (i == g->list && !strchr(cells[i].text, ',')) single = greater(single, columns_of(cells[i].text));
        }
    }
    for (int i = 0; i < g->columns; i++) /* empty columns are not shown */
        if (g->width[i] > 0) g->width[i] = greater(g->width[i], columns_of(g->column[i].heading));
    if (width > 0) fit(g, width, single);
}

/* Where the first n columns of text end. */
static const char *behind(const char *text, int n)
{
    while (*text && (n > 0 || ((unsigned char)*text & 0xC0) == 0x80)) n -= ((unsigned char)*text++ & 0xC0) != 0x80;
    return text;
}

/* Cuts a long name at its beginning, because names of one network differ at their ends; a list at its end. */
static const char *cut(const char *text, int width, bool list, char out[GRID_TEXT_MAX])
{
    const int n = columns_of(text);
    if (n <= width) return text;
    if (list)
        snprintf(out, GRID_TEXT_MAX, "%.*s..", (int)(behind(text, width - 2) - text), text);
    else
        snprintf(out, GRID_TEXT_MAX, "..%s", behind(text, n - (width - 2)));
    return out;
}

static void print_cell(const grid *g, FILE *out, int spaces, const char *text, bool best)
{
    fprintf(out, "%*s%s%s%s%s", spaces, "", best ? g->bold : "", text, best ? "*" : "", best ? g->plain : "");
}

/* No spaces at the end of a line. */
static void print_row(const grid *g, FILE *out, const grid_cell *cells)
{
    int owed = g->indent; /* spaces before the next text */
    for (int i = 0; i < g->columns; i++) {
        char buffer[GRID_TEXT_MAX];
        if (g->width[i] == 0) continue;
        const char *text = cut(cells[i].text, g->width[i], i > 0 && i == g->list, buffer);
        const int pad = greater(0, g->width[i] - columns_of(text));
        if (!g->column[i].left) owed += pad;
        if (text[0]) {
            print_cell(g, out, owed, text, cells[i].best);
            owed = -cells[i].best; /* the star takes a column of the gap */
        }
        owed += GRID_GAP + (g->column[i].left ? pad : 0);
    }
    fputc('\n', out);
}

void grid_print(const grid *g, FILE *out)
{
    grid_cell heading[GRID_COLUMNS_MAX] = {0};
    for (int i = 0; i < g->columns; i++) snprintf(heading[i].text, sizeof heading[i].text, "%s", g->column[i].heading);
    print_row(g, out, heading);
    for (int row = 0; row < g->rows; row++) {
        grid_cell cells[GRID_COLUMNS_MAX] = {0};
        g->fill(g->user, row, cells);
        print_row(g, out, cells);
    }
}
