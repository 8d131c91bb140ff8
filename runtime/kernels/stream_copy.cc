#include "runtime/kernels/stream_copy.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "runtime/base/cold_memory.h"

// Highway compiles the part above HWY_ONCE once per instruction set; the order of these lines matters.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/kernels/stream_copy.cc"
#include "hwy/cache_control.h"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace nzcl::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

/// Copies `lines` whole lines to an address that begins a line.
void stream_lines(std::byte* HWY_RESTRICT to, const std::byte* HWY_RESTRICT from, std::size_t lines) {
  const hn::CappedTag<std::uint8_t, kCacheLine> d;
  const std::size_t lanes = hn::Lanes(d);
  auto* out = reinterpret_cast<std::uint8_t*>(to);
  const auto* in = reinterpret_cast<const std::uint8_t*>(from);
  for (; lines > 0; --lines) {
    __builtin_prefetch(in + kPrefetchBytes, 0);
    for (std::size_t i = 0; i < kCacheLine; i += lanes) hn::Stream(hn::LoadU(d, in + i), d, out + i);
    in += kCacheLine, out += kCacheLine;
  }
}

}  // namespace nzcl::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace nzcl {

HWY_EXPORT(stream_lines);

void copy_past_caches(std::byte* to, const std::byte* from, std::size_t bytes) noexcept {
  const std::size_t head =
      std::min(bytes, (kCacheLine - reinterpret_cast<std::uintptr_t>(to) % kCacheLine) % kCacheLine);
  std::memcpy(to, from, head);
  to += head, from += head, bytes -= head;
  const std::size_t lines = bytes / kCacheLine, whole = lines * kCacheLine;
  HWY_DYNAMIC_DISPATCH(stream_lines)(to, from, lines);
  std::memcpy(to + whole, from + whole, bytes - whole);
  hwy::FlushStream();
}

}  // namespace nzcl
#endif  // HWY_ONCE
