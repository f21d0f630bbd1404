# Applied to our own targets only (see Targets.cmake): third-party headers are not ours to mend.
add_library(cairn_warnings INTERFACE)
target_compile_options(cairn_warnings INTERFACE
  -Wall -Wextra -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual)
# g++ decides what is an error; the fuzz targets are all that Clang builds.
if(NOT CAIRN_FUZZ)
  target_compile_options(cairn_warnings INTERFACE -Werror)
endif()
