// CompressorState, as users see it. It lies here, and not with the compressors, because it knows of
// operations.
#include <algorithm>
#include <array>
#include <cmath>
#include <exception>
#include <new>
#include <string>

#include "nzcl/error.h"
#include "runtime/base/plain_floats.h"
#include "runtime/comm/compressed/compressor_state.h"
#include "runtime/compress/check.h"
#include "runtime/compress/select.h"
#include "runtime/gpu/find_gpu.h"

namespace nzcl {
namespace {

/// FNV-1a, and never 0, which stands for no compressor.
std::uint64_t checksum_of(const std::string& text) {
  std::uint64_t sum = 0xcbf29ce484222325;
  for (const char c : text) sum = (sum ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return std::max<std::uint64_t>(1, sum);
}

}  // namespace

CompressorState::Impl::Impl(const Compressor& compressor, std::span<const Layer> layers,
                            std::shared_ptr<gpu::Gpu> gpu)
    : tensor(compressor, layers,
             gpu ? compress::TensorState::Arrays::elsewhere : compress::TensorState::Arrays::here),
      checksum_(checksum_of(to_text(compressor))) {
  if (gpu) arrays = std::make_unique<comm::GpuArrays>(std::move(gpu), compressor, tensor.layout());
}

std::uint64_t CompressorState::Impl::checksum_in_tiles() const {
  return std::max<std::uint64_t>(1, checksum_ ^ tensor.draw_key());
}

CompressorState::Impl::~Impl() {
  if (!work.valid()) return;
  try {
    work.wait();
  } catch (const std::exception&) {
    // The operation has ended, which is all that matters here. Whoever holds the Work learns why it failed.
  }
}

void CompressorState::Impl::require_host(const char* call) const {
  if (arrays)
    throw Error(ErrorCode::unsupported,
                std::string(call) + ": the state is on a GPU; save() has what it keeps");
}

void CompressorState::Impl::require_idle(const char* call) {
  require_no_work(call);
  if (gpu_step && !gpu_step->is_quiet())
    throw Error(ErrorCode::invalid_usage,
                std::string(call) +
                    ": the stream has not come to the last step of this state, whose operation has "
                    "failed; synchronise the stream first");
  gpu_step.reset();
}

void CompressorState::Impl::require_no_work(const char* call) {
  if (!work.valid()) return;
  bool done = true;
  try {
    done = work.test();
  } catch (const Error&) {
    // The operation has ended. Whoever holds the Work learns why it failed.
  }
  if (!done)
    throw Error(ErrorCode::invalid_usage,
                std::string(call) + ": an allreduce still uses this state; wait for its Work first");
  note_sent_bytes();
  work = Work();
}

/// Precondition: the last operation has ended.
void CompressorState::Impl::note_sent_bytes() { sent_bytes = work.statistics().bytes_sent; }

CompressionReport CompressorState::Impl::report() {
  const PlainFloats floats;
  if (arrays) require_idle("report");
  CompressionReport r = tensor.report();
  if (arrays) r.residual_norm = std::sqrt(compress::sum_of_squares(arrays->residual()));
  bool idle = true;
  try {
    idle = !work.valid() || work.test();
  } catch (const Error&) {
    // It has ended, and whoever holds the Work learns why it failed.
  }
  if (work.valid() && idle) note_sent_bytes();
  if (idle) r.result_residual_norm = std::sqrt(compress::sum_of_squares(tensor.result_residual()));
  if (sent_share == 0 || sent_bytes == 0) return r;
  r.coded_bytes = sent_bytes;
  r.coded_ratio = 4.0 * sent_share * static_cast<double>(r.elements) / static_cast<double>(sent_bytes);
  return r;
}

CompressorState::CompressorState(const Compressor& compressor, std::span<const Layer> layers)
    : CompressorState(compressor, layers, GpuOf{}) {}

CompressorState::CompressorState(const Compressor& compressor, std::span<const Layer> layers, GpuOf on) {
  compress::check_compressor(compressor);
  compress::check_layers(compressor, layers);
  std::shared_ptr<gpu::Gpu> gpu;
  if (on.memory != nullptr) {
    compress::check_for_gpu(compressor);
    gpu = gpu::find_gpu({static_cast<const std::byte*>(on.memory), 1});
  }
  try {
    impl_ = std::make_unique<Impl>(compressor, layers, std::move(gpu));
  } catch (const std::bad_alloc&) {
    std::uint64_t elements = 0;
    for (const Layer& layer : layers) elements += layer.elements;
    throw Error(ErrorCode::system, "compressor: there is no memory for the state of a tensor of " +
                                       std::to_string(elements) + " elements");
  }
}

CompressorState::CompressorState(const Compressor& compressor, std::uint64_t elements)
    : CompressorState(compressor, std::array{Layer{.elements = elements}}) {}

CompressorState::CompressorState(const Compressor& compressor, std::uint64_t elements, GpuOf on)
    : CompressorState(compressor, std::array{Layer{.elements = elements}}, on) {}

CompressorState::~CompressorState() = default;
CompressorState::CompressorState(CompressorState&&) noexcept = default;
CompressorState& CompressorState::operator=(CompressorState&&) noexcept = default;

CompressorState::Impl& CompressorState::impl() const {
  if (!impl_) throw Error(ErrorCode::invalid_usage, "this CompressorState is empty: it was moved from");
  return *impl_;
}

const Compressor& CompressorState::compressor() const { return impl().tensor.compressor(); }
std::uint64_t CompressorState::elements() const { return impl().tensor.layout().elements(); }

CompressedGradient CompressorState::compress(std::span<const float> gradient, int rank, int ranks) {
  impl().require_host("compress");
  impl().require_idle("compress");
  const PlainFloats floats;
  impl().sent_share = 0;
  return impl().whole.compress(impl().tensor, gradient, rank, ranks);
}

void CompressorState::set_rate(float rate) {
  impl().require_idle("set_rate");
  compress::check_rate(rate);
  if (rate == 0) return;  // nothing can be in units of it
  const PlainFloats floats;
  const float before = impl().tensor.rate();
  if (impl().arrays && before > 0) impl().arrays->multiply(before / rate);
  impl().tensor.set_rate(rate);
}
float CompressorState::rate() const { return impl().tensor.rate(); }

std::vector<std::byte> CompressorState::save() const {
  impl().require_idle("save");
  if (const auto& arrays = impl().arrays) return impl().tensor.save(arrays->residual(), arrays->velocity());
  return impl().tensor.save();
}
void CompressorState::restore(std::span<const std::byte> saved) {
  impl().require_idle("restore");
  impl().sent_share = 0;
  const auto kept = impl().tensor.restore(saved);
  if (impl().arrays) impl().arrays->write(kept.residual, kept.velocity);
}
void CompressorState::reset() {
  impl().require_idle("reset");
  impl().sent_share = 0;
  impl().tensor.reset();
  if (impl().arrays) impl().arrays->reset();
}
CompressionReport CompressorState::report() const { return impl().report(); }
std::span<const float> CompressorState::residual() const {
  impl().require_host("residual");
  return impl().tensor.residual();
}
std::span<const float> CompressorState::result_residual() const { return impl().tensor.result_residual(); }

}  // namespace nzcl
