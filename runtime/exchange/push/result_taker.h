// Takes the results of a worker's slices from their owners, and puts them into place.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "runtime/channel/lane_context.h"
#include "runtime/exchange/push/tile_placer.h"
#include "runtime/exchange/push/uplink.h"
#include "runtime/wire/section.h"

namespace nzcl::engine {

/// Checks each section of a result before it believes it. What is wrong fails the lane and names the owner.
/// Owned by a worker and used by one thread.
class ResultTaker {
 public:
  ResultTaker(LaneContext& context, wire::Priority priority);

  /// Takes what has arrived from an owner, as far as it can be placed. Returns true if that was anything.
  bool pull(Uplink& uplink);
  /// Returns true if pull() has left something to do with this owner: a message that could not be placed yet,
  /// or credits for which there was no room in the outbox.
  bool has_more(const Uplink& uplink) const;
  /// Takes one section of a result. Returns false if it cannot be placed yet, or was refused. If it is
  /// `placed`, its payload is in the output already.
  bool consume(Uplink& uplink, const wire::Section& section, bool placed);
  /// Called when a direct write has become visible, for the slice with this sequence modulo 2^16.
  void on_direct(Uplink& uplink, std::uint16_t sequence);
  /// How many slices are over.
  std::uint64_t finished() const { return finished_; }

 private:
  bool consume_held(Uplink& uplink);
  const char* wrong_with_result(const Uplink& uplink, const Transfer& transfer,
                                const wire::Header& header) const;
  bool take_union(Uplink& uplink, Transfer& transfer, const wire::Section& section);
  bool take_end(Uplink& uplink, Transfer& transfer, const wire::Section& section);
  bool take_refusal(Uplink& uplink, Transfer& transfer, const wire::Section& section);
  bool take_tiles(Uplink& uplink, Transfer& transfer, const wire::Section& section);
  bool announced(const Uplink& uplink) const;
  void take_notice(Uplink& uplink, Transfer& transfer, const wire::Header& header);
  void count_received(Uplink& uplink, Transfer& transfer, const wire::Section& section);
  void scatter(const Uplink& uplink, Transfer& transfer, const wire::Section& section, bool placed);
  static void place_run(Operation& operation, const RunWalk& down, std::span<const std::byte> run, bool cold);
  void finish_if_complete(Uplink& uplink, Transfer& transfer);
  const char* wrong_with_end(const Transfer& transfer) const;
  bool refuse(const Uplink& uplink, const std::string& what);

  LaneContext& context_;
  const wire::Priority priority_;
  TilePlacer tile_placer_;
  std::uint64_t finished_ = 0;
};

}  // namespace nzcl::engine
