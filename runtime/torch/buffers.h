// The registrations of tensors' storages, made once for each storage.
#pragma once

#include <ATen/ATen.h>

#include <mutex>
#include <unordered_map>

#include "nzcl/communicator.h"

namespace nzcl_torch {

/// Engines use the same storages again and again (c10d's buckets live as long as the model), so a storage
/// stays registered until it has been freed. That is noticed by a weak reference. It also keeps the storage's
/// object, though not its bytes, so that no other storage can have the same address as one that is still in
/// the list. Thread-safe.
///
/// Between the moment in which a storage is freed and the next call that registers another one, its range is
/// still registered: nzcl does not touch it then, but over verbs its pages stay pinned.
class Buffers {
 public:
  explicit Buffers(nzcl::Communicator& communicator) : communicator_(communicator) {}

  /// Makes sure that the tensor's memory is registered. The tensor must live as long as operations use it.
  void cover(const at::Tensor& tensor) {
    c10::StorageImpl* const storage = tensor.storage().unsafeGetStorageImpl();
    if (storage == nullptr || storage->nbytes() == 0) return;
    const std::scoped_lock lock(mutex_);
    const auto found = entries_.find(storage);
    if (found != entries_.end() && found->second.is(*storage)) return;
    if (found != entries_.end()) entries_.erase(found);  // it was resized, so its bytes lie elsewhere
    // Freed ranges go first: their addresses may be those of the new one, which must be registered anew.
    std::erase_if(entries_, [](const auto& entry) { return entry.second.storage.expired(); });
    entries_.emplace(
        storage,
        Entry{.storage = c10::weak_intrusive_ptr<c10::StorageImpl>(tensor.storage().getWeakStorageImpl()),
              .data = storage->data(),
              .bytes = storage->nbytes(),
              .handle = communicator_.register_buffer(storage->data(), storage->nbytes())});
  }

  /// How many storages are registered, freed ones included that have not been noticed yet.
  std::size_t size() const {
    const std::scoped_lock lock(mutex_);
    return entries_.size();
  }

 private:
  struct Entry {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    void* data;
    std::size_t bytes;
    nzcl::RegisteredBuffer handle;
    bool is(const c10::StorageImpl& other) const { return data == other.data() && bytes == other.nbytes(); }
  };

  nzcl::Communicator& communicator_;
  mutable std::mutex mutex_;
  std::unordered_map<const c10::StorageImpl*, Entry> entries_;
};

}  // namespace nzcl_torch
