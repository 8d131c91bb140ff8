/* A model, for Spin, of three small protocols in weak memory (memory.pml), of the same form: each of two threads writes one
   variable and reads the other one's, and they may not both overlook each other. handshakes_model.sh takes each order away in turn
   and expects an error.

   WAY 0: CompletionBell. A thread finishes an operation and rings if somebody listens; another one listens, and sleeps unless
          the operation has finished.
   WAY 1: RegionTable. A writer counts itself and compares the key; another thread takes the key away, waits until nobody is
          counted, and uses the region's memory for something else.
   WAY 2: Operation. A thread makes a slice and rings the lane if it has asked in vain; the lane asks, says that it waits, and asks
          once more. */
#ifndef WAY
#define WAY 0
#endif

/* The orders in the program. */
#ifndef FINISHED_STORE
#define FINISHED_STORE SC /* Operation::set_finished() */
#endif
#ifndef LISTENERS_LOAD
#define LISTENERS_LOAD SC /* CompletionBell::finished() */
#endif
#ifndef LISTEN
#define LISTEN SC /* CompletionBell::listen() */
#endif
#ifndef LISTEN_FENCE
#define LISTEN_FENCE SC /* the same */
#endif
#ifndef FINISHED_LOAD
#define FINISHED_LOAD ORDERED /* Operation::finished() */
#endif
#ifndef KEY_STORE
#define KEY_STORE SC /* RegionTable::remove() */
#endif
#ifndef WRITERS_LOAD
#define WRITERS_LOAD SC /* the same */
#endif
#ifndef WRITERS_ADD
#define WRITERS_ADD SC /* RegionTable::write() */
#endif
#ifndef KEY_LOAD
#define KEY_LOAD SC /* the same */
#endif
#ifndef WRITERS_SUB
#define WRITERS_SUB ORDERED /* the same */
#endif
#ifndef MADE_STORE
#define MADE_STORE ORDERED /* CompressionStep, when a slice is ready */
#endif
#ifndef MADE_FENCE
#define MADE_FENCE SC /* Operation::ring_for_made() */
#endif
#ifndef ASK_FENCE
#define ASK_FENCE SC /* Operation::ensure_made() */
#endif
#ifndef READY_LOAD
#define READY_LOAD ORDERED /* CompressionStep::ready() */
#endif

#define THREADS 2
#define LOCATIONS 2
#define WRITES 5
#define PLACES 1
#define MEMORY 0
#include "memory.pml"

#if WAY == 0
#define FINISHED 0
#define LISTENERS 1
proctype first() {
  bit x;
  WRITE_PLACE(0, MEMORY); /* the result */
  STORE(0, FINISHED, 1, FINISHED_STORE);
  LOAD(0, LISTENERS, x, LISTENERS_LOAD);
  if :: x == 1 -> RING_EVENT(0) :: else -> skip fi
}
proctype second() {
  bit x;
  EXCHANGE(1, LISTENERS, 1, x, LISTEN);
  FENCE(1, LISTEN_FENCE);
  do
  :: LOAD(1, FINISHED, x, FINISHED_LOAD);
     if :: x == 1 -> break :: else -> event > 0; RESET_EVENT(1) fi
  od;
  READ_PLACE(1, MEMORY)
}
#elif WAY == 1
#define GONE 0 /* 1: the key has been taken away */
#define WRITERS 1
proctype first() {
  bit x;
  STORE(0, GONE, 1, KEY_STORE);
  do
  :: LOAD(0, WRITERS, x, WRITERS_LOAD);
     if :: x == 0 -> break :: else -> MAY_CHANGE(WRITERS, 1) fi
  od;
  WRITE_PLACE(0, MEMORY)
}
proctype second() {
  bit x;
  EXCHANGE(1, WRITERS, 1, x, WRITERS_ADD);
  LOAD(1, GONE, x, KEY_LOAD);
  if :: x == 0 -> WRITE_PLACE(1, MEMORY) :: else -> skip fi;
  EXCHANGE(1, WRITERS, 0, x, WRITERS_SUB)
}
#else
#define MADE 0
#define AWAITED 1
proctype first() {
  bit x;
  WRITE_PLACE(0, MEMORY);
  STORE(0, MADE, 1, MADE_STORE);
  FENCE(0, MADE_FENCE);
  LOAD(0, AWAITED, x, RELAXED);
  if
  :: x == 1 -> EXCHANGE(0, AWAITED, 0, x, RELAXED); if :: x == 1 -> RING_EVENT(0) :: else -> skip fi
  :: else -> skip
  fi
}
proctype second() {
  bit x;
  LOAD(1, MADE, x, READY_LOAD);
  if
  :: x == 0 ->
     STORE(1, AWAITED, 1, RELAXED);
     FENCE(1, ASK_FENCE);
     do
     :: LOAD(1, MADE, x, READY_LOAD);
        if :: x == 1 -> break :: else -> event > 0; RESET_EVENT(1) fi
     od
  :: else -> skip
  fi;
  READ_PLACE(1, MEMORY)
}
#endif

init {
  atomic {
    BEGIN_MEMORY;
    run first();
    run second()
  }
}
