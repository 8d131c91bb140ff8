/* A model of the switch exchange for Spin: 2 workers, and 2 slots with 2 sets each, over a network that may lose
   a packet, deliver a second copy of it at any later time, and reorder them all. Worker 1 begins at any time, so
   it may be late without bound. tests/engine/switch_model.sh checks it.

   Worker w contributes (1 << w) * (r + 1) in round r. So a sum that counts a contribution twice, leaves one out, or
   takes that of another round is not 3 * (r + 1). What is checked:
    - no worker ever takes a wrong sum (the assertion);
    - there is no state without a way on before all workers have all results (Spin's invalid end states);
    - nobody goes round for ever without a result being taken, unless packets are lost for ever (Spin's
      non-progress cycles).
   A timeout happens when nothing of the slot's round is under way any more. One that comes too early is the same
   as a copy that the network makes. */
#ifndef ROUNDS
#define ROUNDS 3
#endif
#ifndef LOSSES
#define LOSSES 1
#endif
#ifndef COPIES
#define COPIES 1
#endif
#define PATHS 4              /* worker and slot: path = 2 * w + s */
#define AT(p, r) ((p) * ROUNDS + (r))

/* How many copies of each contribution and of each result are under way. */
byte up[PATHS * ROUNDS];
byte down[PATHS * ROUNDS];
byte carried[PATHS * ROUNDS]; /* the sum in the result */
byte losses = LOSSES, copies = COPIES;

/* The aggregator: of set 2 * s + r % 2 its round plus 2, because rounds begin with -2 and -1. */
byte set_round[4];
byte seen[4];
byte sum[4];
bool complete[4];

byte at_round[PATHS]; /* of each path: the round whose result it waits for; ROUNDS: it has them all */
bool begun[2];

inline answer(path, r, k) {
  carried[AT(path, r)] = sum[k];
  if
  :: down[AT(path, r)] == 0 -> down[AT(path, r)] = 1
  :: else -> skip /* it is under way already */
  fi
}

/* SlotServer::receive() */
inline contribution(w, s, r) {
  k = 2 * s + r % 2;
  other = 2 * s + (r + 1) % 2;
  if
  :: set_round[k] == r && set_round[other] == r + 1 && complete[other] ->
     set_round[k] = r + 2; /* begin_round() */
     seen[k] = 0;
     sum[k] = 0;
     complete[k] = false
  :: else -> skip
  fi;
  if
  :: set_round[k] != r + 2 -> skip /* a copy that comes late */
  :: set_round[k] == r + 2 && (seen[k] & (1 << w)) && complete[k] -> answer(2 * w + s, r, k)
  :: set_round[k] == r + 2 && (seen[k] & (1 << w)) && !complete[k] -> skip /* it is told to wait */
  :: set_round[k] == r + 2 && !(seen[k] & (1 << w)) ->
     seen[k] = seen[k] | (1 << w);
     sum[k] = sum[k] + (1 << w) * (r + 1);
     if
     :: seen[k] == 3 ->
        complete[k] = true;
        answer(s, r, k);
        answer(2 + s, r, k)
     :: else -> skip
     fi
  fi;
  k = 0;
  other = 0
}

/* Whether the aggregator has this worker's contribution to an incomplete round: then only the other worker is
   waited for, and a repetition would change nothing. */
#define TAKEN(w, s, r) (set_round[2 * s + r % 2] == r + 2 && (seen[2 * s + r % 2] & (1 << w)) && !complete[2 * s + r % 2])

proctype path(byte w; byte s) {
  byte r, k, other;
  byte p = 2 * w + s;
  begun[w];
  do
  :: atomic { at_round[p] < ROUNDS && up[AT(p, at_round[p])] == 0 && down[AT(p, at_round[p])] == 0 &&
              !TAKEN(w, s, at_round[p]) -> up[AT(p, at_round[p])] = 1 }
  :: atomic { up[AT(p, r)] > 0 -> up[AT(p, r)]--; contribution(w, s, r); r = 0 }
  :: atomic { up[AT(p, r)] > 0 && losses > 0 -> losses--; up[AT(p, r)]--; r = 0 }
  :: atomic { up[AT(p, r)] == 1 && copies > 0 -> copies--; up[AT(p, r)] = 2; r = 0 }
  :: atomic { down[AT(p, r)] > 0 && losses > 0 -> losses--; down[AT(p, r)]--; r = 0 }
  :: atomic { down[AT(p, r)] == 1 && copies > 0 -> copies--; down[AT(p, r)] = 2; r = 0 }
  :: atomic { down[AT(p, r)] > 0 ->
              down[AT(p, r)]--;
              if
              :: at_round[p] == r -> /* SlotWorker::take_result() */
                 assert(carried[AT(p, r)] == 3 * (r + 1));
                 at_round[p]++
              :: else -> skip
              fi;
              r = 0 };
progress: skip
  :: atomic { r + 1 < ROUNDS && r < at_round[p] -> r++ } /* look at a later round's packets */
  :: atomic { at_round[p] == ROUNDS -> break }
  od
}

proctype late() { begun[1] = true }

init {
  atomic {
    set_round[1] = 1;
    set_round[3] = 1;
    complete[0] = true;
    complete[1] = true;
    complete[2] = true;
    complete[3] = true;
    begun[0] = true;
    run path(0, 0);
    run path(0, 1);
    run path(1, 0);
    run path(1, 1);
    run late()
  }
}
