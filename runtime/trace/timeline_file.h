// The file of NZCL_TRACE: a JSON array in the Trace Event Format, which Perfetto and chrome://tracing read.
// All processes of a host append to the same file, which is valid JSON after every append.
#pragma once

#include <string>

namespace nzcl::trace {

/// An open timeline file. Not thread-safe.
class TimelineFile {
 public:
  /// Opens the file, and makes it if there is none. With `empty`, removes what an earlier run has left in it.
  /// Throws Error{system}.
  TimelineFile(std::string path, bool empty);
  ~TimelineFile();
  TimelineFile(const TimelineFile&) = delete;
  TimelineFile& operator=(const TimelineFile&) = delete;
  /// Appends `events`, which are JSON objects, each followed by a comma and a newline. Waits while another
  /// process appends. Throws Error{system}.
  void append(std::string events);

 private:
  const std::string path_;
  int fd_ = -1;
};

}  // namespace nzcl::trace
