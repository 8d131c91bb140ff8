#include "runtime/comm/compressed/coded_results.h"

#include <algorithm>
#include <cassert>
#include <cstring>

#include "runtime/base/mix.h"
#include "runtime/kernels/narrow.h"

namespace nzcl::comm {
namespace {

/// Takes the place of a rank in the keys of random numbers, so that those of results are like those of no
/// contribution.
constexpr std::uint64_t kResults = ~std::uint64_t{0};

}  // namespace

CodedResults::CodedResults(compress::TensorState& state) : state_(state), step_(state.step_number()) {
  const ResultCodec& codec = state.compressor().results;
  if (const auto* const narrow = std::get_if<Narrow>(&codec)) narrow_ = narrow->type;
  if (const auto* const qsgd = std::get_if<Qsgd>(&codec))
    levels_ = {.bits = qsgd->bits, .bucket = qsgd->bucket};
}

std::uint32_t CodedResults::parameter() const {
  return levels_ ? static_cast<std::uint32_t>(levels_->bits) : 0;
}

std::uint64_t CodedResults::bytes(std::size_t count) const {
  return levels_ ? sizeof(wire::LevelsHead) + compress::qsgd_bytes(*levels_, count)
                 : sizeof(std::uint16_t) * count;
}

void CodedResults::code(const engine::SummedTile& tile, std::byte* to) {
  state_.add_result_errors(tile.begin, tile.offsets, tile.sums);
  if (levels_) {
    code_levels(tile, to);
  } else {
    auto* const halves = reinterpret_cast<std::uint16_t*>(to);
    narrow(narrow_, tile.sums.data(), tile.sums.size(), halves);
    widen(narrow_, halves, tile.sums.size(), tile.spare.data());
  }
  state_.keep_result_errors(tile.begin, tile.offsets, tile.sums, tile.spare);
}

/// Buckets begin with each tile.
void CodedResults::code_levels(const engine::SummedTile& tile, std::byte* to) const {
  const std::size_t count = tile.sums.size();
  const wire::LevelsHead head{static_cast<std::uint16_t>(levels_->bucket - 1),
                              static_cast<std::uint16_t>(std::min(count, levels_->bucket) - 1)};
  std::memcpy(to, &head, sizeof head);
  const std::span coded(to + sizeof head, compress::qsgd_bytes(*levels_, count));
  const auto key = make_key(state_.compressor().seed, step_, tile.begin, kResults);
  compress::qsgd_encode(*levels_, tile.sums, key, coded);
  [[maybe_unused]] const bool good = compress::qsgd_decode(*levels_, coded, tile.spare);
  assert(good);
}

wire::ValueRule value_rule_of(const Compressor& compressor) {
  struct Visitor {
    wire::ValueRule operator()(const AsIs&) const { return wire::ValueRule::coded; }
    wire::ValueRule operator()(const Narrow& v) const {
      return v.type == DataType::float16 ? wire::ValueRule::coded_float16 : wire::ValueRule::coded_bfloat16;
    }
    wire::ValueRule operator()(const Qsgd&) const { return wire::ValueRule::coded_levels; }
  };
  return std::visit(Visitor(), compressor.results);
}

}  // namespace nzcl::comm
