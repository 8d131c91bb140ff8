/* A model, for Spin, of a lane's lock, its doorbell, and how its thread sleeps (runtime/lane/ORDERING.md), in weak memory
   (memory.pml). There are three threads: that of the lane, a caller that submits an operation, makes one round and then drives no
   longer, and a scan thread that makes something ready and rings the lane. WAY 1 has a message that arrives in place of the scan
   thread. Its second step needs a further round.

   So two pieces of work are to be done. A round does what it finds, with the lane's state, which is plain memory.

   What is checked: no two rounds race, and the lane's thread never sleeps for ever while there is work (Spin's invalid end
   states). The sleeps of the program also end by the clock; here they do not, but for the one after which it tries the lock once
   more. lane_model.sh takes each order away in turn and expects an error. */
#ifndef WAY
#define WAY 0
#endif

/* The orders in the program. */
#ifndef LOCK
#define LOCK ORDERED /* TryLock::try_lock() */
#endif
#ifndef UNLOCK
#define UNLOCK ORDERED /* TryLock::unlock() */
#endif
#ifndef PUSH
#define PUSH SC /* SubmissionQueue::push() */
#endif
#ifndef EMPTY
#define EMPTY SC /* SubmissionQueue::empty() */
#endif
#ifndef RUNG_STORE
#define RUNG_STORE SC /* Lane::ring() */
#endif
#ifndef RUNG_LOOK
#define RUNG_LOOK SC /* Lane::plan_nap() */
#endif
#ifndef RUNG_TAKE
#define RUNG_TAKE SC /* Lane::round() */
#endif
#ifndef SLEEPING_STORE
#define SLEEPING_STORE SC /* Lane::rest() */
#endif
#ifndef SLEEPING_LOAD
#define SLEEPING_LOAD SC /* Lane::wake() */
#endif
#ifndef HAND_BACK
#define HAND_BACK 1
#endif

#define LANE 0
#define CALLER 1
#define SCAN 2
#define THREADS 3
#define DRIVE 0
#define TAIL 1
#define RUNG 2
#define SLEEPING 3
#define DISTURBED 4
#define LOCATIONS 5
#define WRITES 16
#define NEVER_LOADED DRIVE
#define STATE 0 /* the lane's: head of the queue, moved_, what the operation still needs */
#define QUEUE 1 /* the entry of the queue */
#define READY 2 /* what the scan thread makes */
#define PLACES 3
#include "memory.pml"

bit taken, second, made, moved; /* the state; its accesses are checked as those of STATE */
bit arrives = WAY, arrived;       /* whether the message still comes, and whether it is there: the descriptor is readable then */
#define ALL_DONE (taken && (made || WAY) && !arrives && !arrived && !second)

/* The load before the exchange is left out: it can only make the lock fail once more. */
#define TRY_LOCK(t, has) \
  if \
  :: atomic { MAY_CHANGE(DRIVE, 1) -> EXCHANGE(t, DRIVE, 1, x, LOCK); has = 1; x = 0 } \
  :: atomic { !MAY_CHANGE(DRIVE, 1) -> has = 0 } \
  fi

/* Lane::round() */
#define ROUND(t) \
  WRITE_PLACE(t, STATE); \
  atomic { \
    moved = second; second = 0; \
    if :: arrived -> arrived = 0; second = 1; moved = 1 :: else -> skip fi \
  }; \
  LOAD(t, RUNG, x, RELAXED); \
  if \
  :: x == 1 -> \
     EXCHANGE(t, RUNG, 0, x, RUNG_TAKE); \
     READ_PLACE(t, READY); \
     atomic { made = 1; moved = 1 } \
  :: else -> skip \
  fi; \
  LOAD(t, TAIL, x, EMPTY); \
  if \
  :: x == 1 && !taken -> READ_PLACE(t, QUEUE); atomic { taken = 1; moved = 1 } \
  :: else -> skip \
  fi; \
  x = 0

#define WAKE(t) \
  LOAD(t, SLEEPING, x, SLEEPING_LOAD); \
  if \
  :: x == 1 -> EXCHANGE(t, SLEEPING, 0, x, SC); if :: x == 1 -> RING_EVENT(t) :: else -> skip fi \
  :: else -> skip \
  fi; \
  x = 0

proctype lane() {
  bit x, has, moves, naps;
  do
  :: ALL_DONE -> break
  :: else ->
     TRY_LOCK(LANE, has);
     if
     :: has -> ROUND(LANE); moves = moved; STORE(LANE, DRIVE, 0, UNLOCK)
     :: else -> MAY_CHANGE(DRIVE, 1); moves = 1 /* it tries once more, when that may be of use */
     fi;
     if
     :: moves -> skip
     :: else ->
        STORE(LANE, SLEEPING, 1, SLEEPING_STORE);
        naps = 0;
        TRY_LOCK(LANE, has);
        if
        :: has -> /* plan_nap() */
           READ_PLACE(LANE, STATE);
           naps = !moved && !arrived;
           LOAD(LANE, RUNG, x, RUNG_LOOK);
           if :: x == 1 -> naps = 0 :: else -> skip fi;
           LOAD(LANE, TAIL, x, EMPTY);
           if :: x == 1 && !taken -> naps = 0 :: else -> skip fi;
           if :: naps -> STORE(LANE, DISTURBED, 0, RELAXED) :: else -> skip fi;
           STORE(LANE, DRIVE, 0, UNLOCK)
        :: else -> MAY_CHANGE(DRIVE, 1)
        fi;
        if
        :: naps -> if :: event > 0 :: arrived :: ALL_DONE fi; RESET_EVENT(LANE)
        :: else -> skip
        fi;
        STORE(LANE, SLEEPING, 0, RELAXED)
     fi;
     moves = 0; naps = 0; has = 0; x = 0
  od
}

proctype caller() {
  bit x, has, moves;
  WRITE_PLACE(CALLER, QUEUE);
  STORE(CALLER, TAIL, 1, PUSH);
  WAKE(CALLER);
  TRY_LOCK(CALLER, has); /* drive() */
  if
  :: has ->
     ROUND(CALLER);
     moves = moved;
     if :: moves -> STORE(CALLER, DISTURBED, 1, RELAXED) :: else -> skip fi;
     STORE(CALLER, DRIVE, 0, UNLOCK)
  :: else -> skip
  fi;
  LOAD(CALLER, DISTURBED, x, RELAXED); /* hand_back() */
  if :: x == 1 && HAND_BACK -> WAKE(CALLER) :: else -> skip fi
}

proctype scan() {
  bit x;
  WRITE_PLACE(SCAN, READY);
  STORE(SCAN, RUNG, 1, RUNG_STORE);
  WAKE(SCAN)
}

init {
  atomic {
    BEGIN_MEMORY;
    run lane();
    run caller();
#if WAY == 0
    run scan()
#endif
  }
#if WAY == 1
  atomic { arrives = 0; arrived = 1 }
#endif
}
