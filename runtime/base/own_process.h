// Distinguishes a process from the children that it makes by fork().
#pragma once

#include <cstdint>
#include <memory>

namespace nzcl {

/// Remembers the process in which it was made. In a child that this process makes by fork(), is_current() is
/// false. Such a child has a copy of all memory, but none of the threads, and it shares descriptors,
/// connections and devices with its parent, so it must not end any of them. is_current() costs one load.
/// Thread-safe.
class OwnProcess {
 public:
  OwnProcess();
  bool is_current() const noexcept;
  int id() const noexcept { return id_; }  // the id of the process in which this was made

 private:
  std::uint64_t generation_;
  int id_;
};

/// A deleter that only works in the process in which it was made. In a child it leaves the object alone,
/// because the destructor would act on what the child shares with its parent. The child's copy of the memory
/// is freed when the child ends.
template <typename T>
class DeleteInOwnProcess {
 public:
  void operator()(T* object) const noexcept {
    if (process_.is_current()) delete object;
  }

 private:
  OwnProcess process_;
};

/// A shared pointer with this deleter.
template <typename T>
std::shared_ptr<T> shared_in_own_process(T* object) {
  return std::shared_ptr<T>(object, DeleteInOwnProcess<T>());
}

}  // namespace nzcl
