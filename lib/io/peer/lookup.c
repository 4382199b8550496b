/* lookup.c - getaddrinfo in a thread for each lookup of a name.
 *
 * Invariants: the thread and the owner each release a lookup once, by one
 * exchange of its state; the second one frees it. At most LOOKUPS_MAX threads
 * run, those of dropped lookups included. Only the thread writes the result,
 * before it releases.
 *
 * Rejected: libuv's pool, in which two names without an answer block the half
 * that lookups may use, and for which a loop that ends must wait; ZMQ, which
 * looks names up in the thread that carries the messages of all connections. */
#include "io/peer/lookup.h"

#include "base/check.h"

#include <netdb.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

enum lookup_state { LOOKING, DONE, DROPPED };

struct lookup {
    _Atomic int state;
    char name[256];
    struct lookup_result result;
};

static _Atomic uint32_t running;

static void take(struct lookup_result *r, const struct addrinfo *list)
{
    for (; list && r->count < LOOKUP_ADDRESSES; list = list->ai_next)
        if (getnameinfo(list->ai_addr, list->ai_addrlen, r->addresses[r->count],
                LOOKUP_TEXT, NULL, 0, NI_NUMERICHOST) == 0)
            r->count++;
    if (r->count == 0)
        r->error = "the name has no address";
}

static void *look(void *arg)
{
    struct addrinfo hints = {
        .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    struct addrinfo *list = NULL;
    struct lookup *l = arg;
    int e = getaddrinfo(l->name, NULL, &hints, &list);

    if (e != 0)
        l->result.error = gai_strerror(e);
    else
        take(&l->result, list);
    if (list)
        freeaddrinfo(list);
    CHECK(atomic_fetch_sub(&running, 1) > 0, "more lookups end than began");
    if (atomic_exchange(&l->state, DONE) == DROPPED)
        free(l);
    return NULL;
}

static bool start_thread(struct lookup *l)
{
    sigset_t all, old;
    pthread_attr_t attr;
    pthread_t thread;
    bool ok;

    if (pthread_attr_init(&attr) != 0)
        return false;
    /* Only the loop's thread takes signals. */
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &old);
    ok = pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED) == 0 &&
         pthread_create(&thread, &attr, look, l) == 0;
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    pthread_attr_destroy(&attr);
    return ok;
}

struct lookup *lookup_start(const char *name)
{
    struct lookup *l;

    CHECK(strlen(name) < sizeof(l->name), "a name of %zu bytes", strlen(name));
    if (atomic_fetch_add(&running, 1) >= LOOKUPS_MAX) {
        atomic_fetch_sub(&running, 1);
        return NULL;
    }
    l = calloc(1, sizeof(*l));
    if (l) {
        snprintf(l->name, sizeof(l->name), "%s", name);
        if (start_thread(l))
            return l;
    }
    atomic_fetch_sub(&running, 1);
    free(l);
    return NULL;
}

bool lookup_done(const struct lookup *l, struct lookup_result *out)
{
    if (atomic_load(&l->state) != DONE)
        return false;
    *out = l->result;
    return true;
}

void lookup_drop(struct lookup **out)
{
    struct lookup *l = *out;

    if (l && atomic_exchange(&l->state, DROPPED) == DONE)
        free(l);
    *out = NULL;
}
