#include "verbs/segment/shared_memories.h"

#include <utility>

namespace nzcl::verbs::segment {

std::span<std::byte> SharedMemories::allocate(std::size_t bytes) {
  Memory memory;
  memory.fd = make_memory_fd(bytes);
  memory.mapping = map_shared(memory.fd.get(), bytes);
  const std::scoped_lock lock(mutex_);
  memories_.push_back(std::move(memory));
  return memories_.back().mapping.bytes();
}

void SharedMemories::release(std::span<std::byte> bytes) noexcept {
  const std::scoped_lock lock(mutex_);
  std::erase_if(memories_, [&](const Memory& m) { return m.mapping.bytes().data() == bytes.data(); });
}

std::vector<SharedMemories::Shared> SharedMemories::within(std::span<const std::byte> wanted) const {
  const std::scoped_lock lock(mutex_);
  std::vector<Shared> all;
  for (const Memory& m : memories_) {
    const auto bytes = m.mapping.bytes();
    if (!wanted.empty() && (bytes.data() < wanted.data() || bytes.data() >= wanted.data() + wanted.size()))
      continue;
    all.push_back({{reinterpret_cast<std::uint64_t>(bytes.data()), bytes.size()}, m.fd.get()});
  }
  return all;
}

}  // namespace nzcl::verbs::segment
