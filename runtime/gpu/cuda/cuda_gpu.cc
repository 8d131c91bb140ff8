#include "runtime/gpu/cuda/cuda_gpu.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <type_traits>

#include "nzcl/error.h"
#include "runtime/base/list_text.h"
#include "runtime/gpu/cuda/ptx.h"

namespace nzcl::gpu {
namespace {

/// The instructions of the kernels, among them those of warps that name their lanes, begin with it.
constexpr int kLeastComputeMajor = 7;
/// What SharedMemory says of memory of this driver's.
constexpr std::uint32_t kKindCuda = 1;

cuda::Device device_number(const CudaDriver& driver, int ordinal) {
  cuda::Device device = 0;
  NZCL_CUDA_CALL(driver, cuDeviceGet, &device, ordinal);
  return device;
}

int attribute(const CudaDriver& driver, cuda::Device device, int which) {
  int value = 0;
  NZCL_CUDA_CALL(driver, cuDeviceGetAttribute, &value, which, device);
  return value;
}

std::string describe(const CudaDriver& driver, int ordinal) {
  const cuda::Device device = device_number(driver, ordinal);
  std::array<char, 256> name{};
  NZCL_CUDA_CALL(driver, cuDeviceGetName, name.data(), static_cast<int>(name.size()) - 1, device);
  return fmt::format("GPU {}: {}, compute capability {}.{}", ordinal, name.data(),
                     attribute(driver, device, cuda::kComputeMajor),
                     attribute(driver, device, cuda::kComputeMinor));
}

/// Why NICs cannot use the GPU's memory, or nothing.
std::optional<std::string> why_not_lent(const CudaDriver& driver, cuda::Device device) {
  if (attribute(driver, device, cuda::kDmabufSupported) == 0)
    return "its driver lends no memory to NICs (dmabuf); NVIDIA's open kernel modules do";
  if (attribute(driver, device, cuda::kRdmaWritesOrdering) < cuda::kOrderedForOwner)
    return "its kernels may not see what NICs have written, without a flush that nzcl does not make";
  return std::nullopt;
}

/// The other GPUs whose memory this one reads, as the end of a line.
std::string describe_peers(const CudaDriver& driver, int ordinal, int count) {
  std::string peers;
  for (int other = 0; other < count; ++other) {
    int can = 0;
    if (other != ordinal)
      NZCL_CUDA_CALL(driver, cuDeviceCanAccessPeer, &can, device_number(driver, ordinal),
                     device_number(driver, other));
    if (can != 0) append_item(peers, other);
  }
  if (count == 1) return "";
  return peers.empty() ? ", reads no other GPU's memory" : ", reads the memory of GPU " + peers;
}

cuda::Stream stream_of(Stream stream) { return static_cast<cuda::Stream>(stream); }

template <typename T>
cuda::DevicePointer pointer_of(T* at) {
  return reinterpret_cast<cuda::DevicePointer>(at);
}

std::uint64_t number_of(const void* at) { return reinterpret_cast<std::uintptr_t>(at); }

}  // namespace

/// Makes the GPU's context the current one of this thread, for a while.
class CudaGpu::InContext {
 public:
  explicit InContext(const CudaGpu& gpu) : driver_(gpu.driver_) {
    NZCL_CUDA_CALL(driver_, cuCtxPushCurrent_v2, gpu.context_);
    driver_.cuThreadExchangeStreamCaptureMode(&mode_);
  }
  ~InContext() {
    driver_.cuThreadExchangeStreamCaptureMode(&mode_);
    cuda::Context own = nullptr;
    driver_.cuCtxPopCurrent_v2(&own);
  }
  InContext(const InContext&) = delete;
  InContext& operator=(const InContext&) = delete;

 private:
  const CudaDriver& driver_;
  int mode_ = cuda::kCaptureModeRelaxed;  // and, within, what the thread's was before
};

std::shared_ptr<CudaGpu> CudaGpu::number(const CudaDriver& driver, int ordinal) {
  static auto* const mutex = new std::mutex;
  static auto* const made = new std::map<int, std::shared_ptr<CudaGpu>>;  // as long as the process
  const std::scoped_lock lock(*mutex);
  auto& gpu = (*made)[ordinal];
  if (!gpu) gpu.reset(new CudaGpu(driver, ordinal));
  return gpu;
}

int CudaGpu::count(const CudaDriver& driver) {
  int count = 0;
  NZCL_CUDA_CALL(driver, cuDeviceGetCount, &count);
  return count;
}

std::vector<std::string> CudaGpu::describe_all(const CudaDriver& driver) {
  std::vector<std::string> lines;
  const int gpus = count(driver);
  for (int i = 0; i < gpus; ++i) {
    const bool old = attribute(driver, device_number(driver, i), cuda::kComputeMajor) < kLeastComputeMajor;
    lines.push_back(describe(driver, i) + describe_peers(driver, i, gpus) +
                    (why_not_lent(driver, device_number(driver, i)) ? "" : ", NICs reach its memory") +
                    (old ? ", too old: 7.0 is needed" : ""));
  }
  if (lines.empty()) lines.emplace_back("none: the CUDA driver has none");
  lines.push_back("driver for CUDA " + driver.version() +
                  (*kPtx == '\0' ? "; but this build has no kernels for it, because clang was missing" : ""));
  return lines;
}

CudaGpu::CudaGpu(const CudaDriver& driver, int ordinal)
    : driver_(driver), ordinal_(ordinal), name_(describe(driver, ordinal)) {
  const cuda::Device device = device_number(driver, ordinal);
  if (attribute(driver, device, cuda::kComputeMajor) < kLeastComputeMajor)
    throw Error(ErrorCode::unsupported, name_ + " is too old; nzcl needs compute capability 7.0");
  if (*kPtx == '\0')
    throw Error(ErrorCode::unsupported,
                "this build of nzcl has no kernels for GPUs, because clang was missing; build it with clang");
  NZCL_CUDA_CALL(driver_, cuDevicePrimaryCtxRetain, &context_, device);
  load_kernels();
  run_kernels_once();
}

void CudaGpu::load_kernels() {
  const InContext in_context(*this);
  std::array<char, 4096> log{};
  std::array options{cuda::kJitErrorLog, cuda::kJitErrorLogBytes};
  std::array<void*, 2> values{log.data(), reinterpret_cast<void*>(log.size() - 1)};
  cuda::Module module = nullptr;
  const cuda::Result result =
      driver_.cuModuleLoadDataEx(&module, kPtx, options.size(), options.data(), values.data());
  if (result != cuda::kSuccess)
    throw Error(ErrorCode::system, fmt::format("{}: the driver does not compile the kernels: {}: {}", name_,
                                               driver_.text_of(result), log.data()));
  for (const std::size_t unit : {1, 2, 4, 8, 16}) {
    NZCL_CUDA_CALL(driver_, cuModuleGetFunction, &pack_[unit], module,
                   fmt::format("nzcl_pack_{}", unit).c_str());
    NZCL_CUDA_CALL(driver_, cuModuleGetFunction, &tiles_[unit], module,
                   fmt::format("nzcl_tiles_{}", unit).c_str());
    NZCL_CUDA_CALL(driver_, cuModuleGetFunction, &place_[unit], module,
                   fmt::format("nzcl_place_{}", unit).c_str());
    NZCL_CUDA_CALL(driver_, cuModuleGetFunction, &list_[unit], module,
                   fmt::format("nzcl_list_{}", unit).c_str());
  }
  for (std::size_t pass = 0; pass < kSelectPasses; ++pass)
    NZCL_CUDA_CALL(driver_, cuModuleGetFunction, &passes_[pass], module,
                   fmt::format("nzcl_select_{}", pass).c_str());
  for (std::size_t type = 0; type < kSumTypes; ++type)
    NZCL_CUDA_CALL(driver_, cuModuleGetFunction, &sums_[type], module,
                   fmt::format("nzcl_sum_{}", type).c_str());
}

/// Runs each kernel once, with nothing to do. A driver may load a kernel only when it is launched first, and
/// may wait for all work of the GPU then; but that may already wait for the very operation that launches it.
void CudaGpu::run_kernels_once() {
  const PinnedMemory page = pin(2 * sizeof(RankSearch));
  const Stream stream = make_stream();
  for (const std::size_t unit : {1, 2, 4, 8, 16}) {
    PackJob pack{
        .shape = {}, .flags = reinterpret_cast<std::uint32_t*>(page.device), .value = 1, .known = true};
    PlaceJob place{.shape = {}};
    launch(pack_[unit], stream, 1, 1, &pack);
    TilesJob tiles{.shape = {}, .counts = reinterpret_cast<std::uint32_t*>(page.device)};
    launch(tiles_[unit], stream, 1, 1, &tiles);
    launch(place_[unit], stream, 1, 1, &place);
    ListJob list;
    launch(list_[unit], stream, 1, 0, &list);
  }
  SelectJob nothing;
  std::byte* room = page.device;  // zeros, a word for each array
  nothing.each_array([&](auto*& at, std::size_t) {
    at = reinterpret_cast<std::remove_reference_t<decltype(at)>>(room);
    room += sizeof(std::uint64_t);
  });
  nothing.velocity = nullptr;
  nothing.search = reinterpret_cast<RankSearch*>(page.device + sizeof(RankSearch));
  for (std::size_t pass = 0; pass < kSelectPasses; ++pass) {
    nothing.pass = static_cast<SelectPass>(pass);
    launch(passes_[pass], stream, 1, 2 * SelectJob::kWords, &nothing);
  }
  SumJob no_ranks{.shape = {}, .union_bits = reinterpret_cast<std::uint64_t*>(page.device)};
  for (std::size_t type = 0; type < kSumTypes; ++type) {
    no_ranks.type = static_cast<SumType>(type);
    launch(sums_[type], stream, 1, 1, &no_ranks);
  }
  synchronize(stream);
  destroy_stream(stream);
  unpin(page);
}

/// Ordinary pages that the driver pins, so that every transport can send from them too.
PinnedMemory CudaGpu::pin(std::size_t bytes) {
  void* const at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED)
    throw Error(ErrorCode::system,
                fmt::format("no {} bytes to pin for a GPU: {}", bytes, std::strerror(errno)));
  try {
    const InContext in_context(*this);
    NZCL_CUDA_CALL(driver_, cuMemHostRegister_v2, at, bytes,
                   cuda::kHostRegisterPortable | cuda::kHostRegisterMapped);
    cuda::DevicePointer seen = 0;
    NZCL_CUDA_CALL(driver_, cuMemHostGetDevicePointer_v2, &seen, at, 0);
    return {
        .host = static_cast<std::byte*>(at), .device = reinterpret_cast<std::byte*>(seen), .bytes = bytes};
  } catch (...) {
    ::munmap(at, bytes);
    throw;
  }
}

void CudaGpu::unpin(const PinnedMemory& memory) noexcept {
  try {
    const InContext in_context(*this);
    driver_.cuMemHostUnregister(memory.host);
  } catch (const Error&) {  // the context is gone, and the pages are no more pinned
  }
  ::munmap(memory.host, memory.bytes);
}

SharedMemory CudaGpu::share(std::byte* memory) {
  const InContext in_context(*this);
  SharedMemory shared{.process = static_cast<std::uint64_t>(::getpid()),
                      .address = number_of(memory),
                      .bytes = 0,
                      .kind = kKindCuda,
                      .number = static_cast<std::uint32_t>(ordinal_)};
  cuda::IpcHandle handle{};
  cuda::DevicePointer base = 0;
  NZCL_CUDA_CALL(driver_, cuMemGetAddressRange_v2, &base, &shared.bytes, pointer_of(memory));
  NZCL_CUDA_CALL(driver_, cuIpcGetMemHandle, &handle, pointer_of(memory));
  std::memcpy(shared.handle.data(), &handle, sizeof handle);
  return shared;
}

std::byte* CudaGpu::open(const SharedMemory& memory) {
  if (memory.kind != kKindCuda) throw Error(ErrorCode::unsupported, "memory of another kind of GPU");
  if (memory.process == static_cast<std::uint64_t>(::getpid())) return open_of_own_process(memory);
  const InContext in_context(*this);
  cuda::IpcHandle handle{};
  std::memcpy(&handle, memory.handle.data(), sizeof handle);
  cuda::DevicePointer at = 0;
  const cuda::Result result = driver_.cuIpcOpenMemHandle_v2(&at, handle, cuda::kIpcLazyEnablePeerAccess);
  if (result != cuda::kSuccess)
    throw Error(ErrorCode::unsupported, fmt::format("{}: memory of process {}: cuIpcOpenMemHandle: {}", name_,
                                                    memory.process, driver_.text_of(result)));
  return reinterpret_cast<std::byte*>(at);
}

/// A process cannot open a handle that it has made itself, and need not.
std::byte* CudaGpu::open_of_own_process(const SharedMemory& memory) {
  if (const auto ordinal = static_cast<int>(memory.number); ordinal != ordinal_) {
    const InContext in_context(*this);
    const cuda::Result result = driver_.cuCtxEnablePeerAccess(number(driver_, ordinal)->context_, 0);
    if (result != cuda::kSuccess && result != cuda::kPeerAccessAlreadyEnabled)
      throw Error(ErrorCode::unsupported, fmt::format("{}: GPU {}: cuCtxEnablePeerAccess: {}", name_, ordinal,
                                                      driver_.text_of(result)));
  }
  return reinterpret_cast<std::byte*>(memory.address);
}

void CudaGpu::close(const SharedMemory& memory, std::byte* opened) noexcept {
  if (memory.process == static_cast<std::uint64_t>(::getpid())) return;
  try {
    const InContext in_context(*this);
    driver_.cuIpcCloseMemHandle(pointer_of(opened));
  } catch (const Error&) {  // with its context the mapping is gone too
  }
}

LentMemory CudaGpu::lend(std::span<std::byte> bytes) {
  if (const auto why = why_not_lent(driver_, device_number(driver_, ordinal_)))
    throw Error(ErrorCode::unsupported, fmt::format("{}: {}", name_, *why));
  const InContext in_context(*this);
  int descriptor = -1;
  NZCL_CUDA_CALL(driver_, cuMemGetHandleForAddressRange, &descriptor, pointer_of(bytes.data()), bytes.size(),
                 cuda::kRangeHandleDmabuf, 0);
  return {verbs::Fd(descriptor), 0};
}

gpu::Stream CudaGpu::make_stream() {
  const InContext in_context(*this);
  cuda::Stream stream = nullptr;
  NZCL_CUDA_CALL(driver_, cuStreamCreate, &stream, cuda::kStreamNonBlocking);
  return stream;
}

void CudaGpu::destroy_stream(gpu::Stream stream) noexcept {
  try {
    const InContext in_context(*this);
    driver_.cuStreamDestroy_v2(stream_of(stream));
  } catch (const Error&) {  // with its context the stream is gone too
  }
}

bool CudaGpu::captures(gpu::Stream stream) {
  const InContext in_context(*this);
  int status = cuda::kCaptureStatusNone;
  NZCL_CUDA_CALL(driver_, cuStreamIsCapturing, stream_of(stream), &status);
  return status != cuda::kCaptureStatusNone;
}

void CudaGpu::launch(cuda::Function kernel, gpu::Stream stream, std::uint64_t slices, std::uint64_t words,
                     void* job) {
  const InContext in_context(*this);
  std::array<void*, 1> arguments{job};
  const auto grid = static_cast<unsigned>(std::max<std::uint64_t>(slices, 1));
  NZCL_CUDA_CALL(driver_, cuLaunchKernel, kernel, grid, 1, 1, kThreads, 1, 1,
                 static_cast<unsigned>(shared_bytes(words)), stream_of(stream), arguments.data(), nullptr);
}

void CudaGpu::pack(gpu::Stream stream, const PackJob& job) {
  const Shape& shape = job.shape;
  const unsigned unit =
      unit_bytes(number_of(job.tensor), number_of(job.packed), shape.block_bytes, shape.bytes);
  PackJob copy = job;
  launch(pack_[unit], stream, shape.slices(), shape.words_per_slice(), &copy);
}

void CudaGpu::pack_tiles(gpu::Stream stream, const TilesJob& job) {
  const Shape& shape = job.shape;
  const unsigned unit =
      unit_bytes(number_of(job.tensor), number_of(job.packed), shape.block_bytes, shape.bytes);
  TilesJob copy = job;
  launch(tiles_[unit], stream, shape.slices(), shape.words_per_slice(), &copy);
}

void CudaGpu::place(gpu::Stream stream, const PlaceJob& job) {
  const Shape& shape = job.shape;
  const unsigned unit =
      unit_bytes(number_of(job.tensor), number_of(job.staged), shape.block_bytes, shape.bytes);
  PlaceJob copy = job;
  const std::uint64_t words = shape.words_per_slice();
  launch(place_[unit], stream, job.slices, words <= kMostSliceWords ? words : 0, &copy);
}

void CudaGpu::sum(gpu::Stream stream, const SumJob& job) {
  SumJob copy = job;
  launch(sums_[static_cast<std::size_t>(job.type)], stream, job.shape.slices(), job.shared_words(), &copy);
}

void CudaGpu::copy_list(gpu::Stream stream, const ListJob& job) {
  const unsigned unit = unit_bytes(number_of(job.values.from), number_of(job.values.to),
                                   number_of(job.indices.from), number_of(job.indices.to));
  ListJob copy = job;
  launch(list_[unit], stream, job.runners, 0, &copy);
}

void CudaGpu::run_pass(gpu::Stream stream, const SelectJob& job) {
  SelectJob copy = job;
  launch(passes_[static_cast<std::size_t>(job.pass)], stream, job.runners(), 2 * SelectJob::kWords, &copy);
}

void CudaGpu::raise(gpu::Stream stream, std::uint32_t* flag, std::uint32_t value) {
  const InContext in_context(*this);
  NZCL_CUDA_CALL(driver_, cuStreamWriteValue32_v2, stream_of(stream), pointer_of(flag), value,
                 cuda::kWriteDefault);
}

void CudaGpu::await(gpu::Stream stream, std::uint32_t* flag, std::uint32_t value) {
  const InContext in_context(*this);
  NZCL_CUDA_CALL(driver_, cuStreamWaitValue32_v2, stream_of(stream), pointer_of(flag), value,
                 cuda::kWaitForGreaterOrEqual);
}

void CudaGpu::call(gpu::Stream stream, HostFunction function, void* argument) {
  const InContext in_context(*this);
  NZCL_CUDA_CALL(driver_, cuLaunchHostFunc, stream_of(stream), function, argument);
}

std::optional<std::string> CudaGpu::why_broken(gpu::Stream stream) noexcept {
  try {
    const InContext in_context(*this);
    const cuda::Result result = driver_.cuStreamQuery(stream_of(stream));
    if (result == cuda::kSuccess || result == cuda::kNotReady) return std::nullopt;
    return name_ + ": " + driver_.text_of(result);
  } catch (const Error& e) {
    return e.what();
  }
}

std::byte* CudaGpu::allocate(std::size_t bytes) {
  const InContext in_context(*this);
  cuda::DevicePointer at = 0;
  NZCL_CUDA_CALL(driver_, cuMemAlloc_v2, &at, bytes);
  return reinterpret_cast<std::byte*>(at);
}

void CudaGpu::free(std::byte* memory) noexcept {
  try {
    const InContext in_context(*this);
    driver_.cuMemFree_v2(pointer_of(memory));
  } catch (const Error&) {  // with its context the memory is gone too
  }
}

void CudaGpu::copy(gpu::Stream stream, void* to, const void* from, std::size_t bytes) {
  const InContext in_context(*this);
  NZCL_CUDA_CALL(driver_, cuMemcpyAsync, pointer_of(to), number_of(from), bytes, stream_of(stream));
}

void CudaGpu::synchronize(gpu::Stream stream) {
  const InContext in_context(*this);
  NZCL_CUDA_CALL(driver_, cuStreamSynchronize, stream_of(stream));
}

}  // namespace nzcl::gpu
