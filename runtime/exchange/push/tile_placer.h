// Puts the tiles of results into the output of a worker.
#pragma once

#include <string>

#include "runtime/channel/lane_context.h"
#include "runtime/exchange/push/uplink.h"
#include "runtime/tile/tile_codec.h"
#include "runtime/wire/section.h"

namespace nzcl::engine {

/// Checks the tiles of a section and places them one after the other, in the order of the slice. It remembers
/// in the transfer how far it has come, because in a packed output a tile must wait until all tiles before it
/// are counted. What is wrong fails the lane and names the owner. Owned by a worker and used by one thread.
class TilePlacer {
 public:
  TilePlacer(LaneContext& context, wire::Priority priority);

  /// Makes known how many blocks of a packed result the tiles of the message have that the uplink holds, so
  /// that tiles behind them can be placed, although these may have to wait themselves.
  void note(Uplink& uplink);
  /// Places the tiles of a section. Returns false if one of them cannot be placed yet, or was refused; those
  /// before it are in place then.
  bool place(const Uplink& uplink, Transfer& transfer, const wire::Section& section);

 private:
  void note_section(const Transfer& transfer, const wire::Section& section);
  bool place_next(const Uplink& uplink, Transfer& transfer, const wire::Section& section);
  bool refuse(const Uplink& uplink, const std::string& what);

  LaneContext& context_;
  const wire::Priority priority_;
  TileScratch scratch_;
};

}  // namespace nzcl::engine
