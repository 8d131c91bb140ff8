/* The version of nzcl, for C and C++. The build reads it from here, so that there is one place only. */
#ifndef NZCL_VERSION_H_
#define NZCL_VERSION_H_

#define NZCL_VERSION_MAJOR 0
#define NZCL_VERSION_MINOR 1
#define NZCL_VERSION_PATCH 0

/* For comparisons: #if NZCL_VERSION >= NZCL_VERSION_CODE(0, 2, 0) */
#define NZCL_VERSION_CODE(major, minor, patch) ((major)*10000 + (minor)*100 + (patch))
#define NZCL_VERSION NZCL_VERSION_CODE(NZCL_VERSION_MAJOR, NZCL_VERSION_MINOR, NZCL_VERSION_PATCH)

/* "0.1.0": that of the headers; nzclGetVersion() tells that of the library. */
#define NZCL_TEXT_OF_(x) #x
#define NZCL_TEXT_OF_VERSION_(major, minor, patch) \
  NZCL_TEXT_OF_(major) "." NZCL_TEXT_OF_(minor) "." NZCL_TEXT_OF_(patch)
#define NZCL_VERSION_STRING NZCL_TEXT_OF_VERSION_(NZCL_VERSION_MAJOR, NZCL_VERSION_MINOR, NZCL_VERSION_PATCH)

#endif /* NZCL_VERSION_H_ */
