// Tensors in memory of an emulated GPU, or of either kind.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <vector>

#include "nzcl/communicator.h"
#include "tests/system/on_gpu.h"

namespace nzcl::test {

/// Bytes around a tensor that nobody may write to.
inline constexpr std::size_t kGuard = 256;

/// A tensor in memory of a GPU, with other bytes before and behind it.
class GpuTensor {
 public:
  GpuTensor(OnGpu& on, const std::vector<std::byte>& data)
      : on_(on), all_(data.size() + 2 * kGuard, std::byte{0x77}), memory_(on.allocate(all_.size())) {
    std::copy(data.begin(), data.end(), all_.begin() + kGuard);
    on_.write(memory_, all_);
  }
  /// The stream may have to read what is freed here.
  ~GpuTensor() { on_.gpu().synchronize(on_.stream()); }
  GpuTensor(const GpuTensor&) = delete;
  GpuTensor& operator=(const GpuTensor&) = delete;
  std::byte* data() const { return memory_ + kGuard; }
  std::size_t bytes() const { return all_.size() - 2 * kGuard; }
  /// Returns the tensor as it is now. The bytes around it must be as they were.
  std::vector<std::byte> read() {
    auto now = on_.read(memory_, all_.size());
    for (std::size_t i = 0; i < kGuard; ++i) {
      EXPECT_EQ(now[i], std::byte{0x77}) << "written before the tensor";
      EXPECT_EQ(now[now.size() - 1 - i], std::byte{0x77}) << "written behind the tensor";
    }
    return {now.begin() + kGuard, now.end() - kGuard};
  }

 private:
  OnGpu& on_;
  std::vector<std::byte> all_;
  std::byte* memory_;
};

/// Which sides of a call are in memory of a GPU.
struct Sides {
  bool input = true, output = true;
};
inline constexpr Sides kMixes[] = {{true, true}, {true, false}, {false, true}, {false, false}};

/// A registered tensor in memory of a GPU, or of the host.
class AnyTensor {
 public:
  AnyTensor(Communicator& communicator, OnGpu& on, const std::vector<std::byte>& data, bool on_gpu) {
    if (on_gpu) {
      gpu_ = std::make_unique<GpuTensor>(on, data);
    } else {
      host_ = data;
    }
    const std::size_t least = on_gpu ? 1 : 0;  // there are others behind them
    buffer_ = communicator.register_buffer(this->data(), std::max(data.size(), least),
                                           on_gpu ? MemoryKind::device : MemoryKind::host);
  }
  std::byte* data() { return gpu_ ? gpu_->data() : host_.data(); }
  bool on_gpu() const { return gpu_ != nullptr; }
  /// Returns the tensor as it is when the stream has come here, or as it is now on the host.
  std::vector<std::byte> read() { return gpu_ ? gpu_->read() : host_; }

 private:
  std::vector<std::byte> host_;
  std::unique_ptr<GpuTensor> gpu_;
  RegisteredBuffer buffer_;
};

}  // namespace nzcl::test
