#!/usr/bin/env bash
# Builds against HDF5 and Boost in a separate prefix, as Spack, conda and environment modules provide them: checks that
# CMake finds them there and nowhere else, compiles the sources that use them, and links HDF5. Takes about a minute.
set -euo pipefail
cd "$(dirname "$0")/.."
source=$PWD
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
prefix=$work/prefix
mkdir -p "$prefix"/{include,lib}

fail() {
  echo "error: tests/prefix_build.sh: $1" >&2
  exit 1
}

# The system's libraries under other paths and names: as their makers install them.
hdf5_headers=$(pkg-config --cflags-only-I hdf5-serial | sed 's/^-I//; s/ .*//')
hdf5_libraries=$(pkg-config --libs-only-L hdf5-serial | sed 's/^-L//; s/ .*//')
cp "$hdf5_headers"/*.h "$prefix/include/"
cp -L "$hdf5_libraries/libhdf5.so" "$prefix/lib/libhdf5.so"
ln -s /usr/include/boost "$prefix/include/boost"
cp -L "$(g++ -print-file-name=libboost_program_options.so)" "$prefix/lib/"

cmake -S "$source" -B "$work/build" -G Ninja -DCMAKE_BUILD_TYPE=Debug -DLONGHAUL_TESTS=OFF -DLONGHAUL_CUDA=OFF \
  -DHDF5_ROOT="$prefix" -DBOOST_ROOT="$prefix" -DBoost_NO_SYSTEM_PATHS=ON -DBoost_NO_BOOST_CMAKE=ON \
  >"$work/configure.log" 2>&1 || { cat "$work/configure.log" >&2; fail "expected CMake to find the libraries in $prefix"; }
for variable in HDF5_C_INCLUDE_DIR HDF5_hdf5_LIBRARY_RELEASE Boost_PROGRAM_OPTIONS_LIBRARY_RELEASE; do
  grep -q "^$variable:[A-Z]*=$prefix/" "$work/build/CMakeCache.txt" ||
    fail "expected $variable below $prefix, got '$(grep "^$variable:" "$work/build/CMakeCache.txt")'"
done
if ! ninja -C "$work/build" engine/CMakeFiles/longhaul_engine.dir/checkpoint/hdf5.cpp.o \
  runner/CMakeFiles/longhaul_runner.dir/job/command_line.cpp.o >"$work/build.log" 2>&1; then
  cat "$work/build.log" >&2
  fail "expected the sources that use HDF5 and Boost to compile"
fi
grep -q "$prefix/include" "$work/build/build.ninja" || fail "expected $prefix/include among the include folders"
echo "HDF5 and Boost were found in a prefix of their own"
