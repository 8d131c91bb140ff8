// Feeds any bytes to the reader of the ring through which a peer of shm has memory written, and to the table
// of regions behind it.
#include <algorithm>
#include <cstring>
#include <memory>
#include <new>
#include <span>

#include "tests/fuzz/fuzz.h"
#include "verbs/shm/bounce_ring.h"
#include "verbs/shm/region_table.h"

namespace nzcl::test {
namespace {

using verbs::shm::BounceRecord;
using verbs::shm::BounceRing;
using verbs::shm::kBounceArea;

constexpr std::size_t kTarget = 4096, kGuard = 64;

struct Free {
  void operator()(std::byte* p) const { ::operator delete[](p, std::align_val_t{4096}); }
};

/// What a round of the reader is fed: how far the writer says that it has written, and the bytes there.
void feed(std::string& text, std::uint64_t written, const BounceRecord& record, std::size_t bytes) {
  append(text, written);
  append(text, static_cast<std::uint16_t>(verbs::shm::kLine + bytes));
  append(text, record);
  text.append(verbs::shm::kLine - sizeof record + bytes, 'x');
}

}  // namespace

std::vector<std::string> fuzz_seeds() {
  // The program puts the true address and key where the input has these.
  const BounceRecord good{.address = 0, .key = 0, .bytes = 100},
      elsewhere{.address = 4090, .key = 0, .bytes = 100}, stranger{.address = 0, .key = 1, .bytes = 100};
  std::string two, bad, wrong_key;
  feed(two, 192, good, 128);
  feed(two, 384, good, 128);
  feed(bad, 192, elsewhere, 128);
  feed(wrong_key, 192, stranger, 128);
  return {two, bad, wrong_key};
}

}  // namespace nzcl::test

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace nzcl;
  using namespace nzcl::test;
  FuzzInput input(data, size);
  const std::unique_ptr<std::byte[], Free> area{new (std::align_val_t{4096}) std::byte[kBounceArea]{}};
  const BounceRing ring{area.get()};
  verbs::shm::BounceReader reader{ring};
  verbs::shm::RegionTable table;
  std::vector<std::byte> memory(kTarget + 2 * kGuard);
  const std::span<std::byte> target = std::span(memory).subspan(kGuard, kTarget);
  const std::uint64_t key = table.add(target);
  bool refused = false;
  while (!input.empty() && !refused) {
    const auto written = input.value<std::uint64_t>();
    const auto bytes = input.bytes(input.value<std::uint16_t>());
    if (!bytes.empty())
      std::memcpy(area.get() + 4096 + ring.taken().load() % verbs::shm::kBounceBytes, bytes.data(),
                  std::min<std::size_t>(bytes.size(), BounceRing::to_end(ring.taken().load())));
    ring.written().store(written);
    refused = !reader.empty() && reader.take([&](const BounceRecord& r,
                                                 const std::byte* from) -> const char* {
      if (from < area.get() + 4096 || r.bytes > static_cast<std::uint64_t>(area.get() + kBounceArea - from))
        __builtin_trap();
      const auto begin = reinterpret_cast<std::uint64_t>(target.data());
      return table.write(r.key ^ key, begin + r.address, from, r.bytes) ? nullptr : "refused";
    }) != nullptr;
  }
  for (std::size_t i = 0; i < kGuard; ++i) {
    if (memory[i] != std::byte{0} || memory[memory.size() - 1 - i] != std::byte{0}) __builtin_trap();
  }
  table.remove(key);
  return 0;
}
