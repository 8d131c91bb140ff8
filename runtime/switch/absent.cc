// Takes the place of the switch exchange in a library that is built without it (NZCL_SWITCH=OFF).
#include "nzcl/error.h"
#include "runtime/switch/registration.h"

namespace nzcl::engine {

std::shared_ptr<const Wing> wing_of(Algorithm algorithm) {
  if (algorithm != Algorithm::switch_) return nullptr;
  throw Error(
      ErrorCode::unsupported,
      "algorithm is switch, but this build of nzcl has no switch exchange: build it with NZCL_SWITCH=ON");
}

}  // namespace nzcl::engine
