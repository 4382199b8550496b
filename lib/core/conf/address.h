/* address.h - addresses of control connections as text, tcp://host:port, and
 * patterns of them. Pure; any thread. */
#ifndef MMX_CORE_CONF_ADDRESS_H
#define MMX_CORE_CONF_ADDRESS_H

#include "base/bytes.h"

/* Its spans lie in the text that it was split from. */
struct address {
    struct span host; /* without brackets */
    bool six;         /* was in brackets */
    struct span port;
};

/* Splits tcp://host:port and checks the host; the port is not checked. */
bool address_split(struct span text, struct address *a);
/* True if it is a port to connect to. */
bool address_port(struct span port);
/* True if it is every address of a host, and none to connect to. */
bool address_wildcard(const struct address *a);

/* One address, tcp://host:port, or those of a network, tcp://net/bits:port; a
 * port may be *, which is any. */
struct address_pattern {
    struct address at; /* lies in `plain` */
    char plain[128];   /* without /bits */
    uint8_t net[16];
    uint32_t bits; /* ADDRESS_WHOLE: the host is that of the text */
};
#define ADDRESS_WHOLE UINT32_MAX

/* Reads a pattern; false: the text is none. */
bool address_pattern(struct address_pattern *p, const char *text);
/* True if the text is an address that the pattern has. A host that is a name is
 * in no network: what it leads to is not known here, and may change. */
bool address_fits(const struct address_pattern *p, struct span text);

#endif
