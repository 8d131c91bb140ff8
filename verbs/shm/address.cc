#include "verbs/shm/address.h"

#include <cstring>

#include "nzcl/error.h"
#include "verbs/segment/shared_segment.h"
#include "verbs/shm/bounce_ring.h"

namespace nzcl::verbs::shm {
namespace {

[[noreturn]] void reject(const char* why) {
  throw Error(ErrorCode::transport, std::string("shm: a peer gave no usable address: ") + why);
}

}  // namespace

std::string Address::encode() const {
  std::string text(reinterpret_cast<const char*>(&start), sizeof start);
  return text.append(reinterpret_cast<const char*>(memories.data()),
                     memories.size() * sizeof(segment::SharedRange));
}

Address Address::decode(const std::string& text, std::size_t reached) {
  Address address;
  if (text.size() < sizeof address.start ||
      (text.size() - sizeof address.start) % sizeof(segment::SharedRange) != 0)
    reject("its length is wrong");
  std::memcpy(&address.start, text.data(), sizeof address.start);
  const segment::SharedSegment::Layout layout{reached, address.start.entries, kBounceArea};
  if (const char* wrong = segment::wrong_with(layout, address.start.segment_bytes)) reject(wrong);
  for (std::size_t at = sizeof address.start; at < text.size(); at += sizeof(segment::SharedRange)) {
    segment::SharedRange memory;
    std::memcpy(&memory, text.data() + at, sizeof memory);
    if (memory.bytes > ~std::uint64_t{0} - memory.address)
      reject("a range of memory ends beyond the largest address");
    address.memories.push_back(memory);
  }
  return address;
}

}  // namespace nzcl::verbs::shm
