# The files that `cmake --install` installs, and the targets that `add_subdirectory` users link:
# docs/program/cpp.md.
#   component `client`    headers, static libraries, the CMake package Cairn
#   component `programs`  cairn, cairn-cache, cairn-worker
#   component `python`    only when asked for by name: see clients/python
include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

# Appends to LIBRARIES the libraries of ours that `target` needs, itself included, and to FOREIGN
# those of others.
function(_cairn_closure target libraries foreign)
  set(_libraries ${${libraries}})
  set(_foreign ${${foreign}})
  if(NOT target IN_LIST _libraries)
    list(APPEND _libraries ${target})
    get_target_property(_type ${target} TYPE)
    set(_property LINK_LIBRARIES)
    if(_type STREQUAL "INTERFACE_LIBRARY")
      set(_property INTERFACE_LINK_LIBRARIES)
    endif()
    get_target_property(_needed ${target} ${_property})
    foreach(_need IN LISTS _needed)
      if(_need MATCHES "^cairn_")
        _cairn_closure(${_need} _libraries _foreign)
      elseif(_need)
        list(APPEND _foreign ${_need})
      endif()
    endforeach()
  endif()
  list(REMOVE_DUPLICATES _foreign)
  set(${libraries} ${_libraries} PARENT_SCOPE)
  set(${foreign} ${_foreign} PARENT_SCOPE)
endfunction()

# cairn_package_library(NAME FROM x [INCLUDES dir ...] [DEPS y ...])
#   Cairn::NAME: one archive of the library x and of all of ours that it needs, but for those in the
#   package libraries DEPS, with the headers below the folders INCLUDES. So a user sees one library,
#   and how we cut ours stays our business. Only INCLUDES are on a user's include path.
function(cairn_package_library name)
  cmake_parse_arguments(A "" "FROM" "INCLUDES;DEPS" ${ARGN})
  set(_target cairn_package_${name})
  set(_inherited)
  set(_public)
  foreach(_dep ${A_DEPS})
    get_target_property(_theirs cairn_package_${_dep} CAIRN_LIBRARIES)
    list(APPEND _inherited ${_theirs})
    list(APPEND _public cairn_package_${_dep})
  endforeach()
  set(_ours ${_inherited})
  set(_foreign)
  _cairn_closure(${A_FROM} _ours _foreign)
  set(_objects)
  foreach(_library ${_ours})
    get_target_property(_type ${_library} TYPE)
    if(_type STREQUAL "STATIC_LIBRARY" AND NOT _library IN_LIST _inherited)
      list(APPEND _objects $<TARGET_OBJECTS:${_library}>)
    endif()
  endforeach()

  add_library(${_target} STATIC ${_objects})
  add_library(Cairn::${name} ALIAS ${_target})
  set_target_properties(${_target} PROPERTIES
    CAIRN_LIBRARIES "${_ours}"
    EXPORT_NAME ${name}
    OUTPUT_NAME cairn_${name}
    ARCHIVE_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/lib
    LINKER_LANGUAGE CXX)
  # Our headers need these two; everything else is only linked.
  target_link_libraries(${_target} PUBLIC ${_public} absl::statusor fmt::fmt PRIVATE ${_foreign})
  target_compile_features(${_target} PUBLIC cxx_std_20)
  set(_install_headers)
  if(A_INCLUDES)
    list(TRANSFORM A_INCLUDES APPEND /*.h OUTPUT_VARIABLE _patterns)
    file(GLOB_RECURSE _headers CONFIGURE_DEPENDS ${_patterns})
    target_sources(${_target} PUBLIC FILE_SET HEADERS BASE_DIRS ${A_INCLUDES} FILES ${_headers})
    set(_install_headers FILE_SET HEADERS COMPONENT client)
  endif()
  install(TARGETS ${_target} EXPORT CairnTargets
    ARCHIVE COMPONENT client ${_install_headers})
endfunction()

# Programs, and the package file that finds what the libraries need.
function(cairn_install)
  install(TARGETS ${ARGN} RUNTIME COMPONENT programs)
  set(_folder ${CMAKE_INSTALL_LIBDIR}/cmake/Cairn)
  configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/CairnConfig.cmake.in
    ${PROJECT_BINARY_DIR}/CairnConfig.cmake INSTALL_DESTINATION ${_folder})
  # Before 1.0 a new minor version may change the interface.
  write_basic_package_version_file(${PROJECT_BINARY_DIR}/CairnConfigVersion.cmake
    COMPATIBILITY SameMinorVersion)
  install(FILES
      ${PROJECT_BINARY_DIR}/CairnConfig.cmake ${PROJECT_BINARY_DIR}/CairnConfigVersion.cmake
    DESTINATION ${_folder} COMPONENT client)
  install(EXPORT CairnTargets NAMESPACE Cairn:: DESTINATION ${_folder} COMPONENT client)
endfunction()
