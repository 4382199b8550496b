/* Space for aux that comes with a late length: NG groups of two rooms, an arena of A units, aux of 0 to M units a room, known when
 * the room's rows are all there. The groups have their blocks when they are admitted; what they wait for after that is space. A room
 * is READY with its aux, and the engine of a group consumes both rooms together: space of a READY room comes back with the other's.
 * To let an older group take it back was no answer: what it would take is READY already, and may be read.
 *   (no flag)  a group is admitted when its lengths are known, an unknown one by its max_rows; space is for who comes, oldest first
 *   RESERVE    a group is admitted with space for M units of each room, reserved; for all the arena, where that is more than it
 *   LEAK       RESERVE, but what a room of such a capped group does not need is anybody's at once
 * A group whose aux is more than the arena fails (too-large). Deadlock = invalid end state. */
#ifndef NG
#define NG 2
#endif
#ifndef A
#define A 2
#endif
#ifndef M
#define M 2
#endif
#define NR    (2*NG)
#define MATE(x) ((x)^1)
#define MIN(a,b) ((a)<(b)->(a):(b))
byte free=A, r[NG];                    /* reserved for rooms to come */
byte has[NR], lacks[NR], real[NR];
bool late[NR], ready[NR], adm[NG], over[NG];
#ifdef LEAK
#define RESERVE
#endif
#define LATE(g)  (late[2*g]+late[2*g+1])
#define FAILS(g) (real[2*g]+real[2*g+1]>A)
/* an older room that lacks space is first */
#define O(x,y)   ((y)<NR && (y)/2<(x)/2 && lacks[y]>0)
#if NG==2
#define FIRST(x) (!O(x,0)&&!O(x,1))
#else
#define FIRST(x) (!O(x,0)&&!O(x,1)&&!O(x,2)&&!O(x,3))
#endif

inline arrives(g,x,n) {
  late[x]=false; real[x]=n;
#ifdef RESERVE
  if
  :: r[g]>=n -> has[x]=n; r[g]=r[g]-n; ready[x]=true
  :: else -> lacks[x]=n                /* only where the group fails */
  fi;
#ifdef LEAK
  keep=(r[g]+n>M->r[g]+n-M:0);
#else
  keep=MIN(r[g],LATE(g)*M);
#endif
  free=free+r[g]-keep; r[g]=keep; keep=0
#else
  if
  :: n<=free && FIRST(x) -> free=free-n; has[x]=n; ready[x]=true
  :: else -> lacks[x]=n
  fi
#endif
}

proctype group(byte g) {
  byte x=0, n=0, keep=0;
#ifdef RESERVE
  atomic { free>=MIN(A,2*M) -> r[g]=MIN(A,2*M); free=free-r[g]; adm[g]=true };
#else
  adm[g]=true;
#endif
  late[2*g]=true; late[2*g+1]=true;
  do
  :: atomic { late[2*g]||late[2*g+1] ->
       if :: late[2*g] -> x=2*g :: late[2*g+1] -> x=2*g+1 fi;
       if :: n=0 :: n=1 :: M>1 -> n=M fi;
       arrives(g,x,n); n=0; x=0 }
  :: atomic { lacks[2*g]>0 && free>=lacks[2*g] && FIRST(2*g) ->
       free=free-lacks[2*g]; has[2*g]=lacks[2*g]; lacks[2*g]=0; ready[2*g]=true }
  :: atomic { lacks[2*g+1]>0 && free>=lacks[2*g+1] && FIRST(2*g+1) ->
       free=free-lacks[2*g+1]; has[2*g+1]=lacks[2*g+1]; lacks[2*g+1]=0; ready[2*g+1]=true }
  :: atomic { FAILS(g) || (ready[2*g]&&ready[2*g+1]) ->
       free=free+has[2*g]+has[2*g+1]+r[g]; r[g]=0; real[2*g]=0; real[2*g+1]=0;
       has[2*g]=0; has[2*g+1]=0; lacks[2*g]=0; lacks[2*g+1]=0; late[2*g]=false; late[2*g+1]=false;
       over[g]=true; break }
  od
}

init {
  byte i=0;
  atomic { do :: i<NG -> run group(i); i++ :: else -> break od }
}
