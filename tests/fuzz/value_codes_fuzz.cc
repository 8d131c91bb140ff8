// Feeds any bytes to the decoders of compressed values. A decoder refuses them, or gives values that are such
// as an encoder makes.
#include <cmath>

#include "runtime/compress/qsgd.h"
#include "runtime/tile/value_codec.h"
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

/// The values of a tile, as a receiver reads them.
void run_tile(std::uint32_t bits, std::span<const std::byte> bytes) {
  const auto descriptor = wire::TileDescriptor::decode(bits);
  if (!descriptor || descriptor->count == 0) return;
  const char* wrong = nullptr;
  const wire::TileParts parts(bytes, 0);
  const std::uint64_t size = wire::coded_bytes(*descriptor, DataType::float32, parts, wrong);
  if (wrong != nullptr || size != bytes.size()) return;
  const wire::Tile tile{.count = descriptor->count,
                        .index_code = descriptor->index,
                        .value_code = descriptor->value,
                        .parameter = descriptor->parameter,
                        .values = bytes,
                        .index = {}};
  std::vector<float> values(descriptor->count);
  if (!engine::decode_values(tile, values) || descriptor->value != wire::ValueCode::signs) return;
  std::vector<std::byte> again(values.size() * sizeof(float));
  const auto coded = engine::encode_values(values, {.code = wire::ValueCode::signs}, again);
  if (!coded) return;  // it would not be shorter
  require(coded->parameter == descriptor->parameter && coded->bytes == bytes.size());
  require(std::equal(bytes.begin(), bytes.end(), again.begin()));
}

/// Copies of exactly the size that is needed, so that a sanitizer notices what goes beyond it.
void run(FuzzInput input) {
  const auto code = input.value<std::uint8_t>();
  const std::size_t count = input.value<std::uint16_t>();
  const auto descriptor = input.value<std::uint32_t>();
  const std::string text = input.text();
  const std::span bytes = std::as_bytes(std::span(text));
  if (code % 4 < 3) {
    const std::size_t bucket = kBuckets[code / 4 % 4];
    run_qsgd({.bits = 2 << code % 4, .bucket = bucket, .skipped = code / 16u % bucket}, bytes, count);
  } else {
    run_tile(descriptor, bytes);
  }
}

void append_bytes(std::string& text, const std::vector<std::byte>& bytes) {
  text.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

std::string start(int code, std::size_t count, std::uint32_t descriptor) {
  std::string text;
  append(text, static_cast<std::uint8_t>(code));
  append(text, static_cast<std::uint16_t>(count));
  append(text, descriptor);
  return text;
}

std::string qsgd_seed(int code, const std::vector<float>& values) {
  const QsgdFormat format{.bits = 2 << code % 4, .bucket = kBuckets[code / 4 % 4]};
  std::vector<std::byte> bytes(qsgd_bytes(format, values.size()));
  qsgd_encode(format, values, 1, bytes);
  std::string text = start(code, values.size(), 0);
  append_bytes(text, bytes);
  return text;
}

/// A tile's descriptor and its values.
std::string tile_seed(const std::vector<float>& values, const engine::ValueCoding& coding) {
  std::vector<std::byte> bytes(values.size() * sizeof(float));
  const auto coded = engine::encode_values(values, coding, bytes);
  require(coded.has_value());
  bytes.resize(coded->bytes);
  const wire::TileDescriptor descriptor{static_cast<std::uint32_t>(values.size()), wire::IndexCode::all,
                                        coded->code, coded->parameter};
  std::string text = start(3, 0, descriptor.encode());
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
  const std::vector<float> scales{2.0f, 1.0f};
  seeds.push_back(
      tile_seed({1, 1, -1, 1, -1, 1, 1, 1, 2, -2, 2, 2, 2, 2, 2}, {.code = wire::ValueCode::signs}));
  seeds.push_back(tile_seed(std::vector<float>(100, -0.0f), {.code = wire::ValueCode::signs}));
  seeds.push_back(tile_seed({1, 2, 0.5f}, {.code = wire::ValueCode::float16}));
  seeds.push_back(tile_seed({1, 2, 0.5f}, {.code = wire::ValueCode::bfloat16}));
  for (const int bits : {2, 4, 8}) {
    std::vector<float> values(20, 0.0f);
    values[1] = 2, values[19] = -1;
    seeds.push_back(tile_seed(
        values,
        {.code = wire::ValueCode::levels, .bits = bits, .bucket = 16, .skipped = 5, .scales = scales}));
  }
  return seeds;
}

}  // namespace nzcl::test

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  nzcl::test::run({data, size});
  return 0;
}
