#!/bin/sh
# aarch64_root.sh FOLDER: unpacks Debian's libraries for aarch64, those of packages.txt and what
# they need, into FOLDER. Nothing of them is installed on this machine, and nothing of them runs.
set -eu
here=$(dirname "$0")
folder=$1

# protobuf-compiler-grpc is a program, but gRPC's CMake package wants to see it.
packages=$(grep -v '^#' "$here/packages.txt" |
  grep -E -e '-dev$|^protobuf-compiler-grpc$' | grep -v -e '^python3-dev$' -e '^libclang')
rm -rf "$folder"
mkdir -p "$(dirname "$folder")"
mmdebstrap --quiet --variant=extract --architectures=arm64 \
  --hook-dir=/usr/share/mmdebstrap/hooks/merged-usr \
  --include="$(echo "$packages" | tr '\n' ',' | sed 's/,$//')" bookworm "$folder"
# The compiler has these itself. Here they are scripts of the linker, with paths of a machine that
# has them in its own /usr.
rm -f "$folder/usr/lib/aarch64-linux-gnu/libc.so" "$folder/usr/lib/aarch64-linux-gnu/libm.so" \
  "$folder/usr/lib/aarch64-linux-gnu/libm.a"
# Packages of CMake name files by where they would be if they were installed.
root=$(cd "$folder" && pwd)
grep -rlE --include='*.cmake' '["; ]/usr(/|")' "$root/usr/lib" |
  xargs sed -i -E "s,([\"; ])/usr(/|\"),\1$root/usr\2,g"
touch "$folder/.done"
