// One owning handle per verbs object, and the only place that knows the three ways in which libibverbs
// reports failure.
#pragma once

#include <fmt/format.h>
#include <infiniband/verbs.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <string>

#include "nzcl/error.h"

namespace nzcl::verbs::ibv {

struct Destroy {
  void operator()(ibv_context* p) const { ibv_close_device(p); }
  void operator()(ibv_pd* p) const { ibv_dealloc_pd(p); }
  void operator()(ibv_mr* p) const { ibv_dereg_mr(p); }
  void operator()(ibv_ah* p) const { ibv_destroy_ah(p); }
  void operator()(ibv_cq* p) const { ibv_destroy_cq(p); }
  void operator()(ibv_srq* p) const { ibv_destroy_srq(p); }
  void operator()(ibv_qp* p) const { ibv_destroy_qp(p); }
  void operator()(ibv_comp_channel* p) const { ibv_destroy_comp_channel(p); }
};
template <typename T>
using Handle = std::unique_ptr<T, Destroy>;

/// Advice for a refusal. ibv_create_*(3) and ibv_reg_mr(3) report which limit was reached by errno alone.
inline const char* advice_for(int error) {
  switch (error) {
    case ENOMEM:
      return "; raise the limit on locked memory (ulimit -l, or LimitMEMLOCK= of the service); if that is "
             "unlimited, the device has no more of these objects (ibv_devinfo -v: max_qp, max_cq, max_mr)";
    case EAGAIN:
      return "; the limit of this process's rdma control group is reached (rdma.max)";
    default:
      return "";
  }
}

/// Calls that return a pointer return null for failure and set errno.
template <typename T>
Handle<T> owned(T* pointer, const std::string& what) {
  if (pointer == nullptr) {
    const int error = errno;
    throw Error(ErrorCode::system, fmt::format("{}: {}{}", what, std::strerror(error), advice_for(error)));
  }
  return Handle<T>(pointer);
}

/// Calls that change an object return 0, or a positive errno for failure.
inline void check(int error, const std::string& what) {
  if (error != 0)
    throw Error(ErrorCode::transport, fmt::format("{}: {}", what, std::strerror(error > 0 ? error : -error)));
}

/// Calls that count (ibv_poll_cq) return a negative number for failure. This is reported and not thrown,
/// because they are on the data path.
inline bool failed_count(int count) noexcept { return count < 0; }

}  // namespace nzcl::verbs::ibv
