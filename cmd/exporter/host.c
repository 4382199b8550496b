/* host.c - which host names requests may use. A foreign web page in a browser
 * can make its own name resolve to this host (DNS rebinding) and could then
 * read the pages; such requests have the foreign name. A numeric address cannot
 * be redirected. */
#include "exporter.h"

#include "base/check.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <string.h>

enum { NAME_BYTES = 256 };

/* Copies the name from name:port or [address]:port. False: it is neither. */
static bool name_of(const char *header, char out[NAME_BYTES])
{
    bool brackets = header[0] == '[';
    const char *from = header + brackets;
    size_t len = strcspn(from, brackets ? "]" : ":");
    const char *rest = from + len;

    if (brackets && *rest++ != ']')
        return false;
    if (len >= NAME_BYTES || (*rest && *rest != ':') ||
        (*rest && rest[1 + strspn(rest + 1, "0123456789")]))
        return false;
    memcpy(out, from, len);
    out[len] = 0;
    return true;
}

/* True for an address of this server: loopback, the listening address, or any
 * address if that is the wildcard. */
static bool is_ours(const char *name, const struct sockaddr_storage *at)
{
    const struct sockaddr_in *four = (const struct sockaddr_in *)at;
    const struct sockaddr_in6 *six = (const struct sockaddr_in6 *)at;
    struct in6_addr a6;
    struct in_addr a4;

    CHECK(at->ss_family == AF_INET || at->ss_family == AF_INET6,
        "an address of family %d", at->ss_family);
    if (at->ss_family == AF_INET ? four->sin_addr.s_addr == INADDR_ANY
                                 : IN6_IS_ADDR_UNSPECIFIED(&six->sin6_addr))
        return inet_pton(AF_INET, name, &a4) == 1 ||
               inet_pton(AF_INET6, name, &a6) == 1;
    if (inet_pton(AF_INET, name, &a4) == 1)
        return ntohl(a4.s_addr) >> 24 == IN_LOOPBACKNET ||
               (at->ss_family == AF_INET && a4.s_addr == four->sin_addr.s_addr);
    return inet_pton(AF_INET6, name, &a6) == 1 &&
           (IN6_IS_ADDR_LOOPBACK(&a6) ||
               (at->ss_family == AF_INET6 &&
                   IN6_ARE_ADDR_EQUAL(&a6, &six->sin6_addr)));
}

bool host_served(const char *header, const struct sockaddr_storage *at,
    const char *const *names, uint32_t count)
{
    char name[NAME_BYTES];

    CHECK(count == 0 || names[0], "%u names, and no first one", count);
    if (!header) /* no browser */
        return true;
    if (!name_of(header, name))
        return false;
    for (uint32_t i = 0; i < count; i++)
        if (!strcasecmp(name, names[i]))
            return true;
    return !strcasecmp(name, "localhost") || is_ours(name, at);
}
