// Packets of the switch exchange, made by hand.
#pragma once

#include <cstring>
#include <vector>

#include "runtime/switch/packet.h"
#include "runtime/switch/slot_server.h"
#include "tests/engine/switch_tensor.h"

namespace nzcl::engine::slot_pool::test {

inline std::vector<std::byte> packet(Header header, const std::vector<std::int32_t>& values = {},
                                     const Job& job = kJob) {
  std::vector<std::byte> bytes(sizeof(Header) + 4 * values.size());
  if (!values.empty()) {
    std::memcpy(bytes.data() + sizeof(Header), values.data(), 4 * values.size());
    header.flags |= kHasValues;
    if (header.blocks == 0) header.blocks = 1;
  }
  seal(header, job, bytes);
  return bytes;
}

inline Header contribution(int rank, std::uint32_t round, std::uint32_t piece, std::uint32_t next) {
  Header h;
  h.rank = static_cast<std::uint16_t>(rank);
  h.round = round;
  h.piece = piece;
  h.next = next;
  return h;
}

struct SentPacket {
  int rank;
  Header header;
  std::vector<std::int32_t> values;
};

/// Takes all that an aggregator wants to send.
inline std::vector<SentPacket> take_all(SlotServer& server) {
  std::vector<SentPacket> all;
  for (; const auto out = server.front(); server.pop()) {
    const auto opened = open(out->packet, kJob);
    EXPECT_TRUE(opened);
    if (opened) all.push_back({out->rank, opened->header, {opened->values.begin(), opened->values.end()}});
  }
  return all;
}

}  // namespace nzcl::engine::slot_pool::test
