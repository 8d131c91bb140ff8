// What all ranks ask for in one operation.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "nzcl/communicator.h"
#include "tests/stress/draw.h"
#include "tests/system/ranks.h"

namespace nzcl::stress {

enum class Kind : std::uint8_t { allreduce, sparse, packed, broadcast, reduce, reduce_scatter, allgather };

/// One operation, in what is equal on all ranks. What a rank contributes, and how it calls, is in RankPart.
struct Request {
  std::uint64_t seed = 0;  // of all that is drawn for it
  Kind kind = Kind::allreduce;
  DataType type = DataType::float32;
  ReduceOp op = ReduceOp::sum;
  std::uint64_t block = 1;
  /// Elements of each chunk of a reduce-scatter or allgather; of all other kinds there is one.
  std::vector<std::uint64_t> chunks;
  bool counts_given = false;
  int ranks = 1, root = 0;
  WireType wire_type = WireType::by_option;
  Algorithm algorithm = Algorithm::automatic;
  double expected_density = 0;
  std::uint64_t tag = 0;
  int refusing = -1;        // the rank that makes a request that must be refused, or -1
  bool duplicates = false;  // indices may be there several times
  bool barrier_follows = false;
  bool too_small = false;  // a packed output has too little room, and does not grow

  bool copies() const { return kind == Kind::broadcast || kind == Kind::allgather; }
  bool chunked() const { return kind == Kind::reduce_scatter || kind == Kind::allgather; }
  bool is_sparse() const { return kind == Kind::sparse || kind == Kind::packed; }
  std::uint64_t blocks_of(std::size_t chunk) const { return (chunks[chunk] + block - 1) / block; }
  std::uint64_t element() const { return element_bytes(type); }
  /// Whether a chunk is a part of the rank's input, and of its result.
  bool reads(int rank, std::size_t chunk) const;
  bool gets(int rank, std::size_t chunk) const;
  std::string text() const;
};

/// Draws a request for ranks with this setting.
Request make_request(Draw& draw, const test::Setting& setting);

}  // namespace nzcl::stress
