#include "runtime/bootstrap/shrink_frames.h"

#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "runtime/base/json_text.h"
#include "runtime/bootstrap/frame_fields.h"

namespace nzcl::bootstrap {
namespace {

using nlohmann::json;

constexpr char kShrinkLetter = 'S';
constexpr const char* kShrinkFrame = "a frame about shrinking";
// In the order of the enumerators.
constexpr std::array kStages{"away", "ready", "building", "built", "failed", "committed"};
constexpr std::array kVerdicts{"begin", "again", "commit", "refuse"};

template <typename Kind, std::size_t kCount>
Kind read_kind(const json& j, const char* name, const std::array<const char*, kCount>& names) {
  const std::string text = j.at(name).get<std::string>();
  for (std::size_t i = 0; i < kCount; ++i) {
    if (text == names[i]) return static_cast<Kind>(i);
  }
  reject_field(kShrinkFrame, fmt::format("{} is of no known kind", name));
}

std::vector<int> read_members(const json& j, const char* name, std::size_t members) {
  std::vector<int> all = read_positions(j.at(name));
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (static_cast<std::size_t>(all[i]) >= members || (i > 0 && all[i] <= all[i - 1]))
      reject_field(kShrinkFrame, fmt::format("{} is no list of positions", name));
  }
  return all;
}

std::uint64_t read_attempt(const json& j) {
  return static_cast<std::uint64_t>(number(j, "attempt", 0, INT64_MAX));
}

ShrinkState read_state(const json& j, std::size_t members) {
  ShrinkState state{.stage = read_kind<ShrinkState::Stage>(j, "stage", kStages),
                    .attempt = read_attempt(j),
                    .members = read_members(j, "members", members),
                    .leave_out = read_members(j, "leave_out", members),
                    .minority = j.at("minority").get<bool>(),
                    .late = j.at("late").get<bool>(),
                    .place = j.at("place").get<std::string>(),
                    .failure = {}};
  if (state.stage == ShrinkState::Stage::failed) state.failure = read_failure(j);
  return state;
}

ShrinkVerdict read_verdict(const json& j, std::size_t members) {
  ShrinkVerdict verdict{.kind = read_kind<ShrinkVerdict::Kind>(j, "verdict", kVerdicts),
                        .attempt = read_attempt(j),
                        .members = read_members(j, "members", members),
                        .failure = {}};
  if (verdict.kind == ShrinkVerdict::Kind::refuse) verdict.failure = read_failure(j);
  return verdict;
}

void add_failure(json& j, const Failure& failure) {
  j["code"] = static_cast<int>(failure.code);
  j["text"] = failure.text;
}

}  // namespace

ShrinkFrame ShrinkFrame::of(ShrinkState state) {
  return {.kind = Kind::state, .state = std::move(state), .verdict = {}, .attempt = 0, .place = {}};
}
ShrinkFrame ShrinkFrame::of(ShrinkVerdict verdict) {
  return {.kind = Kind::verdict, .state = {}, .verdict = std::move(verdict), .attempt = 0, .place = {}};
}
ShrinkFrame ShrinkFrame::of_place(std::uint64_t attempt, std::string place) {
  return {.kind = Kind::place, .state = {}, .verdict = {}, .attempt = attempt, .place = std::move(place)};
}

bool is_shrink_frame(std::string_view text) { return text.starts_with(kShrinkLetter); }

namespace {

json json_of(const ShrinkState& state) {
  json j{{"is", "state"},
         {"stage", kStages[static_cast<std::size_t>(state.stage)]},
         {"attempt", state.attempt},
         {"members", state.members},
         {"leave_out", state.leave_out},
         {"minority", state.minority},
         {"late", state.late},
         {"place", state.place}};
  if (state.stage == ShrinkState::Stage::failed) add_failure(j, state.failure);
  return j;
}

json json_of(const ShrinkVerdict& verdict) {
  json j{{"is", "verdict"},
         {"verdict", kVerdicts[static_cast<std::size_t>(verdict.kind)]},
         {"attempt", verdict.attempt},
         {"members", verdict.members}};
  if (verdict.kind == ShrinkVerdict::Kind::refuse) add_failure(j, verdict.failure);
  return j;
}

json json_of(const ShrinkFrame& frame) {
  switch (frame.kind) {
    case ShrinkFrame::Kind::state:
      return json_of(frame.state);
    case ShrinkFrame::Kind::verdict:
      return json_of(frame.verdict);
    case ShrinkFrame::Kind::place:
      break;
  }
  return {{"is", "place"}, {"attempt", frame.attempt}, {"place", frame.place}};
}

}  // namespace

std::string encode(const ShrinkFrame& frame) { return kShrinkLetter + json_text(json_of(frame)); }

ShrinkFrame parse_shrink_frame(std::string_view text, std::size_t members) {
  if (!is_shrink_frame(text)) reject_field(kShrinkFrame, "its first letter is another one");
  return read_json(kShrinkFrame, text.substr(1), [members](const json& j) {
    const std::string is = j.at("is").get<std::string>();
    if (is == "state") return ShrinkFrame::of(read_state(j, members));
    if (is == "verdict") return ShrinkFrame::of(read_verdict(j, members));
    if (is == "place") return ShrinkFrame::of_place(read_attempt(j), j.at("place").get<std::string>());
    reject_field(kShrinkFrame, "it is of no known kind");
  });
}

}  // namespace nzcl::bootstrap
