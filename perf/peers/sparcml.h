// Sparse allreduces of the SparCML kind, over MPI: streams of pairs which become dense vectors once these are
// shorter. Written from the description in C. Renggli et al., "SparCML: High-Performance Sparse Communication
// for Machine Learning", SC 2019 (arXiv 1802.08021), section 5. It shares no code with the authors' library.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "perf/peers/streams.h"

namespace perf::peers {

/// The buffers of one rank and the algorithms that use them. They are made once; a call allocates nothing.
/// Results lie in these buffers, or are the caller's own stream, and are valid until the next call. Any
/// number of ranks. All ranks call the same algorithm, each from one thread. MPI ends the program when it
/// fails.
class SparCml {
 public:
  /// `elements` of the dense vector, from 1 to 2^31 - 1.
  explicit SparCml(std::uint32_t elements);
  ~SparCml();

  /// SSAR_Recursive_double: in round t, ranks at distance 2^t exchange all that they have, and add. A rank
  /// beyond the largest power of two has a partner below it, which adds its vector before and sends it the
  /// result after.
  Vector recursive_double(Stream own);
  /// SSAR_Split_allgather: each rank owns a range of the indices. All send their pairs to the owners, which
  /// add. Then all gather the owners' sums, as pairs or, where these would be longer, as a dense vector.
  Vector split_allgather(Stream own);
  /// DSAR_Split_allgather: the same, but owners add into a dense vector, and dense vectors are gathered.
  Vector dense_split_allgather(Stream own);

  /// Bytes that this rank sent to others since the last call. In an allgather a rank's part counts once for
  /// every other rank.
  std::uint64_t take_sent_bytes();

 private:
  /// Room for a vector of so many elements in either form. Its pages are there once they are used.
  class Buffer {
   public:
    explicit Buffer(std::size_t elements) : memory_(new std::byte[(elements + 2) * sizeof(float)]) {}
    Pair* pairs() const { return reinterpret_cast<Pair*>(memory_.get()); }
    float* values() const { return reinterpret_cast<float*>(memory_.get()); }

   private:
    std::unique_ptr<std::byte[]> memory_;
  };

  std::uint32_t first_of(int owner) const;
  std::uint32_t range_of(int owner) const { return first_of(owner + 1) - first_of(owner); }
  /// The dense result's part that this rank owns.
  std::span<float> own_range() const { return {result_.values() + first_of(rank_), range_of(rank_)}; }

  void send(const Vector& vector, int to);
  Vector receive(int from);
  Vector exchange(const Vector& vector, int partner);
  Vector add(const Vector& sum, const Vector& incoming);

  void split(Stream own);
  bool parts_are_longer_than_dense() const;
  void add_parts_densely();
  Stream merge_parts();
  Vector gather_dense();
  Vector gather_pairs(Stream mine);
  void gather(const void* mine);
  std::size_t gather_counts(std::size_t mine);

  const std::uint32_t elements_;
  const int rank_, ranks_;
  std::uint64_t sent_ = 0;
  /// Recursive doubling: the sum, what a partner sent, and where the two are merged.
  Buffer sum_, incoming_, spare_;
  /// Split and gather: what others sent, the sum of the own range as pairs, and the result.
  Buffer received_, merged_, result_;
  std::size_t room_;           // elements in received_ for each rank
  std::vector<Vector> parts_;  // of the own range, by rank
  std::vector<Stream> streams_;
  struct Requests;  // those of MPI that are under way, so that this header does without MPI's
  const std::unique_ptr<Requests> requests_;
  std::vector<int> counts_, places_;
};

}  // namespace perf::peers
