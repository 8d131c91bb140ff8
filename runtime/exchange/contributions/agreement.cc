#include "runtime/exchange/contributions/agreement.h"

#include <fmt/format.h>

#include <string_view>

#include "runtime/base/json_text.h"

namespace nzcl::engine {

using wire::OperationRecord;

namespace {

/// What is particular to the collective and the request.
std::string details_of(const OperationRecord& r) {
  std::string text;
  if (r.counts != 0) text += fmt::format(", counts that differ (checksum {:016x})", r.counts);
  if (wire::has_root(r.collective)) text += fmt::format(", root {}", r.root);
  if (r.packed_result != 0) text += ", packed result";
  if (r.value_rule == wire::ValueRule::float16) text += ", values as float16";
  if (r.value_rule == wire::ValueRule::bfloat16) text += ", values as bfloat16";
  if (r.value_rule == wire::ValueRule::coded) text += ", compressed";
  if (r.algorithm == wire::Algorithm::doubling) text += ", by doubling";
  if (r.algorithm == wire::Algorithm::merging) text += ", by merging";
  if (r.tag != 0) text += fmt::format(", tag {}", r.tag);
  return text;
}

std::string text_of(const OperationRecord& r) {
  const bool copies = wire::copies(r.collective);
  return fmt::format("{}(count {}{}, {}{}{}, blocks of {}{})", wire::name_of(r.collective),
                     r.counts != 0 ? "at most " : "", r.count, name_of(static_cast<DataType>(r.type)),
                     copies ? "" : ", ", copies ? "" : name_of(static_cast<ReduceOp>(r.op)), r.block_elems,
                     details_of(r));
}

}  // namespace

std::string text_of(const OperationRecord& r, const wire::Refusal* refusal) {
  if (refusal == nullptr) return text_of(r);
  return fmt::format("a request that rank {} refused ({})", refusal->rank(), valid_utf8(refusal->text()));
}

bool agree(LaneContext& context, int rank, std::uint64_t epoch, const OperationRecord& record,
           const wire::Refusal* refusal) {
  const std::uint64_t index = epoch % context.operations.size();
  auto& known = context.operations[index];
  if (!known.valid || known.epoch != epoch) {
    known = {true, epoch, rank, record};
    if (refusal != nullptr) {
      context.refusals[index] = *refusal;
      known.refusal = &context.refusals[index];
    }
    return true;
  }
  const bool refused = known.refusal != nullptr || refusal != nullptr;
  if (refused ? known.record.same_layout(record) : known.record.same_operation(record)) return true;
  context.fail(ErrorCode::mismatch,
               fmt::format("ranks disagree about operation {}: {} on rank {}, {} on rank {}", epoch,
                           text_of(known.record, known.refusal), known.rank, text_of(record, refusal), rank));
  return false;
}

std::string describe(const LaneContext& context, std::uint64_t epoch) {
  const KnownOperation& known = context.operations[epoch % context.operations.size()];
  const bool gone = !known.valid || known.epoch != epoch;  // a later operation has taken its entry
  return fmt::format("operation {}{}", epoch, gone ? "" : ", " + text_of(known.record, known.refusal));
}

}  // namespace nzcl::engine
