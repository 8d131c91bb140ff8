#include "runtime/exchange/exchange.h"

#include <fmt/format.h>

namespace nzcl::engine {

void refuse_direct_write(LaneContext& context, std::uint16_t member) {
  context.fail(
      ErrorCode::transport,
      fmt::format("{} announced a direct write, but sums nothing for this rank", context.name(member)));
}

}  // namespace nzcl::engine
