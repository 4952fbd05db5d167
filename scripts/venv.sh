# Sourced by scripts/* and .ci/run. `make_venv` gives $root a .venv with the package and its test extra in the exact versions of
# scripts/constraints.txt, and sets $venv_python. An environment made from the same files is used again.

root=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
venv_python=$root/.venv/bin/python

_venv_trouble() {
    printf '%s\n' "$@" >&2
    exit 1
}

make_venv() {
    local python=${PYTHON:-python3} venv=$root/.venv stamp=$root/.venv/.fastdata-stamp version want
    command -v -- "$python" >/dev/null ||
        _venv_trouble "expected Python 3.10 or newer, found no '$python': install one, or name it: PYTHON=/path/to/python $0"
    version=$("$python" -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])') ||
        _venv_trouble "expected Python 3.10 or newer, but '$python' does not run: name another: PYTHON=/path/to/python $0"
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
        _venv_trouble "expected Python 3.10 or newer, got $version, at '$python': name another: PYTHON=/path/to/python $0"
    "$python" -c 'import venv, ensurepip' 2>/dev/null ||
        _venv_trouble "expected the modules venv and ensurepip, '$python' ($version) lacks one: on Debian and Ubuntu, apt-get install python3-venv"
    # The interpreter behind an activated environment: .venv may be made anew, so it must not be made by itself.
    python=$("$python" -c 'import sys; print(getattr(sys, "_base_executable", "") or sys.executable)')

    want=$("$python" - "$root" <<'PYTHON_END'
import hashlib, pathlib, sys

root = pathlib.Path(sys.argv[1])
parts = [sys.version.encode(), sys.base_prefix.encode(), bytes(root)]  # an environment cannot be moved
parts += [(root / name).read_bytes() for name in ("pyproject.toml", "scripts/constraints.txt")]
print(hashlib.sha256(b"\0".join(parts)).hexdigest())
PYTHON_END
    )
    if [ -x "$venv_python" ] && [ -f "$stamp" ] && [ "$(cat -- "$stamp")" = "$want" ]; then
        return
    fi
    if [ -e "$venv" ] && [ ! -f "$stamp" ]; then
        _venv_trouble "expected no .venv, or one that scripts/ made, got another one, at $venv: move it away"
    fi

    echo "installing into $venv (Python $version); the first time takes some minutes" >&2
    rm -rf -- "$venv"
    mkdir -- "$venv"
    : >"$stamp" # ours from now on; filled in when all is installed
    "$python" -m venv -- "$venv"
    (
        CDPATH='' cd -- "$root"
        "$venv_python" -m pip install --quiet --disable-pip-version-check --use-pep517 -c scripts/constraints.txt -e '.[test]'
    ) || _venv_trouble "pip could not install the package, see above"
    echo "$want" >"$stamp"
}
