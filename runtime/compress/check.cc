#include "runtime/compress/check.h"

#include <fmt/format.h>

#include <cmath>
#include <string_view>

#include "nzcl/error.h"
#include "runtime/wire/checks.h"

namespace nzcl::compress {
namespace {

constexpr std::uint32_t kSmallestBin = 4, kLargestBin = 16383;

void require(bool good, std::string_view field, auto value, std::string_view range) {
  if (good) return;
  throw Error(ErrorCode::invalid_argument,
              fmt::format("compressor: {} is {}; it may be {}", field, value, range));
}

void check_ratio(double ratio, std::string_view field) {
  require(ratio > 0 && ratio <= 1, field, ratio, "above 0 and at most 1");
}
void check_bin(std::uint32_t bin, std::string_view field) {
  require(bin >= kSmallestBin && bin <= kLargestBin, field, bin,
          fmt::format("{} to {} elements", kSmallestBin, kLargestBin));
}

struct CheckSelection {
  void operator()(const AdaComp& s) const { check_bin(s.bin, "the bin of AdaComp"); }
  void operator()(const TopK& s) const {
    check_ratio(s.ratio, "the ratio of TopK");
    require(s.refresh > 0, "refresh of TopK", s.refresh, "1 or more steps");
  }
  void operator()(const Threshold& s) const {
    require(s.value >= 0 && std::isfinite(s.value), "the value of Threshold", s.value, "0 or more");
  }
  void operator()(const RandomK& s) const { check_ratio(s.ratio, "the ratio of RandomK"); }
  void operator()(const BlockTopK& s) const {
    check_ratio(s.ratio, "the ratio of BlockTopK");
    check_bin(s.block, "the block of BlockTopK");
  }
  void operator()(const Everything&) const {}
};

struct CheckValues {
  void operator()(const AsIs&) const {}
  void operator()(const Ternary&) const {}
  void operator()(const Narrow& v) const {
    require(v.type == DataType::float16 || v.type == DataType::bfloat16, "the type of Narrow",
            name_of(v.type), "float16 or bfloat16");
  }
  void operator()(const Qsgd& v) const {
    require(v.bits == 2 || v.bits == 4 || v.bits == 8, "bits of Qsgd", v.bits, "2, 4 or 8");
    require(v.bucket >= 16 && v.bucket <= 65536, "the bucket of Qsgd", v.bucket, "16 to 65536 values");
  }
};

struct CheckResults {
  void operator()(const AsIs&) const {}
  void operator()(const Narrow& v) const { CheckValues()(v); }
  /// A rounding error is at most scale / L, and its mean square at most (scale / 2L)^2. A bucket in which
  /// these sum up to less than the square of its largest value loses less than it has, so that what is fed
  /// back again and again stays bounded.
  void operator()(const Qsgd& v) const {
    require(v.bits == 4 || v.bits == 8, "bits of results", v.bits, "4 or 8");
    const std::uint32_t levels = (1u << (v.bits - 1)) - 1, most = 4 * levels * levels;
    require(v.bucket >= 16 && v.bucket <= most, "the bucket of results", v.bucket,
            fmt::format("16 to {} values with {} bits", most, v.bits));
  }
};

bool has_ratio(const Selection& s) {
  return std::holds_alternative<TopK>(s) || std::holds_alternative<RandomK>(s) ||
         std::holds_alternative<BlockTopK>(s);
}

}  // namespace

void check_compressor(const Compressor& c) {
  std::visit(CheckSelection(), c.selection);
  std::visit(CheckValues(), c.values);
  std::visit(CheckResults(), c.results);
  require(c.momentum >= 0 && c.momentum < 1, "momentum", c.momentum, "0 or more and below 1");
  require(c.momentum == 0 || !std::holds_alternative<Everything>(c.selection), "momentum", c.momentum,
          "0 only where every element is sent, because what is sent loses its momentum: leave it to the "
          "optimizer");
  require(c.clip >= 0 && std::isfinite(c.clip), "clip", c.clip, "0 or more");
  require(c.warm_up == 0 || has_ratio(c.selection), "warm_up", c.warm_up,
          "above 0 only for selections that have a ratio");
}

void check_rate(float rate) {
  if (rate == 0 || is_rate(rate)) return;
  throw Error(ErrorCode::invalid_argument,
              fmt::format("set_rate: the rate is {}; it may be 0, or from 1e-15 to 1e15", rate));
}

void check_layers(const Compressor& c, std::span<const Layer> layers) {
  std::uint64_t left = wire::kMostBlocks - 1;  // they are blocks of one element on their way
  for (const Layer& layer : layers) {
    if (layer.elements > left)
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("compressor: a layer of {} elements is too large: a tensor has at most {}",
                              layer.elements, wire::kMostBlocks - 1));
    left -= layer.elements;
    if (layer.bin == 0) continue;
    require(std::holds_alternative<AdaComp>(c.selection), "the bin of a layer", layer.bin,
            "set only for AdaComp");
    check_bin(layer.bin, "the bin of a layer");
  }
}

void check_for_gpu(const Compressor& c) {
  if (c.non_finite == NonFinite::error)
    throw Error(
        ErrorCode::unsupported,
        "compressor: a state on a GPU does not take NonFinite::error, because the call returns before the "
        "gradient is read; set non_finite to pass, and look at the report's non_finite");
}

}  // namespace nzcl::compress
