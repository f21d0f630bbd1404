# cairn_library(NAME SRCS a.cc ... DEPS x y ... [PRIVATE_DEPS z ...])
#   A static library with our warnings. Includes are from the repository root.
#   PRIVATE_DEPS do not appear in the library's headers: gRPC, RocksDB, PCRE2 belong there.
# cairn_test(NAME [FOLDERS f ...] [EDGE_FOLDERS f ...] [SRCS ...] DEPS ... [LABELS unit ...]
#            [TIMEOUT s])
#   One program of every *_test.cc in FOLDERS, and of SRCS. EDGE_FOLDERS are left out where only the
#   cores are built (CAIRN_CORES_ONLY).
# cairn_benchmark(NAME SRCS ... DEPS ...)
#   Libraries and tests share a precompiled header each (CAIRN_PCH); a folder whose files have
#   compiler options of their own turns it off.
function(_cairn_common target)
  target_include_directories(${target} PUBLIC ${PROJECT_SOURCE_DIR})
endfunction()

# What cairn_static_checks goes through.
function(_cairn_record target)
  set_property(GLOBAL APPEND PROPERTY CAIRN_TARGETS ${target})
endfunction()

# The first target of a kind makes the header, the others use it.
function(_cairn_precompile target kind)
  if(NOT CAIRN_PCH)
    return()
  endif()
  get_property(owner GLOBAL PROPERTY CAIRN_PCH_OF_${kind})
  if(owner)
    target_precompile_headers(${target} REUSE_FROM ${owner})
    # The compiler refuses the header where their definitions differ.
    target_link_libraries(${target} PRIVATE absl::statusor fmt::fmt)
  else()
    set_property(GLOBAL PROPERTY CAIRN_PCH_OF_${kind} ${target})
    target_precompile_headers(${target} PRIVATE ${ARGN})
  endif()
endfunction()

# The system's headers only. A header of ours would name the folder of the clone that compiled it,
# and ccache would hand that to another clone, where the compiler may take the two for two files and
# include the header twice.
set(CAIRN_COMMON_HEADERS
    <algorithm> <atomic> <chrono> <functional> <map> <memory> <optional> <span> <string> <thread>
    <unordered_map> <vector> <fmt/format.h> <absl/status/status.h> <absl/status/statusor.h>)

function(cairn_library name)
  cmake_parse_arguments(A "" "" "SRCS;DEPS;PRIVATE_DEPS" ${ARGN})
  _cairn_record(${name})
  if(A_SRCS)
    # Files of other folders have compiler options of their own.
    set(_options)
    if(CAIRN_LIBRARY_GROUPS AND CMAKE_CURRENT_SOURCE_DIR MATCHES "/(clients|services|tools)/")
      _cairn_group_sources(${name} A_SRCS "\\.cc$")
      # What a file keeps in its unnamed namespace, a class that only it defines may have.
      set(_options -Wno-subobject-linkage)
    endif()
    add_library(${name} STATIC ${A_SRCS})
    target_compile_options(${name} PRIVATE ${_options})
    _cairn_common(${name})
    target_link_libraries(${name} PUBLIC ${A_DEPS} PRIVATE ${A_PRIVATE_DEPS} cairn_warnings)
    _cairn_precompile(${name} library ${CAIRN_COMMON_HEADERS})
  else()
    add_library(${name} INTERFACE)
    target_include_directories(${name} INTERFACE ${PROJECT_SOURCE_DIR})
    target_link_libraries(${name} INTERFACE ${A_DEPS})
  endif()
endfunction()

function(cairn_executable name)
  cmake_parse_arguments(A "" "" "SRCS;DEPS" ${ARGN})
  _cairn_record(${name})
  add_executable(${name} ${A_SRCS})
  _cairn_common(${name})
  target_link_libraries(${name} PRIVATE ${A_DEPS} cairn_warnings)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
endfunction()

# Sources in VARIABLE whose names match PATTERN become one source for each group of
# cmake/source_groups.py. Paths in it are from the repository root, so that clones share what ccache
# keeps.
function(_cairn_group_sources name variable pattern)
  set(_grouped ${${variable}})
  list(FILTER _grouped INCLUDE REGEX "${pattern}")
  set(_sources ${${variable}})
  list(FILTER _sources EXCLUDE REGEX "${pattern}")
  set(_paths)
  foreach(_source ${_grouped})
    file(REAL_PATH ${_source} _path BASE_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR})
    list(APPEND _paths ${_path})
  endforeach()
  if(NOT _paths)
    return()
  endif()
  # A name that a file begins to define may move it to another group.
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS
    ${PROJECT_SOURCE_DIR}/cmake/source_groups.py ${_paths})
  execute_process(COMMAND python3 ${PROJECT_SOURCE_DIR}/cmake/source_groups.py ${_paths}
    OUTPUT_VARIABLE _groups OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  set(_number 0)
  string(REPLACE ";" "," _groups "${_groups}")
  string(REPLACE "\n" ";" _groups "${_groups}")
  foreach(_group ${_groups})
    string(REPLACE "," ";" _members "${_group}")
    set(_content "")
    foreach(_member ${_members})
      file(RELATIVE_PATH _relative ${PROJECT_SOURCE_DIR} ${_member})
      string(APPEND _content "#include \"${_relative}\"\n")
    endforeach()
    set(_source ${CMAKE_CURRENT_BINARY_DIR}/${name}_${_number}.cc)
    file(CONFIGURE OUTPUT ${_source} CONTENT "${_content}" @ONLY)
    list(APPEND _sources ${_source})
    math(EXPR _number "${_number} + 1")
  endforeach()
  set(${variable} ${_sources} PARENT_SCOPE)
endfunction()

function(cairn_test name)
  cmake_parse_arguments(A "" "TIMEOUT" "SRCS;FOLDERS;EDGE_FOLDERS;DEPS;LABELS" ${ARGN})
  if(NOT CAIRN_CORES_ONLY)
    list(APPEND A_FOLDERS ${A_EDGE_FOLDERS})
  endif()
  foreach(_folder ${A_FOLDERS})
    file(GLOB _sources CONFIGURE_DEPENDS ${_folder}/*_test.cc)
    if(NOT _sources)
      message(FATAL_ERROR "${name}: no *_test.cc in ${CMAKE_CURRENT_SOURCE_DIR}/${_folder}")
    endif()
    list(APPEND A_SRCS ${_sources})
  endforeach()
  if(NOT A_TIMEOUT)
    set(A_TIMEOUT 300)
  endif()
  if(NOT A_LABELS)
    set(A_LABELS unit)
  endif()
  if(CAIRN_TEST_GROUPS)
    # Other files than tests have options of their own, as fuzz targets do.
    _cairn_group_sources(${name} A_SRCS "_test\\.cc$")
  endif()
  add_executable(${name} ${A_SRCS})
  _cairn_common(${name})
  target_link_libraries(${name} PRIVATE ${A_DEPS} GTest::gmock GTest::gtest_main cairn_warnings)
  # What is tested is optimised. Optimising matchers and fixtures takes a fifth of a compilation. It
  # pays only where sanitizers slow them down. At -O1 GCC 12 warns about its own std::string (its
  # bug 105329).
  if(CAIRN_SANITIZE)
    target_compile_options(${name} PRIVATE
      -O1 -Wno-array-bounds -Wno-restrict -Wno-stringop-overread -Wno-stringop-overflow)
  else()
    target_compile_options(${name} PRIVATE -O0)
  endif()
  _cairn_precompile(${name} test ${CAIRN_COMMON_HEADERS} <gtest/gtest.h> <gmock/gmock.h>)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
  # One ctest entry per binary: starting a process per case costs more than it tells.
  add_test(NAME ${name} COMMAND ${name} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  # tools/skipped_tests.py reads what was skipped there.
  set_tests_properties(${name} PROPERTIES LABELS "${A_LABELS}" TIMEOUT ${A_TIMEOUT}
    ENVIRONMENT "GTEST_OUTPUT=xml:${PROJECT_BINARY_DIR}/test-results/${name}.xml")
  # Real processes have deadlines in real time, which other tests beside them would eat up.
  if(NOT A_LABELS MATCHES "^(unit|conformance)$")
    set_tests_properties(${name} PROPERTIES RUN_SERIAL ON)
  endif()
endfunction()

function(cairn_benchmark name)
  cmake_parse_arguments(A "" "" "SRCS;DEPS" ${ARGN})
  if(CAIRN_BENCHMARKS)
    add_executable(${name} ${A_SRCS})
    _cairn_common(${name})
    target_link_libraries(${name} PRIVATE ${A_DEPS} benchmark::benchmark cairn_warnings)
    set_target_properties(${name} PROPERTIES
      RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/benchmarks)
  endif()
endfunction()
