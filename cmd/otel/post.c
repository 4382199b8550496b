/* post.c - sends a request over HTTP by libcurl's multi interface. Owned by the
 * only thread.
 *
 * Rejected: libcurl's easy interface. While a receiver hangs the recorders
 * would not be read, and they overwrite what is old. */
#include "otel.h"

#include "base/check.h"

#include <curl/curl.h>

enum { TIMEOUT_S = 10 };

/* Stores the first bytes of an answer. */
static size_t take(char *bytes, size_t one, size_t count, void *arg)
{
    struct post *p = arg;
    size_t n = min_u64(one * count, sizeof(p->answer) - p->answer_len);

    CHECK(p->answer_len <= sizeof(p->answer), "%zu bytes", p->answer_len);
    memcpy(p->answer + p->answer_len, bytes, n);
    p->answer_len += n;
    return one * count;
}

bool post_open(struct post *p, const char *url)
{
    struct curl_slist *headers =
        curl_slist_append(NULL, "Content-Type: application/x-protobuf");
    CURLU *to = curl_url();

    _Static_assert(sizeof(p->why) >= CURL_ERROR_SIZE, "libcurl writes there");
    p->all = curl_multi_init();
    p->one = curl_easy_init();
    if (!headers || !p->all || !p->one || !to || strncmp(url, "http", 4) != 0 ||
        curl_url_set(to, CURLUPART_URL, url, 0) != CURLUE_OK ||
        curl_url_set(to, CURLUPART_USER, NULL, 0) != CURLUE_OK ||
        curl_url_set(to, CURLUPART_PASSWORD, NULL, 0) != CURLUE_OK ||
        curl_url_get(to, CURLUPART_URL, &p->shown, 0) != CURLUE_OK)
        return false;
    curl_url_cleanup(to);
    curl_easy_setopt(p->one, CURLOPT_HTTPHEADER, headers);
    curl_easy_setopt(p->one, CURLOPT_USERAGENT, "mmx-otel/" MMX_VERSION);
    curl_easy_setopt(p->one, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(p->one, CURLOPT_TIMEOUT, (long)TIMEOUT_S);
    /* The end of the handle does not wait for a name server that hangs. */
    curl_easy_setopt(p->one, CURLOPT_QUICK_EXIT, 1L);
    curl_easy_setopt(p->one, CURLOPT_ERRORBUFFER, p->why);
    curl_easy_setopt(p->one, CURLOPT_WRITEFUNCTION, take);
    curl_easy_setopt(p->one, CURLOPT_WRITEDATA, p);
    curl_easy_setopt(p->one, CURLOPT_POSTFIELDS, p->body);
    return curl_easy_setopt(p->one, CURLOPT_URL, url) == CURLE_OK;
}

void post_send(struct post *p, size_t len)
{
    CHECK(!p->busy, "a second request of %zu bytes", len);
    p->answer_len = 0;
    p->why[0] = 0;
    curl_easy_setopt(p->one, CURLOPT_POSTFIELDSIZE, (long)len);
    p->busy = curl_multi_add_handle(p->all, p->one) == CURLM_OK;
}

/* Returns the outcome of the request. */
static enum posted outcome(struct post *p, CURLcode code)
{
    long status = 0;

    curl_easy_getinfo(p->one, CURLINFO_RESPONSE_CODE, &status);
    if (code == CURLE_OK && status / 100 == 2)
        return POST_DONE;
    if (code == CURLE_OK)
        snprintf(p->why, sizeof(p->why), "status %ld", status);
    else if (!p->why[0])
        snprintf(p->why, sizeof(p->why), "%s", curl_easy_strerror(code));
    /* OTLP allows to try again after these statuses. */
    return code != CURLE_OK || status == 429 || (status >= 502 && status <= 504)
               ? POST_LATER
               : POST_REFUSED;
}

enum posted post_wait(struct post *p, int fd, int ms)
{
    struct curl_waitfd also = {.fd = fd, .events = CURL_WAIT_POLLIN};
    enum posted is = POST_WAITS;
    int left;
    CURLMsg *m;

    curl_multi_perform(p->all, &left);
    if (!p->busy || left)
        curl_multi_poll(p->all, &also, 1, ms, NULL);
    curl_multi_perform(p->all, &left);
    m = curl_multi_info_read(p->all, &left);
    if (m && m->msg == CURLMSG_DONE) {
        is = outcome(p, m->data.result);
        curl_multi_remove_handle(p->all, p->one);
        p->busy = false;
    }
    return is;
}
