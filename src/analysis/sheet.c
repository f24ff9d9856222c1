/* Tables as CSV and JSON. */
#include "analysis/sheet.h"

#include "base/json.h"
#include "base/number.h"
#include "io/io.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static void append(abar__sheet *s, abar__text *out, const char *text)
{
    if (s->status >= 0) s->status = abar__text_append(s->ctx, out, text, strlen(text));
}

void abar__sheet_begin(abar_context *ctx, const char *const *columns, int n_columns, abar__sheet *out)
{
    *out = (abar__sheet){.ctx = ctx, .columns = columns, .n_columns = n_columns};
    for (int i = 0; i < n_columns; i++) {
        append(out, &out->csv, i ? "," : "");
        append(out, &out->csv, columns[i]);
    }
    append(out, &out->csv, "\n");
    append(out, &out->json, "[");
}

/* Quoted where a reader could take it apart. */
static void append_word(abar__sheet *s, const char *word)
{
    if (!strpbrk(word, ",\"\n\r")) {
        append(s, &s->csv, word);
        return;
    }
    append(s, &s->csv, "\"");
    for (const char *c = word; *c; c++) append(s, &s->csv, *c == '"' ? "\"\"" : (char[2]){*c, 0});
    append(s, &s->csv, "\"");
}

void abar__sheet_row(abar__sheet *s, const abar__cell *cells)
{
    append(s, &s->json, s->rows++ ? ",\n{" : "\n{");
    for (int i = 0; i < s->n_columns; i++) {
        char number[ABAR_REAL_TEXT_MAX];
        abar__real_format(cells[i].number, number);
        append(s, &s->csv, i ? "," : "");
        append(s, &s->json, i ? ", " : "");
        if (s->status >= 0) s->status = abar__json_string(s->ctx, &s->json, s->columns[i]);
        append(s, &s->json, ": ");
        if (cells[i].text) {
            append_word(s, cells[i].text);
            if (s->status >= 0) s->status = abar__json_string(s->ctx, &s->json, cells[i].text);
        } else {
            append(s, &s->csv, isnan(cells[i].number) ? "" : number);
            if (s->status >= 0) s->status = abar__json_number(s->ctx, &s->json, cells[i].number);
        }
    }
    append(s, &s->csv, "\n");
    append(s, &s->json, "}");
}

void abar__sheet_free(abar__sheet *s)
{
    abar__text_free(s->ctx, &s->csv);
    abar__text_free(s->ctx, &s->json);
}

abar_status abar__save_text(abar_context *ctx, const char *dir, const char *name, const abar__text *text)
{
    char path[ABAR_OPTION_TEXT_MAX + 128];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return abar__file_replace(ctx, path, text->data, text->length);
}

abar_status abar__save_picture(abar_context *ctx, const char *dir, const char *name, const abar__picture *picture)
{
    abar__text svg = {0};
    abar_status status = abar__picture_write(ctx, picture, &svg);
    if (status >= 0) status = abar__save_text(ctx, dir, name, &svg);
    abar__text_free(ctx, &svg);
    return status;
}

abar_status abar__sheet_save(const abar__sheet *s, const char *dir, const char *name)
{
    char file[96];
    abar__text json = {0};
    ABAR_TRY(s->status);
    snprintf(file, sizeof file, "%s.csv", name);
    ABAR_TRY(abar__save_text(s->ctx, dir, file, &s->csv));
    snprintf(file, sizeof file, "%s.json", name);
    abar_status status = abar__text_append(s->ctx, &json, s->json.data, s->json.length);
    if (status >= 0) status = abar__text_append(s->ctx, &json, "\n]\n", 3);
    if (status >= 0) status = abar__save_text(s->ctx, dir, file, &json);
    abar__text_free(s->ctx, &json);
    return status;
}
