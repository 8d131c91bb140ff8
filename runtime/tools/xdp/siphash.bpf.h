// SipHash-2-4 of a frame's packet, as in runtime/base/siphash.h: all its bytes but those of the checksum.
#pragma once

#include "runtime/tools/xdp/frame.bpf.h"

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

// The checksum of the packet as it is in the frame.
__noinline __u64 checksum(struct xdp_md* ctx, __u64 low, __u64 high) {
  const struct frame* const f = frame_of(ctx);
  if (!f) return 0;
  struct sip s = {low ^ 0x736f6d6570736575ull, high ^ 0x646f72616e646f6dull, low ^ 0x6c7967656e657261ull,
                  high ^ 0x7465646279746573ull};
  const __u64* word = (const void*)&f->header;
#pragma unroll
  for (int i = 0; i < 5; ++i) sip_take(&s, word[i]);
  const void* const end = (void*)(long)ctx->data_end;
  word = (const void*)(f + 1);
  __u64 bytes = 40;
  for (__u32 i = 0; i < NZCL_MOST_VALUES / 2; ++i, ++word) {
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
