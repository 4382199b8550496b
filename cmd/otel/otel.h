/* otel.h - shared by the files of mmx-otel: spans.c makes spans of a daemon's
 * happenings, otlp.c packs them, post.c sends them. All memory has a fixed
 * size; what does not fit is dropped and counted. One thread. */
#ifndef MMX_CMD_OTEL_H
#define MMX_CMD_OTEL_H

#include "cmd/ctl/trace.h"
#include "wire/context.h"

enum { SPANS_MAX = 8192, BATCH_MAX = 256, BODY_MAX = 256 * 1024 };
enum { LIVES_SETS = 2048, LIVES_WAYS = 8 };

enum span_name {
    SPAN_REQUEST,
    SPAN_WAIT_BLOCKS,
    SPAN_ENCODE,
    SPAN_TRANSFER,
    SPAN_READY
};

struct otel_span {
    struct traceparent of; /* the engine's trace and parent */
    uint64_t id, room;
    int64_t from_ns, to_ns; /* Unix time */
    uint32_t rows;          /* ROWS_UNKNOWN: not known */
    enum span_name name;
    char peer[64];
    char reason[32]; /* why the room failed; "": it did not */
};

/* A room. Times are of the daemon's clock; 0: not yet. */
struct life {
    uint64_t room, used; /* turn of the last use; 0: the place is free */
    struct traceparent of;
    bool traced, lang;
    uint32_t granted, rows;
    int64_t asked_ns;            /* time of the request, or of the announce */
    int64_t waits_ns;            /* since when it waits for blocks */
    int64_t waited_ns, had_ns;   /* begin and end of the last wait */
    int64_t encode_ns, wrote_ns; /* first source block, last commit */
    int64_t moves_ns;            /* first rows that are sent, or land */
    int64_t ready_ns;
    char peer[64];
};

/* The rooms of one daemon, and their spans that wait to be sent, in order. */
struct lives {
    char service[16], name[64]; /* the program, and the daemon's own name */
    int64_t unix_ns;            /* Unix time less that of the daemon's clock */
    uint64_t turn;              /* happenings taken */
    uint64_t first, count;      /* numbers of the first span and the next one */
    uint64_t dropped;           /* spans for which there was no place */
    uint64_t forgotten;         /* rooms that gave their place to newer ones */
    uint64_t hidden;            /* contexts of other users */
    struct otel_span spans[SPANS_MAX];
    struct life at[LIVES_SETS][LIVES_WAYS]; /* zero for another run */
};

/* Takes the daemon's next happening; appends the spans that it completes. */
void spans_take(struct lives *l, const struct happening *h);

/* Packs the first `count` spans as a request of OTLP. Returns its bytes. */
size_t otlp_pack(const struct lives *l, uint32_t count, uint8_t out[BODY_MAX]);
/* Returns how many spans the receiver says in its answer that it rejected. */
uint64_t otlp_rejected(struct span answer);

enum posted {
    POST_WAITS, /* no request is under way, or it has no answer yet */
    POST_DONE,
    POST_LATER,  /* not taken now, perhaps later */
    POST_REFUSED /* not taken, and never will be */
};

/* One request at a time, and the first bytes of its answer. */
struct post {
    void *all, *one; /* handles of libcurl */
    char *shown;     /* the URL without user and password */
    bool busy;
    char why[256]; /* why the last request was not taken */
    uint8_t body[BODY_MAX], answer[4096];
    size_t answer_len;
};

/* False: libcurl does not start, or the URL is not one of http or https. */
bool post_open(struct post *p, const char *url);
/* Sends the first bytes of the body, which stay as they are until the answer.
 */
void post_send(struct post *p, size_t len);
/* Waits for the answer, a descriptor or the time, whatever is first. */
enum posted post_wait(struct post *p, int fd, int ms);

#endif
