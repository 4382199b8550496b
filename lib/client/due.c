/* due.c - deadlines that a handle holds itself, for a daemon that hangs.
 *
 * A daemon that is stopped or stuck ends no room and answers nothing, and its
 * socket stays open. So the handle knows when the deadline of each of its rooms
 * passes. LOOK_MS later, when the daemon's own event must have come, it asks a
 * question that every daemon answers at once; rooms whose question has no
 * answer after SILENT_MS fail as daemon-silent. A daemon that answers judges by
 * itself (a room may go on after its deadline: the encode side's is for the
 * first destination only), and the room is not looked at again.
 *
 * Invariants. m->due is not later than any room's; the timer of the handle, or
 * of mmx_fd, goes off then while the link is up. It may go off for a room that
 * has ended: the look that follows finds the next. Under the handle's lock.
 *
 * Rejected: asking all the time (a handle without overdue rooms sends nothing),
 * and ending the connection (rooms that have rows would lose them for a daemon
 * that goes on a moment later). */
#include "client/client.h"

/* Asks for a pool that cannot be: any daemon answers that, and counts nothing.
 * If nothing more fits, the message before it asks as well. */
uint32_t client_doubt(mmx *m)
{
    struct local_msg msg = {
        .type = LOCAL_POOL, .pool = {.name = span_str("?")}};

    if (m->doubt && !client_is_answered(m, m->doubt))
        return m->doubt;
    (void)client_put(m, &msg, 0, NONE, 0, NULL);
    client_flush(m);
    m->doubt = m->seq;
    return m->doubt;
}

/* Looks at a room that is due. */
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
