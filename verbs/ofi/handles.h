// One owning handle per libfabric object, and the only place that turns its return codes into errors.
#pragma once

#include <fmt/format.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

#include <cassert>
#include <cerrno>
#include <memory>
#include <string>

#include "nzcl/error.h"
#include "verbs/descriptors.h"

namespace nzcl::verbs::ofi {

/// Closes an object of libfabric. libfabric refuses (FI_EBUSY) as long as another open object refers to it,
/// so it would leak. The assertion finds such a mistake of nzcl in builds with assertions, because
/// LeakSanitizer does not look into libfabric.
struct CloseFid {
  template <typename T>
  void operator()(T* object) const {
    [[maybe_unused]] const int code = fi_close(&object->fid);
    assert(code != -FI_EBUSY);
  }
};
template <typename T>
using Handle = std::unique_ptr<T, CloseFid>;

struct FreeInfo {
  void operator()(fi_info* info) const { fi_freeinfo(info); }
};
using Info = std::unique_ptr<fi_info, FreeInfo>;

/// The text for an error of libfabric, whose numbers are those of the system.
inline std::string text_of(int error) {
  return error == EMFILE || error == ENFILE ? error_text(error) : fi_strerror(error);
}

/// Calls of libfabric return 0, or a negative errno for failure.
inline void check(int code, const std::string& what, ErrorCode kind = ErrorCode::transport) {
  if (code < 0) throw Error(kind, fmt::format("{}: {}", what, text_of(-code)));
}

}  // namespace nzcl::verbs::ofi
