// The registrations of tensors' storages, made once for each storage.
#pragma once

#include <ATen/ATen.h>

#include <cstddef>
#include <unordered_map>

#include "nzcl/communicator.h"

namespace nzcl_torch {

/// Engines use the same storages again and again (c10d's buckets live as long as the model), so a storage
/// stays registered until its memory is freed: by its end, by resize_(), or because it is moved into shared
/// memory. That is learned from the deleter of the memory. Only libtorch's own allocator's can be exchanged;
/// memory from elsewhere, such as that of numpy's arrays, is registered for one operation, and so is that of
/// GPUs, of which nothing is pinned. Thread-safe.
class Buffers {
 public:
  explicit Buffers(nzcl::Communicator& communicator);
  Buffers(const Buffers&) = delete;
  Buffers& operator=(const Buffers&) = delete;
  ~Buffers();

  /// Makes sure that the tensor's memory is registered as long as both the tensor and what is returned live.
  /// The latter is empty for memory that stays registered.
  [[nodiscard]] nzcl::RegisteredBuffer cover(const at::Tensor& tensor);

  /// How many storages stay registered.
  std::size_t size() const;

 private:
  friend class FreedMemory;
  struct Entry {
    std::size_t bytes;
    nzcl::RegisteredBuffer handle;
  };

  nzcl::Communicator& communicator_;
  std::unordered_map<const void*, Entry>
      entries_;  // by their first byte; guarded by the mutex of FreedMemory
};

}  // namespace nzcl_torch
