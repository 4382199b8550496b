/* tcp_tls.c - TLS 1.3 by OpenSSL with the pair's key as an external PSK. See
 * tcp_safe.h. No certificates, tickets, early data or earlier versions. An
 * ephemeral X25519 key is used too (psk_dhe_ke): a later leak of the pair's key
 * does not expose recorded traffic.
 *
 * The client names the key by "mmx1", its id, the listener's token and the
 * stream, which the handshake covers. OpenSSL makes the handshake, and gives
 * the secret of what the client sends; the records of that are ours
 * (tcp_records.c). OpenSSL reads no byte behind the handshake (no read-ahead),
 * and the client's part is sent before any record. The listener sends nothing
 * after it.
 *
 * The cipher is AES-128-GCM, or ChaCha20 if one of the processors lacks
 * instructions for AES, or AES-256-GCM alone where the listener's key says so.
 * The sender changes its keys long before the bound of RFC 8446 (5.5) for one
 * key of AES-GCM, which OpenSSL does not enforce. One thread per connection. */
#include "io/data/tcp_safe_in.h"

#include "base/check.h"
#include "base/log.h"

#include <errno.h>
#include <openssl/err.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#if defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

#define MAGIC "mmx1"

static pthread_once_t once = PTHREAD_ONCE_INIT;
static SSL_CTX *context; /* NULL: OpenSSL could not make it */

/* the key */

static void put_identity(struct tcp_safe *s)
{
    struct writer w = writer_of(s->identity, sizeof(s->identity));

    put_bytes(&w, MAGIC, 4);
    put_bytes(&w, s->key.id, TCP_KEY_ID);
    put_bytes(&w, s->token, TCP_TOKEN);
    put_u32(&w, s->stream);
    CHECK(!w.failed && w.len == IDENTITY_BYTES, "%zu bytes", w.len);
}

static bool aes_256(const struct tcp_safe *s)
{
    return s->bits & DATA_KEY_AES_256;
}

/* Returns the key in the form that OpenSSL expects, which names the hash of a
 * suite, too; NULL: no memory. */
static SSL_SESSION *session_of(SSL *ssl, const struct tcp_safe *s)
{
    const unsigned char aes[] = {0x13, aes_256(s) ? 0x02 : 0x01};
    SSL_SESSION *out = SSL_SESSION_new();

    if (out &&
        SSL_SESSION_set1_master_key(out, s->key.secret, TCP_KEY_SECRET) &&
        SSL_SESSION_set_cipher(out, SSL_CIPHER_find(ssl, aes)) &&
        SSL_SESSION_set_protocol_version(out, TLS1_3_VERSION))
        return out;
    SSL_SESSION_free(out);
    return NULL;
}

/* Gives OpenSSL the client's key. */
static int use_key(SSL *ssl, const EVP_MD *md, const unsigned char **id,
    size_t *len, SSL_SESSION **out)
{
    struct tcp_safe *s = SSL_get_app_data(ssl);

    *out = NULL;
    if (s->server || (md && !EVP_MD_is_a(md, aes_256(s) ? "SHA384" : "SHA256")))
        return 0;
    *id = s->identity;
    *len = sizeof(s->identity);
    *out = session_of(ssl, s);
    return *out != NULL;
}

/* Gives OpenSSL the server's key, once on_hello() has found it. */
static int find_key(
    SSL *ssl, const unsigned char *id, size_t len, SSL_SESSION **out)
{
    struct tcp_safe *s = SSL_get_app_data(ssl);

    *out = NULL;
    if (s->key.there && len == sizeof(s->identity) &&
        memcmp(id, s->identity, len) == 0)
        *out = session_of(ssl, s);
    return 1;
}

/* Reads the client's first key name, before any cryptography for it. */
static int on_hello(SSL *ssl, int *alert, void *ud)
{
    struct tcp_safe *s = SSL_get_app_data(ssl);
    const struct tcp_key *key;
    const uint8_t *p;
    struct reader r;
    size_t n;

    (void)ud;
    *alert = SSL_AD_UNKNOWN_PSK_IDENTITY;
    /* u16 length of all names, u16 length of the first one. */
    if (!SSL_client_hello_get0_ext(ssl, TLSEXT_TYPE_psk, &p, &n) ||
        n < 4 + IDENTITY_BYTES || p[2] != 0 || p[3] != IDENTITY_BYTES ||
        memcmp(p + 4, MAGIC, 4) != 0 ||
        memcmp(p + 8 + TCP_KEY_ID, s->token, TCP_TOKEN) != 0) {
        s->why = "it names no key of this listener";
        return SSL_CLIENT_HELLO_ERROR;
    }
    key = tcp_keys_find(s->keys, p + 8);
    if (!key)
        return SSL_CLIENT_HELLO_RETRY;
    s->key = *key;
    r = reader_of(p + 4 + IDENTITY_BYTES - 4, 4);
    s->stream = get_u32(&r);
    put_identity(s);
    return SSL_CLIENT_HELLO_SUCCESS;
}

/* Keeps the secret of what the client will send. OpenSSL gives it only as a
 * line: its name, the client's random bytes, and the secret itself, in hex. */
static void on_secret(const SSL *ssl, const char *line)
{
    static const char label[] = "CLIENT_TRAFFIC_SECRET_0 ";
    struct tcp_safe *s = SSL_get_app_data(ssl);

    if (strncmp(line, label, strlen(label)) == 0)
        OPENSSL_hexstr2buf_ex(s->secret, sizeof(s->secret), &s->secret_len,
            strrchr(line, ' ') + 1, '\0');
}

/* the context, shared by all */

/* True if this processor has instructions for AES. */
static bool has_aes(void)
{
#if defined(__x86_64__)
    return __builtin_cpu_supports("aes");
#elif defined(__aarch64__)
    return (getauxval(AT_HWCAP) & HWCAP_AES) != 0;
#else
    return true;
#endif
}

static bool set_up(SSL_CTX *c)
{
    const char *suites = has_aes() ? "TLS_AES_128_GCM_SHA256:"
                                     "TLS_CHACHA20_POLY1305_SHA256"
                                   : "TLS_CHACHA20_POLY1305_SHA256:"
                                     "TLS_AES_128_GCM_SHA256";

    SSL_CTX_set_options(c, SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION |
                               SSL_OP_CIPHER_SERVER_PREFERENCE |
                               SSL_OP_PRIORITIZE_CHACHA);
    /* Kernel TLS, which openssl.cnf may turn on, would encrypt our records. */
    SSL_CTX_clear_options(c, SSL_OP_ENABLE_MIDDLEBOX_COMPAT |
                                 SSL_OP_ALLOW_NO_DHE_KEX | SSL_OP_ENABLE_KTLS);
    SSL_CTX_set_session_cache_mode(c, SSL_SESS_CACHE_OFF);
    /* OpenSSL must not read records behind the handshake */
    SSL_CTX_set_read_ahead(c, 0);
    SSL_CTX_set_keylog_callback(c, on_secret);
    SSL_CTX_set_psk_use_session_callback(c, use_key);
    SSL_CTX_set_psk_find_session_callback(c, find_key);
    SSL_CTX_set_client_hello_cb(c, on_hello, NULL);
    return SSL_CTX_set_min_proto_version(c, TLS1_3_VERSION) &&
           SSL_CTX_set_max_proto_version(c, TLS1_3_VERSION) &&
           SSL_CTX_set_ciphersuites(c, suites) &&
           SSL_CTX_set1_groups_list(c, "X25519") &&
           SSL_CTX_set_num_tickets(c, 0);
}

static void make_context(void)
{
    SSL_CTX *c = SSL_CTX_new(TLS_method());
    const char *why;

    if (c && set_up(c)) {
        context = c;
        return;
    }
    why = ERR_reason_error_string(ERR_peek_last_error());
    log_error("tls: OpenSSL of this host cannot encrypt by TLS 1.3 with X25519 "
              "and AES-128-GCM: %s: see openssl.cnf, or transfer.encrypt: off",
        why ? why : "no reason given");
    ERR_clear_error();
    SSL_CTX_free(c);
}

bool tcp_safe_ready(void)
{
    pthread_once(&once, make_context);
    return context != NULL;
}

/* connections */

bool tls_open(struct tcp_safe *s)
{
    s->ssl = tcp_safe_ready() ? SSL_new(context) : NULL;
    if (!s->ssl || !SSL_set_fd(s->ssl, s->fd) || !SSL_set_app_data(s->ssl, s) ||
        (aes_256(s) &&
            !SSL_set_ciphersuites(s->ssl, "TLS_AES_256_GCM_SHA384"))) {
        log_error("tls: OpenSSL of this host can make no connection");
        return false;
    }
    if (s->server) {
        SSL_set_accept_state(s->ssl);
    } else {
        put_identity(s);
        SSL_set_connect_state(s->ssl);
        /* A listener that answers with a certificate is not ours. */
        SSL_set_verify(s->ssl, SSL_VERIFY_PEER, NULL);
    }
    return true;
}

void tls_close(struct tcp_safe *s)
{
    SSL_free(s->ssl);
    s->ssl = NULL;
}

static enum tcp_proof why_failed(struct tcp_safe *s)
{
    const char *text = ERR_reason_error_string(ERR_peek_error());

    if (s->why[0])
        return PROOF_FAILED;
    return safe_failed(s, text ? text : "the other end closed it");
}

/* Checks that a complete handshake used the key, and takes its secret. */
static enum tcp_proof finish(struct tcp_safe *s)
{
    const SSL_CIPHER *suite = SSL_get_current_cipher(s->ssl);
    const EVP_MD *hash = SSL_CIPHER_get_handshake_digest(suite);

    /* proven by the key, not by a certificate */
    if (!SSL_session_reused(s->ssl) || !s->key.there ||
        s->secret_len != (size_t)EVP_MD_get_size(hash))
        return safe_failed(s, "not by the key");
    s->records =
        tcp_records_new(EVP_get_cipherbynid(SSL_CIPHER_get_cipher_nid(suite)),
            hash, s->secret, s->server ? 0 : s->rekey);
    return s->records ? PROOF_DONE : safe_failed(s, "no memory");
}

enum tcp_proof tls_step(struct tcp_safe *s)
{
    enum tcp_proof step;
    int n;

    ERR_clear_error();
    n = SSL_do_handshake(s->ssl);
    if (n == 1)
        return finish(s);
    switch (SSL_get_error(s->ssl, n)) {
    case SSL_ERROR_WANT_READ:
    case SSL_ERROR_WANT_WRITE: /* the socket is full */
        return PROOF_WAITS;
    case SSL_ERROR_WANT_CLIENT_HELLO_CB:
        return PROOF_UNKNOWN;
    default:
        step = why_failed(s);
        ERR_clear_error();
        return step;
    }
}
