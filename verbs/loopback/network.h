// A network inside one process: endpoints of different threads write into each other's registered memory.
#pragma once

#include <memory>

#include "verbs/loopback/faults.h"
#include "verbs/transport.h"

namespace nzcl::verbs {

class LoopbackState;

/// One per LocalGroup. Thread-safe. Keys and bounds are checked at every write, as an RDMA device would; a
/// bad one is a `failed` completion.
class LoopbackNetwork {
 public:
  LoopbackNetwork();
  std::shared_ptr<Device> device(const LoopbackOptions& options = {});

 private:
  std::shared_ptr<LoopbackState> state_;
};

}  // namespace nzcl::verbs
