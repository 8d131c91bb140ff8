#include "runtime/kernels/stream_copy.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "each_target.h"
#include "runtime/base/cold_memory.h"

namespace nzcl {
namespace {

using test::on_each_target;

/// Sizes around one and many lines, beginning at many offsets within a line, on both sides.
TEST(StreamCopy, CopiesAllOfARunAndNothingElse) {
  constexpr std::byte kUntouched{0xee};
  std::vector<std::byte> from(20'000);
  for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::byte>(i * 7 % 251);
  on_each_target([&] {
    for (const std::size_t bytes : {0, 1, 63, 64, 65, 127, 128, 4096, 16'384, 18'333}) {
      for (std::size_t begin = 0; begin < kCacheLine; begin += 7) {
        std::vector<std::byte> to(bytes + 3 * kCacheLine, kUntouched), expected = to;
        const std::byte* const source = from.data() + (begin * 5) % kCacheLine;
        std::copy_n(source, bytes, expected.begin() + static_cast<std::ptrdiff_t>(begin));
        copy_past_caches(to.data() + begin, source, bytes);
        ASSERT_EQ(to, expected) << bytes << " bytes at " << begin;
      }
    }
  });
}

}  // namespace
}  // namespace nzcl
