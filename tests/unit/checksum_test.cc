// The optional checksum of messages.
#include "runtime/channel/checksum.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace nzcl::test {
namespace {

using engine::Checksum;
using engine::checksum_of;

TEST(Checksum, IsThatOfTheStandard) {
  const std::string_view digits = "123456789";
  EXPECT_EQ(checksum_of(std::as_bytes(std::span(digits))), 0xe3069283u);
  // RFC 3720, B.4.
  EXPECT_EQ(checksum_of(std::vector<std::byte>(32, std::byte{0})), 0x8a9136aau);
  EXPECT_EQ(checksum_of(std::vector<std::byte>(32, std::byte{0xff})), 0x62a8ab43u);
}

TEST(Checksum, OfPiecesIsThatOfTheWhole) {
  std::vector<std::byte> bytes(100000);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * i >> 3);
  for (const std::size_t cut : {0, 1, 7, 64, 4097, 99999}) {
    Checksum sum;
    sum.add(std::span(bytes).first(cut));
    sum.add(std::span(bytes).subspan(cut));
    EXPECT_EQ(sum.value(), checksum_of(bytes)) << cut;
  }
}

TEST(Checksum, FindsEveryBitThatIsChanged) {
  std::vector<std::byte> bytes(67, std::byte{0x5a});
  const std::uint32_t before = checksum_of(bytes);
  for (std::size_t i = 0; i < bytes.size() * 8; ++i) {
    bytes[i / 8] ^= std::byte{1} << i % 8;
    EXPECT_NE(checksum_of(bytes), before) << i;
    bytes[i / 8] ^= std::byte{1} << i % 8;
  }
}

}  // namespace
}  // namespace nzcl::test
