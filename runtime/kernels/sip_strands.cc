#include "runtime/kernels/sip_strands.h"

// Highway compiles the part above HWY_ONCE once per instruction set; the order of these lines matters.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/kernels/sip_strands.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace nzcl::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <int kBits, class V>
HWY_INLINE V rotate_left(V v) {
  return hn::RotateRight<64 - kBits>(v);
}

template <class V>
HWY_INLINE void sip_round(V& a, V& b, V& c, V& d) {
  a = hn::Add(a, b);
  c = hn::Add(c, d);
  b = hn::Xor(rotate_left<13>(b), a);
  d = hn::Xor(rotate_left<16>(d), c);
  a = hn::Add(rotate_left<32>(a), d);
  c = hn::Add(c, b);
  d = hn::Xor(rotate_left<21>(d), a);
  b = hn::Xor(rotate_left<17>(b), c);
  c = rotate_left<32>(c);
}

template <class V>
HWY_INLINE void sip_take(V& a, V& b, V& c, V& d, V word) {
  d = hn::Xor(d, word);
  sip_round(a, b, c, d);
  sip_round(a, b, c, d);
  a = hn::Xor(a, word);
}

void digest_strands(const std::uint64_t* text, std::size_t groups, const std::uint64_t* start,
                    std::uint64_t* digests) {
  const hn::CappedTag<std::uint64_t, kSipStrands> tag;
  for (std::size_t first = 0; first < kSipStrands; first += hn::Lanes(tag)) {
    auto a = hn::Set(tag, start[0]), b = hn::Set(tag, start[1]);
    auto c = hn::Set(tag, start[2]), d = hn::Set(tag, start[3]);
    sip_take(a, b, c, d, hn::Iota(tag, first));
    for (std::size_t i = 0; i < groups; ++i)
      sip_take(a, b, c, d, hn::LoadU(tag, text + i * kSipStrands + first));
    sip_take(a, b, c, d, hn::Set(tag, (groups + 1) * sizeof(std::uint64_t) << 56));
    c = hn::Xor(c, hn::Set(tag, std::uint64_t{0xff}));
    for (int i = 0; i < 4; ++i) sip_round(a, b, c, d);
    hn::StoreU(hn::Xor(hn::Xor(a, b), hn::Xor(c, d)), tag, digests + first);
  }
}

}  // namespace nzcl::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace nzcl {

HWY_EXPORT(digest_strands);

void sip_strands(const std::byte* text, std::size_t groups, const SipKey& key,
                 std::uint64_t* digests) noexcept {
  const auto start = sip_start(key);
  const auto* words = reinterpret_cast<const std::uint64_t*>(text);  // only Highway reads through it
  HWY_DYNAMIC_DISPATCH(digest_strands)(words, groups, start.data(), digests);
}

}  // namespace nzcl
#endif  // HWY_ONCE
