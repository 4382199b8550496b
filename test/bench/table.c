/* table.c - results as a table, and as JSON: a list of objects with the keys
 * case, unit, ours, yardstick, ratio, target, met. A ratio is our figure
 * divided by the yardstick's; targets are those of the design. The best is the
 * least time, the median the middle one. After the run, one thread. */
#include "test/bench/bench.h"

#include <sys/utsname.h>

enum target { LOOK, LEAST, MOST, LEAST_OURS, MOST_OURS };

static FILE *json;
static unsigned lines, missed;

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return x < y ? -1 : x > y;
}

/* The value below which `share` of all lie; sorts them. */
double share_of(struct shared *s, int series, double share)
{
    struct series *v = &s->series[series];

    if (v->count == 0)
        return 0;
    qsort(v->v, v->count, sizeof v->v[0], by_value);
    return (double)v->v[(size_t)(share * (double)(v->count - 1))];
}

static double best(struct shared *s, int series)
{
    return share_of(s, series, 0);
}

static double median(struct shared *s, int series)
{
    return share_of(s, series, 0.5);
}

static void json_line(const char *name, const char *unit, double ours,
    double yard, const char *target, const char *met)
{
    if (!json)
        return;
    fprintf(json, "%s\n  {\"case\": \"%s\", \"unit\": \"%s\", \"ours\": %.4g",
        lines ? "," : "[", name, unit, ours);
    if (yard > 0)
        fprintf(
            json, ", \"yardstick\": %.4g, \"ratio\": %.4g", yard, ours / yard);
    else
        fprintf(json, ", \"yardstick\": null, \"ratio\": null");
    fprintf(json, ", \"target\": %s%s%s, \"met\": %s}", *target ? "\"" : "",
        *target ? target : "null", *target ? "\"" : "",
        *met == 'y'   ? "true"
        : *met == 'n' ? "false"
                      : "null");
}

/* Writes what the figures are of: "2 x Intel(R) Xeon(R) Processor, Linux 6.18,
 * load 0.4". Not all architectures name their processor. */
static void print_machine(void)
{
    char line[256], name[128] = "a processor";
    double load = 0;
    struct utsname u;
    FILE *f = fopen("/proc/cpuinfo", "re");

    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "model name%*[ \t]: %127[^\n]", name) == 1)
            break;
    if (f)
        fclose(f);
    (void)getloadavg(&load, 1);
    if (uname(&u) != 0)
        snprintf(u.release, sizeof u.release, "?");
    printf("%ld x %s, Linux %s, load %.1f\n", sysconf(_SC_NPROCESSORS_ONLN),
        name, u.release, load);
}

/* yard 0: none, or not measured in this run. `than` is for the ratio, or for
 * ours. */
static void row(const char *name, const char *unit, double ours, double yard,
    enum target target_of, double than)
{
    bool ratio = target_of == LEAST || target_of == MOST;
    enum target t = ratio && yard <= 0 ? LOOK : target_of;
    bool least = t == LEAST || t == LEAST_OURS;
    double what = t == LEAST || t == MOST ? ours / yard : ours;
    const char *met = t == LOOK                               ? ""
                      : (least ? what >= than : what <= than) ? "yes"
                                                              : "no";
    char target[32] = "";

    if (ours <= 0)
        return;
    if (t != LOOK)
        snprintf(target, sizeof target, "%s %.6g", least ? ">=" : "<=", than);
    missed += *met == 'n';
    json_line(name, unit, ours, yard, target, met);
    if (!opt.json && !lines) {
        print_machine();
        printf("%-46s %-6s %9s %9s %7s %10s %s\n", "case", "unit", "ours",
            "yardstick", "ratio", "target", "met");
    }
    if (!opt.json && yard > 0)
        printf("%-46s %-6s %9.4g %9.4g %7.3f %10s %s\n", name, unit, ours, yard,
            ours / yard, target, met);
    else if (!opt.json)
        printf("%-46s %-6s %9.4g %9s %7s %10s %s\n", name, unit, ours, "", "",
            target, met);
    lines++;
}

static double least(double a, double b)
{
    return a < b ? a : b;
}

static double gbs(double bytes, double ns)
{
    return ns > 0 ? bytes / ns : 0;
}

/* The best of several sizes of piece, and the one that it is. */
static double raw_tcp(struct shared *s, double share, int *which)
{
    double most = 0;

    for (int i = 0; i < PIECES; i++) {
        double b = gbs((double)BULK_BYTES, share_of(s, S_TCP + i, share));

        if (b <= most)
            continue;
        most = b;
        *which = i;
    }
    return most;
}

static void print_sent(struct shared *s)
{
    double bytes = (double)BULK_BYTES, y;
    int i = 0;

    if (opt.ucx) {
        row("535 MB by UCX, best (memcpy, best)", "GB/s",
            gbs(bytes, best(s, S_BULK)), gbs(bytes, best(s, S_MEMCPY)), LOOK,
            0);
        row("535 MB by UCX, median (memcpy)", "GB/s",
            gbs(bytes, median(s, S_BULK)), gbs(bytes, median(s, S_MEMCPY)),
            LOOK, 0);
        row("535 MB by UCX, median (raw TCP)", "GB/s",
            gbs(bytes, median(s, S_BULK)), raw_tcp(s, 0.5, &i), LOOK, 0);
        row("535 MB by UCX, processor time (raw TCP)", "s/GB",
            median(s, S_BULK_CPU) / bytes, median(s, S_TCP_CPU + i) / bytes,
            LOOK, 0);
        return;
    }
    y = raw_tcp(s, 0, &i);
    row("535 MB by TCP, best (raw TCP, best)", "GB/s",
        gbs(bytes, best(s, S_BULK)), y, LEAST, 0.95);
    y = raw_tcp(s, 0.5, &i);
    row("535 MB by TCP, median (raw TCP)", "GB/s",
        gbs(bytes, median(s, S_BULK)), y, LEAST, 1.0);
    row("535 MB by TCP, processor time (raw TCP)", "s/GB",
        median(s, S_BULK_CPU) / bytes, median(s, S_TCP_CPU + i) / bytes, MOST,
        1.15);
    row("535 MB by TCP, median (ZMQ, copied)", "GB/s",
        gbs(bytes, median(s, S_BULK)), gbs(bytes, median(s, S_ZMQ)), LEAST, 2);
}

static void print_encrypted(struct shared *s)
{
    double bytes = (double)BULK_BYTES;
    double clear = median(s, S_PROVED_CPU) / bytes;
    double cipher = median(s, S_CIPHER) / (double)CIPHER_BYTES;

    row("535 MB encrypted, median (bare OpenSSL)", "GB/s",
        gbs(bytes, median(s, S_ENCRYPTED)), gbs(bytes, median(s, S_SEALED)),
        LEAST, 0.9);
    row("535 MB encrypted, median (in the clear)", "GB/s",
        gbs(bytes, median(s, S_ENCRYPTED)), gbs(bytes, median(s, S_PROVED)),
        LOOK, 0);
    row("535 MB encrypted, processor (clear + 2.5 ciphers)", "s/GB",
        median(s, S_ENCRYPTED_CPU) / bytes, clear + 2.5 * cipher, MOST, 1);
    row("535 MB encrypted, processor (bare OpenSSL)", "s/GB",
        median(s, S_ENCRYPTED_CPU) / bytes, median(s, S_SEALED_CPU) / bytes,
        LOOK, 0);
}

static void print_copied(struct shared *s)
{
    double bytes = (double)BULK_BYTES;

    row("535 MB on one host, best (NT copy)", "GB/s",
        gbs(bytes, best(s, S_COPIED)), gbs(bytes, best(s, S_NT)), LEAST, 0.95);
    row("535 MB on one host, median (NT copy)", "GB/s",
        gbs(bytes, median(s, S_COPIED)), gbs(bytes, median(s, S_NT)), LEAST,
        0.95);
    row("535 MB on one host, median (memcpy)", "GB/s",
        gbs(bytes, median(s, S_COPIED)), gbs(bytes, median(s, S_MEMCPY)), LOOK,
        0);
    row("535 MB on one host, processor time (NT copy)", "s/GB",
        median(s, S_COPIED_CPU) / bytes, median(s, S_NT_CPU) / bytes, LOOK, 0);
}

static void print_lent(struct shared *s)
{
    static const char *const sizes[LENT_SIZES] = {
        "256 KiB", "8 MB", "100 MB", "535 MB"};
    double y = median(s, S_LENT) / 1e6;
    int last = LENT_SIZES - 1;
    char text[64];

    for (int i = 0; i < LENT_SIZES; i++) {
        snprintf(
            text, sizeof(text), "%s lent, commit to READY (copied)", sizes[i]);
        row(text, "ms", median(s, S_LENT + i) / 1e6,
            median(s, S_HOST + i) / 1e6, LOOK, 0);
    }
    row("8 MB lent, commit to READY (256 KiB)", "ms",
        median(s, S_LENT + 1) / 1e6, y, MOST, 1.2);
    row("535 MB lent, commit to READY (256 KiB)", "ms",
        median(s, S_LENT + last) / 1e6, y, MOST, 1.2);
    row("535 MB lent, processor of daemons (256 KiB)", "ms",
        median(s, S_LENT_CPU + last) / 1e6, median(s, S_LENT_CPU) / 1e6, MOST,
        1.2);
}

static void print_resume(struct shared *s)
{
    double y = median(s, S_RESUME + EXACT) / 1e6;

    row("resume, announced first (exact grant)", "ms",
        median(s, S_RESUME + ANNOUNCED) / 1e6, y, MOST, 1.03);
    row("resume, known at commit (exact grant)", "ms",
        median(s, S_RESUME + AT_COMMIT) / 1e6, y, MOST, 1.05);
}

static void print_latency(struct shared *s)
{
    double p50 = median(s, S_ROOM) / 1e3, am = median(s, S_AM) / 1e3;

    row("4 KiB room, p50 (sleeping AM ping)", "us", p50, am, MOST, 1.5);
    row("4 KiB room, p50, stretch (sleeping AM ping)", "us", p50, am, LOOK, 1);
    row("4 KiB room, p99 (its p50)", "us", share_of(s, S_ROOM, 0.99) / 1e3, p50,
        MOST, 4);
    row("4 KiB room, p50 (sleeping TCP ping)", "us", p50,
        median(s, S_TCP_PING) / 1e3, LOOK, 0);
    row("4 KiB room, p50 (spinning AM ping)", "us", p50,
        median(s, S_AM_SPIN) / 1e3, LOOK, 0);
}

static void print_block(struct shared *s)
{
    double bytes = BLOCK_ROWS * BLOCK_ROW_BYTES, tcp;
    int i;

    tcp = raw_tcp(s, 0.5, &i);
    if (tcp > 0)
        row("602 KB by TCP, p50 (1.5 pings + 1.25 x bytes)", "us",
            median(s, S_BLOCK) / 1e3,
            (1.5 * median(s, S_AM) + 1.25 * bytes / tcp) / 1e3, MOST, 1);
    row("602 KB on one host, p50 (1.5 pings + 1.5 x bytes)", "us",
        median(s, S_BLOCK_COPIED) / 1e3,
        (1.5 * median(s, S_AM_COPIED) +
            1.5 * bytes * median(s, S_NT) / (double)BULK_BYTES) /
            1e3,
        MOST, 1);
}

static double per_second(struct shared *s, int series)
{
    double ns = median(s, series);

    return ns > 0 ? 1e9 / ns : 0;
}

static void print_rates(struct shared *s)
{
    row("4 KiB rooms, whole life, 64 in flight (bare chain)", "1/s",
        per_second(s, S_RATE), per_second(s, S_CHAIN), LEAST, 0.5);
    row("4 KiB rooms, whole life (SEQPACKET)", "1/s", per_second(s, S_RATE),
        per_second(s, S_PACKET), LOOK, 0);
    row("64 KiB rooms, whole life, by TCP (raw TCP)", "GB/s",
        gbs(MIDDLE_BYTES, median(s, S_MIDDLE)),
        gbs(5000.0 * MIDDLE_BYTES, median(s, S_MIDDLE_TCP)), LEAST, 0.30);
}

static void print_beside(struct shared *s)
{
    double wire;
    int i;

    wire = raw_tcp(s, 0.5, &i);
    if (wire > 0)
        row("4 KiB room beside 535 MB, p50 (alone + window)", "us",
            median(s, S_BESIDE) / 1e3,
            (median(s, S_ALONE) + (1 << 20) / wire) / 1e3, MOST, 1);
}

static void print_growth(struct shared *s)
{
    int last = STEPS - 1;

    row("10,000 open rooms, p50 (10)", "us",
        median(s, S_OPEN_ROOM + last) / 1e3, median(s, S_OPEN_ROOM) / 1e3, MOST,
        1.10);
    row("10,000 open rooms, rooms per second (10)", "1/s",
        per_second(s, S_OPEN_RATE + last), per_second(s, S_OPEN_RATE), LEAST,
        0.90);
    row("10,000 open rooms, daemons' time per room (10)", "us",
        median(s, S_OPEN_CPU + last) / 1e3, median(s, S_OPEN_CPU) / 1e3, MOST,
        1.5);
    row("64 peers, p50 (1)", "us", median(s, S_PEER_ROOM + 1) / 1e3,
        median(s, S_PEER_ROOM) / 1e3, MOST, 1.10);
    row("64 peers, rooms per second (1)", "1/s", per_second(s, S_PEER_RATE + 1),
        per_second(s, S_PEER_RATE), LEAST, 0.90);
}

static void print_spread(struct shared *s)
{
    static const char *const names[SPREADS] = {"", "134 MB, 2 shards (1)",
        "134 MB, 4 shards (1)", "134 MB, 4 destinations (1)",
        "134 MB, 16 destinations (1)"};
    double bytes = (double)SPREAD_ROWS * ROW_BYTES;
    double one = gbs(bytes, median(s, S_SPREAD));

    for (int i = 1; i < SPREADS; i++)
        row(names[i], "GB/s", gbs(bytes, median(s, S_SPREAD + i)), one, LEAST,
            0.95);
}

/* What auto chose, against the best of what can be chosen by hand. */
static void print_chosen(struct shared *s)
{
    double bytes = (double)SPREAD_ROWS * ROW_BYTES;
    double large = median(s, S_CHOSEN + BY_TCP);
    double p50 = median(s, S_CHOSEN_ROOM + BY_TCP);
    double rate_ns = median(s, S_CHOSEN_RATE + BY_TCP);

    row("134 MB, auto (the best choice by hand)", "GB/s",
        gbs(bytes, median(s, S_CHOSEN)),
        gbs(bytes, least(large, median(s, S_CHOSEN + BY_UCX))), LEAST, 0.95);
    row("4 KiB room, auto, p50 (the same)", "us",
        median(s, S_CHOSEN_ROOM) / 1e3,
        least(p50, median(s, S_CHOSEN_ROOM + BY_UCX)) / 1e3, MOST, 1.05);
    row("4 KiB rooms, auto, a second (the same)", "1/s",
        per_second(s, S_CHOSEN_RATE),
        1e9 / least(rate_ns, median(s, S_CHOSEN_RATE + BY_UCX)), LEAST, 0.95);
    row("4 KiB room by TCP beside an open UCX, p50 (alone)", "us",
        median(s, S_CHOSEN_ROOM + BESIDE_UCX) / 1e3, p50 / 1e3, MOST, 1.05);
    row("4 KiB rooms by TCP beside UCX, a second (alone)", "1/s",
        per_second(s, S_CHOSEN_RATE + BESIDE_UCX),
        per_second(s, S_CHOSEN_RATE + BY_TCP), LEAST, 0.95);
}

/* Returns what `n` sleeping TCP pings take, and what else there is; 0: they
 * were not measured. */
static double with_pings(struct shared *s, double n, double else_ns)
{
    double ping = median(s, S_TCP_PING);

    return ping > 0 ? n * ping + else_ns : 0;
}

static void print_overlap(struct shared *s)
{
    row("32 pieces over 50 ms, after the last (1/32 + 30 pings)", "ms",
        median(s, S_PIECEWISE) / 1e6,
        with_pings(s, 30, median(s, S_WHOLE) / PIECES_DUE) / 1e6, MOST, 1);
}

static void print_ranks(struct shared *s)
{
    row("8 ranks, 64 MiB, all READY (1 rank)", "ms", median(s, S_TP + 2) / 1e6,
        median(s, S_TP) / 1e6, MOST, 1.05);
    row("8 ranks, 4 KiB, all READY (1 rank + 0.4 pings each)", "us",
        median(s, S_TP + 3) / 1e3,
        with_pings(s, 0.4 * (RANKS - 1), median(s, S_TP + 1)) / 1e3, MOST, 1);
}

static void print_still(struct shared *s)
{
    static const char *const who[SIDES] = {"encoded", "langd"};
    char name[64];

    for (int i = 0; i < SIDES; i++) {
        snprintf(name, sizeof name, "idle %s with 1 peer, a second (12 pings)",
            who[i]);
        row(name, "us", (double)s->idle_cpu[i] / 1e3,
            with_pings(s, 12, 0) / 1e3, MOST, 1);
        snprintf(name, sizeof name, "idle %s, wake-ups", who[i]);
        row(name, "1/s", (double)s->idle_wakes[i] / 1e3, 0, LOOK, 0);
        snprintf(name, sizeof name, "idle %s, busiest thread", who[i]);
        row(name, "1/s", (double)s->idle_busiest[i] / 1e3, 0, MOST_OURS, 2);
    }
    if (s->series[S_POLL].count)
        row("status poll (reading the clock)", "ns", median(s, S_POLL) / POLLS,
            median(s, S_CLOCK) / POLLS, MOST, 1);
    for (int i = 0; i < SIDES; i++) {
        snprintf(name, sizeof name, "%s, 10,000 rooms, outside pools", who[i]);
        row(name, "MiB", (double)s->rss_open[i] / (1 << 20), 0, MOST_OURS, 32);
    }
    row("encoded, 64 peers, outside pools", "MiB",
        (double)s->rss_peers / (1 << 20), 0, MOST_OURS, 64);
    row("start with 1 GiB (1.1 x populating + 0.2 s)", "s",
        median(s, S_START) / 1e9, 1.1 * median(s, S_POPULATE) / 1e9 + 0.2, MOST,
        1);
    for (int i = 0; i < SIDES; i++) {
        snprintf(name, sizeof name, "%s, instructions per 4 KiB room", who[i]);
        row(name, "", (double)s->instructions[i], 0, LOOK, 0);
    }
}

void print_all(struct shared *s)
{
    char path[600];

    if (opt.json) {
        json = stdout;
    } else if (opt.out) {
        snprintf(path, sizeof path, "%s/bench.json", opt.out);
        json = fopen(path, "we");
        if (!json)
            die("%s cannot be written", path);
    }
    print_encrypted(s);
    print_sent(s);
    print_copied(s);
    print_lent(s);
    print_resume(s);
    print_latency(s);
    print_block(s);
    print_rates(s);
    print_growth(s);
    print_beside(s);
    print_spread(s);
    print_chosen(s);
    print_overlap(s);
    print_ranks(s);
    print_still(s);
    if (json)
        fprintf(json, lines ? "\n]\n" : "[]\n");
    if (json && json != stdout && fclose(json) != 0)
        die("%s cannot be written", path);
    if (!opt.json)
        printf("%u rows, %u targets not met\n", lines, missed);
}
