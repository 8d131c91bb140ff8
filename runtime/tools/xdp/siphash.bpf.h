// SipHash-2-4 of a frame's packet, as in runtime/base/siphash.h: all its bytes but those of the checksum.
#pragma once

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
