# cairn_proto(NAME FILES a.proto ...): generated C++ and gRPC code as one library, without our
# warnings.
function(cairn_proto name)
  cmake_parse_arguments(A "" "" "FILES" ${ARGN})
  if(CMAKE_CROSSCOMPILING)
    # The package's own is a program for the other processor.
    find_program(plugin grpc_cpp_plugin NO_CACHE REQUIRED)
  else()
    get_target_property(plugin gRPC::grpc_cpp_plugin LOCATION)
  endif()
  add_library(${name} STATIC ${A_FILES})
  target_link_libraries(${name} PUBLIC protobuf::libprotobuf gRPC::grpc++)
  set(out ${CMAKE_CURRENT_BINARY_DIR})
  target_include_directories(${name} SYSTEM PUBLIC ${out})
  protobuf_generate(TARGET ${name} LANGUAGE cpp IMPORT_DIRS ${CMAKE_CURRENT_SOURCE_DIR}
    PROTOC_OUT_DIR ${out})
  protobuf_generate(TARGET ${name} LANGUAGE grpc IMPORT_DIRS ${CMAKE_CURRENT_SOURCE_DIR}
    PROTOC_OUT_DIR ${out} GENERATE_EXTENSIONS .grpc.pb.h .grpc.pb.cc
    PLUGIN "protoc-gen-grpc=${plugin}")
  # Reading gRPC's headers is most of compiling its code. That of messages has static names of its
  # own, which meet in one source.
  get_target_property(_sources ${name} SOURCES)
  list(FILTER _sources INCLUDE REGEX "/[^/.]+\\.pb\\.cc$")
  set_source_files_properties(${_sources} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  set_target_properties(${name} PROPERTIES UNITY_BUILD ON)
endfunction()
