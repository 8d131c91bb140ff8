#include "runtime/gpu/cuda/cuda_driver.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <unistd.h>

#include <memory>
#include <optional>
#include <variant>

#include "nzcl/error.h"

namespace nzcl::gpu {
namespace {

constexpr const char* kLibrary = "libcuda.so.1";

[[noreturn]] void reject(const std::string& why) {
  throw Error(ErrorCode::unavailable,
              "no CUDA driver: " + why + "; memory of a GPU needs NVIDIA's driver on this machine");
}

}  // namespace

CudaDriver::CudaDriver(const char* library) {
  void* const opened = ::dlopen(library, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (opened == nullptr) {
    const char* const why = ::dlerror();
    reject(why != nullptr ? why : library);
  }
  const auto find = [&](auto& function, const char* name) {
    void* const symbol = ::dlsym(opened, name);
    if (symbol == nullptr) reject(fmt::format("{} has no {}, so it is older than CUDA 11.7", library, name));
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(symbol);
  };
#define NZCL_CUDA_FIND(name, arguments) find(name, #name);
  NZCL_CUDA_FUNCTIONS(NZCL_CUDA_FIND)
#undef NZCL_CUDA_FIND
}

void CudaDriver::initialize() {
  if (const cuda::Result result = cuInit(0); result != cuda::kSuccess) reject("cuInit: " + text_of(result));
}

const CudaDriver& CudaDriver::open() {
  // Both live as long as the process: works of communicators that are static objects may end late.
  static const auto* const outcome = [] {
    using Outcome = std::variant<std::unique_ptr<CudaDriver>, Error>;
    try {
      auto driver = std::make_unique<CudaDriver>(kLibrary);
      driver->initialize();
      return new Outcome(std::move(driver));
    } catch (const Error& e) {
      return new Outcome(e);
    }
  }();
  if (const auto* const error = std::get_if<Error>(outcome)) throw Error(*error);
  return *std::get<0>(*outcome);
}

bool CudaDriver::is_here() {
  // The kernel's part of the driver: of Linux, and of Linux under Windows.
  for (const char* const file : {"/dev/nvidiactl", "/dev/dxg"}) {
    if (::access(file, F_OK) == 0) return true;
  }
  return ::dlopen(kLibrary, RTLD_NOW | RTLD_NOLOAD | RTLD_NODELETE) != nullptr;
}

const CudaDriver* CudaDriver::opened_by_process() {
  if (::dlopen(kLibrary, RTLD_NOW | RTLD_NOLOAD | RTLD_NODELETE) == nullptr) return nullptr;
  // Not open(): as long as nobody has initialised the driver, there is no memory of a GPU, and it takes long.
  static const auto* const driver = []() -> const CudaDriver* {
    try {
      return new CudaDriver(kLibrary);
    } catch (const Error&) {
      return nullptr;
    }
  }();
  return driver;
}

std::string CudaDriver::text_of(cuda::Result result) const {
  const char *name = nullptr, *sentence = nullptr;
  if (cuGetErrorName(result, &name) != cuda::kSuccess || name == nullptr)
    return fmt::format("CUDA error {}", result);
  if (cuGetErrorString(result, &sentence) != cuda::kSuccess || sentence == nullptr) return name;
  return fmt::format("{} ({})", name, sentence);
}

void CudaDriver::check(cuda::Result result, const char* what) const {
  if (result != cuda::kSuccess) throw Error(ErrorCode::system, fmt::format("{}: {}", what, text_of(result)));
}

std::string CudaDriver::version() const {
  int version = 0;
  NZCL_CUDA_CALL(*this, cuDriverGetVersion, &version);
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

}  // namespace nzcl::gpu
