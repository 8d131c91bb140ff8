#include "runtime/exchange/contributions/agreement.h"

#include <fmt/format.h>

#include <string_view>

#include "runtime/base/json_text.h"
#include "runtime/plan/slice_layout.h"

namespace nzcl::engine {

using wire::OperationRecord;

namespace {

bool has_counts(const OperationRecord& r) { return wire::is_chunked(r.collective) && r.checksum != 0; }

std::string_view text_of(wire::ValueRule rule) {
  switch (rule) {
    case wire::ValueRule::as_is:
      break;
    case wire::ValueRule::float16:
      return ", values as float16";
    case wire::ValueRule::bfloat16:
      return ", values as bfloat16";
    case wire::ValueRule::coded:
      return ", compressed";
    case wire::ValueRule::coded_float16:
      return ", compressed, results as float16";
    case wire::ValueRule::coded_bfloat16:
      return ", compressed, results as bfloat16";
    case wire::ValueRule::coded_levels:
      return ", compressed, results quantised";
  }
  return "";
}

/// What is particular to the collective and the request.
std::string details_of(const OperationRecord& r) {
  std::string text;
  if (has_counts(r)) text += fmt::format(", counts that differ (checksum {:016x})", r.checksum);
  if (wire::has_root(r.collective)) text += fmt::format(", root {}", r.root());
  if (r.packed_result != 0) text += ", packed result";
  text += text_of(r.value_rule);
  if (r.collective == wire::Collective::allreduce && r.checksum != 0)
    text += fmt::format(", checksum of the compressor {:016x}", r.checksum);
  if (r.algorithm == wire::Algorithm::doubling) text += ", by doubling";
  if (r.algorithm == wire::Algorithm::merging) text += ", by merging";
  if (r.algorithm == wire::Algorithm::hierarchy) text += ", by hierarchy";
  if (const wire::Density density = r.density(); density.known())
    text += fmt::format(", expected density {:.3g}", density.share());
  if (r.tag != 0) text += fmt::format(", tag {}", r.tag);
  return text;
}

std::string text_of(const OperationRecord& r) {
  const bool copies = wire::copies(r.collective);
  return fmt::format("{}(count {}{}, {}{}{}, blocks of {}{})", wire::name_of(r.collective),
                     has_counts(r) ? "at most " : "", r.count, name_of(static_cast<DataType>(r.type)),
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
  if (refused ? same_layout(context.config, known.record, record) : known.record.same_operation(record))
    return true;
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
