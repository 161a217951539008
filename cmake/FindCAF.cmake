# CAF 0.17.x of the distribution, which ships no CMake package. Targets: CAF::core, CAF::io.
# The actors are written for 0.17 (atoms, typed interfaces, inspection changed in 0.18), so other versions are refused.

find_path(CAF_INCLUDE_DIR caf/config.hpp)
find_library(CAF_core_LIBRARY caf_core)
find_library(CAF_io_LIBRARY caf_io)

if(CAF_INCLUDE_DIR)
  file(STRINGS "${CAF_INCLUDE_DIR}/caf/config.hpp" CAF_VERSION_LINE REGEX "^#define CAF_VERSION [0-9]+")
  string(REGEX REPLACE "^#define CAF_VERSION ([0-9]+).*" "\\1" CAF_VERSION_NUMBER "${CAF_VERSION_LINE}")
  if(CAF_VERSION_NUMBER)
    math(EXPR CAF_VERSION_MAJOR "${CAF_VERSION_NUMBER} / 10000")
    math(EXPR CAF_VERSION_MINOR "${CAF_VERSION_NUMBER} / 100 % 100")
    math(EXPR CAF_VERSION_PATCH "${CAF_VERSION_NUMBER} % 100")
    set(CAF_VERSION "${CAF_VERSION_MAJOR}.${CAF_VERSION_MINOR}.${CAF_VERSION_PATCH}")
  endif()
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(CAF REQUIRED_VARS CAF_core_LIBRARY CAF_io_LIBRARY CAF_INCLUDE_DIR VERSION_VAR CAF_VERSION)
if(CAF_FOUND AND NOT CAF_VERSION MATCHES "^0\\.17\\.")
  message(FATAL_ERROR "CAF ${CAF_VERSION} in ${CAF_INCLUDE_DIR}: Hotset needs 0.17.x (Debian and Ubuntu: libcaf-dev)")
endif()

if(CAF_FOUND)
  find_package(Threads REQUIRED)
  foreach(part core io)
    if(NOT TARGET CAF::${part})
      add_library(CAF::${part} UNKNOWN IMPORTED GLOBAL)
      set_target_properties(CAF::${part} PROPERTIES IMPORTED_LOCATION "${CAF_${part}_LIBRARY}"
                                                    INTERFACE_INCLUDE_DIRECTORIES "${CAF_INCLUDE_DIR}")
    endif()
  endforeach()
  set_property(TARGET CAF::core PROPERTY INTERFACE_LINK_LIBRARIES Threads::Threads)
  set_property(TARGET CAF::io PROPERTY INTERFACE_LINK_LIBRARIES CAF::core)
endif()
mark_as_advanced(CAF_INCLUDE_DIR CAF_core_LIBRARY CAF_io_LIBRARY)
