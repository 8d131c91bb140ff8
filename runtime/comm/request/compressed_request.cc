#include "runtime/comm/request/compressed_request.h"

#include "runtime/comm/request/request_checks.h"

namespace nzcl::comm {
namespace {

constexpr const char* kCompressedCall = "allreduce";

}  // namespace

wire::OperationRecord shape_of(const CompressedRequest& r, WireType) {
  wire::OperationRecord shape = check_shape(kCompressedCall, r.count, DataType::float32, r.op, 1, r.tag);
  shape.value_rule = r.value_rule;
  shape.checksum = r.checksum;
  return shape;
}

void prepare(const CompressedRequest& r, const Registrations& registrations, Prepared& p) {
  const std::uint64_t bytes = p.record.count * sizeof(float);
  p.timeout = check_timeout(kCompressedCall, r.timeout);
  p.known = Prepared::Input::source;
  p.source = r.source;
  p.result_coder = r.result_coder;
  auto out = covered_anywhere(kCompressedCall, registrations, r.output, bytes, sizeof(float), "output");
  take_output(r.output, bytes, std::move(out), {.count = 1}, p);
  if (!r.step) return take_stream(kCompressedCall, r.stream, p);
  take_gpu(r.step->gpu(), "input", p);
  p.input_bytes = r.step->gradient();
  p.on_gpu.stream = r.stream;
  p.gpu_step = r.step;
  if (!r.source) p.known = Prepared::Input::staged_list;
}

}  // namespace nzcl::comm
