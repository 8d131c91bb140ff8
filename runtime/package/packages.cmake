# `cpack` in the build folder makes two Debian packages: nzcl (library and programs) and nzcl-dev (headers and what finds them). With NZCL_TORCH
# there is a third one, python3-nzcl-torch.
set(CPACK_GENERATOR DEB)
set(CPACK_COMPONENTS_ALL runtime development)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_STRIP_FILES ON)
set(CPACK_PACKAGE_NAME nzcl)
set(CPACK_PACKAGE_VENDOR nzcl)
set(CPACK_PACKAGE_CONTACT "the maintainers of nzcl <nzcl@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "${PROJECT_DESCRIPTION}")
set(CPACK_RESOURCE_FILE_LICENSE ${PROJECT_SOURCE_DIR}/LICENSE)
set(CPACK_VERBATIM_VARIABLES ON)

set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_RUNTIME_PACKAGE_NAME nzcl)
set(CPACK_DEBIAN_RUNTIME_PACKAGE_SECTION libs)
# dpkg-shlibdeps reads from the files what they are linked with. libfabric is loaded when a transport asks for it.
set(CPACK_DEBIAN_RUNTIME_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_RUNTIME_PACKAGE_DEPENDS libfabric1)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${PROJECT_BINARY_DIR}/runtime)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)

set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_NAME nzcl-dev)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS "nzcl (= ${PROJECT_VERSION})")

if(TARGET nzcl_torch)
  list(APPEND CPACK_COMPONENTS_ALL torch)
  list(APPEND CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${PROJECT_BINARY_DIR}/runtime/torch)
  set(CPACK_DEBIAN_TORCH_PACKAGE_NAME python3-nzcl-torch)
  set(CPACK_DEBIAN_TORCH_PACKAGE_SECTION python)
  set(CPACK_DEBIAN_TORCH_PACKAGE_SHLIBDEPS ON)
  # The module is for one version of Python.
  math(EXPR next_minor "${NZCL_TORCH_PYTHON_MINOR} + 1")
  set(CPACK_DEBIAN_TORCH_PACKAGE_DEPENDS
    "nzcl (= ${PROJECT_VERSION}), python3-torch, python3 (>= 3.${NZCL_TORCH_PYTHON_MINOR}), python3 (<< 3.${next_minor})")
endif()
include(CPack)
