#include "runtime/bootstrap/regroup_frames.h"

#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "runtime/base/json_text.h"
#include "runtime/bootstrap/frame_fields.h"

namespace nzcl::bootstrap {
namespace {

using nlohmann::json;

constexpr char kRegroupLetter = 'S';
constexpr const char* kRegroupFrame = "a frame about regrouping";
// In the order of the enumerators.
constexpr std::array kStages{"away", "ready", "building", "built", "failed", "committed"};
constexpr std::array kVerdicts{"begin", "again", "commit", "refuse", "leave out"};

template <typename Kind, std::size_t kCount>
Kind read_kind(const json& j, const char* name, const std::array<const char*, kCount>& names) {
  const std::string text = j.at(name).get<std::string>();
  for (std::size_t i = 0; i < kCount; ++i) {
    if (text == names[i]) return static_cast<Kind>(i);
  }
  reject_field(kRegroupFrame, fmt::format("{} is of no known kind", name));
}

std::vector<int> read_members(const json& j, const char* name, std::size_t members) {
  std::vector<int> all = read_positions(j.at(name));
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (static_cast<std::size_t>(all[i]) >= members || (i > 0 && all[i] <= all[i - 1]))
      reject_field(kRegroupFrame, fmt::format("{} is no list of positions", name));
  }
  return all;
}

/// A number of workers. Whether it is a possible one is for those to say who meet.
int read_grow(const json& j, const char* name) { return static_cast<int>(number(j, name, 0, INT32_MAX)); }

std::uint64_t read_attempt(const json& j) {
  return static_cast<std::uint64_t>(number(j, "attempt", 0, INT64_MAX));
}

RegroupState read_state(const json& j, std::size_t members) {
  RegroupState state{.stage = read_kind<RegroupState::Stage>(j, "stage", kStages),
                     .attempt = read_attempt(j),
                     .members = read_members(j, "members", members),
                     .grow = read_grow(j, "grow"),
                     .wish = {.leave_out = read_members(j, "leave_out", members),
                              .minority = j.at("minority").get<bool>(),
                              .grow = read_grow(j, "wants"),
                              .whole = j.at("whole").get<bool>()},
                     .late = j.at("late").get<bool>(),
                     .place = j.at("place").get<std::string>(),
                     .failure = {}};
  if (state.stage == RegroupState::Stage::failed) state.failure = read_failure(j);
  return state;
}

RegroupVerdict read_verdict(const json& j, std::size_t members) {
  RegroupVerdict verdict{.kind = read_kind<RegroupVerdict::Kind>(j, "verdict", kVerdicts),
                         .attempt = read_attempt(j),
                         .members = read_members(j, "members", members),
                         .grow = read_grow(j, "grow"),
                         .failure = {}};
  if (verdict.fails()) verdict.failure = read_failure(j);
  return verdict;
}

void add_failure(json& j, const Failure& failure) {
  j["code"] = static_cast<int>(failure.code);
  j["text"] = failure.text;
}

}  // namespace

RegroupFrame RegroupFrame::of(RegroupState state) {
  return {.kind = Kind::state, .state = std::move(state), .verdict = {}, .attempt = 0, .place = {}};
}
RegroupFrame RegroupFrame::of(RegroupVerdict verdict) {
  return {.kind = Kind::verdict, .state = {}, .verdict = std::move(verdict), .attempt = 0, .place = {}};
}
RegroupFrame RegroupFrame::of_place(std::uint64_t attempt, std::string place) {
  return {.kind = Kind::place, .state = {}, .verdict = {}, .attempt = attempt, .place = std::move(place)};
}

bool is_regroup_frame(std::string_view text) { return text.starts_with(kRegroupLetter); }

namespace {

json json_of(const RegroupState& state) {
  json j{{"is", "state"},
         {"stage", kStages[static_cast<std::size_t>(state.stage)]},
         {"attempt", state.attempt},
         {"members", state.members},
         {"grow", state.grow},
         {"leave_out", state.wish.leave_out},
         {"minority", state.wish.minority},
         {"wants", state.wish.grow},
         {"whole", state.wish.whole},
         {"late", state.late},
         {"place", state.place}};
  if (state.stage == RegroupState::Stage::failed) add_failure(j, state.failure);
  return j;
}

json json_of(const RegroupVerdict& verdict) {
  json j{{"is", "verdict"},
         {"verdict", kVerdicts[static_cast<std::size_t>(verdict.kind)]},
         {"attempt", verdict.attempt},
         {"members", verdict.members},
         {"grow", verdict.grow}};
  if (verdict.fails()) add_failure(j, verdict.failure);
  return j;
}

json json_of(const RegroupFrame& frame) {
  switch (frame.kind) {
    case RegroupFrame::Kind::state:
      return json_of(frame.state);
    case RegroupFrame::Kind::verdict:
      return json_of(frame.verdict);
    case RegroupFrame::Kind::place:
      break;
  }
  return {{"is", "place"}, {"attempt", frame.attempt}, {"place", frame.place}};
}

}  // namespace

std::string encode(const RegroupFrame& frame) { return kRegroupLetter + json_text(json_of(frame)); }

RegroupFrame parse_regroup_frame(std::string_view text, std::size_t members) {
  if (!is_regroup_frame(text)) reject_field(kRegroupFrame, "its first letter is another one");
  return read_json(kRegroupFrame, text.substr(1), [members](const json& j) {
    const std::string is = j.at("is").get<std::string>();
    if (is == "state") return RegroupFrame::of(read_state(j, members));
    if (is == "verdict") return RegroupFrame::of(read_verdict(j, members));
    if (is == "place") return RegroupFrame::of_place(read_attempt(j), j.at("place").get<std::string>());
    reject_field(kRegroupFrame, "it is of no known kind");
  });
}

}  // namespace nzcl::bootstrap
