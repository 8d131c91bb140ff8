#include "runtime/comm/gpu/peer_board.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <sstream>

#include "nzcl/error.h"
#include "runtime/base/list_text.h"
#include "runtime/plan/tuning.h"
#include "verbs/fd.h"
#include "verbs/pid_namespace.h"

namespace nzcl::comm {

/// What one rank writes, and all read. Zeros are a rank that has done nothing yet. Numbers of epochs are one
/// higher than the epoch.
struct alignas(64) PeerBoard::Words {
  struct alignas(64) Entry {
    std::atomic<std::uint64_t> vote, slot, what;
    std::array<std::atomic<std::uint64_t>, 3> steps;
  };
  std::atomic<std::uint64_t> called, published;
  std::array<std::atomic<std::uint64_t>, gpu::kMostPeers> opened;
  std::array<PublishedSlot, kMostSlots> slots;
  std::array<Entry, engine::kMaxOperations> entries;

  Entry& entry(std::uint64_t epoch) { return entries[epoch % engine::kMaxOperations]; }
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

namespace {

/// Where the memory is, for processes that call this one by the same number.
std::string place_of(const verbs::Fd& fd) {
  return fmt::format("{} {} {}", verbs::pid_namespace(), ::getpid(), fd.get());
}

/// Maps the memory that a member has made. Throws Error{system}.
verbs::segment::Mapping map_that_of(const std::string& place, std::uint64_t bytes) {
  std::istringstream text(place);
  std::uint64_t space = 0;
  long pid = 0, number = -1;
  if (!(text >> space >> pid >> number)) throw Error(ErrorCode::system, "the first rank has made no memory");
  if (space == 0 || space != verbs::pid_namespace())
    throw Error(ErrorCode::system, "its pid namespace is not that of the first rank");
  const std::string path = fmt::format("/proc/{}/fd/{}", pid, number);
  const verbs::Fd fd(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (fd.get() < 0) throw Error(ErrorCode::system, fmt::format("{}: {}", path, std::strerror(errno)));
  return verbs::segment::map_shared(fd.get(), bytes);
}

}  // namespace

std::shared_ptr<PeerBoard> PeerBoard::share(const engine::Membership& membership, bootstrap::Rounds& rounds,
                                            bootstrap::Deadline deadline, std::string& why_not) {
  const engine::Members& members = membership.members;
  const int ranks = members.workers;
  if (members.dedicated > 0 || ranks < 2 || ranks > static_cast<int>(gpu::kMostPeers) ||
      !membership.hosts.all_together() || !membership.may_have_gpus)
    return nullptr;
  const std::uint64_t bytes = static_cast<std::uint64_t>(ranks) * sizeof(Words);
  verbs::Fd fd;  // of the first rank, until the others have opened it
  std::string place, why;
  std::shared_ptr<PeerBoard> board;
  try {
    if (members.self == 0) fd = verbs::segment::make_memory_fd(bytes);
    if (members.self == 0) place = place_of(fd);
  } catch (const Error& e) {
    why = e.what();
  }
  const auto places = rounds.allgather(place, deadline);
  try {
    const auto first = static_cast<std::size_t>(membership.position_of.front());
    board.reset(new PeerBoard(map_that_of(places[first], bytes), members.self, ranks));
  } catch (const Error& e) {
    if (why.empty()) why = e.what();
  }
  const auto reasons = rounds.allgather(why, deadline);
  for (std::size_t position = 0; position < reasons.size(); ++position) {
    if (reasons[position].empty()) continue;
    why_not = fmt::format("{} cannot share memory with the other ranks: {}", membership.names[position],
                          reasons[position]);
    return nullptr;
  }
  return board;
}

PeerBoard::Words& PeerBoard::of(int rank) const {
  return reinterpret_cast<Words*>(memory_.bytes().data())[rank];
}

// --- Slots

std::optional<std::uint32_t> PeerBoard::publish(const PublishedSlot& slot) {
  Words& own = of(rank_);
  const std::uint64_t number = own.published.load(std::memory_order_relaxed);
  if (number == kMostSlots) return std::nullopt;
  own.slots[number] = slot;
  own.published.store(number + 1, std::memory_order_release);
  return static_cast<std::uint32_t>(number);
}

std::uint32_t PeerBoard::published(int rank) const {
  const std::uint64_t count = of(rank).published.load(std::memory_order_acquire);
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(count, kMostSlots));
}

PublishedSlot PeerBoard::slot(int rank, std::uint32_t number) const { return of(rank).slots[number]; }

void PeerBoard::note_opened(int rank, std::uint32_t count) {
  of(rank_).opened[static_cast<std::size_t>(rank)].store(count, std::memory_order_release);
}

bool PeerBoard::all_opened(std::uint32_t number) const {
  for (int rank = 0; rank < ranks_; ++rank) {
    if (of(rank).opened[static_cast<std::size_t>(rank_)].load(std::memory_order_acquire) <= number)
      return false;
  }
  return true;
}

// --- Operations

void PeerBoard::vote(std::uint64_t epoch, std::uint32_t slot, std::uint64_t what) {
  Words::Entry& entry = of(rank_).entry(epoch);
  entry.slot.store(slot, std::memory_order_relaxed);
  entry.what.store(what, std::memory_order_relaxed);
  entry.vote.store(epoch + 1, std::memory_order_release);
}

void PeerBoard::called(std::uint64_t epoch) { of(rank_).called.store(epoch + 1, std::memory_order_release); }

/// A rank's vote is overwritten only when the operation is over there. If the GPUs sum it, that is after all
/// ranks have seen so; if they do not, it makes no difference any more.
PeerBoard::Verdict PeerBoard::verdict(std::uint64_t epoch, Slots& slots) const {
  for (int rank = 0; rank < ranks_; ++rank) {
    if (of(rank).called.load(std::memory_order_acquire) <= epoch) return Verdict::open;
  }
  const std::uint64_t what = of(rank_).entry(epoch).what.load(std::memory_order_relaxed);
  for (int rank = 0; rank < ranks_; ++rank) {
    const Words::Entry& entry = of(rank).entry(epoch);
    if (entry.vote.load(std::memory_order_acquire) != epoch + 1) return Verdict::no;
    if (entry.what.load(std::memory_order_relaxed) != what) return Verdict::no;
    const std::uint64_t slot = entry.slot.load(std::memory_order_relaxed);
    slots[static_cast<std::size_t>(rank)] = static_cast<std::uint32_t>(slot);
  }
  return Verdict::yes;
}

void PeerBoard::note(Step step, std::uint64_t epoch) {
  of(rank_).entry(epoch).steps[static_cast<std::size_t>(step)].store(epoch + 1, std::memory_order_release);
}

std::string PeerBoard::not_called(std::uint64_t epoch) const {
  std::string ranks;
  for (int rank = 0; rank < ranks_; ++rank) {
    if (of(rank).called.load(std::memory_order_acquire) <= epoch) append_item(ranks, rank);
  }
  return ranks;
}

std::string PeerBoard::without(Step step, std::uint64_t epoch) const {
  std::string ranks;
  for (int rank = 0; rank < ranks_; ++rank) {
    if (!has(rank, step, epoch)) append_item(ranks, rank);
  }
  return ranks;
}

bool PeerBoard::all_have(Step step, std::uint64_t epoch) const {
  for (int rank = 0; rank < ranks_; ++rank) {
    if (!has(rank, step, epoch)) return false;
  }
  return true;
}

bool PeerBoard::has(int rank, Step step, std::uint64_t epoch) const {
  return of(rank).entry(epoch).steps[static_cast<std::size_t>(step)].load(std::memory_order_acquire) > epoch;
}

}  // namespace nzcl::comm
