// What TensorState writes for checkpoints, and how it reads it back.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "nzcl/error.h"
#include "runtime/compress/check.h"
#include "runtime/compress/tensor_state.h"

namespace nzcl::compress {
namespace {

/// What the bytes begin with. Behind it follow the compressor as text, the layers, the residual, the
/// velocity and the errors of results.
struct SavedHeader {
  char magic[8] = {'n', 'z', 'c', 'l', 's', 't', 'a', 't'};
  std::uint32_t version = 2;
  std::uint32_t since_exact = 0;
  std::uint64_t compressor_bytes = 0, layers = 0, residual = 0, velocity = 0, result_residual = 0;
  std::uint64_t steps = 0, sent_total = 0, wanted = 0;
  float next_threshold = 0, last_threshold = 0, drift = 0;
  float rate = 0;
};
static_assert(sizeof(SavedHeader) == 96);

void append(std::vector<std::byte>& bytes, const void* data, std::size_t size) {
  const auto* const from = static_cast<const std::byte*>(data);
  bytes.insert(bytes.end(), from, from + size);
}

/// Reads parts of fixed sizes one behind the other.
class SavedReader {
 public:
  explicit SavedReader(std::span<const std::byte> bytes) : left_(bytes) {}
  std::span<const std::byte> take(std::uint64_t size) {
    if (size > left_.size()) reject("it is cut off");
    const auto part = left_.first(size);
    left_ = left_.subspan(size);
    return part;
  }
  bool at_end() const { return left_.empty(); }
  [[noreturn]] static void reject(std::string_view why) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("restore: this is not a saved state of this tensor: {}", why));
  }

 private:
  std::span<const std::byte> left_;
};

}  // namespace

std::vector<std::byte> TensorState::save(std::span<const float> residual,
                                         std::span<const float> velocity) const {
  const std::string text = to_text(compressor_);
  SavedHeader header;
  header.since_exact = state_.since_exact;
  header.compressor_bytes = text.size();
  header.layers = layout_.layers().size();
  header.residual = residual.size();
  header.velocity = velocity.size();
  header.result_residual = result_residual_.size();
  header.steps = state_.steps, header.sent_total = state_.sent_total, header.wanted = state_.wanted;
  header.next_threshold = state_.threshold.next;
  header.last_threshold = state_.threshold.last;
  header.drift = state_.threshold.drift;
  header.rate = state_.rate;
  std::vector<std::byte> bytes;
  bytes.reserve(sizeof header + text.size() + 16 * header.layers +
                4 * (header.residual + header.velocity + header.result_residual));
  append(bytes, &header, sizeof header);
  append(bytes, text.data(), text.size());
  for (const Layer& layer : layout_.layers()) {
    const std::uint64_t words[2] = {layer.elements, layer.bin};
    append(bytes, words, sizeof words);
  }
  append(bytes, residual.data(), residual.size() * sizeof(float));
  append(bytes, velocity.data(), velocity.size() * sizeof(float));
  append(bytes, result_residual_.data(), result_residual_.size() * sizeof(float));
  return bytes;
}

TensorState::SavedArrays TensorState::restore(std::span<const std::byte> saved) {
  SavedReader in(saved);
  SavedHeader header;
  std::memcpy(&header, in.take(sizeof header).data(), sizeof header);
  const SavedHeader expected;
  if (!std::ranges::equal(header.magic, expected.magic)) SavedReader::reject("it does not begin as one");
  if (header.version != expected.version)
    SavedReader::reject(fmt::format("its version is {}", header.version));
  const std::string own = to_text(compressor_);
  const auto text = in.take(header.compressor_bytes);
  const std::string theirs(reinterpret_cast<const char*>(text.data()), text.size());
  if (theirs != own) SavedReader::reject(fmt::format("its compressor is {}, and not {}", theirs, own));
  if (header.layers != layout_.layers().size())
    SavedReader::reject(fmt::format("it has {} layers", header.layers));
  for (const Layer& layer : layout_.layers()) {
    std::uint64_t words[2];
    std::memcpy(words, in.take(sizeof words).data(), sizeof words);
    if (words[0] != layer.elements || words[1] != layer.bin) SavedReader::reject("its layers are others");
  }
  if (header.residual != (compressor_.residual ? layout_.elements() : 0) ||
      header.velocity != (compressor_.momentum > 0 ? layout_.elements() : 0) ||
      header.result_residual != result_residual_.size())
    SavedReader::reject("its sizes are others");
  if (header.rate != 0 && !is_rate(header.rate))
    SavedReader::reject(fmt::format("its rate is {}", header.rate));
  const auto residual = in.take(header.residual * sizeof(float));
  const auto velocity = in.take(header.velocity * sizeof(float));
  const auto result_residual = in.take(header.result_residual * sizeof(float));
  if (!in.at_end()) SavedReader::reject("something follows it");
  // Nothing can fail from here on.
  if (!residual_.empty()) std::memcpy(residual_.data(), residual.data(), residual.size());
  if (!velocity_.empty()) std::memcpy(velocity_.data(), velocity.data(), velocity.size());
  if (!result_residual.empty())
    std::memcpy(result_residual_.data(), result_residual.data(), result_residual.size());
  std::ranges::fill(outcomes_, SliceOutcome());
  state_ = {
      .steps = header.steps,
      .sent_total = header.sent_total,
      .rate = header.rate,
      .wanted = header.wanted,
      .since_exact = header.since_exact,
      .threshold = {.next = header.next_threshold, .last = header.last_threshold, .drift = header.drift}};
  return {.residual = residual, .velocity = velocity};
}

}  // namespace nzcl::compress
