# Sourced by tests that install packages or start daemons. `in_overlay` runs the test again in namespaces of its own where
# /usr, /etc and /var are overlays and /run is empty, so that this machine stays as it is; it returns in there only.
name=$(basename "$0" .sh)

skip() { echo "$name: skipped: $*"; exit 77; }

fail() {
  echo "$name: $*" >&2
  for log in /run/*.log; do [[ -z ${TESSERA_OVERLAY:-} || ! -s $log ]] || tail -n 5 "$log" >&2; done
  exit 1
}

in_overlay() {
  if [[ -z ${TESSERA_OVERLAY:-} ]]; then
    ((EUID == 0)) || skip "needs root for a mount namespace"
    local overlay status=0
    overlay=$(mktemp -d)
    TESSERA_OVERLAY=$overlay unshare --mount --pid --fork --mount-proc "$0" || status=$?
    rmdir "$overlay"
    exit $status
  fi
  mount -t tmpfs none "$TESSERA_OVERLAY" || skip "mounts are not allowed here"
  local folder
  for folder in usr etc var; do
    mkdir "$TESSERA_OVERLAY"/$folder.{changed,work}
    mount -t overlay overlay -o "lowerdir=/$folder,upperdir=$TESSERA_OVERLAY/$folder.changed,workdir=$TESSERA_OVERLAY/$folder.work" \
      /$folder || skip "overlays are not allowed here"
  done
  mount -t tmpfs none /run
  trap 'kill $(jobs -p) 2>/dev/null || true' EXIT
}

# Debian packages, into the overlay; their services are not started.
fetch() {
  printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d && chmod +x /usr/sbin/policy-rc.d
  local get=(apt-get install -y -qq --no-install-recommends "$@")
  DEBIAN_FRONTEND=noninteractive "${get[@]}" >/run/apt.log 2>&1 ||
    { apt-get update -qq >/dev/null 2>&1 && DEBIAN_FRONTEND=noninteractive "${get[@]}" >/run/apt.log 2>&1; } ||
    skip "the packages cannot be fetched"
}

# Of what a sample program printed into a file.
checksum() { sed -n 's/.*checksum=\([0-9a-f]*\).*/\1/p' "$1"; }
