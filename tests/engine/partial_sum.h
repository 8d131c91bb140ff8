// Messages of merging, made by hand: partial sums of 20 floats, which are one tile.
#pragma once

#include <bit>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "runtime/wire/message.h"
#include "runtime/wire/tile.h"
#include "tests/engine/hand_fed.h"

namespace nzcl::test {

using Bytes = std::vector<std::uint8_t>;

template <typename T>
void append_bytes(Bytes& to, const T& value) {
  const auto* begin = reinterpret_cast<const std::uint8_t*>(&value);
  to.insert(to.end(), begin, begin + sizeof value);
}

inline wire::OperationRecord merging_record(std::uint64_t block = 1) {
  wire::OperationRecord r = HandMade::record();
  r.block_elems = block;
  r.algorithm = wire::Algorithm::merging;
  return r;
}

/// A section with a tile of offsets and values, or with a refusal.
struct PartialSum {
  wire::Header header;
  wire::OperationRecord record = merging_record();
  wire::TileDescriptor descriptor;
  std::vector<std::uint16_t> offsets;
  std::vector<float> values;
  std::string reason;  // of a refusal, in place of the tile
  Bytes tail;          // behind the tile

  PartialSum(std::uint64_t epoch, std::vector<std::uint16_t> at, std::vector<float> what)
      : offsets(std::move(at)), values(std::move(what)) {
    header = {.flags = wire::kHasBitmap | wire::kTiles, .epoch = epoch, .sequence = epoch, .tiles = 1};
    descriptor = {.count = static_cast<std::uint32_t>(values.size()),
                  .index = values.empty() ? wire::IndexCode::none : wire::IndexCode::offsets};
  }
  /// A list of so many tiles of a tensor of `count` elements, instead of a tile.
  static PartialSum list(std::uint64_t epoch, std::uint64_t count, std::uint32_t tiles,
                         const std::vector<std::uint32_t>& numbers, const std::vector<float>& what) {
    PartialSum sum(epoch, {}, {});
    sum.record.count = count;
    sum.header.tiles = tiles;
    sum.descriptor = {.count = tiles - 1, .parameter = wire::TileDescriptor::kListed};
    sum.values = {std::bit_cast<float>(static_cast<std::uint32_t>(numbers.size()))};
    sum.values.insert(sum.values.end(), what.begin(), what.end());
    for (const std::uint32_t number : numbers) append_bytes(sum.tail, number);
    return sum;
  }
  static PartialSum refusal(std::uint64_t epoch, std::uint16_t rank, std::string why) {
    PartialSum sum(epoch, {}, {});
    sum.header.flags = wire::kHasBitmap | wire::kRefused;
    sum.header.tiles = 0;
    sum.header.refused_by = rank;
    sum.header.refusal_code = 1;
    sum.reason = std::move(why);
    return sum;
  }

  Bytes bytes() const {
    Bytes payload;
    if (reason.empty()) {
      append_bytes(payload, descriptor.encode());
      for (const float v : values) append_bytes(payload, v);
      for (const std::uint16_t offset : offsets) append_bytes(payload, offset);
      payload.resize((payload.size() + 3) / 4 * 4);
    }
    payload.insert(payload.end(), reason.begin(), reason.end());
    payload.insert(payload.end(), tail.begin(), tail.end());
    wire::Header h = header;
    if (h.payload_bytes == 0) h.payload_bytes = static_cast<std::uint32_t>(payload.size());
    Bytes all;
    append_bytes(all, h);
    if ((h.flags & wire::kHasBitmap) != 0) append_bytes(all, record);
    all.insert(all.end(), payload.begin(), payload.end());
    return all;
  }
};

}  // namespace nzcl::test
