// The libtorch plugin: a c10d process group whose collectives are nzcl's.
#pragma once

#include <ATen/ATen.h>
#include <torch/version.h>

#if TORCH_VERSION_MAJOR >= 2
#include <torch/csrc/distributed/c10d/Backend.hpp>
#else
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#endif
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <functional>

#include "nzcl/communicator.h"
#include "nzcl/compress.h"
#include "nzcl/export.h"

namespace nzcl_torch {

/// What libtorch lets plugins derive from: group_adapter.h has what differs.
#if TORCH_VERSION_MAJOR >= 2
using GroupBase = c10d::Backend;
#else
using GroupBase = c10d::ProcessGroup;
#endif

/// Collective over `size` ranks: makes a process group named "nzcl". The ranks meet through `store`, which
/// must be trusted, because the communicator's key travels through it; no other port or launcher is needed.
/// `timeout` is that of operations which make no progress, unless NZCL_TIMEOUT_S is set. Values are added in
/// any order, which is the same in every run, unless NZCL_SUM_ORDER says otherwise. All other options of nzcl
/// come from NZCL_* variables. Throws nzcl::Error, which names the ranks that do not come.
///
/// Threads: as c10d asks, calls that start operations come in the same order on all ranks. Works complete on
/// a thread of the communicator, and the callbacks of their futures run on threads of the group, so that one
/// may wait for another. Destroying the group closes it: that waits for the other ranks to do so, at most
/// NZCL_CLOSE_TIMEOUT_S. It also waits for callbacks, which may need a lock that the destroying thread holds,
/// such as Python's; so that waiting is done inside of `around_close`, if it is given, which must call its
/// argument.
NZCL_API c10::intrusive_ptr<GroupBase> make_process_group(
    const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, std::chrono::milliseconds timeout,
    std::function<void(const std::function<void()>& close)> around_close = {});

/// Collective over the ranks that are left of a group that has failed: makes a communicator of them, as
/// nzcl::Communicator::shrink() does, whose timeout and errors it has. The group can only be closed or
/// destroyed afterwards.
NZCL_API nzcl::Communicator shrink(GroupBase& group);
/// Collective: makes a group of the communicator's ranks. `store`, which must be another one than that of the
/// group before or have another prefix, serves Gloo's part only.
NZCL_API c10::intrusive_ptr<GroupBase> make_process_group(
    nzcl::Communicator communicator, const c10::intrusive_ptr<c10d::Store>& store,
    std::chrono::milliseconds timeout,
    std::function<void(const std::function<void()>& close)> around_close = {});

// ---- What nzcl's groups can do beyond the calls of c10d. `group` must be one of nzcl's.

/// Fails the group on every rank: what is under way and what comes later fails with this reason.
NZCL_API void abort(GroupBase& group, const std::string& reason);
/// Closes the group's communicator, as destroying the group does. Later calls of it do nothing; those that
/// start operations fail.
NZCL_API void close(GroupBase& group);
/// The timeout of operations that come later and are given none. The group was made with another one.
NZCL_API void set_timeout(GroupBase& group, std::chrono::milliseconds timeout);
/// Replaces the tensor by the average over all ranks of what their states send of it. `tensor` has
/// state.elements() float32, one behind the other. The state belongs to nzcl until the work has completed.
NZCL_API c10::intrusive_ptr<c10d::Work> average_compressed(GroupBase& group, nzcl::CompressorState& state,
                                                           const at::Tensor& tensor);
/// Replaces the dense tensor by its average over all ranks, with blocks of `block_elems` elements, the same
/// on every rank.
NZCL_API c10::intrusive_ptr<c10d::Work> average(GroupBase& group, const at::Tensor& tensor,
                                                std::uint64_t block_elems);
/// For code that finds that it cannot start a collective which the other ranks start: takes its place in the
/// order, so that they fail and do not wait. Returns a work that has failed with this reason.
NZCL_API c10::intrusive_ptr<c10d::Work> failed(GroupBase& group, const std::string& reason);
/// What this rank's communicator has moved since it was made.
NZCL_API nzcl::Statistics statistics(GroupBase& group);
/// What one of nzcl's works has moved. It must have completed.
NZCL_API nzcl::OperationStatistics statistics(const c10d::Work& work);
/// How many storages of tensors are registered.
NZCL_API std::size_t registered_storages(GroupBase& group);

}  // namespace nzcl_torch
