/* order.pml - how one thread hands to another by the memory model of C11, where
 * a load may return an old value: lib/base/ring.c with its wake, a status cell,
 * and the address of a carrier with its counter.
 *
 * Every store to an atomic is kept. A load returns any of them, unless the
 * thread has seen a later one. Where a load with acquire returns a store with
 * release, the thread has seen what the other had, and what it does comes after
 * what the other did. Records and rows are plain memory: an access that does
 * not come after the other thread's last one there is a race, and fails. With a
 * full fence a thread has seen what earlier fences of any thread had.
 *
 * Without switches: the ring. With these it fails:
 * -DTAIL_RELEASE=0  the producer's store to tail is relaxed
 * -DTAIL_ACQUIRE=0  the consumer's load of it is
 * -DHEAD_RELEASE=0  the consumer's store to head is relaxed
 * -DHEAD_ACQUIRE=0  the producer's loads of it are
 * -DFIRSTLATE       first is stored behind tail
 * -DNOFENCEUP       no fence in wake_up()
 * -DNOFENCEDOWN     no fence in wake_sleep()
 * -DCELL            a cell; with -DCELL_RELEASE=0 or -DCELL_ACQUIRE=0 it fails
 * -DADDRESS         an address; the same with COUNT
 *
 * Left out: stores to `asleep` by two threads at once have the order in which
 * they are made; what a fence alone orders of plain memory. A search ends where
 * the consumer has slept SLEEPS times. */
#ifndef N
#define N 3 /* records */
#endif
#define CAP    2
#define WARM   1
#define SLEEPS 4
#define STORES 16

#define LOCS 4
#define HEAD 0
#define TAIL 1
#define FIRST 2
#define ASLEEP 3
#define CELLW 0 /* the word of a cell */
#define PLACE 0 /* the address */
#define COUNT 1 /* how often it was changed */

#define P 0
#define C 1

#ifndef TAIL_RELEASE
#define TAIL_RELEASE 1
#endif
#ifndef TAIL_ACQUIRE
#define TAIL_ACQUIRE 1
#endif
#ifndef HEAD_RELEASE
#define HEAD_RELEASE 1
#endif
#ifndef HEAD_ACQUIRE
#define HEAD_ACQUIRE 1
#endif
#ifndef CELL_RELEASE
#define CELL_RELEASE 1
#endif
#ifndef CELL_ACQUIRE
#define CELL_ACQUIRE 1
#endif
#ifndef COUNT_RELEASE
#define COUNT_RELEASE 1
#endif
#ifndef COUNT_ACQUIRE
#define COUNT_ACQUIRE 1
#endif

typedef store {
    byte value;
    byte after;      /* accesses to plain memory of its thread that a load with
                        acquire comes after */
    byte seen[LOCS]; /* what that thread had seen */
};
typedef loc {
    store s[STORES];
    byte last;
};
typedef view {
    byte seen[LOCS];
    byte own;   /* accesses to plain memory */
    byte after; /* those of the other thread that come before */
};
loc at[LOCS];
view sees[2];
byte fenced[LOCS];
byte written[CAP], read[CAP], record[CAP]; /* own of the last access */
byte pushed;
bool over, fd;
byte i;
byte got[2];

inline raise(to, from)
{
    i = 0;
    do
    :: i < LOCS ->
        if
        :: from.seen[i] > to.seen[i] -> to.seen[i] = from.seen[i]
        :: else
        fi;
        i++
    :: else -> break
    od
}

inline put(t, l, v, release)
{
    d_step {
        assert(at[l].last < STORES - 1);
        at[l].last++;
        sees[t].seen[l] = at[l].last;
        at[l].s[at[l].last].value = v;
        if
        :: release ->
            at[l].s[at[l].last].after = sees[t].own;
            raise(at[l].s[at[l].last], sees[t])
        :: else
        fi;
        i = 0
    }
}

inline get(t, l, acquire)
{
    atomic {
        do
        :: sees[t].seen[l] < at[l].last -> sees[t].seen[l]++
        :: break
        od;
        got[t] = at[l].s[sees[t].seen[l]].value;
        if
        :: acquire ->
            if
            :: at[l].s[sees[t].seen[l]].after > sees[t].after ->
                sees[t].after = at[l].s[sees[t].seen[l]].after
            :: else
            fi;
            raise(sees[t], at[l].s[sees[t].seen[l]])
        :: else
        fi;
        i = 0
    }
}

inline fence(t)
{
    d_step {
        i = 0;
        do
        :: i < LOCS ->
            if
            :: fenced[i] > sees[t].seen[i] -> sees[t].seen[i] = fenced[i]
            :: else -> fenced[i] = sees[t].seen[i]
            fi;
            i++
        :: else -> break
        od;
        i = 0
    }
}

/* Plain memory, by its places. */
inline write(t, where, value)
{
    d_step {
        assert(read[where] <= sees[t].after);
        sees[t].own++;
        written[where] = sees[t].own;
        record[where] = value
    }
}

inline check(t, where, value)
{
    d_step {
        assert(written[where] <= sees[t].after);
        assert(record[where] == value);
        sees[t].own++;
        read[where] = sees[t].own
    }
}

#if defined(CELL)

active proctype producer()
{
    write(P, 0, 7);
    put(P, CELLW, 1, CELL_RELEASE)
}

active proctype consumer()
{
    do
    :: got[C] == 0 -> get(C, CELLW, CELL_ACQUIRE)
    :: else -> break
    od;
    check(C, 0, 7)
}

#elif defined(ADDRESS)

/* shard_carry.c: publish(), then the counter; node_carriers_watch(), which asks
 * for the address again only when the counter has changed. */
active proctype producer()
{
    write(P, 0, 1);
    put(P, PLACE, 1, 1);
    put(P, COUNT, 1, COUNT_RELEASE)
}

active proctype consumer()
{
    do
    :: got[C] == 0 -> get(C, COUNT, COUNT_ACQUIRE)
    :: else -> break
    od;
    get(C, PLACE, 1);
    assert(got[C] == 1);
    check(C, 0, 1)
}

#else

active proctype producer()
{
    byte tail, first, head;
    bool fits;

    do
    :: pushed == N -> break
    :: pushed < N ->
        fits = tail - head < CAP;
        if
        :: fits
        :: else ->
            get(P, HEAD, HEAD_ACQUIRE);
            head = got[P];
            fits = tail - head < CAP
        fi;
        if
        :: !fits -> skip
        :: !fits -> break
        :: fits ->
            if
            :: tail - first >= WARM ->
                get(P, HEAD, HEAD_ACQUIRE);
                head = got[P];
                if
                :: head == tail ->
                    first = tail;
#ifndef FIRSTLATE
                    put(P, FIRST, first, 0)
#endif
                :: else
                fi
            :: else
            fi;
            write(P, (tail - first) % CAP, tail);
            tail++;
            pushed = tail;
            put(P, TAIL, tail, TAIL_RELEASE);
#ifdef FIRSTLATE
            put(P, FIRST, first, 0);
#endif
            /* wake_up() */
#ifndef NOFENCEUP
            fence(P);
#endif
            get(P, ASLEEP, 0);
            if
            :: got[P] ->
                atomic {
                    if
                    :: at[ASLEEP].s[at[ASLEEP].last].value ->
                        sees[P].seen[ASLEEP] = at[ASLEEP].last;
                        put(P, ASLEEP, 0, 1);
                        fd = true
                    :: else
                    fi
                }
            :: else
            fi
        fi
    od;
    over = true
}

active proctype consumer()
{
    byte head, tail, first, slept;

    do
    :: head != tail ->
        check(C, (head - first) % CAP, head);
        head++;
        put(C, HEAD, head, HEAD_RELEASE)
    :: head == tail ->
        get(C, TAIL, TAIL_ACQUIRE);
        tail = got[C];
        get(C, FIRST, 0);
        first = got[C];
        if
        :: head != tail
        :: head == tail && slept == SLEEPS -> break
        :: head == tail && slept < SLEEPS ->
            slept++;
            put(C, ASLEEP, 1, 0); /* wake_sleep() */
#ifndef NOFENCEDOWN
            fence(C);
#endif
            get(C, TAIL, TAIL_ACQUIRE);
            tail = got[C];
            get(C, FIRST, 0);
            first = got[C];
            if
            :: head != tail
            :: else ->
                if
                :: fd
                :: over && head == pushed && !fd -> break
                fi
            fi;
            put(C, ASLEEP, 0, 0);
            fd = false
        fi
    od
}
#endif
