#include "perf/plain_compressor.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "perf/plain_round.h"
#include "runtime/base/mix.h"

namespace perf {
namespace {

constexpr std::size_t kSlice = 65536;

std::uint64_t share(double ratio, std::size_t count) {
  const auto n = static_cast<std::uint64_t>(std::llround(ratio * static_cast<double>(count)));
  return std::clamp<std::uint64_t>(n, count > 0 ? 1 : 0, count);
}

}  // namespace

PlainCompressor::PlainCompressor(const nzcl::Compressor& compressor, std::vector<nzcl::Layer> layers)
    : compressor_(compressor), layers_(std::move(layers)) {
  std::size_t elements = 0;
  for (const nzcl::Layer& layer : layers_) elements += layer.elements;
  for (auto* v : {&residual_, &velocity_, &x_, &total_, &sent_}) v->assign(elements, 0.0f);
  selected_.assign(elements, false);
}

/// The bins, or the layers' parts in slices.
std::vector<PlainCompressor::Part> PlainCompressor::parts(bool bins) const {
  std::size_t own = 0;
  if (const auto* adacomp = std::get_if<nzcl::AdaComp>(&compressor_.selection)) own = adacomp->bin;
  if (const auto* blocks = std::get_if<nzcl::BlockTopK>(&compressor_.selection)) own = blocks->block;
  std::vector<Part> all;
  std::size_t layer_begin = 0;
  for (std::size_t layer = 0; layer < layers_.size(); ++layer) {
    const std::size_t layer_end = layer_begin + layers_[layer].elements;
    const std::size_t bin = bins ? (layers_[layer].bin != 0 ? layers_[layer].bin : own) : kSlice;
    for (std::size_t at = layer_begin; at < layer_end;) {
      const std::size_t slice_end = at / kSlice * kSlice + kSlice;
      const std::size_t end = std::min({layer_end, slice_end, at + bin});
      all.push_back({at, end, layer});
      at = end;
    }
    layer_begin = layer_end;
  }
  return all;
}

double PlainCompressor::ratio(double final_ratio) const {
  if (steps_ >= compressor_.warm_up) return final_ratio;
  return std::pow(final_ratio, (static_cast<double>(steps_ * 4 / compressor_.warm_up) + 1) / 5);
}

void PlainCompressor::set_rate(float rate) {
  const float scale = rate_ > 0 ? rate_ / rate : 1;
  rate_ = rate;
  for (float& kept : residual_) kept *= scale;
  threshold_ *= scale, last_ *= scale;
}

std::vector<float> PlainCompressor::step(std::span<const float> gradient, int rank, int ranks) {
  float factor = 1;
  if (compressor_.clip > 0) {
    double total = 0;  // in the order of sum_of_squares()
    for (std::size_t slice = 0; slice < gradient.size(); slice += kSlice) {
      double of_slice = 0;
      const std::size_t end = std::min(gradient.size(), slice + kSlice);
      for (std::size_t part = slice; part < end; part += 2048) {
        double sums[32] = {}, of_part = 0;
        for (std::size_t i = part; i < std::min(end, part + 2048); ++i)
          sums[i % 32] += double{gradient[i]} * double{gradient[i]};
        for (const double sum : sums) of_part += sum;
        of_slice += of_part;
      }
      total += of_slice;
    }
    const double norm = std::sqrt(total),
                 most = double{compressor_.clip} / std::sqrt(static_cast<double>(ranks));
    if (std::isfinite(norm) && norm > most) factor = static_cast<float>(most / norm);
  }
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    x_[i] = factor * gradient[i];
    if (compressor_.momentum > 0) x_[i] += compressor_.momentum * velocity_[i];
    total_[i] = residual_[i] + x_[i];
  }
  std::visit([&](const auto& selection) { select(selection); }, compressor_.selection);
  for (std::size_t i = 0; i < total_.size(); ++i) {
    if (!std::isfinite(total_[i])) selected_[i] = true;
    sent_[i] = selected_[i] ? total_[i] : 0.0f;
  }
  std::visit([&](const auto& values) { code(values, rank); }, compressor_.values);
  const auto* qsgd = std::get_if<nzcl::Qsgd>(&compressor_.values);
  const bool feedback = qsgd == nullptr || qsgd->feedback;
  for (std::size_t i = 0; i < total_.size(); ++i) {
    velocity_[i] = selected_[i] ? 0.0f : x_[i];
    if (selected_[i]) {
      residual_[i] = feedback && std::isfinite(sent_[i]) ? total_[i] - sent_[i] : 0.0f;
    } else {
      residual_[i] = total_[i];
    }
    if (!compressor_.residual) residual_[i] = 0;
  }
  ++steps_;
  return sent_;
}

// ---- Selections

float PlainCompressor::largest(const Part& part) const {
  float most = 0;
  for (std::size_t i = part.begin; i < part.end; ++i) {
    if (std::isfinite(total_[i])) most = std::max(most, std::fabs(total_[i]));
  }
  return most;
}

void PlainCompressor::select(const nzcl::AdaComp&) {
  for (const Part& bin : parts(true)) {
    const float g = largest(bin);
    for (std::size_t i = bin.begin; i < bin.end; ++i)
      selected_[i] = total_[i] != 0 && std::fabs(total_[i] + x_[i]) >= g;
  }
}

void PlainCompressor::select_from(float threshold) {
  for (std::size_t i = 0; i < total_.size(); ++i)
    selected_[i] = total_[i] != 0 && std::fabs(total_[i]) >= threshold;
}

/// NaN counts as larger than infinity.
float PlainCompressor::kth_largest(std::uint64_t k) const {
  std::vector<std::uint32_t> bits;
  for (const float v : total_) bits.push_back(std::bit_cast<std::uint32_t>(std::fabs(v)));
  std::nth_element(bits.begin(), bits.begin() + static_cast<std::ptrdiff_t>(k - 1), bits.end(),
                   std::greater<>());
  return std::bit_cast<float>(bits[k - 1]);
}

void PlainCompressor::select(const nzcl::TopK& selection) {
  const std::uint64_t k = share(ratio(selection.ratio), total_.size());
  if (k == 0) return;
  const bool find =
      selection.exact || steps_ < 8 || threshold_ == 0 || since_exact_ >= selection.refresh || wanted_ != k;
  float t = threshold_;
  if (find) t = std::min(kth_largest(k), std::numeric_limits<float>::infinity());
  if (std::isnan(t)) t = std::numeric_limits<float>::infinity();
  const bool too_few = t == 0;
  t = std::max(t, std::numeric_limits<float>::denorm_min());
  select_from(t);
  std::uint64_t larger = 0, equal = 0;
  for (const float v : total_) {
    larger += std::fabs(v) > t || std::isnan(v) ? 1 : 0;
    equal += std::fabs(v) == t ? 1 : 0;
  }
  const bool among_equals =
      find && !too_few && std::isfinite(t) && larger + equal > k + (selection.exact ? 0 : k / 16);
  for (std::size_t i = 0; i < total_.size() && among_equals; ++i) {
    if (std::fabs(total_[i]) == t) selected_[i] = larger++ < k;
  }
  if (selection.exact) return;
  std::uint64_t reach = 0, lower = 0;
  const float lower_t = std::max(t * 0.9f, std::numeric_limits<float>::denorm_min());
  for (const float v : total_) {
    reach += std::isnan(v) || std::fabs(v) >= t ? 1 : 0;
    lower += std::isnan(v) || std::fabs(v) >= lower_t ? 1 : 0;
  }
  since_exact_ = find ? 1 : since_exact_ + 1;
  wanted_ = k;
  if (t == std::numeric_limits<float>::denorm_min() || std::isinf(t) || among_equals) {
    threshold_ = last_ = drift_ = 0;
    return;
  }
  double step = 0;  // of the logarithm
  if (find) {
    if (steps_ < 8 && last_ > 0)
      drift_ = static_cast<float>(std::clamp(0.9 * std::log(double{t} / double{last_}), -0.5, 0.5));
  } else {
    const double n = static_cast<double>(reach) + 1, m = static_cast<double>(lower) + 1;
    const double slope = std::max(0.5, std::log(m / n) / -std::log(double{0.9f}));
    const double off =
        std::clamp(std::log(n / (static_cast<double>(k) + 1)) / slope, -std::log(2.0), std::log(2.0));
    drift_ = static_cast<float>(std::clamp(double{drift_} + 0.3 * off, -0.5, 0.5));
    step = 0.5 * off;
  }
  last_ = t;
  threshold_ = static_cast<float>(double{t} * std::exp(step + double{drift_}));
  if (!find && (reach > k + k / 2 || reach < k - k / 2)) threshold_ = 0;
}

void PlainCompressor::select(const nzcl::Threshold& selection) { select_from(selection.value); }

void PlainCompressor::select(const nzcl::Everything&) { select_from(0); }

void PlainCompressor::select(const nzcl::RandomK& selection) {
  const auto below = static_cast<std::uint64_t>(std::llround(ratio(selection.ratio) * 0x1p32));
  for (std::size_t i = 0; i < total_.size(); ++i) {
    const auto key = nzcl::make_key(compressor_.seed, steps_, i / kSlice, 0);
    selected_[i] = nzcl::hash32(key, static_cast<std::uint32_t>(i % kSlice)) < below;
  }
}

void PlainCompressor::select(const nzcl::BlockTopK& selection) {
  const auto blocks = parts(true);
  std::vector<std::size_t> order(blocks.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return largest(blocks[a]) > largest(blocks[b]); });
  std::fill(selected_.begin(), selected_.end(), false);
  for (std::uint64_t k = 0; k < share(ratio(selection.ratio), blocks.size()); ++k) {
    const Part& block = blocks[order[k]];
    for (std::size_t i = block.begin; i < block.end; ++i) selected_[i] = total_[i] != 0;
  }
}

// ---- Values

void PlainCompressor::code(const nzcl::AsIs&, int) {}

void PlainCompressor::code(const nzcl::Narrow& values, int) {
  for (float& v : sent_) v = through(values.type, v);
}

void PlainCompressor::code(const nzcl::Ternary&, int) {
  const auto* adacomp = std::get_if<nzcl::AdaComp>(&compressor_.selection);
  for (const Part& part : parts(false)) {
    double sum = 0;
    std::uint64_t count = 0;
    if (adacomp != nullptr) {
      for (const Part& bin : parts(true)) {
        const bool here = bin.begin >= part.begin && bin.end <= part.end;
        if (adacomp->exact_scale ? bin.layer != part.layer : !here) continue;
        sum += double{largest(bin)}, ++count;
      }
    } else {
      for (std::size_t i = part.begin; i < part.end; ++i) {
        if (selected_[i] && std::isfinite(total_[i])) sum += std::fabs(double{total_[i]}), ++count;
      }
    }
    const auto scale = static_cast<float>(count > 0 ? sum / static_cast<double>(count) : 0.0);
    for (std::size_t i = part.begin; i < part.end; ++i) {
      if (selected_[i] && std::isfinite(total_[i])) sent_[i] = std::copysign(scale, total_[i]);
    }
  }
}

void PlainCompressor::code(const nzcl::Qsgd& values, int rank) {
  for (std::size_t slice = 0; slice * kSlice < sent_.size(); ++slice) {
    std::vector<std::size_t> where;
    for (std::size_t i = slice * kSlice; i < std::min(sent_.size(), (slice + 1) * kSlice); ++i) {
      if (selected_[i]) where.push_back(i);
    }
    const auto key = nzcl::make_key(compressor_.seed, steps_, slice, 1 + static_cast<std::uint64_t>(rank));
    for (std::size_t first = 0; first < where.size(); first += values.bucket)
      code_bucket(std::span(where).subspan(first, std::min<std::size_t>(values.bucket, where.size() - first)),
                  values, key, first);
  }
}

void PlainCompressor::code_bucket(std::span<const std::size_t> where, const nzcl::Qsgd& values,
                                  std::uint64_t key, std::size_t first) {
  float scale = 0;
  bool finite = true;
  for (const std::size_t i : where) {
    finite = finite && std::isfinite(total_[i]);
    scale = std::max(scale, std::fabs(total_[i]));
  }
  const auto levels = static_cast<float>((1 << (values.bits - 1)) - 1);
  for (std::size_t k = 0; k < where.size(); ++k) {
    const std::size_t i = where[k];
    if (!finite) {
      sent_[i] = std::numeric_limits<float>::quiet_NaN();
      continue;
    }
    const float exact = scale > 0 ? std::fabs(total_[i]) / scale * levels : 0.0f;
    const float drawn =
        static_cast<float>(nzcl::hash32(key, static_cast<std::uint32_t>(first + k)) >> 8) * 0x1p-24f;
    const float level = std::floor(exact) + (drawn < exact - std::floor(exact) ? 1.0f : 0.0f);
    sent_[i] = (level > 0 && total_[i] < 0 ? -level : level) / levels * scale;
  }
}

}  // namespace perf
