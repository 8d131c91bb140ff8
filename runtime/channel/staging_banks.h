// Which memory nodes a member's staging buffers lie on.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/channel/staging.h"
#include "runtime/plan/engine_config.h"

namespace nzcl::engine {

/// Staging buffers of one priority that lie on one memory node.
struct StagingBank {
  int node = -1;  // -1: anywhere
  std::uint32_t buffers = 0;
};

/// The staging buffers of `member` at one priority, in the order in which they lie in its lane memory. Every
/// member computes the same.
///
/// Some are there to compose messages in, and some for results that wait for a slow receiver. Where messages
/// are lent, there is also one for every slot of all channels up, and one for every slot of one channel down,
/// because a result goes to all workers in one buffer. So contributions and results never wait for each
/// other's buffers.
///
/// A message that is lent lies on the node of the member that reads it: a write to another node's memory need
/// not be waited for, but a read from there must be. A result is read by several members, so it lies where
/// most of them are. What is only written into other members' rings, or sent over a network, is composed on
/// the member's own node.
std::vector<StagingBank> staging_banks(const EngineConfig& config, int member, wire::Priority p);
/// The number of all these buffers.
std::uint32_t staging_buffers(const EngineConfig& config, int member, wire::Priority p);

/// The banks in which this member composes its messages of one priority.
struct StagingChoice {
  std::vector<StagingPool::Bank> up;  // by member: contributions to it
  StagingPool::Bank down = 0;         // results
};
StagingChoice staging_choice(const EngineConfig& config, wire::Priority p);

}  // namespace nzcl::engine
