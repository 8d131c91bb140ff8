// The clock of a simulation, and what happens when.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <queue>
#include <utility>
#include <vector>

namespace perf::scale {

/// Simulated time, and lengths of it.
using Time = std::chrono::duration<std::int64_t, std::pico>;

inline Time seconds(double s) { return Time(static_cast<std::int64_t>(s * 1e12)); }
inline double in_seconds(Time t) { return static_cast<double>(t.count()) * 1e-12; }

/// Something that happens at a point in time.
class Happening {
 public:
  virtual ~Happening() = default;
  virtual void happen() = 0;
};

/// What happens at the same time happens in the order in which it was announced, so a run can be repeated
/// exactly. For one thread.
class Timeline {
 public:
  Time now() const { return now_; }
  /// Precondition: `time` is not before now(). `happening` stays where it is until then.
  void add(Time time, Happening& happening) { queue_.push({time, next_++, &happening}); }
  /// Calls `what` at that time.
  void call(Time time, std::function<void()> what) { add(time, *new Call(std::move(what))); }
  /// Lets the next thing happen. Returns false if there is none.
  bool step() {
    if (queue_.empty()) return false;
    const Entry entry = queue_.top();
    queue_.pop();
    now_ = entry.time;
    entry.happening->happen();
    return true;
  }

 private:
  /// Exists until it has happened.
  class Call final : public Happening {
   public:
    explicit Call(std::function<void()> what) : what_(std::move(what)) {}
    void happen() override {
      const std::unique_ptr<Call> self(this);
      what_();
    }

   private:
    const std::function<void()> what_;
  };
  struct Entry {
    Time time;
    std::uint64_t number;
    Happening* happening;
    bool operator>(const Entry& other) const {
      return time != other.time ? time > other.time : number > other.number;
    }
  };
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue_;
  Time now_{};
  std::uint64_t next_ = 0;
};

}  // namespace perf::scale
