// Feeds any bytes to the parsers of the frames of the meeting and of the control plane, and frames of gathers
// to the hub. They may throw nzcl::Error and nothing else.
#include "nzcl/error.h"
#include "runtime/bootstrap/columns.h"
#include "runtime/bootstrap/frames.h"
#include "runtime/bootstrap/gather_board.h"
#include "runtime/bootstrap/meeting_point.h"
#include "runtime/bootstrap/regroup_board.h"
#include "runtime/bootstrap/regroup_member.h"
#include "runtime/bootstrap/similar_list.h"
#include "runtime/bootstrap/string_list.h"
#include "tests/fuzz/fuzz.h"

#include <array>
#include <string>
#include <utility>
#include <vector>

namespace nzcl::test {
namespace {

template <typename Parse>
void try_parse(Parse parse) {
  try {
    parse();
  } catch (const Error&) {
  }
}

using bootstrap::GatherBoard;
using bootstrap::GatherFrame;

std::string gather_seed(GatherFrame::Kind kind, std::vector<int> members, std::vector<std::string> parts) {
  return bootstrap::encode(GatherFrame{.kind = kind,
                                       .name = "split 1, color 2, round 0",
                                       .members = std::move(members),
                                       .parts = std::move(parts),
                                       .failure = {ErrorCode::system, "no memory"}});
}

constexpr std::size_t kMembers = 4;

std::string row_seed(const std::vector<std::string>& texts) { return bootstrap::Row(texts).encode(); }

/// A row says the same after it has been encoded once more, and each member is told what is meant for it.
void try_row(const std::string& text) {
  try_parse([&] {
    const auto row = bootstrap::Row::decode(text, kMembers);
    std::vector<std::string> texts;
    for (std::size_t member = 0; member < kMembers; ++member)
      texts.push_back(row.common() + row.ends()[row.end_of(member)]);
    bootstrap::Columns columns(kMembers);
    columns.add(row);
    columns.add(bootstrap::Row::decode(row_seed(texts), kMembers));
    const auto frames = std::move(columns).frames("x");
    for (std::size_t member = 0; member < kMembers; ++member) {
      const auto told = bootstrap::parse_gather_frame(frames[member].text(), kMembers).parts;
      if (told != std::vector<std::string>(2, texts[member])) __builtin_trap();
    }
  });
}

/// The hub gets the frame from every member, one of whom has left before. Each member is answered at most
/// once.
void try_gather(const std::string& text) {
  GatherBoard board({"rank 0", "rank 1", "rank 2", "rank 3"});
  std::array<int, kMembers> answered{};
  const auto count = [&](const GatherBoard::Answers& answers) {
    for (const auto& answer : answers) {
      if (++answered.at(answer.member) > 1) __builtin_trap();
      bootstrap::parse_gather_frame(answer.frame.text(), kMembers);
    }
  };
  count(board.left(3));
  for (std::size_t from = 0; from < 3; ++from)
    try_parse([&] { count(board.take(from, bootstrap::parse_gather_frame(text, kMembers))); });
  count(board.left(2));
}

/// The hub gets the state from two members, one of whom dies, and a member gets the verdict. A frame says the
/// same after it has been encoded once more.
void try_regroup(const std::string& text) {
  using bootstrap::RegroupFrame;
  try_parse([&] {
    const RegroupFrame frame = bootstrap::parse_regroup_frame(text, kMembers);
    const std::string again = bootstrap::encode(frame);
    if (bootstrap::encode(bootstrap::parse_regroup_frame(again, kMembers)) != again) __builtin_trap();
    if (frame.kind == RegroupFrame::Kind::state) {
      bootstrap::RegroupBoard board({"rank 0", "rank 1", "rank 2", "aggregator 0"},
                                    {false, false, false, true});
      const auto decide = [&board] {
        for (const auto& order : board.decide()) {
          for (const std::size_t member : order.to) {
            if (member >= kMembers) __builtin_trap();
          }
        }
      };
      for (const std::size_t member : {0u, 1u}) board.said(member, frame.state), decide();
      board.gone(0, true), decide();
      board.took_over(), decide();
      board.gone(2, false), decide();
      board.said(3, frame.state), decide();
      board.patience_is_over(), decide();
    } else if (frame.kind == RegroupFrame::Kind::verdict) {
      bootstrap::RegroupMember member;
      member.ready({});
      member.take(frame.verdict);
      member.take(frame.verdict);
    }
  });
}

}  // namespace

std::vector<std::string> fuzz_seeds() {
  bootstrap::RegroupState built{
      .attempt = 2, .members = {0, 1, 3}, .wish = {.leave_out = {2}}, .place = "p", .failure = {}};
  built.stage = bootstrap::RegroupState::Stage::built;
  bootstrap::RegroupState ready{.members = {}, .wish = {}, .late = true, .place = {}, .failure = {}};
  ready.stage = bootstrap::RegroupState::Stage::ready;
  bootstrap::RegroupState grows = ready;
  grows.wish.grow = 6;
  return {bootstrap::encode(bootstrap::RegroupFrame::of(built)),
          bootstrap::encode(bootstrap::RegroupFrame::of(ready)),
          bootstrap::encode(bootstrap::RegroupFrame::of(grows)),
          bootstrap::encode(bootstrap::RegroupFrame::of(
              bootstrap::RegroupVerdict{.attempt = 2, .members = {0, 1}, .failure = {}})),
          bootstrap::encode(bootstrap::RegroupFrame::of_place(2, "p")),
          "\0" + bootstrap::encode_strings({"a", "", "ccc"}),
          R"({"hosts":["10.0.0.1"],"host_id":"x","port":4711,"secret":"y"})",
          R"({"hosts":[],"host_id":"x","port":4711,"secret":"y"})",
          R"({"version":3,"session":"s","index":1,"size":2,"who":"rank 1"})",
          R"({"version":9,"session":"s","index":1,"size":2,"who":"rank 1","introduction":"{\"a\":1}"})",
          R"({"version":9,"session":"s","index":1,"size":2,"who":"rank 1","introduction":7})",
          R"({"session":"s","index":-1e300,"size":2,"who":"rank 1"})",
          bootstrap::encode_welcome(),
          bootstrap::encode_retry("s"),
          bootstrap::encode_refusal(Error(ErrorCode::mismatch, "no")),
          R"({"type":"met","key":"y"})",
          R"({"type":"failed","code":6,"text":"late"})",
          R"({"type":"abort","code":99,"text":"late"})",
          R"({"type":"all_bye"})",
          R"({"type":"bye","operations":3})",
          R"({"code":6,"text":"late"})",
          gather_seed(GatherFrame::Kind::part, {2, 0, 1}, {"part"}),
          gather_seed(GatherFrame::Kind::part, {0, 1, 3}, {""}),
          gather_seed(GatherFrame::Kind::part, {}, {"part"}),
          gather_seed(GatherFrame::Kind::row, {2, 0, 1}, {row_seed({"ab", "ac", "ad"})}),
          gather_seed(GatherFrame::Kind::row, {1, 2, 0}, {row_seed({"a", "a", "a"})}),
          row_seed({"ab", "ac", "ab", ""}),
          row_seed({"a", "a", "a", "a"}),
          bootstrap::encode_similar(std::vector<std::string>{"abcdefgh", "abXdefgh", "abXdefgh", "", "bd"}),
          bootstrap::encode_commons("x", bootstrap::encode_similar(std::vector<std::string>{"a", "ab"})) +
              bootstrap::encode_ends(bootstrap::encode_similar(std::vector<std::string>{"", "c"})),
          gather_seed(GatherFrame::Kind::late, {0, 1, 2}, {}),
          gather_seed(GatherFrame::Kind::failed, {0, 1, 2}, {}),
          gather_seed(GatherFrame::Kind::parts, {}, {"a", "b"})};
}

}  // namespace nzcl::test

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace nzcl;
  const std::string text(reinterpret_cast<const char*>(data), size);
  test::try_parse([&] { bootstrap::parse_hub_address(text); });
  test::try_parse([&] { bootstrap::parse_member_hello(text); });
  test::try_parse([&] { bootstrap::parse_hub_answer(text, "rank 0"); });
  test::try_parse([&] { static_cast<void>(bootstrap::parse_point(text)); });
  test::try_parse([&] { bootstrap::parse_control_frame(text); });
  test::try_parse([&] { static_cast<void>(bootstrap::parse_error(text)); });
  test::try_parse([&] { bootstrap::parse_gather_frame(text, test::kMembers); });
  test::try_gather(text);
  test::try_row(text);
  test::try_regroup(text);
  test::try_parse([&] {
    const auto strings = bootstrap::decode_similar(text, 1 << 10, 1 << 20);
    if (bootstrap::decode_similar(bootstrap::encode_similar(strings), 1 << 10, 1 << 20) != strings)
      __builtin_trap();
  });
  test::try_parse([&] {
    const auto parts = bootstrap::decode_strings(text);
    if (bootstrap::encode_strings(parts) != text) __builtin_trap();
  });
  return 0;
}
