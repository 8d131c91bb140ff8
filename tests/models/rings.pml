/* A model, for Spin, of what two endpoints of a host share (verbs/segment/ORDERING.md), in weak memory: a writer pushes N
   immediates into a ring of 2 entries, and a reader takes them, sleeping when there is none.

   WAY 0: the immediates announce messages, of which each lies in one of SLOTS slots; credits give the slots back. The credits'
          ring is one location here, because it is the same ring the other way round.
   WAY 1: they announce records in a bounce ring that has room for 2.

   What is checked: no two accesses of a message's or record's bytes race (memory.pml), messages come in order, the record is
   there when its immediate is, and nobody waits for ever (Spin's invalid end states). rings_model.sh takes each order away in
   turn and expects an error. */
#ifndef N
#define N 4
#endif
#ifndef WAY
#define WAY 0
#endif
#ifndef SLOTS
#define SLOTS 3
#endif

/* The orders in the program. */
#ifndef PUSH
#define PUSH ORDERED /* RingWriter::push() */
#endif
#ifndef POP
#define POP ORDERED /* RingReader::pop() */
#endif
#ifndef TAKEN_STORE
#define TAKEN_STORE ORDERED /* RingReader::pop(), after each quarter of the ring */
#endif
#ifndef TAKEN_LOAD
#define TAKEN_LOAD ORDERED /* RingWriter::full() */
#endif
#ifndef CREDIT_PUSH
#define CREDIT_PUSH ORDERED
#endif
#ifndef CREDIT_POP
#define CREDIT_POP ORDERED
#endif
#ifndef WRITTEN_STORE
#define WRITTEN_STORE ORDERED /* BounceWriter::push() */
#endif
#ifndef WRITTEN_LOAD
#define WRITTEN_LOAD ORDERED /* BounceReader::take() */
#endif
#ifndef BOUNCE_TAKEN_STORE
#define BOUNCE_TAKEN_STORE ORDERED /* BounceReader::take() */
#endif
#ifndef BOUNCE_TAKEN_LOAD
#define BOUNCE_TAKEN_LOAD ORDERED /* BounceWriter::has_room() */
#endif
#ifndef WAKE_FENCE
#define WAKE_FENCE SC /* SegmentEndpoint::wake_readers() */
#endif
#ifndef SLEEP_FENCE
#define SLEEP_FENCE SC /* SegmentEndpoint::prepare_wait() */
#endif

#define WRITER 0
#define READER 1
#define THREADS 2
#define ENTRIES 2
#define ENTRY(i) ((i) % ENTRIES)
#define TAKEN 2
#define SLEEPING 3
#define LOCATIONS 6
#define WRITES 8
#if WAY == 0
#define CREDIT 4
#define PLACES SLOTS
#define PLACE(i) ((i) % SLOTS)
#else
#define WRITTEN 4
#define BOUNCE_TAKEN 5
#define RECORDS 2
#define PLACES RECORDS
#define PLACE(i) ((i) % RECORDS)
#endif
#include "memory.pml"

proctype writer() {
  byte i, seen, taken, room;
  do
  :: i < N ->
#if WAY == 0
     do
     :: i - room < SLOTS -> break
     :: else -> MAY_CHANGE(CREDIT, room); LOAD(WRITER, CREDIT, room, CREDIT_POP)
     od;
#else
     do
     :: i - room < RECORDS -> break
     :: else -> MAY_CHANGE(BOUNCE_TAKEN, room); LOAD(WRITER, BOUNCE_TAKEN, room, BOUNCE_TAKEN_LOAD)
     od;
#endif
     do
     :: i - taken < ENTRIES -> break
     :: else -> MAY_CHANGE(TAKEN, taken); LOAD(WRITER, TAKEN, taken, TAKEN_LOAD)
     od;
     WRITE_PLACE(WRITER, PLACE(i));
#if WAY == 1
     STORE(WRITER, WRITTEN, i + 1, WRITTEN_STORE);
#endif
     STORE(WRITER, ENTRY(i), i + 1, PUSH);
     i++;
     FENCE(WRITER, WAKE_FENCE);
     LOAD(WRITER, SLEEPING, seen, RELAXED);
     if
     :: seen == 1 ->
        EXCHANGE(WRITER, SLEEPING, 0, seen, SC);
        if :: seen == 1 -> RING_EVENT(WRITER) :: else -> skip fi
     :: else -> skip
     fi;
     seen = 0
  :: else -> break
  od
}

proctype reader() {
  byte i, found, written, records;
  do
  :: i < N ->
     do /* until the next immediate is there */
     :: LOAD(READER, ENTRY(i), found, POP);
        if
        :: found == i + 1 -> break
        :: else ->
           RESET_EVENT(READER);
           STORE(READER, SLEEPING, 1, RELAXED);
           FENCE(READER, SLEEP_FENCE);
           LOAD(READER, ENTRY(i), found, POP);
           if
           :: found == i + 1 -> STORE(READER, SLEEPING, 0, RELAXED)
           :: else -> event > 0
           fi
        fi
     od;
     found = 0;
     if :: i % (ENTRIES / 2) == 0 -> STORE(READER, TAKEN, i + 1, TAKEN_STORE) :: else -> skip fi;
#if WAY == 0
     READ_PLACE(READER, PLACE(i));
     STORE(READER, CREDIT, i + 1, CREDIT_PUSH);
#else
     LOAD(READER, WRITTEN, written, WRITTEN_LOAD);
     do
     :: records < written ->
        READ_PLACE(READER, PLACE(records));
        records++;
        STORE(READER, BOUNCE_TAKEN, records, BOUNCE_TAKEN_STORE)
     :: else -> break
     od;
     assert(records > i); /* the record came before its immediate */
     written = 0;
#endif
     i++
  :: else -> break
  od
}

init {
  atomic {
    BEGIN_MEMORY;
    run writer();
    run reader()
  }
}
