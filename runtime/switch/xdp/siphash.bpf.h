// The checksum of a frame's packet, as in runtime/switch/packet.h: SipHash-2-4 of all its bytes but
// those of the checksum, those of the values in strands.
#pragma once

#include "runtime/switch/xdp/frame.bpf.h"

struct sip {
  __u64 a, b, c, d;
};

static __always_inline __u64 rotate(__u64 x, int by) { return x << by | x >> (64 - by); }

static __always_inline void sip_round(struct sip* s) {
  s->a += s->b;
  s->b = rotate(s->b, 13) ^ s->a;
  s->a = rotate(s->a, 32);
  s->c += s->d;
  s->d = rotate(s->d, 16) ^ s->c;
  s->a += s->d;
  s->d = rotate(s->d, 21) ^ s->a;
  s->c += s->b;
  s->b = rotate(s->b, 17) ^ s->c;
  s->c = rotate(s->c, 32);
}

static __always_inline void sip_take(struct sip* s, __u64 word) {
  s->d ^= word;
  sip_round(s);
  sip_round(s);
  s->a ^= word;
}

static __always_inline __u64 sip_finish(struct sip* s, __u64 last) {
  sip_take(s, last);
  s->c ^= 0xff;
  sip_round(s);
  sip_round(s);
  sip_round(s);
  sip_round(s);
  return s->a ^ s->b ^ s->c ^ s->d;
}

#define STRANDS 4
_Static_assert((NZCL_MOST_VALUES & (NZCL_MOST_VALUES - 1)) == 0, "masks are made of it");

static __always_inline struct sip sip_start(__u64 low, __u64 high) {
  return (struct sip){low ^ 0x736f6d6570736575ull, high ^ 0x646f72616e646f6dull, low ^ 0x6c7967656e657261ull,
                      high ^ 0x7465646279746573ull};
}

// Takes the digests of the values' whole groups. What this returns does not depend on how often the loop has
// run, so the verifier looks at the rest of the program once.
static __always_inline void take_strands(struct sip* s, const struct frame* f, const void* end, __u64 groups,
                                         __u64 low, __u64 high) {
  struct sip strands[STRANDS];
#pragma unroll
  for (int i = 0; i < STRANDS; ++i) {
    strands[i] = sip_start(low, high);
    sip_take(&strands[i], i);
  }
  const __u64* word = (const void*)(f + 1);
  for (__u32 i = 0; i < NZCL_MOST_VALUES / 2 / STRANDS; ++i, word += STRANDS) {
    if ((const void*)(word + STRANDS) > end) break;
#pragma unroll
    for (int k = 0; k < STRANDS; ++k) sip_take(&strands[k], word[k]);
  }
#pragma unroll
  for (int i = 0; i < STRANDS; ++i) sip_take(s, sip_finish(&strands[i], (groups + 1) * 8 << 56));
}

// The checksum of the packet as it is in the frame.
__noinline __u64 checksum(struct xdp_md* ctx, __u64 low, __u64 high) {
  const struct frame* const f = frame_of(ctx);
  if (!f) return 0;
  struct sip s = sip_start(low, high);
  const __u64* const header = (const void*)&f->header;
#pragma unroll
  for (int i = 0; i < 5; ++i) sip_take(&s, header[i]);
  const void* const end = (void*)(long)ctx->data_end;
  const __u64 groups = (ctx->data_end - ctx->data - sizeof *f) / (8 * STRANDS);
  __u64 bytes = 40;
  if (groups) {
    take_strands(&s, f, end, groups, low, high);
    bytes += 8 * STRANDS;
  }
  __u64 at = groups;
  barrier_var(at);  // so that the compiler leaves the next line, which tells the verifier how large it is
  at &= NZCL_MOST_VALUES / STRANDS - 1;
  const __u64* word = (const void*)(f + 1) + at * 8 * STRANDS;
  for (int i = 0; i < STRANDS - 1; ++i, ++word) {
    if ((const void*)(word + 1) > end) break;
    sip_take(&s, *word);
    bytes += 8;
  }
  __u64 last = 0;
  if ((const void*)word + 4 <= end) {
    last = *(const __u32*)word;
    bytes += 4;
  }
  return sip_finish(&s, last | bytes << 56);
}
