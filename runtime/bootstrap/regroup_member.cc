#include "runtime/bootstrap/regroup_member.h"

#include <algorithm>

namespace nzcl::bootstrap {

using Stage = RegroupState::Stage;

std::optional<Failure> RegroupMember::what_forbids() const {
  if (out_) return out_;
  if (is_committed())
    return Failure{ErrorCode::invalid_usage, "another communicator has taken the place of this one already"};
  return std::nullopt;
}

void RegroupMember::ready(RegroupWish wish) {
  set_stage(Stage::ready);
  refused_.reset();
  state_.wish = std::move(wish);
  state_.place.clear();
}

void RegroupMember::failed(Failure why) {
  set_stage(Stage::failed);
  state_.failure = std::move(why);
}

bool RegroupMember::take(const RegroupVerdict& verdict) {
  using Kind = RegroupVerdict::Kind;
  switch (verdict.kind) {
    case Kind::begin:
      if (is_committed() || verdict.attempt <= state_.attempt) return true;
      state_.attempt = verdict.attempt;
      state_.members = verdict.members;
      state_.grow = verdict.grow;
      state_.place.clear();
      if (state_.stage != Stage::ready) return true;  // the call has ended, which the hub does not know yet
      set_stage(Stage::building);
      return false;
    case Kind::again:
      closed_ = std::max(closed_, verdict.attempt);
      return false;
    case Kind::commit:
      if (is_in(verdict.attempt)) set_stage(Stage::committed);
      return false;
    case Kind::leave_out:
      if (!is_committed()) out_ = verdict.failure;
      [[fallthrough]];
    case Kind::refuse:
      if (is_committed()) return false;
      refused_ = verdict.failure;
      set_stage(Stage::away);
      return false;
  }
  return false;
}

}  // namespace nzcl::bootstrap
