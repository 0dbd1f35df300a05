# Sourced by tools/serve and tools/test: makes .venv and keeps it in step with what the project needs.
# Nothing is done, and nothing is asked of the network, while the stamp of the last installation still holds.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=$root/.venv

find_python() {
    local candidate
    for candidate in "${PYTHON:-}" python3 python3.13 python3.12 python3.11; do
        if [ -n "$candidate" ] && "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
    echo "actorserve needs Python 3.11 or newer, and there is none on the path. Install one, or name it:" >&2
    echo "    PYTHON=/path/to/python3.11 $0" >&2
    return 1
}

# What an installation depends on: the folder it stands in and the three files that say what to install.
stamp_now() {
    (cd "$root" && { pwd && cat setup.cfg pyproject.toml tools/constraints.txt; } | sha256sum | cut -d ' ' -f 1)
}

# install_project NAME TARGET: NAME is the stamp's, TARGET what pip installs (`.` or `.[test]`).
install_project() {
    local stamp=$venv/.actorserve-$1 target=$2 quiet='' now
    now=$(stamp_now)
    [ -x "$venv/bin/python" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$now" ] && return
    if ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
        local python
        python=$(find_python) || return 1
        echo "making $venv" >&2
        "$python" -m venv --clear "$venv" || return 1
    fi
    echo "installing what actorserve needs into $venv (some minutes the first time)" >&2
    [ -t 2 ] || quiet=--quiet
    (cd "$root" && "$venv/bin/python" -m pip install $quiet -c tools/constraints.txt -e "$target") >&2 || return 1
    echo "$now" | tee "$venv/.actorserve-serve" >"$stamp" # every target holds all that serving needs
}

# Two commands started at once must not install at once: the folder tools/ itself is the lock.
with_lock() {
    if command -v flock >/dev/null; then
        (flock 9 && "$@") 9<"$root/tools"
    else
        "$@"
    fi
}
