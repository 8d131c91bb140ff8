// A caller's request, of whatever kind.
#pragma once

#include <cstdint>
#include <variant>
#include <vector>

#include "nzcl/communicator.h"
#include "runtime/comm/request/collective_requests.h"
#include "runtime/comm/request/compressed_request.h"
#include "runtime/comm/request/requests.h"

namespace nzcl::comm {

/// What a call asks for. It refers to the caller's request, for the duration of the call.
using Request = std::variant<const AllreduceRequest*, const SparseAllreduceRequest*, const CompressedRequest*,
                             const CollectiveRequest*>;

/// A request that does not say what tensor it is about.
inline const AllreduceRequest kUnknownRequest{};

/// Do for any request what their namesakes in requests.h do for one kind.
inline wire::OperationRecord shape_of(const Request& request, WireType wire_type) {
  return std::visit([&](const auto* r) { return shape_of(*r, wire_type); }, request);
}
inline std::vector<std::uint64_t> chunk_begins_of(const Request& request,
                                                  const wire::OperationRecord& shape) {
  return std::visit([&](const auto* r) { return chunk_begins_of(*r, shape); }, request);
}
inline void prepare(const Request& request, const Registrations& registrations, Prepared& p) {
  std::visit([&](const auto* r) { prepare(*r, registrations, p); }, request);
}
/// What the request asks for, rather than leaves to the communicator.
inline Algorithm asked_algorithm(const Request& request) {
  return std::visit([](const auto* r) { return r->algorithm; }, request);
}
inline WireType asked_wire_type(const Request& request) {
  return std::visit([](const auto* r) { return r->wire_type; }, request);
}

}  // namespace nzcl::comm
