# shellcheck shell=bash
# The archive of programs that tests/gpu.sh runs; sourced by it. Built here, run on a machine that has only a driver.

archive='build-gpu/programs.tar.xz'  # less than half of what gzip makes: its window sees that programs share kernels
max_archive_bytes=18000000  # what may be copied to such a machine, with the repository, is limited
programs=(tests/gpu_test tests/gpu_engine_test tests/gpu_bench runner/longhaul)

# The C library and the driver come from the machine. NCCL and cuBLASLt are large and loaded on demand; a machine with
# the CUDA toolkit or PyTorch has them.
carried() { ! [[ $1 =~ ^(ld-linux|libc\.|libm\.|libdl\.|librt\.|libpthread\.|libresolv\.|libcuda\.) ]]; }

# Configures and builds in $build, for one architecture. The programs look for their libraries in the folder lib beside
# their own, and for the tests' data in the folder where they are started.
build_programs() {  # ARCHITECTURE
  mkdir -p "$build"
  cmake --preset cuda -B "$build" -DCMAKE_CUDA_ARCHITECTURES="$1" -DLONGHAUL_UNITY=ON -DLONGHAUL_TEST_ROOT=. \
    -DCMAKE_BUILD_WITH_INSTALL_RPATH=ON -DCMAKE_INSTALL_RPATH_USE_LINK_PATH=OFF -DCMAKE_INSTALL_RPATH="\$ORIGIN/../lib" \
    -DCMAKE_EXE_LINKER_FLAGS=-Wl,--disable-new-dtags >"$build/configure.log" 2>&1 || {
    cat "$build/configure.log" >&2
    return 1
  }
  cmake --build "$build" --target "${programs[@]##*/}"
}

# Copies the programs and the libraries that they name.
collect() {  # FOLDER
  local program name library
  mkdir -p "$1/bin" "$1/lib" "$1/mpi"
  for program in "${programs[@]}"; do
    install -s "$build/$program" "$1/bin/"
    while read -r name _ library _; do
      if [ -e "$library" ] && carried "$name"; then cp -L "$library" "$1/lib/"; fi
    done < <(ldd "$build/$program")
  done
  # One rank needs only Open MPI's library and those of its plug-ins that load without other libraries.
  cp -rL "$(ompi_info --path pkglibdir | sed 's/^.*: *//')" "$1/mpi/plugins"
  cp -rL "$(ompi_info --path pkgdatadir | sed 's/^.*: *//')" "$1/mpi/share"
  git describe --always --dirty --abbrev=12 >"$1/commit"
}

unpack() {  # FOLDER
  if command -v xz >/dev/null; then
    tar -C "$1" -xJf "$archive"
  else
    python3 -c 'import sys, tarfile; tarfile.open(sys.argv[1]).extractall(sys.argv[2])' "$archive" "$1"
  fi
}

pack() {  # ARCHITECTURE
  local build=build-gpu/build-$1 folder num_bytes
  folder=$(mktemp -d)
  build_programs "$1"
  collect "$folder/programs"
  tar -C "$folder" -c programs | xz -9 >"$archive"
  rm -rf "$folder"
  num_bytes=$(stat -c %s "$archive")
  echo "$archive: $((num_bytes / 1000)) KB for $1"
  if ((num_bytes > max_archive_bytes)); then
    rm "$archive"
    echo "error: tests/gpu.sh pack: expected at most $((max_archive_bytes / 1000000)) MB, got more; name one architecture" >&2
    return 1
  fi
}
