/* slow_names.c - preloaded into a daemon by a test: the host MMX_SLOW_NAME is
 * looked for during 20 seconds and not found, as one whose servers do not
 * answer; other names are looked for as ever. Any thread; it keeps nothing.
 * Rejected: a name server of our own, which needs a file of the machine. */
#include <dlfcn.h>
#include <netdb.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int getaddrinfo(const char *name, const char *service,
    const struct addrinfo *hints, struct addrinfo **out)
{
    int (*real)(const char *, const char *, const struct addrinfo *,
        struct addrinfo **) = NULL;
    const char *slow = getenv("MMX_SLOW_NAME");

    if (name && slow && strcmp(name, slow) == 0) {
        sleep(20);
        return EAI_AGAIN;
    }
    *(void **)&real = dlsym(RTLD_NEXT, "getaddrinfo");
    return real ? real(name, service, hints, out) : EAI_SYSTEM;
}
