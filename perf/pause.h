// A moment between two polls that found nothing.
#pragma once

namespace perf {

/// Some tenths of a microsecond on today's x86 (one pause is 40 to 140 cycles), far less elsewhere. In shared
/// memory two sides take turns at a spin lock of libfabric's, and a poll that finds nothing takes it too.
inline void pause() {
  for (int i = 0; i < 8; ++i) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
  }
}

}  // namespace perf
