// Parsers of what members send each other in a meeting and on the control plane. The text comes from another
// process, so every field is checked. README.md shows the layouts.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "nzcl/error.h"
#include "runtime/base/failure.h"
#include "runtime/bootstrap/meeting.h"

namespace nzcl::bootstrap {

/// The longest frame in bytes, of a hello, of the answer to it, and of all others. A hello comes from a
/// member that has not been let in yet, so it has the smallest limit.
inline constexpr std::uint32_t kHelloLimit = 64 << 10;
inline constexpr std::uint32_t kAnswerLimit = 1 << 20;
inline constexpr std::uint32_t kFrameLimit = 256 << 20;
/// The longest part of one member in a gather, and the most that all of its parts, or the texts that one
/// member is told, may have together.
inline constexpr std::uint32_t kPartLimit = 16 << 20;
inline constexpr std::uint64_t kGatherLimit = kFrameLimit / 2;

/// How members meet and what the control plane says, in other words the version of all these frames and of
/// exchange_meeting.h. Version 1 met over connections of their own; in version 2 everybody was told what is
/// meant for others; version 3 could not shrink; version 4 could not grow; version 5 had longer lists of
/// similar strings; version 6 had no ranks that go on together or not at all; in version 7 each member was
/// told a queue pair of its own; in version 8 members introduced themselves only when all had met, and said
/// in rounds of their own where they listen and what they have.
inline constexpr int kMeetingVersion = 9;

/// Where a member listens to take the place of a hub that has died. There is at least one host.
struct HubAddress {
  std::vector<std::string> hosts;
  std::string host_id;
  int port = 0;  // 0: it does not listen, because nobody comes before it
};
/// How a member introduces itself to a hub.
struct MemberHello {
  std::string who, session;
  int position = 0, size = 0;
  int version = 0;
  std::string introduction{};  // what it says of itself to all others, who read it
};
/// One message of the control plane.
struct ControlFrame {
  std::string type;
  Failure failure;               // in frames of the types "abort" and "failed"
  std::string key;               // in those of the type "met": of connections to a hub that takes over
  std::uint64_t operations = 0;  // in those of the types "bye", "left", "wants", "finish" and "finished"
};
/// One message about a gather of the control plane. It is not JSON, because parts are bytes of any value: a
/// letter 'G', and then a list of strings (string_list.h), of which the first is JSON and the others are
/// lists of similar strings (similar_list.h), which are the parts.
struct GatherFrame {
  enum class Kind {
    part,    // from a member: its part, which all are told
    row,     // from a member: what it tells each of them (columns.h)
    late,    // from a member: its deadline has come, and it waits for the hub's decision
    failed,  // from the hub: the gather has failed for all
    parts,   // from the hub: the parts of all, or what each tells this member
  };
  Kind kind = Kind::part;
  std::string name;
  /// Positions, in the order of the parts. Empty: all members of the control plane, in their order. Frames
  /// from the hub do not repeat them.
  std::vector<int> members;
  std::vector<std::string> parts;  // one in a part or a row, one for each member in parts, otherwise none
  Failure failure;                 // in failed
};
/// The longest text before the parts in a frame of a gather: it has the positions of its members, or an
/// error.
inline constexpr std::uint32_t kGatherHeadLimit = 64 << 10;
/// The name under which the hub tells what all members have said in their hellos, as if it were a gather.
inline constexpr const char* kIntroductions = "introductions";
/// The longest name of a gather.
inline constexpr std::size_t kGatherNameLimit = 200;

bool is_gather_frame(std::string_view text);
std::string encode(const GatherFrame& frame);
/// The two pieces of a frame of the kind `parts` in which each part is a string of `commons` and then one of
/// `ends`. Both are lists of similar strings. The first piece is the same for all that are told these
/// commons.
std::string encode_commons(const std::string& name, std::string commons);
std::string encode_ends(std::string ends);

// --- The meeting: a hello, and the hub's answer
std::string encode_member_hello(const MeetingSettings& self, const std::string& introduction);
std::string encode_welcome();
/// Another session is meeting here.
std::string encode_retry(const std::string& session);
/// The meeting has failed.
std::string encode_refusal(const Error& error);
/// Returns "" for a welcome, and why the member should try again otherwise. Throws the error of a meeting
/// that has failed, and Error{mismatch} for a hub of another version, which `hub` names.
std::string parse_hub_answer(const std::string& text, const std::string& hub);
/// What is said of a member that meets in another version.
std::string other_version(const std::string& who, int version);

// All of these throw an Error{mismatch} that says which part of the text this version does not understand.

HubAddress parse_hub_address(const std::string& text);
/// The numbers are what the member states.
MemberHello parse_member_hello(const std::string& text);
ControlFrame parse_control_frame(const std::string& text);
/// Checks the fields one by one. Whether they suit a gather is for its hub to say. No gather has more than
/// `most_parts` parts.
GatherFrame parse_gather_frame(std::string_view text, std::size_t most_parts);
/// Parses {"code": ..., "text": ...}, which follows the letter of an error frame.
Error parse_error(std::string_view text);

}  // namespace nzcl::bootstrap
