// The Python module nzcl_torch._C. It has one function; nzcl_torch/__init__.py tells torch.distributed of it.
#include <pybind11/chrono.h>
#include <torch/csrc/utils/pybind.h>

#include "runtime/torch/process_group.h"

namespace {

/// Closing waits for the communicator's callbacks, and these may wait for Python's lock.
void without_lock(const std::function<void()>& close) {
  if (PyGILState_Check() == 0) return close();
  const pybind11::gil_scoped_release release;
  close();
}

auto create(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
            std::chrono::milliseconds timeout) {
  return nzcl_torch::make_process_group(store, rank, size, timeout, without_lock);
}

}  // namespace

PYBIND11_MODULE(_C, module) {
  pybind11::module_::import(
      "torch.distributed");  // where the classes of the arguments and the result are known
  module.def("create", &create, pybind11::arg("store"), pybind11::arg("rank"), pybind11::arg("size"),
             pybind11::arg("timeout"), pybind11::call_guard<pybind11::gil_scoped_release>());
}
