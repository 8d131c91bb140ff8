#include "runtime/switch/dropped.h"

#include <fmt/format.h>

#include "runtime/base/list_text.h"
#include "runtime/base/log.h"

namespace nzcl::engine::slot_pool {

std::string name_of_lane(const LaneContext& context) {
  return fmt::format("{}: lane {}", context.name(context.config.members.self), context.config.lane);
}

std::string dropped_text(const Dropped& dropped) {
  std::string list;
  const auto add = [&](std::uint64_t count, const char* what) {
    if (count > 0) append_item(list, fmt::format("{} {}", count, what));
  };
  add(dropped.unknown, "from addresses that are no member's");
  add(dropped.refused, "that were forged, or changed on the way");
  add(dropped.past, "of ranks, past the interfaces at which the kernel sums");
  if (list.empty()) return list;
  return "packets that came to the switch exchange's port were dropped: " + list;
}

void log_dropped(const LaneContext& context, const Dropped& dropped) {
  if (const std::string text = dropped_text(dropped); !text.empty())
    log().warn("{}: {}", name_of_lane(context), text);
}

}  // namespace nzcl::engine::slot_pool
