/* records_fuzz.c - encrypted records, changed on their way, are opened by
 * tcp_records.c.
 *
 * Input: how much is read at a time, after how many bytes keys change, then
 * changes of the sealed bytes, 6 bytes each: what, where, how much, value.
 * Holds: what is opened is what was sealed, from its beginning and in order,
 * whatever was changed; without changes it is all of it. One thread. */
#include "base/check.h"
#include "io/data/tcp_records.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define ROWS  ((size_t)100 * 1024)
#define WIRE  (ROWS + ROWS / 4)
#define EDITS 8

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static uint8_t byte_of(size_t i)
{
    return (uint8_t)(i * 7 + (i >> 8) * 3 + (i >> 16));
}

/* Seals rows in pieces of many lengths; returns the bytes of the records. */
static size_t sealed(const uint8_t *secret, uint64_t rekey, uint8_t *wire)
{
    static uint8_t rows[ROWS];
    struct tcp_records *r =
        tcp_records_new(EVP_aes_128_gcm(), EVP_sha256(), secret, rekey);
    size_t at = 0, len = 0, piece = 1;
    int fds[2];

    CHECK(r && socketpair(AF_UNIX, SOCK_STREAM, 0, fds) == 0, "memory");
    for (size_t i = 0; i < ROWS; i++)
        rows[i] = byte_of(i);
    while (at < ROWS || tcp_records_wait(r)) {
        size_t n = piece < ROWS - at ? piece : ROWS - at;
        struct iovec iov = {rows + at, n};
        ssize_t sent = tcp_records_send(r, fds[0], &iov, n > 0), got;

        CHECK(sent >= 0 || errno == EAGAIN, "%zu bytes", n);
        at += sent > 0 ? (size_t)sent : 0;
        piece = piece < ROWS / 3 ? piece * 3 : 1;
        while ((got = recv(fds[1], wire + len, WIRE - len, MSG_DONTWAIT)) > 0)
            len += (size_t)got;
    }
    close(fds[0]);
    close(fds[1]);
    tcp_records_free(&r);
    return len;
}

/* Makes one change to the sealed bytes. */
static size_t edit(uint8_t *p, size_t len, const uint8_t *e)
{
    size_t at = ((size_t)e[1] << 16 | (size_t)e[2] << 8 | e[3]) % len;
    size_t n = e[4] < len - at ? e[4] : len - at;

    switch (e[0] % 4) {
    case 0: /* flips bits */
        p[at] ^= e[5];
        return len;
    case 1: /* leaves bytes out */
        memmove(p + at, p + at + n, len - at - n);
        return len - n > 0 ? len - n : len;
    case 2: /* repeats bytes */
        n = n < WIRE - len ? n : 0;
        memmove(p + at + n, p + at, len - at);
        return len + n;
    default: /* changes a header's length */
        p[at] = 23;
        if (at + 4 < len) {
            p[at + 3] = e[4];
            p[at + 4] = e[5];
        }
        return len;
    }
}

/* Returns how many rows could be opened. */
static size_t opened(
    struct tcp_records *r, const uint8_t *wire, size_t len, size_t step)
{
    static uint8_t place[RECORD_MAX + 1000];
    struct iovec iov[] = {
        {place, 10}, {place + 10, 500}, {place + 510, RECORD_MAX + 490}};
    size_t rows = 0;
    ssize_t n = -1;
    int fds[2];

    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, fds) == 0, "sockets");
    errno = EAGAIN;
    for (size_t at = 0; at < len && n < 0 && errno == EAGAIN;) {
        size_t part = step < len - at ? step : len - at;

        CHECK(send(fds[0], wire + at, part, 0) == (ssize_t)part, "sent");
        CHECK(tcp_records_read(r, fds[1]) == (ssize_t)part, "read");
        at += part;
        while ((n = tcp_records_open(r, iov)) > 0)
            for (ssize_t i = 0; i < n; i++, rows++)
                CHECK(place[i] == byte_of(rows), "row byte %zu", rows);
    }
    close(fds[0]);
    close(fds[1]);
    return rows;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const uint8_t secret[32] = "of the two ends";
    static uint8_t wire[WIRE];
    struct tcp_records *r;
    size_t len, rows;

    if (size < 2)
        return 0;
    len = sealed(secret, 1 + 100 * (uint64_t)data[1], wire);
    for (size_t i = 2; i + 6 <= size && i < 2 + 6 * EDITS; i += 6)
        len = edit(wire, len, data + i);
    r = tcp_records_new(EVP_aes_128_gcm(), EVP_sha256(), secret, 0);
    CHECK(r, "memory");
    rows = opened(r, wire, len, 100 + (size_t)data[0] * 500);
    CHECK(size >= 8 || rows == ROWS, "%zu of %zu bytes", rows, ROWS);
    tcp_records_free(&r);
    return 0;
}
