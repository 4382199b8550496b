/* cuda_stream.c - streams and events of the driver's double: each stream is a
 * thread that carries out a queue, so that what the driver does later happens
 * later here, too. Invariants: everything queued before a mark is done when the
 * mark is reached; after a failure nothing more is carried out, and every mark
 * returns the failure. Rejected: doing copies at once, which no test of overlap
 * or of waiting would notice. */
#include "test/double/double.h"

#include <pthread.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum what { COPY, SET, RECORD, WAIT, CALL };

struct op {
    struct op *next;
    enum what what;
    uint8_t *to;
    const uint8_t *from;
    size_t bytes;
    uint8_t value;
    CUevent event;
    uint64_t ticket;
    CUhostFn fn;
    void *ud;
};

struct CUevent_st {
    uint64_t recorded, reached;
    unsigned queued; /* operations that know it */
    bool gone;       /* destroyed; freed with the last of them */
};

struct CUstream_st {
    pthread_t thread;
    struct op *head, **tail;
    bool busy, stop;
    int device;
};

/* One lock and one condition for all: it is a double. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static CUresult broken;

/* the thread */

static void copy(const struct op *o)
{
    long delay = double_get("delay_us");

    if (delay)
        nanosleep(
            &(struct timespec){delay / 1000000, delay % 1000000 * 1000}, NULL);
    if (!double_get("no_bytes"))
        memcpy(o->to, o->from, o->bytes);
    double_count("copies", 1);
    double_count("bytes", (long)o->bytes);
}

/* Called with the lock held, and returns with it; releases it in between. */
static void carry_out(const struct op *o)
{
    CUresult r = CUDA_SUCCESS;

    while (o->what == WAIT && o->event->reached < o->ticket && !broken)
        pthread_cond_wait(&changed, &lock);
    if (broken)
        return;
    pthread_mutex_unlock(&lock);
    if (o->what == COPY) {
        r = double_fault("copy");
        if (r == CUDA_SUCCESS)
            copy(o);
    } else if (o->what == SET) {
        memset(o->to, o->value, o->bytes);
    } else if (o->what == CALL) {
        o->fn(o->ud);
    }
    pthread_mutex_lock(&lock);
    if (r != CUDA_SUCCESS)
        broken = r;
    if (o->what == RECORD && o->event->reached < o->ticket)
        o->event->reached = o->ticket;
}

/* With the lock. */
static void event_put(CUevent e)
{
    if (e && --e->queued == 0 && e->gone)
        free(e);
}

static bool held(void)
{
    return double_get("hold") != 0;
}

static void *serve(void *ud)
{
    CUstream s = ud;

    pthread_mutex_lock(&lock);
    while (!s->stop || s->head) {
        struct op *o = s->head;

        if (!o || (held() && !s->stop)) {
            struct timespec t;

            clock_gettime(CLOCK_REALTIME, &t);
            t.tv_nsec += 1000000;
            t.tv_sec += t.tv_nsec / 1000000000;
            t.tv_nsec %= 1000000000;
            pthread_cond_timedwait(&changed, &lock, &t);
            continue;
        }
        s->head = o->next;
        if (!s->head)
            s->tail = &s->head;
        s->busy = true;
        carry_out(o);
        s->busy = false;
        event_put(o->event);
        free(o);
        pthread_cond_broadcast(&changed);
    }
    pthread_mutex_unlock(&lock);
    return NULL;
}

static CUresult queue(CUstream s, struct op op)
{
    struct op *o = malloc(sizeof(*o));

    if (!o || !s)
        abort(); /* we never use the default stream */
    *o = op;
    o->next = NULL;
    pthread_mutex_lock(&lock);
    if (o->event)
        o->event->queued++;
    if (o->what == RECORD)
        o->ticket = ++o->event->recorded;
    if (o->what == WAIT)
        o->ticket = o->event->recorded;
    *s->tail = o;
    s->tail = &o->next;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

static CUresult failed(void)
{
    CUresult r;

    pthread_mutex_lock(&lock);
    r = broken;
    pthread_mutex_unlock(&lock);
    return r;
}

#define BROKEN()                                                               \
    do {                                                                       \
        CUresult broken_ = failed();                                           \
                                                                               \
        if (broken_ != CUDA_SUCCESS)                                           \
            return broken_;                                                    \
    } while (0)

/* streams */

SHOWN CUresult cuStreamCreate(CUstream *out, unsigned int flags)
{
    CUstream s;

    CURRENT();
    FAULT();
    if (flags != CU_STREAM_NON_BLOCKING)
        return CUDA_ERROR_INVALID_VALUE;
    s = calloc(1, sizeof(*s));
    if (!s)
        return CUDA_ERROR_OUT_OF_MEMORY;
    s->tail = &s->head;
    s->device = double_device();
    if (pthread_create(&s->thread, NULL, serve, s) != 0)
        abort();
    double_count("streams", 1);
    *out = s;
    return CUDA_SUCCESS;
}

SHOWN CUresult cuStreamDestroy_v2(CUstream s)
{
    CURRENT();
    pthread_mutex_lock(&lock);
    s->stop = true;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    pthread_join(s->thread, NULL);
    free(s);
    double_count("streams", -1);
    return CUDA_SUCCESS;
}

SHOWN CUresult cuStreamSynchronize(CUstream s)
{
    CUresult r;

    CURRENT();
    FAULT();
    pthread_mutex_lock(&lock);
    while ((s->head || s->busy) && !broken)
        pthread_cond_wait(&changed, &lock);
    r = broken;
    pthread_mutex_unlock(&lock);
    return r;
}

SHOWN CUresult cuLaunchHostFunc(CUstream s, CUhostFn fn, void *ud)
{
    CURRENT();
    FAULT();
    BROKEN();
    return queue(s, (struct op){.what = CALL, .fn = fn, .ud = ud});
}

/* events */

SHOWN CUresult cuEventCreate(CUevent *out, unsigned int flags)
{
    CURRENT();
    FAULT();
    *out = calloc(1, sizeof(**out));
    double_count("events", 1);
    return *out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

SHOWN CUresult cuEventDestroy_v2(CUevent e)
{
    CURRENT();
    pthread_mutex_lock(&lock);
    if (e->queued)
        e->gone = true;
    else
        free(e);
    pthread_mutex_unlock(&lock);
    double_count("events", -1);
    return CUDA_SUCCESS;
}

SHOWN CUresult cuEventRecord(CUevent e, CUstream s)
{
    CURRENT();
    FAULT();
    BROKEN();
    return queue(s, (struct op){.what = RECORD, .event = e});
}

SHOWN CUresult cuStreamWaitEvent(CUstream s, CUevent e, unsigned int flags)
{
    CURRENT();
    FAULT();
    BROKEN();
    return queue(s, (struct op){.what = WAIT, .event = e});
}

SHOWN CUresult cuEventQuery(CUevent e)
{
    CUresult r;

    CURRENT();
    FAULT();
    pthread_mutex_lock(&lock);
    r = broken
            ? broken
            : (e->reached < e->recorded ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS);
    pthread_mutex_unlock(&lock);
    return r;
}

SHOWN CUresult cuEventSynchronize(CUevent e)
{
    CUresult r;

    CURRENT();
    FAULT();
    pthread_mutex_lock(&lock);
    while (e->reached < e->recorded && !broken)
        pthread_cond_wait(&changed, &lock);
    r = broken;
    pthread_mutex_unlock(&lock);
    return r;
}

/* copies */

static CUresult copy_queue(
    CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream s)
{
    BROKEN();
    if (!double_reachable(to, bytes, true, s->device) ||
        !double_reachable(from, bytes, false, s->device))
        return CUDA_ERROR_INVALID_VALUE;
    return queue(s, (struct op){.what = COPY,
                        .to = double_host(to),
                        .from = double_host(from),
                        .bytes = bytes});
}

SHOWN CUresult cuMemcpyAsync(
    CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream s)
{
    CURRENT();
    FAULT();
    return copy_queue(to, from, bytes, s);
}

SHOWN CUresult cuMemsetD8Async(
    CUdeviceptr to, unsigned char value, size_t bytes, CUstream s)
{
    CURRENT();
    FAULT();
    BROKEN();
    if (!double_reachable(to, bytes, true, s->device))
        return CUDA_ERROR_INVALID_VALUE;
    return queue(s, (struct op){.what = SET,
                        .to = double_host(to),
                        .value = value,
                        .bytes = bytes});
}

SHOWN CUresult cuMemcpyBatchAsync_v2(CUdeviceptr *to, CUdeviceptr *from,
    size_t *bytes, size_t count, CUmemcpyAttributes *attrs, size_t *at,
    size_t attrs_count, CUstream s)
{
    CURRENT();
    FAULT();
    if (double_get("no_batch"))
        return CUDA_ERROR_NOT_SUPPORTED;
    if (count == 0 || attrs_count != 1 || at[0] != 0 ||
        attrs->srcAccessOrder != CU_MEMCPY_SRC_ACCESS_ORDER_STREAM)
        return CUDA_ERROR_INVALID_VALUE;
    double_count("batches", 1);
    for (size_t i = 0; i < count; i++) {
        CUresult r = copy_queue(to[i], from[i], bytes[i], s);

        if (r != CUDA_SUCCESS)
            return r;
    }
    return CUDA_SUCCESS;
}
