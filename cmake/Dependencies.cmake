# Every find_package call of the project. Debian 12 package names: tools/setup/packages.txt.
find_package(Threads REQUIRED)
find_package(PkgConfig REQUIRED)
find_package(OpenSSL REQUIRED COMPONENTS Crypto SSL)
find_package(Boost 1.74 REQUIRED)  # Headers only: Asio, Beast.
find_package(absl CONFIG REQUIRED)
find_package(fmt CONFIG REQUIRED)
find_package(yaml-cpp CONFIG REQUIRED)
find_package(CLI11 CONFIG REQUIRED)
pkg_check_modules(XXHASH REQUIRED IMPORTED_TARGET libxxhash)
pkg_check_modules(CARES REQUIRED IMPORTED_TARGET libcares)
pkg_check_modules(PCRE2 REQUIRED IMPORTED_TARGET libpcre2-8)
find_path(NLOHMANN_JSON_INCLUDE_DIR nlohmann/json.hpp REQUIRED)
if(CAIRN_TESTS)
  find_package(GTest CONFIG REQUIRED)
  find_package(Boost 1.74 REQUIRED COMPONENTS context)  # Fibres of tests/support/cuda_on_cpu.
endif()
if(CAIRN_BENCHMARKS)
  find_package(benchmark CONFIG REQUIRED)
endif()
if(NOT CAIRN_CORES_ONLY)
  # Before gRPC: Debian's gRPC config looks for it without REQUIRED.
  find_package(Protobuf REQUIRED)
  find_package(gRPC CONFIG REQUIRED)
  find_package(RocksDB CONFIG REQUIRED)
  pkg_check_modules(URING REQUIRED IMPORTED_TARGET liburing)
  find_package(prometheus-cpp CONFIG REQUIRED)
endif()
if(CAIRN_PYTHON)
  find_package(Python 3.10 REQUIRED COMPONENTS Interpreter Development.Module)
  execute_process(COMMAND ${Python_EXECUTABLE} -m nanobind --cmake_dir OUTPUT_VARIABLE nanobind_ROOT
                  OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  find_package(nanobind CONFIG REQUIRED)
endif()

# Optional, for the GPU tier: found, never required.
include(CheckLanguage)
check_language(CUDA)
find_library(CAIRN_NCCL_LIBRARY nccl)
