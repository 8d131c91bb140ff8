// The switch exchange's aggregator inside the kernel: sums what ranks send to a pool's address, and answers.
// It does for each packet what SlotServer (runtime/switch/slot_server.h) does; see README.md.
#include <stdbool.h>

#include "runtime/switch/xdp/frame.bpf.h"
#include "runtime/switch/xdp/layout.h"
#include "runtime/switch/xdp/maps.bpf.h"
#include "runtime/switch/xdp/siphash.bpf.h"

const char licence[] SEC("license") = "BSD";  // no helper that it calls asks for another one

#define MAGIC 0x31535a4e
#define NO_PIECE (~0u)
#define AGGREGATOR_RANK 0xffff
#define CONTRIBUTION 1
#define RESULT 2
#define WAITING 3

// For tests: the program drops one of this many packets, as a network might. 0: it drops none.
volatile const __u32 drop_one_of = 0;
// Tests let the program read behind a frame's end, which the verifier must refuse.
volatile const bool broken = 0;

static __always_inline int count(__u32 what) {
  __u64* const n = bpf_map_lookup_elem(&counts, &what);
  if (n) ++*n;
  return XDP_DROP;
}

// Records why the sums of a pool cannot be right any more. Only the first reason is kept.
static __always_inline int fail(const struct nzcl_pool* pool, struct nzcl_state why) {
  struct nzcl_state* const s = bpf_map_lookup_elem(&states, &pool->number);
  if (!s || __sync_lock_test_and_set(&s->claimed, 1)) return XDP_DROP;
  s->ranks[0] = why.ranks[0];
  s->ranks[1] = why.ranks[1];
  s->values = why.values;
  s->exponent = why.exponent;
  s->piece = why.piece;
  // This is the field that the loader watches, so it is written when all others have been.
  __sync_fetch_and_add(&s->failure, why.failure);
  return XDP_DROP;
}

// Returns the pool whose packets are sent to this address, or 0.
static __always_inline const struct nzcl_pool* pool_at(__u32 host, __u16 port) {
  const struct nzcl_pool_key key = {host, port, 0};
  const __u32* const found = bpf_map_lookup_elem(&addresses, &key);
  if (!found) return 0;
  const __u32 number = *(const volatile __u32*)found;
  return bpf_map_lookup_elem(&pools, &number);
}

static __always_inline int is_same_home(const struct nzcl_home* a, const struct nzcl_home* b) {
  __u32 differ = (a->rank ^ b->rank) | (a->generation ^ b->generation);
#pragma unroll
  for (int i = 0; i < 3; ++i) differ |= (a->theirs[i] ^ b->theirs[i]) | (a->ours[i] ^ b->ours[i]);
  return !differ;
}

// Where the frame comes from, as a rank's home.
static __always_inline struct nzcl_home origin_of(const struct frame* f, const struct nzcl_pool* pool,
                                                  __u32 rank) {
  struct nzcl_home home = {.generation = pool->generation, .rank = rank};
  __builtin_memcpy(home.theirs, f->eth.h_source, 6);
  __builtin_memcpy(home.ours, f->eth.h_dest, 6);
  return home;
}

// Records that contributions of two ranks have come in at one interface. Only the first time is kept.
static __always_inline void note_shared(const struct nzcl_pool* pool, __u32 interface, __u32 first,
                                        __u32 second) {
  struct nzcl_state* const s = bpf_map_lookup_elem(&states, &pool->number);
  if (!s || __sync_lock_test_and_set(&s->shared_claimed, 1)) return;
  s->shared_interface = interface;
  s->shared_ranks[0] = first;
  s->shared_ranks[1] = second;
  __sync_fetch_and_add(&s->shared, 1);
}

// Results for all ranks go to each rank's home: the interface and the MAC address from which its
// contributions come. A home is learned only from a contribution that was added, which happens once for each
// of them. So a stranger who repeats a packet that he has overheard moves a home only if he is faster than
// the rank, and the rank's next contribution moves it back.
static __always_inline void learn_home(struct xdp_md* ctx, const struct nzcl_pool* pool, __u32 rank) {
  const struct frame* const f = frame_of(ctx);
  if (!f) return;
  const struct nzcl_home_key key = {pool->number, ctx->ingress_ifindex};
  struct home* home = bpf_map_lookup_elem(&homes, &key);
  if (!home) {
    const struct home empty = {};
    bpf_map_update_elem(&homes, &key, &empty, BPF_NOEXIST);
    home = bpf_map_lookup_elem(&homes, &key);
    if (!home) return;
  }
  const struct nzcl_home now = origin_of(f, pool, rank);
  bpf_spin_lock(&home->lock);
  const struct nzcl_home before = home->data;
  home->data = now;
  bpf_spin_unlock(&home->lock);
  if (before.generation != now.generation || is_same_home(&before, &now)) return;
  count(NZCL_MOVED);
  if (before.rank != rank) note_shared(pool, key.interface, before.rank, rank);
}

// Counts a repetition that does not come from its rank's home. It is answered all the same, at the place that
// it comes from: the home may be wrong, and then the rank gets its results in no other way. Whoever repeats a
// rank's packet gets one packet that is not longer.
static __always_inline void count_elsewhere(struct xdp_md* ctx, const struct nzcl_pool* pool, __u32 rank) {
  const struct frame* const f = frame_of(ctx);
  if (!f) return;
  const struct nzcl_home_key key = {pool->number, ctx->ingress_ifindex};
  struct home* const home = bpf_map_lookup_elem(&homes, &key);
  const struct nzcl_home now = origin_of(f, pool, rank);
  struct nzcl_home known = {};
  if (home) {
    bpf_spin_lock(&home->lock);
    known = home->data;
    bpf_spin_unlock(&home->lock);
  }
  if (!is_same_home(&known, &now)) count(NZCL_ELSEWHERE);
}

#define FIRST_RANK_SHIFT 16
enum fate { REFUSE, LATE, MISFIT_OPERATION, MISFIT_VALUES, ADDED, ANSWER_ALL, ANSWER_ONE, ANSWER_WAITING };

static __always_inline int is_later(__u32 a, __u32 b) { return (__s32)(a - b) > 0; }

// Begins a new round in the set. The round before it must be complete.
static __always_inline int begin_round(struct nzcl_set* set, const struct nzcl_set* before,
                                       const struct nzcl_header* h) {
  if (!is_later(h->round, set->round)) return LATE;
  if (h->round != set->round + 2 || before->round + 1 != h->round || !before->complete) return REFUSE;
  set->seen = 0;
  set->blocks = 0;
  set->round = h->round;
  set->piece = before->next;
  set->next = NO_PIECE;
  set->shape = h->shape;
  set->values = 0;
  set->seen_count = 0;
  set->first_rank = h->rank;
  set->flags = 0;
  set->exponent = before->next_exponent;
  set->next_exponent = 0;
  set->complete = 0;
  return ADDED;
}

static __always_inline int fits(const struct nzcl_set* set, const struct nzcl_set* before,
                                const struct nzcl_header* h, __u32 values, __u32 most) {
  const int same_tensor = set->piece == NO_PIECE || before->shape == h->shape;
  if (h->shape != set->shape || !same_tensor || h->piece != set->piece) return MISFIT_OPERATION;
  const int ahead = h->next == NO_PIECE || h->piece == NO_PIECE || h->next > h->piece;
  const int agreed = values == 0 || (h->piece != NO_PIECE && h->exponent == set->exponent);
  if (!ahead || !agreed || values > most || (values && set->values && values != set->values))
    return MISFIT_VALUES;
  return ADDED;
}

static __always_inline void add_header(struct nzcl_set* set, const struct nzcl_header* h) {
  set->flags |= h->flags;
  set->blocks |= h->blocks;
  if (h->next < set->next) {
    set->next = h->next;
    set->next_exponent = h->next_exponent;
  } else if (h->next == set->next && h->next_exponent > set->next_exponent) {
    set->next_exponent = h->next_exponent;
  }
}

// Overwrites the contribution's header with that of the result. The caller computes the checksum afterwards.
static __always_inline void write_result(struct frame* f, const struct nzcl_set* set) {
  struct nzcl_header* const h = &f->header;
  h->kind = RESULT;
  h->flags = set->flags;
  h->rank = AGGREGATOR_RANK;
  h->exponent = set->exponent;
  h->next_exponent = set->next_exponent;
  h->round = set->round;
  h->piece = set->piece;
  h->next = set->next;
  h->shape = set->shape;
  h->blocks = set->blocks;
}

static __always_inline __u32 first_missing(__u64 seen) {
  __u32 r = 0;
  for (__u32 half = 32; half > 0; half /= 2) {
    const __u64 mask = (1ull << half) - 1;
    if ((seen & mask) != mask) continue;
    seen >>= half;
    r += half;
  }
  return r;
}

static __always_inline void write_waiting(struct frame* f, const struct nzcl_set* set, __u32 workers) {
  struct nzcl_header* const h = &f->header;
  h->kind = WAITING;
  h->flags = 0;
  h->rank = first_missing(set->seen);
  h->exponent = 0;
  h->next_exponent = 0;
  h->round = set->round;
  h->piece = workers - set->seen_count;
  h->next = 0;
  h->shape = set->shape;
  h->blocks = 0;
}

// Both loops end at the packet's end. The bound of the loop is the number of values in a slot, for the
// verifier.
static __always_inline void add_values(__s32* sums, const __s32* theirs, const void* end, int first) {
  if (first) {
    for (__u32 i = 0; i < NZCL_MOST_VALUES; ++i) {
      if ((const void*)(theirs + i + 1) > end) break;
      sums[i] = theirs[i];
    }
    return;
  }
  for (__u32 i = 0; i < NZCL_MOST_VALUES; ++i) {
    if ((const void*)(theirs + i + 1) > end) break;
    sums[i] += theirs[i];
  }
}

static __always_inline void write_values(__s32* theirs, const void* end, const __s32* sums) {
  for (__u32 i = 0; i < NZCL_MOST_VALUES; ++i) {
    if ((const void*)(theirs + i + 1) > end) break;
    theirs[i] = sums[i];
  }
}

// Applies the state table of runtime/switch/README.md to one contribution, whose checksum is right.
// Under the slot's lock it adds the packet's values to those of the slot, or copies the sum into the packet.
// Returns the fate, and in the upper half the rank whose contribution came first. The function is not
// `static`, because the verifier then examines it once, and not again at every call.
__noinline int take(struct xdp_md* ctx, __u32 number, __u32 workers, __u32 most) {
  struct frame* const f = frame_of(ctx);
  struct slot* const slot = bpf_map_lookup_elem(&slots, &number);
  if (!f || !slot) return REFUSE;
  const struct nzcl_header h = f->header;
  const int values = values_of(ctx, f);
  if (values < 0 || h.rank >= NZCL_MOST_RANKS) return REFUSE;
  const void* const end = (void*)(long)ctx->data_end;
  __s32* const theirs = (void*)(f + 1);
  const __u32 parity = h.round & 1;
  struct nzcl_set* const set = &slot->data.sets[parity];
  struct nzcl_set* const before = &slot->data.sets[parity ^ 1];
  __s32* const sums = slot->data.values[parity];
  const __u64 bit = 1ull << h.rank;
  int fate = ADDED;
  __u32 first_rank = 0;

  bpf_spin_lock(&slot->lock);
  if (h.round != set->round) fate = begin_round(set, before, &h);
  if (fate != ADDED) goto unlock;
  const int again = (set->seen & bit) != 0;
  if (again && !set->complete) {
    write_waiting(f, set, workers);
    fate = ANSWER_WAITING;
    goto unlock;
  }
  if (!again) {
    fate = fits(set, before, &h, values, most);
    first_rank = set->first_rank;
    if (fate != ADDED) goto unlock;
    // With this aggregator every contribution to a piece has values, also those that are all zero, because
    // the result is written over the contribution and needs as much room.
    if ((values == 0) != (set->piece == NO_PIECE)) {
      fate = MISFIT_VALUES;
      goto unlock;
    }
    const int first = set->values == 0;
    set->seen |= bit;
    ++set->seen_count;
    set->values = values;
    add_header(set, &h);
    if (set->seen_count == workers) set->complete = 1;
    add_values(sums, theirs, end, first);
    if (!set->complete) goto unlock;
    fate = ANSWER_ALL;
  } else {
    fate = values == set->values ? ANSWER_ONE : REFUSE;
    if (fate == REFUSE) goto unlock;
  }
  write_result(f, set);
  write_values(theirs, end, sums);
unlock:
  bpf_spin_unlock(&slot->lock);
  return fate | first_rank << FIRST_RANK_SHIFT;
}

// Returns whether a member of the pool has made this packet as it is, and sent it from its address.
static __always_inline int is_genuine(struct xdp_md* ctx, const struct frame* f,
                                      const struct nzcl_pool* pool) {
  const struct nzcl_header* const h = &f->header;
  if (h->magic != MAGIC || h->job != pool->tag || h->kind != CONTRIBUTION) return 0;
  if (h->rank >= pool->workers || h->rank >= NZCL_MOST_RANKS || h->slot >= pool->slots) return 0;
  const __u32 at = pool->number * NZCL_MOST_RANKS + h->rank;
  const struct nzcl_rank* const rank = bpf_map_lookup_elem(&ranks, &at);
  if (!rank || rank->host != f->ip.saddr || rank->port != f->udp.source) return 0;
  return values_of(ctx, f) >= 0;
}

// Makes an answer of a frame whose packet is one but for its checksum, and sends it back or to all ports.
static __always_inline int answer(struct xdp_md* ctx, const struct nzcl_pool* pool, int fate) {
  if (fate == ANSWER_WAITING) {
    const int more = (int)(ctx->data_end - ctx->data - sizeof(struct frame));
    if (more > 0 && bpf_xdp_adjust_tail(ctx, -more)) return XDP_DROP;
  }
  const __u64 sum = checksum(ctx, pool->key_low, pool->key_high);
  struct frame* const f = frame_of(ctx);
  if (!f) return XDP_DROP;
  f->header.checksum = sum;
  swap_addresses(f);
  const __u16 bytes = ctx->data_end - ctx->data - sizeof(struct ethhdr);
  f->ip.tot_len = bpf_htons(bytes);
  f->ip.ttl = 64;
  f->ip.id = 0;
  f->ip.tos = 0;
  f->ip.frag_off = bpf_htons(0x4000);
  f->udp.len = bpf_htons(bytes - sizeof(struct iphdr));
  f->udp.check = 0;  // none: the packet has a better one
  sum_ip_header(&f->ip);
  if (fate != ANSWER_ALL) return XDP_TX;
  return bpf_redirect_map(&ports, 0, BPF_F_BROADCAST);
}

static __always_inline int conclude(struct xdp_md* ctx, const struct nzcl_pool* pool,
                                    const struct nzcl_header* h, int values, int taken) {
  const int fate = taken & ((1 << FIRST_RANK_SHIFT) - 1);
  if (fate == ADDED || fate == ANSWER_ALL) learn_home(ctx, pool, h->rank);
  if (fate == ANSWER_ONE || fate == ANSWER_WAITING) count_elsewhere(ctx, pool, h->rank);
  switch (fate) {
    case LATE:
      return count(NZCL_LATE);
    case ADDED:
      return count(NZCL_ADDED);
    case ANSWER_ALL:
      count(NZCL_ADDED);
      count(NZCL_COMPLETED);
      return answer(ctx, pool, fate);
    case ANSWER_ONE:
      count(NZCL_ANSWERED);
      return answer(ctx, pool, fate);
    case ANSWER_WAITING:
      count(NZCL_WAITING);
      return answer(ctx, pool, fate);
    case MISFIT_OPERATION:
      return fail(pool, (struct nzcl_state){.failure = NZCL_OTHER_OPERATION,
                                            .ranks = {taken >> FIRST_RANK_SHIFT, h->rank}});
    case MISFIT_VALUES:
      return fail(pool, (struct nzcl_state){.failure = NZCL_CANNOT_BE,
                                            .ranks = {h->rank, h->rank},
                                            .values = values,
                                            .exponent = h->exponent,
                                            .piece = h->piece});
    default:
      return count(NZCL_REFUSED);
  }
}

SEC("xdp")
int nzcl_port(struct xdp_md* ctx) {
  if (broken) return *(volatile __u8*)(long)ctx->data_end;
  const struct frame* f = frame_of(ctx);
  if (!f || !has_ports(f)) return XDP_PASS;
  const struct nzcl_pool* const pool = pool_at(f->ip.daddr, f->udp.dest);
  if (!pool) return XDP_PASS;
  if (!is_whole(ctx, f)) return count(NZCL_NOT_WHOLE);
  if (drop_one_of && bpf_get_prandom_u32() % drop_one_of == 0) return XDP_DROP;
  const struct nzcl_state* const state = bpf_map_lookup_elem(&states, &pool->number);
  if (!state || state->claimed || !is_genuine(ctx, f, pool)) return count(NZCL_REFUSED);
  if (f->header.checksum != checksum(ctx, pool->key_low, pool->key_high)) return count(NZCL_REFUSED);
  const struct nzcl_header h = f->header;
  const int values = values_of(ctx, f);
  const int taken = take(ctx, pool->first_slot + h.slot, pool->workers, pool->values);
  return conclude(ctx, pool, &h, values, taken);
}

// Runs for each port that gets a copy of a result: addresses it to the rank behind the port.
SEC("xdp/devmap")
int nzcl_result(struct xdp_md* ctx) {
  struct frame* const f = frame_of(ctx);
  if (!f) return XDP_DROP;
  const struct nzcl_pool* const pool = pool_at(f->ip.saddr, f->udp.source);
  if (!pool) return XDP_DROP;
  const struct nzcl_home_key at = {pool->number, ctx->egress_ifindex};
  struct home* const found = bpf_map_lookup_elem(&homes, &at);
  if (!found) return count(NZCL_STRAY);
  bpf_spin_lock(&found->lock);
  const struct nzcl_home home = found->data;
  bpf_spin_unlock(&found->lock);
  if (home.generation != pool->generation) return count(NZCL_STRAY);
  const __u32 number = pool->number * NZCL_MOST_RANKS + home.rank;
  const struct nzcl_rank* const rank = bpf_map_lookup_elem(&ranks, &number);
  if (!rank) return XDP_DROP;
  __builtin_memcpy(f->eth.h_dest, home.theirs, 6);
  __builtin_memcpy(f->eth.h_source, home.ours, 6);
  f->ip.daddr = rank->host;
  f->udp.dest = rank->port;
  sum_ip_header(&f->ip);
  return XDP_PASS;
}

// For the workers' ends of veth pairs: without any program there, native frames vanish.
SEC("xdp")
int nzcl_pass(struct xdp_md* ctx) { return XDP_PASS; }
