// An allreduce of two ranks that a test submits by itself.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "tests/engine/cluster.h"

namespace nzcl::test {

/// In place, of so many ones on each rank, in blocks of `block` elements. The cluster must outlive it.
struct TwoRankSum {
  TwoRankSum(Cluster& cluster, std::uint64_t count, std::uint64_t block)
      : data(2, std::vector<std::int32_t>(count, 1)) {
    for (int r = 0; r < 2; ++r) {
      auto& mine = data[static_cast<std::size_t>(r)];
      regions.push_back(
          cluster.device(r).register_memory(std::as_writable_bytes(std::span(mine)), MemoryKind::host));
      wire::OperationRecord record;
      record.count = count;
      record.block_elems = block;
      record.type = static_cast<std::uint8_t>(DataType::int32);
      record.output_address = regions.back()->remote().address;
      record.output_key = regions.back()->remote().key;
      auto* const base = reinterpret_cast<std::byte*>(mine.data());
      operations.push_back(std::make_unique<engine::Operation>(
          cluster.layout(0, count, sizeof(std::int32_t), block), record,
          engine::InputView{.base = base, .region = regions.back().get()},
          engine::OutputView{.base = base, .region = regions.back().get()}, 1));
    }
  }
  std::vector<std::vector<std::int32_t>> data;  // by rank
  std::vector<std::unique_ptr<verbs::MemoryRegion>> regions;
  std::vector<std::unique_ptr<engine::Operation>> operations;  // by rank
};

}  // namespace nzcl::test
