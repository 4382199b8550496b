/* address.c - see address.h. Stateless.
 *
 * Rejected: patterns that compare text, like tcp://10.1.*. They let in names
 * such as 10.1.evil.example, and the owner of that domain chooses its address.
 */
#include "core/conf/address.h"

#include "base/check.h"
#include "base/text.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>

static bool host_char(uint8_t c, bool six)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') ||
           (c >= 'A' && c <= 'Z') || c == '.' ||
           (six ? c == ':' || c == '%' : c == '-' || c == '_');
}

bool address_split(struct span text, struct address *a)
{
    struct span scheme = span_str("tcp://");

    if (text.len <= scheme.len || memcmp(text.p, scheme.p, scheme.len) != 0)
        return false;
    text = span_of(text.p + scheme.len, text.len - scheme.len);
    a->six = text.p[0] == '[';
    if (a->six) {
        text = span_of(text.p + 1, text.len - 1);
        if (!text_cut(&text, ']', &a->host) || text.len == 0 ||
            text.p[0] != ':')
            return false;
        text = span_of(text.p + 1, text.len - 1);
    } else if (!text_cut(&text, ':', &a->host)) {
        return false;
    }
    a->port = text;
    if (!a->six && span_eq(a->host, span_str("*")))
        return true;
    for (uint32_t i = 0; i < a->host.len; i++)
        if (!host_char(a->host.p[i], a->six))
            return false;
    return a->host.len > 0;
}

bool address_port(struct span s)
{
    uint64_t port;

    return text_number(s, 65535, &port) && port > 0;
}

bool address_wildcard(const struct address *a)
{
    return span_eq(a->host, span_str("*")) ||
           span_eq(a->host, span_str("0.0.0.0")) ||
           (a->six && span_eq(a->host, span_str("::")));
}

/* patterns */

/* Reads a numeric host; false: the host is a name. */
static bool numbers(const struct address *a, uint8_t to[16])
{
    char host[INET6_ADDRSTRLEN];

    if (a->host.len >= sizeof(host))
        return false;
    snprintf(
        host, sizeof(host), "%.*s", (int)a->host.len, (const char *)a->host.p);
    return inet_pton(a->six ? AF_INET6 : AF_INET, host, to) == 1;
}

/* Splits the pattern's text into p->plain and the number of bits. */
static bool take_bits(struct address_pattern *p, const char *text)
{
    size_t len = strlen(text), from = strcspn(text, "/");
    const char *slash, *end;
    uint64_t bits;

    p->bits = ADDRESS_WHOLE;
    if (len >= sizeof(p->plain) || len < from + 2)
        return false;
    slash = strchr(text + from + 2, '/'); /* search behind "tcp://" */
    if (!slash) {
        memcpy(p->plain, text, len + 1);
        return true;
    }
    end = slash + strcspn(slash, ":");
    if (!text_number(span_of(slash + 1, (size_t)(end - slash - 1)), 128, &bits))
        return false;
    p->bits = (uint32_t)bits;
    snprintf(
        p->plain, sizeof(p->plain), "%.*s%s", (int)(slash - text), text, end);
    return true;
}

static bool any_port(const struct address_pattern *p)
{
    return span_eq(p->at.port, span_str("*"));
}

bool address_pattern(struct address_pattern *p, const char *text)
{
    if (!take_bits(p, text) || !address_split(span_str(p->plain), &p->at) ||
        !(any_port(p) || address_port(p->at.port)))
        return false;
    return p->bits == ADDRESS_WHOLE ||
           (numbers(&p->at, p->net) && p->bits <= (p->at.six ? 128u : 32u));
}

static bool in_network(const struct address_pattern *p, const uint8_t *host)
{
    uint32_t whole = p->bits / 8, rest = p->bits % 8;
    uint8_t mask = (uint8_t)(0xff00u >> rest);

    CHECK(p->bits <= 128, "a network of %u bits", p->bits);
    return memcmp(p->net, host, whole) == 0 &&
           (rest == 0 || ((p->net[whole] ^ host[whole]) & mask) == 0);
}

bool address_fits(const struct address_pattern *p, struct span text)
{
    struct address a;
    uint8_t host[16];

    if (text.len >= sizeof(p->plain) || !address_split(text, &a) ||
        !address_port(a.port) || address_wildcard(&a) || a.six != p->at.six ||
        !(any_port(p) || span_eq(a.port, p->at.port)))
        return false;
    return p->bits == ADDRESS_WHOLE ? span_eq(a.host, p->at.host)
                                    : numbers(&a, host) && in_network(p, host);
}
