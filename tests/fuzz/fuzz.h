// The functions that every fuzz program defines, and the reader of its input.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

/// Runs one input. Whatever the bytes are, it must not crash or hang, and must free everything that it has
/// allocated.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace nzcl::test {

/// The inputs that a fuzzer starts from: those that an honest peer would send, and those that have found a
/// defect before.
std::vector<std::string> fuzz_seeds();

/// Reads the input as a sequence of values. Behind the end of the input all values are zero.
class FuzzInput {
 public:
  FuzzInput(const std::uint8_t* data, std::size_t size) : left_(data, size) {}
  bool empty() const { return left_.empty(); }
  /// The next `most` bytes, or those that are left if they are fewer.
  std::span<const std::uint8_t> bytes(std::size_t most) {
    const auto taken = left_.first(std::min(most, left_.size()));
    left_ = left_.subspan(taken.size());
    return taken;
  }
  template <typename T>
  T value() {
    static_assert(std::is_trivially_copyable_v<T>);
    T value{};
    const auto taken = bytes(sizeof value);
    if (!taken.empty()) std::memcpy(static_cast<void*>(&value), taken.data(), taken.size());
    return value;
  }
  std::string text() {
    const auto taken = bytes(left_.size());
    return {taken.begin(), taken.end()};
  }

 private:
  std::span<const std::uint8_t> left_;
};

template <typename T>
void append(std::string& text, const T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  text.append(reinterpret_cast<const char*>(&value), sizeof value);
}

}  // namespace nzcl::test
