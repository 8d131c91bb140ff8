// Slot pools that something else than this process sums, such as a program in the kernel: the seam between
// the exchange, which meets the ranks, and whatever moves the packets.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "runtime/switch/slot_sets.h"

namespace nzcl::engine::slot_pool {

/// One lane's pool. As long as it lives, packets of the ranks are summed and answered by themselves.
class KernelPool {
 public:
  virtual ~KernelPool() = default;
  /// Why no sum can be right any more; empty as long as it can. Does not call the system while all is well.
  virtual std::string failure() const = 0;
  /// What people should look at, though sums are right; empty while there is nothing. Does not call the
  /// system while it is empty.
  virtual std::string notice() const = 0;
};

/// Where such pools are made. Thread-safe, because splits meet on threads of their own.
class KernelPools {
 public:
  virtual ~KernelPools() = default;
  /// The slots of each pool.
  virtual std::uint32_t slots() const = 0;
  /// The largest datagram that it can sum.
  virtual std::size_t max_bytes() const = 0;
  /// What packets have to come through, for a message to people: "port0, port1".
  virtual std::string interfaces() const = 0;
  /// Begins to sum what `ranks`, whose UDP addresses these are, send to `address`. Throws Error{unsupported,
  /// system}.
  virtual std::unique_ptr<KernelPool> open(const Pool& pool, const std::string& address,
                                           std::span<const std::string> ranks) = 0;
};

}  // namespace nzcl::engine::slot_pool
