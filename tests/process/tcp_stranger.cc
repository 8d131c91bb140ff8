// A process that knows no secret of the job. It speaks libfabric to a rank's port, and tries to write into
// the rank's memory under keys that it guesses, or to announce messages that nobody has sent.
//   tcp_stranger ADDRESS PORT keys FIRST LAST        writes with each of these keys, at offset 0
//   tcp_stranger ADDRESS PORT immediate VALUE        sends an immediate, without any key
// Prints what became of it. Exits with 0 if the rank's transport took the connection, and otherwise with 2.
#include <arpa/inet.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_rma.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace {

constexpr std::chrono::seconds kPatience{3};

void require(long code, const char* what) {
  if (code >= 0) return;
  std::fprintf(stderr, "%s: %s\n", what, fi_strerror(static_cast<int>(-code)));
  std::exit(2);
}

fi_info* provider(const char* name) {
  fi_info* const hints = fi_allocinfo();
  hints->caps = FI_RMA | FI_WRITE | FI_REMOTE_WRITE;
  hints->mode = FI_CONTEXT | FI_CONTEXT2;
  hints->ep_attr->type = FI_EP_RDM;
  hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
  hints->fabric_attr->prov_name = ::strdup(name);
  fi_info* found = nullptr;
  const int code = fi_getinfo(FI_VERSION(1, 17), "127.0.0.1", nullptr, FI_SOURCE, hints, &found);
  fi_freeinfo(hints);
  return code == 0 ? found : nullptr;
}

/// An endpoint that is connected to nobody yet. It lives as long as the process.
struct Stranger {
  fid_fabric* fabric = nullptr;
  fid_domain* domain = nullptr;
  fid_av* addresses = nullptr;
  fid_cq* queue = nullptr;
  fid_ep* endpoint = nullptr;
  fi_addr_t rank = 0;
  std::array<float, 1024> poison;
  fi_context2 context{};

  Stranger(const char* address, int port) {
    poison.fill(1e9f);
    fi_info* info = provider("net");
    if (info == nullptr) info = provider("tcp");
    if (info == nullptr) std::exit(77);
    require(fi_fabric(info->fabric_attr, &fabric, nullptr), "fabric");
    require(fi_domain(fabric, info, &domain, nullptr), "domain");
    fi_av_attr table{};
    table.type = FI_AV_TABLE;
    require(fi_av_open(domain, &table, &addresses, nullptr), "address vector");
    fi_cq_attr data{};
    data.format = FI_CQ_FORMAT_DATA;
    require(fi_cq_open(domain, &data, &queue, nullptr), "completion queue");
    require(fi_endpoint(domain, info, &endpoint, nullptr), "endpoint");
    require(fi_ep_bind(endpoint, &addresses->fid, 0), "bind");
    require(fi_ep_bind(endpoint, &queue->fid, FI_TRANSMIT | FI_RECV), "bind");
    require(fi_enable(endpoint), "enable");
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<std::uint16_t>(port));
    ::inet_pton(AF_INET, address, &to.sin_addr);
    require(fi_av_insert(addresses, &to, 1, &rank, 0, nullptr) - 1, "address");
  }

  /// Returns true if the write has left. A wrong key makes the rank close the connection, which the next
  /// write finds out.
  bool write(const fi_msg_rma& message, std::uint64_t flags) {
    const auto end = std::chrono::steady_clock::now() + kPatience;
    bool posted = false;
    while (std::chrono::steady_clock::now() < end) {
      if (!posted) {
        const auto code = fi_writemsg(endpoint, &message, FI_COMPLETION | flags);
        if (code != 0 && code != -FI_EAGAIN) return false;
        posted = code == 0;
      }
      fi_cq_data_entry entry{};
      const auto n = fi_cq_read(queue, &entry, 1);
      if (n == 1) return true;
      if (n == -FI_EAVAIL) {
        fi_cq_err_entry error{};
        fi_cq_readerr(queue, &error, 0);
        return false;
      }
    }
    return false;
  }
  bool write_with_key(std::uint64_t key) {
    const iovec from{poison.data(), sizeof poison};
    const fi_rma_iov target{.addr = 0, .len = sizeof poison, .key = key};
    return write({.msg_iov = &from,
                  .desc = nullptr,
                  .iov_count = 1,
                  .addr = rank,
                  .rma_iov = &target,
                  .rma_iov_count = 1,
                  .context = &context,
                  .data = 0},
                 0);
  }
  bool announce(std::uint32_t immediate) {
    const fi_rma_iov nowhere{};
    return write({.msg_iov = nullptr,
                  .desc = nullptr,
                  .iov_count = 0,
                  .addr = rank,
                  .rma_iov = &nowhere,
                  .rma_iov_count = 0,
                  .context = &context,
                  .data = immediate},
                 FI_REMOTE_CQ_DATA);
  }
  /// Lets the transport send what it still holds.
  void linger() {
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(200);
    fi_cq_data_entry entry{};
    while (std::chrono::steady_clock::now() < end) fi_cq_read(queue, &entry, 1);
  }
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 5) return 2;
  const char* const address = argv[1];
  const int port = std::atoi(argv[2]);
  if (argv[3] == std::string("immediate")) {
    Stranger stranger(address, port);
    const bool sent = stranger.announce(static_cast<std::uint32_t>(std::strtoul(argv[4], nullptr, 0)));
    stranger.linger();
    std::puts(sent ? "announced" : "not announced");
    return sent ? 0 : 2;
  }
  if (argc < 6) return 2;
  int sent = 0;
  const std::uint64_t last = std::strtoull(argv[5], nullptr, 0);
  for (std::uint64_t key = std::strtoull(argv[4], nullptr, 0); key <= last; ++key) {
    Stranger stranger(address, port);  // a new connection, because the rank has closed the last one
    sent += stranger.write_with_key(key);
    if (sent == 0) break;  // nobody speaks libfabric at this port
    stranger.linger();
  }
  std::printf("%d writes left\n", sent);
  return sent > 0 ? 0 : 2;
}
