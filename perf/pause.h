// A moment between two polls that found nothing.
#pragma once

namespace perf {

/// Waits some tenths of a microsecond on x86, where one pause takes many cycles, and far less elsewhere. Over
/// shared memory the two sides take turns at a spin lock of libfabric's, and a poll that finds nothing takes
/// that lock too.
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
