/* dump.c - see dump.h. Rejected: snprintf, which may take locks and memory. */
#include "core/trace/dump.h"

#include "core/trace/trace.h"

void line_text(struct line *l, const char *text)
{
    for (; *text && l->len < l->cap; text++)
        l->p[l->len++] = *text;
}

static void digits(struct line *l, uint64_t number, unsigned base, int least)
{
    char out[20];
    int n = 0;

    CHECK(base <= 16 && least <= 16, "base %u, %d digits", base, least);
    do
        out[n++] = "0123456789abcdef"[number % base];
    while ((number /= base) || n < least);
    while (n > 0 && l->len < l->cap)
        l->p[l->len++] = out[--n];
}

void line_number(struct line *l, uint64_t number)
{
    digits(l, number, 10, 1);
}

void line_hex(struct line *l, uint64_t number)
{
    digits(l, number, 16, 16);
}

void line_room(struct line *l, uint64_t id)
{
    line_text(l, "..");
    digits(l, (uint32_t)id, 16, 8);
}

static void named(struct line *l, const char *name, uint32_t value)
{
    if (!name[0] || value == ROWS_UNKNOWN)
        return;
    line_text(l, " ");
    line_text(l, name);
    line_text(l, " ");
    if (strcmp(name, "reason") == 0)
        line_text(l, err_name((enum err)value));
    else
        line_number(l, value);
}

void dump_happening(struct line *l, const struct happening *h, uint64_t now_ns)
{
    uint64_t us = now_ns > h->ns ? (now_ns - h->ns) / 1000 : 0;
    unsigned kind = happening_kind(h);

    line_text(l, "-");
    line_number(l, us / 1000);
    line_text(l, ".");
    digits(l, us % 1000, 10, 3);
    line_text(l, " ms room ");
    line_room(l, h->room);
    line_text(l, " ");
    /* The crash may have interrupted its writing. */
    line_text(
        l, kind < HAPPENED_COUNT ? happening_words[kind].word : "unknown");
    if (kind == HAPPENED_CONTEXT) {
        line_text(l, " ");
        line_hex(l, (uint64_t)h->a << 32 | h->b);
        line_text(l, "\n");
        return;
    }
    if (happening_of(h)) {
        line_text(l, " ");
        line_text(l, peer_name(happening_of(h)));
    }
    if (happening_peer(h) != HAPPENING_PEERS)
        named(l, "peer", happening_peer(h));
    if (kind < HAPPENED_COUNT) {
        named(l, happening_words[kind].a, h->a);
        named(l, happening_words[kind].b, h->b);
    }
    line_text(l, "\n");
}
