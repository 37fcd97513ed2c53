# Finds Apache Arrow and its Parquet library, with which data/arrow_rows.cpp reads tables. Sets LONGHAUL_WITH_ARROW, and
# makes the target longhaul_arrow if they were found.
#
# LONGHAUL_ARROW: AUTO uses Arrow's CMake packages if they are installed (CMAKE_PREFIX_PATH names their place); ON demands
# them; OFF leaves Arrow out; a folder is that of the Python package pyarrow, which holds the libraries and their headers:
#
#   pip install pyarrow
#   cmake … -DLONGHAUL_ARROW="$(python3 -c 'import pyarrow; print(pyarrow.__path__[0])')"
#
# The program then needs that folder at run time. Not AUTO, because Python environments come and go.
set(LONGHAUL_ARROW AUTO CACHE STRING "read Parquet files with Apache Arrow: AUTO (if installed), ON, OFF, or pyarrow's folder")

set(LONGHAUL_WITH_ARROW OFF)
set(arrow_libraries)
if(LONGHAUL_ARROW STREQUAL "AUTO" OR LONGHAUL_ARROW STREQUAL "ON")
  find_package(Arrow CONFIG QUIET)
  find_package(Parquet CONFIG QUIET)
  if(TARGET Arrow::arrow_shared AND TARGET Parquet::parquet_shared)
    set(arrow_libraries Parquet::parquet_shared Arrow::arrow_shared)
  elseif(LONGHAUL_ARROW STREQUAL "ON")
    message(FATAL_ERROR "LONGHAUL_ARROW: expected the CMake packages Arrow and Parquet, got none; name their place with "
                        "-DCMAKE_PREFIX_PATH=…, or the folder of pyarrow with -DLONGHAUL_ARROW=…")
  endif()
elseif(LONGHAUL_ARROW)
  foreach(name parquet arrow)
    file(GLOB found ${LONGHAUL_ARROW}/lib${name}.so.*)
    list(FILTER found INCLUDE REGEX "[.]so[.][0-9]+$")
    list(APPEND arrow_libraries ${found})
  endforeach()
  list(LENGTH arrow_libraries count)
  if(NOT count EQUAL 2 OR NOT EXISTS ${LONGHAUL_ARROW}/include/parquet/arrow/reader.h)
    message(FATAL_ERROR "LONGHAUL_ARROW: expected AUTO, ON, OFF or the folder of pyarrow with its libraries and headers, "
                        "got ${LONGHAUL_ARROW}")
  endif()
endif()

if(arrow_libraries)
  add_library(longhaul_arrow INTERFACE IMPORTED GLOBAL)
  target_link_libraries(longhaul_arrow INTERFACE ${arrow_libraries})
  if(NOT TARGET Arrow::arrow_shared)
    target_include_directories(longhaul_arrow INTERFACE ${LONGHAUL_ARROW}/include)  # SYSTEM, as it is imported
  endif()
  # Arrow before 18 has no memory pool with a limit.
  set(program ${CMAKE_CURRENT_BINARY_DIR}/arrow_check.cpp)
  file(WRITE ${program} "#include <arrow/api.h>\n#include <parquet/arrow/reader.h>\nint main() { arrow::CappedMemoryPool "
    "pool(arrow::default_memory_pool(), 1); parquet::ReaderProperties properties(&pool); return pool.max_memory() != 0; }\n")
  try_compile(LONGHAUL_ARROW_WORKS ${CMAKE_CURRENT_BINARY_DIR}/arrow_check ${program} LINK_LIBRARIES longhaul_arrow
    CXX_STANDARD 20 CXX_STANDARD_REQUIRED ON OUTPUT_VARIABLE arrow_check)
  if(LONGHAUL_ARROW_WORKS)
    set(LONGHAUL_WITH_ARROW ON)
    message(STATUS "Apache Arrow: ${arrow_libraries}")
  elseif(LONGHAUL_ARROW STREQUAL "AUTO")
    message(STATUS "Apache Arrow: found, but it is too old or does not link; tables are left out")
  else()
    message(FATAL_ERROR "LONGHAUL_ARROW: expected Apache Arrow with CappedMemoryPool that links, got ${arrow_check}")
  endif()
endif()
