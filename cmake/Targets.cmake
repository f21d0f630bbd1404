# cairn_library(NAME SRCS a.cc ... DEPS x y ... [PRIVATE_DEPS z ...] [APART] [QUICK])
#   A static library with our warnings. Includes are from the repository root.
#   PRIVATE_DEPS do not appear in the library's headers: gRPC, RocksDB, PCRE2 belong there.
#   APART: its files have compiler options of their own, so each is compiled alone.
#   QUICK: it has no work that takes time, such as parsing arguments and drawing tables. It is
#   compiled at -O1, which takes two thirds of the time.
# cairn_executable(NAME SRCS ... DEPS ... [QUICK])
#   A program in bin/.
# cairn_test(NAME [FOLDERS f ...] [EDGE_FOLDERS f ...] [SRCS ...] DEPS ... [LABELS unit ...]
#            [SECONDS s] [ALONE reason])
#   One program of every *_test.cc in FOLDERS, and of SRCS. EDGE_FOLDERS are left out where only the
#   cores are built (CAIRN_CORES_ONLY). SECONDS, about, of those that take long: they begin first,
#   so that none is left over at the end. ALONE: with nothing else at the same time, and why.
# cairn_benchmark(NAME SRCS ... DEPS ...)
#   Made by the target `benchmarks`.
# Libraries and tests share a precompiled header each (CAIRN_PCH); a folder whose files have
# compiler options of their own turns it off. Programs are few sources: one for them would not pay.
function(_cairn_common target)
  target_include_directories(${target} PUBLIC ${PROJECT_SOURCE_DIR})
endfunction()

# The targets that cairn_static_checks goes through.
function(_cairn_record target)
  set_property(GLOBAL APPEND PROPERTY CAIRN_TARGETS ${target})
endfunction()

# The system's headers only. A header of ours would name the folder of the clone that compiled it,
# and ccache would hand that to another clone, where the compiler may take the two for two files and
# include the header twice.
set(CAIRN_HEADERS_OF_library
    <algorithm> <atomic> <chrono> <functional> <map> <memory> <optional> <span> <string> <thread>
    <unordered_map> <vector> <fmt/format.h> <absl/status/status.h> <absl/status/statusor.h>)
set(CAIRN_HEADERS_OF_test ${CAIRN_HEADERS_OF_library} <gtest/gtest.h> <gmock/gmock.h>)

# At -O1 GCC 12 warns about its own std::string and std::optional (its bugs 105329, 105562).
set(CAIRN_O1 -O1 -Wno-array-bounds -Wno-maybe-uninitialized -Wno-restrict
    -Wno-stringop-overread -Wno-stringop-overflow)

function(_cairn_test_options target)
  target_compile_definitions(${target} PRIVATE ${CAIRN_METHODS_DEFINITION})
  # Code that is tested is optimised. Optimising matchers and fixtures takes a fifth of a
  # compilation. It pays only where sanitizers slow them down.
  if(CAIRN_SANITIZE)
    target_compile_options(${target} PRIVATE ${CAIRN_O1})
  else()
    target_compile_options(${target} PRIVATE -O0)
  endif()
endfunction()

# The headers of KIND (library, test) are precompiled by a target of their own. Targets that use
# them wait for that target; were it a real one, a change of a test would wait for all sources of
# another.
function(_cairn_precompile target kind)
  if(NOT CAIRN_PCH)
    return()
  endif()
  set(_owner cairn_${kind}_headers)
  if(NOT TARGET ${_owner})
    file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/${_owner}.cc CONTENT "int main() { return 0; }\n")
    # The compiler refuses the header where options or definitions differ (-fPIC, -fPIE).
    if(kind STREQUAL "test")
      add_executable(${_owner} ${PROJECT_BINARY_DIR}/${_owner}.cc)
      _cairn_test_options(${_owner})
      target_link_libraries(${_owner} PRIVATE GTest::gmock)
    else()
      add_library(${_owner} STATIC ${PROJECT_BINARY_DIR}/${_owner}.cc)
    endif()
    target_link_libraries(${_owner} PRIVATE absl::statusor fmt::fmt)
    set_target_properties(${_owner} PROPERTIES EXCLUDE_FROM_ALL ON)
    target_precompile_headers(${_owner} PRIVATE ${CAIRN_HEADERS_OF_${kind}})
  endif()
  target_precompile_headers(${target} REUSE_FROM ${_owner})
  target_link_libraries(${target} PRIVATE absl::statusor fmt::fmt)
endfunction()

function(cairn_library name)
  cmake_parse_arguments(A "APART;QUICK" "" "SRCS;DEPS;PRIVATE_DEPS" ${ARGN})
  _cairn_record(${name})
  if(A_SRCS)
    if(NOT A_APART)
      _cairn_group_library(${name} A_SRCS)
    endif()
    add_library(${name} STATIC ${A_SRCS})
    _cairn_common(${name})
    # `all` makes what is installed, and what that needs: not the doubles that only tests link.
    set_target_properties(${name} PROPERTIES EXCLUDE_FROM_ALL ON)
    target_link_libraries(${name}
      PUBLIC ${A_DEPS} PRIVATE ${A_PRIVATE_DEPS} cairn_warnings ${CAIRN_GROUP_WARNINGS})
    if(A_QUICK)
      target_compile_options(${name} PRIVATE ${CAIRN_O1})
    else()
      _cairn_precompile(${name} library)
    endif()
  else()
    add_library(${name} INTERFACE)
    target_include_directories(${name} INTERFACE ${PROJECT_SOURCE_DIR})
    target_link_libraries(${name} INTERFACE ${A_DEPS})
  endif()
endfunction()

function(cairn_executable name)
  cmake_parse_arguments(A "QUICK" "" "SRCS;DEPS" ${ARGN})
  _cairn_record(${name})
  _cairn_group_library(${name} A_SRCS)
  add_executable(${name} ${A_SRCS})
  _cairn_common(${name})
  target_link_libraries(${name} PRIVATE ${A_DEPS} cairn_warnings ${CAIRN_GROUP_WARNINGS})
  if(A_QUICK)
    target_compile_options(${name} PRIVATE ${CAIRN_O1})
  endif()
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
endfunction()

# Python itself, which runs two hundred times here: `python3` may be a script that looks for it, and
# that took twenty seconds.
execute_process(COMMAND python3 -I -S -c "import sys; print(sys.executable)"
  OUTPUT_VARIABLE CAIRN_PYTHON3 OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)

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
  execute_process(
    COMMAND ${CAIRN_PYTHON3} -I -S ${PROJECT_SOURCE_DIR}/cmake/source_groups.py ${_paths}
    OUTPUT_VARIABLE _groups OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  set(_number 0)
  string(REPLACE ";" "," _groups "${_groups}")
  string(REPLACE "\n" ";" _groups "${_groups}")
  foreach(_group ${_groups})
    string(REPLACE "," ";" _members "${_group}")
    list(LENGTH _members _count)
    if(_count EQUAL 1)
      list(APPEND _sources ${_members})
      continue()
    endif()
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
  cmake_language(EVAL CODE "cmake_language(DEFER CALL _cairn_check_grouped ${name} ${_paths})")
endfunction()

# Options of one file would be lost where others are compiled with it.
function(_cairn_check_grouped name)
  foreach(_file ${ARGN})
    get_source_file_property(_own ${_file} COMPILE_OPTIONS)
    if(_own)
      message(FATAL_ERROR "${name}: ${_file} has compiler options of its own (${_own}): say APART")
    endif()
  endforeach()
endfunction()

# The sources of a library or a program, in groups if this build makes any (CAIRN_LIBRARY_GROUPS).
function(_cairn_group_library name variable)
  if(CAIRN_LIBRARY_GROUPS)
    _cairn_group_sources(${name} ${variable} "\\.cc$")
    set(${variable} ${${variable}} PARENT_SCOPE)
  endif()
endfunction()

function(cairn_test name)
  cmake_parse_arguments(A "" "SECONDS;ALONE" "SRCS;FOLDERS;EDGE_FOLDERS;DEPS;LABELS"
    ${ARGN})
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
  if(NOT A_LABELS)
    set(A_LABELS unit)
  endif()
  if(CAIRN_TEST_GROUPS)
    _cairn_group_sources(${name} A_SRCS "_(test|fuzz)\\.cc$")
  endif()
  if(CAIRN_SANITIZE MATCHES "thread")
    list(APPEND A_SRCS ${PROJECT_SOURCE_DIR}/tests/support/thread_sanitizer.cc)
  endif()
  add_executable(${name} ${A_SRCS})
  _cairn_common(${name})
  target_link_libraries(${name} PRIVATE
    ${A_DEPS} GTest::gmock GTest::gtest_main cairn_warnings ${CAIRN_GROUP_WARNINGS})
  _cairn_test_options(${name})
  _cairn_precompile(${name} test)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
  # One ctest entry per binary: starting a process per case costs more than it tells.
  add_test(NAME ${name} COMMAND ${name} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  # tools/skipped_tests.py reads what was skipped there.
  set_tests_properties(${name} PROPERTIES
    ENVIRONMENT "GTEST_OUTPUT=xml:${PROJECT_BINARY_DIR}/test-results/${name}.xml")
  cairn_test_runs(${name} ${A_LABELS} SECONDS ${A_SECONDS} ALONE ${A_ALONE})
endfunction()

# cairn_test_runs(NAME LABEL [SECONDS s] [ALONE reason]) How ctest runs the entry NAME at the same
#   time as others (as cairn_test has it). `make test` gives two places for each core: what computes
#   takes two of them, what starts processes and waits for them one.
function(cairn_test_runs name label)
  cmake_parse_arguments(A "" "SECONDS;ALONE" "" ${ARGN})
  # For what hangs: ten times what the slowest takes. A machine may have little time for tests.
  set(timeout 3000)
  if(CMAKE_CROSSCOMPILING)
    math(EXPR timeout "10 * ${timeout}")  # Emulated.
  endif()
  set_tests_properties(${name} PROPERTIES LABELS ${label} TIMEOUT ${timeout})
  if(label MATCHES "^(unit|conformance)$")
    set_tests_properties(${name} PROPERTIES PROCESSORS 2)
  endif()
  if(A_SECONDS)
    set_tests_properties(${name} PROPERTIES COST ${A_SECONDS})
  endif()
  if(A_ALONE)
    set_tests_properties(${name} PROPERTIES RUN_SERIAL ON)
  endif()
endfunction()

function(cairn_benchmark name)
  cmake_parse_arguments(A "" "" "SRCS;DEPS" ${ARGN})
  if(CAIRN_BENCHMARKS)
    _cairn_group_library(${name} A_SRCS)
    add_executable(${name} ${A_SRCS})
    _cairn_common(${name})
    target_link_libraries(${name} PRIVATE
      ${A_DEPS} benchmark::benchmark cairn_warnings ${CAIRN_GROUP_WARNINGS})
    set_target_properties(${name} PROPERTIES
      RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/benchmarks)
  endif()
endfunction()

# cairn_programs_of(NAME FOLDER ...)
#   The target NAME makes all programs and shared libraries of each FOLDER and of those below it.
#   They are not part of `all`, which is the product.
function(_cairn_collect_programs folder variable)
  set(_found ${${variable}})
  get_property(_targets DIRECTORY ${folder} PROPERTY BUILDSYSTEM_TARGETS)
  foreach(_target ${_targets})
    get_target_property(_type ${_target} TYPE)
    if(_type MATCHES "^(EXECUTABLE|SHARED_LIBRARY)$")
      list(APPEND _found ${_target})
    endif()
  endforeach()
  get_property(_below DIRECTORY ${folder} PROPERTY SUBDIRECTORIES)
  foreach(_folder ${_below})
    _cairn_collect_programs(${_folder} _found)
  endforeach()
  set(${variable} ${_found} PARENT_SCOPE)
endfunction()

function(cairn_programs_of name)
  set(_programs)
  foreach(_folder ${ARGN})
    _cairn_collect_programs(${PROJECT_SOURCE_DIR}/${_folder} _programs)
  endforeach()
  add_custom_target(${name} DEPENDS ${_programs})
endfunction()
