/* Memory that is as weak as C++ lets it be, for models of what threads or processes share. A model defines THREADS, LOCATIONS
   (atomic variables), PLACES (plain memory) and WRITES (the most that one location is written), and includes this.

   It is an operational form of C++'s release and acquire, with views, as research on memory models uses it:
    - A location keeps all values that were written to it. A thread may read any of them that is not older than the newest
      one that it knows of: so another thread's writes are seen late, and those to different locations in any order. That
      covers store buffers, and loads and stores that a processor does early.
    - A write that releases carries all that its thread knows, and a read that acquires takes that over. A read-modify-write
      reads the newest value, and passes on what that carried.
    - A sequentially consistent fence exchanges what its thread knows with what is known to all: to it and to all that was
      sequentially consistent before. An access that is sequentially consistent does so for its own location alone, and
      acquires or releases besides.
    - Plain memory has no values. Two accesses of which one is a write, and of which none happens before the other one, are an
      error (the assertions in READ_PLACE and WRITE_PLACE). That also finds a read that a processor may do after a later
      write of its own thread.
   New values come behind all older ones of their location. That loses nothing where a location has one writer, or where the
   others only read-modify-write it.

   An eventfd is the kernel's: it orders what is before a write to it with what comes after a read of it. */
#ifndef NEVER_LOADED
#define NEVER_LOADED 255 /* the location of a lock: it is stored and exchanged, and not loaded */
#endif
#define RELAXED 0
#define ORDERED 1 /* a write releases, a read acquires, a read-modify-write does both */
#define SC 2      /* sequentially consistent */

/* Location l has the values 0 to newest[l]. Value 0 is the one that it begins with. */
byte newest[LOCATIONS], value[LOCATIONS * WRITES];
byte knows[THREADS * LOCATIONS];                /* by thread: the newest value of each location that it knows of */
byte clock[THREADS * THREADS];                  /* by thread: up to which of each thread's times it comes after */
byte carried[LOCATIONS * WRITES * LOCATIONS];   /* by value: what its writer knew, if it released */
byte carried_clock[LOCATIONS * WRITES * THREADS];
byte all_know[LOCATIONS];                      /* of each location: what is sequentially consistent */
byte event, event_knows[LOCATIONS], event_clock[THREADS];
byte written_by[PLACES], written_at[PLACES], read_at[PLACES * THREADS];

/* Used within a step, and 0 between steps. */
byte k, j, at, known;

#define VALUE(l, i) ((l) * WRITES + (i))
#define RAISE(x, y) if :: (x) < (y) -> x = y :: else -> skip fi
#define EACH(limit, ...) k = 0; do :: k < (limit) -> __VA_ARGS__; k++ :: else -> k = 0; break od

#define JOIN_FENCES(t) \
  EACH(LOCATIONS, RAISE(knows[(t) * LOCATIONS + k], all_know[k]); all_know[k] = knows[(t) * LOCATIONS + k])

/* Takes over what the value `at` of location l carries. */
#define ACQUIRE(t, l) \
  EACH(LOCATIONS, RAISE(knows[(t) * LOCATIONS + k], carried[VALUE(l, at) * LOCATIONS + k])); \
  EACH(THREADS, RAISE(clock[(t) * THREADS + k], carried_clock[VALUE(l, at) * THREADS + k]))

/* Gives what the thread knows to the newest value of location l. */
#define RELEASE(t, l) \
  EACH(LOCATIONS, RAISE(carried[VALUE(l, newest[l]) * LOCATIONS + k], knows[(t) * LOCATIONS + k])); \
  EACH(THREADS, RAISE(carried_clock[VALUE(l, newest[l]) * THREADS + k], clock[(t) * THREADS + k])); \
  clock[(t) * THREADS + (t)]++

#define APPEND(t, l, x) \
  newest[l]++; \
  assert(newest[l] < WRITES); \
  value[VALUE(l, newest[l])] = x; \
  knows[(t) * LOCATIONS + (l)] = newest[l]

/* Forgets the values that no thread may read any more. Without this the states would not come again. */
#define LOWER(x) if :: (x) > known -> x = (x) - known :: else -> x = 0 fi
#define FORGET(l) \
  known = newest[l]; \
  EACH(THREADS, if :: (l) != NEVER_LOADED && knows[k * LOCATIONS + (l)] < known -> known = knows[k * LOCATIONS + (l)] :: else -> skip fi); \
  if \
  :: known > 0 -> \
     at = 0; \
     do \
     :: at <= newest[l] -> \
        j = at + known; \
        if \
        :: j <= newest[l] -> \
           value[VALUE(l, at)] = value[VALUE(l, j)]; \
           EACH(LOCATIONS, carried[VALUE(l, at) * LOCATIONS + k] = carried[VALUE(l, j) * LOCATIONS + k]); \
           EACH(THREADS, carried_clock[VALUE(l, at) * THREADS + k] = carried_clock[VALUE(l, j) * THREADS + k]) \
        :: else -> \
           value[VALUE(l, at)] = 0; \
           EACH(LOCATIONS, carried[VALUE(l, at) * LOCATIONS + k] = 0); \
           EACH(THREADS, carried_clock[VALUE(l, at) * THREADS + k] = 0) \
        fi; \
        at++ \
     :: else -> break \
     od; \
     newest[l] = newest[l] - known; \
     EACH(THREADS, LOWER(knows[k * LOCATIONS + (l)])); \
     EACH(LOCATIONS * WRITES, LOWER(carried[k * LOCATIONS + (l)])); \
     LOWER(all_know[l]); \
     LOWER(event_knows[l]) \
  :: else -> skip \
  fi; \
  at = 0; j = 0; known = 0

#define FENCE(t, order) \
  atomic { if :: (order) == SC -> JOIN_FENCES(t) :: else -> skip fi }

/* `into` becomes what thread t reads of location l. */
#define LOAD(t, l, into, order) \
  atomic { \
    if :: (order) == SC -> RAISE(knows[(t) * LOCATIONS + (l)], all_know[l]) :: else -> skip fi; \
    at = knows[(t) * LOCATIONS + (l)]; \
    do :: at < newest[l] -> at++ :: break od; \
    into = value[VALUE(l, at)]; \
    knows[(t) * LOCATIONS + (l)] = at; \
    if :: (order) == SC -> RAISE(all_know[l], at) :: else -> skip fi; \
    if :: (order) != RELAXED -> ACQUIRE(t, l) :: else -> skip fi; \
    FORGET(l) \
  }

#define STORE(t, l, x, order) \
  atomic { \
    APPEND(t, l, x); \
    if :: (order) == SC -> all_know[l] = newest[l] :: else -> skip fi; \
    if :: (order) != RELAXED -> RELEASE(t, l) :: else -> skip fi; \
    FORGET(l) \
  }

/* `into` becomes the newest value of location l, and x takes its place. */
#define EXCHANGE(t, l, x, into, order) \
  atomic { \
    at = newest[l]; \
    into = value[VALUE(l, at)]; \
    if :: (order) != RELAXED -> ACQUIRE(t, l) :: else -> skip fi; \
    APPEND(t, l, x); \
    if :: (order) == SC -> all_know[l] = newest[l] :: else -> skip fi; \
    EACH(LOCATIONS, carried[VALUE(l, newest[l]) * LOCATIONS + k] = carried[VALUE(l, at) * LOCATIONS + k]); \
    EACH(THREADS, carried_clock[VALUE(l, newest[l]) * THREADS + k] = carried_clock[VALUE(l, at) * THREADS + k]); \
    if :: (order) != RELAXED -> RELEASE(t, l) :: else -> skip fi; \
    FORGET(l) \
  }

/* Whether reading once more can give another value than x: who polls waits for this, because nothing else changes. */
#define MAY_CHANGE(l, x) (value[VALUE(l, newest[l])] != (x))

#define READ_PLACE(t, p) \
  atomic { \
    assert(written_at[p] <= clock[(t) * THREADS + written_by[p]]); \
    read_at[(p) * THREADS + (t)] = clock[(t) * THREADS + (t)] \
  }
#define WRITE_PLACE(t, p) \
  atomic { \
    assert(written_at[p] <= clock[(t) * THREADS + written_by[p]]); \
    EACH(THREADS, assert(read_at[(p) * THREADS + k] <= clock[(t) * THREADS + k])); \
    written_by[p] = t; \
    written_at[p] = clock[(t) * THREADS + (t)] \
  }

/* The kernel. */
#define THROUGH_KERNEL(t) \
  EACH(LOCATIONS, RAISE(event_knows[k], knows[(t) * LOCATIONS + k]); knows[(t) * LOCATIONS + k] = event_knows[k]); \
  EACH(THREADS, RAISE(event_clock[k], clock[(t) * THREADS + k]); clock[(t) * THREADS + k] = event_clock[k]); \
  clock[(t) * THREADS + (t)]++
#define RING_EVENT(t) atomic { event = 1; THROUGH_KERNEL(t) }
#define RESET_EVENT(t) atomic { event = 0; THROUGH_KERNEL(t) }

#define BEGIN_MEMORY EACH(THREADS, clock[k * THREADS + k] = 1)
