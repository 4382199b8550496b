/* address.h - addresses of control connections as text, tcp://host:port, and
 * patterns of them. Pure; any thread. */
#ifndef MMX_CORE_CONF_ADDRESS_H
#define MMX_CORE_CONF_ADDRESS_H

#include "base/bytes.h"

/* The spans point into the text that was split. */
struct address {
    struct span host; /* without brackets */
    bool six;         /* the host was in brackets */
    struct span port;
};

/* Splits tcp://host:port and checks the host; the port is not checked. */
bool address_split(struct span text, struct address *a);
/* True if the text is the number of a port that one can connect to. */
bool address_port(struct span port);
/* True if the host stands for every address of this host, so that no one can
 * connect to it. */
bool address_wildcard(const struct address *a);

/* One address, tcp://host:port, or all of a network, tcp://net/bits:port. The
 * port may be *: any port. */
struct address_pattern {
    struct address at; /* spans into `plain` */
    char plain[128];   /* without /bits */
    uint8_t net[16];
    uint32_t bits; /* ADDRESS_WHOLE: the host must equal the text */
};
#define ADDRESS_WHOLE UINT32_MAX

/* Reads a pattern; false: the text is not a pattern. */
bool address_pattern(struct address_pattern *p, const char *text);
/* True if the pattern matches this address. A host name matches no network: its
 * address is not known here, and may change. */
bool address_fits(const struct address_pattern *p, struct span text);

#endif
