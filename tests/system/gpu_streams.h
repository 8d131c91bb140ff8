// Lists of blocks for sparse allreduces, whose memory may be on a GPU.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "nzcl/communicator.h"
#include "tests/system/oracle.h"

namespace nzcl::test::streams {

enum class Order { ascending, any, with_duplicates };
enum class Result { dense, packed };

struct Case {
  DataType type = DataType::float32;
  ReduceOp op = ReduceOp::sum;
  std::uint64_t count = 0, block = 1;
  IndexType index_type = IndexType::int64;
  Order order = Order::ascending;
  double density = 0.1;
  Result result = Result::dense;
  Algorithm algorithm = Algorithm::automatic;
  unsigned seed = 1;

  std::uint64_t blocks() const { return (count + block - 1) / block; }
  std::uint64_t block_bytes() const { return block * element_bytes(type); }
  std::uint64_t index_bytes() const { return index_type == IndexType::int64 ? 8 : 4; }
  std::string text() const {
    return std::string(nzcl::name_of(type)) + " count " + std::to_string(count) + " block " +
           std::to_string(block) + " index type " + std::to_string(static_cast<int>(index_type)) + " order " +
           std::to_string(static_cast<int>(order)) + (result == Result::packed ? " packed" : " dense") +
           " seed " + std::to_string(seed);
  }
};

/// One rank's list.
struct List {
  std::vector<std::byte> values, indices;
  std::size_t blocks = 0;
};

inline void put_index(IndexType type, std::byte* at, std::uint64_t index) {
  const auto store = [&](auto number) { std::memcpy(at, &number, sizeof number); };
  if (type == IndexType::int64) return store(static_cast<std::int64_t>(index));
  store(static_cast<std::uint32_t>(index));
}

inline List list_of(const Case& c, const std::vector<std::uint64_t>& numbers, int rank) {
  List list{.values = std::vector<std::byte>(numbers.size() * c.block_bytes()),
            .indices = std::vector<std::byte>(numbers.size() * c.index_bytes()),
            .blocks = numbers.size()};
  for (std::size_t i = 0; i < numbers.size(); ++i)
    put_index(c.index_type, list.indices.data() + i * c.index_bytes(), numbers[i]);
  const std::uint64_t each = element_bytes(c.type);
  for (std::size_t i = 0; i < numbers.size() * c.block; ++i)
    put(c.type, list.values.data() + i * each, i + c.seed, rank);
  return list;
}

inline List make_list(const Case& c, int rank) {
  std::mt19937 random(c.seed * 131 + static_cast<unsigned>(rank));
  std::vector<std::uint64_t> numbers;
  for (std::uint64_t b = 0; b < c.blocks(); ++b) {
    if (std::uniform_real_distribution<>()(random) < c.density) numbers.push_back(b);
  }
  if (c.order == Order::with_duplicates) {
    const std::size_t n = numbers.size();
    for (std::size_t i = 0; i < n; i += 3) numbers.insert(numbers.end(), 1 + i % 2, numbers[i]);
  }
  if (c.order != Order::ascending) std::shuffle(numbers.begin(), numbers.end(), random);
  return list_of(c, numbers, rank);
}

inline SparseAllreduceRequest request_of(const Case& c, const List& list) {
  return {.values = list.values.data(),
          .indices = {list.indices.data(), list.blocks, c.index_type},
          .count = c.count,
          .type = c.type,
          .op = c.op,
          .block_elems = c.block,
          .packed_capacity = c.result == Result::packed ? c.blocks() + 2 : 0,
          .sum_duplicates = c.order == Order::with_duplicates,
          .algorithm = c.algorithm};
}

/// Memory for the result, full of bytes that do not belong into it.
struct Room {
  explicit Room(const Case& c)
      : values(
            c.result == Result::packed ? (c.blocks() + 2) * c.block_bytes() : c.count * element_bytes(c.type),
            std::byte{0x5a}),
        indices(c.result == Result::packed ? (c.blocks() + 2) * c.index_bytes() : 0, std::byte{0x5a}) {}
  std::vector<std::byte> values, indices;
};

inline void set_result(SparseAllreduceRequest& r, const Case& c, std::byte* values, std::byte* indices) {
  if (c.result == Result::dense) {
    r.output = values;
  } else {
    r.packed_values = values;
    r.packed_indices = {indices, c.index_type};
  }
}

}  // namespace nzcl::test::streams
