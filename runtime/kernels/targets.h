// Which instruction sets the kernels can use here.
#pragma once

#include <string>
#include <vector>

namespace nzcl {

/// The instruction sets that the kernels are compiled for and this CPU has, best first, by the names of
/// Highway ("AVX3" is AVX-512).
std::vector<std::string> kernel_targets();

/// The instruction set that the kernels run on: the best one, unless a test has forced another.
std::string active_kernel_target();

}  // namespace nzcl
