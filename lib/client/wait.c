/* wait.c - waits for one room or one ticket; deadlines that a handle holds
 * itself, for a daemon that hangs.
 *
 * A daemon that is stopped or stuck ends no room and answers nothing, and its
 * socket stays open. So the handle knows when the deadline of each of its rooms
 * passes. LOOK_MS later, when the daemon's own event must have come, it asks a
 * question that every daemon answers at once; rooms whose question has no
 * answer after SILENT_MS fail as daemon-silent. A daemon that answers decides
 * by itself (a room may go on after its deadline: at the encode side that only
 * limits the wait until destinations ask), and the room is not looked at again.
 *
 * Invariants. m->due is not later than any room's deadline; the timer of the
 * handle, or of mmx_fd, expires at m->due while the link is up. It may expire
 * for a room that has ended: the check that follows finds the next deadline.
 * Whatever a wait receives becomes events, which mmx_step still returns. Near
 * its end a wait that is long enough asks that question too, so that its reason
 * says who is to blame. The handle's lock guards the deadlines.
 *
 * Rejected: asking all the time (a handle without overdue rooms sends nothing),
 * and ending the connection (rooms would lose their rows although the daemon
 * may go on a moment later). */
#include "client/client.h"

/* deadlines */

/* Handles a room whose deadline has passed. */
static void look(mmx *m, struct client_room *r, uint64_t now)
{
    if (!r->doubt) {
        r->doubt = client_doubt(m);
        r->due = now + SILENT_MS;
        return;
    }
    r->due = 0;
    if (!client_is_answered(m, r->doubt))
        client_room_fail(m, r, MMX_E_DAEMON_SILENT);
}

void client_due_look(mmx *m)
{
    uint64_t now, next = TIME_NEVER;

    if (m->link != LINK_UP || m->due == TIME_NEVER)
        return;
    now = client_now();
    if (now < m->due)
        return;
    for (uint32_t i = 0; i < m->granted && m->link == LINK_UP; i++) {
        struct client_room *r = &m->rooms[i];

        if (!r->due || !client_room_open(m, r))
            continue;
        if (r->due <= now)
            look(m, r, now);
        if (r->due)
            next = min_u64(next, r->due);
    }
    if (m->link != LINK_UP)
        return;
    m->due = next;
    client_arm(m);
}

/* waits */

/* Receives until ended(m, arg), called with the lock held, is not 0. The lock
 * is not held before and after. Returns 0 if it is 1, else the negative reason,
 * or -MMX_E_DAEMON_SILENT or -MMX_E_TIMEOUT. */
static int wait_for(
    mmx *m, int timeout_ms, int (*ended)(mmx *m, void *arg), void *arg)
{
    struct client_patience p = {timeout_ms, client_end(timeout_ms), 0};
    /* The first round checks without receiving: a poll costs no more than a
     * receive that finds nothing. */
    bool receive = timeout_ms == 0;

    for (;; receive = true) {
        int64_t left = client_left(p.end);
        int sock, did, err = client_lock(m);

        if (err)
            return err;
        client_flush(m);
        if (receive && client_receive(m))
            client_due_look(m);
        did = ended(m, arg);
        if (receive)
            client_lend(m, !did);
        if (!did)
            did = client_late(m, &p, left);
        sock = m->sock;
        client_unlock(m);
        if (did)
            return did < 0 ? did : 0;
        client_poll(sock, left);
    }
}

struct happening {
    mmx_room room;
    uint32_t what;
};

/* Returns 1 if the room has reported a bit of `what`, 0 if not yet, the
 * negative reason if it never will. */
static int has_happened(mmx *m, void *arg)
{
    const struct happening *a = arg;
    const struct client_room *r = client_room(m, a->room);

    if (!r)
        return -MMX_E_STALE;
    if (r->seen & a->what)
        return 1;
    if (r->state == MMX_FAILED_STATE)
        return r->reason ? -(int)r->reason : -MMX_E_ABORTED;
    if (r->seen & MMX_DONE)
        return -MMX_E_STALE;
    return 0;
}

int mmx_wait_room(mmx *m, mmx_room h, uint32_t what, int timeout_ms)
{
    struct happening a = {h, what};

    return wait_for(m, timeout_ms, has_happened, &a);
}

struct awaited {
    int space;
    const char *request;
    struct mmx_seq *out;
};

static int outcome(mmx *m, void *arg)
{
    const struct awaited *a = arg;

    return client_ticket_outcome(m, a->space, a->request, a->out);
}

int mmx_ticket_wait(
    mmx *m, int space, const char *request, int timeout_ms, struct mmx_seq *out)
{
    struct awaited a = {space, request, out};

    return out ? wait_for(m, timeout_ms, outcome, &a) : -MMX_E_MALFORMED;
}
