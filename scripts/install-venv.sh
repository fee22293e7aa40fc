#!/bin/sh
# Debian ships Python without the part that makes virtual environments.
set -eu
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "installing python3-venv"
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq
    apt-get install -qq -y --no-install-recommends python3-venv >/dev/null
else
    echo "this Python cannot make virtual environments: sudo apt-get install python3-venv" >&2
    exit 1
fi
