# Toolchain of the preset aarch64: Debian's cross compiler, and Debian's libraries for that
# processor in build/aarch64-root (tools/setup/aarch64_root.sh). Tests run in qemu-user, if it is
# installed.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)

# Said here in one line, where CMake would say in thirty that its first program does not compile.
find_program(CAIRN_AARCH64_COMPILER aarch64-linux-gnu-g++-12)
get_filename_component(CAIRN_AARCH64_ROOT ${CMAKE_CURRENT_LIST_DIR}/../build/aarch64-root ABSOLUTE)
if(NOT CAIRN_AARCH64_COMPILER OR NOT EXISTS ${CAIRN_AARCH64_ROOT}/.done)
  message(FATAL_ERROR "aarch64-linux-gnu-g++-12 or ${CAIRN_AARCH64_ROOT} is missing: "
    "`make check-arm` gets both")
endif()
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc-12)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++-12)

# The C and C++ libraries are those of the compiler; all others are in the root. A library there
# needs others, which the linker looks for in the same folder.
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH ${CAIRN_AARCH64_ROOT})
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(_libraries ${CAIRN_AARCH64_ROOT}/usr/lib/aarch64-linux-gnu)
set(CMAKE_EXE_LINKER_FLAGS_INIT -Wl,-rpath-link,${_libraries})
set(CMAKE_SHARED_LINKER_FLAGS_INIT -Wl,-rpath-link,${_libraries})
set(ENV{PKG_CONFIG_LIBDIR} ${_libraries}/pkgconfig:${CAIRN_AARCH64_ROOT}/usr/share/pkgconfig)
set(ENV{PKG_CONFIG_SYSROOT_DIR} ${CAIRN_AARCH64_ROOT})

find_program(CAIRN_QEMU_AARCH64 qemu-aarch64)
if(CAIRN_QEMU_AARCH64)
  set(CMAKE_CROSSCOMPILING_EMULATOR ${CAIRN_QEMU_AARCH64};-L;${CAIRN_AARCH64_ROOT})
endif()
