// Feeds any bytes to the decoders of compressed values. A decoder refuses them, or gives values that are such
// as an encoder makes.
#include <cmath>

#include "runtime/compress/bin_code.h"
#include "runtime/compress/qsgd.h"
#include "runtime/kernels/elements.h"
#include "runtime/kernels/offsets.h"
#include "tests/fuzz/fuzz.h"

namespace nzcl::test {
namespace {

using compress::QsgdFormat;

void require(bool condition) {
  if (!condition) __builtin_trap();
}

constexpr std::size_t kBuckets[] = {1, 16, 100, 1024};

void run_qsgd(const QsgdFormat& format, std::span<const std::byte> bytes, std::size_t count) {
  std::vector<float> values(count);
  if (!qsgd_decode(format, bytes, values)) return;
  for (const float v : values) require(!std::isinf(v));
  if (count == 0) require(bytes.empty());
}

/// Bins of one size in a slice of `elements`.
std::vector<std::uint32_t> make_ends(std::size_t elements, std::size_t bin) {
  std::vector<std::uint32_t> ends;
  for (std::size_t at = 0; at < elements; at += bin)
    ends.push_back(static_cast<std::uint32_t>(std::min(elements, at + bin)));
  return ends;
}

void run_bins(std::size_t elements, std::size_t bin, std::span<const std::byte> bytes, std::size_t count) {
  const auto ends = make_ends(elements, bin);
  std::vector<std::uint16_t> offsets(count);
  std::vector<float> values(count);
  if (!compress::decode_bins(ends, bytes, 2.0f, offsets, values)) return;
  std::vector<std::byte> again(bytes.size());
  require(compress::encode_bins(ends, {offsets, values}, again) == bytes.size());
  require(std::ranges::equal(again, bytes));
}

/// Copies of exactly the size that is needed, so that a sanitizer notices what goes beyond it.
void run(FuzzInput input) {
  const auto code = input.value<std::uint8_t>();
  const std::size_t count = input.value<std::uint16_t>();
  const std::size_t elements = std::size_t{input.value<std::uint16_t>()} + 1;
  const std::string text = input.text();
  const std::span bytes = std::as_bytes(std::span(text));
  if (code % 4 < 3) {
    run_qsgd({.bits = 2 << code % 4, .bucket = kBuckets[code / 4 % 4]}, bytes, count);
  } else {
    run_bins(elements, 4 + code / 4, bytes, count);
  }
}

void append_bytes(std::string& text, const std::vector<std::byte>& bytes) {
  text.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

std::string start(int code, std::size_t count, std::size_t elements) {
  std::string text;
  append(text, static_cast<std::uint8_t>(code));
  append(text, static_cast<std::uint16_t>(count));
  append(text, static_cast<std::uint16_t>(elements - 1));
  return text;
}

std::string qsgd_seed(int code, const std::vector<float>& values) {
  const QsgdFormat format{.bits = 2 << code % 4, .bucket = kBuckets[code / 4 % 4]};
  std::vector<std::byte> bytes(qsgd_bytes(format, values.size()));
  qsgd_encode(format, values, 1, bytes);
  std::string text = start(code, values.size(), 1);
  append_bytes(text, bytes);
  return text;
}

std::string bins_seed(int code, std::size_t elements, const std::vector<std::uint16_t>& offsets) {
  const auto ends = make_ends(elements, 4 + static_cast<std::size_t>(code) / 4);
  const std::vector<float> values(offsets.size(), -1.0f);
  std::vector<std::uint64_t> bitmap(kMostSliceElements / 64);
  bitmap_of(offsets, bitmap);
  std::vector<std::byte> bytes(compress::bin_code_bytes(ends, bitmap, offsets.size()));
  compress::encode_bins(ends, {offsets, values}, bytes);
  std::string text = start(code, offsets.size(), elements);
  append_bytes(text, bytes);
  return text;
}

}  // namespace

std::vector<std::string> fuzz_seeds() {
  std::vector<std::string> seeds;
  for (int bits = 0; bits < 3; ++bits) {
    for (int bucket = 0; bucket < 4; ++bucket)
      seeds.push_back(qsgd_seed(bits + 4 * bucket, {1.0f, -2.0f, 0.0f, 3.5f, 1e-40f, -0.0f, 7.0f}));
    seeds.push_back(qsgd_seed(bits, {}));
    seeds.push_back(qsgd_seed(bits, {NAN, INFINITY, 0.0f}));
  }
  for (const int code : {3, 3 + 4 * 46, 255}) {  // bins of 4, 50 and 67
    seeds.push_back(bins_seed(code, 1000, {0, 1, 3, 4, 50, 51, 300, 999}));
    seeds.push_back(bins_seed(code, 65536, {65'535}));
    seeds.push_back(bins_seed(code, 1, {}));
  }
  return seeds;
}

}  // namespace nzcl::test

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  nzcl::test::run({data, size});
  return 0;
}
