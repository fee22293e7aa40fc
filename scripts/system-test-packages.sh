#!/bin/sh
# Programs that some tests use and pip cannot bring. Without root the tests that need one say so.
set -eu
missing=""
command -v bwrap >/dev/null || missing="$missing bubblewrap"
command -v podman >/dev/null || missing="$missing podman"
command -v runc >/dev/null || missing="$missing runc"
command -v dockerd >/dev/null || missing="$missing docker.io"
command -v qemu-system-x86_64 >/dev/null || missing="$missing qemu-system-x86"
command -v busybox >/dev/null || missing="$missing busybox-static"
command -v git >/dev/null || missing="$missing git"
command -v pg_ctlcluster >/dev/null || missing="$missing postgresql"
[ -e /usr/lib/x86_64-linux-gnu/libfuse3.so.3 ] || [ -e /lib/x86_64-linux-gnu/libfuse3.so.3 ] || missing="$missing libfuse3-3"
command -v chromium >/dev/null || missing="$missing chromium"
command -v openssl >/dev/null || missing="$missing openssl"
[ -z "$missing" ] && exit 0
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "not installed and not installable here:$missing (their tests will be skipped)"
    exit 0
fi
echo "installing for the tests:$missing"
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
# shellcheck disable=SC2086
apt-get install -qq -y --no-install-recommends $missing >/dev/null
