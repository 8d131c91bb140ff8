// The type of a caller's own allgather, through which ranks can meet.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace nzcl {

/// Collective callback for engines that have their own way to talk: gathers every rank's bytes in rank order.
using AllgatherCallback = std::function<std::vector<std::string>(std::string_view mine)>;

}  // namespace nzcl
