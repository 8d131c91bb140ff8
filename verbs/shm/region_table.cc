#include "verbs/shm/region_table.h"

#include <fmt/format.h>

#include <bit>
#include <cstring>
#include <thread>

#include "nzcl/error.h"
#include "verbs/random.h"

namespace nzcl::verbs::shm {

RegionTable::~RegionTable() {
  for (const auto& chunk : chunks_) delete[] chunk.load(std::memory_order_relaxed);
}

RegionTable::Place* RegionTable::find(std::uint64_t number) const noexcept {
  const auto chunk = static_cast<std::size_t>(std::bit_width((number + kFirst) / kFirst)) - 1;
  if (chunk >= kChunks) return nullptr;
  Place* const places = chunks_[chunk].load(std::memory_order_acquire);
  return places == nullptr ? nullptr : &places[number + kFirst - (kFirst << chunk)];
}

std::uint64_t RegionTable::free_place() {
  if (!free_.empty()) {
    const std::uint64_t number = free_.back();
    free_.pop_back();
    return number;
  }
  if (used_ == kMost)
    throw Error(ErrorCode::system, fmt::format("shm: {} buffers are registered, and there can be no more; "
                                               "register fewer and larger ones",
                                               kMost));
  if (free_.capacity() <= used_) free_.reserve(2 * used_ + kFirst);
  if (find(used_) == nullptr) {
    const auto chunk = static_cast<std::size_t>(std::bit_width((used_ + kFirst) / kFirst)) - 1;
    chunks_[chunk].store(new Place[kFirst << chunk], std::memory_order_release);
  }
  return used_++;
}

std::uint64_t RegionTable::add(std::span<std::byte> bytes) {
  std::uint64_t random = 0;
  while (random == 0) random = random_number() >> kPlaceBits;
  const std::scoped_lock lock(mutex_);
  const std::uint64_t number = free_place();
  Place& place = *find(number);
  place.begin = bytes.data(), place.bytes = bytes.size();
  const std::uint64_t key = random << kPlaceBits | number;
  place.key.store(key, std::memory_order_seq_cst);
  return key;
}

void RegionTable::remove(std::uint64_t key) noexcept {
  const std::uint64_t number = key & ((std::uint64_t{1} << kPlaceBits) - 1);
  Place& place = *find(number);
  place.key.store(0, std::memory_order_seq_cst);
  while (place.writers.load(std::memory_order_seq_cst) != 0) std::this_thread::yield();
  const std::scoped_lock lock(mutex_);
  free_.push_back(number);
}

bool RegionTable::write(std::uint64_t key, std::uint64_t address, const std::byte* from,
                        std::uint64_t bytes) noexcept {
  Place* const place = find(key & ((std::uint64_t{1} << kPlaceBits) - 1));
  if (place == nullptr) return false;
  place->writers.fetch_add(1, std::memory_order_seq_cst);
  bool may = key >> kPlaceBits != 0 && place->key.load(std::memory_order_seq_cst) == key;
  if (may) {
    const std::uint64_t offset = address - reinterpret_cast<std::uint64_t>(place->begin);
    may = offset <= place->bytes && bytes <= place->bytes - offset;
    if (may) std::memcpy(place->begin + offset, from, bytes);
  }
  place->writers.fetch_sub(1, std::memory_order_release);
  return may;
}

}  // namespace nzcl::verbs::shm
