/* crash.c - see crash.h. In the handler nothing is called that is not safe
 * there: write, poll, prctl, sigaction; buffers are of fixed size. After the
 * report the signal has its earlier effect, at the place of the fault: its
 * default, or the report of a library (UCX, a sanitizer). No core shows it:
 * daemons are not dumpable (main.c). SIGBUS comes through guard.h's handler.
 * Any thread; there is one for the process.
 *
 * Rejected: printing the rooms' tables here, too, as a failed CHECK does. The
 * tables may be what is broken; happenings are plain numbers. */
#include "node/crash.h"

#include "base/guard.h"
#include "base/log.h"
#include "core/trace/dump.h"

#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/prctl.h>
#include <unistd.h>

#define LINE_BYTES 256
/* A pipe that is ready takes at least this many bytes at once. */
#define WRITE_BYTES 4096
#define WRITE_MS    1000 /* limit of the wait for a reader of stderr */
#define STACK_BYTES (64u << 10)

_Static_assert(2 * LINE_BYTES <= WRITE_BYTES, "a write has whole lines");
_Static_assert(CRASH_HAPPENINGS < RECORDER_SIZE, "the last are remembered");

static const int signals[] = {SIGSEGV, SIGILL, SIGFPE, SIGABRT};
/* the actions found at the start */
static struct sigaction before[ARRAY_LEN(signals)];
static _Atomic(const struct crash_view *) watched;

/* Returns the prefix of a line for the service manager: critical. Graver levels
 * are shown on all terminals, and the lines have ids of rooms. */
static const char *level(void)
{
    return log_to_journal() ? "<2>" : "";
}

static void say(int fd, struct line *l)
{
    struct pollfd p = {.fd = fd, .events = POLLOUT};

    /* What cannot be written in time is lost: a crash must not hang. */
    if (poll(&p, 1, WRITE_MS) == 1 && (p.revents & POLLOUT) &&
        write(fd, l->p, l->len) < 0)
        l->len = 0;
    l->len = 0;
}

static const char *signal_name(int signal)
{
    switch (signal) {
    case SIGSEGV:
        return "SIGSEGV";
    case SIGBUS:
        return "SIGBUS";
    case SIGILL:
        return "SIGILL";
    case SIGFPE:
        return "SIGFPE";
    case SIGABRT:
        return "SIGABRT";
    default:
        return "unknown";
    }
}

static const char *event_name(const struct event *ev)
{
    static const char *const names[] = {[EV_MORE] = "more",
        [EV_TIME] = "time",
        [EV_CONN_OPEN] = "connection opened",
        [EV_CONN_END] = "connection ended",
        [EV_CONN_DEAD] = "process dead",
        [EV_LOCAL] = "engine's message",
        [EV_LOCAL_BAD] = "engine's bad frame",
        [EV_LINK_UP] = "link up",
        [EV_LINK_DOWN] = "link down",
        [EV_PEER] = "peer's message",
        [EV_PEER_BAD] = "peer's bad frame",
        [EV_NOTE] = "shard's note",
        [EV_POOL] = "pool"};

    return (size_t)ev->type < ARRAY_LEN(names) && names[ev->type]
               ? names[ev->type]
               : "other";
}

static void say_named(struct line *l, const char *name, uint64_t value)
{
    line_text(l, name);
    line_number(l, value);
}

/* Appends which event the loop was handling. */
static void say_event(struct line *l, const struct event *ev)
{
    line_text(l, level());
    if (!ev) {
        line_text(l, "the loop was in no event\n");
        return;
    }
    line_text(l, "the loop was in event `");
    line_text(l, event_name(ev));
    line_text(l, "`");
    if (ev->type == EV_LOCAL) {
        say_named(l, ", connection ", ev->conn);
        line_text(l, ", message ");
        line_text(l, local_name(ev->local->type));
    } else if (ev->type == EV_PEER) {
        say_named(l, ", link ", ev->link);
        line_text(l, ", message ");
        line_text(l, peer_name(ev->peer->type));
        line_text(l, ", room ");
        line_room(l, ev->peer->room);
        line_text(l, ", generation ");
        line_hex(l, ev->peer->generation);
    } else if (ev->type == EV_NOTE) {
        say_named(l, ", note ", ev->note.type);
        say_named(l, ", slot ", ev->note.slot);
        line_text(l, ", generation ");
        line_hex(l, ev->note.generation);
    }
    line_text(l, "\n");
}

void crash_report(int fd, int signal, const struct crash_view *view)
{
    const struct recorder *r = view->recorder;
    uint64_t from, end = r->count;
    char bytes[WRITE_BYTES], thread[17] = "";
    struct line l = {bytes, 0, sizeof(bytes)};

    (void)prctl(PR_GET_NAME, thread);
    line_text(&l, level());
    line_text(&l, signal_name(signal));
    line_text(&l, " in thread ");
    line_text(&l, thread);
    line_text(&l, "\n");
    say(fd, &l); /* if a shard crashed, `event` may be gone before the next
                    lines */
    say_event(&l, *view->event);
    from = max_u64(recorder_oldest(r),
        end > CRASH_HAPPENINGS ? end - CRASH_HAPPENINGS : 0);
    line_text(&l, level());
    say_named(&l, "the last ", end - from);
    line_text(&l, " happenings, by their age\n");
    for (uint64_t i = from; i < end; i++) {
        if (l.cap - l.len < LINE_BYTES)
            say(fd, &l);
        line_text(&l, level());
        /* Not checked: if a shard crashed, the loop still runs. */
        dump_happening(
            &l, &r->at[i % RECORDER_SIZE], r->at[(end - 1) % RECORDER_SIZE].ns);
    }
    say(fd, &l);
}

/* Restores the signal's action from before crash_watch(). */
static void step_aside(int signal)
{
    for (size_t i = 0; i < ARRAY_LEN(signals); i++)
        if (signals[i] == signal)
            (void)sigaction(signal, &before[i], NULL);
}

static void on_crash(int signal, siginfo_t *info, void *context)
{
    static atomic_int inside;
    const struct crash_view *view = atomic_load(&watched);

    (void)context;
    if (view && atomic_fetch_add(&inside, 1) == 0)
        crash_report(STDERR_FILENO, signal, view);
    step_aside(signal);
    /* A fault repeats itself at its place. A signal that was sent is sent
     * again; it comes when the handler ends. */
    if (info->si_code <= 0)
        (void)raise(signal);
}

void crash_watch(const struct crash_view *view)
{
    /* a thread may have no stack left of its own */
    static uint8_t stack[STACK_BYTES];
    struct sigaction act = {.sa_sigaction = on_crash,
        .sa_flags = SA_SIGINFO | SA_ONSTACK | (int)SA_RESETHAND};
    stack_t mine = {.ss_sp = stack, .ss_size = sizeof(stack)}, old;

    CHECK(view->recorder && view->event, "a crash would have nothing to say");
    atomic_store(&watched, view);
    if (sigaltstack(NULL, &old) == 0 && (old.ss_flags & SS_DISABLE))
        (void)sigaltstack(&mine, NULL);
    guard_install();
    guard_pass_on(on_crash);
    sigfillset(&act.sa_mask);
    for (size_t i = 0; i < ARRAY_LEN(signals); i++)
        if (sigaction(signals[i], NULL, &before[i]) == 0 &&
            before[i].sa_handler != SIG_IGN)
            (void)sigaction(signals[i], &act, NULL);
}

void crash_forget(void)
{
    guard_pass_on(NULL);
    atomic_store(&watched, NULL);
}
