#include "tests/stress/request.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace nzcl::stress {
namespace {

constexpr std::array kNames{"allreduce", "sparse",         "packed",   "broadcast",
                            "reduce",    "reduce_scatter", "allgather"};

std::uint64_t draw_block(Draw& draw) {
  if (draw.chance(0.35)) return 1;
  if (draw.chance(0.7)) return draw.number(std::uint64_t{2}, std::uint64_t{130});
  return draw.pick<std::uint64_t>({256, 1000, 4096, 9001});
}

/// From nothing to many slices. Sizes beside those of whole words and whole tiles are the likeliest to be
/// wrong.
std::uint64_t draw_count(Draw& draw, std::uint64_t block) {
  if (draw.chance(0.05)) return 0;
  if (draw.chance(0.3)) return draw.number(std::uint64_t{1}, std::uint64_t{700});
  if (draw.chance(0.3)) {
    const std::uint64_t whole = block * 64 * draw.number(std::uint64_t{1}, std::uint64_t{6});
    return std::min<std::uint64_t>(whole - 1 + draw.number(std::uint64_t{0}, std::uint64_t{2}), 200'000);
  }
  return draw.number(std::uint64_t{700}, draw.chance(0.2) ? std::uint64_t{300'000} : std::uint64_t{60'000});
}

bool is_power_of_two(int n) { return (n & (n - 1)) == 0; }

}  // namespace

bool Request::reads(int rank, std::size_t chunk) const {
  if (kind == Kind::allgather) return static_cast<std::size_t>(rank) == chunk;
  return kind != Kind::broadcast || rank == root;
}

bool Request::gets(int rank, std::size_t chunk) const {
  if (kind == Kind::reduce_scatter) return static_cast<std::size_t>(rank) == chunk;
  if (kind == Kind::broadcast) return rank != root || ranks == 1;
  return kind != Kind::reduce || rank == root;
}

Request make_request(Draw& draw, const test::Setting& setting) {
  Request r;
  r.seed = draw.bits();
  r.kind = static_cast<Kind>(draw.chance(0.65) ? draw.number(0, 2) : draw.number(3, 6));
  r.type = static_cast<DataType>(draw.number(0, kDataTypes - 1));
  r.op = static_cast<ReduceOp>(draw.number(0, kReduceOps - 1));
  r.block = draw_block(draw);
  r.ranks = setting.ranks;
  r.root = draw.number(0, setting.ranks - 1);
  r.tag = draw.chance(0.2) ? draw.bits() : 0;
  r.barrier_follows = draw.chance(0.05);
  const auto ranks = static_cast<std::uint64_t>(setting.ranks);
  const std::uint64_t count = draw_count(draw, r.block);
  r.chunks = {count};
  if (r.chunked()) {
    r.chunks.assign(ranks, count / ranks);
    r.counts_given = draw.chance(0.5);
    if (r.counts_given) {
      for (auto& n : r.chunks) n = draw.chance(0.2) ? 0 : draw.number(std::uint64_t{0}, count / ranks + 3);
    }
  }
  if (draw.chance(0.07) && count > 0 && ranks > 1) r.refusing = draw.number(0, setting.ranks - 1);
  if (r.kind > Kind::packed) return r;
  if (draw.chance(0.3)) r.expected_density = draw.pick({0.001, 0.02, 0.3, 1.0});
  if (r.type == DataType::float32 && draw.chance(0.3))
    r.wire_type = draw.pick({WireType::as_is, WireType::float16, WireType::bfloat16});
  if (draw.chance(0.4))
    r.algorithm = draw.pick({Algorithm::push, Algorithm::doubling, Algorithm::merging, Algorithm::merging});
  // Averages are exact in narrower types only if the number of ranks is a power of two.
  if (r.op == ReduceOp::avg && !is_power_of_two(setting.ranks) && r.type == DataType::float32)
    r.wire_type = WireType::as_is;
  if (r.is_sparse()) r.duplicates = draw.chance(0.3);
  if (r.kind == Kind::packed) r.too_small = count > 0 && draw.chance(0.08);
  return r;
}

std::string Request::text() const {
  std::string text = fmt::format("{} of {} {}, blocks of {}, count", kNames[static_cast<std::size_t>(kind)],
                                 name_of(type), name_of(op), block);
  for (const std::uint64_t n : chunks) text += fmt::format(" {}", n);
  if (kind == Kind::broadcast || kind == Kind::reduce) text += fmt::format(", root {}", root);
  if (counts_given) text += ", counts given";
  if (duplicates) text += ", duplicates";
  if (too_small) text += ", too little room";
  if (refusing >= 0) text += fmt::format(", refused by rank {}", refusing);
  text += fmt::format(", wire type {}, algorithm {}, expected density {}", static_cast<int>(wire_type),
                      static_cast<int>(algorithm), expected_density);
  return text;
}

}  // namespace nzcl::stress
