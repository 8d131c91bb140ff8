// Debian's libtorch-dev 1.13 leaves this header out, but its c10d/reducer.hpp includes it (as do PyTorch's
// own packages, pytorch#88006). What is here is as much of it as reducer.hpp names, with the same types.
// CMake puts this folder into the search path only where the real one is missing.
#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <memory>

namespace torch::distributed::autograd {

class DistAutogradContext {
 public:
  using GradCallback = std::function<bool(at::Tensor&)>;
};
using ContextPtr = std::shared_ptr<DistAutogradContext>;

}  // namespace torch::distributed::autograd
