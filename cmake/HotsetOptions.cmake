# Compiler settings for our own code, and the one way to declare a library, a test and a benchmark.

add_library(hotset_warnings INTERFACE)
# Designated initialisers leave the other members at their defaults on purpose.
target_compile_options(hotset_warnings INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wno-missing-field-initializers>)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # g++ 12 calls members of std::variant and std::string that it has lost track of uninitialised or overlapping, with
  # sanitizers all the more.
  target_compile_options(hotset_warnings INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-maybe-uninitialized;-Wno-restrict>)
endif()
# A warning of a compiler that we have not seen must not stop a user's build: Debian 12's is the one we keep clean.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  set(HOTSET_WERROR_DEFAULT ON)
endif()
option(HOTSET_WERROR "Warnings of our own code are errors" ${HOTSET_WERROR_DEFAULT})
if(HOTSET_WERROR)
  target_compile_options(hotset_warnings INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Werror>)
endif()

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
endif()

if(NOT HOTSET_CUDA MATCHES "^(ON|OFF|AUTO)$")
  message(FATAL_ERROR "HOTSET_CUDA is '${HOTSET_CUDA}': use ON, OFF or AUTO")
endif()

# hotset_library(NAME source...): static library of one folder, include root = repository root.
function(hotset_library name)
  add_library(${name} STATIC ${ARGN})
  target_include_directories(${name} PUBLIC ${PROJECT_SOURCE_DIR})
  target_link_libraries(${name} PRIVATE hotset_warnings)
endfunction()

# hotset_test(NAME LIBS lib... SOURCES source...): one GoogleTest program with the main() of tests/test_main.cpp, registered with CTest.
function(hotset_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT" "LIBS;SOURCES" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR})
  target_compile_definitions(${name} PRIVATE HOTSET_FIXTURES="${PROJECT_SOURCE_DIR}/tests/fixtures")
  target_link_libraries(${name} PRIVATE ${ARG_LIBS} hotset_warnings hotset_test_main GTest::gtest Threads::Threads)
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES TIMEOUT ${ARG_TIMEOUT} SKIP_RETURN_CODE 77)
endfunction()
