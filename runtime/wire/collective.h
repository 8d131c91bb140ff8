// The collectives, which ranks contribute to and receive which part of them, and how an allreduce is
// exchanged.
#pragma once

#include <cstdint>
#include <string_view>

namespace nzcl::wire {

enum class Collective : std::uint8_t {
  allreduce = 0,
  broadcast = 1,
  reduce = 2,
  reduce_scatter = 3,
  allgather = 4
};
inline constexpr int kCollectives = 5;

constexpr std::string_view name_of(Collective c) {
  switch (c) {
    case Collective::allreduce:
      return "allreduce";
    case Collective::broadcast:
      return "broadcast";
    case Collective::reduce:
      return "reduce";
    case Collective::reduce_scatter:
      return "reduce_scatter";
    case Collective::allgather:
      return "allgather";
  }
  return "?";
}

/// How the ranks exchange an allreduce: by contributions to owners, by doubling, by merging, or first within
/// each host and then between hosts. It has been chosen from what all ranks know, so that all have chosen the
/// same.
enum class Algorithm : std::uint8_t { push = 0, doubling = 1, merging = 2, hierarchy = 3 };
inline constexpr int kAlgorithms = 4;

/// Whether every rank has a chunk of its own.
constexpr bool is_chunked(Collective c) {
  return c == Collective::reduce_scatter || c == Collective::allgather;
}
/// Whether one rank, the root, has another part in it than the others.
constexpr bool has_root(Collective c) { return c == Collective::broadcast || c == Collective::reduce; }
/// Whether one rank's bytes are passed on, and nothing is summed.
constexpr bool copies(Collective c) { return c == Collective::broadcast || c == Collective::allgather; }

/// A set of ranks: all, none, one, or all but one.
struct Audience {
  enum class Kind : std::uint8_t { all, none, only, all_but };
  Kind kind = Kind::all;
  std::uint16_t rank = 0;

  constexpr bool has(int r) const {
    switch (kind) {
      case Kind::all:
        return true;
      case Kind::none:
        return false;
      case Kind::only:
        return r == rank;
      case Kind::all_but:
        return r != rank;
    }
    return false;
  }
  constexpr Audience others() const {
    constexpr Kind kOthers[] = {Kind::none, Kind::all, Kind::all_but, Kind::only};
    return {kOthers[static_cast<int>(kind)], rank};
  }
  friend bool operator==(const Audience&, const Audience&) = default;
};

/// Returns which ranks contribute blocks to a chunk. Collectives without chunks are one chunk, number 0.
constexpr Audience contributors(Collective c, std::uint16_t root, std::uint32_t chunk) {
  if (c == Collective::broadcast) return {Audience::Kind::only, root};
  if (c == Collective::allgather) return {Audience::Kind::only, static_cast<std::uint16_t>(chunk)};
  return {};
}

/// Returns which of `workers` ranks receive a chunk. The root of a broadcast has its data already; a rank
/// that is alone receives all the same, so that no chunk is for nobody.
constexpr Audience receivers(Collective c, std::uint16_t root, std::uint32_t chunk, int workers) {
  if (workers == 1) return {};
  if (c == Collective::broadcast) return {Audience::Kind::all_but, root};
  if (c == Collective::reduce) return {Audience::Kind::only, root};
  if (c == Collective::reduce_scatter) return {Audience::Kind::only, static_cast<std::uint16_t>(chunk)};
  return {};
}

}  // namespace nzcl::wire
