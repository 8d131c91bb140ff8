// The sum, minimum or maximum over ranks of one slice of single elements.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "nzcl/types.h"
#include "runtime/kernels/accumulate.h"
#include "runtime/kernels/elements.h"

namespace nzcl {

/// Takes the ranks' contributions to a slice and gives their sum. The result has the same bits as if
/// reduce_kernel() had summed the dense slices. A contribution is an index set and values. They are given
/// separately, because an index set may arrive before the last of its values:
///
///   start(), then hold*() once for each rank that holds anything, in any order,
///   and add*() for all values, rank after rank in ascending order, then emit().
///
/// A rank that holds nothing need not be mentioned. Index sets are checked by assertions only, because the
/// decoders that they come from have checked them already. One thread at a time may use it. Only the
/// constructor allocates; it throws std::bad_alloc.
class ElementAccumulator {
 public:
  /// For slices of up to `most_elements`, at most kMostSliceElements. Takes 8 bytes for each of them.
  explicit ElementAccumulator(std::size_t most_elements = kMostSliceElements);

  /// Begins a slice. One that was begun before and not emitted is forgotten. `ranks` is the number of the
  /// communicator's ranks, at least 2.
  void start(DataType type, ReduceOp op, int ranks, std::size_t elements);

  /// A rank's index set: all elements, a bitmap of words_for(elements) words, or offsets.
  void hold_all();
  void hold_bitmap(std::span<const std::uint64_t> bitmap);
  void hold_offsets(std::span<const std::uint16_t> offsets);

  /// Adds values of the current rank, all or a part of them. `first` is the first element that they are for,
  /// and a multiple of 64 in add_bitmap(), whose bitmap begins there. In add_offsets() offsets count from the
  /// slice's first element.
  void add_all(std::span<const std::byte> values, std::size_t first = 0);
  void add_bitmap(std::span<const std::uint64_t> bitmap, std::span<const std::byte> values,
                  std::size_t first = 0);
  void add_offsets(std::span<const std::uint16_t> offsets, std::span<const std::byte> values);

  /// The elements that any rank holds, words_for(elements) words, and how many they are. Valid until start().
  std::span<const std::uint64_t> union_bitmap() const { return {any_.get(), words_}; }
  std::size_t union_count() const;

  /// Writes the elements of the union one behind the other, and clears the accumulator. `packed` has room for
  /// all of them, and does not overlap what was added; its content behind the last one is arbitrary.
  void emit(std::span<std::byte> packed);
  /// The same for callers that have the union as a list. It is faster where fewer than about one element in
  /// 24 is in the union.
  void emit(std::span<const std::uint16_t> union_offsets, std::span<std::byte> packed);

 private:
  struct FreeLanes {
    void operator()(std::byte* lanes) const;
  };

  void count_rank(std::span<const std::uint64_t> bitmap);
  void count_few(std::span<const std::uint16_t> offsets);
  std::size_t keep_held(std::span<const std::uint16_t> offsets);
  std::size_t keep_common(std::span<const std::uint16_t> offsets);
  void end_few();
  void prepare_all();

  std::size_t most_words_;
  std::unique_ptr<std::byte, FreeLanes> lanes_;
  std::unique_ptr<std::uint64_t[]> any_, all_, scratch_;
  const AccumulateKernels* kernels_ = nullptr;
  DataType type_{};
  ReduceOp op_{};
  std::size_t elements_ = 0, words_ = 0;
  int ranks_ = 0;  // of the communicator
  int held_ = 0;   // ranks whose index sets are known
  /// Which elements all ranks hold is kept as a list in in_all_ as long as each rank holds only few elements.
  /// The first rank that holds more turns the list into the bitmap all_.
  bool few_ = false;
  std::size_t common_ = 0;  // the length of the list
  std::unique_ptr<std::uint16_t[]> in_all_;
  bool clear_ = false;  // all lanes are the identity of type_ and op_
};

}  // namespace nzcl
