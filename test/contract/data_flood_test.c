/* data_flood_test.c - floods of strangers at a port for rows: how much they
 * cost, and whether a peer can prove its key beside them. Both kinds of proof:
 * plain and encrypted. */
#include "io/data/tcp.h"
#include "test/relay.h"
#include "test/side.h"
#include "test/t.h"

#include <poll.h>
#include <sys/resource.h>

/* Sanitizers keep freed memory. Clang has no such macros here. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) ||           \
    defined(__clang__)
#define SANITIZED true
#else
#define SANITIZED false
#endif

/* Returns bytes of this process that are in memory. */
static size_t resident(void)
{
    size_t total = 0, pages = 0;
    FILE *f = fopen("/proc/self/statm", "re");

    T_TRUE(f && fscanf(f, "%zu %zu", &total, &pages) == 2);
    fclose(f);
    return pages * (size_t)sysconf(_SC_PAGESIZE);
}

/* Skips the case if the process cannot have n descriptors. */
static void many_descriptors(int n)
{
    struct rlimit most;

    T_EQ_I64(getrlimit(RLIMIT_NOFILE, &most), 0);
    most.rlim_cur = most.rlim_max;
    T_EQ_I64(setrlimit(RLIMIT_NOFILE, &most), 0);
    if (getdtablesize() < n)
        t_skip("%d descriptors are too few", getdtablesize());
}

TEST(half_open_proofs_are_bounded)
{
    enum { FLOOD = 5000 };

    many_descriptors(FLOOD + 600);
    for (int encrypt = 0; encrypt < 2; encrypt++) {
        struct data_conf c = side_conf();
        SIDE a, b;
        struct tcp_place place;
        size_t before;
        uint8_t p[8];
        int fds[FLOOD];

        c.inbound_max = 512;
        c.greeting_ms = T_NEVER_MS;
        side_open(&a, side_safe(encrypt));
        side_open_with(&b, side_safe(encrypt), &c);
        T_OK(tcp_place_get(data_tcp.address(b.d), &place));
        before = resident();
        for (int i = 0; i < FLOOD; i++) {
            T_OK(tcp_connect(&place, 0, &fds[i]));
            (void)!write(fds[i], encrypt ? "\26\3\1" : "tcp3", 3);
            side_turn(&b, NULL);
        }
        side_settle(&b, NULL);
        T_CHECK(SANITIZED || resident() < before + 32 * MIB,
            "%zu KiB for %d half-open", (resident() - before) / KIB, FLOOD);
        side_fill(p, sizeof(p), 1);
        T_OK(a.ops->connect(a.d, 0, b.ops->address(b.d), NO_KEY));
        T_OK(side_post(&a, 0, 1, p, sizeof(p)));
        side_until(&a, &b, &b.arrived_count, 1);
        T_TRUE(b.counts.strangers >= FLOOD - 512);
        for (int i = 0; i < FLOOD; i++)
            close(fds[i]);
    }
}

/* Opens both ends with a relay between them; b allows time for a greeting. */
static void far_apart(
    struct side *a, struct side *b, struct relay *r, bool encrypt)
{
    struct data_conf c = side_conf();

    c.inbound_max = 512;
    c.greeting_ms = T_NEVER_MS;
    side_open(a, side_safe(encrypt));
    side_open_with(b, side_safe(encrypt), &c);
    relay_open(r, b);
}

/* Connects through the relay, for a message of 8 bytes. */
static void send_through(struct side *a, const struct relay *r)
{
    static uint8_t p[8];

    T_OK(a->ops->connect(a->d, 0, span_of(r->address, r->address_len), NO_KEY));
    side_send(a, 0, 1, p, sizeof(p));
}

/* More strangers connect than there are places, and send a few bytes. */
static void flood(struct side *b, const struct tcp_place *to, bool encrypt)
{
    enum { PLACES = 128 };
    static int fds[2 * PLACES];
    static uint32_t at;

    for (int i = 0; i < 3 * PLACES / 2; i++, at++) {
        int *fd = &fds[at % ARRAY_LEN(fds)];

        if (*fd > 0)
            close(*fd);
        T_OK(tcp_connect(to, 0, fd));
        (void)!write(*fd, encrypt ? "\26\3\1" : "tcp3", 3);
        side_turn(b, NULL);
    }
}

/* While the peer waits for each answer, strangers take all places anew. */
TEST(a_peer_whose_answers_take_long_proves_its_key_in_a_flood)
{
    for (int encrypt = 0; encrypt < 2; encrypt++) {
        uint64_t limit = t_end_ns(T_WAIT_MS);
        struct side a, b;
        struct relay r;

        far_apart(&a, &b, &r, encrypt);
        send_through(&a, &r);
        while (b.arrived_count == 0) {
            T_CHECK(a.broken_count == 0 && t_now_ns() < limit,
                "it was closed after %zu bytes", r.up.sent);
            relay_turn(&r);
            side_turn(&a, &b);
            if (r.up.sent > 0)
                flood(&b, &r.to, encrypt);
        }
        side_close_both(&a, &b);
        relay_close(&r);
    }
}

/* Opens n connections that send `len` bytes of p; `keep` has room for n. */
static void crowd(struct side *b, const struct tcp_place *to, int *keep, int n,
    const uint8_t *p, size_t len)
{
    for (int i = 0; i < n; i++) {
        T_OK(tcp_connect(to, 0, &keep[i]));
        (void)!send(keep[i], p, len, MSG_NOSIGNAL);
        side_turn(b, NULL);
    }
}

static void crowd_ends(const int *fds, int n)
{
    for (int i = 0; i < n; i++)
        close(fds[i]);
}

/* A peer's host sends its first bytes long after it has connected. */
TEST(a_peer_that_speaks_late_proves_its_key_beside_silent_ones)
{
    enum { SILENT = 900 };

    many_descriptors(8 * 1024 + 1);
    for (int encrypt = 0; encrypt < 2; encrypt++) {
        struct side a, b;
        struct relay r;
        int fds[SILENT];

        far_apart(&a, &b, &r, encrypt);
        send_through(&a, &r);
        while (r.up.from < 0)
            relay_accept(&r);
        side_settle(&b, NULL);
        crowd(&b, &r.to, fds, SILENT, NULL, 0);
        relay_until(&r, &a, &b, &b.arrived_count, 1);
        T_EQ_U64(b.arrived_count, 1);
        crowd_ends(fds, SILENT);
        side_close_both(&a, &b);
        relay_close(&r);
    }
}

/* An eavesdropper repeats a peer's first bytes many times: its connections
 * evict each other, and not the peer's. */
TEST(a_name_that_was_heard_spares_no_crowd)
{
    enum { NAMED = 140, SILENT = 900 };

    many_descriptors(8 * 1024 + 1);
    for (int encrypt = 0; encrypt < 2; encrypt++) {
        struct side a, b;
        struct relay r;
        int fds[NAMED + SILENT];

        far_apart(&a, &b, &r, encrypt);
        send_through(&a, &r);
        while (r.up.sent == 0 || r.up.sent < r.up.len) {
            side_turn(&a, NULL);
            relay_turn(&r);
        }
        crowd(&b, &r.to, fds, NAMED, r.up.heard, r.up.len);
        relay_end(&r);
        side_until(&a, &b, &a.broken_count, 1);
        a.broken_count = 0;
        a.ops->disconnect(a.d, 0);
        send_through(&a, &r);
        while (r.up.from < 0)
            relay_accept(&r);
        side_settle(&b, NULL);
        crowd(&b, &r.to, fds + NAMED, SILENT, NULL, 0);
        relay_until(&r, &a, &b, &b.arrived_count, 1);
        T_EQ_U64(b.arrived_count, 1);
        crowd_ends(fds, NAMED + SILENT);
        side_close_both(&a, &b);
        relay_close(&r);
    }
}

/* A byte now and then does not prolong a proof. */
TEST(a_slow_proof_ends)
{
    for (int encrypt = 0; encrypt < 2; encrypt++) {
        SIDE b;
        struct tcp_place place;
        uint64_t begun = t_now_ns();
        bool over = false;
        int fd;

        side_open_soon(&b, side_safe(encrypt));
        T_OK(tcp_place_get(data_tcp.address(b.d), &place));
        T_OK(tcp_connect(&place, 0, &fd));
        for (int i = 0; !over && i < 4000; i++) {
            struct pollfd p = {.fd = fd, .events = POLLIN};
            const char *slow = encrypt ? "\26\3\1\2\0\1\0\1\374\3\3" : "tcp3";
            size_t n = strlen(slow);

            (void)!send(fd, i < (int)n ? slow + i : "", 1, MSG_NOSIGNAL);
            side_turn(&b, NULL);
            over = poll(&p, 1, 25) == 1;
        }
        T_TRUE(over && t_now_ns() - begun >= SIDE_SOON_MS * NS_PER_MS);
        T_EQ_U64(b.counts.strangers, 1);
        close(fd);
    }
}
