# Sourced by the scripts: finding a Python to build an environment with. Sets nothing but functions.

# find_python PROGRAM: print a Python >= 3.11 that can make virtual environments, or say in one line what is missing.
find_python() {
  local program=$1 candidate found=""
  for candidate in ${KVTOP_PYTHON:+"$KVTOP_PYTHON"} python3 python3.13 python3.12 python3.11 python3.14; do
    "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 || continue
    found=${found:-$candidate}
    # Debian ships ensurepip apart from Python, so each candidate is asked.
    if "$candidate" -c 'import ensurepip, venv' >/dev/null 2>&1; then
      printf '%s\n' "$candidate"
      return 0
    fi
  done
  if [ -n "$found" ]; then
    local version
    version=$("$found" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    echo "$program: $found ($version) cannot make virtual environments: install python$version-venv (Debian, Ubuntu: apt-get install python$version-venv)" >&2
  elif command -v python3 >/dev/null 2>&1; then
    echo "$program: needs Python 3.11 or newer; python3 here is $(python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null || echo unusable), and there is no python3.11, 3.12, 3.13 or 3.14" >&2
  else
    echo "$program: needs Python 3.11 or newer and found no python3: install it (Debian, Ubuntu: apt-get install python3 python3-venv)" >&2
  fi
  return 1
}

# ensure_environment ROOT PROGRAM LOCK: make or mend ROOT/.venv so that it holds what LOCK (runtime or dev) names.
# The common case, nothing to do, is two small files read and compared: it must not slow the start down.
ensure_environment() {
  local root=$1 program=$2 kind=$3 python
  local stamp=$root/.venv/kvtop-$kind.stamp want
  want=$root$'\n'$(<"$root/requirements.lock")
  [ "$kind" = dev ] && want+=$'\n'$(<"$root/requirements-dev.lock")
  if [ -x "$root/.venv/bin/python" ] && [ -f "$stamp" ] && [ "$(<"$stamp")" = "$want" ]; then
    return 0
  fi
  python=$(find_python "$program") || return 1
  "$python" "$root/scripts/lib/environment.py" "$root" "$program" "$kind"
}
