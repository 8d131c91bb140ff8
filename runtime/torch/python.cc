// The Python module nzcl_torch._C, around which nzcl_torch/__init__.py is written.
#include <pybind11/chrono.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <torch/csrc/distributed/c10d/reducer.hpp>

#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "runtime/torch/bucket_hook.h"
#include "runtime/torch/fallback_wanted.h"
#include "runtime/torch/process_group.h"

namespace {

namespace py = pybind11;
using nzcl_torch::BucketHook;
using nzcl_torch::GroupBase;
using nzcl_torch::Way;

/// Closing waits for the communicator's callbacks, and these may wait for Python's lock. When Python has
/// ended there is no lock any more, and close_all() has closed.
void without_lock(const std::function<void()>& close) {
  if (Py_IsInitialized() == 0 || PyGILState_Check() == 0) return close();
  const py::gil_scoped_release release;
  close();
}

/// The groups that Python has made and that may still live.
class Groups {
 public:
  void add(const c10::intrusive_ptr<GroupBase>& group) {
    const std::scoped_lock lock(mutex_);
    std::erase_if(groups_, [](const auto& g) { return g.expired(); });
    groups_.emplace_back(group);
  }
  /// Closes them. If there is a reason to, all are failed before, so that no member of one waits for another.
  void close_all(const std::string& failure) {
    std::vector<c10::intrusive_ptr<GroupBase>> living;
    {
      const std::scoped_lock lock(mutex_);
      for (const auto& g : groups_)
        if (auto group = g.lock(); group.defined()) living.push_back(std::move(group));
      groups_.clear();
    }
    if (!failure.empty())
      for (const auto& group : living) nzcl_torch::abort(*group, failure);
    for (const auto& group : living) nzcl_torch::close(*group);
  }

 private:
  std::mutex mutex_;
  std::vector<c10::weak_intrusive_ptr<GroupBase>> groups_;
};

Groups& groups() {
  static Groups all;
  return all;
}

c10::intrusive_ptr<GroupBase> create(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                     std::chrono::milliseconds timeout) {
  const auto group = nzcl_torch::make_process_group(store, rank, size, timeout, without_lock);
  groups().add(group);
  return group;
}

/// The communicator of a group that is to be made, among ranks that have no store in common yet.
struct Successor {
  nzcl::Communicator communicator;

  /// Collective: returns what rank 0 says, of at most kLongest bytes.
  std::string first_says(std::string text) {
    constexpr std::size_t kLongest = 4096;
    if (text.size() > kLongest) throw std::length_error("rank 0 says too much");
    text.resize(kLongest);
    const auto registered = communicator.register_buffer(text.data(), text.size());
    communicator
        .broadcast({.data = text.data(), .count = text.size(), .type = nzcl::DataType::uint8, .root = 0})
        .wait();
    text.resize(text.find_last_not_of('\0') + 1);
    return text;
  }
};

std::shared_ptr<Successor> shrink(const c10::intrusive_ptr<GroupBase>& group) {
  return std::make_shared<Successor>(Successor{nzcl_torch::shrink(*group)});
}

c10::intrusive_ptr<GroupBase> create_from(Successor& successor, const c10::intrusive_ptr<c10d::Store>& store,
                                          std::chrono::milliseconds timeout) {
  const auto group =
      nzcl_torch::make_process_group(std::move(successor.communicator), store, timeout, without_lock);
  groups().add(group);
  return group;
}

/// Python runs this at its end, while other threads can still take its lock. Later they cannot: one that
/// tries, to run a callback or to let go of a tensor that Python has seen, is ended where it stands, and the
/// process with it.
void close_all(const std::string& failure) { groups().close_all(failure); }

std::shared_ptr<BucketHook> register_hook(c10d::Reducer& reducer, const c10::intrusive_ptr<GroupBase>& group,
                                          const std::vector<at::Tensor>& parameters,
                                          const std::string& compress, bool automatic, int tries,
                                          double more_steps, std::uint64_t start, std::uint64_t min_bytes,
                                          std::uint32_t convolution_bin) {
  const nzcl_torch::HookOptions options{.compress = compress,
                                        .automatic = automatic,
                                        .tries = tries,
                                        .more_steps = more_steps,
                                        .start = start,
                                        .min_bytes = min_bytes,
                                        .convolution_bin = convolution_bin};
  auto hook = std::make_shared<BucketHook>(group, options, parameters);
  reducer.register_comm_hook(nzcl_torch::comm_hook(hook));
  return hook;
}

py::object text_of(std::optional<Way> way) {
  if (!way) return py::none();
  return py::str(*way == Way::dense ? "dense" : "compressed");
}

py::dict dict_of(const nzcl::CompressionReport& r) {
  return py::dict(py::arg("steps") = r.steps, py::arg("elements") = r.elements, py::arg("sent") = r.sent,
                  py::arg("sent_total") = r.sent_total, py::arg("non_finite") = r.non_finite,
                  py::arg("coded_bytes") = r.coded_bytes, py::arg("element_ratio") = r.element_ratio,
                  py::arg("coded_ratio") = r.coded_ratio, py::arg("residual_norm") = r.residual_norm,
                  py::arg("result_residual_norm") = r.result_residual_norm,
                  py::arg("threshold") = r.threshold, py::arg("scale") = r.scale);
}

py::dict report(const BucketHook& hook) {
  py::list buckets;
  for (const nzcl_torch::BucketReport& r : hook.report()) {
    py::dict bucket(py::arg("parameters") = r.parameters, py::arg("elements") = r.elements,
                    py::arg("way") = r.way, py::arg("steps") = r.steps, py::arg("up_bytes") = r.up_bytes,
                    py::arg("up_bytes_total") = r.up_bytes_total);
    if (r.compression) bucket["compression"] = dict_of(*r.compression);
    buckets.append(bucket);
  }
  return py::dict(py::arg("steps") = hook.steps(), py::arg("chosen") = text_of(hook.chosen()),
                  py::arg("buckets") = buckets);
}

py::dict state_dict(const BucketHook& hook) {
  py::dict states;
  for (const auto& [name, bytes] : hook.save())
    states[py::str(name)] = py::bytes(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  return py::dict(py::arg("chosen") = text_of(hook.chosen()), py::arg("states") = states);
}

void load_state_dict(BucketHook& hook, const py::dict& saved) {
  std::map<std::string, std::vector<std::byte>> states;
  for (const auto& [name, bytes] : saved["states"].cast<std::map<std::string, std::string>>()) {
    const auto* const begin = reinterpret_cast<const std::byte*>(bytes.data());
    states[name] = {begin, begin + bytes.size()};
  }
  std::optional<Way> chosen;
  if (!saved["chosen"].is_none())
    chosen = saved["chosen"].cast<std::string>() == "dense" ? Way::dense : Way::compressed;
  hook.restore(std::move(states), chosen);
}

void set_timeout(const c10::intrusive_ptr<GroupBase>& group, std::chrono::milliseconds timeout) {
  nzcl_torch::set_timeout(*group, timeout);
}

py::dict statistics(const c10::intrusive_ptr<GroupBase>& group) {
  const nzcl::Statistics s = nzcl_torch::statistics(*group);
  return py::dict(py::arg("operations") = s.operations, py::arg("messages_sent") = s.messages_sent,
                  py::arg("bytes_sent") = s.bytes_sent, py::arg("bytes_received") = s.bytes_received,
                  py::arg("bytes_copied") = s.bytes_copied, py::arg("blocks_scanned") = s.blocks_scanned,
                  py::arg("gpu_sums") = s.gpu_sums, py::arg("gpu_direct_bytes") = s.gpu_direct_bytes,
                  py::arg("registered_storages") = nzcl_torch::registered_storages(*group));
}

}  // namespace

PYBIND11_MODULE(_C, module) {
  py::module_::import("torch.distributed");  // where the classes of the arguments and the result are known
  module.def("create", &create, py::arg("store"), py::arg("rank"), py::arg("size"), py::arg("timeout"),
             py::call_guard<py::gil_scoped_release>());
  py::class_<Successor, std::shared_ptr<Successor>>(module, "Successor")
      .def("rank", [](const Successor& s) { return s.communicator.rank(); })
      .def("size", [](const Successor& s) { return s.communicator.size(); })
      .def("first_says", &Successor::first_says, py::arg("text"), py::call_guard<py::gil_scoped_release>());
  module.def("shrink", &shrink, py::arg("group"), py::call_guard<py::gil_scoped_release>());
  module.def("create_from", &create_from, py::arg("successor"), py::arg("store"), py::arg("timeout"),
             py::call_guard<py::gil_scoped_release>());
  module.def("close_all", &close_all, py::arg("failure"), py::call_guard<py::gil_scoped_release>());
  module.def("fallback_forbidden", [] { return !nzcl_torch::fallback_wanted(); });
  module.def("set_timeout", &set_timeout, py::arg("group"), py::arg("timeout"));
  module.def("statistics", &statistics, py::arg("group"));
  module.def("register_hook", &register_hook, py::arg("reducer"), py::arg("group"), py::arg("parameters"),
             py::arg("compress"), py::arg("automatic"), py::arg("tries"), py::arg("more_steps"),
             py::arg("start"), py::arg("min_bytes"), py::arg("convolution_bin"));
  py::class_<BucketHook, std::shared_ptr<BucketHook>>(module, "BucketHook")
      .def("report", &report)
      .def("set_rate", &BucketHook::set_rate, py::arg("rate"))
      .def("state_dict", &state_dict)
      .def("load_state_dict", &load_state_dict, py::arg("state"));
}
