// Ranks meet through c10d's own store.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "nzcl/allgather.h"
#include "nzcl/error.h"
#include "runtime/torch/error_text.h"

namespace nzcl_torch {

/// Returns an allgather through the store. Each round has keys of its own, "nzcl/GENERATION/ROUND/RANK". The
/// generation counts the groups that this rank has made with the store, whose earlier ones left their keys.
/// The store's wait throws when a rank does not come, and does not say which; so ranks are waited for one by
/// one, and named.
inline nzcl::AllgatherCallback meeting_in(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                                          std::chrono::milliseconds timeout) {
  const std::int64_t generation = store->add("nzcl/generation/" + std::to_string(rank), 1);
  return [=, round = std::make_shared<int>(0)](std::string_view mine) {
    const std::string prefix = "nzcl/" + std::to_string(generation) + "/" + std::to_string((*round)++) + "/";
    store->set(prefix + std::to_string(rank), std::vector<std::uint8_t>(mine.begin(), mine.end()));
    const auto deadline = std::chrono::steady_clock::now() + timeout;
    std::vector<std::string> all;
    for (int r = 0; r < size; ++r) {
      const std::string key = prefix + std::to_string(r);
      const auto left =
          std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
      try {
        store->wait({key}, std::max(left, std::chrono::milliseconds(1)));
        const auto bytes = store->get(key);
        all.emplace_back(bytes.begin(), bytes.end());
      } catch (const std::exception& e) {
        throw nzcl::Error(nzcl::ErrorCode::timeout,
                          "rank " + std::to_string(r) + " has not come to c10d's store: " + text_of(e));
      }
    }
    return all;
  };
}

}  // namespace nzcl_torch
