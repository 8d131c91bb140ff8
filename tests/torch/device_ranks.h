// Ranks of a process group that are threads, each with an emulated GPU.
#pragma once

#include <ATen/ATen.h>
#include <c10/core/StreamGuard.h>
#include <gtest/gtest.h>

#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/comm.hpp>

#include <exception>
#include <functional>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "runtime/torch/process_group.h"
#include "tests/torch/emulated_device.h"

namespace nzcl::test {

using nzcl_torch::GroupBase;
using Tensors = std::vector<at::Tensor>;

struct Rank {
  int number, size;
  GroupBase& group;
  c10::Device device;
  c10::Stream stream;  // the current one, which is not the default one

  /// The rank's part of a problem: whole numbers, so that sums have no rounding. Two thirds are zero.
  at::Tensor part(int of, at::IntArrayRef sizes, at::ScalarType type) const {
    at::Tensor t = at::arange(at::empty(sizes).numel(), at::kLong).view(sizes);
    return at::where((t + of) % 3 == 0, (t * (of + 3)) % 23, at::zeros_like(t)).to(type);
  }
  at::Tensor part(at::IntArrayRef sizes, at::ScalarType type = at::kFloat) const {
    return part(number, sizes, type);
  }
  at::Tensor sum(at::IntArrayRef sizes, at::ScalarType type = at::kFloat) const {
    at::Tensor all = part(0, sizes, type);
    for (int r = 1; r < size; ++r) all = all + part(r, sizes, type);
    return all;
  }
};

/// Runs `body` on every rank. Returns the ranks' errors, which are empty where there was none.
inline std::vector<std::string> run(int size, const std::function<void(Rank&)>& body) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::string> errors(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  for (int r = 0; r < size; ++r)
    threads.emplace_back([&, r] {
      try {
        const auto group = nzcl_torch::make_process_group(store, r, size, std::chrono::seconds(30));
        const c10::Stream stream = new_stream(r);
        const c10::StreamGuard guard(stream);
        Rank rank{r, size, *group, emulated_device(r), stream};
        body(rank);
      } catch (const std::exception& e) {
        errors[static_cast<std::size_t>(r)] = e.what();
      }
    });
  for (std::thread& thread : threads) thread.join();
  return errors;
}

inline void expect_success(int size, const std::function<void(Rank&)>& body) {
  for (const std::string& error : run(size, body)) EXPECT_EQ(error, "");
}

inline void expect_equal(const at::Tensor& device, const at::Tensor& expected, const std::string& what) {
  EXPECT_TRUE(at::equal(device.cpu(), expected)) << what;
}

/// A bucket with the gradient of one parameter. Newer libtorch wants to know also where a sparse gradient
/// lies.
template <class Bucket = c10d::GradBucket>
Bucket bucket_of(const at::Tensor& gradient, const at::Tensor& parameter) {
  const std::vector<std::size_t> offsets{0}, lengths{static_cast<std::size_t>(parameter.numel())};
  const std::vector<c10::IntArrayRef> sizes{parameter.sizes()};
  const Tensors parameters{parameter};
  if constexpr (std::is_constructible_v<Bucket, int, int, at::Tensor, decltype(offsets), decltype(lengths),
                                        decltype(sizes), Tensors>)
    return Bucket(0, 1, gradient, offsets, lengths, sizes, parameters);
  else
    return Bucket(0, 1, gradient, offsets, lengths, sizes, parameters, std::nullopt);
}

}  // namespace nzcl::test
