#!/bin/sh
# ubuntu.sh WHEELS [SUITE] [FOLDER]: installs the wheels of a folder with the pip of Ubuntu (jammy
# by default), starts the node there, stores a block and reads it back through gRPC and through
# shared memory. By hand, as root: it needs debootstrap and a mirror of Ubuntu. FOLDER keeps what
# debootstrap made, for the next time.
set -eu

# What runs there.
inside() {
  . /etc/os-release
  echo "$PRETTY_NAME, $(ldd --version | head -1), $(python3 --version)"
  python3 -m venv /venv
  . /venv/bin/activate
  pip --version
  pip install --no-index --find-links /wheels cairn cairn-node
  cairn-cache --listen 127.0.0.1:17400 --admin.listen 127.0.0.1:0 --host.capacity 64MiB &
  node=$!
  for path in grpc local; do
    PYTHONPATH=/ python -c "import exchange; exchange.exchange('127.0.0.1:17400', '$path')"
    echo "a block was stored and read through $path"
  done
  cairn stat --cache 127.0.0.1:17400
  kill "$node"
  wait "$node"
  echo "the node ended with status $?"
}

if [ "$1" = --inside ]; then
  inside
  exit
fi
wheels=$(cd "$1" && pwd)
suite=${2:-jammy}
root=${3:-$(mktemp -d)/$suite}
if [ ! -e "$root/complete" ]; then
  debootstrap --variant=minbase --components=main,universe --include=python3-pip,python3-venv \
    "$suite" "$root" "${UBUNTU_MIRROR:-http://archive.ubuntu.com/ubuntu}"
  touch "$root/complete"
fi
rm -rf "$root/wheels" "$root/venv"
cp -r "$wheels" "$root/wheels"
here=$(cd "$(dirname "$0")" && pwd)
cp "$here/ubuntu.sh" "$here/../support/exchange.py" "$root"
# In namespaces of its own, so that nothing stays mounted, and no process stays.
exec unshare --mount --pid --fork --kill-child sh -eu -c '
mount --rbind /dev "$0/dev"
mount -t proc proc "$0/proc"
exec chroot "$0" sh /ubuntu.sh --inside' "$root"
