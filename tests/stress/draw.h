// Random choices that follow from a seed.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <random>

namespace nzcl::stress {

/// Whoever makes the same draws from the same seed gets the same, on every machine: the distributions of the
/// standard library would not promise that.
class Draw {
 public:
  explicit Draw(std::uint64_t seed) : random_(seed) {}

  std::uint64_t bits() { return random_(); }
  /// A number from `least` to `most`, both included.
  std::uint64_t number(std::uint64_t least, std::uint64_t most) {
    return least + random_() % (most - least + 1);
  }
  int number(int least, int most) {
    return least + static_cast<int>(random_() % static_cast<std::uint64_t>(most - least + 1));
  }
  bool chance(double share) { return static_cast<double>(random_() >> 11) * 0x1p-53 < share; }
  template <typename T>
  T pick(std::initializer_list<T> from) {
    return std::data(from)[number(std::uint64_t{0}, from.size() - 1)];
  }

 private:
  std::mt19937_64 random_;
};

}  // namespace nzcl::stress
