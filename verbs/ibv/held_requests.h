// Work requests for peers that are not connected yet.
#pragma once

#include <infiniband/verbs.h>

#include <array>
#include <cstddef>
#include <vector>

#include "verbs/ibv/constants.h"
#include "verbs/transport.h"

namespace nzcl::verbs::ibv {

/// Room for as many requests as an endpoint may have in flight. It allocates only when it is constructed.
class HeldRequests {
 public:
  explicit HeldRequests(std::size_t count) : entries_(count) {
    free_.reserve(count);
    for (Entry& entry : entries_) free_.push_back(&entry);
  }
  /// A request, with room for a gather list. Precondition: fewer than `count` requests are held.
  ibv_send_wr& hold(ibv_sge*& segments) {
    Entry& entry = *free_.back();
    free_.pop_back();
    segments = entry.segments.data();
    return entry.request;
  }
  /// Gives the requests of a list back.
  void release(ibv_send_wr* list) {
    while (list != nullptr) {
      ibv_send_wr* const next = list->next;
      free_.push_back(reinterpret_cast<Entry*>(list));
      list = next;
    }
  }

 private:
  struct Entry {
    ibv_send_wr request{};  // the first member, so that its address is that of the entry
    std::array<ibv_sge, kMaxSegments> segments{};
  };
  std::vector<Entry> entries_;
  std::vector<Entry*> free_;
};

}  // namespace nzcl::verbs::ibv
