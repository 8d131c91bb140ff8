// Feeds any bytes to the decoders of index sets. A decoder refuses them, or gives the set of which they are
// the encoding.
#include "runtime/base/bitmap.h"
#include "runtime/kernels/elements.h"
#include "runtime/kernels/index_codec.h"
#include "runtime/kernels/offsets.h"
#include "tests/fuzz/fuzz.h"

namespace nzcl::test {
namespace {

void require(bool condition) {
  if (!condition) __builtin_trap();
}

using Words = std::vector<std::uint64_t>;
using Offsets = std::vector<std::uint16_t>;

/// Copies of exactly the size that is needed, so that a sanitizer notices what goes beyond it.
void run(FuzzInput input) {
  const std::size_t elements = std::size_t{input.value<std::uint16_t>()} + 1;
  const std::size_t count = input.value<std::uint16_t>();
  const auto code = input.value<std::uint8_t>();
  const std::string text = input.text();
  const std::span bytes = std::as_bytes(std::span(text));
  Words bitmap(words_for(elements));
  Offsets offsets(count);
  std::vector<std::byte> again(bytes.size());
  switch (code % 5) {
    case 0:
      if (!decode_bitmap(bytes, elements, count, bitmap)) return;
      encode_bitmap(bitmap, again);
      break;
    case 1:
      if (!decode_offsets(bytes, elements, offsets)) return;
      encode_offsets(offsets, again);
      break;
    case 2:
      if (!decode_gaps(bytes, elements, offsets)) return;
      require(gaps_bytes(offsets) == bytes.size());
      encode_gaps(offsets, again);
      break;
    case 3:
      if (!decode_runs(bytes, elements, count, bitmap)) return;
      require(runs_bytes(bitmap) == bytes.size());
      encode_runs(bitmap, elements, again);
      break;
    case 4:
      if (!decode_rice(bytes, elements, offsets)) return;
      require(rice_bytes(offsets, elements) == bytes.size());
      encode_rice(offsets, elements, again);
      break;
  }
  require(std::ranges::equal(again, bytes));
  // A decoded set is sound in both forms.
  if (code % 5 == 1 || code % 5 == 2 || code % 5 == 4) {
    require(are_offsets(offsets, elements));
    bitmap_of(offsets, bitmap);
  }
  require(count_bits(bitmap) == count);
  require((bitmap.back() & ~low_bits(elements - 64 * (bitmap.size() - 1))) == 0);
  Offsets listed(count);
  require(offsets_of(bitmap, listed) == count);
}

std::string seed(std::size_t elements, const Offsets& offsets, int code) {
  Words bitmap(words_for(elements));
  bitmap_of(offsets, bitmap);
  std::string text;
  append(text, static_cast<std::uint16_t>(elements - 1));
  append(text, static_cast<std::uint16_t>(offsets.size()));
  append(text, static_cast<std::uint8_t>(code));
  const std::size_t sizes[] = {bitmap_bytes(elements), offsets_bytes(offsets.size()), gaps_bytes(offsets),
                               runs_bytes(bitmap), rice_bytes(offsets, elements)};
  std::vector<std::byte> bytes(sizes[code]);
  if (code == 0) encode_bitmap(bitmap, bytes);
  if (code == 1) encode_offsets(offsets, bytes);
  if (code == 2) encode_gaps(offsets, bytes);
  if (code == 3) encode_runs(bitmap, elements, bytes);
  if (code == 4) encode_rice(offsets, elements, bytes);
  text.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  return text;
}

}  // namespace

std::vector<std::string> fuzz_seeds() {
  std::vector<std::string> seeds;
  for (int code = 0; code < 5; ++code) {
    seeds.push_back(seed(100, {0, 1, 2, 3, 7, 8, 9, 50, 51, 60, 61, 62, 63, 64, 65, 66, 99}, code));
    seeds.push_back(seed(65536, {0, 254, 509, 510, 900, 20'000, 65'535}, code));
    seeds.push_back(seed(1, {}, code));
  }
  return seeds;
}

}  // namespace nzcl::test

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  nzcl::test::run({data, size});
  return 0;
}
