#include "runtime/bootstrap/shrink_member.h"

#include <algorithm>

namespace nzcl::bootstrap {

using Stage = ShrinkState::Stage;

std::optional<Failure> ShrinkMember::what_forbids() const {
  if (out_) return out_;
  if (is_committed())
    return Failure{ErrorCode::invalid_usage, "shrink: this communicator has been shrunk already"};
  return std::nullopt;
}

void ShrinkMember::ready(std::vector<int> leave_out, bool minority) {
  set_stage(Stage::ready);
  refused_.reset();
  state_.leave_out = std::move(leave_out);
  state_.minority = minority;
  state_.place.clear();
}

void ShrinkMember::failed(Failure why) {
  set_stage(Stage::failed);
  state_.failure = std::move(why);
}

bool ShrinkMember::take(const ShrinkVerdict& verdict) {
  using Kind = ShrinkVerdict::Kind;
  switch (verdict.kind) {
    case Kind::begin:
      if (is_committed() || verdict.attempt <= state_.attempt) return true;
      state_.attempt = verdict.attempt;
      state_.members = verdict.members;
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
    case Kind::refuse:
      if (is_committed()) return false;
      refused_ = verdict.failure;
      if (verdict.failure.code == ErrorCode::aborted) out_ = verdict.failure;
      set_stage(Stage::away);
      return false;
  }
  return false;
}

}  // namespace nzcl::bootstrap
