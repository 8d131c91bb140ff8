#include "tests/torch/emulated_device.h"

#include <ATen/EmptyTensor.h>
#include <ATen/SparseTensorImpl.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/ops/_coalesced_native.h>
#include <ATen/ops/_indices_native.h>
#include <ATen/ops/_nnz_native.h>
#include <ATen/ops/_values_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/clone_native.h>
#include <ATen/ops/copy_sparse_to_sparse_native.h>
#include <ATen/ops/dense_dim_native.h>
#include <ATen/ops/indices_native.h>
#include <ATen/ops/is_coalesced_native.h>
#include <ATen/ops/sparse_dim_native.h>
#include <ATen/ops/values_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/Allocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/library.h>
#include <torch/version.h>

#include <array>
#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

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

/// See copies_by_host() and is_recorded().
std::array<std::atomic<int>, kEmulatedDevices> copies{};
thread_local bool host_computes = false;
std::mutex memory_mutex;
std::set<std::pair<const void*, c10::StreamId>> recorded;

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

  void recordDataPtrOnStream(const c10::DataPtr& memory, const c10::Stream& stream) const override {
    const std::scoped_lock lock(memory_mutex);
    recorded.emplace(memory.get(), stream.id());
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

/// As libtorch's allocator for CUDA, it gives nothing back to the GPU, which would wait for all streams: what
/// is freed goes to the next who wants as much in the order of the same stream.
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
    c10::StreamId stream;
    std::size_t bytes;
    std::byte* memory;
  };
  static c10::DataPtr make(std::size_t bytes) {
    const int device = current_device;
    if (bytes == 0) return {nullptr, emulated_device(device)};
    const c10::StreamId stream = current_stream[static_cast<std::size_t>(device)];
    const std::scoped_lock lock(memory_mutex);
    auto& freed = freed_pieces()[{device, stream, bytes}];
    std::byte* memory = nullptr;
    if (freed.empty()) {
      memory = emulated_gpu(device).allocate(bytes);
    } else {
      memory = freed.back();
      freed.pop_back();
    }
    return {memory, new Piece{device, stream, bytes, memory}, &free, emulated_device(device)};
  }
  /// What another stream uses as well is given to nobody any more.
  static void free(void* context) {
    const std::unique_ptr<Piece> piece(static_cast<Piece*>(context));
    const std::scoped_lock lock(memory_mutex);
    const auto others = std::erase_if(recorded, [&](const auto& one) { return one.first == piece->memory; });
    if (others == 0) freed_pieces()[{piece->device, piece->stream, piece->bytes}].push_back(piece->memory);
  }
  using Freed = std::map<std::tuple<int, c10::StreamId, std::size_t>, std::vector<std::byte*>>;
  static Freed& freed_pieces() {
    static auto* const all = new Freed;
    return *all;
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
  if (!host_computes && from.device() != to.device())
    ++copies[static_cast<std::size_t>(from.is_cpu() ? to.device().index() : from.device().index())];
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

/// What the host has computed for an operation whose result has memory already.
at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  if (to.sizes() != from.sizes()) to.resize_(from.sizes());
  return copy_from(from, to, false);
}

at::Tensor as_strided(const at::Tensor& t, at::IntArrayRef size, at::IntArrayRef stride,
                      c10::optional<std::int64_t> offset) {
  return at::native::as_strided_tensorimpl(t, size, stride, offset);
}
at::Tensor reshape_alias(const at::Tensor& t, at::IntArrayRef size, at::IntArrayRef stride) {
  return at::native::as_strided_tensorimpl(t, size, stride);
}
at::Tensor view(const at::Tensor& t, at::IntArrayRef size) { return at::native::view(t, size); }

/// Of tensors without elements, before and behind it.
const at::Tensor& resize(const at::Tensor& t, at::IntArrayRef size, c10::optional<at::MemoryFormat>) {
  t.unsafeGetTensorImpl()->set_sizes_contiguous(size);
  TORCH_CHECK(t.numel() == 0, "the emulated device makes no tensor larger");
  return t;
}

/// Runs something as a part of the device.
template <typename Body>
decltype(auto) on_the_host(const Body& body) {
  struct Restore {
    const bool before = std::exchange(host_computes, true);
    ~Restore() { host_computes = before; }
  } const restore;
  return body();
}

at::Tensor& zero(at::Tensor& t) {
  return on_the_host([&]() -> at::Tensor& { return t.copy_(at::zeros(t.sizes(), t.scalar_type())); });
}

void compute(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  on_the_host([&] {
    at::native::cpu_fallback(op, stack);
    return 0;
  });
}

at::Tensor cat(const at::ITensorListRef& list, std::int64_t dimension) {
  return on_the_host([&] {
    std::vector<at::Tensor> all;
    for (const at::Tensor& t : list) all.push_back(t.cpu());
    return at::cat(all, dimension).to(list.front().device());
  });
}

// --- Sparse tensors: indices and values that lie there.

at::Tensor make_sparse(at::IntArrayRef size, std::int64_t sparse_dims, at::ScalarType type,
                       c10::Device device) {
  const c10::DeviceGuard guard(device);
  at::Tensor made = at::detail::make_tensor<at::SparseTensorImpl>(
      c10::DispatchKeySet(c10::DispatchKey::SparsePrivateUse1), c10::scalarTypeToTypeMeta(type));
  auto* const impl = static_cast<at::SparseTensorImpl*>(made.unsafeGetTensorImpl());
  impl->resize_(sparse_dims, static_cast<std::int64_t>(size.size()) - sparse_dims, size);
  return made;
}

at::Tensor empty_sparse(at::IntArrayRef size, c10::optional<at::ScalarType> type, c10::optional<at::Layout>,
                        c10::optional<at::Device> device, c10::optional<bool>,
                        c10::optional<at::MemoryFormat>) {
  return make_sparse(size, static_cast<std::int64_t>(size.size()), type.value_or(at::kFloat), *device);
}

at::Tensor sparse_of(std::int64_t sparse_dims, std::int64_t, at::IntArrayRef size, const at::Tensor& indices,
                     const at::Tensor& values, c10::optional<at::ScalarType>, c10::optional<at::Layout>,
                     c10::optional<at::Device>, c10::optional<bool>
#if TORCH_VERSION_MAJOR >= 2
                     ,
                     c10::optional<bool>
#endif
) {
  at::Tensor made = make_sparse(size, sparse_dims, values.scalar_type(), values.device());
  static_cast<at::SparseTensorImpl*>(made.unsafeGetTensorImpl())
      ->set_indices_and_values_unsafe(indices, values);
  return made;
}

at::Tensor copy_sparse_from(const at::Tensor& from, const at::Tensor& to, bool) {
  at::Tensor target = to;
  return at::native::copy_sparse_(target, from);
}

at::Tensor& divide_sparse(at::Tensor& t, const at::Tensor& by) {
  t._values().copy_(at::div(t._values(), by));
  return t;
}

at::Tensor coalesce(const at::Tensor& t) {
  return on_the_host([&] {
    const at::Tensor all =
        at::_sparse_coo_tensor_unsafe(t._indices().cpu(), t._values().cpu(), t.sizes()).coalesce();
    at::Tensor result = at::_sparse_coo_tensor_unsafe(all._indices().to(t.device()),
                                                      all._values().to(t.device()), t.sizes(), t.options());
    return result._coalesced_(true);
  });
}

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("_copy_from", copy_from);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
  m.impl("as_strided", as_strided);
  m.impl("_reshape_alias", reshape_alias);
  m.impl("view", view);
  m.impl("resize_", resize);
  m.impl("zero_", zero);
  m.impl("cat", cat);
  for (const char* const name : {"add.Tensor", "sub.Tensor", "div.Tensor", "div.Tensor_mode", "mul.Tensor",
                                 "mul.out", "sum.dim_IntList", "sum", "index_select", "fill_.Scalar"})
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&compute>());
}

#if TORCH_VERSION_MAJOR < 2
/// What has no gradient, as collectives, goes on to the device.
TORCH_LIBRARY_IMPL(_, AutogradPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }
#endif

TORCH_LIBRARY_IMPL(aten, SparsePrivateUse1, m) {
  m.impl("empty.memory_format", empty_sparse);
  m.impl("_sparse_coo_tensor_with_dims_and_tensors", sparse_of);
  m.impl("_coalesce", coalesce);
  m.impl("div_.Tensor", divide_sparse);
  m.impl("_indices", at::native::_indices_sparse);
  m.impl("_values", at::native::_values_sparse);
  m.impl("indices", at::native::indices_sparse);
  m.impl("values", at::native::values_sparse);
  m.impl("_nnz", at::native::_nnz_sparse);
  m.impl("sparse_dim", at::native::sparse_dim_sparse);
  m.impl("dense_dim", at::native::dense_dim_sparse);
  m.impl("is_coalesced", at::native::is_coalesced_sparse);
  m.impl("_coalesced_", at::native::_coalesced_sparse_);
  m.impl("_copy_from", copy_sparse_from);
  m.impl("copy_sparse_to_sparse_", at::native::copy_sparse_);
  m.impl("clone", at::native::clone_sparse);
}

}  // namespace

gpu::EmulatedGpu& emulated_gpu(int number) { return *gpus()[static_cast<std::size_t>(number)]; }

int copies_by_host(int number) { return copies[static_cast<std::size_t>(number)]; }

bool is_recorded(const at::Tensor& tensor, const c10::Stream& stream) {
  const std::scoped_lock lock(memory_mutex);
  return recorded.contains({tensor.storage().data_ptr().get(), stream.id()});
}

c10::Stream new_stream(int number) {
  const auto id = reinterpret_cast<c10::StreamId>(emulated_gpu(number).make_stream());
  return c10::Stream(c10::Stream::UNSAFE, emulated_device(number), id);
}

}  // namespace nzcl::test
