// Floating-point arithmetic as IEEE 754 has it by default, whatever the program has set on its threads.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <xmmintrin.h>
#elif !defined(__aarch64__)
#include <cfenv>
#endif

namespace nzcl {

/// While this lives, floats on the calling thread are computed to nearest even, with denormal numbers, and
/// without traps; afterwards as before. A program may have set flush-to-zero, another rounding or traps on
/// some of its threads, and each thread inherits them from the one that has started it. Sums come about on
/// whichever thread drives a lane, so without this the same sum could have other bits on another thread, or
/// on another rank.
///
/// It reads one register, and writes it only if the program has changed it. So it belongs around a round or
/// a call, and not around an element.
class PlainFloats {
 public:
#if defined(__x86_64__) || defined(__aarch64__)
  using Mode = std::uint64_t;
  PlainFloats() noexcept : before_(mode()) {
    if ((before_ & ~kStatus) != kPlain) set_mode(kPlain);
  }
  ~PlainFloats() {
    if ((before_ & ~kStatus) != kPlain) set_mode(before_);
  }
#else
  using Mode = std::fenv_t;
  PlainFloats() noexcept : before_(mode()) { std::fesetenv(FE_DFL_ENV); }
  ~PlainFloats() { std::fesetenv(&before_); }
#endif
  PlainFloats(const PlainFloats&) = delete;
  PlainFloats& operator=(const PlainFloats&) = delete;

#if defined(__x86_64__)
  static Mode mode() noexcept { return _mm_getcsr(); }
  static void set_mode(Mode mode) noexcept { _mm_setcsr(static_cast<unsigned>(mode)); }
  static constexpr Mode kFlushToZero = 0x8040;  // of results, and of operands

 private:
  static constexpr Mode kStatus = 0x3f;   // which exceptions there were; the other bits are the mode
  static constexpr Mode kPlain = 0x1f80;  // exceptions do not trap
#elif defined(__aarch64__)
  static Mode mode() noexcept {
    Mode mode = 0;
    asm volatile("mrs %0, fpcr" : "=r"(mode));
    return mode;
  }
  static void set_mode(Mode mode) noexcept { asm volatile("msr fpcr, %0" : : "r"(mode) : "memory"); }
  static constexpr Mode kFlushToZero = (1u << 24) | (1u << 19);  // of all formats, and of half precision

 private:
  static constexpr Mode kStatus = 0;  // that is in another register
  static constexpr Mode kPlain = 0;
#else
  static Mode mode() noexcept {
    Mode mode;
    std::fegetenv(&mode);
    return mode;
  }

 private:
#endif
  const Mode before_;
};

}  // namespace nzcl
