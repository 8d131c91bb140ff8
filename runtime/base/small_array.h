// An array whose size is known when it is made, and which needs no memory of its own if it is small.
#pragma once

#include <array>
#include <cstddef>
#include <memory>

namespace nzcl {

/// `size` elements, which are value-initialised. Up to `kInside` of them lie in the object itself.
template <typename T, std::size_t kInside>
class SmallArray {
 public:
  explicit SmallArray(std::size_t size) : outside_(size > kInside ? std::make_unique<T[]>(size) : nullptr) {}
  SmallArray(const SmallArray&) = delete;
  SmallArray& operator=(const SmallArray&) = delete;

  T* data() noexcept { return outside_ ? outside_.get() : inside_.data(); }
  const T* data() const noexcept { return outside_ ? outside_.get() : inside_.data(); }
  T& operator[](std::size_t i) noexcept { return data()[i]; }
  const T& operator[](std::size_t i) const noexcept { return data()[i]; }

 private:
  std::array<T, kInside> inside_{};
  std::unique_ptr<T[]> outside_;
};

}  // namespace nzcl
