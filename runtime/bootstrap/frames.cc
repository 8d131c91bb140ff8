#include "runtime/bootstrap/frames.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <nlohmann/json.hpp>

#include "runtime/base/json_text.h"
#include "runtime/bootstrap/frame_fields.h"
#include "runtime/bootstrap/similar_list.h"
#include "runtime/bootstrap/string_list.h"

namespace nzcl::bootstrap {
namespace {

using nlohmann::json;

// The types of control frames that say how many operations a member has begun or finished.
constexpr std::array<std::string_view, 5> kCounted{"bye", "left", "wants", "finish", "finished"};

// The first letters of a hub's answers to a hello.
constexpr char kWelcome = 'W', kRetry = 'R', kRefusal = 'E';

constexpr char kGatherLetter = 'G';
constexpr std::array kGatherKinds{"part", "row", "late", "failed",
                                  "parts"};  // in the order of GatherFrame::Kind

GatherFrame::Kind gather_kind(const std::string& text) {
  for (std::size_t i = 0; i < kGatherKinds.size(); ++i) {
    if (text == kGatherKinds[i]) return static_cast<GatherFrame::Kind>(i);
  }
  reject_field("a frame of a gather", "it is of no known kind");
}

}  // namespace

HubAddress parse_hub_address(const std::string& text) {
  return read_json("the address of a control plane", text, [](const json& j) {
    HubAddress hub{.hosts = j.at("hosts").get<std::vector<std::string>>(),
                   .host_id = j.at("host_id").get<std::string>(),
                   .port = static_cast<int>(number(j, "port", 0, 65535))};
    if (hub.hosts.empty()) reject_field("the address of a control plane", "it names no host");
    return hub;
  });
}

MemberHello parse_member_hello(const std::string& text) {
  return read_json("an introduction", text, [](const json& j) {
    return MemberHello{
        .who = j.at("who").get<std::string>(),
        .session = j.at("session").get<std::string>(),
        .position = static_cast<int>(number(j, "index", INT32_MIN, INT32_MAX)),
        .size = static_cast<int>(number(j, "size", INT32_MIN, INT32_MAX)),
        // The first version did not say which one it is.
        .version = j.contains("version") ? static_cast<int>(number(j, "version", 1, INT32_MAX)) : 1,
        .introduction = j.value("introduction", std::string())};
  });
}

std::string encode_member_hello(const MeetingSettings& self, const std::string& introduction) {
  return json_text({{"version", kMeetingVersion},
                    {"session", self.session},
                    {"index", self.position},
                    {"size", self.size},
                    {"who", self.who},
                    {"introduction", introduction}});
}

std::string encode_welcome() { return fmt::format("{}{}", kWelcome, kMeetingVersion); }

std::string encode_retry(const std::string& session) {
  return fmt::format("{}session \"{}\" meets here now", kRetry, session);
}

std::string encode_refusal(const Error& error) {
  return kRefusal + json_text({{"code", static_cast<int>(error.code())}, {"text", error.what()}});
}

namespace {

/// The version in a welcome, or 0 if the text is none. The first version did not say which one it is.
int version_of_welcome(std::string_view text) {
  constexpr std::size_t kMostDigits = 6;
  if (!text.starts_with(kWelcome) || text.size() > 1 + kMostDigits) return 0;
  int version = text.size() == 1 ? 1 : 0;
  for (const char digit : text.substr(1)) {
    if (digit < '0' || digit > '9') return 0;
    version = 10 * version + (digit - '0');
  }
  return version;
}

}  // namespace

std::string parse_hub_answer(const std::string& text, const std::string& hub) {
  if (text == encode_welcome()) return "";
  if (text.starts_with(kRefusal)) throw parse_error(std::string_view(text).substr(1));
  if (text.starts_with(kRetry)) return text.substr(1);
  if (const int version = version_of_welcome(text); version > 0)
    throw Error(ErrorCode::mismatch, other_version(hub, version));
  throw Error(ErrorCode::mismatch, hub + " sent an answer that this version of nzcl does not understand");
}

std::string other_version(const std::string& who, int version) {
  return fmt::format("members run different versions of nzcl: {} meets in version {}, and this one in {}",
                     who, version, kMeetingVersion);
}

ControlFrame parse_control_frame(const std::string& text) {
  return read_json("a frame of the control plane", text, [](const json& j) {
    ControlFrame frame{.type = j.at("type").get<std::string>(), .failure = {}, .key = {}, .operations = 0};
    if (frame.type == "met") frame.key = j.at("key").get<std::string>();
    if (frame.type == "abort" || frame.type == "failed") frame.failure = read_failure(j);
    if (std::find(kCounted.begin(), kCounted.end(), frame.type) != kCounted.end())
      frame.operations = static_cast<std::uint64_t>(number(j, "operations", 0, INT64_MAX));
    return frame;
  });
}

bool is_gather_frame(std::string_view text) { return text.starts_with(kGatherLetter); }

std::string encode(const GatherFrame& frame) {
  json j{{"gather", frame.name}, {"is", kGatherKinds[static_cast<std::size_t>(frame.kind)]}};
  if (!frame.members.empty()) j["members"] = frame.members;
  if (frame.kind == GatherFrame::Kind::failed) {
    j["code"] = static_cast<int>(frame.failure.code);
    j["text"] = frame.failure.text;
  }
  return kGatherLetter + encode_strings({json_text(j), encode_similar(frame.parts)});
}

std::string encode_commons(const std::string& name, std::string commons) {
  const json j{{"gather", name}, {"is", kGatherKinds[static_cast<std::size_t>(GatherFrame::Kind::parts)]}};
  return kGatherLetter + encode_strings({json_text(j), std::move(commons)});
}

std::string encode_ends(std::string ends) { return encode_strings({std::move(ends)}); }

namespace {

/// The parts in the lists of a frame: those of the only list, or each of the first one with its end.
std::vector<std::string> parts_of(const std::vector<std::string>& lists, std::size_t most_parts) {
  if (lists.empty() || lists.size() > 2)
    reject_field("a frame of a gather", "it has not one or two lists of parts");
  auto parts = decode_similar(lists[0], most_parts, kGatherLimit);
  if (lists.size() == 1) return parts;
  const auto ends = decode_similar(lists[1], most_parts, kGatherLimit);
  if (ends.size() != parts.size()) reject_field("a frame of a gather", "its lists have different lengths");
  for (std::size_t i = 0; i < parts.size(); ++i) parts[i] += ends[i];
  return parts;
}

}  // namespace

GatherFrame parse_gather_frame(std::string_view text, std::size_t most_parts) {
  if (!is_gather_frame(text)) reject_field("a frame of a gather", "its first letter is another one");
  auto strings = decode_strings(text.substr(1));
  if (strings.empty()) reject_field("a frame of a gather", "it is empty");
  GatherFrame frame = read_json("a frame of a gather", strings.front(), [](const json& j) {
    GatherFrame f{.kind = gather_kind(j.at("is").get<std::string>()),
                  .name = j.at("gather").get<std::string>(),
                  .members = j.contains("members") ? read_positions(j.at("members")) : std::vector<int>(),
                  .parts = {},
                  .failure = {}};
    if (f.kind == GatherFrame::Kind::failed) f.failure = read_failure(j);
    return f;
  });
  if (frame.name.size() > kGatherNameLimit) reject_field("a frame of a gather", "its name is too long");
  strings.erase(strings.begin());
  frame.parts = parts_of(strings, most_parts);
  const bool one = frame.kind == GatherFrame::Kind::part || frame.kind == GatherFrame::Kind::row;
  if (frame.kind != GatherFrame::Kind::parts && frame.parts.size() != (one ? 1 : 0))
    reject_field("a frame of a gather", "its kind has another number of parts");
  return frame;
}

Error parse_error(std::string_view text) {
  return read_json("an error", text, [](const json& j) {
    const Failure failure = read_failure(j);
    return Error(failure.code, failure.text);
  });
}

}  // namespace nzcl::bootstrap
