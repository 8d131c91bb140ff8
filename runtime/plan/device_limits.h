// What the device of a member grants, asked once for the plan.
#pragma once

#include "verbs/transport.h"

namespace nzcl::engine {

struct DeviceLimits {
  /// Of a device that reaches all members in one way.
  DeviceLimits(const verbs::Limits& one = {}) : between(one), within(one), both(one) {}
  explicit DeviceLimits(const verbs::Device& device)
      : between(device.limits_at(verbs::Level::between)),
        within(device.limits_at(verbs::Level::within)),
        both(device.limits()),
        is_mixed(device.is_mixed()) {}

  verbs::Limits between, within;  // of members at these levels
  verbs::Limits both;             // what holds for all
  bool is_mixed = false;          // members at different levels are reached in different ways
};

}  // namespace nzcl::engine
