#include "runtime/comm/request/compressed_request.h"

#include "runtime/comm/request/request_checks.h"

namespace nzcl::comm {
namespace {

constexpr const char* kCall = "allreduce";

}  // namespace

wire::OperationRecord shape_of(const CompressedRequest& r, WireType) {
  wire::OperationRecord shape = check_shape(kCall, r.count, DataType::float32, r.op, 1, r.tag);
  shape.value_rule = r.value_rule;
  shape.checksum = r.checksum;
  return shape;
}

void prepare(const CompressedRequest& r, const Registrations& registrations, Prepared& p) {
  const std::uint64_t bytes = p.record.count * sizeof(float);
  p.timeout = check_timeout(kCall, r.timeout);
  p.known = Prepared::Input::source;
  p.source = r.source;
  p.result_coder = r.result_coder;
  auto out = covered(kCall, registrations, r.output, bytes, sizeof(float), "output");
  p.output = {.base = reinterpret_cast<std::byte*>(r.output), .region = out.get()};
  p.output_bytes = {p.output.base, bytes};
  const auto remote = out->remote().offset(static_cast<std::uint64_t>(p.output.base - out->bytes().data()));
  p.record.output_address = remote.address;
  p.record.output_key = remote.key;
  p.regions[1] = std::move(out);
}

}  // namespace nzcl::comm
