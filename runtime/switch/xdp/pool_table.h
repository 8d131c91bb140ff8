// The pools that the program in the kernel knows: the maps that say where their packets go, who may send
// them, and where their slots are.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "runtime/switch/kernel_pools.h"
#include "runtime/switch/xdp/handles.h"
#include "runtime/switch/xdp/layout.h"

namespace nzcl::tools::xdp {

/// Thread-safe. Pools must not outlive their table.
class PoolTable {
 public:
  struct Maps {
    int addresses, pools, ranks, slots, states;  // file descriptors, which others own
  };
  PoolTable(const Maps& maps, std::uint32_t pools, std::uint32_t slots_of_each);

  /// Throws Error{unsupported, transport, system}.
  std::unique_ptr<engine::slot_pool::KernelPool> open(const engine::slot_pool::Pool& pool,
                                                      const std::string& address,
                                                      std::span<const std::string> ranks);

 private:
  friend class OpenPool;
  struct Taken {
    std::uint32_t number, generation;
  };
  Taken take_number();
  void release(std::uint32_t number, const nzcl_pool_key& key);
  void reset_slots(std::uint32_t number) const;
  const nzcl_state& state(std::uint32_t number) const {
    return static_cast<const nzcl_state*>(states_.at())[number];
  }

  const Maps maps_;
  const std::uint32_t slots_of_each_;
  const MappedMemory states_;
  std::mutex mutex_;  // guards what follows
  std::uint32_t generations_ = 0;
  std::vector<bool> in_use_;  // by number
};

}  // namespace nzcl::tools::xdp
