// Compares the description of the wire format, runtime/wire/README.md, with the code.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <array>
#include <cstddef>
#include <cstring>
#include <fstream>
#include <map>
#include <regex>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include "nzcl/types.h"
#include "runtime/wire/batch.h"
#include "runtime/wire/immediate.h"
#include "runtime/wire/message.h"
#include "runtime/wire/seal.h"
#include "runtime/wire/tile.h"

namespace nzcl::wire {
namespace {

struct Place {
  std::size_t offset, bytes;
  friend bool operator==(const Place&, const Place&) = default;
  friend void PrintTo(const Place& p, std::ostream* out) { *out << p.bytes << " bytes at " << p.offset; }
};

std::vector<std::string> section(const std::string& title) {
  std::ifstream file(NZCL_SOURCE_DIR "/runtime/wire/README.md");
  std::vector<std::string> lines;
  bool inside = false;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("## ")) inside = line == "## " + title;
    if (inside) lines.push_back(line);
  }
  return lines;
}

std::map<std::string, Place> documented(const std::string& title) {
  std::map<std::string, Place> fields;
  const std::regex row(R"(\| (\d+) \| (\d+) \| (\w+) \|.*)");
  for (const std::string& line : section(title)) {
    std::smatch m;
    if (std::regex_match(line, m, row)) fields[m[3]] = {std::stoul(m[1]), std::stoul(m[2])};
  }
  return fields;
}

#define NZCL_FIELD(type, name)                                \
  {                                                           \
#name, Place { offsetof(type, name), sizeof(type::name) } \
  }

TEST(WireDocument, Header) {
  const std::map<std::string, Place> code{
      NZCL_FIELD(Header, magic),         NZCL_FIELD(Header, version),       NZCL_FIELD(Header, flags),
      NZCL_FIELD(Header, credit),        NZCL_FIELD(Header, epoch),         NZCL_FIELD(Header, slice),
      NZCL_FIELD(Header, sequence),      NZCL_FIELD(Header, stream_offset), NZCL_FIELD(Header, bitmap_bytes),
      NZCL_FIELD(Header, payload_bytes), NZCL_FIELD(Header, direct_writes), NZCL_FIELD(Header, refused_by),
      NZCL_FIELD(Header, refusal_code),  NZCL_FIELD(Header, tiles),         NZCL_FIELD(Header, entries),
      NZCL_FIELD(Header, reserved)};
  EXPECT_EQ(documented("Header"), code);
}

TEST(WireDocument, OperationRecord) {
  const std::map<std::string, Place> code{
      NZCL_FIELD(OperationRecord, count),         NZCL_FIELD(OperationRecord, block_elems),
      NZCL_FIELD(OperationRecord, type),          NZCL_FIELD(OperationRecord, op),
      NZCL_FIELD(OperationRecord, packed_result), NZCL_FIELD(OperationRecord, value_rule),
      NZCL_FIELD(OperationRecord, collective),    NZCL_FIELD(OperationRecord, root_or_density),
      NZCL_FIELD(OperationRecord, algorithm),     NZCL_FIELD(OperationRecord, output_address),
      NZCL_FIELD(OperationRecord, output_key),    NZCL_FIELD(OperationRecord, tag),
      NZCL_FIELD(OperationRecord, chunk_count),   NZCL_FIELD(OperationRecord, checksum)};
  EXPECT_EQ(documented("Operation record"), code);
}

TEST(WireDocument, Batches) {
  const std::map<std::string, Place> code{NZCL_FIELD(BatchEntry, payload_bytes),
                                          NZCL_FIELD(BatchEntry, refusal_code),
                                          NZCL_FIELD(BatchEntry, reserved)};
  EXPECT_EQ(documented("Batches"), code);
}

TEST(WireDocument, FieldsLeaveNoGap) {
  for (const auto& [title, bytes] : {std::pair{"Header", sizeof(Header)},
                                     {"Operation record", sizeof(OperationRecord)},
                                     {"Batches", sizeof(BatchEntry)}}) {
    std::size_t sum = 0;
    for (const auto& [name, place] : documented(title)) sum += place.bytes;
    EXPECT_EQ(sum, bytes) << title;
  }
}

TEST(WireDocument, Example) {
  std::string expected, text;
  for (const std::string& line : section("Example")) {
    if (std::regex_match(line, std::regex("([0-9a-f]{2} ?){1,16}"))) expected += line + "\n";
    text += line + "\n";
  }
  const Header header{.flags = kHasBitmap,
                      .credit = 3,
                      .epoch = 7,
                      .slice = 0,
                      .sequence = 7,
                      .stream_offset = 0,
                      .bitmap_bytes = 8,
                      .payload_bytes = 1024 + (1000 - 3 * 256) * 4};
  OperationRecord record{.count = 1000,
                         .block_elems = 256,
                         .type = static_cast<std::uint8_t>(DataType::float32),
                         .op = static_cast<std::uint8_t>(ReduceOp::sum),
                         .packed_result = 0};
  record.output_address = 0x7f0000001000;
  record.output_key = 5;
  const std::uint64_t bitmap = 0b1001;
  std::vector<unsigned char> bytes(sizeof header + sizeof record + sizeof bitmap);
  std::memcpy(bytes.data(), &header, sizeof header);
  std::memcpy(bytes.data() + sizeof header, &record, sizeof record);
  std::memcpy(bytes.data() + sizeof header + sizeof record, &bitmap, sizeof bitmap);
  std::string actual;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    char two[4];
    std::snprintf(two, sizeof two, "%02x%c", bytes[i], i % 16 == 15 ? '\n' : ' ');
    actual += two;
  }
  actual.back() = '\n';
  EXPECT_EQ(actual, expected);

  const std::uint32_t immediate =
      encode({Immediate::Kind::message, {2, Direction::up, Priority::express}, 3});
  std::ostringstream hex;
  hex << "`0x" << std::hex;
  hex.fill('0');
  hex.width(8);
  hex << immediate << "`";
  EXPECT_THAT(text, testing::HasSubstr(hex.str()));
}

std::string hex(std::span<const std::byte> bytes) {
  std::string text;
  for (std::size_t i = 0; i < bytes.size(); ++i)
    text += fmt::format("{:02x}{}", static_cast<unsigned>(bytes[i]), i % 16 == 15 ? '\n' : ' ');
  return text;
}

TEST(WireDocument, TileExample) {
  std::string expected;
  for (const std::string& line : section("Tiles")) {
    if (std::regex_match(line, std::regex("([0-9a-f]{2} ?){1,16}"))) expected += line + "\n";
  }
  const std::array<std::uint16_t, 2> offsets{3, 60};
  const std::array<float, 2> values{1.5f, -2.0f};
  std::array<std::byte, 16> bytes{};
  const std::uint32_t descriptor = TileDescriptor{2, IndexCode::offsets, ValueCode::as_is}.encode();
  std::memcpy(bytes.data(), &descriptor, 4);
  std::memcpy(bytes.data() + 4, values.data(), 8);
  std::memcpy(bytes.data() + 12, offsets.data(), 4);
  EXPECT_EQ(hex(bytes), expected);
  const char* wrong = nullptr;
  const auto tile = read_tile(bytes, 0, DataType::float32, 64, wrong);
  ASSERT_TRUE(tile) << wrong;
  EXPECT_EQ(tile->count, 2u);
  EXPECT_EQ(tile->values.data(), bytes.data() + 4);
  EXPECT_EQ(tile->index.data(), bytes.data() + 12);
  EXPECT_EQ(tile->end, 16u);
}

/// The numbers and names of a table of codes, which begins with `head`.
std::map<std::string, int> documented_codes(const std::string& head) {
  std::map<std::string, int> codes;
  const std::regex row(R"(\| (\d) (\w+) \|.*)");
  bool inside = false;
  for (const std::string& line : section("Tiles")) {
    if (line.starts_with("| " + head + " |")) inside = true;
    if (line.empty()) inside = false;
    std::smatch m;
    if (inside && std::regex_match(line, m, row)) codes[m[2]] = std::stoi(m[1]);
  }
  return codes;
}

TEST(WireDocument, IndexCodes) {
  const std::map<std::string, int> code{
      {"none", static_cast<int>(IndexCode::none)},     {"all", static_cast<int>(IndexCode::all)},
      {"bitmap", static_cast<int>(IndexCode::bitmap)}, {"offsets", static_cast<int>(IndexCode::offsets)},
      {"gaps", static_cast<int>(IndexCode::gaps)},     {"runs", static_cast<int>(IndexCode::runs)},
      {"rice", static_cast<int>(IndexCode::rice)},     {"drawn", static_cast<int>(IndexCode::drawn)}};
  EXPECT_EQ(documented_codes("index code"), code);
}

TEST(WireDocument, ValueCodes) {
  const std::map<std::string, int> code{{"as_is", static_cast<int>(ValueCode::as_is)},
                                        {"float16", static_cast<int>(ValueCode::float16)},
                                        {"bfloat16", static_cast<int>(ValueCode::bfloat16)},
                                        {"signs", static_cast<int>(ValueCode::signs)},
                                        {"levels", static_cast<int>(ValueCode::levels)}};
  EXPECT_EQ(documented_codes("value code"), code);
}

RC_GTEST_PROP(Tile, AnyBytesAreATileWithinThemOrAreRefused, (std::vector<std::uint8_t> bytes)) {
  const TileShape shape(*rc::gen::inRange<std::uint64_t>(1, 300),
                        *rc::gen::element<std::uint64_t>(1, 2, 3, 64));
  const auto type = static_cast<DataType>(*rc::gen::inRange(0, kDataTypes));
  if (bytes.size() >= 4 && *rc::gen::arbitrary<bool>()) {  // a descriptor that is more likely to be right
    const std::uint32_t descriptor = TileDescriptor{*rc::gen::inRange<std::uint32_t>(0, 6),
                                                    static_cast<IndexCode>(*rc::gen::inRange(0, 7)),
                                                    static_cast<ValueCode>(*rc::gen::inRange(0, 5)),
                                                    *rc::gen::element<std::uint32_t>(0, 1, 2, 4, 8, 20)}
                                         .encode();
    std::memcpy(bytes.data(), &descriptor, 4);
  }
  const std::span<const std::byte> payload = std::as_bytes(std::span(bytes));
  const char* wrong = nullptr;
  const auto tile = read_tile(payload, 0, type, shape, wrong);
  RC_ASSERT(tile.has_value() == (wrong == nullptr));
  if (!tile) return;
  const auto inside = [&](std::span<const std::byte> part) {
    return part.empty() ||
           (part.data() >= payload.data() && part.data() + part.size() <= payload.data() + payload.size());
  };
  RC_ASSERT(inside(tile->values) && inside(tile->index) && tile->end <= payload.size() && tile->end >= 4);
  if (tile->listed) {
    RC_ASSERT(shape.unit == 1 && tile->count <= tile->tiles * shape.elements);
    RC_ASSERT(tile->values.size() == tile->count * element_bytes(type));
    RC_ASSERT(tile->index.size() == tile->count * sizeof(std::uint32_t));
    return;
  }
  RC_ASSERT(shape.can_hold(tile->count));
  if (tile->index_code == IndexCode::offsets)
    RC_ASSERT(tile->index.size() == 2 * shape.units_of(tile->count));
  if (tile->value_code < ValueCode::signs)
    RC_ASSERT(tile->values.size() == tile->count * value_bytes(type, tile->value_code));
}

TEST(Immediate, BitsAreWhereTheDocumentSays) {
  EXPECT_EQ(encode({Immediate::Kind::credit, {0, Direction::up, Priority::bulk}, 0}), 2u << 30);
  EXPECT_EQ(encode({Immediate::Kind::message, {0xfff, Direction::up, Priority::bulk}, 0}), 0xfffu << 18);
  EXPECT_EQ(encode({Immediate::Kind::message, {0, Direction::down, Priority::bulk}, 0}), 1u << 17);
  EXPECT_EQ(encode({Immediate::Kind::message, {0, Direction::up, Priority::express}, 0}), 1u << 16);
  EXPECT_EQ(encode({Immediate::Kind::message, {0, Direction::up, Priority::bulk}, 0xffff}), 0xffffu);
  EXPECT_EQ(encode({Immediate::Kind::message, {5, Direction::up, Priority::doubling}, 3}),
            3u << 30 | 5u << 18 | 3u);
  EXPECT_EQ(encode({Immediate::Kind::credit, {5, Direction::up, Priority::doubling}, 3}),
            3u << 30 | 5u << 18 | 1u << 17 | 3u);
  EXPECT_EQ(encode({Immediate::Kind::message, {5, Direction::up, Priority::merging}, 3}),
            3u << 30 | 5u << 18 | 1u << 16 | 3u);
  EXPECT_EQ(encode({Immediate::Kind::credit, {5, Direction::up, Priority::merging}, 3}),
            3u << 30 | 5u << 18 | 3u << 16 | 3u);
  static_assert(kMaxMembers == 1 << 12);
}

RC_GTEST_PROP(Immediate, EveryThirtyTwoBitsDecodeAndComeBack, (std::uint32_t bits)) {
  RC_ASSERT(encode(decode(bits)) == bits);
}

RC_GTEST_PROP(Immediate, ComesBackFromTheWire, ()) {
  const Immediate imm{
      *rc::gen::element(Immediate::Kind::message, Immediate::Kind::direct, Immediate::Kind::credit),
      {*rc::gen::inRange<std::uint16_t>(0, kMaxMembers), *rc::gen::element(Direction::up, Direction::down),
       *rc::gen::element(Priority::bulk, Priority::express)},
      *rc::gen::arbitrary<std::uint16_t>()};
  RC_ASSERT(decode(encode(imm)) == imm);
}

RC_GTEST_PROP(Immediate, BetweenRanksComesBackFromTheWire, ()) {
  const Immediate imm{*rc::gen::element(Immediate::Kind::message, Immediate::Kind::credit),
                      {*rc::gen::inRange<std::uint16_t>(0, kMaxMembers), Direction::up,
                       *rc::gen::element(Priority::doubling, Priority::merging)},
                      *rc::gen::arbitrary<std::uint16_t>()};
  RC_ASSERT(decode(encode(imm)) == imm);
}

TEST(OperationRecord, SameOperationLooksAtEverythingButTheOutput) {
  const OperationRecord a{.count = 10, .block_elems = 2, .type = 1, .op = 1, .packed_result = 0};
  OperationRecord b = a;
  b.output_address = 77;
  b.output_key = 3;
  EXPECT_TRUE(a.same_operation(b));
  for (const auto change :
       {+[](OperationRecord& r) { ++r.count; }, +[](OperationRecord& r) { ++r.block_elems; },
        +[](OperationRecord& r) { ++r.type; }, +[](OperationRecord& r) { ++r.op; },
        +[](OperationRecord& r) { ++r.packed_result; }, +[](OperationRecord& r) { ++r.root_or_density; },
        +[](OperationRecord& r) { ++r.checksum; },
        +[](OperationRecord& r) { r.value_rule = ValueRule::coded; },
        +[](OperationRecord& r) { r.algorithm = Algorithm::doubling; },
        +[](OperationRecord& r) { r.algorithm = Algorithm::merging; },
        +[](OperationRecord& r) { r.collective = Collective::reduce; }}) {
    OperationRecord c = a;
    change(c);
    EXPECT_FALSE(a.same_operation(c));
  }
}

TEST(OperationRecord, ARefusalNeedsTheSameRootAndNotTheSameDensity) {
  OperationRecord a{.count = 10, .block_elems = 2}, b = a;
  b.root_or_density = Density::of_share(0.5).code();
  EXPECT_EQ(a.root(), 0);
  EXPECT_FALSE(a.density().known());
  EXPECT_EQ(b.root(), 0) << "an allreduce has none";
  EXPECT_EQ(b.density(), Density::of_share(0.5));
  EXPECT_FALSE(a.same_operation(b));
  EXPECT_TRUE(a.same_layout(b));
  a.collective = b.collective = Collective::broadcast;
  a.root_or_density = 1, b.root_or_density = 2;
  EXPECT_EQ(b.root(), 2);
  EXPECT_FALSE(b.density().known()) << "nothing depends on it";
  EXPECT_FALSE(a.same_layout(b));
}

TEST(OperationRecord, ARefusalNeedsTheSameRuleOfValues) {
  const OperationRecord a{.count = 1000000, .block_elems = 256};
  OperationRecord b = a;
  b.value_rule = ValueRule::float16;
  EXPECT_FALSE(a.same_layout(b)) << "one of them is cut into tiles";
}

TEST(Density, KeepsWhatItSaysWithinTwoPartsInTenThousand) {
  EXPECT_FALSE(Density().known());
  EXPECT_FALSE(Density::of_share(0).known());
  EXPECT_EQ(Density::of_share(1).share(), 1);
  EXPECT_EQ(Density::of_share(0.25).share(), 0.25);
  double last = 0;
  for (double share = 1; share > 1e-9; share *= 0.9) {
    const Density d = Density::of_share(share);
    EXPECT_TRUE(d.known());
    EXPECT_NEAR(d.share() / share, 1, 2e-4);
    EXPECT_NE(d.share(), last) << "they can be told apart";
    last = d.share();
    EXPECT_EQ(Density::of_code(d.code()), d);
  }
  EXPECT_EQ(Density::of_share(1e-300).code(), 1) << "the least share, and not unknown";
  for (unsigned code = 1; code < 65536; ++code) {
    const Density d = Density::of_code(static_cast<std::uint16_t>(code));
    ASSERT_GT(d.share(), 0);
    ASSERT_LE(d.share(), 1);
    ASSERT_EQ(Density::of_share(d.share()), d) << code;
  }
}

// --- The seal

constexpr std::uint64_t kSecret = 0x0123456789abcdef;
constexpr std::uint64_t kSlot = 512;

/// A slot that holds a message up of two sections and its seal, with other bytes behind.
struct SealedSlot {
  std::array<std::byte, kSlot + kSealBytes> bytes;
  std::uint64_t end = 0;

  SealedSlot() {
    bytes.fill(std::byte{0xaa});
    Header first{.flags = kHasBitmap | kMore, .epoch = 3, .sequence = 9};
    first.bitmap_bytes = 8, first.payload_bytes = 13;
    std::memcpy(bytes.data(), &first, sizeof first);
    const std::uint64_t second_at =
        aligned_section(sizeof(Header) + sizeof(OperationRecord) + first.bitmap_bytes + first.payload_bytes);
    const Header second{.sequence = 10, .payload_bytes = 21};
    std::memcpy(bytes.data() + second_at, &second, sizeof second);
    end = second_at + sizeof second + second.payload_bytes;
    put_seal(seal_of(kSecret, bytes.data(), end), bytes.data() + end);
  }
  bool sealed(std::uint64_t secret = kSecret) const {
    return find_seal({.secret = secret}, bytes.data(), kSlot, Direction::up).has_value();
  }
};

TEST(Seal, StandsBehindTheLastSection) {
  const SealedSlot slot;
  EXPECT_EQ(message_end(slot.bytes.data(), kSlot, Direction::up), slot.end);
  EXPECT_TRUE(slot.sealed());
  EXPECT_FALSE(slot.sealed(kSecret + 1)) << "of another lane";
}

TEST(Seal, IsOfThisMessageAlone) {
  for (std::size_t byte = 0; byte < sizeof(Header); ++byte) {
    SealedSlot slot;
    slot.bytes[byte] ^= std::byte{1};
    EXPECT_FALSE(slot.sealed()) << "byte " << byte << " of the header is that of another message";
  }
}

TEST(Seal, IsNotThereBeforeTheLastByteIs) {
  for (std::size_t landed = 0; landed < SealedSlot().end + kSealBytes; ++landed) {
    SealedSlot slot;
    std::fill(slot.bytes.begin() + static_cast<std::ptrdiff_t>(landed), slot.bytes.end(), std::byte{0});
    EXPECT_FALSE(slot.sealed()) << "only " << landed << " bytes have landed in an empty slot";
  }
}

TEST(Seal, CarriesAChecksumWhereItsLaneSaysSo) {
  SealedSlot slot;
  const Sealing sealing{.secret = kSecret, .checksum = true};
  const std::uint64_t seal = with_checksum(seal_of(kSecret, slot.bytes.data(), slot.end), 0x12345678);
  put_seal(seal, slot.bytes.data() + slot.end);
  const auto found = find_seal(sealing, slot.bytes.data(), kSlot, Direction::up);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->at, slot.end);
  EXPECT_EQ(found->checksum, 0x12345678u);
  EXPECT_FALSE(slot.sealed()) << "of a lane whose messages carry none";
  slot.bytes[slot.end + 7] ^= std::byte{1};
  EXPECT_FALSE(find_seal(sealing, slot.bytes.data(), kSlot, Direction::up)) << "it is not all there";
}

TEST(Seal, IsNotLookedForBehindTheSlot) {
  SealedSlot slot;
  Header header;
  std::memcpy(&header, slot.bytes.data(), sizeof header);
  header.payload_bytes = 0xffffffff, header.bitmap_bytes = 0xffffffff;
  std::memcpy(slot.bytes.data(), &header, sizeof header);
  EXPECT_EQ(message_end(slot.bytes.data(), kSlot, Direction::up), std::nullopt);
  EXPECT_FALSE(slot.sealed());
  std::array<std::byte, 64> room{};  // of a slot that holds nothing but zeros: one empty section fills it
  EXPECT_EQ(message_end(room.data(), 64, Direction::down), 64u);
  EXPECT_EQ(message_end(room.data(), 63, Direction::down), std::nullopt);
}

TEST(Seal, StandsBehindABatch) {
  std::array<std::byte, kSlot> slot{};
  const Header own{.flags = kHasBitmap | kMore, .bitmap_bytes = 8, .payload_bytes = 4};
  const Header batch{.flags = kBatch, .payload_bytes = 32};
  std::memcpy(slot.data(), &own, sizeof own);
  std::memcpy(slot.data() + kMaxOverhead + 16, &batch, sizeof batch);
  EXPECT_EQ(message_end(slot.data(), kSlot, Direction::up), kMaxOverhead + 16 + sizeof batch + 32);
}

}  // namespace
}  // namespace nzcl::wire
