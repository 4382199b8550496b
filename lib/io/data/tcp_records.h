/* tcp_records.h - the records of TLS 1.3 that carry rows, in one direction,
 * once OpenSSL has made the handshake (tcp_tls.c). Each end seals or opens,
 * never both. Private to lib/io/data. Called only by the thread that owns the
 * carrier. */
#ifndef MMX_IO_TCP_RECORDS_H
#define MMX_IO_TCP_RECORDS_H

#include "base/base.h"

#include <openssl/evp.h>
#include <sys/types.h>
#include <sys/uio.h>

#define RECORD_MAX        ((size_t)16 * 1024) /* bytes of rows in a record */
#define RECORD_SECRET_MAX 48                  /* of SHA-384 */

struct tcp_records;

/* Makes the records of one direction. secret: the client's first traffic
 * secret, as long as the hash; it is copied. rekey: at a sender the bytes after
 * which its keys change, at a receiver 0. NULL: no memory, with a log line. */
struct tcp_records *tcp_records_new(const EVP_CIPHER *cipher,
    const EVP_MD *hash, const uint8_t *secret, uint64_t rekey);
/* Accepts a pointer to NULL. */
void tcp_records_free(struct tcp_records **r);

/* Sends what waits inside, then seals bytes of iov, which it changes, and sends
 * them. Returns how many it has sealed: they count as sent, but may wait
 * inside. -1 with errno: EAGAIN, nothing was sealed since earlier bytes still
 * wait; EFAULT, nothing, since pages of the first record are missing. */
ssize_t tcp_records_send(
    struct tcp_records *r, int fd, struct iovec *iov, unsigned n);
/* Returns the sealed bytes that wait for room in the socket. */
size_t tcp_records_wait(const struct tcp_records *r);

/* Reads from the socket, once; returns as recv(). Open all records before the
 * next call. */
ssize_t tcp_records_read(struct tcp_records *r, int fd);
/* Decrypts the next record into iov, which takes RECORD_MAX bytes at least, and
 * returns its bytes; 0: the other end has ended the connection. -1 with errno:
 * EAGAIN, no whole record was read; EFAULT, pages of its place are missing;
 * EPROTO, not what the other end wrote, or not understood. After an error iov
 * may hold bytes that are not authentic. */
ssize_t tcp_records_open(struct tcp_records *r, const struct iovec *iov);

#endif
