/* sealed.c - measures what encrypted rows are compared with: OpenSSL alone at
 * both ends of one TCP connection, built only for speed. Records are encrypted
 * straight from the source and gathered, 16 to a send; the other end receives
 * as much at once and has OpenSSL put records straight into their place.
 * Between the two engines of mmx-bench, or one process each, started by
 * test/bench/streams. */
#include "test/bench/bench.h"

#include <arpa/inet.h>
#include <openssl/ssl.h>
#include <sys/resource.h>
#include <sys/socket.h>

#define RECORD ((size_t)16 * 1024)
#define GATHER (16 * RECORD)

static int fd = -1;
static uint8_t out[GATHER + 16 * 256];
static size_t out_len;

static int put(BIO *b, const char *p, size_t n, size_t *done)
{
    if (n > sizeof out - out_len)
        die("a record of %zu bytes behind %zu", n, out_len);
    memcpy(out + out_len, p, n);
    out_len += n;
    *done = n;
    return 1;
}

static int get(BIO *b, char *p, size_t n, size_t *done)
{
    ssize_t r = recv(fd, p, n, 0);

    *done = r > 0 ? (size_t)r : 0;
    return r > 0;
}

static void flush(void)
{
    for (size_t at = 0; at < out_len;) {
        ssize_t n = send(fd, out + at, out_len - at, MSG_NOSIGNAL);

        if (n <= 0)
            die("sealed: the other end is gone");
        at += (size_t)n;
    }
    out_len = 0;
}

static long ctrl(BIO *b, int what, long number, void *p)
{
    (void)b, (void)number, (void)p;
    if (what == BIO_CTRL_FLUSH) /* handshakes flush */
        flush();
    return what == BIO_CTRL_FLUSH;
}

static int create(BIO *b)
{
    BIO_set_init(b, 1);
    return 1;
}

static unsigned client_key(SSL *ssl, const char *hint, char *name,
    unsigned name_len, unsigned char *key, unsigned key_len)
{
    (void)ssl, (void)hint;
    snprintf(name, name_len, "bench");
    memset(key, 7, min_u32(key_len, 32));
    return 32;
}

static unsigned server_key(
    SSL *ssl, const char *name, unsigned char *key, unsigned key_len)
{
    (void)ssl, (void)name;
    memset(key, 7, min_u32(key_len, 32));
    return 32;
}

static void write_all(SSL *ssl, const uint8_t *from, size_t len)
{
    for (size_t at = 0, n; at < len; at += n) {
        n = len - at < RECORD ? len - at : RECORD;
        if (SSL_write(ssl, from + at, (int)n) != (int)n)
            die("sealed: a write failed");
        if (out_len + RECORD + 256 > sizeof out)
            flush();
    }
    flush();
}

static void read_all(SSL *ssl, uint8_t *to, size_t len)
{
    for (size_t at = 0; at < len;) {
        int n = SSL_read(ssl, to + at, (int)(len - at));

        if (n <= 0)
            die("sealed: a read failed");
        at += (size_t)n;
    }
}

/* Returns the connection once both ends have the key. */
static SSL *connection(bool server)
{
    BIO_METHOD *m = BIO_meth_new(BIO_TYPE_SOURCE_SINK, "bench");
    SSL_CTX *c = SSL_CTX_new(TLS_method());
    SSL *ssl;
    BIO *b;

    SSL_CTX_set_min_proto_version(c, TLS1_3_VERSION);
    SSL_CTX_set_ciphersuites(c, "TLS_AES_128_GCM_SHA256");
    SSL_CTX_set_num_tickets(c, 0);
    SSL_CTX_set_read_ahead(c, 1);
    SSL_CTX_set_default_read_buffer_len(c, GATHER);
    SSL_CTX_set_psk_client_callback(c, client_key);
    SSL_CTX_set_psk_server_callback(c, server_key);
    BIO_meth_set_write_ex(m, put);
    BIO_meth_set_read_ex(m, get);
    BIO_meth_set_ctrl(m, ctrl);
    BIO_meth_set_create(m, create);
    ssl = SSL_new(c);
    b = BIO_new(m);
    SSL_set_bio(ssl, b, b);
    if (server)
        SSL_set_accept_state(ssl);
    else
        SSL_set_connect_state(ssl);
    if (SSL_do_handshake(ssl) != 1)
        die("sealed: no handshake");
    return ssl;
}

/* Measures the cipher alone on one core. */
static void cipher(struct side *x)
{
    static uint8_t rows[RECORD], to[RECORD + 16], key[16];
    EVP_CIPHER_CTX *c = EVP_CIPHER_CTX_new();
    uint64_t used = cpu_ns(getpid());
    int n;

    EVP_EncryptInit_ex(c, EVP_aes_128_gcm(), NULL, key, key);
    for (size_t at = 0; at < CIPHER_BYTES; at += RECORD) {
        EVP_EncryptInit_ex(c, NULL, NULL, NULL, key);
        if (!EVP_EncryptUpdate(c, to, &n, rows, RECORD) ||
            !EVP_EncryptFinal_ex(c, to, &n))
            die("sealed: no cipher");
    }
    note(x, S_CIPHER, cpu_ns(getpid()) - used);
    EVP_CIPHER_CTX_free(c);
}

void sealed_bulk(struct side *x)
{
    static SSL *ssl;
    uint64_t used;

    fd = x->tcp;
    if (!ssl)
        ssl = connection(x->which == LANG);
    if (x->which == ENC)
        cipher(x);
    used = cpu_ns(getpid());
    meet(x);
    if (x->which == ENC) {
        x->s->stamp = now_ns();
        write_all(ssl, x->e->pools[POOL_ROWS].base, BULK_BYTES);
        x->s->cpu = cpu_ns(getpid()) - used;
    } else {
        read_all(ssl, x->landing, BULK_BYTES);
        note(x, S_SEALED, now_ns() - x->s->stamp);
    }
    meet(x);
    if (x->which == LANG)
        note(x, S_SEALED_CPU, cpu_ns(getpid()) - used + x->s->cpu);
}

static void open_socket(bool server, const char *host, uint16_t port)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(port)};
    int on = 1, s = socket(AF_INET, SOCK_STREAM, 0);

    inet_pton(AF_INET, host, &at.sin_addr);
    setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    fd = s;
    if (server && (bind(s, (struct sockaddr *)&at, sizeof at) || listen(s, 1) ||
                      puts("listens") < 0 || fflush(stdout) ||
                      (fd = accept(s, NULL, NULL)) < 0))
        die("sealed: cannot listen at %s", host);
    if (!server && connect(s, (struct sockaddr *)&at, sizeof at))
        die("sealed: cannot connect to %s", host);
    setsockopt(fd, IPPROTO_TCP, 1 /* TCP_NODELAY */, &on, sizeof on);
}

static double used_s(void)
{
    struct rusage u;

    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
           (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

/* Prints seconds of each round at the sender, then processor seconds. The first
 * round, which touches memory, is in neither. */
int sealed_main(int argc, char **argv)
{
    bool server = argc > 1 && strcmp(argv[1], "listen") == 0;
    size_t bytes;
    uint8_t *rows, answer = 1;
    double used = 0;
    SSL *ssl;

    if (argc != 6)
        die("sealed listen|send ADDRESS PORT MIB ROUNDS");
    open_socket(server, argv[2], (uint16_t)atoi(argv[3]));
    ssl = connection(server);
    bytes = (size_t)atoi(argv[4]) << 20;
    rows = faulted(bytes);
    for (int i = 0; i <= atoi(argv[5]); i++) {
        uint64_t began = now_ns();

        if (i == 1)
            used = used_s();
        if (server) {
            read_all(ssl, rows, bytes);
            write_all(ssl, &answer, 1);
            continue;
        }
        write_all(ssl, rows, bytes);
        read_all(ssl, &answer, 1);
        if (i > 0)
            printf("%.6f\n", (double)(now_ns() - began) / 1e9);
    }
    printf("%.6f\n", used_s() - used);
    return 0;
}
