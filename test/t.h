/* t.h - the test harness. A case is `TEST(name) { ... }`; every case runs in
 * a process of its own under a time limit, so that a crash, a hang or a leak
 * of one says nothing about the others. A failed comparison prints both
 * values with file and line and ends the case. The program takes parts of
 * case names as filters, --list, and --nofork for a debugger. */
#ifndef MMX_TEST_T_H
#define MMX_TEST_T_H

#include "base/base.h"
#include "base/bytes.h"
#include "base/err.h"

/* Headers that nearly every test needs. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Limits are only for events that never come: below them a busy machine, or a
 * build with a sanitizer, may take any time. */
#define T_LIMIT_S 120   /* of a case */
#define T_WAIT_MS 50000 /* of one wait */
/* For daemons' times that must not end during a test. */
#define T_NEVER_MS 3600000

struct t_case {
    const char *name;
    void (*run)(void);
    unsigned limit_s; /* four times as much under sanitizers */
    struct t_case *next;
};

void t_register(struct t_case *c);

/* TEST(name) has the usual limit, TEST_LIMIT(name, seconds) a limit of its
 * own. */
#define TEST_LIMIT(id, seconds)                                                \
    static void t_run_##id(void);                                              \
    __attribute__((constructor)) static void t_add_##id(void)                  \
    {                                                                          \
        static struct t_case c = {#id, t_run_##id, (seconds), NULL};           \
        t_register(&c);                                                        \
    }                                                                          \
    static void t_run_##id(void)
#define TEST(id) TEST_LIMIT(id, T_LIMIT_S)
/* The body has the variable `of`, for example `struct rig *e`, with the value
 * `made`. */
#define TEST_WITH(id, of, made)                                                \
    static void t_with_##id(of);                                               \
    TEST(id)                                                                   \
    {                                                                          \
        t_with_##id(made);                                                     \
    }                                                                          \
    static void t_with_##id(of)

/* A case that is one call: cases of one function form a table. */
#define TEST_IS(id, call)                                                      \
    TEST(id)                                                                   \
    {                                                                          \
        call;                                                                  \
    }                                                                          \
    struct t_case

/* Runs `begin` before the body, and `end` after its last line. */
#define TEST_AROUND(id, begin, end)                                            \
    static void t_around_##id(void);                                           \
    TEST(id)                                                                   \
    {                                                                          \
        begin;                                                                 \
        t_around_##id();                                                       \
        end;                                                                   \
    }                                                                          \
    static void t_around_##id(void)

/* Runs n cases of this program at once: for cases that mostly wait. */
#define TESTS_AT_ONCE(n)                                                       \
    __attribute__((constructor)) static void t_all_at_once(void)               \
    {                                                                          \
        t_at_once(n);                                                          \
    }                                                                          \
    _Static_assert((n) > 1, "one at a time")
void t_at_once(unsigned cases_at_once);

/* Ends the case as failed, from any of its threads. */
NORETURN void t_fail(const char *file, int line, const char *fmt, ...)
    PRINTF_LIKE(3, 4);
/* Ends the case as skipped, with a line that says why it could not run. */
NORETURN void t_skip(const char *fmt, ...) PRINTF_LIKE(1, 2);

/* Compare values; `a` and `b` are the expressions as text. */
void t_u64(const char *file, int line, const char *a, const char *b, uint64_t x,
    uint64_t y);
void t_i64(const char *file, int line, const char *a, const char *b, int64_t x,
    int64_t y);
void t_str(const char *file, int line, const char *a, const char *b,
    const char *x, const char *y);
void t_has(const char *file, int line, const char *text, const char *part);
void t_mem(const char *file, int line, const char *a, const void *x,
    const void *y, size_t n);
void t_err(
    const char *file, int line, const char *a, enum err got, enum err wanted);

#define T_TRUE(x)                                                              \
    ((x) ? (void)0 : t_fail(__FILE__, __LINE__, "%s is false", #x))
#define T_FALSE(x)                                                             \
    ((x) ? t_fail(__FILE__, __LINE__, "%s is true", #x) : (void)0)
/* Checks as T_TRUE does, with a text that shows the values. */
#define T_CHECK(x, ...)                                                        \
    ((x) ? (void)0 : t_fail(__FILE__, __LINE__, __VA_ARGS__))
#define T_FAIL(...) t_fail(__FILE__, __LINE__, __VA_ARGS__)
#define T_EQ_U64(got, wanted)                                                  \
    t_u64(__FILE__, __LINE__, #got, #wanted, (uint64_t)(got),                  \
        (uint64_t)(wanted))
#define T_EQ_I64(got, wanted)                                                  \
    t_i64(__FILE__, __LINE__, #got, #wanted, (int64_t)(got), (int64_t)(wanted))
#define T_EQ_STR(got, wanted)                                                  \
    t_str(__FILE__, __LINE__, #got, #wanted, (got), (wanted))
#define T_HAS(text, part) t_has(__FILE__, __LINE__, (text), (part))
#define T_EQ_MEM(got, wanted, n)                                               \
    t_mem(__FILE__, __LINE__, #got, (got), (wanted), (n))
/* T_ERR(call, ERR_X): the call must return that; T_OK(call): it must return
 * OK. */
#define T_ERR(call, wanted) t_err(__FILE__, __LINE__, #call, (call), (wanted))
#define T_OK(call)          T_ERR(call, OK)

/* Polls cond every millisecond until it holds or limit_ms is over; returns
 * whether it holds. T_WAIT fails the case if it does not hold within
 * T_WAIT_MS. */
bool t_wait(bool (*cond)(void *ud), void *ud, unsigned limit_ms);
#define T_WAIT(cond, ud)                                                       \
    T_CHECK(t_wait(cond, ud, T_WAIT_MS), "%s did not hold in time", #cond)

/* xorshift64*; the state is the seed, 0 is taken as 1. */
uint64_t t_rand(uint64_t *state);
/* Returns a nearly uniform number in [0, n), n > 0. */
uint64_t t_rand_below(uint64_t *state, uint64_t n);
void t_rand_bytes(uint64_t *state, void *p, size_t n);

/* Returns the time of the monotonic clock. */
uint64_t t_now_ns(void);
/* Returns the end of a wait of limit_ms that begins now; under sanitizers four
 * times as long. */
uint64_t t_end_ns(unsigned limit_ms);

/* Returns a directory that only this case has, the same at every call. It is
 * removed with its contents when the case ends, however that happens. */
const char *t_dir(void);

#endif
