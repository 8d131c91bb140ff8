// Which of many have something to do.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/base/bitmap.h"

namespace nzcl::engine {

/// A set of numbers below a bound, such as members. A walk over it takes time for the numbers that are in it,
/// and next to none for the others: a look at one word for every 64 of them. It does not allocate after
/// construction. For one thread.
class ReadySet {
 public:
  explicit ReadySet(std::size_t bound = 0) : words_(words_for(bound)) {}

  void insert(std::size_t i) { set_bit(words_, i); }
  void erase(std::size_t i) { words_[i / 64] &= ~(std::uint64_t{1} << i % 64); }
  bool contains(std::size_t i) const { return test_bit(words_, i); }

  /// Calls visit(i) for every number, in ascending order. `visit` may erase any number. A number that it
  /// inserts may be visited in this walk, or only in the next one.
  template <typename Visit>
  void for_each(Visit visit) const {
    walk(0, words_.size() * 64, visit);
  }
  /// The same in another order: from `first` on, and then from the beginning.
  template <typename Visit>
  void for_each_from(std::size_t first, Visit visit) const {
    walk(first, words_.size() * 64, visit);
    walk(0, first, visit);
  }

 private:
  template <typename Visit>
  void walk(std::size_t begin, std::size_t end, Visit visit) const {
    for (std::size_t i = next_set(words_, begin, end); i < end; i = next_set(words_, i + 1, end)) visit(i);
  }

  std::vector<std::uint64_t> words_;
};

}  // namespace nzcl::engine
