/* A model of the switch exchange for Spin: 2 workers, and slots with 2 sets each, over a network that may lose a
   packet, deliver it once more at any later time, and reorder them all. tests/models/switch_model.sh checks it.

   Worker w contributes (1 << w) * (r + 1) in round r. So a sum that counts a contribution twice, leaves one out, or
   takes that of another round is not 3 * (r + 1). What is checked:
    - no worker ever takes a wrong sum (the assertion);
    - there is no state without a way on before all workers have all results (Spin's invalid end states);
    - nobody goes round for ever: no state is ever reached again (Spin's non-progress cycles; the model has no
      progress labels, so every cycle is one).

   What keeps it small, and why nothing is lost by it:
    - There is one process. Everything that happens is one indivisible step of it: a timeout, or what becomes of one
      packet. So nothing but the protocol's own variables makes states, and steps come in any order all the same.
      A worker may be late without bound, because no step of it ever has to come.
    - One bit says whether a packet is under way. A copy is a delivery that leaves the packet where it is.
    - A timeout happens when nothing of the slot's round is under way any more. One that comes too early is the
      same as a copy that the network makes.
    - A variable that has no meaning any more goes back to 0.

   The aggregator may tell a worker at any time that its contribution is absent. The worker then sends it again or asks for
   the round before, which are copies of contributions that may be under way in any case: a repetition happens when
   nothing of the slot's round is under way any more, and one that comes sooner is the same as a copy that the network
   makes. So such an answer adds no state, and has no packet of its own here.

   Slots share no variable of the protocol, here as in SlotServer and SlotWorker: what they share is the number of
   losses and copies that the network may still make. Therefore one slot is searched with more rounds, losses and
   copies, and two with fewer. */
#ifndef SLOTS
#define SLOTS 2 /* 1 or 2 */
#endif
#ifndef ROUNDS
#define ROUNDS 3 /* 3 to 5 */
#endif
#ifndef LOSSES
#define LOSSES 1
#endif
#ifndef COPIES
#define COPIES 1
#endif
#define PATHS (2 * SLOTS) /* worker and slot */
#define PATH(w, s) (2 * s + w)
#define AT(w, s, r) (PATH(w, s) * ROUNDS + r)
#define SET(s, r) (2 * s + r % 2)
#define OTHER(s, r) (2 * s + (r + 1) % 2)

bit up[PATHS * ROUNDS];       /* whether this round's contribution is under way */
bit down[PATHS * ROUNDS];     /* ... and its result */
byte carried[PATHS * ROUNDS]; /* the sum in the result */
byte losses = LOSSES, copies = COPIES;

/* The aggregator: of each set its round plus 2, because rounds begin with -2 and -1. */
byte set_round[2 * SLOTS];
byte seen[2 * SLOTS];
byte sum[2 * SLOTS];
bit complete[2 * SLOTS];

byte at_round[PATHS]; /* of each path: the round whose result it waits for; ROUNDS: it has them all */

#define ANSWER(w, s, r) \
  carried[AT(w, s, r)] = sum[SET(s, r)]; \
  down[AT(w, s, r)] = 1

/* SlotServer::receive() */
#define CONTRIBUTION(w, s, r) \
  if \
  :: set_round[SET(s, r)] == r && set_round[OTHER(s, r)] == r + 1 && complete[OTHER(s, r)] -> \
     set_round[SET(s, r)] = r + 2; /* begin_round() */ \
     seen[SET(s, r)] = 0; \
     sum[SET(s, r)] = 0; \
     complete[SET(s, r)] = 0 \
  :: else -> skip \
  fi; \
  if \
  :: set_round[SET(s, r)] != r + 2 -> skip /* a copy that comes late */ \
  :: else -> \
     if \
     :: seen[SET(s, r)] & (1 << w) -> \
        if \
        :: complete[SET(s, r)] -> ANSWER(w, s, r) \
        :: else -> skip /* it is told to wait */ \
        fi \
     :: else -> \
        seen[SET(s, r)] = seen[SET(s, r)] | (1 << w); \
        sum[SET(s, r)] = sum[SET(s, r)] + (1 << w) * (r + 1); \
        if \
        :: seen[SET(s, r)] == 3 -> \
           complete[SET(s, r)] = 1; \
           ANSWER(0, s, r); \
           ANSWER(1, s, r) \
        :: else -> skip \
        fi \
     fi \
  fi

/* SlotWorker::take_result() */
#define RESULT(w, s, r) \
  if \
  :: at_round[PATH(w, s)] == r -> \
     assert(carried[AT(w, s, r)] == 3 * (r + 1)); \
     at_round[PATH(w, s)]++ \
  :: else -> skip \
  fi

/* Whether the aggregator has this worker's contribution to an incomplete round: then only the other worker is
   waited for, and a repetition would change nothing. */
#define HELD(w, s, r) (set_round[SET(s, r)] == r + 2 && (seen[SET(s, r)] >> w & 1) && !complete[SET(s, r)])

/* All that may happen to the packets of one worker, slot and round. */
#define STEPS(w, s, r) \
  :: d_step { at_round[PATH(w, s)] == r && !up[AT(w, s, r)] && !down[AT(w, s, r)] && !HELD(w, s, r) -> \
              up[AT(w, s, r)] = 1 } \
  :: d_step { up[AT(w, s, r)] -> up[AT(w, s, r)] = 0; CONTRIBUTION(w, s, r) } \
  :: d_step { up[AT(w, s, r)] && copies > 0 -> copies--; CONTRIBUTION(w, s, r) } \
  :: d_step { up[AT(w, s, r)] && losses > 0 -> losses--; up[AT(w, s, r)] = 0 } \
  :: d_step { down[AT(w, s, r)] -> RESULT(w, s, r); down[AT(w, s, r)] = 0; carried[AT(w, s, r)] = 0 } \
  :: d_step { down[AT(w, s, r)] && copies > 0 -> copies--; RESULT(w, s, r) } \
  :: d_step { down[AT(w, s, r)] && losses > 0 -> losses--; down[AT(w, s, r)] = 0; carried[AT(w, s, r)] = 0 }

#if ROUNDS == 3
#define ROUNDS_OF(w, s) STEPS(w, s, 0) STEPS(w, s, 1) STEPS(w, s, 2)
#elif ROUNDS == 4
#define ROUNDS_OF(w, s) STEPS(w, s, 0) STEPS(w, s, 1) STEPS(w, s, 2) STEPS(w, s, 3)
#else
#define ROUNDS_OF(w, s) STEPS(w, s, 0) STEPS(w, s, 1) STEPS(w, s, 2) STEPS(w, s, 3) STEPS(w, s, 4)
#endif

#define BEGIN(s) set_round[2 * s + 1] = 1; complete[2 * s] = 1; complete[2 * s + 1] = 1
#define HAS_ALL(s) (at_round[PATH(0, s)] == ROUNDS && at_round[PATH(1, s)] == ROUNDS)

init {
  d_step {
    BEGIN(0);
#if SLOTS > 1
    BEGIN(1)
#endif
  }
  do
  ROUNDS_OF(0, 0)
  ROUNDS_OF(1, 0)
#if SLOTS > 1
  ROUNDS_OF(0, 1)
  ROUNDS_OF(1, 1)
  :: HAS_ALL(0) && HAS_ALL(1) -> break
#else
  :: HAS_ALL(0) -> break
#endif
  od
}
