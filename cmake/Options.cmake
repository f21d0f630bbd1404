# A wheel that is built in a folder of its own (clients/python/pyproject.toml) needs neither tests
# nor benchmarks. A folder that was configured before keeps what it had.
set(_everything ON)
if(SKBUILD)
  set(_everything OFF)
endif()
option(CAIRN_TESTS "Build the tests" ${_everything})
option(CAIRN_BENCHMARKS "Build the benchmarks" ${_everything})
# Asked for by the wheel's build: needs a Python with nanobind.
option(CAIRN_PYTHON "Build the native module of the Python package" OFF)
# Engine cores and kernels only: no gRPC, RocksDB or Prometheus needed. The sanitizer presets build
# this.
option(CAIRN_CORES_ONLY "Build only what is free of transport and storage libraries" OFF)
# Selections of tokens, read policies and turned prompts: services/worker/methods, and the command
# `cairn fidelity`, which compares them. Without them a worker refuses recipes and options that name
# one.
option(CAIRN_METHODS "Build the worker's methods" ON)
# Only for targets whose sources ask: all other objects are those of a build with methods, which
# ccache has.
set(CAIRN_METHODS_DEFINITION)
if(NOT CAIRN_METHODS)
  set(CAIRN_METHODS_DEFINITION CAIRN_WITHOUT_METHODS)
endif()
# libFuzzer programs of tests/fuzz: needs Clang.
option(CAIRN_FUZZ "Build the fuzz targets" OFF)
# The preset `clang` builds this. With CAIRN_PYTHON, the native module too.
option(CAIRN_STATIC_CHECKS "Make the target static_checks: the product, and each header alone" OFF)
# Half of a compilation is reading the same headers. Off in the presets clang, tsan and
# fuzz, where a file that forgets an include is found.
option(CAIRN_PCH "Precompile the headers that nearly every file includes" ON)
# Test files of a program that do not disturb each other are compiled together (source_groups.py).
option(CAIRN_TEST_GROUPS "Compile several test files as one" ON)
# Those of a library, too: for builds that are made whole, where no edit follows.
option(CAIRN_LIBRARY_GROUPS "Compile several files of a library as one" OFF)
# The library and the kernels for GPUs. No program links them: without nvcc only they are missing.
set(CAIRN_CUDA AUTO CACHE STRING
    "Build libcairn_cuda.so, and kernels/cuda with nvcc: AUTO (if it is found), ON, OFF")
set_property(CACHE CAIRN_CUDA PROPERTY STRINGS AUTO ON OFF)
set(CAIRN_CUDA_ARCHITECTURES 90a CACHE STRING
    "Architectures of kernels/cuda: 80, 90a, 100 ..., and ptx for GPUs that come later")
set(CAIRN_SANITIZE "" CACHE STRING "Sanitizers, as for -fsanitize= (address,undefined or thread)")

# Said here in one line, not by the first file that does not compile.
set(_oldest_GNU 12)
set(_oldest_Clang 14)
if(DEFINED _oldest_${CMAKE_CXX_COMPILER_ID} AND
   CMAKE_CXX_COMPILER_VERSION VERSION_LESS _oldest_${CMAKE_CXX_COMPILER_ID})
  message(FATAL_ERROR "Cairn needs GCC 12 or Clang 14: got ${CMAKE_CXX_COMPILER_ID} "
    "${CMAKE_CXX_COMPILER_VERSION} (${CMAKE_CXX_COMPILER}): set CXX to a newer one and run "
    "`make clean` first")
endif()
# The kernels are written for these two.
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
  set(CAIRN_PROCESSOR x86_64)
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64)$")
  set(CAIRN_PROCESSOR aarch64)
  # As x86-64 has it: characters have a sign, and multiply-adds are fused only where the code says
  # so. Numbers that must be equal everywhere depend on the second.
  add_compile_options(-fsigned-char -ffp-contract=off)
else()
  message(FATAL_ERROR "Cairn needs a processor that its kernels are written for: got "
    "${CMAKE_SYSTEM_PROCESSOR}, expected x86_64 or aarch64")
endif()
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
# gRPC's users get it from gRPC; a precompiled header serves only those with equal options.
add_compile_options(-pthread)
# GCC collects its garbage from 128 MB on, which takes a tenth of a compilation's time. Files that
# include gRPC then take 0.6 GB.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  add_compile_options(--param=ggc-min-heapsize=524288 --param=ggc-min-expand=200)
endif()
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()

find_program(CAIRN_CCACHE ccache)
if(CAIRN_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_C_COMPILER_LAUNCHER ${CAIRN_CCACHE})
  # Without the two sloppinesses it keeps nothing that was compiled with a precompiled header. With
  # the base folder, clones in other folders share what was compiled. CCACHE_DEPEND: the compiler's
  # list of headers is the key, where ccache would run the preprocessor for each file that it does
  # not have.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_DEPEND=1
    CCACHE_SLOPPINESS=pch_defines,time_macros CCACHE_BASEDIR=${PROJECT_SOURCE_DIR}
    CCACHE_NOHASHDIR=1 ${CAIRN_CCACHE})
endif()
