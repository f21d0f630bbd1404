# Where libraries are that a machine may have. Sourced by run.sh and steps.sh, which set
# `libraries`.

# Runs a program of ours.
ours() { LD_LIBRARY_PATH=$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} "$@"; }

# The file LIBRARY that the linker or a Python package of NVIDIA has; nothing if there is none.
find_library() {
  local library=$1 package=$2 folder
  ldconfig -p 2>/dev/null | awk -v name="$library" '$1 == name { print $NF; found = 1; exit }
    END { exit !found }' && return
  command -v python3 >/dev/null || return
  local ask='import site; print(*site.getsitepackages(), site.getusersitepackages())'
  for folder in $(python3 -c "$ask" 2>/dev/null); do
    for folder in "$folder"/nvidia/{"$package",cu13}/lib; do
      [ -e "$folder/$library" ] && echo "$folder/$library" && return
    done
  done
}
