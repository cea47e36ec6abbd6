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

# Packages that are linked into programs have their licences beside them.
has_licences() {  # folder, package...
  local folder=$1 package
  shift
  for package in "$@"; do [[ -s $folder/$package ]] || fail "the licence of $package is not in $folder"; done
}

# Debian packages, into the overlay; their services are not started.
fetch() {
  printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d && chmod +x /usr/sbin/policy-rc.d
  local get=(apt-get install -y -qq --no-install-recommends "$@")
  DEBIAN_FRONTEND=noninteractive "${get[@]}" >/run/apt.log 2>&1 ||
    { apt-get update -qq >/dev/null 2>&1 && DEBIAN_FRONTEND=noninteractive "${get[@]}" >/run/apt.log 2>&1; } ||
    skip "the packages cannot be fetched"
}

# A root folder with Debian 11's C library, glibc 2.31, and nothing else.
old_glibc() {
  local root=$1 apt mirror
  mirror=$(apt-get indextargets --format '$(REPO_URI)' "Origin: Debian" "Created-By: Packages" | head -1)
  mkdir -p "$root" /run/apt/{lists,cache/archives}/partial
  echo 'deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] '"$mirror"' bullseye main' >/run/apt/sources.list
  apt=(-qq -o Dir::Etc::sourcelist=/run/apt/sources.list -o Dir::Etc::sourceparts=/nonexistent -o Dir::State::lists=/run/apt/lists
       -o Dir::State::status=/dev/null -o Dir::Cache=/run/apt/cache -o APT::Sandbox::User=root)
  (cd /run/apt && apt-get "${apt[@]}" update && apt-get "${apt[@]}" download libc6) >/run/apt.log 2>&1 || return 1
  for package in /run/apt/*.deb; do dpkg -x "$package" "$root"; done
}

# A machine of its own: systemd, booted by systemd-nspawn below a root folder. `within COMMAND...` runs in it.
boot() {  # root folder
  systemd-nspawn --register=no --keep-unit --quiet --link-journal=no -D "$1" --boot --console=pipe systemd.unit=multi-user.target \
    </dev/null >/run/boot.log 2>&1 & local nspawn=$!
  for _ in {1..900}; do
    init=$(pgrep -P $nspawn -x systemd || true)  # not one of its helpers
    [[ -n $init && $(within systemctl is-system-running 2>/dev/null || true) =~ running|degraded ]] && return
    sleep 0.1
  done
  skip "systemd-nspawn boots no machine here: $(tail -1 /run/boot.log)"
}
within() {
  nsenter --target "$init" --all -- env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root DEBIAN_FRONTEND=noninteractive "$@"
}

# The folder of a bare Debian 12 with systemd, kept below build/engines. Needs debootstrap.
bare_debian() {
  local bare=$PWD/build/engines/bare mirror
  if [[ ! -e $bare.made ]]; then
    mirror=$(apt-get indextargets --format '$(REPO_URI)' "Origin: Debian" "Created-By: Packages" | head -1)
    rm -rf "$bare" && mkdir -p "$bare"
    debootstrap --variant=minbase --include=systemd,systemd-sysv,dbus,ca-certificates,zstd bookworm "$bare" "$mirror" >/run/debootstrap.log 2>&1 ||
      { rm -rf "$bare"; return 1; }
    touch "$bare.made"
  fi
  echo "$bare"
}

# The block of docs/deploy.md in which a line begins with these words.
block() {
  python3 - "$1" <<'PYTHON'
import re, sys
blocks = re.findall(r"^```\w*\n(.*?)^```$", open("docs/deploy.md").read(), re.S | re.M)
found = [lines for lines in blocks if re.search("^" + re.escape(sys.argv[1]), lines, re.M)]
sys.exit(f"docs/deploy.md has {len(found)} blocks with a line '{sys.argv[1]}'") if len(found) != 1 else print(found[0])
PYTHON
}

# Names and levels of all clients, as in "service:5 trainer:0". A function `tessera` asks a daemon elsewhere.
clients() { tessera ps --json | python3 -c 'import json, sys; print(*sorted("%s:%s" % (c["name"], c["priority"]) for c in json.load(sys.stdin)["clients"]))'; }
until_clients() {  # pattern
  # shellcheck disable=SC2053
  for _ in {1..600}; do [[ $(clients 2>/dev/null) == $1 ]] && return; sleep 0.1; done
  fail "clients are '$(clients)', not '$1'"
}
pid_of() { tessera ps --json | python3 -c 'import json, sys; print(*(c["pid"] for c in json.load(sys.stdin)["clients"] if c["name"] == sys.argv[1]))' "$1"; }  # of a client
# Best-effort launches waited for the protected client, whose own never wait.
until_protected() {
  for _ in {1..600}; do
    tessera ps --json | python3 -c '
import json, sys
waits = [(c["priority"], c["holds"]) for c in json.load(sys.stdin)["clients"]]
sys.exit(not (any(n for level, n in waits if level == 0) and {n for level, n in waits if level > 0} == {0}))' && return
    sleep 0.1
  done
  fail "nothing waited for the protected job: $(tessera ps --json)"
}

# Both jobs got what they got alone.
same_results() {  # folder of what they printed; /run if not given
  local job out
  for job in trainer service; do
    out=${1:-/run}/$job
    [[ -n $(checksum "$out.out") && $(checksum "$out.out") == "$(checksum "$out.alone")" ]] ||
      fail "the $job's checksum differs: $(cat "$out.alone" "$out.out")"
  done
}

# Finds the checksum that a sample program printed into a file.
checksum() { sed -n 's/.*checksum=\([0-9a-f]*\).*/\1/p' "$1"; }

# Below a root folder, in which Tessera lies in another: each job alone, then both, a bad request, a job that is killed.
share() {  # root folder, folder below it
  local root=$1 of=$2 trainer service socket=/tmp/tesserad.sock
  local in=(env -i PATH="$of/bin" HOME=/tmp TESSERA_SOCKET=$socket /usr/sbin/chroot "$root")
  "${in[@]}" tesserad --socket $socket 2>/run/tesserad.log & local daemon=$!
  for _ in {1..400}; do [[ -S $root$socket ]] && break; sleep 0.05; done
  tessera() { "${in[@]}" tessera "$@"; }
  local job=("${in[@]}" tessera run --gpu soft)
  "${job[@]}" -- "$of/bin/batch_trainer" --steps 4 --checksum-steps 4 >/run/trainer.alone
  "${job[@]}" -- "$of/bin/latency_service" --rate 50 --requests 30 >/run/service.alone
  "${job[@]}" --name trainer -- "$of/bin/batch_trainer" --seconds 600 --checksum-steps 4 >/run/trainer.out 2>&1 & trainer=$!
  "${job[@]}" --name service --priority high -- "$of/bin/latency_service" --rate 5 --requests 30 >/run/service.out 2>&1 & service=$!
  until_clients "service:5 trainer:0"
  until_protected
  kill -TERM "$(pid_of trainer)"
  wait $trainer || { cat /run/trainer.out >&2; fail "the trainer failed"; }
  wait $service || { cat /run/service.out >&2; fail "the service failed"; }
  same_results
  "${job[@]}" --priority fast -- "$of/bin/batch_trainer" >/run/bad.out 2>&1 && fail "--priority fast is accepted"
  grep -q 'best-effort' /run/bad.out || fail "--priority fast is refused without a remedy: $(cat /run/bad.out)"
  "${job[@]}" --name killed -- "$of/bin/batch_trainer" --seconds 600 >/dev/null 2>&1 &
  disown
  until_clients killed:0
  kill -KILL "$(pid_of killed)"
  until_clients ""
  kill $daemon && wait $daemon || true
}
