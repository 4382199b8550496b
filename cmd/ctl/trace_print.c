/* trace_print.c - happenings as lines, as JSON, and as JSON trace events, which
 * Perfetto's viewer and chrome://tracing open. One thread.
 *
 * A daemon has as many tracks as rooms were open at once. A track shows one
 * room at a time, and in it the room's phases (happening.def) one after the
 * other. */
#include "trace.h"

#include "base/check.h"
#include "base/text.h"

#include <stdio.h>
#include <stdlib.h>

/* lines */

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

/* trace events */

enum { TRACKS_MAX = 4096 };

/* Of one daemon; free for another room if no phase is open. */
struct track {
    uint64_t room; /* the last room on it */
    uint8_t side;
    const char *phase; /* open phase; NULL: none */
    uint8_t rank;      /* kind that began the phase */
};

struct events {
    FILE *to;
    struct track tracks[TRACKS_MAX];
    size_t count;
    int64_t from_ns, last_ns;
    bool some;
};

/* Begins an event; the caller adds members and the brace. tid 0: the daemon's
 * own track. */
static void event(
    struct events *e, const char *ph, uint32_t side, size_t tid, int64_t ns)
{
    int64_t at = ns - e->from_ns;

    CHECK(at >= 0, "an event at %lld", (long long)at);
    fprintf(e->to,
        "%s\n{\"ph\":\"%s\",\"pid\":%u,\"tid\":%zu,\"ts\":%lld.%03lld",
        e->some ? "," : "", ph, side + 1, tid, (long long)(at / 1000),
        (long long)(at % 1000));
    e->some = true;
}

/* Makes a text without control characters valid in JSON. */
static void unquote(char *text)
{
    for (; *text; text++)
        if (*text == '"' || *text == '\\')
            *text = '?';
}

static void name_of(struct events *e, const char *what, uint32_t side,
    size_t tid, const char *name)
{
    char clean[64];

    text_copy(span_str(name), clean, sizeof(clean));
    unquote(clean);
    event(e, "M", side, tid, e->from_ns);
    fprintf(e->to, ",\"name\":\"%s\",\"args\":{\"name\":\"%s\"}}", what, clean);
}

/* Returns the number of the room's track; 0: the daemon's, if there are too
 * many. */
static size_t track_of(struct events *e, const struct happening *h)
{
    size_t at = e->count;

    for (size_t i = e->count; i > 0; i--) {
        const struct track *k = &e->tracks[i - 1];

        if (k->side == h->side && k->room == h->room)
            return i;
        if (k->side == h->side && !k->phase)
            at = i - 1;
    }
    if (at == TRACKS_MAX)
        return 0;
    e->tracks[at] = (struct track){.room = h->room, .side = h->side};
    if (at == e->count)
        name_of(e, "thread_name", h->side, ++e->count, "rooms");
    return at + 1;
}

/* Ends the room's open phase, if any; all: and the room. */
static void end_phase(struct events *e, size_t tid, int64_t ns, bool all)
{
    struct track *k = &e->tracks[tid - 1];

    for (int i = 0; k->phase && i < 1 + all; i++) {
        event(e, "E", k->side, tid, ns);
        fputs("}", e->to);
    }
    if (all)
        k->phase = NULL;
}

/* If this happening begins a phase, ends the previous one and begins it. */
static void take_phase(struct events *e, const struct happening *h, size_t tid)
{
    struct track *k = &e->tracks[tid - 1];
    bool first = h->kind == HAPPENED_ANNOUNCED || h->kind == HAPPENED_REQUESTED;
    uint8_t kind = h->kind;

    if (h->kind == HAPPENED_ANNOUNCED && h->b != 0)
        kind = HAPPENED_SOURCE; /* it got its blocks at the announce */
    if (!happening_rows[kind].phase[0] ||
        (!first && k->phase && kind <= k->rank))
        return;
    end_phase(e, tid, h->ns, kind == HAPPENED_FREED);
    if (kind == HAPPENED_FREED)
        return;
    if (!k->phase) {
        event(e, "B", k->side, tid, h->ns);
        fprintf(e->to, ",\"name\":\"room %llu\"}", (unsigned long long)k->room);
    }
    k->phase = happening_rows[kind].phase;
    k->rank = kind;
    event(e, "B", k->side, tid, h->ns);
    fprintf(e->to, ",\"name\":\"%s\"}", k->phase);
}

static void take(struct events *e, const struct happening *h)
{
    char did[128], more[96];
    size_t tid = h->of_room ? track_of(e, h) : 0;

    what(h, did, sizeof(did));
    details(h, more, sizeof(more));
    if (tid)
        take_phase(e, h, tid);
    event(e, "i", h->side, tid, h->ns);
    unquote(did);
    unquote(more);
    fprintf(e->to, ",\"s\":\"t\",\"name\":\"%s\",\"args\":{\"is\":\"%s\"}}",
        did, more);
    e->last_ns = h->ns;
}

bool trace_perfetto(const struct trace *t, const char *path)
{
    struct events e = {.to = fopen(path, "we")};
    char name[96];
    bool ok;

    if (!e.to)
        return false;
    e.from_ns = e.last_ns = t->got.count ? t->got.all[0].ns : 0;
    fputs("{\"displayTimeUnit\":\"ns\",\"traceEvents\":[", e.to);
    for (uint32_t s = 0; s < t->of->count; s++) {
        snprintf(name, sizeof(name), "mmx-%s %s",
            role_name(t->of->sides[s].role), t->of->sides[s].name);
        name_of(&e, "process_name", s, 0, name);
    }
    for (size_t i = 0; i < t->got.count; i++)
        take(&e, &t->got.all[i]);
    for (size_t tid = 1; tid <= e.count; tid++)
        end_phase(&e, tid, e.last_ns, true);
    fputs("\n]}\n", e.to);
    ok = !ferror(e.to);
    return fclose(e.to) == 0 && ok;
}
