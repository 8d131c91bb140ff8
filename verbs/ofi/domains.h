// The domains of a libfabric device, and the memory that is registered with them.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>

#include "verbs/ofi/handles.h"
#include "verbs/transport.h"

namespace nzcl::verbs::ofi {

/// Has one domain for all endpoints, or one for each. Memory is registered with every domain under one key,
/// so that it does not matter through which endpoint a peer writes it.
///
/// Over TCP the key is all that keeps a stranger out: whoever reaches the port may write where he knows a key
/// (runtime/bootstrap/SECURITY.md). So wherever the provider lets the caller choose keys, they count from a
/// random number with one bit less than a key has.
///
/// The TCP providers of libfabric 1.17 look a key up while another thread registers memory or takes it out,
/// and then miss keys that are there (verbs/GOTCHAS.md). So an endpoint of theirs holds a lock while it calls
/// libfabric, and each of these changes takes it.
///
/// The TCP providers need a domain for each endpoint. They progress a whole domain whenever one of its
/// endpoints is polled, and a connection that an endpoint has accepted, but not answered yet, outlives the
/// endpoint there: the next poll of another one reads freed memory (libfabric 1.17). Communicators that share
/// a device are closed while others work.
///
/// Must outlive the regions and domains that it returns. Thread-safe.
class Domains {
 public:
  /// What an endpoint gets.
  struct ForEndpoint {
    std::shared_ptr<fid_domain> domain;
    std::mutex* keys;  ///< to be held during calls that may look up keys; null if libfabric needs no help
  };

  Domains(fid_fabric* fabric, fi_info* info, std::string device_name);

  /// The domain for a new endpoint. What is opened in it must be closed before the pointer is released.
  ForEndpoint for_endpoint();
  /// Throws Error{system} with advice when the memory cannot be registered.
  std::unique_ptr<MemoryRegion> register_memory(std::span<std::byte> bytes);

 private:
  class Region;
  using Memory = std::map<std::uint64_t, Handle<fid_mr>>;  // by Region::number_
  struct Domain {
    Handle<fid_domain> domain;
    std::unique_ptr<std::mutex> keys;  // is held while `memory` changes; taken behind mutex_
    Memory memory;                     // declared after the domain, because it must be closed first
  };
  Handle<fid_domain> open() const;
  static std::uint64_t draw_first_number(const fi_info& info);
  Handle<fid_mr> enroll(fid_domain* domain, std::span<std::byte> bytes, std::uint64_t number) const;
  void close(const fid_domain* domain) noexcept;
  void remove(std::uint64_t region) noexcept;

  fid_fabric* const fabric_;
  fi_info* const info_;
  const std::string device_name_;
  const bool one_each_;

  std::mutex mutex_;           // guards all below
  std::uint64_t next_region_;  // the number of the next region, which is its key where the caller chooses it
  std::map<std::uint64_t, std::span<std::byte>> regions_;
  std::list<Domain> domains_;  // one_each_: those of open endpoints; otherwise always the same one
};

}  // namespace nzcl::verbs::ofi
