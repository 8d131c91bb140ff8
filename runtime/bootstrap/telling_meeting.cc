#include "runtime/bootstrap/telling_meeting.h"

#include <nlohmann/json.hpp>

#include "nzcl/error.h"
#include "runtime/base/json_text.h"
#include "runtime/bootstrap/frames.h"

namespace nzcl::bootstrap {
namespace {

// The first letter of a part: what a member has to say in this round, or why it gives up.
constexpr char kPart = 'D', kFailure = 'E';

}  // namespace

std::vector<std::string> TellingMeeting::allgather(std::string_view mine, Deadline deadline) {
  over_ = true;  // until the round has ended well
  auto parts = meeting_.allgather(kPart + std::string(mine), deadline);
  for (const std::string& part : parts) {
    if (part.starts_with(kFailure)) throw parse_error(std::string_view(part).substr(1));
    if (!part.starts_with(kPart))
      throw Error(ErrorCode::mismatch,
                  "members run different versions of nzcl, which meet in different ways");
  }
  for (std::string& part : parts) part.erase(0, 1);
  over_ = false;
  return parts;
}

void TellingMeeting::give_up(const Failure& failure, Deadline deadline) noexcept {
  if (over_) return;
  over_ = true;
  try {
    meeting_.allgather(
        kFailure + json_text({{"code", static_cast<int>(failure.code)}, {"text", failure.text}}), deadline);
  } catch (const std::exception&) {  // the caller has its own failure, which comes first
  }
}

}  // namespace nzcl::bootstrap
