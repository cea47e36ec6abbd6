#!/usr/bin/env bash
# Builds the Debian packages `tessera` and `tesserad` into build/package/debs and checks them with lintian.
# usage: scripts/package.sh
set -euo pipefail
cd "$(dirname "$0")/.."
[[ $# == 0 ]] || { sed -n '2,3s/^# //p' "$0"; [[ $1 == --help || $1 == -h ]] && exit 0; exit 2; }
scripts/setup.sh --package

build=build/package
cmake -S . -B $build -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_INSTALL_PREFIX=/usr -DTESSERA_SHAPE=lib/tessera/ >/dev/null
cmake --build $build --target quickstart

# Manual pages say what --help says.
page() {  # package, page, command...
  local folder=$build/packaging/man_$1/man1 name=$2 about
  shift 2
  mkdir -p "$folder"
  about=$("$@" --help | sed -n 1p)
  help2man --no-info --no-discard-stderr --version-string "$version" "$*" |
    sed "/^\.SH NAME/{n;s/.*/$name \\\\- ${about//\//\\/}/}" | gzip -9n > "$folder/$name.1.gz"
}
version=$($build/bin/tessera --version)
rm -rf $build/packaging/man_*
PATH="$PWD/$build/bin:$PATH"
page tessera tessera tessera
for command in $(tessera --help | sed -n '/^Subcommands:/,$s/^  \([a-z-]*\) .*/\1/p'); do
  page tessera "tessera-$command" tessera "$command"
done
page tesserad tesserad tesserad
gzip -9n < CHANGELOG.md > $build/packaging/changelog.gz
for package in tessera tesserad; do
  mkdir -p $build/packaging/$package.doc
  cat <<ENTRY | gzip -9n > $build/packaging/$package.doc/changelog.Debian.gz
$package ($version-1) unstable; urgency=medium

  * What changed is in changelog.gz.

 -- Tessera maintainers <maintainers@tessera.invalid>  $(date -R -d "@$(git log -1 --format=%ct 2>/dev/null || stat -c %Y CHANGELOG.md)")
ENTRY
done

rm -rf $build/debs && mkdir $build/debs
(cd $build && cpack -G DEB -B debs >/dev/null)
mv $build/debs/_CPack_Packages/*.deb $build/debs 2>/dev/null || true
rm -rf $build/debs/_CPack_Packages
lintian --fail-on error --tag-display-limit 0 $build/debs/*.deb
ls $build/debs/*.deb
