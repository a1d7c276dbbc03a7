#!/bin/sh
# Finds a Python that ptxgym can use and prints its path; names the Debian package for whatever is missing.
set -eu

missing=""
need() { missing="$missing $1"; }

usable() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

python=""
for candidate in "${PYTHON:-python3}" python3.13 python3.12 python3.11 python3.14; do
    if command -v "$candidate" >/dev/null 2>&1 && usable "$candidate"; then
        python=$(command -v "$candidate")
        break
    fi
done

if [ -z "$python" ]; then
    if command -v python3 >/dev/null 2>&1; then
        echo "ptxgym needs Python 3.11 or newer; python3 here is $(python3 -V 2>&1 | cut -d' ' -f2)." >&2
        echo "Install a newer one (for example: apt-get install python3.12 python3.12-venv), or name one: make PYTHON=/path/to/python3.12" >&2
        exit 1
    fi
    need python3
    need python3-venv
elif ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    # Debian's own python3 is served by python3-venv, any other version by a package of its own.
    case "$python" in
        */python3) need python3-venv ;;
        *) need "$(basename "$python")-venv" ;;
    esac
fi
command -v "${CXX:-g++}" >/dev/null 2>&1 || need g++
command -v git >/dev/null 2>&1 || need git

if [ -n "$missing" ]; then
    echo "Missing on this machine:$missing" >&2
    echo "On Debian or Ubuntu: apt-get install$missing" >&2
    exit 1
fi
echo "$python"
