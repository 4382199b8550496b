/* local_test.c - the engines' socket: packets, frames, what breaks the rules,
 * and engines that do not read. */
#include "test/unit/local_side.h"

#include "base/fds.h"

TEST_AROUND(frames_of_one_packet_are_answered_in_order, start(), stop())
{
    struct reading r;
    int s = client();

    send_frames(s, 1, 100);
    r = (struct reading){s, 1, 101};
    T_WAIT(all_read, &r);
    T_EQ_U64(seen.opened, 1);
    T_EQ_U64(
        seen.groups.count, min_u32((uint32_t)getgroups(0, NULL), GROUPS_MAX));
    T_EQ_U64(seen.messages, 100);
    T_EQ_U64(seen.uid, getuid());
    T_EQ_I64(seen.pid, getpid());
    close(s);
    wait_for(&seen.ended, 1);
    T_EQ_U64(seen.dead, 0);
}

/* RULES 7.8 */
TEST_AROUND(what_was_sent_before_the_end_is_read, start(), stop())
{
    int s = client();

    send_frames(s, 1, 3);
    close(s); /* answers are unread: the server gets a reset */
    wait_for(&seen.ended, 1);
    T_EQ_STR(seen.order, "ommme");
}

TEST_AROUND(many_small_packets_before_the_end_are_read, start(), stop())
{
    int s = client();

    for (uint32_t i = 0; i < 150; i++)
        send_frames(s, i + 1, 1);
    close(s);
    wait_for(&seen.ended, 1);
    T_EQ_U64(seen.messages, 150);
}

/* A packet of thousands of frames delays no other connection, and all of its
 * frames are taken although its sender has gone. */
/* RULES 7.8 */
TEST_AROUND(frames_of_one_packet_wait_for_other_connections, start(), stop())
{
    struct reading r;
    int a, b;

    a = client();
    wait_for(&seen.opened, 1);
    b = client();
    wait_for(&seen.opened, 2);
    send_frames(a, 1, 5000);
    close(a);
    send_frames(b, 1, 1);
    r = (struct reading){b, 1, 2};
    T_WAIT(all_read, &r);
    T_CHECK(seen.messages <= 5 * 64, "%u frames before one of another",
        seen.messages);
    wait_for(&seen.ended, 1);
    T_EQ_U64(seen.messages, 5001);
    close(b);
}

static void expect_malformed_end(int s, uint32_t seq)
{
    uint8_t p[1024];
    struct reader r;
    struct local_msg m;
    ssize_t n;

    wait_for(&seen.ended, 1);
    n = recv(s, p, sizeof(p), 0);
    T_TRUE(n > 0);
    r = reader_of(p, (size_t)n);
    T_OK(local_get(&r, &m));
    T_EQ_U64(m.type, LOCAL_ANSWER);
    T_EQ_U64(m.seq, seq);
    T_EQ_U64(m.answer.err, ERR_MALFORMED);
    T_EQ_I64(recv(s, p, sizeof(p), 0), 0);
    T_EQ_U64(seen.messages, 0);
    close(s);
}

TEST_AROUND(a_cut_frame_ends_the_connection_after_an_answer, start(), stop())
{
    uint8_t p[64];
    int s = client();
    size_t n = frames(p, sizeof(p), 77, 1);

    p[4] = 1; /* announces one byte of body that is not there */
    T_EQ_I64(send(s, p, n, 0), (ssize_t)n);
    expect_malformed_end(s, 77);
}

TEST_AROUND(a_packet_that_is_no_frame_ends_the_connection, start(), stop())
{
    int s = client();

    T_EQ_I64(send(s, "hello", 5, 0), 5);
    expect_malformed_end(s, 0);
}

TEST(an_unknown_type_is_refused_and_the_connection_stands)
{
    uint8_t p[64];
    struct writer w = writer_of(p, sizeof(p));
    struct reading r;
    int s;

    start();
    s = client();
    put_u16(&w, 999);
    put_u16(&w, 0);
    put_u32(&w, 0);
    put_u32(&w, 1);
    w.len += frames(p + w.len, sizeof(p) - w.len, 2, 1);
    T_EQ_I64(send(s, p, w.len, 0), (ssize_t)w.len);
    r = (struct reading){s, 1, 3};
    T_WAIT(all_read, &r);
    T_EQ_STR(seen.order, "obm");
    T_EQ_U64(seen.err, ERR_BUSY);
    T_EQ_U64(seen.ended, 0);
    close(s);
    stop();
}

static void send_with_fds(int s, int count)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(200 * sizeof(int))];
    } control;
    uint8_t p[64];
    struct iovec iov = {p, frames(p, sizeof(p), 5, 1)};
    struct msghdr m = {.msg_iov = &iov,
        .msg_iovlen = 1,
        .msg_control = control.bytes,
        .msg_controllen = CMSG_SPACE((size_t)count * sizeof(int))};
    struct cmsghdr *h = CMSG_FIRSTHDR(&m);
    int fd = 0;

    memset(&control, 0, sizeof(control));
    h->cmsg_level = SOL_SOCKET;
    h->cmsg_type = SCM_RIGHTS;
    h->cmsg_len = CMSG_LEN((size_t)count * sizeof(int));
    for (int i = 0; i < count; i++)
        memcpy(CMSG_DATA(h) + (size_t)i * sizeof(int), &fd, sizeof(int));
    T_TRUE(sendmsg(s, &m, 0) > 0);
}

static void descriptors(int count)
{
    unsigned before;
    int s;

    start();
    before = open_fds();
    s = client();
    wait_for(&seen.opened, 1);
    send_with_fds(s, count);
    expect_malformed_end(s, 5);
    /* The process lives, so its pidfd is open. */
    T_EQ_U64(open_fds(), before + 1);
    stop();
}

TEST_IS(descriptors_are_closed_and_malformed, descriptors(3));
TEST_IS(more_descriptors_than_fit_are_closed_and_malformed, descriptors(200));

/* RULES 7.3 */
TEST(an_engine_that_does_not_read_is_not_read_and_not_ended)
{
    struct reading r;
    uint32_t sent = 0, other_next;
    int s, other;

    start();
    s = client();
    other = client();
    wait_for(&seen.opened, 2);
    /* Sends until the socket takes no more: the server has stopped reading. */
    for (unsigned idle = 0; idle < 50;) {
        uint8_t p[12000];
        size_t len = frames(p, sizeof(p), sent + 1, 1000);

        if (send(s, p, len, MSG_DONTWAIT) == (ssize_t)len) {
            sent += 1000;
            idle = 0;
        } else {
            idle++;
        }
        pump();
    }
    T_CHECK(seen.messages < sent, "%u of %u were taken", seen.messages, sent);
    T_EQ_U64(seen.ended, 0);
    /* Other clients are not affected. */
    send_frames(other, 1, 1);
    r = (struct reading){other, 1, 2};
    T_WAIT(all_read, &r);
    other_next = r.next;
    T_EQ_U64(other_next, 2);
    /* Once the engine reads, all frames are answered, in order. */
    r = (struct reading){s, 1, sent + 1};
    T_WAIT(all_read, &r);
    T_EQ_U64(seen.messages, sent + 1);
    T_TRUE(seen.writable > 0);
    T_EQ_U64(seen.ended, 0);
    close(s);
    close(other);
    stop();
}

TEST_AROUND(a_blocked_engine_that_goes_is_ended, start(), stop())
{
    uint32_t sent = 0;
    int s = client();

    wait_for(&seen.opened, 1);
    for (unsigned idle = 0; idle < 50; pump()) {
        uint8_t p[12000];
        size_t len = frames(p, sizeof(p), sent + 1, 1000);

        idle = send(s, p, len, MSG_DONTWAIT) > 0 ? 0 : idle + 1;
        sent += idle == 0 ? 1000 : 0;
    }
    close(s);
    wait_for(&seen.ended, 1);
    /* All frames from before its end count. */
    T_EQ_U64(seen.messages, sent);
}

TEST_AROUND(a_full_owner_gets_the_rest_later, start(), stop())
{
    struct reading r;
    int s = client();

    wait_for(&seen.opened, 1);
    seen.full = true;
    send_frames(s, 1, 10);
    for (int i = 0; i < 20; i++)
        pump();
    T_EQ_U64(seen.messages, 0);
    T_TRUE(local_busy(server));
    seen.full = false;
    r = (struct reading){s, 1, 11};
    T_WAIT(all_read, &r);
    close(s);
}

TEST_AROUND(a_held_connection_waits, start(), stop())
{
    struct reading r;
    int s = client();

    wait_for(&seen.opened, 1);
    local_hold(server, 0, true);
    send_frames(s, 1, 10);
    for (int i = 0; i < 20; i++)
        pump();
    T_EQ_U64(seen.messages, 0);
    T_FALSE(local_busy(server));
    local_hold(server, 0, false);
    r = (struct reading){s, 1, 11};
    T_WAIT(all_read, &r);
    close(s);
}

TEST_AROUND(the_end_comes_after_what_is_queued, start(), stop())
{
    struct reading r;
    uint8_t p[16];
    int s = client();

    send_frames(s, 1, 5);
    wait_for(&seen.messages, 5);
    answer(0, 6, OK);
    local_end(server, 0);
    send_frames(s, 7, 1);
    r = (struct reading){s, 1, 7};
    T_WAIT(all_read, &r);
    wait_for(&seen.ended, 1);
    T_EQ_U64(seen.messages, 5);
    /* a reset: the server has not read our last frame */
    (void)recv(s, p, sizeof(p), 0);
    T_EQ_I64(recv(s, p, sizeof(p), 0), 0);
    close(s);
}

/* A control buffer for one descriptor has space for two. */
TEST(one_descriptor_of_a_packet_is_taken_and_no_other_kept)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(2 * sizeof(int))];
    } control = {0};
    char byte = 0;
    struct iovec iov = {&byte, 1};
    struct msghdr m = {.msg_iov = &iov,
        .msg_iovlen = 1,
        .msg_control = control.bytes,
        .msg_controllen = sizeof(control)};
    struct cmsghdr *h = CMSG_FIRSTHDR(&m);
    int s[2], fd;
    unsigned before;

    T_EQ_I64(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, s), 0);
    before = open_fds();
    h->cmsg_level = SOL_SOCKET;
    h->cmsg_type = SCM_RIGHTS;
    h->cmsg_len = CMSG_LEN(2 * sizeof(int));
    memcpy(CMSG_DATA(h), s, sizeof(s));
    T_EQ_I64(sendmsg(s[0], &m, 0), 1);
    m.msg_controllen = CMSG_SPACE(sizeof(int));
    T_EQ_I64(recvmsg(s[1], &m, 0), 1);
    T_EQ_U64(open_fds(), before + 2);
    T_EQ_U64(fds_take(&m, &fd, 1), 2);
    T_TRUE(fd >= 0);
    close(fd);
    T_EQ_U64(open_fds(), before);
    T_EQ_I64(
        sendmsg(s[0], &(struct msghdr){.msg_iov = &iov, .msg_iovlen = 1}, 0),
        1);
    m.msg_controllen = CMSG_SPACE(sizeof(int));
    T_EQ_I64(recvmsg(s[1], &m, 0), 1);
    T_EQ_U64(fds_take(&m, &fd, 1), 0);
    T_EQ_I64(fd, -1);
}
