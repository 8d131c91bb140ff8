#include "perf/peers/streams.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

namespace perf::peers {
namespace {

constexpr int kLanes = 4;

/// One of several merges that run side by side. A step has no branch, because which stream comes next cannot
/// be predicted; but each step waits for the one before it, and the CPU fills that time with the other lanes'
/// steps.
struct Lane {
  const Pair *a, *a_end, *b, *b_end;
  Pair* out;

  std::size_t certain_steps() const { return static_cast<std::size_t>(std::min(a_end - a, b_end - b)); }
  void step() {
    const std::uint32_t i = a->index, j = b->index;
    const bool take_a = i <= j, take_b = j <= i;
    const std::uint32_t x = std::bit_cast<std::uint32_t>(a->value) & -std::uint32_t{take_a};
    const std::uint32_t y = std::bit_cast<std::uint32_t>(b->value) & -std::uint32_t{take_b};
    *out++ = {take_a ? i : j, std::bit_cast<float>(x) + std::bit_cast<float>(y)};
    a += take_a, b += take_b;
  }
  void finish() {
    while (certain_steps() > 0) step();
    out = std::copy(a, a_end, out);
    out = std::copy(b, b_end, out);
  }
};

std::size_t position(Stream stream, std::uint64_t index) {
  const auto below = [](const Pair& p, std::uint64_t i) { return p.index < i; };
  return static_cast<std::size_t>(std::lower_bound(stream.begin(), stream.end(), index, below) -
                                  stream.begin());
}

}  // namespace

std::size_t merge(Stream a, Stream b, Pair* out) {
  std::array<Lane, kLanes> lanes;
  std::array<const Pair*, kLanes> begins;
  std::size_t a_begin = 0, b_begin = 0;
  for (std::size_t i = 0; i < kLanes; ++i) {
    // Lanes share the indices in such a way that each has as many pairs of `a`.
    const std::size_t a_end = a.size() * (i + 1) / kLanes;
    const std::size_t b_end = a_end == a.size() ? b.size() : position(b, a[a_end].index);
    Pair* const to = out + a_begin + b_begin;
    lanes[i] = {a.data() + a_begin, a.data() + a_end, b.data() + b_begin, b.data() + b_end, to};
    begins[i] = to;
    a_begin = a_end, b_begin = b_end;
  }
  for (;;) {
    std::size_t steps = lanes[0].certain_steps();
    for (const Lane& lane : lanes) steps = std::min(steps, lane.certain_steps());
    if (steps == 0) break;
    for (; steps > 0; --steps) lanes[0].step(), lanes[1].step(), lanes[2].step(), lanes[3].step();
  }
  // Indices in both streams leave gaps between what the lanes wrote.
  Pair* end = out;
  for (std::size_t i = 0; i < kLanes; ++i) {
    lanes[i].finish();
    const auto pairs = static_cast<std::size_t>(lanes[i].out - begins[i]);
    if (end != begins[i]) std::memmove(end, begins[i], pairs * sizeof(Pair));
    end += pairs;
  }
  return static_cast<std::size_t>(end - out);
}

Stream sum_of(std::span<const Stream> parts, Pair* out, Pair* scratch) {
  if (parts.empty()) return {};
  if (parts.size() == 1) return parts[0];
  const auto left = parts.first(parts.size() / 2), right = parts.subspan(parts.size() / 2);
  std::size_t pairs = 0;
  for (const Stream part : left) pairs += part.size();
  const Stream a = sum_of(left, scratch, out);
  const Stream b = sum_of(right, scratch + pairs, out + pairs);
  return {out, merge(a, b, out)};
}

void add_to(float* dense, Stream stream) {
  for (const Pair p : stream) dense[p.index] += p.value;
}

void sum_densely(std::span<Stream> parts, std::span<float> dense, std::uint32_t first) {
  constexpr std::size_t kWindow =
      16384;  // elements; what is zeroed is still in the cache when pairs are added
  for (std::size_t begin = 0; begin < dense.size(); begin += kWindow) {
    const auto window = dense.subspan(begin, std::min(kWindow, dense.size() - begin));
    std::memset(window.data(), 0, window.size_bytes());
    const std::uint64_t end = std::uint64_t{first} + begin + window.size();
    for (Stream& part : parts) {
      const Pair *next = part.data(), *const last = next + part.size();
      for (; next != last && next->index < end; ++next) dense[next->index - first] += next->value;
      part = {next, last};
    }
  }
}

std::size_t collect(std::span<const float> dense, std::uint32_t first, Pair* out) {
  const Pair* const begin = out;
  for (std::size_t i = 0; i < dense.size(); ++i) {
    if (dense[i] != 0) *out++ = {first + static_cast<std::uint32_t>(i), dense[i]};
  }
  return static_cast<std::size_t>(out - begin);
}

Stream cut(Stream stream, std::uint64_t first, std::uint64_t end) {
  const std::size_t begin = position(stream, first);
  return stream.subspan(begin, position(stream, end) - begin);
}

}  // namespace perf::peers
