/* order.pml - how one thread hands to another by the memory model of C11, where
 * a load may return an old value: a status cell, and the address of a carrier with
 * its counter.
 *
 * Every store to an atomic is kept. A load returns any of them, unless the
 * thread has seen a later one. Where a load with acquire returns a store with
 * release, the thread has seen what the other had, and what it does comes after
 * what the other did. Records and rows are plain memory: an access that does not come after
 * the other thread's last one there is a race, and fails. With a full fence
 * a thread has seen what earlier fences of any thread had.
 *
 * -DCELL            a cell; with -DCELL_RELEASE=0 or -DCELL_ACQUIRE=0 it fails
 * -DADDRESS         an address; the same with COUNT_... */
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

#endif
