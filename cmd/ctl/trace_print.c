/* trace_print.c - happenings as lines and as JSON. One thread. */
#include "trace.h"

#include "base/check.h"
#include "base/text.h"

#include <stdio.h>

static void details(const struct happening *h, char *out, size_t size)
{
    const struct happening_row *row = &happening_rows[h->kind];
    size_t n = 0;

    out[0] = 0;
    if (h->text[0])
        n += (size_t)snprintf(out, size, "%s %s", row->a, h->text);
    else if (h->a != ROWS_UNKNOWN)
        n += (size_t)snprintf(out, size, "%s %u", row->a, h->a);
    if (h->b != ROWS_UNKNOWN && n < size)
        snprintf(out + n, size - n, "%s%s %u", n ? ", " : "", row->b, h->b);
}

static void what(const struct happening *h, char *out, size_t size)
{
    const char *word = happening_rows[h->kind].word;
    bool from = h->kind != HAPPENED_SENT;

    if (h->message)
        snprintf(out, size, "%s %s %s %.63s", from ? "got" : "sent",
            peer_name((enum peer_type)h->message), from ? "from" : "to",
            h->peer);
    else
        snprintf(out, size, "%s%s%.63s", word, h->peer[0] ? " " : "", h->peer);
}

/* Appends the happening as a row. */
static void put(struct writer *w, const struct happening *h)
{
    const struct happening_row *row = &happening_rows[h->kind];

    rows_put(w);
    rows_put_number(w, "number", h->number);
    rows_put_number(w, "ns", (uint64_t)h->ns);
    if (h->of_room)
        rows_put_number(w, "room", h->room);
    rows_put_text(w, "what", row->word);
    if (h->message)
        rows_put_text(w, "message", peer_name((enum peer_type)h->message));
    if (h->peer[0])
        rows_put_text(w, "peer", h->peer);
    if (h->text[0])
        rows_put_text(w, row->a, h->text);
    else if (h->a != ROWS_UNKNOWN)
        rows_put_number(w, row->a, h->a);
    if (h->b != ROWS_UNKNOWN)
        rows_put_number(w, row->b, h->b);
}

void trace_json(struct trace *t, const struct happening *h)
{
    uint8_t bytes[2048];
    struct writer w = writer_of(bytes, sizeof(bytes));

    put(&w, h);
    CHECK(!w.failed, "a happening of %zu bytes", w.len);
    rows_json_part(
        &t->json, reader_of(bytes, w.len), t->of->sides[h->side].name);
}

static int room_text(const struct happening *h, char out[24])
{
    return h->of_room ? snprintf(out, 24, "%llu", (unsigned long long)h->room)
                      : snprintf(out, 24, "-");
}

void trace_widen(struct trace *t, const struct happening *h)
{
    int name = (int)strlen(t->of->sides[h->side].name), width;
    char room[24];

    width = room_text(h, room);
    CHECK(width > 0, "the room of a happening has no text");
    t->name_width = name > t->name_width ? name : t->name_width;
    t->room_width = width > t->room_width ? width : t->room_width;
}

void trace_line(const struct trace *t, const struct happening *h)
{
    char room[24], did[128], more[96];

    what(h, did, sizeof(did));
    details(h, more, sizeof(more));
    room_text(h, room);
    printf("%12.3f ms  %-*s  ",
        (double)(h->ns - t->got.all[0].ns) / (double)NS_PER_MS, t->name_width,
        t->of->sides[h->side].name);
    if (t->room_width)
        printf("%*s  ", t->room_width, room);
    printf("%s%s%s\n", did, more[0] ? ": " : "", more);
}
