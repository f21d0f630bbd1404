# Applied to our own targets only (see Targets.cmake): third-party headers are not ours to fix.
add_library(cairn_warnings INTERFACE)
target_compile_options(cairn_warnings INTERFACE
  -Wall -Wextra -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual -Werror)
# After the warnings, where sources are compiled in groups (source_groups.py). A class that only one
# file defines may have members of types in that file's unnamed namespace; and a local name may be
# that of something in another file.
set(CAIRN_GROUP_WARNINGS)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND (CAIRN_LIBRARY_GROUPS OR CAIRN_TEST_GROUPS))
  set(CAIRN_GROUP_WARNINGS cairn_group_warnings)
  add_library(cairn_group_warnings INTERFACE)
  target_compile_options(cairn_group_warnings INTERFACE
    -Wno-subobject-linkage -Wno-shadow -Wshadow=local)
endif()
if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  # The annotations of common/concurrency/mutex.h. Some files turn off warnings of GCC that Clang
  # does not know.
  target_compile_options(cairn_warnings INTERFACE -Wthread-safety -Wno-unknown-warning-option)
endif()
