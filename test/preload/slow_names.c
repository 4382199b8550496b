/* slow_names.c - preloaded into a daemon by a test: a lookup of the host
 * slow.invalid takes a minute and finds nothing, as if its name servers did not
 * answer; moved.invalid has the address in the file MMX_MOVED; other names are
 * looked up as usual. Any thread; it keeps nothing. Rejected: a name server of
 * our own, which needs a file of the machine. */
#include <dlfcn.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int (*lookup)(const char *name, const char *service,
    const struct addrinfo *hints, struct addrinfo **out);

static void read_address(char *to, int size)
{
    const char *path = getenv("MMX_MOVED");
    FILE *f = path ? fopen(path, "r") : NULL;

    to[0] = 0;
    if (!f)
        return;
    if (!fgets(to, size, f))
        to[0] = 0;
    fclose(f);
}

int getaddrinfo(const char *name, const char *service,
    const struct addrinfo *hints, struct addrinfo **out)
{
    lookup real = NULL;
    char moved[64];

    *(void **)&real = dlsym(RTLD_NEXT, "getaddrinfo");
    if (!real)
        return EAI_SYSTEM;
    if (hints && hints->ai_flags & AI_NUMERICHOST)
        return real(name, service, hints, out);
    if (name && strcmp(name, "slow.invalid") == 0) {
        sleep(60);
        return EAI_AGAIN;
    }
    if (name && strcmp(name, "moved.invalid") == 0) {
        read_address(moved, sizeof(moved));
        name = moved;
    }
    return real(name, service, hints, out);
}
