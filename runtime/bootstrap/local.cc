#include "runtime/bootstrap/local.h"

#include <fmt/format.h>
#include <unistd.h>

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <utility>

#include "nzcl/error.h"
#include "runtime/base/list_text.h"
#include "runtime/bootstrap/host_address.h"

namespace nzcl::bootstrap {

/// One round of the allgather passes through two phases. While `leaving_` is false, members put down their
/// parts. When the last part is there, `leaving_` becomes true, and every member takes a copy of all parts.
/// The last member to do so clears the parts and ends the round.
///
/// A member that does not wait any longer takes its part away, so that all can meet anew. Each counts the
/// rounds of its meeting. Who begins a meeting while others are still in a later round of another one ends
/// theirs, since they wait for somebody who has given it up; and who comes to a later round than the others
/// has been given up by them.
class LocalMeetingState {
 public:
  explicit LocalMeetingState(int members) : parts_(static_cast<std::size_t>(members)) {}
  int size() const { return static_cast<int>(parts_.size()); }

  std::vector<std::string> allgather(int rank, std::uint64_t round, std::string_view mine,
                                     Deadline deadline) {
    std::unique_lock lock(mutex_);
    auto& part = parts_[static_cast<std::size_t>(rank)];
    if (!changed_.wait_until(lock, deadline, [&] { return !part.has_value() && !leaving_; }))
      throw_late("finish the last round");
    if (present_ > 0 && round != round_) {
      if (round != 0) throw_given_up();
      end_round();
    }
    round_ = round;
    part = std::string(mine);
    if (++present_ == size()) leaving_ = true;
    changed_.notify_all();
    const std::uint64_t ended = ended_;
    if (!changed_.wait_until(lock, deadline, [&] { return leaving_ || ended_ != ended; })) {
      const Error late = error_late("come to the meeting");
      part.reset();
      --present_;
      changed_.notify_all();
      throw late;
    }
    if (ended_ != ended) throw_given_up();
    std::vector<std::string> all;
    for (const auto& p : parts_) all.push_back(*p);
    if (--present_ == 0) {
      for (auto& p : parts_) p.reset();
      leaving_ = false;
      changed_.notify_all();
    }
    return all;
  }

 private:
  /// Precondition of this and of the next functions: the lock is held.
  Error error_late(const char* what) const {
    return {ErrorCode::timeout,
            fmt::format("some members of the group did not {} in time: {}", what, missing())};
  }
  [[noreturn]] void throw_late(const char* what) const { throw error_late(what); }
  [[noreturn]] static void throw_given_up() {
    throw Error(ErrorCode::peer_failed,
                "another member has given up this meeting of the group, and has begun a new one");
  }
  void end_round() {
    for (auto& p : parts_) p.reset();
    present_ = 0;
    ++ended_;
    changed_.notify_all();
  }
  std::string missing() const {
    std::string list;
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      if (!parts_[i]) append_item(list, fmt::format("member {}", i));
    }
    return list;
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::optional<std::string>> parts_;  // by position
  int present_ = 0;                                // members that have put down a part and not yet taken all
  std::uint64_t round_ = 0;                        // of the meeting of those who are present
  std::uint64_t ended_ = 0;                        // rounds that were ended without a result
  bool leaving_ = false;
};

LocalMeeting::LocalMeeting(int members) : state_(std::make_shared<LocalMeetingState>(members)) {}

namespace {

MeetingSettings settings_of(int rank, int size, const std::string& point_name, std::string (*name)(int)) {
  return {.position = rank,
          .size = size,
          .session = {},
          .who = fmt::format("{} (pid {} on {})", name(rank), ::getpid(), host_name()),
          .name = name,
          .point_name = point_name};
}

std::string rank_name(int position) { return fmt::format("rank {}", position); }
std::string member_name(int position) { return fmt::format("member {}", position); }

}  // namespace

Allgather local_allgather(const std::shared_ptr<LocalMeeting>& meeting, int rank) {
  return [state = meeting->state_, rank, round = std::uint64_t{0}](std::string_view mine,
                                                                   Deadline deadline) mutable {
    return state->allgather(rank, round++, mine, deadline);
  };
}

std::unique_ptr<Meeting> make_local_meeting(const std::shared_ptr<LocalMeeting>& meeting, int rank) {
  return make_exchange_meeting(settings_of(rank, meeting->state_->size(), "their group", member_name),
                               local_allgather(meeting, rank));
}

std::unique_ptr<Meeting> make_self_meeting() {
  return make_exchange_meeting(settings_of(0, 1, "", rank_name), [](std::string_view mine, Deadline) {
    return std::vector<std::string>{std::string(mine)};
  });
}

std::unique_ptr<Meeting> make_callback_meeting(int rank, int size, AllgatherCallback allgather) {
  if (size < 1 || rank < 0 || rank >= size || !allgather) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("rank {} of {}, with {} allgather, cannot be made a member: ranks count from 0, "
                            "and the allgather must be callable",
                            rank, size, allgather ? "an" : "no"));
  }
  return make_exchange_meeting(
      settings_of(rank, size, "the caller's allgather", rank_name),
      [rank, size, allgather = std::move(allgather)](std::string_view mine, Deadline) {
        auto all = allgather(mine);
        if (static_cast<int>(all.size()) == size && all[static_cast<std::size_t>(rank)] == mine) return all;
        throw Error(
            ErrorCode::invalid_argument,
            fmt::format(
                "the caller's allgather returned {} parts for {} ranks, or did not return them in rank order",
                all.size(), size));
      });
}

}  // namespace nzcl::bootstrap
