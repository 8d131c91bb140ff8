#include "runtime/comm/communicator/hierarchy.h"

#include <fmt/format.h>

#include <utility>

#include "nzcl/error.h"
#include "runtime/base/log.h"
#include "runtime/base/plain_floats.h"
#include "runtime/base/start_thread.h"
#include "runtime/comm/communicator/communicator_core.h"
#include "runtime/placement/threads.h"

namespace nzcl::comm {

Hierarchy::Hierarchy(engine::HierarchyPlan plan, Parent parent)
    : Levels(std::move(plan), parent.rank, parent.register_memory), parent_(std::move(parent)) {}

Hierarchy::~Hierarchy() {
  if (maker_.joinable()) maker_.join();
}

std::string Hierarchy::describe() const {
  return fmt::format(", {} hosts for sums in two levels with {} column(s)", plan().hosts(), plan().columns());
}

// --- Its communicators

void Hierarchy::make() {
  placement::name_thread("nzcl-levels");
  const PlainFloats floats;  // plans must come out alike on all ranks
  try {
    make_levels();
  } catch (const std::exception& e) {
    cannot_make(failure_of(e));
  }
  open_steps();
}

void Hierarchy::cannot_make(const Failure& failure) {
  {
    const std::scoped_lock lock(mutex_);
    if (!failure_) failure_ = failure;
  }
  parent_.fail(failure);
}

void Hierarchy::make_levels() {
  const auto begun = verbs::Clock::now();
  const int host = plan().host_of(parent_.rank);
  const auto join = [&](Level level, std::vector<int> ranks, int number, std::string_view name) {
    const auto workers = static_cast<int>(ranks.size());
    auto core = parent_.join({.color = number, .members = std::move(ranks), .workers = workers},
                             fmt::format("level {} {}", name, number));
    const std::scoped_lock lock(mutex_);
    if (failure_) {
      core->abort(*failure_);
      throw Error(failure_->code, failure_->text);
    }
    cores_[static_cast<std::size_t>(level)] = std::move(core);
  };
  join(Level::up, plan().ranks_of(host), host, "up");
  if (has_column()) join(Level::across, plan().ranks_of_column(place()), place(), "across");
  join(Level::down, plan().ranks_of(host), host, "down");
  log().info("rank {}: made communicators for sums in two levels in {:.3f} s", parent_.rank,
             std::chrono::duration<double>(verbs::Clock::now() - begun).count());
}

std::optional<Failure> Hierarchy::why_not_made() const {
  const std::scoped_lock lock(mutex_);
  return failure_;
}

// --- Sums

void Hierarchy::add(TwoLevelSum& sum) {
  sum.announce();
  bool first = false;
  {
    const std::scoped_lock lock(mutex_);
    ++under_way_;
    first = !std::exchange(begun_, true);
  }
  if (!first) return;
  try {
    maker_ = start_thread("nzcl-levels", [this] { return std::thread([this] { make(); }); });
  } catch (const Error& e) {  // the sum has its place in the order, and ends in failure
    cannot_make(failure_of(e));
    open_steps();
  }
}

void Hierarchy::start(Level which, const Request& request, std::optional<Failure>& failure, Next next) {
  const PlainFloats floats;
  const Core& core = cores_[static_cast<std::size_t>(which)];
  std::shared_ptr<engine::Operation> operation;
  try {
    if (!core) {
      const Failure made = why_not_made().value_or(Failure{});
      throw Error(made.code, made.text);
    }
    if (failure) {
      core->refuse(request, Error(failure->code, failure->text));
    } else {
      operation = core->start(request);
    }
  } catch (const std::exception& e) {
    note_failure(core, failure, failure_of(e));
  }
  if (!operation) return next(nullptr);
  const auto over = [this, &core, &failure, operation, next] {
    operation->release_regions();
    if (const auto its = operation->failure()) note_failure(core, failure, *its);
    next(operation);
  };
  try {
    return core->on_complete(operation, over);
  } catch (const Error& e) {  // there is no thread to tell of it
    log().warn("rank {}: {}", parent_.rank, e.what());
  }
  core->wait(*operation, std::nullopt);
  over();
}

/// If not only the operation has failed, but its communicator, so does the caller's.
void Hierarchy::note_failure(const Core& core, std::optional<Failure>& noted, const Failure& failure) {
  if (!noted) noted = failure;
  if (!core) return;
  const auto whole = core->failure();
  if (!whole) return;
  core->told(*whole);
  parent_.fail(*whole);
}

void Hierarchy::over() {
  parent_.ring();
  const std::scoped_lock lock(mutex_);
  --under_way_;
  over_.notify_all();
}

// --- End

void Hierarchy::end(const Failure& failure) {
  std::vector<Core> cores;
  {
    const std::scoped_lock lock(mutex_);
    if (!failure_) failure_ = failure;
    for (const Core& core : cores_) {
      if (core) cores.push_back(core);
    }
  }
  for (const auto& core : cores) core->abort(failure);
  std::unique_lock lock(mutex_);
  over_.wait(lock, [this] { return under_way_ == 0; });
}

void Hierarchy::close() {
  if (maker_.joinable()) maker_.join();
  for (const Core& core : cores_) {
    if (core) core->close();
  }
}

void Hierarchy::add_to(Statistics& total) const {
  const std::scoped_lock lock(mutex_);
  for (const Core& core : cores_) {
    if (!core) continue;
    const Statistics s = core->statistics();
    total.messages_sent += s.messages_sent;
    total.bytes_sent += s.bytes_sent;
    total.bytes_received += s.bytes_received;
    total.bytes_copied += s.bytes_copied;
    total.blocks_scanned += s.blocks_scanned;
  }
}

}  // namespace nzcl::comm
