#include "tests/torch/emulated_device.h"

#include <ATen/EmptyTensor.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/Allocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/library.h>
#include <torch/version.h>

#include <array>
#include <cstring>
#include <memory>

namespace nzcl::test {
namespace {

constexpr auto kType = c10::DeviceType::PrivateUse1;

std::array<std::shared_ptr<gpu::EmulatedGpu>, kEmulatedDevices>& gpus() {
  static auto* const all = [] {
    auto* const made = new std::array<std::shared_ptr<gpu::EmulatedGpu>, kEmulatedDevices>;
    for (unsigned i = 0; i < kEmulatedDevices; ++i) (*made)[i] = gpu::EmulatedGpu::make(i + 1);
    return made;
  }();
  return *all;
}

/// The threads' current streams, and the device that is current. Number 0 is the default stream.
thread_local std::array<c10::StreamId, kEmulatedDevices> current_stream{};
thread_local c10::DeviceIndex current_device = 0;

gpu::Stream handle_of(const c10::Stream& stream) { return reinterpret_cast<gpu::Stream>(stream.id()); }
gpu::Stream current_handle(int device) {
  return reinterpret_cast<gpu::Stream>(current_stream[static_cast<std::size_t>(device)]);
}

/// An event is a flag, which the stream that records it raises.
struct Event {
  gpu::Flag flag;
  int device;
};

class Guard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return kType; }
  c10::Device exchangeDevice(c10::Device device) const override {
    return emulated_device(std::exchange(current_device, device.index()));
  }
  c10::Device getDevice() const override { return emulated_device(current_device); }
  void setDevice(c10::Device device) const override { current_device = device.index(); }
  void uncheckedSetDevice(c10::Device device) const noexcept override { current_device = device.index(); }
  c10::DeviceIndex deviceCount() const noexcept override { return kEmulatedDevices; }

  c10::Stream getStream(c10::Device device) const noexcept override { return current(device); }
  c10::Stream exchangeStream(c10::Stream stream) const noexcept override { return exchange(stream); }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::DEFAULT, device);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    return new_stream(device.index());
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    emulated_gpu(stream.device_index()).synchronize(handle_of(stream));
  }

  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex,
              const c10::EventFlag) const override {
    gpu::EmulatedGpu& gpu = emulated_gpu(stream.device_index());
    if (*event == nullptr) *event = new Event{gpu.take_flag(), stream.device_index()};
    const gpu::Flag& flag = static_cast<Event*>(*event)->flag;
    gpu.raise(handle_of(stream), flag.device, flag.value);
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event == nullptr) return;
    const gpu::Flag& flag = static_cast<Event*>(event)->flag;
    emulated_gpu(stream.device_index()).await(handle_of(stream), flag.device, flag.value);
  }
  bool queryEvent(void* event) const override {
    return event == nullptr || static_cast<Event*>(event)->flag.is_raised();
  }
  /// Its flag is not used again, because a stream may look at it still.
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    delete static_cast<Event*>(event);
  }

 private:
  static c10::Stream current(c10::Device device) {
    return c10::Stream(c10::Stream::UNSAFE, device, current_stream[static_cast<std::size_t>(device.index())]);
  }
  static c10::Stream exchange(c10::Stream stream) {
    const c10::StreamId before =
        std::exchange(current_stream[static_cast<std::size_t>(stream.device_index())], stream.id());
    return c10::Stream(c10::Stream::UNSAFE, stream.device(), before);
  }
};

class Memory final : public c10::Allocator {
 public:
#if TORCH_VERSION_MAJOR >= 2
  c10::DataPtr allocate(std::size_t bytes) override { return make(bytes); }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    emulated_gpu(current_device).copy(current_handle(current_device), to, from, bytes);
  }
#else
  c10::DataPtr allocate(std::size_t bytes) const override { return make(bytes); }
#endif

 private:
  struct Piece {
    int device;
    std::byte* memory;
  };
  static c10::DataPtr make(std::size_t bytes) {
    const int device = current_device;
    if (bytes == 0) return {nullptr, emulated_device(device)};
    auto* const piece = new Piece{device, emulated_gpu(device).allocate(bytes)};
    return {piece->memory, piece, &free, emulated_device(device)};
  }
  static void free(void* context) {
    const std::unique_ptr<Piece> piece(static_cast<Piece*>(context));
    emulated_gpu(piece->device).free(piece->memory);
  }
};

Memory& memory() {
  static auto* const only = new Memory;
  return *only;
}

at::Tensor empty(at::IntArrayRef size, c10::optional<at::ScalarType> type, c10::optional<at::Layout>,
                 c10::optional<at::Device> device, c10::optional<bool>,
                 c10::optional<at::MemoryFormat> format) {
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_generic(size, &memory(), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   type.value_or(at::kFloat), format);
}

at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, c10::optional<at::ScalarType> type,
                         c10::optional<at::Layout>, c10::optional<at::Device> device, c10::optional<bool>) {
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_strided_generic(
      size, stride, &memory(), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), type.value_or(at::kFloat));
}

/// The whole memory of a tensor's storage, in host memory, with the tensor's shape.
at::Tensor on_host(const at::Tensor& t) {
  at::Tensor bytes = at::empty({static_cast<std::int64_t>(t.storage().nbytes())}, at::kByte);
  const int device = t.device().index();
  std::byte* const from = static_cast<std::byte*>(t.data_ptr()) - t.storage_offset() * t.element_size();
  emulated_gpu(device).copy(current_handle(device), bytes.data_ptr(), from, bytes.nbytes());
  emulated_gpu(device).synchronize(current_handle(device));
  return bytes.view(t.scalar_type()).as_strided(t.sizes(), t.strides(), t.storage_offset());
}

/// Between tensors of one type that lie in one piece, it is a copy in the stream's order. All others go
/// through the host.
at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool) {
  if (to.numel() == 0) return to;
  const bool plain = from.scalar_type() == to.scalar_type() && from.is_contiguous() && to.is_contiguous();
  if (plain && from.device() == to.device()) {
    const int device = to.device().index();
    emulated_gpu(device).copy(current_handle(device), to.data_ptr(), from.data_ptr(), to.nbytes());
    return to;
  }
  const at::Tensor source = from.is_cpu() ? from : on_host(from);
  if (to.is_cpu()) return to.copy_(source);
  const int device = to.device().index();
  at::Tensor whole = on_host(to);
  whole.copy_(source);
  std::byte* const at = static_cast<std::byte*>(to.data_ptr()) - to.storage_offset() * to.element_size();
  emulated_gpu(device).copy(current_handle(device), at, whole.storage().data_ptr().get(),
                            to.storage().nbytes());
  emulated_gpu(device).synchronize(current_handle(device));
  return to;
}

at::Tensor as_strided(const at::Tensor& t, at::IntArrayRef size, at::IntArrayRef stride,
                      c10::optional<std::int64_t> offset) {
  return at::native::as_strided_tensorimpl(t, size, stride, offset);
}
at::Tensor reshape_alias(const at::Tensor& t, at::IntArrayRef size, at::IntArrayRef stride) {
  return at::native::as_strided_tensorimpl(t, size, stride);
}
at::Tensor view(const at::Tensor& t, at::IntArrayRef size) { return at::native::view(t, size); }

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("_copy_from", copy_from);
  m.impl("as_strided", as_strided);
  m.impl("_reshape_alias", reshape_alias);
  m.impl("view", view);
}

}  // namespace

gpu::EmulatedGpu& emulated_gpu(int number) { return *gpus()[static_cast<std::size_t>(number)]; }

c10::Stream new_stream(int number) {
  const auto id = reinterpret_cast<c10::StreamId>(emulated_gpu(number).make_stream());
  return c10::Stream(c10::Stream::UNSAFE, emulated_device(number), id);
}

}  // namespace nzcl::test
