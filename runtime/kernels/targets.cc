#define HWY_WANT_AVX3_DL  // some kernels are compiled for it
#include "runtime/kernels/targets.h"

// Highway compiles the part above HWY_ONCE once per instruction set; the order of these three lines matters.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/kernels/targets.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace nzcl::HWY_NAMESPACE {

// This asks the code that runs, instead of the table by which it was chosen.
const char* this_target() { return hwy::TargetName(HWY_TARGET); }

}  // namespace nzcl::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace nzcl {

HWY_EXPORT(this_target);

std::string active_kernel_target() { return HWY_DYNAMIC_DISPATCH(this_target)(); }

std::vector<std::string> kernel_targets() {
  std::vector<std::string> names;
  for (const auto target : hwy::SupportedAndGeneratedTargets()) names.emplace_back(hwy::TargetName(target));
  return names;
}

}  // namespace nzcl
#endif  // HWY_ONCE
