#include "runtime/torch/buffers.h"

#include <c10/core/CPUAllocator.h>
#include <torch/version.h>
#include <unistd.h>

#include <mutex>
#include <unordered_set>
#include <utility>
#include <vector>

#include "runtime/torch/device.h"

namespace nzcl_torch {
namespace {

at::DataPtr& memory_of(c10::StorageImpl& storage) {
#if TORCH_VERSION_MAJOR >= 2
  return storage.mutable_data_ptr();
#else
  return storage.data_ptr();
#endif
}

}  // namespace

/// Tells all Buffers of the process when memory is freed that one of them has registered. It stays until the
/// process ends, because tensors may be freed by then.
class FreedMemory {
 public:
  static FreedMemory& instance() {
    static auto* const only = new FreedMemory;
    return *only;
  }

  std::mutex& mutex() { return mutex_; }
  void add(Buffers& buffers) {
    const std::scoped_lock lock(mutex_);
    all_.insert(&buffers);
  }
  void remove(Buffers& buffers) {
    const std::scoped_lock lock(mutex_);
    all_.erase(&buffers);
  }

  /// Has the memory of a storage looked after. Returns false if that cannot be. The mutex is locked.
  static bool watch(c10::StorageImpl& storage) {
    at::DataPtr& memory = memory_of(storage);
    if (memory.get_deleter() == &freed) return true;
    return memory.get() == memory.get_context() &&
           memory.compare_exchange_deleter(c10::GetCPUAllocator()->raw_deleter(), &freed);
  }

 private:
  /// The deleter of memory that is looked after. `memory` is its first byte.
  static void freed(void* memory) {
    instance().forget(memory);
    c10::GetCPUAllocator()->raw_deleter()(memory);
  }

  void forget(const void* memory) {
    // In a child that was forked while another thread had it, nobody would unlock the mutex. The
    // registrations are the parent's.
    if (getpid() != process_) return;
    std::vector<nzcl::RegisteredBuffer> handles;  // go without the lock
    const std::scoped_lock lock(mutex_);
    for (Buffers* const buffers : all_) {
      const auto found = buffers->entries_.find(memory);
      if (found == buffers->entries_.end()) continue;
      handles.push_back(std::move(found->second.handle));
      buffers->entries_.erase(found);
    }
  }

  const pid_t process_ = getpid();
  std::mutex mutex_;
  std::unordered_set<Buffers*> all_;
};

Buffers::Buffers(nzcl::Communicator& communicator) : communicator_(communicator) {
  FreedMemory::instance().add(*this);
}
Buffers::~Buffers() { FreedMemory::instance().remove(*this); }

nzcl::RegisteredBuffer Buffers::cover(const at::Tensor& tensor) {
  if (is_gpu(tensor.device()) && tensor.numel() == 0) return {};
  if (is_gpu(tensor.device()))
    return communicator_.register_buffer(tensor.data_ptr(), tensor.nbytes(), nzcl::MemoryKind::device);
  c10::StorageImpl* const storage = tensor.storage().unsafeGetStorageImpl();
  if (storage == nullptr || storage->nbytes() == 0) return {};
  const std::scoped_lock lock(FreedMemory::instance().mutex());
  void* const data = memory_of(*storage).get();
  const std::size_t bytes = storage->nbytes();
  const auto found = entries_.find(data);
  if (found != entries_.end() && bytes <= found->second.bytes) return {};
  nzcl::RegisteredBuffer handle = communicator_.register_buffer(data, bytes);
  if (!FreedMemory::watch(*storage)) return handle;
  entries_.insert_or_assign(data, Entry{.bytes = bytes, .handle = std::move(handle)});
  return {};
}

std::size_t Buffers::size() const {
  const std::scoped_lock lock(FreedMemory::instance().mutex());
  return entries_.size();
}

}  // namespace nzcl_torch
