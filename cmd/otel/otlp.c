/* otlp.c - spans as a request of OTLP, by protobuf-c and the messages of
 * otlp.proto. Owned by the only thread; its memory has a fixed size. */
#include "otel.h"

#include "base/check.h"
#include "otlp.pb-c.h"

#include <stdio.h>

enum { ATTRIBUTES = 4 };

static const char *const names[] = {
    [SPAN_REQUEST] = "mmx.request",
    [SPAN_WAIT_BLOCKS] = "mmx.wait_blocks",
    [SPAN_ENCODE] = "mmx.encode",
    [SPAN_TRANSFER] = "mmx.transfer",
    [SPAN_READY] = "mmx.ready",
};

/* Attributes, and the pointers to them that protobuf-c needs. */
struct attributes {
    Otlp__KeyValue pairs[ATTRIBUTES], *all[ATTRIBUTES];
    Otlp__AnyValue values[ATTRIBUTES];
    size_t count;
};

/* A span with all that it points to. */
struct packed {
    Otlp__Span span;
    Otlp__Status status;
    struct attributes about;
    uint64_t trace[2], id, parent; /* big-endian */
    char room[16];
};

/* protobuf-c lacks const, but does not write to what it packs. */
static char *text_of(const char *text)
{
    return (char *)(uintptr_t)text;
}

/* Adds an attribute; text NULL: a number. */
static void add(
    struct attributes *a, const char *key, const char *text, uint32_t number)
{
    Otlp__KeyValue *pair = &a->pairs[a->count];
    Otlp__AnyValue *value = &a->values[a->count];

    CHECK(a->count < ATTRIBUTES, "attribute %s is one too many", key);
    *pair = (Otlp__KeyValue)OTLP__KEY_VALUE__INIT;
    *value = (Otlp__AnyValue)OTLP__ANY_VALUE__INIT;
    pair->key = text_of(key);
    pair->value = value;
    value->value_case = text ? OTLP__ANY_VALUE__VALUE_STRING_VALUE
                             : OTLP__ANY_VALUE__VALUE_INT_VALUE;
    if (text)
        value->string_value = text_of(text);
    else
        value->int_value = number;
    a->all[a->count++] = pair;
}

static void fill(struct packed *p, const struct otel_span *s)
{
    Otlp__Span *o = &p->span;

    CHECK(s->from_ns <= s->to_ns, "a span of %lld ns",
        (long long)(s->to_ns - s->from_ns));
    *p = (struct packed){.span = OTLP__SPAN__INIT,
        .status = OTLP__STATUS__INIT,
        .trace = {htobe64(s->of.trace[0]), htobe64(s->of.trace[1])},
        .id = htobe64(s->id),
        .parent = htobe64(s->of.parent)};
    o->trace_id = (ProtobufCBinaryData){16, (uint8_t *)p->trace};
    o->span_id = (ProtobufCBinaryData){8, (uint8_t *)&p->id};
    o->parent_span_id = (ProtobufCBinaryData){8, (uint8_t *)&p->parent};
    o->flags = s->of.flags | 0x300; /* the parent is in another process */
    o->name = text_of(names[s->name]);
    o->kind = OTLP__SPAN__SPAN_KIND__SPAN_KIND_INTERNAL;
    o->start_time_unix_nano = (uint64_t)s->from_ns;
    o->end_time_unix_nano = (uint64_t)s->to_ns;
    /* As in the log: too little of the id to ask for the room. */
    snprintf(p->room, sizeof(p->room), "..%08x", (uint32_t)s->room);
    add(&p->about, "mmx.room", p->room, 0);
    if (s->peer[0])
        add(&p->about, "mmx.peer", s->peer, 0);
    if (s->rows != ROWS_UNKNOWN)
        add(&p->about, "mmx.rows", NULL, s->rows);
    if (s->reason[0]) {
        add(&p->about, "error.type", s->reason, 0);
        p->status.code = OTLP__STATUS__STATUS_CODE__STATUS_CODE_ERROR;
        o->status = &p->status;
    }
    o->attributes = p->about.all;
    o->n_attributes = p->about.count;
}

size_t otlp_pack(const struct lives *l, uint32_t count, uint8_t out[BODY_MAX])
{
    static struct packed packed[BATCH_MAX];
    static Otlp__Span *list[BATCH_MAX];
    Otlp__InstrumentationScope scope = OTLP__INSTRUMENTATION_SCOPE__INIT;
    Otlp__ScopeSpans spans = OTLP__SCOPE_SPANS__INIT, *one = &spans;
    Otlp__Resource about = OTLP__RESOURCE__INIT;
    Otlp__ResourceSpans of = OTLP__RESOURCE_SPANS__INIT, *side = &of;
    Otlp__ExportTraceServiceRequest all =
        OTLP__EXPORT_TRACE_SERVICE_REQUEST__INIT;
    struct attributes who = {.count = 0};

    CHECK(
        count <= BATCH_MAX && count <= l->count - l->first, "%u spans", count);
    for (uint32_t i = 0; i < count; i++) {
        fill(&packed[i], &l->spans[(l->first + i) % SPANS_MAX]);
        list[i] = &packed[i].span;
    }
    add(&who, "service.name", l->service, 0);
    add(&who, "service.instance.id", l->name, 0);
    add(&who, "service.version", MMX_VERSION, 0);
    about.attributes = who.all;
    about.n_attributes = who.count;
    scope.name = text_of("mmx-otel");
    spans.scope = &scope;
    spans.spans = list;
    spans.n_spans = count;
    of.resource = &about;
    of.scope_spans = &one;
    of.n_scope_spans = 1;
    all.resource_spans = &side;
    all.n_resource_spans = 1;
    CHECK(protobuf_c_message_get_packed_size(&all.base) <= BODY_MAX,
        "%u spans are too large", count);
    return protobuf_c_message_pack(&all.base, out);
}

uint64_t otlp_rejected(struct span answer)
{
    Otlp__ExportTraceServiceResponse *r =
        otlp__export_trace_service_response__unpack(NULL, answer.len, answer.p);
    int64_t n =
        r && r->partial_success ? r->partial_success->rejected_spans : 0;

    if (r)
        otlp__export_trace_service_response__free_unpacked(r, NULL);
    return n > 0 ? (uint64_t)n : 0;
}
