// A network inside one process: endpoints of different threads write into each other's registered memory.
#pragma once

#include <memory>

#include "verbs/loopback/faults.h"
#include "verbs/transport.h"

namespace nzcl::verbs {

class LoopbackState;

/// Every LocalGroup has one. Thread-safe. Each write is checked for its key and its bounds, as an RDMA device
/// would check it; a write that does not pass is reported by a `failed` completion.
class LoopbackNetwork {
 public:
  LoopbackNetwork();
  std::shared_ptr<Device> device(const LoopbackOptions& options = {});

 private:
  std::shared_ptr<LoopbackState> state_;
};

}  // namespace nzcl::verbs
