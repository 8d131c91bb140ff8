// What the calls of the C API have in common: the handles, which own C++ objects, and how exceptions become
// status codes.
#pragma once

#include <fmt/format.h>

#include <exception>
#include <memory>
#include <new>

#include "nzcl/communicator.h"
#include "nzcl/compress.h"
#include "nzcl/nzcl.h"
#include "runtime/comm/communicator/inside_communicator.h"

struct nzclComm {
  nzcl::Communicator communicator;
};
struct nzclWork {
  nzcl::Work work;
};
struct nzclBuffer {
  nzcl::RegisteredBuffer buffer;
};
struct nzclCompressorState {
  nzcl::CompressorState state;
};

namespace nzcl::capi {

/// Makes `text` what nzclGetLastError() returns on this thread, and returns `code`.
nzclResult_t failed(nzclResult_t code, const char* text);

/// Runs `body` and returns a status code. An exception becomes the status code of its error.
template <typename Body>
nzclResult_t guarded(Body body) {
  try {
    body();
    return nzclSuccess;
  } catch (const Error& e) {
    return failed(static_cast<nzclResult_t>(e.code()), e.what());
  } catch (const std::bad_alloc&) {
    return failed(nzclSystemError, "out of memory");
  } catch (const std::exception& e) {
    return failed(nzclInternalError, e.what());
  }
}

/// Throws Error{invalid_argument} if one of the pointers is null.
template <typename... Pointers>
void require(const char* call, const Pointers*... pointers) {
  if (((pointers == nullptr) || ...))
    throw Error(ErrorCode::invalid_argument, fmt::format("{}: a null pointer was passed", call));
}

/// Returns the C++ enumerator with the number of a C one. The C++ API looks whether there is such a number,
/// but its enumerators have 8 bits, so other ones are refused here, as Error{invalid_argument}.
template <typename To, typename From>
To enumerator(const char* call, const char* name, From value) {
  static_assert(sizeof(To) == 1);
  const auto number = static_cast<int>(value);  // C enums have no more bits
  if (number < 0 || number > 255)
    throw Error(ErrorCode::invalid_argument, fmt::format("{}: {} {} does not exist", call, name, number));
  return static_cast<To>(number);
}
template <typename From>
DataType data_type(const char* call, From type) {
  return enumerator<DataType>(call, "type", type);
}
template <typename From>
ReduceOp reduce_op(const char* call, From op) {
  return enumerator<ReduceOp>(call, "op", op);
}

/// Runs a call that starts an operation: request() checks the call's arguments and returns the request, and
/// start(request) starts it. If request() throws, the call takes its place in the order of operations all the
/// same, as every refused request does.
template <typename MakeRequest, typename Start>
nzclResult_t started(const char* call, nzclComm_t comm, nzclWork_t* work, MakeRequest make_request,
                     Start start) {
  return guarded([&] {
    require(call, comm);
    std::unique_ptr<nzclWork> handle;
    decltype(make_request()) request;
    try {
      require(call, work);
      handle = std::make_unique<nzclWork>();
      request = make_request();
    } catch (const Error& e) {
      comm::refuse_unknown(comm->communicator, e);
      throw;
    } catch (const std::bad_alloc&) {
      comm::refuse_unknown(comm->communicator, {ErrorCode::system, "out of memory"});
      throw;
    }
    handle->work = start(comm->communicator, request);
    *work = handle.release();
  });
}

}  // namespace nzcl::capi
