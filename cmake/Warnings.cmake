# Applied to our own targets only (see Targets.cmake): third-party headers are not ours to mend.
add_library(cairn_warnings INTERFACE)
target_compile_options(cairn_warnings INTERFACE
  -Wall -Wextra -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual -Werror)
if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  # The annotations of common/concurrency/mutex.h. Some files turn off warnings of GCC that Clang
  # does not know.
  target_compile_options(cairn_warnings INTERFACE -Wthread-safety -Wno-unknown-warning-option)
endif()
