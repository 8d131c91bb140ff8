// A request that is kept until its operation has ended, so that it can be made once more.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <variant>
#include <vector>

#include "runtime/comm/request/request.h"

namespace nzcl::comm {

/// A copy of a request and of all that it refers to, apart from registered memory. For one thread at a time.
class KeptRequest {
 public:
  /// Returns nullptr for the request of a compressor, whose state has given away what it is to send.
  static std::shared_ptr<KeptRequest> of(const Request& request);

  /// Refers to this object.
  Request request() const;

  /// Notes that the operation overwrites its input. `copy` says whether to keep one, which takes as long as
  /// reading and writing it.
  void note_overwritten(std::span<std::byte> input, bool copy);
  /// Whether the input may be gone.
  bool is_spoiled() const { return overwritten_ && copy_.empty(); }
  /// Writes the copy of the input back, if there is one.
  void restore_input() const;

 private:
  explicit KeptRequest(AllreduceRequest request);
  explicit KeptRequest(SparseAllreduceRequest request);
  explicit KeptRequest(CollectiveRequest request);
  std::span<const std::uint64_t> keep_words(std::span<const std::uint64_t> words);

  std::vector<std::uint64_t> words_;  // of a bitmap
  std::vector<std::uint64_t> counts_;
  std::vector<std::byte> indices_;
  std::variant<AllreduceRequest, SparseAllreduceRequest, CollectiveRequest> request_;
  bool overwritten_ = false;
  std::span<std::byte> input_;
  std::vector<std::byte> copy_;
};

}  // namespace nzcl::comm
