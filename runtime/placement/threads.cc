#include "runtime/placement/threads.h"

#include <pthread.h>
#include <sched.h>

#include <array>
#include <cstring>

#include "runtime/base/log.h"

namespace nzcl::placement {

void name_thread(const char* name) {
  std::array<char, 16> text{};  // the longest name that the kernel takes
  std::strncpy(text.data(), name, text.size() - 1);
  ::pthread_setname_np(::pthread_self(), text.data());
}

void pin_thread(int cpu, std::string_view member) {
  if (cpu < 0) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<unsigned>(cpu), &set);
  if (const int error = ::pthread_setaffinity_np(::pthread_self(), sizeof set, &set)) {
    log().warn("{}: cannot pin a thread to cpu {}: {}", member, cpu, std::strerror(error));
  }
}

}  // namespace nzcl::placement
