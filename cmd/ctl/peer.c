/* peer.c - the doctor's checks of the other daemons: whether they are up, how
 * rows travel, and, if there was no request yet, whether their port answers.
 * langd connects to an encoder at first use, so a missing connection is no
 * fault, but a port that refuses connections is one. The test runs on langd's
 * host but outside its sandbox, so it does not notice what the unit forbids. */
#include "ctl.h"

#include "core/conf/address.h"

#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { TRY_MS = 2000 };

static int try_one(const struct addrinfo *a)
{
    int error = 0, s = socket(a->ai_family, a->ai_socktype | SOCK_NONBLOCK, 0);
    struct pollfd p = {.fd = s, .events = POLLOUT};
    socklen_t size = sizeof(error);

    if (s < 0)
        return errno;
    if (connect(s, a->ai_addr, a->ai_addrlen) != 0) {
        error = errno;
        if (error == EINPROGRESS && poll(&p, 1, TRY_MS) != 1)
            error = ETIMEDOUT;
        else if (error == EINPROGRESS)
            getsockopt(s, SOL_SOCKET, SO_ERROR, &error, &size);
    }
    close(s);
    return error;
}

/* Connects to tcp://host:port. why: the error, "" if there is none. */
static void try_port(const char *address, char why[128])
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *list = NULL;
    struct address at;
    char host[130], port[8];
    int error;

    snprintf(why, 128, "not known");
    if (!address_split(span_str(address), &at))
        return;
    span_copy_str(at.host, host, sizeof(host));
    span_copy_str(at.port, port, sizeof(port));
    error = getaddrinfo(host, port, &hints, &list);
    if (error) {
        snprintf(why, 128, "%s", gai_strerror(error));
        return;
    }
    error = list ? try_one(list) : ENOENT;
    freeaddrinfo(list);
    snprintf(why, 128, "%s", error ? strerror(error) : "");
}

/* True if the trouble may end by itself: the peer is away. */
static bool passes(const char *trouble)
{
    static const char *const away[] = {
        "lost", "no-address", "refused", "timeout", "no-route"};
    bool found = false;

    for (uint32_t i = 0; i < ARRAY_LEN(away); i++)
        found |= !strcmp(trouble, away[i]);
    return found;
}

/* Reports the trouble that the daemon knows of; false: there is none. A peer
 * without a name may be no daemon but a port scanner. */
static bool say_trouble(struct findings *r, const char *who, struct reader row)
{
    char trouble[24], what[192], mend[256], text[512];

    rows_get(row, "trouble", trouble, sizeof(trouble));
    rows_get(row, "what", what, sizeof(what));
    rows_get(row, "mend", mend, sizeof(mend));
    if (!trouble[0] || !strcmp(trouble, "-"))
        return false;
    snprintf(text, sizeof(text), "%s: %s", who, what);
    findings_say(
        r, passes(trouble) || who[0] == '-' ? WARN : FAIL, "peer", text, mend);
    return true;
}

static void say_up(struct findings *r, const char *who, struct reader row)
{
    char path[160], same[8], way[8], moved[24], carrier[16], not [128];
    char text[640];

    rows_get(row, "same_host", same, sizeof(same));
    rows_get(row, "path", way, sizeof(way));
    rows_get(row, "rooms_moved", moved, sizeof(moved));
    rows_get(row, "transport", path, sizeof(path));
    rows_get(row, "carrier", carrier, sizeof(carrier));
    rows_get(row, "not_by", not, sizeof(not ));
    if (!path[0] || !strcmp(path, "-")) /* langd's connections have no name */
        snprintf(path, sizeof(path), "%s",
            !strcmp(moved, "0") ? "no rows have moved yet" : "");
    snprintf(text, sizeof(text), "%s is up, %s, %scarrier %s%s%s%s%s%s", who,
        same[0] == '1' ? "on this host" : "on another host",
        !strcmp(way, "copy") ? "rows are copied, " : "", carrier,
        not [0] ? " (" : "", not, not [0] ? ")" : "", path[0] ? ", " : "",
        path);
    findings_say(r, FINE, "peer", text, "");
}

static void say_peer(struct findings *r, struct reader row)
{
    char name[130], address[130], state[16], why[128], who[270], text[512];

    rows_get(row, "name", name, sizeof(name));
    rows_get(row, "address", address, sizeof(address));
    rows_get(row, "state", state, sizeof(state));
    if (!strcmp(address, "-"))
        address[0] = 0; /* a langd has no address */
    snprintf(
        who, sizeof(who), "%s%s%s", name, address[0] ? " at " : "", address);
    if (say_trouble(r, who, row))
        return;
    if (!strcmp(state, "up")) {
        say_up(r, who, row);
        return;
    }
    if (!strcmp(state, "draining")) {
        snprintf(text, sizeof(text), "%s drains: it takes no new rooms", who);
        findings_say(r, WARN, "peer", text,
            "mmxctl undrain there, unless it is to be taken out");
        return;
    }
    try_port(address, why);
    snprintf(text, sizeof(text), "%s is %s, %s%s", who,
        strcmp(state, "named") ? state : "not connected yet",
        why[0] ? "its port: " : "its port answers", why);
    findings_hold(r, !why[0], WARN, "peer", text,
        "check that this mmx-encoded runs, and that its control.listen, "
        "firewalls and IPAddressAllow let this host in");
}

void doctor_peers(struct findings *r, struct reader rows, bool langd)
{
    struct reader row;

    if (rows.len == 0)
        findings_say(r, WARN, "peers", "none",
            langd
                ? "name encoders under peers, or allow their addresses with "
                  "control.allow"
                : "no langd has connected yet: see peers and control.allow of "
                  "langd");
    while (rows_next(&rows, &row))
        say_peer(r, row);
}
