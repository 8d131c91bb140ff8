/* What the program in the kernel and the program that loads it both know: the maps' keys and values.
 * C and C++ read this. All addresses and ports are in network order. */
#ifndef NZCL_RUNTIME_TOOLS_XDP_LAYOUT_H
#define NZCL_RUNTIME_TOOLS_XDP_LAYOUT_H

#include <linux/types.h>

enum {
  NZCL_MOST_RANKS = 64,    /* of a pool: one bit each */
  NZCL_MOST_PORTS = 64,    /* interfaces */
  NZCL_MOST_VALUES = 2048, /* of a packet */
};

/* The packet's header, as in runtime/switch/README.md. */
struct nzcl_header {
  __u32 magic;
  __u8 kind, flags;
  __u16 rank;
  __u32 job;
  __u16 slot;
  __u8 exponent, next_exponent;
  __u32 round, piece, next, shape;
  __u64 blocks, checksum;
};

/* Of the map `addresses`, which has the number of the pool whose packets are sent to an address. The kernel
 * may use an element that was removed again at once, while the program still reads it. So it holds a number
 * and nothing else: a packet that is taken for another pool's has neither its tag nor its checksum. */
struct nzcl_pool_key {
  __u32 host;
  __u16 port, zero;
};
/* Of the map `pools`, by number. The loader writes it, like everything that belongs to a number, only while
 * no core can be in the program with that number. */
struct nzcl_pool {
  __u64 key_low, key_high;
  __u32 tag;
  __u32 number;     /* the pool's place in `pools`, `states` and `ranks` */
  __u32 generation; /* another one each time that the number is used again; never 0 */
  __u32 first_slot; /* the pool's place in `slots` */
  __u32 slots;
  __u32 workers;
  __u32 values; /* the most of a packet */
};

/* Of the map `ranks`, at number * NZCL_MOST_RANKS + rank: from where a rank's packets must come. */
struct nzcl_rank {
  __u32 host;
  __u16 port;
  __u16 zero;
};

/* Of the map `homes`: which rank of a pool is behind an interface, and the MAC addresses with which a frame
 * reaches it. The program learns them from the rank's own packets. Elements are written in place, under a
 * lock, and never removed. One of another generation says nothing about the pool that has the number now. */
struct nzcl_home_key {
  __u32 pool, interface;
};
struct nzcl_home {
  __u32 generation; /* of the pool */
  __u32 rank;
  __u16 theirs[3], ours[3]; /* MAC addresses */
};

enum nzcl_failure {
  NZCL_GOES_WELL = 0,
  NZCL_OTHER_OPERATION, /* ranks[0] and ranks[1] have called different operations */
  NZCL_CANNOT_BE,       /* ranks[0] has sent a packet that no correct rank sends */
};

/* Of the map `states`: what the program tells the loader, which maps it into its memory. */
struct nzcl_state {
  __u32 failure; /* written last, when all other fields of the failure are valid */
  __u32 claimed; /* 1 as soon as some core has begun to write a failure */
  __u32 ranks[2];
  __u32 values, exponent, piece; /* of NZCL_CANNOT_BE */
  /* Contributions of two ranks have come in at one interface. Copies that a stranger has sent look like
   * that, too, so it is no failure. */
  __u32 shared;         /* written last, as `failure` is */
  __u32 shared_claimed; /* as `claimed` */
  __u32 shared_interface;
  __u32 shared_ranks[2];
};

/* One of the two rounds of a slot that are kept. */
struct nzcl_set {
  __u64 seen; /* bit r: rank r's contribution was added */
  __u64 blocks;
  __u32 round, piece, next, shape;
  __u32 values; /* how many each contribution must have; 0: none has come yet */
  __u32 seen_count;
  __u16 first_rank;
  __u8 flags, exponent, next_exponent, complete;
  __u16 zero;
};
/* Of the map `slots`; behind its lock lie the sets, then their values. The loader writes it only while no
 * packet can reach it. */
struct nzcl_sets {
  struct nzcl_set sets[2];
  __s32 values[2][NZCL_MOST_VALUES];
};

/* Of the map `counts`, for each processor. */
enum nzcl_count {
  NZCL_ADDED,     /* contributions */
  NZCL_COMPLETED, /* rounds */
  NZCL_ANSWERED,  /* results that were sent to one rank again */
  NZCL_WAITING,   /* repetitions that came before the sum was complete */
  NZCL_LATE,      /* copies that came late, and were dropped */
  NZCL_REFUSED,   /* packets that no member made, or that make no sense */
  NZCL_NOT_WHOLE, /* frames to a pool's address with bytes behind the packet, or with a part of one */
  NZCL_ELSEWHERE, /* of those answered again, or to wait: not from where the rank's contributions come */
  NZCL_MOVED,     /* contributions from another place than the one before at that interface */
  NZCL_STRAY,     /* results at an interface behind which no rank is */
  NZCL_COUNTS
};

#endif
