/* A model, for Spin, of how members agree who is in the communicator that takes the place of theirs
   (runtime/bootstrap/README.md, "Those that are left" and "New members"): N members, of which any may die at any
   moment, the hub too. tests/models/regroup_model.sh checks it.

   What is checked:
    - of those that live, no two know of commits of different attempts, or of different members (the assertion in TAKE);
    - whoever lives when a commit becomes known is in it (the assertion in FOLLOW);
    - there is no state without a way on before all that live have returned from their calls (Spin's invalid end
      states), and then all of them have the same: a communicator, or, if they were to grow, all of them an error
      (the assertions at the end);
    - nobody goes round for ever (no state is reached again: the model has no progress labels).

   As in the program, there are two machines: RegroupMember of each member, and RegroupBoard of the hub. Only one
   board is of use at a time, so there is one, which begins anew when a member takes the place of a dead hub.

   What keeps it small:
    - There is one process. Everything that happens is one indivisible step of it, in any order.
    - A member's latest state is on its way to the hub, or nothing is: a state says all, so that a later one takes the
      place of an earlier one that has not arrived.
    - Who dies may lose what it has sent last: a member learns of a death at any moment after it, and then gets
      nothing any more that was on its way.
    - Once, a member tells again what it has told: it does so for several reasons.
    - Deadlines, members that are stopped and those that serve are left out, and so is the place where members meet. */
#ifndef N
#define N 4
#endif
#ifndef DEATHS
#define DEATHS 2
#endif
#ifndef GROW
#define GROW 0 /* 1: they grow, and a new rank may not come */
#endif
#ifndef MISTAKE
#define MISTAKE 0 /* one that is to be found: see regroup_model.sh */
#endif

#define AWAY 0
#define READY 1
#define BUILDING 2
#define BUILT 3
#define FAILED 4
#define COMMITTED 5

#define BEGIN 1
#define AGAIN 2
#define COMMIT 3
#define REFUSE 4

/* The members. Sets of members have a bit for each. */
bit dead[N];
byte stage[N], attempt[N], members[N], closed[N], hub[N];
bit refused[N], called[N];
byte deaths = DEATHS, repeats = 1;
/* The state that is on its way to the hub. */
bit sent[N];
byte sent_stage[N], sent_attempt[N], sent_members[N];
/* What the hub has told a member. */
chan told_by_hub[4] = [5] of {byte, byte, byte};

/* The board. */
bit known[N], gone[N];
byte b_stage[N], b_attempt[N], b_members[N], b_told[N], b_final[N], b_closed, inexplicable;

/* Used within a step, and 0 between steps. */
byte k, found, set, ready, kind, about, who;
bit lost, complete, has_failed, all_known;

#define HAS(set, i) ((set) >> (i) & 1)
#define TAKES_PART(i, a) \
  (b_attempt[i] == (a) && (b_stage[i] == BUILDING || b_stage[i] == BUILT || b_stage[i] == FAILED))
#define IS_IN(i) (closed[i] < attempt[i] && !refused[i])
#define FOR_ALL(...) k = 0; do :: k < N -> __VA_ARGS__; k++ :: else -> k = 0; break od
#define IF(condition, ...) if :: condition -> __VA_ARGS__ :: else -> skip fi

#define TELL_HUB(i) \
  sent[i] = 1; sent_stage[i] = stage[i]; sent_attempt[i] = attempt[i]; sent_members[i] = members[i]

/* RegroupMember::take() */
#define TAKE(i, kind, about, who) \
  if \
  :: kind == BEGIN -> \
     if \
     :: stage[i] == COMMITTED || about <= attempt[i] -> TELL_HUB(i) \
     :: else -> \
        attempt[i] = about; members[i] = who; \
        if :: stage[i] == READY -> stage[i] = BUILDING :: else -> TELL_HUB(i) fi \
     fi \
  :: kind == AGAIN -> IF(closed[i] < about, closed[i] = about) \
  :: kind == COMMIT && attempt[i] == about && IS_IN(i) -> \
     FOR_ALL(IF(!dead[k] && stage[k] == COMMITTED, assert(attempt[k] == about && members[k] == members[i]))); \
     stage[i] = COMMITTED \
  :: kind == COMMIT && !(attempt[i] == about && IS_IN(i)) -> skip \
  :: kind == REFUSE -> IF(stage[i] != COMMITTED, refused[i] = 1; stage[i] = AWAY) \
  fi

/* All that the board says goes through the channel, also to the hub itself. */
#define SAY(i, kind, about, who) IF(!dead[i], assert(nfull(told_by_hub[i])); told_by_hub[i] ! kind, about, who)

#define FOLLOW(a) \
  FOR_ALL( \
    IF(!gone[k] && TAKES_PART(k, a), b_stage[k] = COMMITTED; b_final[k] = a; SAY(k, COMMIT, a, 0)); \
    assert(gone[k] || !known[k] || b_stage[k] != READY))

#define REFUSE_ALL(...) FOR_ALL(IF(!gone[k] && (__VA_ARGS__), b_stage[k] = AWAY; SAY(k, REFUSE, 0, 0)))

#define GO_ON(a) \
  FOR_ALL(IF(!gone[k] && b_attempt[k] == a && b_members[k] != 0, set = b_members[k])); \
  complete = 1; \
  FOR_ALL(IF(HAS(set, k), \
    IF(gone[k] || b_stage[k] == READY || b_stage[k] == AWAY, lost = 1); \
    IF(b_attempt[k] != a || b_stage[k] != BUILT, complete = 0); \
    IF(b_attempt[k] == a && b_stage[k] == FAILED, has_failed = 1))); \
  IF(MISTAKE == 2, IF(set == 0, skip); complete = !has_failed); \
  if \
  :: !lost && complete -> FOLLOW(a) \
  :: !(!lost && complete) && !lost && has_failed && inexplicable == a -> \
     b_closed = a; REFUSE_ALL(TAKES_PART(k, a)) \
  :: lost && GROW -> \
     b_closed = a; REFUSE_ALL(TAKES_PART(k, a) || (MISTAKE != 3 && b_stage[k] == READY)) \
  :: lost && !GROW -> \
     b_closed = a; \
     FOR_ALL(IF(!gone[k] && TAKES_PART(k, a), b_stage[k] = AWAY; SAY(k, AGAIN, a, 0))) \
  :: else -> skip \
  fi

#define BEGIN_NEXT \
  FOR_ALL(IF(!gone[k] && b_stage[k] == READY, ready = ready | (1 << k))); \
  FOR_ALL(IF(gone[k], lost = 1)); \
  complete = 1; \
  FOR_ALL(IF(!gone[k] && b_stage[k] != READY, complete = 0)); \
  if \
  :: ready == 0 -> skip \
  :: ready != 0 && GROW && lost -> REFUSE_ALL(b_stage[k] == READY) \
  :: ready != 0 && !(GROW && lost) && complete -> \
     found = b_closed; \
     FOR_ALL(IF(b_attempt[k] > found, found = b_attempt[k])); \
     found++; \
     FOR_ALL(IF(HAS(ready, k), \
       b_told[k] = found; b_attempt[k] = found; b_stage[k] = BUILDING; b_members[k] = ready; \
       SAY(k, BEGIN, found, ready))) \
  :: else -> skip \
  fi

/* RegroupBoard::decide() */
#define DECIDE \
  FOR_ALL(IF(!gone[k] && b_stage[k] == COMMITTED, found = b_attempt[k])); \
  all_known = 1; \
  FOR_ALL(IF(!known[k] && !gone[k], all_known = 0)); \
  IF(MISTAKE == 1, all_known = 1); \
  if \
  :: found > 0 -> FOLLOW(found) \
  :: found == 0 && all_known -> \
     found = b_closed; \
     FOR_ALL(IF(!gone[k] && TAKES_PART(k, b_attempt[k]) && b_attempt[k] > found, found = b_attempt[k])); \
     if :: found > b_closed -> GO_ON(found) :: else -> BEGIN_NEXT fi \
  :: else -> skip \
  fi; \
  found = 0; set = 0; ready = 0; lost = 0; complete = 0; has_failed = 0; all_known = 0

/* The hub h hears member i. */
#define SAID(i) \
  known[i] = 1; \
  IF(sent_attempt[i] >= b_told[i] || MISTAKE == 4, \
    b_stage[i] = (b_final[i] > 0 && b_final[i] == sent_attempt[i] && MISTAKE != 6 -> COMMITTED : sent_stage[i]); \
    b_attempt[i] = sent_attempt[i]; b_members[i] = sent_members[i]); \
  sent[i] = 0; sent_stage[i] = 0; sent_attempt[i] = 0; sent_members[i] = 0; \
  DECIDE

#define UNSEND(i) sent[i] = 0; sent_stage[i] = 0; sent_attempt[i] = 0; sent_members[i] = 0
#define DROP_VERDICTS(i) \
  do :: len(told_by_hub[i]) > 0 -> told_by_hub[i] ? kind, about, who :: len(told_by_hub[i]) == 0 -> break od; \
  kind = 0; about = 0; who = 0

/* Member i learns that its hub has died, and looks for the next one, which knows nothing yet. */
#define NEXT_HUB(i) \
  DROP_VERDICTS(i); UNSEND(i); \
  do :: dead[hub[i]] -> hub[i]++ :: else -> break od; \
  IF(hub[i] == i, \
    FOR_ALL(known[k] = 0; gone[k] = dead[k]; b_stage[k] = AWAY; b_attempt[k] = 0; b_members[k] = 0; b_told[k] = 0; \
            b_final[k] = 0); \
    b_closed = 0; inexplicable = 0); \
  TELL_HUB(i)

#define STEPS(i) \
  :: d_step { !dead[i] && !called[i] -> called[i] = 1; stage[i] = READY; TELL_HUB(i) } \
  :: d_step { !dead[i] && stage[i] == BUILDING && IS_IN(i) -> \
              stage[i] = (MISTAKE == 5 -> COMMITTED : BUILT); TELL_HUB(i) } \
  :: d_step { !dead[i] && stage[i] == BUILDING && IS_IN(i) && (GROW || SOME_DEAD(members[i])) -> \
              stage[i] = FAILED; TELL_HUB(i) } \
  :: d_step { !dead[i] && (stage[i] == BUILDING || stage[i] == BUILT || stage[i] == FAILED) && !IS_IN(i) && \
              !refused[i] -> stage[i] = READY; TELL_HUB(i) } \
  :: d_step { !dead[i] && !dead[hub[i]] && hub[hub[i]] == hub[i] && sent[i] -> SAID(i) } \
  :: d_step { !dead[i] && nempty(told_by_hub[i]) -> \
              told_by_hub[i] ? kind, about, who; TAKE(i, kind, about, who); kind = 0; about = 0; who = 0 } \
  :: d_step { !dead[i] && dead[hub[i]] -> NEXT_HUB(i) } \
  :: d_step { dead[i] && !gone[i] && hub[i] == HUB && hub[HUB] == HUB && sent[i] -> SAID(i) } \
  :: d_step { dead[i] && !gone[i] && hub[HUB] == HUB -> gone[i] = 1; UNSEND(i); DECIDE } \
  :: d_step { !dead[i] && called[i] && repeats > 0 -> repeats--; TELL_HUB(i) } \
  :: d_step { !dead[i] && deaths > 0 && ALIVE > 1 -> deaths--; dead[i] = 1; DROP_VERDICTS(i); FORGET(i) }

/* The first that lives; it may not know yet that it is the hub. */
#define HUB (!dead[0] -> 0 : (!dead[1] -> 1 : (!dead[2 % N] -> 2 % N : 3 % N)))
#define SOME_DEAD(set) \
  ((HAS(set, 0) && dead[0]) || (HAS(set, 1) && dead[1]) || (N > 2 && HAS(set, 2) && dead[2 % N]) || \
   (N > 3 && HAS(set, 3) && dead[3 % N]))
#define ALIVE (N - dead[0] - dead[1] - (N > 2 -> dead[2 % N] : 0) - (N > 3 -> dead[3 % N] : 0))
/* What a dead member knew has no meaning any more, but for what it has sent. */
#define FORGET(i) stage[i] = 0; attempt[i] = 0; members[i] = 0; closed[i] = 0; refused[i] = 0; called[i] = 1
/* At the hub: a member hears of its own inexplicable failure, because a new rank has not come. */
#define UNEXPLAINED \
  (GROW && !dead[HUB] && hub[HUB] == HUB && inexplicable == 0 && \
   (FAILED_NOW(0) || FAILED_NOW(1) || (N > 2 && FAILED_NOW(2 % N)) || (N > 3 && FAILED_NOW(3 % N))))
#define FAILED_NOW(i) (!gone[i] && b_stage[i] == FAILED)

#define RETURNED(i) (dead[i] || stage[i] == COMMITTED || refused[i])
#define SETTLED (RETURNED(0) && RETURNED(1) && (N < 3 || RETURNED(2 % N)) && (N < 4 || RETURNED(3 % N)))

init {
  d_step { FOR_ALL(known[k] = 1) }
  do
  STEPS(0)
  STEPS(1)
#if N > 2
  STEPS(2)
#endif
#if N > 3
  STEPS(3)
#endif
  :: d_step { UNEXPLAINED -> \
              FOR_ALL(IF(FAILED_NOW(k), inexplicable = b_attempt[k])); DECIDE }
  :: d_step { deaths > 0 -> deaths = 0 } /* nobody dies any more, and all must return */
  :: SETTLED -> break
  od;
  skip;
  d_step {
    /* All that live have the same. */
    FOR_ALL(IF(!dead[k],
      IF(stage[k] == COMMITTED,
        assert(HAS(members[k], k) && (!complete || (about == attempt[k] && set == members[k])));
        complete = 1; about = attempt[k]; set = members[k]);
      IF(refused[k], has_failed = 1)));
    assert(!(complete && has_failed));
    assert(GROW || !has_failed);
  }
}
