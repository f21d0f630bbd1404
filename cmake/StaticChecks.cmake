# cairn_static_checks(FOLDER ...): the target static_checks, of the libraries and programs made so
#   far and of header_checks: each header in the folders compiles alone.
#   That of a source is the first header that the source includes (tests/ops/test_style.py holds
#   this), so compiling the source without a precompiled header is the check. Every other header
#   gets a source of one line. *.inc.h are parts of the sources that include them, not headers.
function(cairn_static_checks)
  set(_sources)
  foreach(_folder ${ARGN})
    file(GLOB_RECURSE _headers CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR}
      ${PROJECT_SOURCE_DIR}/${_folder}/*.h)
    list(FILTER _headers EXCLUDE REGEX "\\.inc\\.h$")
    foreach(_header ${_headers})
      string(REGEX REPLACE "\\.h$" ".cc" _source ${_header})
      if(NOT EXISTS ${PROJECT_SOURCE_DIR}/${_source})
        set(_source ${PROJECT_BINARY_DIR}/header_checks/${_source})
        file(CONFIGURE OUTPUT ${_source} CONTENT "#include \"${_header}\"\n" @ONLY)
        list(APPEND _sources ${_source})
      endif()
    endforeach()
  endforeach()
  add_library(header_checks OBJECT ${_sources})
  target_include_directories(header_checks PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(header_checks PRIVATE cairn_warnings)

  add_custom_target(static_checks)
  add_dependencies(static_checks header_checks)
  get_property(_targets GLOBAL PROPERTY CAIRN_TARGETS)
  foreach(_target ${_targets})
    get_target_property(_type ${_target} TYPE)
    if(_type MATCHES "^(STATIC|INTERFACE)_LIBRARY$")
      target_link_libraries(header_checks PRIVATE ${_target})
    elseif(_type STREQUAL "MODULE_LIBRARY")
      # The native module of the Python package.
      target_link_libraries(header_checks PRIVATE Python::Module)
      target_include_directories(header_checks SYSTEM PRIVATE ${NB_DIR}/include)
    endif()
    if(NOT _type STREQUAL "INTERFACE_LIBRARY")
      add_dependencies(static_checks ${_target})
    endif()
  endforeach()
endfunction()
