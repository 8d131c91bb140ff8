#include "runtime/comm/request/recent_requests.h"

#include <cstdint>
#include <utility>

namespace nzcl::comm {
namespace {

/// Whether two requests without a bitmap differ in nothing but their tags.
bool same_but_tag(const AllreduceRequest& a, const AllreduceRequest& b) {
  return a.input == b.input && a.output == b.output && a.count == b.count && a.type == b.type &&
         a.op == b.op && a.block_elems == b.block_elems && a.dense == b.dense && a.timeout == b.timeout &&
         a.stream == b.stream && a.wire_type == b.wire_type && a.algorithm == b.algorithm &&
         a.expected_density == b.expected_density;
}

}  // namespace

std::size_t RecentRequests::place_of(const AllreduceRequest& request) {
  static_assert(kEntries == 64, "the place has six bits");
  const auto key = reinterpret_cast<std::uintptr_t>(request.output) ^ request.count;
  return (key * 0x9e3779b97f4a7c15) >> 58;  // Fibonacci hashing
}

bool RecentRequests::recall(const AllreduceRequest& request, Prepared& p) {
  if (!request.bitmap.empty()) return false;
  const auto& entry = entries_[place_of(request)];
  if (!entry || !same_but_tag(entry->request, request)) return false;
  SharedRegion input = entry->input.find(), output = entry->output.find();
  if (!input || !output) return false;
  p.record = entry->record;
  p.record.tag = request.tag;
  p.layout = entry->layout;
  p.timeout = request.timeout;
  p.known = entry->known;
  p.input_bytes = bytes_at(request.input, entry->layout.tensor_bytes());
  p.output_bytes = bytes_at(request.output, entry->layout.tensor_bytes());
  p.input.base = p.input_bytes.data();
  p.input.region = input.get();
  p.output.base = static_cast<std::byte*>(request.output);
  p.output.region = output.get();
  p.regions[0] = std::move(input), p.regions[1] = std::move(output);
  return true;
}

void RecentRequests::remember(const AllreduceRequest& request, const Registrations& registrations,
                              Prepared& p) {
  if (!request.bitmap.empty() || request.count == 0 || p.gpu) return;
  p.layout = engine::layout_of(config_, 0, p.record);
  if (!p.layout->express()) return;
  entries_[place_of(request)].emplace(
      Entry{.request = request,
            .record = p.record,
            .layout = *p.layout,
            .known = p.known,
            .input = {registrations.handle_of(p.input_bytes), p.regions[0]},
            .output = {registrations.handle_of(p.output_bytes), p.regions[1]}});
}

}  // namespace nzcl::comm
