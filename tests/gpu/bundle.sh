#!/bin/bash
# bundle.sh BUILD OUT.tar.xz: programs, libraries of devices, tests with their data, and the Debian
# libraries that they need, for a machine that has a GPU and nothing of ours. There:
#
#   tar xf OUT.tar.xz && cairn-gpu/run.sh
#
# It wants glibc of at least the version with which it was built, bash and coreutils.

set -eu
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
build=$1 out=$2
most=$((40 << 20))
staging=$(mktemp -d)
trap 'rm -rf "$staging"' EXIT
bundle=$staging/cairn-gpu
mkdir -p "$bundle"/{bin,tests,lib,tests/data}

programs=(bin/{cairn,cairn-cache,cairn-worker,cairn_fault_load,cairn_gpu_link,cairn_gpu_probe}
  bin/{cairn_link_peer,cairn_seeded_model}
  tests/{codecs,kernels}_conformance_test)
# A build without methods (CAIRN_METHODS=OFF) has none.
selections=tests/selections_conformance_test
[ ! -e "$build/$selections" ] || programs+=("$selections")
# The fake device tries a bundle on a machine without a GPU.
plugins=(bin/{libcairn_fake_device,libcairn_fake_kernels,libfakenccl}.so)
if [ -e "$build/bin/libcairn_cuda.so" ]; then
  plugins+=(bin/libcairn_cuda.so)
else
  echo "bundle.sh: no libcairn_cuda.so, since nvcc was not found: only the fake device will run" >&2
fi
for file in "${programs[@]}" "${plugins[@]}"; do
  strip -o "$bundle/$file" "$build/$file"
done
cp "$root"/tests/gpu/{run.sh,steps.sh,places.sh,torch_pages.py,README.md} "$bundle"
cp -r "$root"/tests/data/{codecs,selections} "$bundle/tests/data"
mkdir "$bundle/tests/data/smollm2"
cp "$root/tests/data/smollm2/kv.f16" "$bundle/tests/data/smollm2"
{ git -C "$root" describe --always --dirty 2>/dev/null || echo unknown; } >"$bundle/VERSION"

# Libraries that the machine has anyway, and must have in one version: the C library and its parts.
system='^(ld-linux|lib(c|m|dl|rt|pthread|resolv|nss_.*|util)\.so)'
for file in "${programs[@]}" "${plugins[@]}"; do ldd "$build/$file"; done |
  awk '/=> \// { print $1, $3 }' | sort -u | while read -r name path; do
  [[ $name =~ $system ]] && continue
  case $path in "$(cd "$build" && pwd)"/*) continue ;; esac
  strip -o "$bundle/lib/$name" "$path" 2>/dev/null || cp -L "$path" "$bundle/lib/$name"
done

# Times and owners would differ from build to build.
tar -C "$staging" --sort=name --owner=0 --group=0 --mtime=@0 -c cairn-gpu | xz -T0 -6 >"$out"
size=$(stat -c %s "$out")
echo "$out: $((size >> 20)) MiB, $(du -sm "$bundle" | cut -f1) MiB unpacked"
[ "$size" -le $most ] || { echo "bundle.sh: more than $((most >> 20)) MiB" >&2; exit 1; }
