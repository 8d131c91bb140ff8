#include "runtime/bootstrap/pmix_meeting.h"

#include <fmt/format.h>
#include <pmix.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <thread>

#include "nzcl/error.h"
#include "runtime/base/block_signals.h"
#include "runtime/base/own_process.h"
#include "runtime/bootstrap/exchange_meeting.h"
#include "runtime/bootstrap/host_address.h"

namespace nzcl::bootstrap {
namespace {

// How long the server may take after a fence until it hands out what the other processes have put, and the
// pause between two requests for it.
constexpr auto kServerPatience = std::chrono::seconds(30);
constexpr auto kServerNap = std::chrono::milliseconds(10);

void check(pmix_status_t status, const std::string& what) {
  if (status != PMIX_SUCCESS)
    throw Error(ErrorCode::unavailable, fmt::format("PMIx: {}: {}", what, PMIx_Error_string(status)));
}

struct ReleaseValue {
  void operator()(pmix_value_t* value) const { PMIX_VALUE_RELEASE(value); }
};
using Value = std::unique_ptr<pmix_value_t, ReleaseValue>;

/// Makes the process a PMIx client, and keeps it one until it ends. PMIx counts its initialisations, so other
/// code of the process may be a client at the same time.
///
/// A client that ended after each meeting could fail the next one: the server of PMIx 5 takes a connection
/// that closes for a process that is missing in the fence of those which are there already, and then lets
/// some of them pass and others wait for ever.
class Client {
 public:
  static Client& instance() {
    static Client client;
    if (!client.process_.is_current())
      throw Error(
          ErrorCode::unsupported,
          "PMIx: this process was made by fork() from one that has met through PMIx, and cannot be another "
          "client; let it meet at MASTER_ADDR or through a file");
    return client;
  }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;
  const pmix_proc_t& self() const { return self_; }

 private:
  Client() {
    const BlockSignals blocked;  // the library starts a thread
    check(PMIx_Init(&self_, nullptr, 0), "cannot reach the launcher's server");
  }
  ~Client() {
    if (process_.is_current()) PMIx_Finalize(nullptr, 0);  // not a child of fork(): it would end the parent's
  }
  const OwnProcess process_;
  pmix_proc_t self_{};
};

Value get(const pmix_proc_t& of, const std::string& key, const std::string& what) {
  pmix_value_t* value = nullptr;
  check(PMIx_Get(&of, key.c_str(), nullptr, 0, &value), what);
  return Value(value);
}

/// Reads what process `of` has put before the fence that has just ended. A busy server, for example that of
/// PMIx 4.2.2, may for a while still answer that there is no such key, or that its own request for it has
/// timed out.
Value get_put(const pmix_proc_t& of, const std::string& key, Deadline deadline) {
  const auto patience = std::min(deadline, Clock::now() + kServerPatience);
  while (true) {
    pmix_value_t* value = nullptr;
    const pmix_status_t status = PMIx_Get(&of, key.c_str(), nullptr, 0, &value);
    if ((status != PMIX_ERR_NOT_FOUND && status != PMIX_ERR_TIMEOUT) || Clock::now() >= patience) {
      check(status,
            fmt::format(
                "process {} did not provide {}: are communicators made in the same order on every process?",
                of.rank, key));
      return Value(value);
    }
    std::this_thread::sleep_for(kServerNap);
  }
}

/// A fence for which the caller need not wait to the end: the server may still answer after wait() has
/// returned, and then finds the state alive, because the callback shares it.
class Fence {
 public:
  /// Returns false when the deadline comes before the fence is complete.
  bool wait(const pmix_proc_t& everybody, Deadline deadline) {
    pmix_info_t collect;
    PMIX_INFO_CONSTRUCT(&collect);
    bool yes = true;
    PMIX_INFO_LOAD(&collect, PMIX_COLLECT_DATA, &yes, PMIX_BOOL);
    auto* raw = new std::shared_ptr<State>(state_);  // owned by the callback
    const pmix_status_t status = PMIx_Fence_nb(&everybody, 1, &collect, 1, &Fence::done, raw);
    if (status == PMIX_OPERATION_SUCCEEDED) {  // no callback will come
      delete raw;
      return true;
    }
    if (status != PMIX_SUCCESS) {
      delete raw;
      check(status, "fence");
    }
    std::unique_lock lock(state_->mutex);
    if (!state_->changed.wait_until(lock, deadline, [this] { return state_->status.has_value(); }))
      return false;
    check(*state_->status, "fence");
    return true;
  }

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    std::optional<pmix_status_t> status;
  };
  static void done(pmix_status_t status, void* context) {
    const std::unique_ptr<std::shared_ptr<State>> state(static_cast<std::shared_ptr<State>*>(context));
    {
      const std::scoped_lock lock((*state)->mutex);
      (*state)->status = status;
    }
    (*state)->changed.notify_all();
  }
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

/// What all meetings of this process share. Every meeting needs keys of its own, because PMIx cannot delete a
/// key, so the meetings of a session are numbered.
struct Shared {
  std::mutex meeting;               // held by the one meeting that goes on
  std::map<std::string, int> made;  // the number of meetings so far, by session
};
Shared& shared() {
  static Shared instance;
  return instance;
}

/// An allgather of the processes of this namespace.
class PmixExchange {
 public:
  explicit PmixExchange(const std::string& session) : turn_(shared().meeting) {
    const pmix_proc_t everybody = wildcard();
    const Value size =
        get(everybody, PMIX_JOB_SIZE, "the launcher does not say how many processes there are");
    size_ = static_cast<int>(size->data.uint32);
    prefix_ = fmt::format("nzcl.{}.{}", session, shared().made[session]++);
  }
  int rank() const { return static_cast<int>(client_.self().rank); }
  int size() const { return size_; }

  std::vector<std::string> allgather(std::string_view mine, Deadline deadline) {
    const std::string key = fmt::format("{}.{}", prefix_, round_++);
    std::string copy(mine);
    pmix_value_t value;
    PMIX_VALUE_CONSTRUCT(&value);
    value.type = PMIX_BYTE_OBJECT;
    value.data.bo = {copy.data(), copy.size()};
    check(PMIx_Put(PMIX_GLOBAL, key.c_str(), &value), "put");
    check(PMIx_Commit(), "commit");
    if (!Fence().wait(wildcard(), deadline)) {
      throw Error(ErrorCode::timeout,
                  fmt::format("not all of the {} processes of PMIx namespace {} came to the meeting "
                              "within the bootstrap timeout (PMIx does not say which of them did)",
                              size_, client_.self().nspace));
    }
    std::vector<std::string> parts;
    for (int r = 0; r < size_; ++r) {
      pmix_proc_t peer = client_.self();
      peer.rank = static_cast<pmix_rank_t>(r);
      const Value part = get_put(peer, key, deadline);
      if (part->type != PMIX_BYTE_OBJECT)
        throw Error(ErrorCode::mismatch, fmt::format("PMIx: {} of process {} is not a byte object", key, r));
      parts.emplace_back(part->data.bo.bytes, part->data.bo.size);
    }
    return parts;
  }

 private:
  pmix_proc_t wildcard() const {
    pmix_proc_t everybody = client_.self();
    everybody.rank = PMIX_RANK_WILDCARD;
    return everybody;
  }
  std::unique_lock<std::mutex> turn_;
  const Client& client_ = Client::instance();
  std::string prefix_;
  int size_ = 0;
  int round_ = 0;
};

}  // namespace

std::unique_ptr<Meeting> make_pmix_meeting(const std::string& session) {
  const auto exchange = std::make_shared<PmixExchange>(session);
  const auto name = [](int position) { return fmt::format("process {}", position); };
  return make_exchange_meeting(
      {.position = exchange->rank(),
       .size = exchange->size(),
       .session = session,
       .who = fmt::format("{} (pid {} on {})", name(exchange->rank()), ::getpid(), host_name()),
       .name = name,
       .point_name = "the launcher's PMIx server"},
      [exchange](std::string_view mine, Deadline deadline) { return exchange->allgather(mine, deadline); });
}

}  // namespace nzcl::bootstrap
