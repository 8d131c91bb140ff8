#include "nzcl/error.h"
#include "nzcl/options.h"
#include "nzcl/types.h"

namespace nzcl {

std::string_view name_of(DataType type) {
  switch (type) {
    case DataType::float32:
      return "float32";
    case DataType::float64:
      return "float64";
    case DataType::float16:
      return "float16";
    case DataType::bfloat16:
      return "bfloat16";
    case DataType::int32:
      return "int32";
    case DataType::int64:
      return "int64";
    case DataType::uint8:
      return "uint8";
  }
  return "?";
}

std::string_view name_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum:
      return "sum";
    case ReduceOp::avg:
      return "avg";
    case ReduceOp::min:
      return "min";
    case ReduceOp::max:
      return "max";
  }
  return "?";
}

std::string_view name_of(MemoryKind kind) {
  switch (kind) {
    case MemoryKind::host:
      return "host";
    case MemoryKind::device:
      return "device";
  }
  return "?";
}

std::string_view name_of(Algorithm algorithm) {
  switch (algorithm) {
    case Algorithm::automatic:
      return "auto";
    case Algorithm::push:
      return "push";
    case Algorithm::doubling:
      return "doubling";
    case Algorithm::switch_:
      return "switch";
    case Algorithm::merging:
      return "merging";
    case Algorithm::hierarchy:
      return "hierarchy";
  }
  return "?";
}

std::string_view name_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::invalid_argument:
      return "invalid argument";
    case ErrorCode::invalid_usage:
      return "invalid usage";
    case ErrorCode::unsupported:
      return "unsupported";
    case ErrorCode::unavailable:
      return "unavailable";
    case ErrorCode::mismatch:
      return "mismatch";
    case ErrorCode::timeout:
      return "timeout";
    case ErrorCode::peer_failed:
      return "peer failed";
    case ErrorCode::aborted:
      return "aborted";
    case ErrorCode::transport:
      return "transport";
    case ErrorCode::denied:
      return "denied";
    case ErrorCode::system:
      return "system";
    case ErrorCode::internal:
      return "internal";
  }
  return "?";
}

}  // namespace nzcl
