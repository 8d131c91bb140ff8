// The exported functions of libfabric. Each calls the function of the same name in the library, which is
// loaded when the first of them is called.
//
// A program that only links nzcl, or that uses another transport, must not pay for libfabric: loading it also
// loads the libraries of its providers, some of which catch signals in their constructors. All other
// functions of libfabric are inline in its headers and go through tables in its objects.
#include <dlfcn.h>
#include <fmt/format.h>
#include <rdma/fabric.h>

#include <cstring>

#include "nzcl/error.h"
#include "verbs/ofi/keep_signals.h"

namespace {

/// The loaded library. It is never unloaded, because providers may leave threads behind. The default version
/// of each function is right, because all fi_info objects are made inside the library and later versions only
/// append fields to them.
class Library {
 public:
  Library() {
    const nzcl::verbs::ofi::KeepSignals keep;
    handle_ = ::dlopen("libfabric.so.1", RTLD_NOW | RTLD_LOCAL);
    if (handle_ == nullptr)
      throw nzcl::Error(
          nzcl::ErrorCode::unavailable,
          fmt::format("libfabric can't be loaded: {}; install it (Debian: libfabric1)", ::dlerror()));
    find(getinfo, "fi_getinfo");
    find(freeinfo, "fi_freeinfo");
    find(dupinfo, "fi_dupinfo");
    find(fabric, "fi_fabric");
    find(strerror, "fi_strerror");
  }

  decltype(&fi_getinfo) getinfo;
  decltype(&fi_freeinfo) freeinfo;
  decltype(&fi_dupinfo) dupinfo;
  decltype(&fi_fabric) fabric;
  decltype(&fi_strerror) strerror;

 private:
  template <typename F>
  void find(F& function, const char* name) {
    void* const found = ::dlsym(handle_, name);
    if (found == nullptr)
      throw nzcl::Error(nzcl::ErrorCode::unavailable,
                        fmt::format("the installed libfabric has no function {}; install a newer one", name));
    std::memcpy(&function, &found, sizeof function);
  }
  void* handle_ = nullptr;
};

/// Loads the library at the first call. Throws Error{unavailable} at every call if there is none.
const Library& library() {
  static const Library loaded;
  return loaded;
}

}  // namespace

// These are not visible outside of nzcl (-fvisibility=hidden), so that a program which uses libfabric itself
// calls its own.

int fi_getinfo(std::uint32_t version, const char* node, const char* service, std::uint64_t flags,
               const fi_info* hints, fi_info** info) {
  const Library& fabric = library();
  const nzcl::verbs::ofi::KeepSignals keep;  // the first call initialises the providers
  return fabric.getinfo(version, node, service, flags, hints, info);
}
void fi_freeinfo(fi_info* info) { library().freeinfo(info); }
fi_info* fi_dupinfo(const fi_info* info) { return library().dupinfo(info); }
int fi_fabric(fi_fabric_attr* attributes, fid_fabric** fabric, void* context) {
  return library().fabric(attributes, fabric, context);
}
const char* fi_strerror(int code) { return library().strerror(code); }
