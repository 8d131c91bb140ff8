// The file of NZCL_TRACE: a JSON array in the Trace Event Format, which Perfetto and chrome://tracing read.
// All processes of a host append to the same file; it is valid JSON after every append.
#pragma once

#include <string>

namespace nzcl::trace {

class TimelineFile {
 public:
  /// `empty`: start it anew. Throws Error{system}.
  TimelineFile(std::string path, bool empty);
  ~TimelineFile();
  TimelineFile(const TimelineFile&) = delete;
  TimelineFile& operator=(const TimelineFile&) = delete;
  /// `events`: JSON objects, each followed by a comma and a newline. Waits for other processes that append.
  /// Throws Error{system}.
  void append(std::string events);

 private:
  const std::string path_;
  int fd_ = -1;
};

}  // namespace nzcl::trace
