// Restores the process's signal handlers after libfabric and the libraries of its providers have changed
// them.
#pragma once

#include <signal.h>

#include <array>
#include <cstddef>

namespace nzcl::verbs::ofi {

/// Remembers all signal handlers when it is made, and restores those that have changed when it is destroyed.
/// It belongs around calls that change handlers: the libraries libpsm and libpsm2 do so when they are loaded,
/// to print a backtrace, and the provider shm does so when an endpoint is opened, to remove its files, which
/// nzcl removes at the next start instead.
class KeepSignals {
 public:
  KeepSignals() {
    for (int i = 1; i < kSignals; ++i) known_[place(i)] = ::sigaction(i, nullptr, &before_[place(i)]) == 0;
  }
  ~KeepSignals() {
    for (int i = 1; i < kSignals; ++i) {
      struct sigaction now {};
      if (!known_[place(i)] || ::sigaction(i, nullptr, &now) != 0) continue;
      if (!same(now, before_[place(i)])) ::sigaction(i, &before_[place(i)], nullptr);
    }
  }
  KeepSignals(const KeepSignals&) = delete;
  KeepSignals& operator=(const KeepSignals&) = delete;

 private:
  static constexpr int kSignals = 65;
  static bool same(const struct sigaction& a, const struct sigaction& b) {
    if (a.sa_sigaction != b.sa_sigaction || a.sa_flags != b.sa_flags) return false;
    for (int i = 1; i < kSignals; ++i) {
      if (::sigismember(&a.sa_mask, i) != ::sigismember(&b.sa_mask, i)) return false;
    }
    return true;
  }
  static std::size_t place(int signal) { return static_cast<std::size_t>(signal); }
  std::array<struct sigaction, kSignals> before_{};
  std::array<bool, kSignals> known_{};
};

}  // namespace nzcl::verbs::ofi
